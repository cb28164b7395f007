"""Operations on runs of pipelines: starting one, fixing its window, storing its plan, going on."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.errors import IllegalMove, Invalid, LeaseLost, NotFound
from milepost.lifecycle import RUN, RunState
from milepost.policy import Fail
from milepost.records import Claim, NewJob, NewRun, NewStep
from milepost.store import chains, creation, durable, jobs, runs, tables
from milepost.store.creation import Child
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.store.watermarks import Mark, PipelineRunRow

SOME = 500
REMAP = "remap"
"""The mode of a run that reads nothing: it makes records anew from what was landed."""
LIVE = "live"
"""The unique key of every run of a pipeline: one at a time (H-73)."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What one start asks for."""

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


class Started(msgspec.Struct, frozen=True):
    """The run that answers a start, and whether this start made it."""

    run_id: str
    is_new: bool


def start(
    asked: Asked, new: NewRun, plan: Sequence[NewStep], jobs: Sequence[NewJob]
) -> Steps[Started]:
    """Create a run that is to be planned; the live one of the pipeline answers instead, if any."""
    pipeline_id, mark = yield from _locked(asked)
    yield from tables.check(asked.name, asked.target)
    mode = yield from _mode(asked, pipeline_id, mark)
    begin, until = _window(asked, mode, mark)
    new = msgspec.structs.replace(
        new,
        unique_key=LIVE,
        mode=mode,
        watermark_before=instant(mark) if mark is not None and asked.measure == "time" else None,
    )
    run_id = yield from runs.create(new, plan, jobs, hold=True)
    if run_id != new.id:
        yield from _refuse_other(run_id, asked, mode)
        return Started(run_id, is_new=False)
    number = yield from _numbered(pipeline_id)
    yield Call(
        "pipeline_run_add",
        {
            "run_id": new.id,
            "root_id": new.id,
            "pipeline_id": pipeline_id,
            "mode": mode,
            "before_mark": mark,
            "start_mark": begin,
            "end_mark": until,
            "overlap": asked.overlap,
            "margin": asked.margin,
            "number": number,
        },
    )
    return Started(new.id, is_new=True)


def _locked(asked: Asked) -> Steps[tuple[int, int | None]]:
    named = {"name": asked.name, "target": asked.target}
    told = {"queue": asked.queue, "channel": asked.channel, "fresh_us": asked.fresh_us}
    # An open transaction first: a statement by itself would not hold the row.
    yield Call("pipeline_create", {**named, "measure": asked.measure})
    [(pipeline_id, mark, measure)] = yield Call("pipeline_lock", {**named, **told})
    if measure != asked.measure and mark is not None:
        raise Invalid(
            f"the watermark of pipeline {asked.name!r} is a {measure}, and now a {asked.measure} "
            "is declared; set it anew with `milepost pipelines watermark --set`"
        )
    return pipeline_id, mark


def _refuse_other(run_id: str, asked: Asked, mode: str) -> Steps[None]:
    """Refuse to answer with the run that is under way if it does not do what was asked for."""
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
    """Take the number of the next run: the database's order, whatever clients' clocks show."""
    [(number,)] = yield Call("pipeline_number", {"pipeline_id": pipeline_id})
    return int(number)


def _mode(asked: Asked, pipeline_id: int, mark: int | None) -> Steps[str]:
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


def _window(asked: Asked, mode: str, mark: int | None) -> tuple[int | None, int | None]:
    """Say where a run begins to read, and where it ends if that is known already."""
    if mode == "backfill":
        return asked.since, asked.until
    if mode in ("full", REMAP):
        return None, None
    return (mark or 0) - asked.overlap, None


def get(run_id: str) -> Steps[PipelineRunRow]:
    """Read what a run of a pipeline is about, or raise `NotFound`."""
    rows = yield Call("pipeline_run_get", {"run_id": run_id})
    if not rows:
        raise NotFound(f"run {run_id} is no run of a pipeline")
    return PipelineRunRow(*rows[0])


def fix(
    claim: Claim, *, end: int | None, before: int | None, rules: bytes | None, digest: str
) -> Steps[PipelineRunRow]:
    """Fix the end of the window and the rules before the first read; answer with what is fixed.

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
    yield Call(
        "pipeline_run_fix",
        {"run_id": row.run_id, "end_mark": end, "rules": rules, "rules_digest": digest},
    )
    return (yield from get(row.run_id))


class Planned(msgspec.Struct, frozen=True):
    """A plan about to be stored: the jobs of the partitions, and what each is to read."""

    jobs: Sequence[NewJob]
    bounds: Sequence[tuple[int, str | None, str | None]]
    counted: int
    calls: int
    text: str


def seal(claim: Claim, planned: Planned, *, actor: str) -> Steps[bool]:
    """Store the plan and every partition, and let the run begin, all or nothing (H-49)."""
    yield from durable.hold(claim)
    row = yield from get(claim.run_id or "")
    if row.is_planned or (row.end_mark is None and row.mode != REMAP):
        return False
    if planned.bounds:
        yield from _set_out(row, planned.bounds)
    yield from creation.create(planned.jobs)
    told = {"counted": planned.counted, "calls": planned.calls, "plan": planned.text}
    if not (yield Call("pipeline_run_planned", {"run_id": row.run_id, **told})):
        raise LeaseLost(f"run {row.run_id} was planned by somebody else")
    yield from runs.seal(row.run_id, actor=actor)
    return True


def _set_out(
    row: PipelineRunRow, bounds: Sequence[tuple[int, str | None, str | None]]
) -> Steps[None]:
    """Note what a run sets out to read: each part is open until it has been read."""
    # What lies before the watermark was read once: a full run that fails leaves no gap there.
    start = row.start_mark
    if start is None and row.before_mark is not None:
        start = row.before_mark - row.overlap
    yield Call(
        "reading_add",
        {
            "root_id": row.root_id,
            "pipeline_id": row.pipeline_id,
            "start_mark": start,
            "end_mark": row.end_mark,
            "ordinal": [ordinal for ordinal, _, _ in bounds],
            "low": [low for _, low, _ in bounds],
            "high": [high for _, _, high in bounds],
        },
    )


class Portion(msgspec.Struct, frozen=True):
    """A part of a partition about to be read by a job of its own."""

    low: str | None
    high: str | None
    payload: bytes


def split(claim: Claim, portions: Sequence[Portion], *, codec: str) -> Steps[bool]:
    """Hand a partition over to jobs of their own, all or nothing; False when it had ended (H-80).

    What it has read stays; what it set out to read is open until the last of them has read it.
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
    yield from _set_out(row, bounds)
    yield Call("reading_close", {"root_id": [row.root_id], "ordinal": [claim.ordinal]})
    children = [
        Child(row.run_id, claim.step or 0, ordinal=ordinal, codec=codec, payload=portion.payload)
        for ordinal, portion in zip(ordinals, portions, strict=True)
    ]
    yield from creation.in_steps(children, actor="planner")
    yield from jobs.note(claim, phase="split", detail=f"{ordinals[0]} to {ordinals[-1]}")
    return True


class Live(msgspec.Struct, frozen=True):
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


def recent(pipeline_id: int, *, most: int) -> Steps[list[Live]]:
    """Read the last runs of a pipeline, newest first."""
    rows = yield Call("pipeline_run_list", {"pipeline_id": pipeline_id, "most": most})
    return [Live(*(*row[:-2], *(_instant(at) for at in row[-2:]))) for row in rows]


def _instant(at: Any) -> datetime | None:
    return None if at is None else instant(at)


def latest(pipeline_id: int) -> Steps[Live | None]:
    """Read the last run of a pipeline, if there is one."""
    found = yield from recent(pipeline_id, most=1)
    return found[0] if found else None


def latest_ruled(pipeline_id: int) -> Steps[str | None]:
    """Find the last run whose rules are pinned: what is made like its records has them too."""
    rows = yield Call("pipeline_run_ruled", {"pipeline_id": pipeline_id})
    return rows[0][0] if rows else None


class Gap(msgspec.Struct, frozen=True):
    """Something that a run set out to read and nobody has read."""

    root_id: str
    ordinal: int
    low: str | None
    high: str | None
    start_mark: int | None
    end_mark: int


def gaps(pipeline_id: int) -> Steps[list[Gap]]:
    """Read what runs that ended left unread."""
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
    new = msgspec.structs.replace(new, unique_key=LIVE, mode=(yield from runs.get(old_id)).mode)
    yield from _refuse_live(row, new)
    newer = yield from chains.resume(old_id, new)
    if newer != new.id:
        raise IllegalMove(f"run {old_id} was resumed by run {newer}")
    yield from _add_linked(row, new.id, row.mode, number=number)
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
    """Create a run that works on what another has read: forced, of one partition, or a replay."""
    row = yield from get(old_id)
    number = yield from _numbered(row.pipeline_id)
    new = msgspec.structs.replace(new, unique_key=LIVE, mode=mode)
    yield from _refuse_live(row, new)
    yield from runs.create(new, plan, jobs, hold=True)
    root_id = new.id if own_root else row.root_id
    yield from _add_linked(row, new.id, mode, number=number, root_id=root_id)
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


def _add_linked(
    row: PipelineRunRow, run_id: str, mode: str, *, number: int, root_id: str | None = None
) -> Steps[None]:
    yield Call(
        "pipeline_run_link",
        {
            "old_id": row.run_id,
            "run_id": run_id,
            "mode": mode,
            "root_id": root_id or row.root_id,
            "number": number,
        },
    )
