"""Names of log fields and the way to the log. structlog is loaded when a handler asks for it."""

import logging
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from milepost.tracebacks import hidden_fields

REPEAT_FIRST_SECONDS = 10.0
REPEAT_LONGEST_SECONDS = 600.0
JOB_LOGGER = "milepost.job"
RECENT_SECONDS = 60.0
RECENT_MOST = 1_000
TRACEBACK = "exception"
"""The field that holds a traceback, as structlog calls it: it stands below its line."""


LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Way:
    """How the engine's lines go: the commands that run workers say so."""

    by_logging = False
    """By `logging`, and not to stderr."""
    write: "Callable[[str, Line], None] | None" = None
    """Writes a line at INFO where it ends up, without a record, which costs more than the line."""


class Line:
    """The message of a record: an event and its fields, written out where somebody reads it."""

    __slots__ = ("event", "fields")

    def __init__(self, event: str, fields: dict[str, Any]) -> None:
        self.event = event
        self.fields = fields

    def __str__(self) -> str:
        words = [
            f"{name}={_word(value)}" for name, value in self.fields.items() if name != TRACEBACK
        ]
        below = self.fields.get(TRACEBACK)
        if not below and self.event.isprintable():  # as most are
            return " ".join([self.event, *words])
        event, *more = self.event.splitlines() or [""]
        more += (below or "").splitlines()
        return "\n  ".join([" ".join([_shown(event), *words]), *map(_shown, more)])


class Log:
    """The engine's own log: as the program has configured structlog, else lines on stderr.

    In commands that run workers they go by `logging`. It does not load structlog for that, which
    would take a quarter of a second in the middle of an error: a program that has not loaded it
    cannot have configured it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def warning(self, event: str, **fields: Any) -> None:
        """Log an event that needs attention; fields are ids and short texts, never payloads."""
        self._write("warning", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log an event."""
        self._write("info", event, fields)

    @property
    def wants_info(self) -> bool:
        """Whether the program has asked for lines at INFO: by default it has not."""
        return _configured() or logging.getLogger(self._name).isEnabledFor(logging.INFO)

    def tell(self, event: str, **fields: Any) -> None:
        """Log an event that is only of interest where `wants_info` says so."""
        self._write("info", event, fields, by_logging=True)

    def _write(
        self, level: str, event: str, fields: dict[str, Any], *, by_logging: bool = False
    ) -> None:
        """Write a line; the program's own logging may fail, and no job may end by that."""
        try:
            if _configured():
                getattr(sys.modules["structlog"].get_logger(self._name), level)(event, **fields)
            elif by_logging and Way.write is not None:
                Way.write(self._name, Line(event, fields))
            elif by_logging or Way.by_logging:
                log_line(self._name, LEVELS[level], Line(event, fields))
            else:
                _write_raw(level, Line(event, fields))
        except Exception as error:  # noqa: BLE001 - whatever a processor or a handler raises
            _write_raw(level, Line(event, {**fields, "logging_failed": repr(error)}))


def _write_raw(level: str, line: Line) -> None:
    now = datetime.now().astimezone()
    # None in a process without a console; closed, or its reader gone, in others.
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{now:%Y-%m-%d %H:%M:%S} [{level:<9}] {line}\n")


def _configured() -> bool:
    # A handler in a thread may be importing it just now.
    is_configured = getattr(sys.modules.get("structlog"), "is_configured", None)
    return is_configured is not None and bool(is_configured())


def log_line(name: str, level: int, line: Line, exc_info: Any = None) -> None:
    """Hand a line to `logging`; where it was written is not looked up, which takes a while."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(name, level, "milepost", 0, line, (), exc_info))


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
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _word(value: Any) -> str:
    """Show a text as one word; control characters are shown, not sent to the terminal."""
    text = text_of(value)
    return text if text.isprintable() and " " not in text else repr(text)


def text_of(value: Any) -> str:
    """Write a value as text, whatever its own code does then."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a line is written without it
        return f"({type(value).__qualname__}: {type(error).__name__} when written)"


def message_of(record: logging.LogRecord) -> str:
    """Write the message of a record; arguments that do not fit are left out, and it says so."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - the line is there, and its text is worth reading
        why = f"{type(error).__name__}: {text_of(error)}"
        return f"{text_of(record.msg)} (logged with arguments that do not fit: {why})"


def traceback_of(record: logging.LogRecord) -> str | None:
    """Write the traceback of a record, if it has one."""
    if not record.exc_info or record.exc_info[0] is None:
        return None
    return "".join(traceback.format_exception(*record.exc_info))


def whole_text(record: logging.LogRecord) -> str:
    """Write the message of a record, and its traceback."""
    below = traceback_of(record)
    return message_of(record) if below is None else f"{message_of(record)}\n{below}"


def _raised(event: Any) -> Any:
    """Find the error that a line of structlog is about, if any."""
    raised = event.get("exc_info")
    if isinstance(raised, BaseException):
        return type(raised), raised, raised.__traceback__
    return sys.exc_info() if raised is True else raised or None


def job_log(keep: Callable[[float, str, str, str], None], **fields: Any) -> Any:
    """Return a logger of structlog whose every line names the job; fields are ids, not payloads.

    Where the program has not configured structlog, lines go to stderr: stdout is for data. Each is
    also passed to `keep`, as time, level, logger and text.
    """
    import structlog  # noqa: PLC0415 - it loads rich, which takes a quarter of a second

    def kept(_: Any, level: str, event: Any) -> Any:
        words = {n: value for n, value in event.items() if n not in (*fields, "exc_info")}
        words = hidden_fields(words)
        line = Line(text_of(words.pop("event", "")), words)
        if Way.by_logging and not structlog.is_configured():
            log_line(JOB_LOGGER, LEVELS.get(level, logging.ERROR), line, _raised(event))
            raise structlog.DropEvent
        keep(time.time(), level, JOB_LOGGER, str(line))
        return event if structlog.is_configured() else {**event, **words}

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
