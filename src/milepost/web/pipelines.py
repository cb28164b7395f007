"""/v1/pipelines: where each has come to, its runs and its quarantine, and starting a run."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from milepost.errors import NotFound
from milepost.ingest.handles import PipelineRun
from milepost.ingest.keys import written
from milepost.ingest.pipeline import Pipeline
from milepost.store import pipelines, removals, runs, watermarks
from milepost.store.driver import Steps
from milepost.store.pages import counts
from milepost.store.quarantine import count as quarantine_count
from milepost.store.quarantine import page as quarantine_page
from milepost.store.watermarks import Mark
from milepost.subjects import checked_id
from milepost.web.call import Call, OperateCall, ReadCall, RestartCall, SubmitCall, json_response
from milepost.web.documents import ListDocument, PageDocument, RequestBody, RunPage, document
from milepost.web.paging import Limit, Paging
from milepost.web.problems import answers
from milepost.web.route import Route
from milepost.web.runs import RUN_ACCEPTED, create, list_runs
from milepost.web.subjects import check_visible

router = APIRouter(route_class=Route, tags=["pipelines"])
After = Annotated[str, Query(max_length=500)]


class StartPipeline(BaseModel):
    """A run to be started: full the first time, incremental after; with bounds a backfill."""

    model_config = ConfigDict(extra="forbid")

    full: bool = False
    since: datetime | None = None
    until: datetime | None = None


class RetryPartition(RequestBody):
    """Which partition of a run is to be read again, from its cursor."""

    partition: int = Field(ge=0)


class ReplayQuarantine(RequestBody):
    """Which records are to be mapped again, by their keys; all of them unless it says."""

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
    watermark_state: str
    """B's word: NoWatermark, WatermarkRead, RunCreated, Processing, WatermarkAdvanced or
    WatermarkNotAdvanced."""
    dataset_version: int
    gaps: int
    quarantined: int
    behind: int
    """Records made with another mapping or older rules, when the last run ended well."""


class PipelineList(ListDocument[PipelineDocument]):
    """The declared pipelines."""


class PipelineRunDocument(BaseModel):
    """The window of a run of a pipeline, its records counted by outcome, and its partitions."""

    id: str
    pipeline: str
    mode: str
    since: datetime | int | None
    until: datetime | int | None
    counts: dict[str, int]
    partitions: list[dict[str, Any]]


class QuarantinedDocument(BaseModel):
    """A record in quarantine; its payload stays in the store."""

    key: str
    run: str
    type: str
    reason: str
    at: datetime


class QuarantinePage(PageDocument[QuarantinedDocument]):
    """A page of records in quarantine, in the order of their keys."""


class DecisionReason(RequestBody):
    """Why a decision is made; kept on the record with its actor."""

    reason: str = Field(default="decided by hand", min_length=1, max_length=1_000)


class DecisionReceipt(BaseModel):
    """A decision on removals, and how many records it is about."""

    decision: str
    records: int


class TableRelease(BaseModel):
    """A table that is free, and the pipeline that had it."""

    table: str
    pipeline: str | None


class DecisionDocument(BaseModel):
    """An operator's decision on the records that a full run did not see."""

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


DECIDED = answers(
    DecisionReceipt,
    404,
    409,
    413,
    415,
    description="The decision, and how many records it is about.",
)


def _declared(call: Call, name: str) -> Pipeline[Any]:
    found = call.app.pipelines.get(name)
    if found is None or not call.principal.sees_queue(found.options["queue"]):
        raise NotFound(f"no pipeline is called {name!r}; GET /v1/pipelines lists them")
    return found


def _whole(call: Call, name: str) -> Pipeline[Any]:
    """Find a pipeline whose records are shown or acted on: they are no tenant's."""
    call.principal.check_unbound("what a pipeline keeps", queues=False)
    return _declared(call, name)


def _document(pipeline: Pipeline[Any]) -> Steps[dict[str, Any]]:
    row = next((r for r in (yield from watermarks.listing()) if r.name == pipeline.name), None)
    return {
        "name": pipeline.name,
        "table": pipeline.target.name,
        "partitions": pipeline.options["partitions"],
        "watermark": None if row is None else row.document(),
        "watermark_state": (yield from watermarks.state(row)),
        "dataset_version": 0 if row is None else row.dataset_version,
        "gaps": 0 if row is None else len((yield from pipelines.gaps(row.id))),
        "quarantined": 0 if row is None else (yield from quarantine_count(row.id)),
        "behind": 0 if row is None else row.behind,
    }


@router.get("/v1/pipelines", responses=answers(PipelineList))
async def listing(*, call: ReadCall) -> Response:
    """List the declared pipelines, and where each has come to."""
    call.principal.check_unbound("what a pipeline keeps", queues=False)
    found = call.app.pipelines.values()
    mine = [one for one in found if call.principal.sees_queue(one.options["queue"])]
    return json_response({"items": [await call.run(_document, one) for one in mine]})


@router.post("/v1/pipelines/{name}/runs", status_code=202, responses=RUN_ACCEPTED)
async def start(*, name: str, new: StartPipeline, call: SubmitCall) -> Response:
    """Start a run; one that is under way answers instead. It is durable once this is answered."""
    pipeline = _declared(call, name)
    call.principal.check_new(name)
    starting = pipeline.starting(full=new.full, since=new.since, until=new.until)
    return await create(call, name, lambda: starting)


@router.get("/v1/pipelines/{name}/runs", responses=answers(RunPage, 404))
async def runs_of(
    *, name: str, call: ReadCall, page: Paging, state: Annotated[str | None, Query()] = None
) -> Response:
    """List the runs of a pipeline, newest first."""
    return await list_runs(call, page, state=state, batch=_declared(call, name).name)


@router.post("/v1/pipelines/{name}:remap", status_code=202, responses=RUN_ACCEPTED)
async def remap(*, name: str, call: RestartCall) -> Response:
    """Make the table anew from the landed records, without reading the source, as a run."""
    pipeline = _whole(call, name)
    call.principal.check_new(name)
    return await create(call, name, pipeline.remapping)


async def _run_of(call: Call, name: str, run_id: str) -> PipelineRun:
    """Read a run that the caller may see and go on with, or raise `NotFound`."""
    pipeline = _declared(call, name)
    found = await call.run(runs.get, checked_id(run_id, what="run"))
    check_visible(call, found)
    run = await pipeline.run_async(found.id)
    call.principal.check_new(name)
    return run


@router.post("/v1/pipelines/{name}/runs/{run_id}:resume", status_code=202, responses=RUN_ACCEPTED)
async def resume(*, name: str, run_id: str, call: RestartCall) -> Response:
    """Go on with a run that failed or was cancelled, as a new one with the same bounds."""
    return await create(call, name, (await _run_of(call, name, run_id)).resuming)


@router.post("/v1/pipelines/{name}/runs/{run_id}:force", status_code=202, responses=RUN_ACCEPTED)
async def force(*, name: str, run_id: str, call: RestartCall) -> Response:
    """Publish the records that a failed run has read, as a linked run; its gap stays open."""
    return await create(call, name, (await _run_of(call, name, run_id)).forcing)


@router.post("/v1/pipelines/{name}/runs/{run_id}:retry", status_code=202, responses=RUN_ACCEPTED)
async def retry(*, name: str, run_id: str, failed: RetryPartition, call: RestartCall) -> Response:
    """Read one failed partition again, from its cursor, as a linked run."""
    run = await _run_of(call, name, run_id)
    return await create(call, name, lambda: run.retrying(failed.partition))


@router.post("/v1/pipelines/{name}/quarantine:replay", status_code=202, responses=RUN_ACCEPTED)
async def replay(
    *,
    name: str,
    call: RestartCall,
    chosen: Annotated[ReplayQuarantine, Body()] = ReplayQuarantine(),  # noqa: B008 - it never changes
) -> Response:
    """Map records in quarantine again, as a run of their own."""
    pipeline = _whole(call, name)
    call.principal.check_new(name)
    return await create(call, name, lambda: pipeline.quarantine.replaying(chosen.keys))


@router.get("/v1/runs/{run_id}/partitions", responses=answers(PipelineRunDocument, 404))
async def partitions(*, run_id: str, call: ReadCall) -> Response:
    """Show a pipeline run's window, its records by outcome, and how far each partition is."""
    return json_response(await call.run(_run, call, checked_id(run_id, what="run")))


def _run(call: Call, run_id: str) -> Steps[dict[str, Any]]:
    check_visible(call, (yield from runs.get(run_id)))
    row = yield from pipelines.get(run_id)
    mark = Mark(row.measure)
    return {
        "id": run_id,
        "pipeline": row.pipeline,
        "mode": row.mode,
        "since": None if row.start_mark is None else mark.shown(row.start_mark),
        "until": None if row.end_mark is None else mark.shown(row.end_mark),
        "counts": (yield from counts(row)),
        "partitions": [
            _partition(part) for part in (yield from pipelines.partitions(run_id, row.root_id))
        ],
    }


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


@router.get("/v1/pipelines/{name}/removals", responses=answers(RemovalPage, 404))
async def removals_of(
    *, name: str, call: ReadCall, limit: Limit = 100, after: After = ""
) -> Response:
    """List the keys that a full run did not see and that wait for a decision."""
    row = await _whole(call, name).row_async()
    if row is None or "\0" in after:
        return json_response({"keys": [], "next": None, "decisions": []})
    keys = await call.run(removals.pending, row.id, after=after, most=limit)
    decisions = await call.run(removals.decisions, row.id)
    following = keys[-1] if len(keys) == limit else None
    return json_response({"keys": keys, "next": following, "decisions": decisions})


@router.post("/v1/pipelines/{name}/removals:confirm", responses=DECIDED)
async def confirm_removals(
    *,
    name: str,
    call: OperateCall,
    why: Annotated[DecisionReason, Body()] = DecisionReason(),  # noqa: B008 - it never changes
) -> Response:
    """Let the next run remove the records that a full run did not see."""
    return await _decide(call, name, removals.CONFIRMED, why.reason)


@router.post("/v1/pipelines/{name}/removals:dismiss", responses=DECIDED)
async def dismiss_removals(
    *,
    name: str,
    call: OperateCall,
    why: Annotated[DecisionReason, Body()] = DecisionReason(),  # noqa: B008 - it never changes
) -> Response:
    """Keep the records that a full run did not see, until another one misses them again."""
    return await _decide(call, name, removals.DISMISSED, why.reason)


async def _decide(call: Call, name: str, decision: str, reason: str) -> Response:
    deciding = _whole(call, name).removals.deciding(decision, reason=reason)

    def decided() -> Steps[dict[str, Any]]:
        return {"decision": decision, "records": (yield from deciding())}

    return await call.once(decided)


@router.post(
    "/v1/pipelines/{name}/table:release",
    responses=answers(
        TableRelease, 404, 409, 413, 415, description="The table is free, and whose it was."
    ),
)
async def release_table(
    *,
    name: str,
    call: OperateCall,
    why: Annotated[DecisionReason, Body()] = DecisionReason(),  # noqa: B008 - it never changes
) -> Response:
    """Let the pipeline have its declared table, by taking it from the one that has it."""
    pipeline = _whole(call, name)
    releasing = pipeline.releasing(reason=why.reason)

    def released() -> Steps[dict[str, Any]]:
        return {"table": pipeline.target.name, "pipeline": (yield from releasing())}

    return await call.once(released)


@router.get("/v1/pipelines/{name}/quarantine", responses=answers(QuarantinePage, 404))
async def quarantine(
    *, name: str, call: ReadCall, limit: Limit = 100, after: After = ""
) -> Response:
    """List the records that could not be used, and why."""
    row = await _whole(call, name).row_async()
    if row is None or "\0" in after:
        return json_response({"items": [], "next": None})
    found = await call.run(quarantine_page, row.id, after=after, most=limit)
    items = [document(QuarantinedDocument, one, run=one.run_id) for one in found]
    following = found[-1].key if len(found) == limit else None
    return json_response({"items": items, "next": following})


@router.get("/v1/pipelines/{name}", responses=answers(PipelineDocument, 404))
async def show(*, name: str, call: ReadCall) -> Response:
    """Show a pipeline, and where it has come to."""
    return json_response(await call.run(_document, _whole(call, name)))
