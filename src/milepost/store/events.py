"""Following the journal: every move that is committed, once, whatever began when.

A place in the stream is a `Cursor`: all moves visible at `base` were read, and of those that became
visible up to `mark` all up to `key`. On PostgreSQL base and mark are snapshots: times
and numbers are taken before a commit, so neither tells the commits since. SQLite has
one writer, and there they are numbers.
"""

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.errors import Invalid
from milepost.lifecycle import JOB, JobState
from milepost.outcome import micros
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

KEEP_SECONDS = 3600.0
"""How long a follower may be away and miss nothing."""

MARK = re.compile(r"\d{1,20}(:\d{1,20}:[\d,]{0,20000})?")
LONGEST = 40_000


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A place in the stream."""

    base: str
    mark: str
    key: str = ""

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Read a place that was told before, or raise `Invalid`."""
        try:
            data = base64.urlsafe_b64decode(text[:LONGEST] + "=" * (-len(text) % 4))
            cursor = msgspec.json.decode(data, type=cls)
        except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
            raise Invalid("Last-Event-ID: this is no id of an event; leave it out") from error
        if not MARK.fullmatch(cursor.base) or not MARK.fullmatch(cursor.mark):
            raise Invalid("Last-Event-ID: this is no id of an event; leave it out")
        return cursor


class Event(msgspec.Struct, frozen=True):
    """One move, and the job or run that made it."""

    cursor: Cursor
    machine: str
    id: str
    seq: int
    move: str
    from_state: str | None
    to_state: str
    at: datetime
    actor: str | None
    fence: int
    kind: str | None
    queue: str | None
    tenant: str | None
    run_id: str | None
    trace: str | None = None
    role: str | None = None
    ordinal: int | None = None

    @property
    def signal(self) -> str | None:
        """The name of B's message for this move, if it has one; here nothing depends on it.

        It is the move itself that is told, so there is one for each partition and each run (H-87).
        """
        ended = self.to_state in JOB.terminal and self.from_state not in JOB.terminal
        if self.role == "partition" and ended:
            return "WORK_DONE"
        opened = self.from_state == JobState.GATED and self.to_state == JobState.QUEUED
        return "CONSOLIDATE" if self.role == "consolidate" and opened and not self.ordinal else None


def here() -> Steps[Cursor]:
    """Tell the place after everything that has been committed."""
    yield Call("events_want", {"keep_us": micros(KEEP_SECONDS)})
    [(mark,)] = yield Call("events_here")
    return Cursor(mark, mark)


def follow(cursor: Cursor, *, most: int) -> Steps[tuple[list[Event], Cursor, bool]]:
    """Read the events after a place, the place to go on from, and whether any were lost.

    They were, if the follower was away for longer than the stream is kept.
    """
    yield Call("events_want", {"keep_us": micros(KEEP_SECONDS)})
    [(lost,)] = yield Call("events_lost", {"base": cursor.base, "key": cursor.key})
    if lost:
        return [], (yield from here()), True
    found = yield from _read(cursor, most)
    if len(found) == most:
        return found, found[-1].cursor, False
    # That was all up to the mark: go on from there.
    [(mark,)] = yield Call("events_here")
    onward = Cursor(cursor.mark, mark)
    if mark == cursor.mark:
        return found, onward, False
    more = yield from _read(onward, most)
    place = more[-1].cursor if len(more) == most else Cursor(mark, mark)
    return [*found, *more], place, False


def _read(cursor: Cursor, most: int) -> Steps[list[Event]]:
    if cursor.base == cursor.mark:
        return []
    rows = yield Call(
        "events_after",
        {"base": cursor.base, "mark": cursor.mark, "key": cursor.key, "most": most},
    )
    return [_event(Cursor(cursor.base, cursor.mark, row[0]), row) for row in rows]


def _event(cursor: Cursor, row: Sequence[Any]) -> Event:
    _, machine, subject_id, seq, move, source, target, at, *rest = row
    return Event(cursor, machine, subject_id, seq, move, source, target, instant(at), *rest)


def prune(*, most: int) -> Steps[int]:
    """Delete events beyond the time they are kept; stop keeping them when there is no follower."""
    yield Call("events_rest")
    asked = {"keep_us": micros(KEEP_SECONDS), "most": most}
    return len((yield Call("events_prune", asked)))
