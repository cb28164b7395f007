"""Operations on runs of pipelines: starting one, fixing its window, storing its plan, going on."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.errors import IllegalMove, Invalid, LeaseLost, NotFound
from milepost.lifecycle import RUN, RunState
from milepost.policy import Fail
from milepost.records import Claim, NewJob, NewRun, NewStep
from milepost.store import chains, creation, durable, jobs, runs, tables
from milepost.store.columns import lists, reader
from milepost.store.creation import Child
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.store.watermarks import Mark, PipelineRunRow

SOME = 500
PLANNER_ACTOR = "planner"
"""The actor of moves that planning makes."""
REMAP = "remap"
"""The mode of a run that makes records anew from those landed, and reads nothing."""
LIVE = "live"
"""The unique key of every run of a pipeline: one at a time (H-73)."""


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The run that a start asks for."""

    name: str
    target: str
    measure: str = "time"
    full: bool = False
    remap: bool = False
    since: int | None = None
    until: int | None = None
    overlap: int = 0
    margin: int = 0
    queue: str = "default"
    channel: str | None = None
    fresh_us: int | None = None


def start(
    asked: StartRequest, new: NewRun, plan: Sequence[NewStep], jobs: Sequence[NewJob]
) -> Steps[str]:
    """Create a run that is to be planned; the live one of the pipeline answers instead, if any."""
    given = msgspec.structs.asdict(asked)
    pipeline_id, mark = yield from _lock(asked, given)
    yield from tables.check(asked.name, asked.target)
    mode = yield from _mode(asked, pipeline_id, mark)
    begin = (mark or 0) - asked.overlap if mode == "incremental" else asked.since
    new = msgspec.structs.replace(
        new,
        unique_key=LIVE,
        mode=mode,
        watermark_before=_shown_mark(mark, asked.measure),
    )
    run_id = yield from runs.create(new, plan, jobs, hold=True)
    if run_id != new.id:
        yield from _refuse_other(run_id, asked, mode)
        return run_id
    yield Call(
        "pipeline_run_add",
        {
            **given,
            "run_id": new.id,
            "root_id": new.id,
            "pipeline_id": pipeline_id,
            "mode": mode,
            "before_mark": mark,
            "start_mark": begin,
            "end_mark": asked.until,
            "number": (yield from _numbered(pipeline_id)),
        },
    )
    return new.id


def _shown_mark(mark: int | None, measure: str) -> datetime | None:
    """Write the watermark that a run begins at as its row has it: a number has no column there."""
    return instant(mark) if mark is not None and measure == "time" else None


def _lock(asked: StartRequest, given: Mapping[str, Any]) -> Steps[tuple[int, int | None]]:
    # An open transaction first: a statement by itself would not hold the row.
    yield Call("pipeline_create", given)
    [(pipeline_id, mark, measure)] = yield Call("pipeline_lock", given)
    if measure != asked.measure and mark is not None:
        raise Invalid(
            f"the watermark of pipeline {asked.name!r} is a {measure}, and now a {asked.measure} "
            "is declared; set it anew with `milepost pipelines watermark --set`"
        )
    return pipeline_id, mark


def _refuse_other(run_id: str, asked: StartRequest, mode: str) -> Steps[None]:
    """Refuse to answer with the live run if the start asks for another."""
    live = yield from get(run_id)
    same_window = (asked.since, asked.until) == (live.start_mark, live.end_mark)
    fits = {
        "incremental": live.root_mode in ("full", "incremental"),
        "full": live.root_mode == "full",
        "backfill": live.root_mode == "backfill" and same_window,
        "remap": live.root_mode == "remap",
    }
    if not fits[mode]:
        raise IllegalMove(
            f"run {run_id} of pipeline {asked.name!r} is under way ({live.mode}); there is one at "
            f"a time: start the {mode} one when it has ended, or cancel it"
        )


def _numbered(pipeline_id: int) -> Steps[int]:
    """Take the number of the next run: the database's order, and not that of clients' clocks."""
    [(number,)] = yield Call("pipeline_number", {"pipeline_id": pipeline_id})
    return int(number)


def _mode(asked: StartRequest, pipeline_id: int, mark: int | None) -> Steps[str]:
    if asked.remap:
        [(landed,)] = yield Call("raw_any", {"pipeline_id": pipeline_id})
        if not landed:
            raise IllegalMove(f"pipeline {asked.name!r} has landed nothing yet; start a run first")
        return REMAP
    if asked.since is not None or asked.until is not None:
        return "backfill"
    if asked.full:
        return "full"
    if mark is not None:
        return "incremental"
    [(known,)] = yield Call("pipeline_known", {"pipeline_id": pipeline_id})
    if known:
        raise IllegalMove(
            f"pipeline {asked.name!r} was read before, but its watermark is missing: start with "
            "full=True to read everything again, or set it with `milepost pipelines watermark "
            f"{asked.name} --set TIME --reason TEXT`"
        )
    return "full"


def get(run_id: str) -> Steps[PipelineRunRow]:
    """Read a run of a pipeline, or raise `NotFound`."""
    rows = yield Call("pipeline_run_get", {"run_id": run_id})
    if not rows:
        raise NotFound(f"run {run_id} is no run of a pipeline")
    return PipelineRunRow(*rows[0])


def fix(
    claim: Claim, *, end: int | None, before: int | None, rules: bytes | None, digest: str
) -> Steps[PipelineRunRow]:
    """Fix the end of the window and the rules before the first read; answer with the run.

    Without an `end` it is the store's clock that says it, less the margin. `before` is how far a
    window may reach at most (H-76).
    """
    yield from durable.hold(claim)
    row = yield from get(claim.run_id or "")
    if row.end_mark is None and end is None and row.mode != REMAP:
        [[now]] = yield Call("clock_now")
        end = round(instant(now).timestamp() * 1_000_000) - row.margin
    if end is not None and row.start_mark is not None and end < row.start_mark:
        mark = Mark(row.measure)
        raise Fail(
            f"the source can be read up to {mark.shown(end)}, and run {row.run_id} begins at "
            f"{mark.shown(row.start_mark)}: its clock went back, or the watermark was set too far "
            "ahead (`milepost pipelines watermark --set`)"
        )
    if end is not None and before is not None and row.start_mark is not None:
        end = min(end, row.start_mark + row.overlap + before)
    given = {"run_id": row.run_id, "end_mark": end, "rules": rules, "rules_digest": digest}
    yield Call("pipeline_run_fix", given)
    return (yield from get(row.run_id))


Bounds = Sequence[tuple[int, str | None, str | None]]
"""(ordinal, low, high) of each partition."""


def seal(
    claim: Claim,
    jobs: Sequence[NewJob],
    bounds: Bounds,
    *,
    counted: int,
    calls: int = 0,
    plan: str = "{}",
) -> Steps[bool]:
    """Store the plan and every partition, and let the run begin, all or nothing (H-49)."""
    yield from durable.hold(claim)
    row = yield from get(claim.run_id or "")
    if row.is_planned or (row.end_mark is None and row.mode != REMAP):
        return False
    if bounds:
        yield from _open_readings(row, bounds)
    yield from creation.create(jobs)
    told = {"counted": counted, "calls": calls, "plan": plan}
    if not (yield Call("pipeline_run_planned", {"run_id": row.run_id, **told})):
        raise LeaseLost(f"run {row.run_id} was planned by somebody else")
    yield from runs.seal(row.run_id, actor=PLANNER_ACTOR)
    return True


def _open_readings(row: PipelineRunRow, bounds: Bounds) -> Steps[None]:
    """Note the ranges that a run is going to read: each is open until it has been read."""
    # Records before the watermark were read once: a full run that fails leaves no gap there.
    start = row.start_mark
    if start is None and row.before_mark is not None:
        start = row.before_mark - row.overlap
    marks = {"start_mark": start, "end_mark": row.end_mark}
    yield Call("reading_add", {**row.own, **marks, **lists("ordinal low high", bounds)})


class Portion(msgspec.Struct, frozen=True):
    """A part of a partition about to be read by a job of its own."""

    low: str | None
    high: str | None
    payload: bytes


def split(claim: Claim, portions: Sequence[Portion], *, codec: str) -> Steps[bool]:
    """Hand a partition over to jobs of their own, all or nothing; False when it had ended (H-80).

    Records that it has read stay; its range is open until the last of them has read it.
    """
    yield from durable.hold(claim)
    row = yield from get(claim.run_id or "")
    # Two partitions of a run that are split at once wait for each other: ordinals exist once.
    yield Call("run_lock", {"id": [row.run_id]})
    [(last,)] = yield Call("reading_last", {"root_id": row.root_id})
    if not (yield Call("partition_end", {"id": claim.id})):
        return False
    ordinals = [last + place for place, _ in enumerate(portions, start=1)]
    bounds = [(number, p.low, p.high) for number, p in zip(ordinals, portions, strict=True)]
    yield from _open_readings(row, bounds)
    yield Call("reading_close", {"root_id": [row.root_id], "ordinal": [claim.ordinal]})
    children = [
        Child(row.run_id, claim.step or 0, ordinal=ordinal, codec=codec, payload=portion.payload)
        for ordinal, portion in zip(ordinals, portions, strict=True)
    ]
    yield from creation.in_steps(children, actor=PLANNER_ACTOR)
    yield from jobs.note(claim, phase="split", detail=f"{ordinals[0]} to {ordinals[-1]}")
    return True


class PipelineRunSummary(msgspec.Struct, frozen=True):
    """A run of a pipeline, as a list shows it."""

    run_id: str
    root_id: str
    mode: str
    state: str
    cause: str | None
    start_mark: int | None
    end_mark: int | None
    after_mark: int | None
    created_at: datetime
    finished_at: datetime | None


_summary = reader(PipelineRunSummary)


def recent(pipeline_id: int, *, most: int) -> Steps[list[PipelineRunSummary]]:
    """Read the last runs of a pipeline, newest first."""
    rows = yield Call("pipeline_run_list", {"pipeline_id": pipeline_id, "most": most})
    return [_summary(row) for row in rows]


def latest(pipeline_id: int) -> Steps[PipelineRunSummary | None]:
    """Read the last run of a pipeline, if there is one."""
    found = yield from recent(pipeline_id, most=1)
    return found[0] if found else None


def latest_ruled(pipeline_id: int) -> Steps[str | None]:
    """Find the last run whose rules are pinned."""
    rows = yield Call("pipeline_run_ruled", {"pipeline_id": pipeline_id})
    return rows[0][0] if rows else None


class Gap(msgspec.Struct, frozen=True):
    """A range that a run was going to read and nobody has read."""

    root_id: str
    ordinal: int
    low: str | None
    high: str | None
    start_mark: int | None
    end_mark: int


def gaps(pipeline_id: int) -> Steps[list[Gap]]:
    """Read the ranges that ended runs left unread."""
    return [Gap(*row) for row in (yield Call("reading_gaps", {"pipeline_id": pipeline_id}))]


def partitions(run_id: str, root_id: str) -> Steps[list[Any]]:
    """Read the partitions of a run, with how far each is."""
    return (yield Call("partition_list", {"run_id": run_id, "root_id": root_id}))


# Going on


def resume(old_id: str, new: NewRun, *, actor: str) -> Steps[None]:
    """Create a run that goes on with one that ended, with the same bounds, and let it begin (H-76).

    All or nothing: half of it would be the one live run of its pipeline, and would never end.
    """
    row = yield from get(old_id)
    number = yield from _numbered(row.pipeline_id)
    mode = (yield from runs.get(old_id)).mode
    before = _shown_mark(row.before_mark, row.measure)
    new = msgspec.structs.replace(new, unique_key=LIVE, mode=mode, watermark_before=before)
    yield from _refuse_live(row, new)
    newer = yield from chains.resume(old_id, new)
    if newer != new.id:
        raise IllegalMove(f"run {old_id} was resumed by run {newer}")
    ids = {"old_id": old_id, "run_id": new.id, "root_id": row.root_id}
    yield Call("pipeline_run_link", {**ids, "mode": row.mode, "number": number})
    after: str | None = None
    while after := (
        yield from chains.create_again(old_id, new.id, after=after, most=SOME, actor=actor)
    ):
        pass
    # Each partition goes on where it came to.
    yield Call("progress_carry", {"run_id": new.id})
    yield from chains.go_on(old_id, new.id, actor=actor)


def link(
    old_id: str,
    new: NewRun,
    plan: Sequence[NewStep],
    jobs: Sequence[NewJob],
    *,
    mode: str,
    own_root: bool = False,
) -> Steps[None]:
    """Create a run on the records that another has read: forced, of one partition, or a replay."""
    row = yield from get(old_id)
    number = yield from _numbered(row.pipeline_id)
    before = _shown_mark(row.before_mark, row.measure)
    new = msgspec.structs.replace(new, unique_key=LIVE, mode=mode, watermark_before=before)
    yield from _refuse_live(row, new)
    yield from runs.create(new, plan, jobs, hold=True)
    ids = {"old_id": old_id, "run_id": new.id, "root_id": new.id if own_root else row.root_id}
    yield Call("pipeline_run_link", {**ids, "mode": mode, "number": number})
    yield Call("progress_carry", {"run_id": new.id})


def _refuse_live(row: PipelineRunRow, new: NewRun) -> Steps[None]:
    key = {"tenant": new.tenant, "kind": new.kind, "unique_key": LIVE}
    rival = yield Call("run_live_by_key", key)
    if rival:
        raise IllegalMove(
            f"run {rival[0][0]} of pipeline {row.pipeline!r} is under way; there is one at a time"
        )
    old = yield from runs.get(row.run_id)
    if old.state not in RUN.terminal:
        raise IllegalMove(f"run {row.run_id} is {old.state}; it has not ended")
    if new.mode == "forced" and old.state == RunState.SUCCEEDED:
        raise IllegalMove(f"run {row.run_id} SUCCEEDED; there is nothing to force")
    if new.mode == "forced" and not row.is_planned:
        raise IllegalMove(
            f"run {row.run_id} was never planned: it has read nothing that could be published; "
            "resume it, or start another"
        )
    if new.mode == "forced" and row.root_mode == REMAP:
        raise IllegalMove(f"run {row.run_id} is a remap and has read nothing to force; resume it")
