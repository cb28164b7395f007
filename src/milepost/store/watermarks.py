"""Where a pipeline has come to: one number, compared and set by the transaction that ends a run.

It never passes what nobody has read. Each run notes what it sets out to read, partition by
partition; what stays open after it ended is a gap, and the watermark stops before the first of them
(H-71, H-74).
"""

from datetime import datetime
from typing import Any

import msgspec
import uuid_utils

from milepost.errors import NotFound
from milepost.lifecycle import Cause
from milepost.records import NewJob, Template
from milepost.store import creation
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.fanin import RULES, RoleRule, RunEnd
from milepost.store.instants import instant

STALE = ".stale"
"""What the kind of job ends with that tells of a pipeline which is not fresh."""

MOVING = ("full", "incremental")
"""Only what such a run has read is told by the watermark."""


class PipelineRow(msgspec.Struct, frozen=True):
    """A pipeline as the store knows it."""

    id: int
    name: str
    mark: int | None
    measure: str
    target: str
    last_run_id: str | None
    last_run_completed_at: datetime | None
    dataset_version: int
    rules_digest: str | None
    made_with: int | None
    behind: int

    def document(self) -> dict[str, object]:
        """Tell the watermark in B's three fields."""
        at = self.last_run_completed_at
        return {
            "lastUpdatedAt": _iso(self.watermark),
            "lastRunId": self.last_run_id,
            "lastRunCompletedAt": _iso(at),
        }

    @property
    def watermark(self) -> datetime | int | None:
        """The watermark as people write it."""
        return None if self.mark is None else Mark(self.measure).shown(self.mark)


def _iso(value: datetime | int | None) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


class Mark(msgspec.Struct, frozen=True):
    """How a whole number is meant: as microseconds since 1970, or as the source's own sequence."""

    measure: str

    def shown(self, mark: int) -> datetime | int:
        """Write a mark as people do."""
        return instant(mark) if self.measure == "time" else mark

    def stored(self, value: datetime | int) -> int:
        """Write a time, or a number of a sequence, as a mark."""
        if isinstance(value, datetime):
            return micros_of(value)
        return value


def micros_of(value: datetime) -> int:
    """Count the microseconds since 1970, all of them."""
    span = value - instant(0)
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


class Entry(msgspec.Struct, frozen=True):
    """One move of a watermark."""

    seq: int
    move: str
    from_mark: int | None
    to_mark: int | None
    run_id: str | None
    actor: str | None
    reason: str | None
    at: datetime


def end(run_id: str, *, actor: str | None) -> Steps[RunEnd]:
    """Move the watermark with the run that ends now, or say why the run cannot end well.

    Called in the transaction of the run's last move (H-44).
    """
    rows = yield Call("pipeline_run_get", {"run_id": run_id})
    if not rows:
        return RunEnd()
    run = PipelineRunRow(*rows[0])
    own = {"root_id": run.root_id, "pipeline_id": run.pipeline_id}
    [(still_open,)] = yield Call("reading_open", own)
    if run.root_mode not in MOVING or run.mode == "replay" or still_open or run.end_mark is None:
        yield Call("watermark_touch", own)
        return RunEnd()
    window = {"start_mark": run.start_mark, "end_mark": run.end_mark}
    yield Call("reading_cover", {**own, **window})
    yield Call("reading_shorten", {**own, **window})
    [(gaps, least)] = yield Call("reading_least", own)
    mark = min(run.end_mark, least) if gaps else run.end_mark
    return (yield from _advance(run, mark, actor=actor))


def _advance(run: "PipelineRunRow", mark: int, *, actor: str | None) -> Steps[RunEnd]:
    # A window that ends where the last one did, or before it, gains nothing: it stays (H-73).
    mark = mark if run.before_mark is None else max(mark, run.before_mark)
    moved = yield Call(
        "watermark_advance",
        {
            "pipeline_id": run.pipeline_id,
            "run_id": run.run_id,
            "mark": mark,
            "before_mark": run.before_mark,
            "actor": actor,
        },
    )
    if not moved:
        return RunEnd(cause=Cause.WATERMARK_CONFLICT)
    yield Call("pipeline_run_after", {"run_id": run.run_id, "after_mark": mark})
    yield Call("pipeline_fresh", {"pipeline_id": run.pipeline_id})
    return RunEnd(watermark=mark if run.measure == "time" else None)


RULES["partition"] = RoleRule(at_end=end, incomplete=Cause.INCOMPLETE)


class PipelineRunRow(msgspec.Struct, frozen=True):
    """What a run of a pipeline is about, as its row has it."""

    run_id: str
    root_id: str
    pipeline_id: int
    pipeline: str
    mode: str
    before_mark: int | None
    start_mark: int | None
    end_mark: int | None
    after_mark: int | None
    overlap: int
    margin: int
    counted: int | None
    calls: int | None
    missing: int | None
    planned_at: Any
    plan: str | None
    rules_digest: str | None
    rules: bytes | None
    measure: str
    root_mode: str
    root_number: int

    @property
    def is_planned(self) -> bool:
        """Whether its partitions are stored."""
        return self.planned_at is not None


def note_made(run: PipelineRunRow, *, made_with: int, behind: int) -> Steps[None]:
    """Note what records are made with by now, and how many were made with anything else."""
    told = {"rules_digest": run.rules_digest, "made_with": made_with, "behind": behind}
    yield Call("pipeline_made", {"pipeline_id": run.pipeline_id, **told})


def find(name: str) -> Steps[PipelineRow]:
    """Read a pipeline, or raise `NotFound`."""
    rows = yield Call("pipeline_get", {"name": name})
    if not rows:
        raise NotFound(f"no pipeline {name!r} has run here")
    return _row(rows[0])


def listing() -> Steps[list[PipelineRow]]:
    """Read every pipeline that was ever started."""
    return [_row(row) for row in (yield Call("pipeline_list"))]


_row = reader(PipelineRow)


def override(name: str, mark: int | None, *, actor: str, reason: str) -> Steps[PipelineRow]:
    """Set the watermark by hand, back or forth; who did it and why is kept."""
    row = yield from find(name)
    yield Call(
        "watermark_override",
        {"pipeline_id": row.id, "mark": mark, "actor": actor, "reason": reason},
    )
    yield Call("pipeline_fresh", {"pipeline_id": row.id})
    return (yield from find(name))


def alert(*, actor: str) -> Steps[int]:
    """Have it told, once until they are fresh again, which pipelines are not; answer how many.

    Each is told by a job that fails: its message goes the way of all messages, once (H-87).
    """
    yield Call("pipeline_fresh", {"pipeline_id": None})
    found = yield Call("pipeline_stale")
    templates = [
        Template(kind=name + STALE, queue=queue, channel=channel, retries=0, actor=actor)
        for name, queue, channel in found
    ]
    yield from creation.create([NewJob(str(uuid_utils.uuid7()), None, one) for one in templates])
    return len(found)


def entries(name: str) -> Steps[list[Entry]]:
    """Read every move of a watermark, in order."""
    row = yield from find(name)
    rows = yield Call("watermark_entries", {"pipeline_id": row.id})
    return [Entry(*(*row[:-1], instant(row[-1]))) for row in rows]
