"""The last lines that an attempt has logged and that are not written yet, from any thread."""

import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from milepost.outcome import LogLine
from milepost.policy import storable
from milepost.store.logs import LINES_MOST
from milepost.tracebacks import hidden

LINE_LIMIT = 8_000


class LineBuffer:
    """Takes lines from whichever thread logs, and gives them to the worker; it knows its losses."""

    __slots__ = ("_dropped", "_lines", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a handler of a signal may log in the middle of a line
        self._lines: deque[LogLine] = deque()
        self._dropped = 0

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._lines)

    def add(self, line: LogLine) -> None:
        """Take a line; of too many, the last ones are kept."""
        with self._lock:
            if len(self._lines) == LINES_MOST:
                self._dropped += self._lines.popleft().n
            self._lines.append(line)

    def take(self) -> tuple[LogLine, ...]:
        """Give all, once, without secrets; the first one counts for those that were not kept."""
        with self._lock:
            lines, dropped = list(self._lines), self._dropped
            self._lines.clear()
            self._dropped = 0
        if dropped:
            lines[0] = msgspec.structs.replace(lines[0], n=lines[0].n + dropped)
        return tuple(map(_shown, lines))

    def put_back(self, lines: Sequence[LogLine]) -> None:
        """Take lines again that could not be written; of too many, the last ones."""
        with self._lock:
            # Those dropped since came after these, and were followed by a full buffer.
            room = LINES_MOST - len(self._lines)
            kept = lines[max(0, len(lines) - room) :]
            self._dropped += sum(line.n for line in lines[: len(lines) - len(kept)])
            self._lines.extendleft(reversed(kept))


def new_line(at: float, level: str, attempt: int, logger: str, text: str) -> LogLine:
    """Make a line as it is logged; what is not kept of a long one is not held either."""
    moment = datetime.fromtimestamp(at, UTC)
    return LogLine(1, moment, level.lower(), attempt, logger, text[: 2 * LINE_LIMIT])


def _shown(line: LogLine) -> LogLine:
    text = hidden(storable(line.text))[:LINE_LIMIT]
    level, logger = storable(line.level), storable(line.logger)
    return msgspec.structs.replace(line, level=level, logger=logger, text=text)
