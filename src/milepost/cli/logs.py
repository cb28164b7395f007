"""Where the lines of a worker's or a server's process go: to stderr, each as text or as JSON.

A program that has configured `logging` itself, when it was imported, has its own way.
"""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from milepost.policy import storable
from milepost.telemetry import (
    JOB_LOGGER,
    LEVELS,
    TRACEBACK,
    Line,
    Way,
    message_of,
    text_of,
    traceback_of,
)
from milepost.tracebacks import hidden, hidden_fields

if TYPE_CHECKING:
    from milepost.config import Settings

CHATTY = ("aiobotocore", "apprise", "azure", "botocore", "httpcore2", "httpx2", "nats", "uvicorn")
"""Libraries of the engine's own whose INFO lines tell of each request."""
USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; all else was given as `extra`."""
COLORED = "color_message"
"""The extra of uvicorn's lines: the same text once more."""


@contextmanager
def logging_as(settings: "Settings") -> Iterator[None]:
    """Log as the settings say, until the end of the block."""
    Way.by_logging = True
    logging.captureWarnings(capture=True)
    try:
        with ExitStack() as own:
            if not logging.getLogger().handlers:
                own.enter_context(_lines_to_stderr(settings))
                own.enter_context(_uncaught_as_lines())
            yield
    finally:
        Way.by_logging, Way.write = False, None
        logging.captureWarnings(capture=False)


@contextmanager
def _lines_to_stderr(settings: "Settings") -> Iterator[None]:
    root, level = logging.getLogger(), LEVELS[settings.log_level]
    chatty = [logging.getLogger(name) for name in CHATTY]
    before = [(logger, logger.level) for logger in (root, *chatty)]
    handler = logging.StreamHandler(sys.stderr)
    formatter = LineFormatter(as_json=settings.log_format == "json")
    handler.setFormatter(formatter)
    Way.write = partial(_write, sys.stderr, formatter)
    root.addHandler(handler)
    root.setLevel(level)
    for logger in chatty:
        logger.setLevel(max(level, logging.WARNING))
    try:
        yield
    finally:
        root.removeHandler(handler)
        for logger, old in before:
            logger.setLevel(old)


@contextmanager
def _uncaught_as_lines() -> Iterator[None]:
    """Log errors that end a thread or that a destructor raises; Python writes them to stderr."""
    if threading.excepthook is not threading.__excepthook__:
        yield  # the program, or a library of its own, has its way with them
        return
    before = sys.unraisablehook
    threading.excepthook, sys.unraisablehook = _log_thread, _log_unraisable
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = threading.__excepthook__, before


def _log_thread(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = "?" if ended.thread is None else ended.thread.name
        error = ended.exc_type, ended.exc_value, ended.exc_traceback
        logging.getLogger("threading").error("thread %s ended by an error", name, exc_info=error)  # type: ignore[arg-type]


def _log_unraisable(found: "sys.UnraisableHookArgs") -> None:
    error = found.exc_type, found.exc_value, found.exc_traceback
    told = found.err_msg or "error that nobody can catch, in"
    logging.getLogger("python").error("%s %r", told, found.object, exc_info=error)  # type: ignore[arg-type]


class LineFormatter(logging.Formatter):
    """Writes a record as one line, an error's traceback below it; or as one object."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self._second = (0, "")

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; lines of others name their logger and their job, and show no secrets."""
        return self.written(record.created, record.levelname.lower(), record.name, _line(record))

    def written(self, at: float, level: str, logger: str, line: Line) -> str:
        """Write a line."""
        if not self._as_json:
            return f"{self._moment(at)} [{level:<9}] {line}"
        moment = datetime.fromtimestamp(at, UTC)
        told = {"time": moment, "level": level, "logger": logger, "event": line.event}
        return _object({**line.fields, **told})

    def _moment(self, created: float) -> str:
        second = int(created)
        if self._second[0] != second:
            local = datetime.fromtimestamp(second, UTC).astimezone()
            self._second = second, f"{local:%Y-%m-%d %H:%M:%S}"
        return self._second[1]


def _write(stream: TextIO, formatter: LineFormatter, logger: str, line: Line) -> None:
    with suppress(OSError, ValueError):  # as `logging` does, a line costs nobody their work
        stream.write(f"{formatter.written(time.time(), 'info', logger, line)}\n")


def _object(fields: dict[str, Any]) -> str:
    """Write an object; what JSON has no form for is written as text."""
    try:
        return msgspec.json.encode(fields, enc_hook=text_of).decode()
    except Exception:  # noqa: BLE001 - a surrogate, a number of thirty digits, a key of no text
        shown = {storable(text_of(name)): _value(value) for name, value in fields.items()}
        return msgspec.json.encode(shown, enc_hook=text_of).decode()


def _value(value: Any) -> Any:
    try:
        msgspec.json.encode(value, enc_hook=text_of)
    except Exception:  # noqa: BLE001 - as above
        return storable(text_of(value))
    return value


def _line(record: logging.LogRecord) -> Line:
    if isinstance(record.msg, Line) and record.name != JOB_LOGGER:
        return record.msg
    if isinstance(record.msg, Line):
        event, fields = record.msg.event, {**record.msg.fields, **_about(record)}
    else:
        event, fields = message_of(record).rstrip(), {"logger": record.name, **_extra(record)}
        fields |= _about(record)
    if (below := traceback_of(record)) is not None:
        fields[TRACEBACK] = hidden(below)
    return Line(hidden(event), fields)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    """Find the fields that were given as `extra`."""
    names = [
        name
        for name in vars(record)
        if name not in USUAL and name != COLORED and not name.startswith("milepost_")
    ]
    return hidden_fields({name: vars(record)[name] for name in names}) if names else {}


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """Name the job in whose handler it was logged, if there is one."""
    told = vars(record)
    if told.get("milepost_job_id") is None:
        return {}
    return {name: told[f"milepost_{name}"] for name in ("kind", "job_id", "attempt")}
