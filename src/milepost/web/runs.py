"""/v1/runs: look at, wait for and act on runs of batches."""

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Body, Query
from starlette.responses import Response

from milepost.batch.handles import resuming
from milepost.lifecycle import RunState
from milepost.store import chains, runs
from milepost.store.driver import Steps
from milepost.web import documents, subjects
from milepost.web.call import (
    Call,
    OperateCall,
    ReadCall,
    RestartCall,
    StoredAnswer,
    ViewCall,
    json_response,
)
from milepost.web.documents import GENERAL, Face, RunDocument, RunPage, RunReceipt
from milepost.web.jobs import Reason, StateFilter
from milepost.web.paging import PageQuery, Paging
from milepost.web.problems import answers
from milepost.web.route import Route
from milepost.web.subjects import At, Spec, acceptance, accepted, accepts, visible

router = APIRouter(route_class=Route, tags=["runs"])
SHOWN = answers(RunDocument | documents.WordDocument | documents.PastDocument, 404)
RUN_ACCEPTED = accepts(RunReceipt, RunDocument, 404)


async def create(
    call: Call, kind: str, make: Callable[[], Callable[[], Steps[str]]], face: Face = GENERAL
) -> Response:
    """Make a run, or find the live one; say that it was accepted, or how it ended if awaited."""

    async def stored() -> StoredAnswer:
        making = make()

        def made() -> Steps[StoredAnswer]:
            run = yield from runs.get((yield from making()))
            return acceptance(run.id, run, face)

        return await call.answer(made)

    answer = await call.submitting(kind, "run_id", stored)
    return await accepted(call, call.app.runs, answer, face)


async def list_runs(
    call: Call, page: PageQuery, *, state: str | None, batch: str | None
) -> Response:
    """Answer with a page of runs."""
    filters = {"state": state, "batch": batch}
    found = await call.run(
        runs.listing,
        states=documents.states(state, RunState),
        kind=batch,
        **page.before(filters),
        **call.principal.filters,
    )
    return page.listed(found, documents.run_summary, filters)


@router.get("/v1/runs", responses=answers(RunPage))
async def listing(
    *,
    call: ReadCall,
    page: Paging,
    state: StateFilter = None,
    batch: Annotated[str | None, Query(min_length=1)] = None,
) -> Response:
    """List runs, newest first."""
    return await list_runs(call, page, state=state, batch=batch)


@router.get("/v1/runs/{run_id}", responses=SHOWN)
async def show(*, run_id: str, call: ViewCall, spec: Spec = None, at: At = None) -> Response:
    """Say how a run stands; with `Prefer: wait=n`, once it has ended or the time is over."""
    return await subjects.show(call, call.app.runs, run_id, spec, at)


@router.get("/v1/runs/{run_id}/history", responses=answers(documents.HistoryPage, 404))
async def history(*, run_id: str, call: ReadCall, page: Paging) -> Response:
    """Read the moves of a run, in order, a page at a time."""
    return await subjects.history(call, call.app.runs, run_id, page)


@router.post(
    "/v1/runs/{run_id}:cancel",
    responses=answers(RunReceipt, 404, 409, 413, 415, description="How it stands now."),
)
async def cancel(
    *,
    run_id: str,
    call: OperateCall,
    why: Annotated[Reason, Body()] = Reason(),  # noqa: B008 - it never changes
) -> Response:
    """Cancel a run; it stands at STOPPING while a job of it still runs."""
    handle = await visible(call, call.app.runs, run_id)

    def cancelled() -> Steps[dict[str, object]]:
        yield from runs.cancel(handle.id, reason=why.reason, actor=call.principal.actor)
        return documents.receipt(handle.id, (yield from runs.get(handle.id)))

    response = await call.once(cancelled)
    await handle.cancel_async(why.reason)  # the rest of its jobs, some at a time
    # With a key each answer is the same: how it stood when that was committed.
    return response if call.key else json_response(documents.receipt(handle.id, handle.record))


@router.post("/v1/runs/{run_id}:resume", status_code=202, responses=RUN_ACCEPTED)
async def resume(*, run_id: str, call: RestartCall) -> Response:
    """Make a new run of the jobs that did not succeed in an ended one; asked again, the same."""
    old = await visible(call, call.app.runs, run_id)
    call.principal.check_new(old.record.kind, priority=old.record.priority)
    new = resuming(old.record)

    def resumed() -> Steps[StoredAnswer]:
        run = yield from runs.get((yield from chains.resume(old.id, new)))
        return acceptance(run.id, run)

    answer = await call.answer(resumed)
    if answer.location is not None:
        await old.refill_async(answer.location.rpartition("/")[2])
    return await accepted(call, call.app.runs, answer)
