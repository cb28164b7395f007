"""Records that a source has no more: marked by a complete full run, removed softly, and back again.

What a full run did not see may have changed while it read. So it is marked first, what turns out to
be there is unmarked, and the rest is removed, by this run or, if it cannot be told yet, by the next
(H-81, H-84).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.records import Claim
from milepost.store import durable
from milepost.store.catalog import Statement
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.store.watermarks import PipelineRunRow

CONFIRMED, DISMISSED = "confirmed", "dismissed"


def mark_missing(claim: Claim, run: PipelineRunRow, *, after: str, most: int) -> Steps[str | None]:
    """Mark some of what a complete full run did not see; answer with where to go on, if so."""
    yield from durable.hold(claim)
    whose = {"root_id": run.root_id, "pipeline_id": run.pipeline_id, "seen": run.root_number}
    if not after:
        yield Call("raw_gone_for_good", whose)
    keys = [
        row[0] for row in (yield Call("raw_mark_missing", {**whose, "after": after, "most": most}))
    ]
    return max(keys) if len(keys) == most else None


def unmark(claim: Claim, *, pipeline_id: int, keys: Sequence[str]) -> Steps[None]:
    """Say that records are there after all."""
    yield from durable.hold(claim)
    yield Call("raw_unmark", {"pipeline_id": pipeline_id, "key": list(keys)})


class Missing(msgspec.Struct, frozen=True):
    """Records that a full run did not see: how many, how many are confirmed, of how many."""

    marked: int
    confirmed: int
    live: int

    @property
    def waiting(self) -> int:
        """How many wait for a decision, if there is to be one."""
        return self.marked - self.confirmed

    def exceeds(self, limit: float) -> bool:
        """Tell whether too large a share is gone for anybody but an operator to decide."""
        return self.waiting > limit * self.live


def missing(pipeline_id: int) -> Steps[Missing]:
    """Count what is marked, what of it is confirmed, and everything that is not removed."""
    [row] = yield Call("raw_missing_count", {"pipeline_id": pipeline_id})
    return Missing(*map(int, row))


def remove(
    claim: Claim, run: PipelineRunRow, *, statement: Statement, most: int, all_: bool
) -> Steps[int]:
    """Remove some of what is marked, or confirmed, here and in the target; answer how many."""
    yield from durable.hold(claim)
    keys = yield from pending(run.pipeline_id, confirmed=None if all_ else True, most=most)
    if keys:
        own = {"pipeline_id": run.pipeline_id, "root_id": run.root_id}
        yield Call(statement, {"key": keys})
        yield from _released(own, keys)
        yield Call("raw_remove", {**own, "key": keys})
    return len(keys)


def _released(own: Mapping[str, Any], keys: Sequence[str]) -> Steps[list[str]]:
    """Let records leave the quarantine that are gone from the source; answer with their keys."""
    asked = {**own, "key": list(keys), "rejected": []}
    return [row[0] for row in (yield Call("quarantine_resolve", asked))]


def remove_known(
    pipeline_id: int,
    root_id: str,
    gone: Mapping[str, int | None],
    *,
    statement: Statement,
    unless_seen: bool = False,
) -> Steps[None]:
    """Remove records that the source says are gone, unless what is known of them is newer.

    With `unless_seen`, one of which no version is told stays if this run has seen it.
    """
    own = {"pipeline_id": pipeline_id, "root_id": root_id}
    keys = []
    for key, version, is_seen in (yield Call("raw_known", {**own, "key": sorted(gone)})):
        told = gone[key]
        if not (is_seen and unless_seen) if told is None else version <= told:
            keys.append(key)
    if keys:
        keys.sort()
        removed = {str(row[0]) for row in (yield Call(statement, {"key": keys}))}
        removed.update((yield from _released(own, keys)))
        yield Call("raw_remove", {**own, "key": sorted(removed)})
    # What only the mapping took for a deletion is decided again by another one.
    if dated := [key for key in keys if unless_seen and gone[key] is not None]:
        versions = {"key": dated, "version": [gone[key] for key in dated]}
        yield Call("raw_deleted", {"pipeline_id": pipeline_id, **versions})


def pending(
    pipeline_id: int, *, after: str = "", most: int, confirmed: bool | None = False
) -> Steps[list[str]]:
    """Read keys that are marked and wait for a decision, or are confirmed, or both, in order."""
    asked = {"pipeline_id": pipeline_id, "after": after, "most": most, "confirmed": confirmed}
    return [row[0] for row in (yield Call("raw_missing", asked))]


class Decision(msgspec.Struct, frozen=True):
    """What an operator decided of the records that a full run did not see."""

    run_id: str
    decision: str
    records: int
    actor: str
    reason: str
    at: datetime


def decisions(pipeline_id: int) -> Steps[list[Decision]]:
    """Read what was decided, in the order of time."""
    rows = yield Call("removal_decisions", {"pipeline_id": pipeline_id})
    return [Decision(*(*row[:-1], instant(row[-1]))) for row in rows]


def decide(pipeline_id: int, decision: str, *, actor: str, reason: str) -> Steps[int]:
    """Confirm or dismiss what is marked, on the record; answer with how many records that are.

    What is confirmed is removed by the next run; what is dismissed stays until a full run misses
    it again.
    """
    told = {"decision": decision, "actor": actor, "reason": reason}
    rows = yield Call("removal_decide", {"pipeline_id": pipeline_id, **told})
    if decision == DISMISSED:
        yield Call("raw_unmark_all", {"pipeline_id": pipeline_id})
    return sum(int(row[0]) for row in rows)


def is_dismissed(run: PipelineRunRow) -> Steps[bool]:
    """Tell whether an operator said that what this run did not see is there."""
    found = yield from decisions(run.pipeline_id)
    return any(one.run_id == run.root_id and one.decision == DISMISSED for one in found)


def restore(*, root_id: str, pipeline_id: int, statement: Statement, most: int) -> Steps[int]:
    """Bring back some of what a run has removed; answer with how many."""
    own = {"pipeline_id": pipeline_id, "root_id": root_id}
    rows = yield Call("raw_removed", {**own, "most": most})
    keys = [row[0] for row in rows]
    if keys:
        yield Call(statement, {"key": keys})
        yield Call("raw_restore", {**own, "key": keys})
    return len(keys)


class Kept(msgspec.Struct, frozen=True):
    """A record in quarantine."""

    key: str
    run_id: str
    version: int
    type: str
    reason: str
    payload: bytes
    at: datetime


def unresolved(pipeline_id: int) -> Steps[int]:
    """Count what is in quarantine."""
    [(count,)] = yield Call("quarantine_count", {"pipeline_id": pipeline_id})
    return int(count)


def rejected(root_id: str) -> Steps[int]:
    """Count what a run put into quarantine and nobody has fixed since."""
    [(count,)] = yield Call("run_unresolved", {"root_id": root_id})
    return int(count)


def none_identified(run: PipelineRunRow) -> Steps[bool]:
    """Tell whether a run read records and found the key of none: then each has a made-up one."""
    own = {"root_id": run.root_id, "pipeline_id": run.pipeline_id}
    [(keyless, keyed)] = yield Call("run_identified", own)
    return bool(keyless and not keyed)


def quarantined(pipeline_id: int, *, after: str = "", most: int = 100) -> Steps[Sequence[Kept]]:
    """Read a page of what is in quarantine, in the order of the keys."""
    rows: Sequence[Any] = yield Call(
        "quarantine_list", {"pipeline_id": pipeline_id, "after": after, "most": most}
    )
    return [Kept(*(*row[:-1], instant(row[-1]))) for row in rows]
