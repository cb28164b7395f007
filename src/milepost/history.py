"""A history: the entries of a journal, and the fold that turns them back into a row."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import msgspec

from milepost.errors import IllegalMove
from milepost.lifecycle import JOB, JobState
from milepost.machine import Machine

SNAPSHOT: Final = "snapshot"
"""The entry that stands for itself and all before it, when a history is too old to be whole."""

_COUNTED = {
    "retry": "errors",
    "fail": "errors",
    "lose": "losses",
    "later": "polls",
    "release": "releases",
}


class Summary(msgspec.Struct, frozen=True):
    """What a snapshot says of the entries that it stands for."""

    moves: int
    since: int
    """When the first of them was made, in microseconds since 1970."""
    errors: int
    losses: int
    polls: int
    releases: int
    move: str
    """The last of them, and what it said."""
    detail: str | None = None
    worker: str | None = None
    """Who claimed it last."""

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since / 1e6, UTC)
        counts = ", ".join(
            f"{getattr(self, name)} {name}" for name in ("errors", "losses", "polls", "releases")
        )
        return (
            f"earlier history was summed up: {self.moves:,} moves since {began:%Y-%m-%d %H:%M},"
            f" {counts}; the last was {self.move}"
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One move of one job or run, as the journal has it."""

    seq: int
    move: str
    from_state: str | None
    to_state: str
    fence: int
    at: datetime | None = None
    actor: str | None = None
    detail: str | None = None
    attempt: int = 0
    db_user: str | None = None
    """The database user that made the move, on PostgreSQL; a SQLite file has no users."""

    @property
    def summary(self) -> Summary | None:
        """What it sums up, if it is a snapshot and no move, and retention wrote it."""
        if self.move != SNAPSHOT:
            return None
        try:
            return msgspec.json.decode(self.detail or "", type=Summary)
        except msgspec.MsgspecError:
            return None

    def with_attempt(self, attempt: int) -> "Entry":
        """Say which attempt it belongs to."""
        return replace(self, attempt=attempt)


def attempt_of(state: str | None, errors: int, losses: int) -> int:
    """Count the attempts, the one that runs included (H-18, H-19)."""
    return errors + losses + (state in (JobState.RUNNING, JobState.SUCCEEDED))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a journal, folded from empty, says of its subject. Counters are a job's alone."""

    version: int = 0
    state: str | None = None
    move: str = ""
    fence: int = 0
    errors: int = 0
    losses: int = 0
    polls: int = 0
    releases: int = 0

    def after(self, entry: Entry, machine: Machine) -> "Standing":
        """Take one more entry, or raise `IllegalMove` saying why it cannot follow."""
        if entry.move == SNAPSHOT:
            if self.version:
                raise IllegalMove(f"entry {entry.seq} is a snapshot with entries before it")
            if (entry.detail or "").startswith("{") and entry.summary is None:
                raise IllegalMove(f"entry {entry.seq} is a snapshot that cannot be read")
            if (summary := entry.summary) is not None and summary.moves != entry.seq:
                # What was missing before it was summed up is missing for ever.
                raise IllegalMove(f"entry {entry.seq} is a snapshot of {summary.moves} moves")
            return self.taking(entry)
        if entry.seq != self.version + 1:
            raise IllegalMove(f"entry {entry.seq} follows entry {self.version}")
        if entry.from_state != self.state:
            raise IllegalMove(
                f"it leaves {entry.from_state} but the entry before ended {self.state}"
            )
        machine.check(entry.move, entry.from_state, entry.to_state)
        fence = self.fence + (entry.move == "claim")
        if entry.fence != fence:
            raise IllegalMove(f"entry {entry.seq} has fence {entry.fence}; {fence} was due")
        moved = self.taking(entry)
        return moved if machine is JOB else replace(moved, errors=0, losses=0)

    def taking(self, entry: Entry) -> "Standing":
        """Take one more entry as it comes: the database has checked it."""
        if entry.move == SNAPSHOT:
            return self._restored(entry)
        moved = replace(
            self, version=entry.seq, state=entry.to_state, move=entry.move, fence=entry.fence
        )
        counter = _COUNTED.get(entry.move)
        return replace(moved, **{counter: getattr(self, counter) + 1}) if counter else moved

    @staticmethod
    def _restored(entry: Entry) -> "Standing":
        summed = entry.summary
        if summed is None:
            return Standing(entry.seq, entry.to_state, entry.move, entry.fence)
        counts = (summed.errors, summed.losses, summed.polls, summed.releases)
        return Standing(entry.seq, entry.to_state, summed.move, entry.fence, *counts)

    @property
    def attempt(self) -> int:
        """Which attempt this is: 0 before the first claim (H-18, H-19)."""
        return attempt_of(self.state, self.errors, self.losses)
