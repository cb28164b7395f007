"""Where the lines of a worker's or a server's process go: to stderr, each as text or as JSON.

A program that has configured `logging` itself, when it was imported, has its own way.
"""

import logging
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from milepost.telemetry import JOB_LOGGER, LEVELS, TRACEBACK, Line, Way
from milepost.tracebacks import hidden

if TYPE_CHECKING:
    from milepost.config import Settings

CHATTY = ("apprise", "httpcore2", "httpx2", "nats", "uvicorn")
"""Libraries of the engine's own whose INFO lines tell of each request."""


@contextmanager
def logging_as(settings: "Settings") -> Iterator[None]:
    """Log as the settings say, until the end of the block."""
    root, level = logging.getLogger(), LEVELS[settings.log_level]
    chatty = [logging.getLogger(name) for name in CHATTY]
    before = [(logger, logger.level) for logger in (root, *chatty)]
    Way.by_logging = True
    logging.captureWarnings(capture=True)
    handler = None
    if not root.handlers:
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
        Way.by_logging, Way.write = False, None
        logging.captureWarnings(capture=False)
        if handler is not None:
            root.removeHandler(handler)
            for logger, old in before:
                logger.setLevel(old)


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
        return msgspec.json.encode({**line.fields, **told}, enc_hook=str).decode()

    def _moment(self, created: float) -> str:
        second = int(created)
        if self._second[0] != second:
            local = datetime.fromtimestamp(second, UTC).astimezone()
            self._second = second, f"{local:%Y-%m-%d %H:%M:%S}"
        return self._second[1]


def _write(stream: TextIO, formatter: LineFormatter, logger: str, line: Line) -> None:
    with suppress(OSError, ValueError):  # as `logging` does, a line costs nobody their work
        stream.write(f"{formatter.written(time.time(), 'info', logger, line)}\n")


def _line(record: logging.LogRecord) -> Line:
    if isinstance(record.msg, Line) and record.name != JOB_LOGGER:
        return record.msg
    if isinstance(record.msg, Line):
        event, fields = record.msg.event, {**record.msg.fields, **_about(record)}
    else:
        event, fields = record.getMessage().rstrip(), {"logger": record.name, **_about(record)}
    if record.exc_info and record.exc_info[0] is not None:
        fields[TRACEBACK] = hidden("".join(traceback.format_exception(*record.exc_info)))
    return Line(hidden(event), fields)


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """Name the job in whose handler it was logged, if there is one."""
    told = vars(record)
    if told.get("milepost_job_id") is None:
        return {}
    return {name: told[f"milepost_{name}"] for name in ("kind", "job_id", "attempt")}
