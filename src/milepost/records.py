"""What the store hands out: frozen rows, and the fold that turns a journal back into one."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from milepost.errors import IllegalMove
from milepost.lifecycle import JOB, JobState
from milepost.machine import Machine

__all__ = ["SNAPSHOT", "Entry", "Standing"]

SNAPSHOT: Final = "snapshot"
"""The entry that retention leaves in place of a dropped past; its seq is the row's version."""

_COUNTED = {
    "retry": "errors",
    "fail": "errors",
    "lose": "losses",
    "later": "polls",
    "release": "releases",
}


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
            return self._restored(entry)
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
        return self._moved(entry, machine)

    def _moved(self, entry: Entry, machine: Machine) -> "Standing":
        moved = replace(
            self, version=entry.seq, state=entry.to_state, move=entry.move, fence=entry.fence
        )
        counter = _COUNTED.get(entry.move) if machine is JOB else None
        return replace(moved, **{counter: getattr(self, counter) + 1}) if counter else moved

    def _restored(self, entry: Entry) -> "Standing":
        if self.version:
            raise IllegalMove(f"entry {entry.seq} is a snapshot with entries before it")
        return Standing(entry.seq, entry.to_state, entry.move, entry.fence)

    @property
    def attempt(self) -> int:
        """Which attempt this is: 0 before the first claim (H-18, H-19)."""
        under_way = self.state in (JobState.RUNNING, JobState.SUCCEEDED)
        return self.errors + self.losses + under_way
