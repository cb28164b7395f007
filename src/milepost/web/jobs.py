"""/v1/jobs: submit, look, wait, and act on jobs."""

from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import msgspec
from fastapi import APIRouter, Body, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.responses import Response

from milepost.client import caller, new_id
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.lifecycle import JOB, JobState
from milepost.options import Moment, SubmitOptions, rules
from milepost.records import Job, NewJob
from milepost.store import creation, jobs, reruns, unfit
from milepost.store.driver import Steps
from milepost.subjects import checked_id
from milepost.web.auth import Who, check_channel, require, seen
from milepost.web.body import Route
from milepost.web.documents import (
    EntryDocument,
    JobDocument,
    Receipt,
    accepted,
    etag,
    job_document,
    public,
    standing,
    states,
)
from milepost.web.engine import Engine, Held
from milepost.web.idempotency import Answer, Kept
from milepost.web.limits import PAGE_BYTES
from milepost.web.paging import Cursor, Limit, cursor, history_page, output_page, page, place
from milepost.web.prefer import Preference, Preferred
from milepost.web.problems import Problem, problems
from milepost.web.waiting import awaited

router = APIRouter(route_class=Route, tags=["jobs"])
RULES = rules(SubmitOptions)
ACCEPTED = {
    "Location": {"schema": {"type": "string"}},
    "Retry-After": {"schema": {"type": "integer"}},
}


def _options() -> type[BaseModel]:
    """Make the model of the options of a submission, all of them optional."""
    hints = get_type_hints(SubmitOptions)
    fields: dict[str, Any] = {name: (hints[name], bounded(name)) for name in hints}
    return create_model(
        "NewJobOptions",
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__="What a submission asks for beyond its kind's declaration.",
        **fields,
    )


def bounded(name: str, default: Any = None) -> Any:
    """Describe an option to the API: its bounds are those of its declaration."""
    rule = RULES[name]
    # JSON has no times: one arrives as a text.
    strict = False if isinstance(rule, Moment) else None
    bounds: dict[str, Any] = dict(rule.bounds)
    return Field(default=default, strict=strict, **bounds)


if TYPE_CHECKING:
    NewJobOptions = BaseModel
else:
    NewJobOptions = _options()


class Submission(BaseModel):
    """A job to be submitted."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: str = Field(min_length=1, examples=["convert"])
    args: list[Any] = Field(default=[], examples=[["report"]])
    kwargs: dict[str, Any] = Field(default={}, examples=[{"format": "html"}])
    options: NewJobOptions = NewJobOptions()


class Reason(BaseModel):
    """Why something is cancelled."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: str = Field(default="cancelled", min_length=1, max_length=2000)


class Again(BaseModel):
    """How a job is run again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fresh: bool = Field(
        default=False, description="From its start, with an idempotency key of its own."
    )


class JobPage(BaseModel):
    """A page of jobs, newest first."""

    items: list[JobDocument]
    next: str | None


class History(BaseModel):
    """A page of the moves of a job or a run, in order."""

    items: list[EntryDocument]
    next: str | None


class Outputs(BaseModel):
    """A page of the results of a job that gave several, in order."""

    items: list[Any]
    next: str | None


SUBMITTED: dict[int | str, dict[str, Any]] = {
    202: {"model": Receipt, "headers": ACCEPTED, "description": "Accepted, and durable."},
    200: {"model": JobDocument, "description": "It ended while the caller waited."},
    **problems(409, 413, 415, 422),
}


@router.post("/v1/jobs", status_code=202, responses=SUBMITTED)
async def submit(
    *,
    new: Submission,
    request: Request,
    app: Held,
    who: Annotated[Who, require("submit")],
    once: Kept,
    prefer: Preferred,
) -> Response:
    """Submit a job; it is durable once this is answered."""
    options = new.options.model_dump(exclude_none=True)
    job = app.new_job(new.kind, new.args, new.kwargs, options)
    check_template(who, job)
    await check_channel(app.client, who, job.template.channel)
    if once.key is None:
        [job_id] = await app.client.create_async([job])
        known = job_id != job.id
        answer = await app.client.run_async(_known, job_id, who) if known else _receipt(job)
    else:
        answer = await once.answer(lambda: created(job, who))
    return await receive(request, app, who, answer, prefer)


def check_template(who: Who, job: NewJob) -> None:
    """Refuse a job that the token may not create."""
    template = job.template
    who.check_new(template.kind, queue=template.queue, priority=template.priority)


def created(job: NewJob, who: Who) -> Steps[Answer]:
    """Store a job, and say that it or the one with its unique key was accepted."""
    [job_id] = yield from creation.create([job])
    return _receipt(job) if job_id == job.id else (yield from _known(job_id, who))


def _known(job_id: str, who: Who) -> Steps[Answer]:
    job = yield from jobs.get(job_id)
    if not who.sees(job):
        raise Problem(409, "that unique key is taken by a job beyond your bounds; choose another")
    return accepted_job(job)


def _receipt(job: NewJob) -> Answer:
    template = job.template
    return _accepted(job.id, template.kind, template.queue, template.state)


def accepted_job(job: Job) -> Answer:
    """Say that a job was accepted, and where it is."""
    return _accepted(job.id, job.kind, job.queue, job.state)


def _accepted(job_id: str, kind: str, queue: str, state: str) -> Answer:
    document = {
        "id": job_id,
        "kind": kind,
        "queue": queue,
        "state": public(state),
        "job_state": str(state),
        "done": state in JOB.terminal,
    }
    return accepted(document, f"/v1/jobs/{job_id}")


async def receive(
    request: Request, app: Engine, who: Who, answer: Answer, prefer: Preference
) -> Response:
    """Answer that a job was accepted, or how it ended if that is waited for and comes in time.

    Waiting shows nothing that a look would not: whoever may not read is answered at once.
    """
    response = answer.response(request)
    prefer = prefer.heeded(readable=who.may("read"))
    if prefer.wait and answer.location is not None:
        job_id = answer.location.rpartition("/")[2]
        job = await awaited(app, job_id, seconds=prefer.wait)
        if job.state in JOB.terminal and who.sees(job):
            body = msgspec.json.encode(job_document(job, app.client, whole=True))
            headers = {"Location": response.headers["Location"], "ETag": etag(body)}
            response = Response(body, 200, headers, media_type="application/json")
    response.headers.update(prefer.applied)
    return response


@router.get("/v1/jobs", responses={200: {"model": JobPage}, **problems(422)})
async def listing(
    *,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    state: Annotated[
        str | None, Query(description="A public word, such as PENDING, or the engine's own.")
    ] = None,
    kind: Annotated[str | None, Query(min_length=1)] = None,
    queue: Annotated[str | None, Query(min_length=1)] = None,
    run: Annotated[str | None, Query(description="Jobs of this run.")] = None,
    superseded: Annotated[
        bool | None, Query(description="false leaves out jobs that were run again.")
    ] = None,
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """List jobs, newest first."""
    filters = {"state": state, "kind": kind, "queue": queue, "run": run, "superseded": superseded}
    found = await app.client.run_async(
        jobs.listing,
        states=states(state, JobState),
        kind=kind,
        queue=queue,
        run_id=None if run is None else id_within(run, what="run"),
        superseded=superseded,
        before=place(cursor_, filters),
        most=limit,
        most_bytes=PAGE_BYTES,
        **who.filters,
    )
    following = cursor(found[-1].id, filters) if found.more else None
    items = [job_document(job, app.client) for job in found]
    return page(request, items, following=following)


def id_within(given: str, *, what: str) -> str:
    """Read an id that is part of a question: a wrong one is a mistake, not something missing."""
    try:
        return checked_id(given, what=what)
    except NotFound as error:
        raise Invalid(f"{what}={given!r} is not the id of a {what}") from error


async def visible(app: Engine, who: Who, job_id: str) -> Job:
    """Read a job that the caller may see, or raise `NotFound`."""
    job = await app.client.run_async(jobs.get, checked_id(job_id))
    seen(who, job, what="job")
    return job


@router.get("/v1/jobs/{job_id}", responses={200: {"model": JobDocument}, **problems(404, 422)})
async def show(
    *,
    job_id: str,
    app: Held,
    who: Annotated[Who, require("read")],
    prefer: Preferred,
    if_none_match: Annotated[str | None, Header()] = None,
) -> Response:
    """Say how a job stands; with `Prefer: wait=n`, once it has ended or the time is over."""
    job = await visible(app, who, job_id)
    if prefer.wait and job.state not in JOB.terminal:
        job = await awaited(app, job.id, seconds=prefer.wait)
    body = msgspec.json.encode(job_document(job, app.client, whole=True))
    done = job.state in JOB.terminal
    return standing(body, done=done, known=if_none_match, more=prefer.applied)


@router.get("/v1/jobs/{job_id}/history", responses={200: {"model": History}, **problems(404, 422)})
async def history(
    *,
    job_id: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """Read the moves of a job, in order, a page at a time."""
    job = await visible(app, who, job_id)
    return await history_page(request, app, job.id, machine="job", limit=limit, given=cursor_)


@router.get("/v1/jobs/{job_id}/outputs", responses={200: {"model": Outputs}, **problems(404, 422)})
async def outputs(
    *,
    request: Request,
    job_id: str,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """Read what a job of a batch's last step gave, in order; its result, if it has just one."""
    job = await visible(app, who, job_id)
    return await output_page(request, app, job, limit=limit, given=cursor_)


ACTED: dict[int | str, dict[str, Any]] = {
    200: {"model": Receipt, "description": "How it stands now."},
    **problems(404, 409, 413, 415, 422),
}


@router.post("/v1/jobs/{job_id}:cancel", responses=ACTED)
async def cancel(
    *,
    job_id: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    why: Annotated[Reason, Body()] = Reason(),  # noqa: B008 - it never changes
) -> Response:
    """Cancel a job, or ask the worker that runs it; says how it stands now."""
    job = await visible(app, who, job_id)
    return await once(lambda: _cancelled(job.id, why.reason, who.actor))


def _cancelled(job_id: str, reason: str, actor: str) -> Steps[Answer]:
    yield from jobs.cancel(job_id, reason=reason, actor=actor)
    return _stands((yield from jobs.get(job_id)))


def _stands(job: Job) -> Answer:
    return msgspec.structs.replace(accepted_job(job), status=200, location=None, headers={})


@router.post("/v1/jobs/{job_id}:rerun", status_code=202, responses={**SUBMITTED, **problems(404)})
async def rerun(
    *,
    job_id: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    prefer: Preferred,
    how: Annotated[Again, Body()] = Again(),  # noqa: B008 - it never changes
) -> Response:
    """Run a finished job again, as a new one that points at it.

    It goes on from the steps that are recorded, under the same idempotency key, unless it is to
    start `fresh`. 409 when it succeeded and is not to, has not ended, or was run again before.
    """
    job = await visible(app, who, job_id)
    who.check_new(job.kind, queue=job.queue, priority=job.priority)
    trace = caller().trace
    answer = await once.answer(lambda: _rerun(job.id, how, who.actor, trace))
    return await receive(request, app, who, answer, prefer)


def _rerun(job_id: str, how: Again, actor: str, trace: str | None) -> Steps[Answer]:
    new = yield from reruns.rerun(job_id, fresh=how.fresh, actor=actor, trace=trace)
    return accepted_job((yield from jobs.get(new)))


@router.post("/v1/jobs/{job_id}:signal", responses=ACTED)
async def signal(
    *,
    job_id: str,
    app: Held,
    who: Annotated[Who, require("operate")],
    once: Kept,
    data: Annotated[Any, Body(description="What its next attempt is to know.")] = None,
) -> Response:
    """Wake a job that waits, with data for its next attempt; 409 when it has ended."""
    job = await visible(app, who, job_id)
    encoded = None if data is None else app.client.codec.encode(data)
    signal_id = new_id()
    return await once(lambda: _signalled(job.id, signal_id, encoded, who.actor))


def _signalled(job_id: str, signal_id: str, data: bytes | None, actor: str) -> Steps[Answer]:
    if not (yield from jobs.signal(job_id, signal_id=signal_id, data=data, actor=actor)):
        raise IllegalMove(f"job {job_id} has ended; nothing waits for a signal")
    return _stands((yield from jobs.get(job_id)))


@router.post("/v1/jobs/{job_id}:release", responses=ACTED)
async def release(
    *, job_id: str, app: Held, who: Annotated[Who, require("operate")], once: Kept
) -> Response:
    """Let a job be tried again whose arguments did not fit; 409 when it waits for nothing such."""
    job = await visible(app, who, job_id)
    return await once(lambda: _released(job.id, who.actor))


def _released(job_id: str, actor: str) -> Steps[Answer]:
    yield from unfit.release(job_id, actor=actor)
    return _stands((yield from jobs.get(job_id)))


@router.post("/v1/jobs/{job_id}:erase", responses=ACTED)
async def erase(
    *, job_id: str, app: Held, who: Annotated[Who, require("admin")], once: Kept
) -> Response:
    """Empty a finished job of what was put into it: arguments, result, errors."""
    job = await visible(app, who, job_id)
    return await once(lambda: _erased(job.id, who.actor))


def _erased(job_id: str, actor: str) -> Steps[Answer]:
    if not (yield from jobs.erase(job_id, actor=actor)):
        raise IllegalMove(f"job {job_id} has not ended; cancel it first")
    return _stands((yield from jobs.get(job_id)))
