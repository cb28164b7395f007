"""Names of log fields and the way to the log. structlog is loaded when something is said."""

from typing import Any

__all__ = ["Log", "job_log"]


class Log:
    """A structured log that costs nothing until it is used."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def warning(self, event: str, **fields: Any) -> None:
        """Say that something needs attention; fields are ids and short texts, never payloads."""
        self._loaded().warning(event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        """Say that something happened."""
        self._loaded().info(event, **fields)

    def _loaded(self) -> Any:
        if self._logger is None:
            import structlog  # noqa: PLC0415 - it loads rich, which takes a quarter of a second

            self._logger = structlog.get_logger(self._name)
        return self._logger


def job_log(**fields: Any) -> Any:
    """Return a logger whose every line names the job; fields are ids, never payloads."""
    import structlog  # noqa: PLC0415 - see above

    return structlog.get_logger("milepost.job").bind(**fields)
