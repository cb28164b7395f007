"""Watermarks: one number per pipeline, compared and set by the transaction that ends a run.

It never passes records that nobody has read. Each run notes the ranges that it is going to read,
one per partition; a range that stays open after the run ended is a gap, and the watermark stops
before the first of them (H-71, H-74).
"""

from datetime import datetime
from typing import Any

import msgspec
import uuid_utils

from milepost.errors import NotFound
from milepost.lifecycle import Cause, RunState
from milepost.records import NewJob, Template
from milepost.specs import WatermarkWord, watermark_word
from milepost.store import creation
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.fanin import RULES, RoleRule, RunEnd
from milepost.store.instants import EPOCH, instant

STALE = ".stale"
"""The last part of the kind of job that alerts about a pipeline which is not fresh."""

MOVING = ("full", "incremental")
"""The modes of runs that move the watermark."""


class Mark(msgspec.Struct, frozen=True):
    """The meaning of a mark: microseconds since 1970, or a number of the source's own sequence."""

    measure: str

    def shown(self, mark: int) -> datetime | int:
        """Write a mark as people do."""
        return instant(mark) if self.measure == "time" else mark

    def stored(self, value: datetime | int) -> int:
        """Write a time, or a number of a sequence, as a mark."""
        return micros_of(value) if isinstance(value, datetime) else value


def micros_of(value: datetime) -> int:
    """Count the microseconds since 1970, all of them."""
    span = value - EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


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
        """Write the watermark in B's three fields."""
        return {
            "lastUpdatedAt": _iso(self.watermark),
            "lastRunId": self.last_run_id,
            "lastRunCompletedAt": _iso(self.last_run_completed_at),
        }

    @property
    def watermark(self) -> datetime | int | None:
        """The watermark as people write it."""
        return None if self.mark is None else Mark(self.measure).shown(self.mark)


def _iso(value: datetime | int | None) -> object:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


class PipelineRunRow(msgspec.Struct, frozen=True):
    """A run of a pipeline: its window, its mode, its plan, its rules."""

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

    @property
    def own(self) -> dict[str, Any]:
        """Its ids and the number of its root, as statements take them."""
        return {
            "run_id": self.run_id,
            "root_id": self.root_id,
            "pipeline_id": self.pipeline_id,
            "seen": self.root_number,
        }

    @property
    def window(self) -> tuple[datetime | int | None, datetime | int | None]:
        """The marks that it reads between, as people write them."""
        mark = Mark(self.measure)
        start, end = self.start_mark, self.end_mark
        return (
            None if start is None else mark.shown(start),
            None if end is None else mark.shown(end),
        )


class WatermarkEntry(msgspec.Struct, frozen=True):
    """One move of a watermark."""

    seq: int
    move: str
    from_mark: int | None
    to_mark: int | None
    run_id: str | None
    actor: str | None
    reason: str | None
    at: datetime


_row, _entry = reader(PipelineRow), reader(WatermarkEntry)


def end(run_id: str, *, actor: str | None) -> Steps[RunEnd]:
    """Move the watermark with the run that ends now, or say why the run cannot end well.

    Called in the transaction of the run's last move (H-44).
    """
    rows = yield Call("pipeline_run_get", {"run_id": run_id})
    if not rows:
        return RunEnd()
    run = PipelineRunRow(*rows[0])
    own = run.own
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


def _advance(run: PipelineRunRow, mark: int, *, actor: str | None) -> Steps[RunEnd]:
    # A window that ends where the last one did, or before it, gains nothing: it stays (H-73).
    mark = mark if run.before_mark is None else max(mark, run.before_mark)
    given = {**run.own, "mark": mark, "before_mark": run.before_mark, "actor": actor}
    if not (yield Call("watermark_advance", given)):
        return RunEnd(cause=Cause.WATERMARK_CONFLICT)
    yield Call("pipeline_run_after", {"run_id": run.run_id, "after_mark": mark})
    yield Call("pipeline_fresh", {"pipeline_id": run.pipeline_id})
    return RunEnd(watermark=mark if run.measure == "time" else None)


RULES["partition"] = RoleRule(
    at_end=end, incomplete=Cause.INCOMPLETE, skipped="ConsolidationSkipped"
)


def note_made(run: PipelineRunRow, *, made_with: int, behind: int) -> Steps[None]:
    """Note the mapping and rules of now, and how many records were made with others."""
    told = {"rules_digest": run.rules_digest, "made_with": made_with, "behind": behind}
    yield Call("pipeline_made", {"pipeline_id": run.pipeline_id, **told})


def find(name: str) -> Steps[PipelineRow]:
    """Read a pipeline, or raise `NotFound`."""
    rows = yield Call("pipeline_get", {"name": name})
    if not rows:
        raise NotFound(f"no pipeline {name!r} has run here")
    return _row(rows[0])


def state(row: PipelineRow | None) -> Steps[WatermarkWord]:
    """Say in B's word where a pipeline's watermark stands; runs that leave it alone are passed."""
    if row is None:
        return WatermarkWord.NO_WATERMARK
    rows = yield Call("watermark_run", {"pipeline_id": row.id})
    run_state, after = rows[0] if rows else (None, None)
    if run_state == RunState.SUCCEEDED and after is None:
        run_state = RunState.FAILED  # published by force: the watermark stopped before its gap
    return watermark_word(run_state, exists=row.mark is not None)


def listing() -> Steps[list[PipelineRow]]:
    """Read every pipeline that was ever started."""
    return [_row(row) for row in (yield Call("pipeline_list"))]


def lags() -> Steps[dict[str, float]]:
    """Tell how many seconds each pipeline's watermark is behind."""
    return {name: behind for name, (behind, _) in (yield from freshness()).items()}


def freshness() -> Steps[dict[str, tuple[float, float | None]]]:
    """Tell how many seconds each pipeline's watermark is behind, and may be if that was said."""
    rows = yield Call("pipeline_lags", alone=True)
    return {
        name: (max(0.0, lag / 1e6), None if fresh is None else fresh / 1e6)
        for name, lag, fresh in rows
    }


def override(name: str, mark: int | None, *, actor: str, reason: str) -> Steps[PipelineRow]:
    """Set the watermark by hand, back or forth; the actor and the reason are kept."""
    row = yield from find(name)
    given = {"pipeline_id": row.id, "mark": mark, "actor": actor, "reason": reason}
    yield Call("watermark_override", given)
    yield Call("pipeline_fresh", {"pipeline_id": row.id})
    return (yield from find(name))


def alert(*, actor: str) -> Steps[int]:
    """Alert once about each pipeline that is not fresh, until it is again; answer how many.

    The alert is a job that fails: its message goes the way of all messages, once (H-87).
    """
    yield Call("pipeline_fresh", {"pipeline_id": None})
    found = yield Call("pipeline_stale")
    templates = [
        Template(kind=name + STALE, queue=queue, channel=channel, retries=0, actor=actor)
        for name, queue, channel in found
    ]
    yield from creation.create([NewJob(str(uuid_utils.uuid7()), None, one) for one in templates])
    return len(found)


def entries(name: str) -> Steps[list[WatermarkEntry]]:
    """Read every move of a watermark, in order."""
    row = yield from find(name)
    return [_entry(one) for one in (yield Call("watermark_entries", {"pipeline_id": row.id}))]
