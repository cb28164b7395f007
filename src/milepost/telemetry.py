"""Names of log fields and the way to the log. structlog is loaded when a handler asks for it."""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Any

REPEAT_FIRST_SECONDS = 10.0
REPEAT_LONGEST_SECONDS = 600.0
JOB_LOGGER = "milepost.job"
RECENT_SECONDS = 60.0
RECENT_MOST = 1_000
TRACEBACK = "exception"
"""The field that holds a traceback, as structlog calls it: it stands below its line."""


class Log:
    """The engine's own log: as the program has configured structlog, else lines on stderr.

    It does not load structlog for that, which would take a quarter of a second in the middle of
    an error: a program that has not loaded it cannot have configured it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that needs attention; fields are ids and short texts, never payloads."""
        self._write("warning", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._write("info", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        structlog = sys.modules.get("structlog")
        if structlog is not None and structlog.is_configured():
            getattr(structlog.get_logger(self._name), level)(event, **fields)
            return
        below = fields.pop(TRACEBACK, None) or ""
        words = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        now = datetime.now().astimezone()
        lines = "".join(f"  {_shown(line)}\n" for line in below.splitlines())
        sys.stderr.write(f"{now:%Y-%m-%d %H:%M:%S} [{level:<9}] {event} {words}\n{lines}")


class Recently:
    """Remembers for a minute what was told."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, name: str) -> bool:
        """Take a name; True when it was not told within the last minute."""
        now = time.monotonic()
        if self._until.get(name, now) > now:
            return False
        if len(self._until) >= RECENT_MOST:
            self._until.clear()
        self._until[name] = now + RECENT_SECONDS
        return True


class ThrottledLog:
    """Logs once that something is wrong, then at growing intervals, and once that it is over."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._pause = 0.0
        self._next = 0.0
        self._skipped = 0

    def warning(self, event: str, **fields: Any) -> None:
        """Log it, unless that was done a moment ago."""
        now = time.monotonic()
        if now < self._next:
            self._skipped += 1
            return
        more = {"skipped": self._skipped} if self._skipped else {}
        self._log.warning(event, **fields, **more)
        self._pause = min(max(REPEAT_FIRST_SECONDS, self._pause * 2), REPEAT_LONGEST_SECONDS)
        self._next = now + self._pause
        self._skipped = 0

    @property
    def active(self) -> bool:
        """Whether something was logged as wrong and not yet as over."""
        return self._pause > 0

    def over(self, event: str) -> None:
        """Log that it is over, if it was logged as wrong."""
        if self.active:
            self._log.info(event)
            self._pause = self._next = 0.0
            self._skipped = 0


def _shown(line: str) -> str:
    """Show a line of a text; control characters are shown, not sent to the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _word(value: Any) -> str:
    """Show a text as one word; control characters are shown, not sent to the terminal."""
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


def whole_text(record: logging.LogRecord) -> str:
    """Write the message of a record, and its traceback; one that cannot be written says so."""
    try:
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            text = f"{text}\n{''.join(traceback.format_exception(*record.exc_info))}"
    except Exception as error:  # noqa: BLE001 - logging tells it where the record is handled
        return f"(a line that cannot be written: {type(error).__name__})"
    return text


def job_log(keep: Callable[[float, str, str, str], None], **fields: Any) -> Any:
    """Return a logger of structlog whose every line names the job; fields are ids, not payloads.

    Where the program has not configured structlog, lines go to stderr: stdout is for data. Each is
    also passed to `keep`, as time, level, logger and text.
    """
    import structlog  # noqa: PLC0415 - it loads rich, which takes a quarter of a second

    def kept(_: Any, level: str, event: Any) -> Any:
        words = {name: value for name, value in event.items() if name not in fields}
        said = [str(words.pop("event", "")), *(f"{name}={_word(words[name])}" for name in words)]
        keep(time.time(), level, JOB_LOGGER, " ".join(said))
        return event

    if structlog.is_configured():
        # One that leads to logging is kept where all records are made.
        if isinstance(structlog.get_config()["logger_factory"], structlog.stdlib.LoggerFactory):
            return structlog.get_logger(JOB_LOGGER).bind(**fields)
        chain = [kept, *structlog.get_config()["processors"]]
        logger = structlog.get_config()["logger_factory"](JOB_LOGGER)
        return structlog.wrap_logger(logger, chain).bind(**fields)
    *others, _ = structlog.get_config()["processors"]
    lines = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    logger = structlog.PrintLogger(sys.stderr)
    return structlog.wrap_logger(logger, [kept, *others, lines]).bind(**fields)
