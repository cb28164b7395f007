"""/v1/pipelines: where each has come to, its runs and its quarantine, and starting a run."""

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from milepost.errors import NotFound
from milepost.ingest.finalise import Counts, counts
from milepost.ingest.handles import PipelineRun
from milepost.ingest.keys import written
from milepost.ingest.pipeline import Pipeline
from milepost.store import pipelines, removals, runs, watermarks
from milepost.store.driver import Steps
from milepost.store.watermarks import Mark
from milepost.subjects import checked_id
from milepost.web.auth import Who, require, seen
from milepost.web.body import Route
from milepost.web.engine import Engine, Held
from milepost.web.idempotency import Answer, Kept
from milepost.web.paging import Cursor, Limit
from milepost.web.problems import problems
from milepost.web.runs import RUN_ACCEPTED, Accepted, RunPage, pages

router = APIRouter(route_class=Route, tags=["pipelines"])


class StartPipeline(BaseModel):
    """A run to be started: full the first time, incremental after; with bounds a backfill."""

    model_config = ConfigDict(extra="forbid")

    full: bool = False
    since: datetime | None = None
    until: datetime | None = None


class RetryPartition(BaseModel):
    """Which partition of a run is to be read again, from its cursor."""

    model_config = ConfigDict(extra="forbid", strict=True)

    partition: int = Field(ge=0)


class ReplayQuarantine(BaseModel):
    """Which records are to be mapped again, by their keys; all of them unless it says."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: list[str] | None = Field(default=None, min_length=1, max_length=10_000)


class WatermarkDocument(BaseModel):
    """Up to where everything was read, in B's three fields."""

    lastUpdatedAt: str | int | None  # noqa: N815 - B's own word
    lastRunId: str | None  # noqa: N815 - likewise
    lastRunCompletedAt: str | None  # noqa: N815 - likewise


class PipelineDocument(BaseModel):
    """A declared pipeline, and where it has come to."""

    name: str
    table: str
    partitions: int
    watermark: WatermarkDocument | None
    dataset_version: int
    gaps: int
    quarantined: int
    behind: int
    """Records made with another mapping or older rules, when the last run ended well."""


class Pipelines(BaseModel):
    """The declared pipelines."""

    items: list[PipelineDocument]


class PipelineRunDocument(BaseModel):
    """What a run of a pipeline reads, and what became of it."""

    id: str
    pipeline: str
    mode: str
    since: datetime | int | None
    until: datetime | int | None
    counts: dict[str, int]
    partitions: list[dict[str, Any]]


class KeptDocument(BaseModel):
    """A record in quarantine; its payload stays in the store."""

    key: str
    run: str
    type: str
    reason: str
    at: datetime


class QuarantinePage(BaseModel):
    """A page of records in quarantine, in the order of their keys."""

    items: list[KeptDocument]
    next: str | None


class Decide(BaseModel):
    """Why a decision is made; kept on the record with who made it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(default="decided by hand", min_length=1, max_length=1_000)


class Decided(BaseModel):
    """A decision on removals, and how many records it is about."""

    decision: str
    records: int


class Released(BaseModel):
    """A table that is free, and the pipeline that had it."""

    table: str
    pipeline: str | None


class DecisionDocument(BaseModel):
    """What an operator decided of the records that a full run did not see."""

    run_id: str
    decision: str
    records: int
    actor: str
    reason: str
    at: datetime


class RemovalPage(BaseModel):
    """A page of keys that wait for a decision, and the decisions made so far."""

    keys: list[str]
    next: str | None
    decisions: list[DecisionDocument]


def _declared(app: Engine, who: Who, name: str) -> Pipeline[Any]:
    found = app.pipelines.get(name)
    if found is None or not _may_see(who, found):
        raise NotFound(f"no pipeline is called {name!r}; GET /v1/pipelines lists them")
    return found


def _whole(app: Engine, who: Who, name: str) -> Pipeline[Any]:
    """Find a pipeline whose records are shown or acted on: they are no tenant's."""
    if who.tenant is not None:
        who.check_free("what a pipeline keeps")
    return _declared(app, who, name)


def _may_see(who: Who, pipeline: Pipeline[Any]) -> bool:
    return who.queues is None or pipeline.options.queue in who.queues


def _document(pipeline: Pipeline[Any]) -> Steps[PipelineDocument]:
    row = next((r for r in (yield from watermarks.listing()) if r.name == pipeline.name), None)
    return PipelineDocument(
        name=pipeline.name,
        table=pipeline.target.name,
        partitions=pipeline.options.partitions,
        watermark=None if row is None else WatermarkDocument.model_validate(row.document()),
        dataset_version=0 if row is None else row.dataset_version,
        gaps=0 if row is None else len((yield from pipelines.gaps(row.id))),
        quarantined=0 if row is None else (yield from removals.unresolved(row.id)),
        behind=0 if row is None else row.behind,
    )


@router.get("/v1/pipelines", responses=problems())
async def listing(*, app: Held, who: Annotated[Who, require("read")]) -> Pipelines:
    """List the declared pipelines, and where each has come to."""
    found = [pipeline for pipeline in app.pipelines.values() if _may_see(who, pipeline)]
    return Pipelines(items=[await app.client.run_async(_document, one) for one in found])


@router.get("/v1/pipelines/{name}", responses=problems(404))
async def show(*, name: str, app: Held, who: Annotated[Who, require("read")]) -> PipelineDocument:
    """Show a pipeline, and where it has come to."""
    return await app.client.run_async(_document, _declared(app, who, name))


@router.post("/v1/pipelines/{name}/runs", status_code=202, responses=RUN_ACCEPTED)
async def start(
    *,
    name: str,
    new: StartPipeline,
    app: Held,
    who: Annotated[Who, require("submit")],
    accepted: Accepted,
) -> Response:
    """Start a run; one that is under way answers instead. It is durable once this is answered."""
    pipeline = _declared(app, who, name)
    who.check_new(pipeline.name)
    return await accepted(pipeline.starting(full=new.full, since=new.since, until=new.until))


@router.post("/v1/pipelines/{name}:remap", status_code=202, responses=RUN_ACCEPTED)
async def remap(
    *, name: str, app: Held, who: Annotated[Who, require("operate")], accepted: Accepted
) -> Response:
    """Make the table anew from what was landed, without reading the source, as a run."""
    pipeline = _whole(app, who, name)
    who.check_new(pipeline.name)
    return await accepted(pipeline.remapping())


async def _of(app: Engine, who: Who, name: str, run_id: str) -> PipelineRun:
    """Read a run of a pipeline that the caller may see, or raise `NotFound`."""
    pipeline = _declared(app, who, name)
    found = await app.client.run_async(runs.get, checked_id(run_id, what="run"))
    seen(who, found, what="run")
    return await pipeline.run_async(found.id)


@router.post("/v1/pipelines/{name}/runs/{run_id}:resume", status_code=202, responses=RUN_ACCEPTED)
async def resume(
    *,
    name: str,
    run_id: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    accepted: Accepted,
) -> Response:
    """Go on with a run that failed or was cancelled, as a new one with the same bounds."""
    run = await _of(app, who, name, run_id)
    who.check_new(name)
    return await accepted(run.resuming())


@router.post("/v1/pipelines/{name}/runs/{run_id}:force", status_code=202, responses=RUN_ACCEPTED)
async def force(
    *,
    name: str,
    run_id: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    accepted: Accepted,
) -> Response:
    """Publish what a run that failed has read, as a linked run; its gap stays open."""
    run = await _of(app, who, name, run_id)
    who.check_new(name)
    return await accepted(run.forcing())


@router.post("/v1/pipelines/{name}/runs/{run_id}:retry", status_code=202, responses=RUN_ACCEPTED)
async def retry(
    *,
    name: str,
    run_id: str,
    what: RetryPartition,
    app: Held,
    who: Annotated[Who, require("operate")],
    accepted: Accepted,
) -> Response:
    """Read one failed partition again, from its cursor, as a linked run."""
    run = await _of(app, who, name, run_id)
    who.check_new(name)
    return await accepted(run.retrying(what.partition))


@router.post("/v1/pipelines/{name}/quarantine:replay", status_code=202, responses=RUN_ACCEPTED)
async def replay(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    accepted: Accepted,
    what: Annotated[ReplayQuarantine, Body()] = ReplayQuarantine(),  # noqa: B008 - it never changes
) -> Response:
    """Map records in quarantine again, as a run of their own."""
    pipeline = _whole(app, who, name)
    who.check_new(pipeline.name)
    return await accepted(pipeline.quarantine.replaying(what.keys))


@router.get("/v1/pipelines/{name}/runs", responses={200: {"model": RunPage}, **problems(404, 422)})
async def runs_of(
    *,
    name: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    state: Annotated[str | None, Query()] = None,
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """List the runs of a pipeline, newest first."""
    kind = _declared(app, who, name).name
    return await pages(request, app, who, state=state, batch=kind, limit=limit, given=cursor_)


@router.get("/v1/runs/{run_id}/partitions", responses=problems(404))
async def partitions(
    *, run_id: str, app: Held, who: Annotated[Who, require("read")]
) -> PipelineRunDocument:
    """Show what a run of a pipeline reads, what became of it, and how far each partition is."""
    return await app.client.run_async(_run, who, checked_id(run_id, what="run"))


def _run(who: Who, run_id: str) -> Steps[PipelineRunDocument]:
    seen(who, (yield from runs.get(run_id)), what="run")
    row = yield from pipelines.get(run_id)
    found: Counts = yield from counts(row)
    parts = yield from pipelines.partitions(run_id, row.root_id)
    mark = Mark(row.measure)
    return PipelineRunDocument(
        id=run_id,
        pipeline=row.pipeline,
        mode=row.mode,
        since=None if row.start_mark is None else mark.shown(row.start_mark),
        until=None if row.end_mark is None else mark.shown(row.end_mark),
        counts=dict(found),
        partitions=[_partition(part) for part in parts],
    )


def _partition(row: Any) -> dict[str, Any]:
    ordinal, job_id, state, cause, _, saves, records, share, low, high, *_ = row
    return {
        "ordinal": ordinal,
        "job": job_id,
        "job_state": state,
        "cause": cause,
        "pages": saves,
        "records": records,
        "progress": share,
        "low": written(low),
        "high": written(high),
    }


@router.get("/v1/pipelines/{name}/removals", responses=problems(404, 422))
async def removals_of(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = 100,
    after: Annotated[str, Query(max_length=500)] = "",
) -> RemovalPage:
    """List the keys that a full run did not see and that wait for a decision."""
    row = await _whole(app, who, name).row_async()
    if row is None or "\0" in after:
        return RemovalPage(keys=[], next=None, decisions=[])
    keys = await app.client.run_async(removals.pending, row.id, after=after, most=limit)
    decided = await app.client.run_async(removals.decisions, row.id)
    return RemovalPage(
        keys=keys,
        next=keys[-1] if len(keys) == limit else None,
        decisions=[DecisionDocument(**msgspec.structs.asdict(one)) for one in decided],
    )


DECIDED: dict[int | str, dict[str, Any]] = {
    200: {"model": Decided, "description": "What was decided, and of how many."},
    **problems(404, 409, 413, 415, 422),
}


@router.post("/v1/pipelines/{name}/removals:confirm", responses=DECIDED)
async def confirm_removals(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    what: Annotated[Decide, Body()] = Decide(),  # noqa: B008 - it never changes
) -> Response:
    """Let the next run remove what a full run did not see."""
    return await once(_deciding(app, who, name, removals.CONFIRMED, what.reason))


@router.post("/v1/pipelines/{name}/removals:dismiss", responses=DECIDED)
async def dismiss_removals(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    what: Annotated[Decide, Body()] = Decide(),  # noqa: B008 - it never changes
) -> Response:
    """Keep what a full run did not see, until another one misses it again."""
    return await once(_deciding(app, who, name, removals.DISMISSED, what.reason))


def _deciding(
    app: Engine, who: Who, name: str, decision: str, reason: str
) -> Callable[[], Steps[Answer]]:
    deciding = _whole(app, who, name).removals.deciding(decision, reason=reason)

    def decided() -> Steps[Answer]:
        document = Decided(decision=decision, records=(yield from deciding()))
        return Answer(200, document.model_dump_json().encode())

    return decided


@router.post(
    "/v1/pipelines/{name}/table:release",
    responses={
        200: {"model": Released, "description": "The table is free, and whose it was."},
        **problems(404, 409, 413, 415, 422),
    },
)
async def release_table(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    what: Annotated[Decide, Body()] = Decide(),  # noqa: B008 - it never changes
) -> Response:
    """Let the pipeline have its declared table, by taking it from the one that has it."""
    pipeline = _whole(app, who, name)
    releasing = pipeline.releasing(reason=what.reason)

    def released() -> Steps[Answer]:
        document = Released(table=pipeline.target.name, pipeline=(yield from releasing()))
        return Answer(200, document.model_dump_json().encode())

    return await once(released)


@router.get("/v1/pipelines/{name}/quarantine", responses=problems(404, 422))
async def quarantine(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = 100,
    after: Annotated[str, Query(max_length=500)] = "",
) -> QuarantinePage:
    """List the records that could not be used, and why."""
    pipeline = _whole(app, who, name)
    row = await pipeline.row_async()
    if row is None or "\0" in after:
        return QuarantinePage(items=[], next=None)
    kept = await app.client.run_async(removals.quarantined, row.id, after=after, most=limit)
    items = [
        KeptDocument(key=one.key, run=one.run_id, type=one.type, reason=one.reason, at=one.at)
        for one in kept
    ]
    return QuarantinePage(items=items, next=items[-1].key if len(items) == limit else None)
