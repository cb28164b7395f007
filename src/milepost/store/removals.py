"""Records that a source has no more: marked by a complete full run, removed softly, and back again.

A record that a full run did not see may have changed while it read. So it is marked first, unmarked
if it turns out to be there, and otherwise removed, by this run or, if it cannot be told yet, by the
next (H-81, H-84).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from milepost.records import Claim
from milepost.store import durable, quarantine
from milepost.store.catalog import Statement
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.watermarks import PipelineRunRow

CONFIRMED, DISMISSED = "confirmed", "dismissed"


def mark_missing(claim: Claim, run: PipelineRunRow, *, after: str, most: int) -> Steps[str | None]:
    """Mark some records that a complete full run did not see; answer where to go on, if so."""
    yield from durable.hold(claim)
    given = {**run.own, "after": after, "most": most}
    if not after:
        yield Call("raw_gone_for_good", given)
    keys = [row[0] for row in (yield Call("raw_mark_missing", given))]
    return max(keys) if len(keys) == most else None


def unmark(claim: Claim, *, pipeline_id: int, keys: Sequence[str]) -> Steps[None]:
    """Note that records are there after all."""
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
    """Count the marked records, the confirmed ones among them, and all that are not removed."""
    [row] = yield Call("raw_missing_count", {"pipeline_id": pipeline_id})
    return Missing(*map(int, row))


def remove(
    claim: Claim, run: PipelineRunRow, *, statement: Statement, most: int, all_: bool
) -> Steps[int]:
    """Remove some marked records, or confirmed ones, here and in the target; answer how many."""
    yield from durable.hold(claim)
    keys = yield from pending(run.pipeline_id, confirmed=None if all_ else True, most=most)
    if keys:
        yield Call(statement, {"key": keys})
        yield from quarantine.release(run, keys)
        yield Call("raw_remove", {**run.own, "key": keys})
    return len(keys)


def remove_known(
    run: PipelineRunRow,
    gone: Mapping[str, int | None],
    *,
    statement: Statement,
    unless_seen: bool = False,
) -> Steps[None]:
    """Remove records that the source deleted, unless a newer version is known.

    With `unless_seen`, a deletion without a version leaves a record that this run has seen.
    """
    keys = []
    for key, version, is_seen in (yield Call("raw_known", {**run.own, "key": sorted(gone)})):
        told = gone[key]
        if not (is_seen and unless_seen) if told is None else version <= told:
            keys.append(key)
    if keys:
        keys.sort()
        removed = {str(row[0]) for row in (yield Call(statement, {"key": keys}))}
        removed.update((yield from quarantine.release(run, keys)))
        yield Call("raw_remove", {**run.own, "key": sorted(removed)})
    # A deletion that only the mapping made is decided again by another mapping.
    if dated := [key for key in keys if unless_seen and gone[key] is not None]:
        yield Call(
            "raw_deleted", {**run.own, "key": dated, "version": [gone[key] for key in dated]}
        )


def pending(
    pipeline_id: int, *, after: str = "", most: int, confirmed: bool | None = False
) -> Steps[list[str]]:
    """Read keys that are marked and wait for a decision, or are confirmed, or both, in order."""
    given = {"pipeline_id": pipeline_id, "after": after, "most": most, "confirmed": confirmed}
    return [row[0] for row in (yield Call("raw_missing", given))]


class RemovalDecision(msgspec.Struct, frozen=True):
    """An operator's decision on the records that a full run did not see."""

    run_id: str
    decision: str
    records: int
    actor: str
    reason: str
    at: datetime


_decision = reader(RemovalDecision)


def decisions(pipeline_id: int) -> Steps[list[RemovalDecision]]:
    """Read the decisions, in the order of time."""
    rows = yield Call("removal_decisions", {"pipeline_id": pipeline_id})
    return [_decision(row) for row in rows]


def decide(pipeline_id: int, decision: str, *, actor: str, reason: str) -> Steps[int]:
    """Confirm or dismiss the marked records, on the record; answer how many they are.

    Confirmed ones are removed by the next run; dismissed ones stay until a full run misses them
    again.
    """
    told = {"decision": decision, "actor": actor, "reason": reason}
    rows = yield Call("removal_decide", {"pipeline_id": pipeline_id, **told})
    if decision == DISMISSED:
        yield Call("raw_unmark_all", {"pipeline_id": pipeline_id})
    return sum(int(row[0]) for row in rows)


def is_dismissed(run: PipelineRunRow) -> Steps[bool]:
    """Tell whether an operator dismissed the removals of this run."""
    found = yield from decisions(run.pipeline_id)
    return any(one.run_id == run.root_id and one.decision == DISMISSED for one in found)


def restore(run: PipelineRunRow, *, statement: Statement, most: int) -> Steps[int]:
    """Bring back some of the records that a run has removed; answer how many."""
    rows = yield Call("raw_removed", {**run.own, "most": most})
    keys = [row[0] for row in rows]
    if keys:
        yield Call(statement, {"key": keys})
        yield Call("raw_restore", {**run.own, "key": keys})
    return len(keys)
