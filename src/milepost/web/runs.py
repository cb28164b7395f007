"""/v1/runs: look at, wait for and act on runs of batches."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Depends, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from milepost.batch.handles import RunHandle, resuming
from milepost.client import Client
from milepost.codec import Codec
from milepost.lifecycle import RUN, RunState
from milepost.records import Run
from milepost.request.redact import shown
from milepost.store import chains, runs
from milepost.store.driver import Steps
from milepost.subjects import checked_id
from milepost.web.auth import Who, require, seen, who_calls
from milepost.web.body import Route
from milepost.web.documents import (
    ErrorDocument,
    PublicState,
    carried,
    etag,
    public,
    standing,
    states,
)
from milepost.web.engine import Engine, Held
from milepost.web.idempotency import Answer, Kept, Once
from milepost.web.jobs import ACCEPTED, History, Reason
from milepost.web.limits import PAGE_BYTES
from milepost.web.paging import Cursor, Limit, cursor, history_page, page, place
from milepost.web.prefer import Preference, Preferred
from milepost.web.problems import problems
from milepost.web.waiting import run_awaited

router = APIRouter(route_class=Route, tags=["runs"])


class RunReceipt(BaseModel):
    """A run as it was accepted."""

    model_config = ConfigDict(extra="allow")

    id: str
    batch: str
    state: PublicState
    run_state: RunState
    done: bool


class StepDocument(BaseModel):
    """One step of a run: its jobs by state."""

    name: str
    role: str
    gated: bool
    opened: bool
    counts: dict[str, int]


class RunErrorDocument(BaseModel):
    """Why one job of a run failed."""

    job_id: str
    step: str
    type: str
    message: str
    cause: str | None = None


class RunSummary(BaseModel):
    """A run, without its steps."""

    id: str
    batch: str
    version: int
    queue: str
    priority: int
    state: PublicState = Field(description="Where it stands, in a public word.")
    run_state: RunState = Field(description="Where it stands, in the engine's own word.")
    done: bool
    cause: str | None = None
    tags: dict[str, str]
    tenant: str | None = None
    channel: str | None = None
    resumes: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None


class RunDocument(RunSummary):
    """A run as it stands; once it is `done` there is exactly one of `result` and `error`."""

    result: Any = Field(default=None, description="Its report; only if it is COMPLETE.")
    error: ErrorDocument | None = Field(
        default=None, description="Why it ended; only if it is FAILED or CANCELLED."
    )
    progress: float
    current_step: str | None = None
    eta_seconds: float | None = None
    error_count: int
    steps: list[StepDocument]
    errors: list[RunErrorDocument] = Field(description="Why jobs of it failed: the first hundred.")
    parameters: Any = None


class RunPage(BaseModel):
    """A page of runs, newest first."""

    items: list[RunSummary]
    next: str | None


RUN_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"model": RunReceipt, "headers": ACCEPTED, "description": "Accepted, and durable."},
    200: {"model": RunDocument, "description": "It ended while the caller waited."},
    **problems(404, 409, 413, 415, 422),
}


def summary(run: Run) -> dict[str, Any]:
    """Say how a run stands, without its steps."""
    return {
        "id": run.id,
        "batch": run.kind,
        "version": run.kind_version,
        "queue": run.queue,
        "priority": run.priority,
        "state": public(run.state),
        "run_state": run.state.value,
        "done": run.state in RUN.terminal,
        "cause": run.cause,
        "tags": msgspec.Raw((run.tags or "{}").encode()),
        "tenant": run.tenant or None,
        "channel": run.channel,
        "resumes": run.resumes,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "deadline_at": run.deadline_at,
    }


async def document(handle: RunHandle, client: Client) -> dict[str, Any]:
    """Say everything of a run."""
    run, found = handle.record, await handle.errors_async()
    given = carried(run.payload, run.codec, client.codec)
    steps = ("name", "role", "gated", "opened", "counts")
    return {
        **summary(run),
        **_outcome(handle, client.codec),
        "progress": handle.progress,
        "current_step": handle.current_step,
        "eta_seconds": None if handle.eta is None else handle.eta.total_seconds(),
        "error_count": handle.error_count,
        "steps": [{name: getattr(step, name) for name in steps} for step in handle.steps],
        "errors": [msgspec.structs.asdict(error) for error in found],
        "parameters": shown(run.kind, given, client.settings.redacted),
    }


def _outcome(handle: RunHandle, codec: Codec) -> Mapping[str, Any]:
    run = handle.record
    if run.state == RunState.SUCCEEDED:
        return {"result": carried(run.report, run.codec, codec)}
    if run.state not in RUN.terminal:
        return {}
    failed = f"{handle.error_count} of its jobs failed"
    kind = "Cancelled" if run.state == RunState.CANCELLED else run.cause or "unknown"
    return {"error": {"type": kind, "message": failed, "cause": run.cause}}


def run_answer(run: Run, *, status: int = 202) -> Answer:
    """Say that a run was accepted, and where it is."""
    body = {name: summary(run)[name] for name in ("id", "batch", "state", "run_state", "done")}
    headers = {"Retry-After": "1"}
    return Answer(status, msgspec.json.encode(body), f"/v1/runs/{run.id}", headers)


async def receive_run(
    request: Request, app: Engine, who: Who, answer: Answer, prefer: Preference
) -> Response:
    """Answer that a run was accepted, or how it ended if that is waited for and comes in time."""
    response = answer.response(request)
    prefer = prefer.heeded(readable=who.may("read"))
    if prefer.wait and answer.location is not None:
        run_id = answer.location.rpartition("/")[2]
        await run_awaited(app, run_id, seconds=prefer.wait)
        handle = await app.runs.get_async(run_id)
        if handle.done and who.sees(handle.record):
            body = msgspec.json.encode(await document(handle, app.client))
            headers = {"Location": response.headers["Location"], "ETag": etag(body)}
            response = Response(body, 200, headers, media_type="application/json")
    response.headers.update(prefer.applied)
    return response


class Accept:
    """Answers a request that makes a run, or that gets the live one: once for each key."""

    def __init__(self, request: Request, app: Engine, once: Once, prefer: Preference) -> None:
        self._request = request
        self._app = app
        self._once = once
        self._prefer = prefer

    async def __call__(self, making: Callable[[], Steps[str]]) -> Response:
        """Run what gives a run's id; say that it was accepted, or how it ended if awaited."""

        def accepted() -> Steps[Answer]:
            return run_answer((yield from runs.get((yield from making()))))

        answer = await self._once.answer(accepted)
        who = who_calls(self._request)
        return await receive_run(self._request, self._app, who, answer, self._prefer)


async def accept(request: Request, app: Held, once: Kept, prefer: Preferred) -> Accept:
    """Hand over what answers for a run."""
    return Accept(request, app, once, prefer)


Accepted = Annotated[Accept, Depends(accept)]
"""What a handler annotates a parameter with that makes its run, and answers for it."""


async def pages(
    request: Request,
    app: Engine,
    who: Who,
    *,
    state: str | None,
    batch: str | None,
    limit: int,
    given: str | None,
) -> Response:
    """Answer with a page of runs."""
    filters = {"state": state, "batch": batch}
    found = await app.client.run_async(
        runs.listing,
        states=states(state, RunState),
        kind=batch,
        before=place(given, filters),
        most=limit,
        most_bytes=PAGE_BYTES,
        **who.filters,
    )
    following = cursor(found[-1].id, filters) if found.more else None
    return page(request, [summary(run) for run in found], following=following)


@router.get("/v1/runs", responses={200: {"model": RunPage}, **problems(422)})
async def listing(
    *,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    state: Annotated[
        str | None, Query(description="A public word, such as PENDING, or the engine's own.")
    ] = None,
    batch: Annotated[str | None, Query(min_length=1)] = None,
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """List runs, newest first."""
    return await pages(request, app, who, state=state, batch=batch, limit=limit, given=cursor_)


async def visible(app: Engine, who: Who, run_id: str) -> RunHandle:
    """Read a run that the caller may see, or raise `NotFound`."""
    handle = await app.runs.get_async(checked_id(run_id, what="run"))
    seen(who, handle.record, what="run")
    return handle


@router.get("/v1/runs/{run_id}", responses={200: {"model": RunDocument}, **problems(404, 422)})
async def show(
    *,
    run_id: str,
    app: Held,
    who: Annotated[Who, require("read")],
    prefer: Preferred,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Say how a run stands; with `Prefer: wait=n`, once it has ended or the time is over."""
    handle = await visible(app, who, run_id)
    return await _shown(app, handle, prefer, if_none_match)


async def _shown(app: Engine, handle: RunHandle, prefer: Preference, known: str | None) -> Response:
    if prefer.wait and not handle.done:
        await run_awaited(app, handle.id, seconds=prefer.wait)
        await handle.refresh_async()
    body = msgspec.json.encode(await document(handle, app.client))
    return standing(body, done=handle.done, known=known, more=prefer.applied)


@router.get("/v1/runs/{run_id}/history", responses={200: {"model": History}, **problems(404, 422)})
async def history(
    *,
    run_id: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """Read the moves of a run, in order, a page at a time."""
    handle = await visible(app, who, run_id)
    return await history_page(request, app, handle.id, machine="run", limit=limit, given=cursor_)


@router.post(
    "/v1/runs/{run_id}:cancel",
    responses={
        200: {"model": RunReceipt, "description": "How it stands now."},
        **problems(404, 409, 413, 415, 422),
    },
)
async def cancel(
    *,
    run_id: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    why: Annotated[Reason, Body()] = Reason(),  # noqa: B008 - it never changes
) -> Response:
    """Cancel a run; it stands at STOPPING while a job of it still runs."""
    handle = await visible(app, who, run_id)

    def cancelled() -> Steps[Answer]:
        yield from runs.cancel(handle.id, reason=why.reason, actor=who.actor)
        return _stands((yield from runs.get(handle.id)))

    answer = await once.answer(cancelled)
    await handle.cancel_async(why.reason)  # the rest of its jobs, some at a time
    # Whoever asks with a key hears the same each time: how it stood when that was committed.
    return (answer if once.key else _stands(handle.record)).response(request)


def _stands(run: Run) -> Answer:
    return msgspec.structs.replace(run_answer(run, status=200), location=None, headers={})


@router.post("/v1/runs/{run_id}:resume", status_code=202, responses=RUN_ACCEPTED)
async def resume(
    *,
    run_id: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    prefer: Preferred,
) -> Response:
    """Make a new run of what did not succeed in one that has ended; asked again, answer with it."""
    old = await visible(app, who, run_id)
    who.check_new(old.record.kind, priority=old.record.priority)
    new = resuming(old.record)

    def resumed() -> Steps[Answer]:
        return run_answer((yield from runs.get((yield from chains.resume(old.id, new)))))

    answer = await once.answer(resumed)
    if answer.location is not None:
        await old.refill_async(answer.location.rpartition("/")[2])
    return await receive_run(request, app, who, answer, prefer)
