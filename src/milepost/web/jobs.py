"""/v1/jobs: submit, look, wait, and act on jobs."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.responses import Response

from milepost import filters
from milepost.client import caller, new_id
from milepost.errors import IllegalMove, NotFound
from milepost.handles import JobHandle
from milepost.lifecycle import JOB, JobState
from milepost.options import Moment, SubmitOptions, rules
from milepost.records import Job, Listed, NewJob
from milepost.store import creation, jobs, logs, reruns, search, timers, unfit
from milepost.store import failures as stored_failures
from milepost.store import outputs as stored_outputs
from milepost.store.driver import Steps
from milepost.web import documents, subjects
from milepost.web.access import Principal
from milepost.web.call import (
    AdminCall,
    Call,
    OperateCall,
    ReadCall,
    RestartCall,
    StoredAnswer,
    SubmitCall,
    ViewCall,
    json_response,
)
from milepost.web.documents import (
    GENERAL,
    Face,
    JobDocument,
    PageDocument,
    Receipt,
    RequestBody,
)
from milepost.web.paging import PAGE_BYTES, Paging
from milepost.web.problems import HttpProblem, answers, problems
from milepost.web.route import Route
from milepost.web.subjects import At, Spec, acceptance, accepted, accepts, id_within, visible

router = APIRouter(route_class=Route, tags=["jobs"])
RULES = rules(SubmitOptions)
FEW = 16
"""How many results, each of which may be large, are read at once."""

LineNumber = Annotated[int, Query(ge=0, description="The number of the last line that is known.")]
StateFilter = Annotated[
    str | None, Query(description="A public word, such as PENDING, or the engine's own.")
]


def bounded(name: str, default: Any = None) -> Any:
    """Describe an option to the API: its bounds are those of its declaration."""
    rule = RULES[name]
    # JSON has no times: one arrives as a text.
    strict = False if isinstance(rule, Moment) else None
    bounds: dict[str, Any] = dict(rule.bounds)
    return Field(default=default, strict=strict, **bounds)


def _options() -> type[BaseModel]:
    """Make the model of the options of a submission, all of them optional."""
    hints = get_type_hints(SubmitOptions)
    fields: dict[str, Any] = {name: (hints[name], bounded(name)) for name in hints}
    return create_model(
        "NewJobOptions",
        __config__=ConfigDict(extra="forbid", strict=True),
        __doc__="Options of a submission, beyond its kind's declaration.",
        **fields,
    )


if TYPE_CHECKING:
    NewJobOptions = BaseModel
else:
    NewJobOptions = _options()


class NewJobBody(RequestBody):
    """A job to be submitted."""

    kind: str = Field(min_length=1, examples=["convert"])
    args: list[Any] = Field(default=[], examples=[["report"]])
    kwargs: dict[str, Any] = Field(default={}, examples=[{"format": "html"}])
    options: NewJobOptions = NewJobOptions()


class Reason(RequestBody):
    """Why something is cancelled."""

    reason: str = Field(default="cancelled", min_length=1, max_length=2000)


class RerunOptions(RequestBody):
    """How a job is run again."""

    fresh: bool = Field(
        default=False, description="From its start, with an idempotency key of its own."
    )


class JobPage(PageDocument[JobDocument]):
    """A page of jobs, newest first."""

    looked_to: datetime | None = Field(
        default=None, description="Of a page of `where` that stopped early: up to when it looked."
    )


class FailureList(documents.ListDocument[documents.FailureDocument]):
    """Why the last attempts of a job failed, in order."""


class OutputPage(PageDocument[Any]):
    """A page of the results of a job that gave several, in order."""


class LogLineDocument(BaseModel):
    """A line that a handler has logged."""

    n: int = Field(description="Its number among the lines of its job.")
    at: str
    level: str = Field(examples=["info"])
    attempt: int
    logger: str
    text: str


class LogPage(BaseModel):
    """The last lines of a job, in order: at most 200, and 64 KiB."""

    items: list[LogLineDocument]
    done: bool = Field(description="Whether the job is final: no more lines come.")


SUBMITTED = accepts(Receipt, JobDocument)
SHOWN = answers(
    JobDocument | documents.LifecycleDocument | documents.WordDocument | documents.PastDocument, 404
)
ACTED = answers(Receipt, 404, 409, 413, 415, description="How it stands now.")


@router.post("/v1/jobs", status_code=202, responses=SUBMITTED)
async def submit(*, new: NewJobBody, call: SubmitCall) -> Response:
    """Submit a job; it is durable once this is answered."""
    options = new.options.model_dump(exclude_none=True)
    make = partial(call.app.new_job, new.kind, new.args, new.kwargs, options)
    return await create(call, new.kind, make)


async def create(
    call: Call, kind: str, make: Callable[[], NewJob], face: Face = GENERAL
) -> Response:
    """Store a job that the token may create; say that it, or the one with its key, was accepted."""
    answer = await call.submitting(kind, "job_id", lambda: stored(call, make(), face))
    return await accepted(call, call.app.jobs, answer, face)


async def stored(call: Call, job: NewJob, face: Face = GENERAL) -> StoredAnswer:
    """Store a job that the token may create, or find the one with its key."""
    check_template(call.principal, job)
    await call.principal.check_channel(call.app.client, job.template.channel)
    if job.on_conflict != "keep":  # it cancels another's
        await call.run(_check_replaced, job, call.principal)
    if call.key is not None:
        return await call.answer(lambda: _created(job, call, face))
    [job_id] = await call.app.client.create_async([job])
    if _is_as_asked(job, job_id):
        return acceptance(job.id, job.template, face)
    return await call.run(_known, job_id, call, face, job)


def check_template(principal: Principal, job: NewJob) -> None:
    """Refuse a job that the token may not create."""
    template = job.template
    principal.check_new(template.kind, queue=template.queue, priority=template.priority)


def _created(job: NewJob, call: Call, face: Face) -> Steps[StoredAnswer]:
    [job_id] = yield from call.app.client.create_in_bounds([job])
    if _is_as_asked(job, job_id):
        return acceptance(job.id, job.template, face)
    return (yield from _known(job_id, call, face, job))


def _is_as_asked(job: NewJob, job_id: str) -> bool:
    """Tell whether it is the new job, and stands where it was to; one that replaces may not."""
    return job_id == job.id and job.on_conflict != "replace"


def _known(job_id: str, call: Call, face: Face, new: NewJob) -> Steps[StoredAnswer]:
    try:
        job = yield from jobs.get(job_id)
    except NotFound:
        detail = "that unique key stays taken for a while, and its job has left the store"
        raise HttpProblem(409, detail) from None
    _check_seen(job, call.principal)
    asked = None if job_id == new.id else new.payload
    found: JobHandle[Any] = JobHandle(call.app.client, job.id, job, asked=asked)
    return acceptance(job.id, job, face, duplicate=found.duplicate)


def _check_replaced(new: NewJob, principal: Principal) -> Steps[None]:
    for job_id in (yield from creation.live(new)):
        _check_seen((yield from jobs.get(job_id)), principal)


def _check_seen(job: Job, principal: Principal) -> None:
    if not principal.sees(job):
        detail = "that unique key is taken by a job beyond your bounds; choose another"
        raise HttpProblem(409, detail)


@router.get("/v1/jobs", responses=answers(JobPage))
async def listing(
    *,
    call: ReadCall,
    page: Paging,
    state: StateFilter = None,
    kind: Annotated[str | None, Query(min_length=1)] = None,
    queue: Annotated[str | None, Query(min_length=1)] = None,
    run: Annotated[str | None, Query(description="Jobs of this run.")] = None,
    superseded: Annotated[
        bool | None, Query(description="false leaves out jobs that were run again.")
    ] = None,
    where: Annotated[
        str | None,
        Query(
            max_length=filters.LONGEST,
            description="A filter; a page of it may stop early, with `looked_to` and a cursor.",
            examples=["state:failed tag.customer:42 age:>1h error:Timeout"],
        ),
    ] = None,
) -> Response:
    """List jobs, newest first."""
    asked = {"state": state, "kind": kind, "queue": queue, "run": run, "superseded": superseded}
    asked |= {} if where is None else {"where": where}
    found = await call.run(find, call.principal, asked, **page.before(asked))
    return page.listed(found, lambda job: documents.job_document(job, call.app.client), asked)


def find(principal: Principal, asked: Mapping[str, Any], **window: Any) -> Steps[Listed[Job]]:
    """Find the jobs that the caller may see and that these filters let through, newest first."""
    run = asked.get("run")
    run_id = None if run is None else id_within(run, what="run")
    states = documents.states(asked.get("state"), JobState)
    kind, queue, superseded = asked.get("kind"), asked.get("queue"), asked.get("superseded")
    if asked.get("where") is None:
        words: dict[str, Any] = {"kind": kind, "queue": queue, "run_id": run_id, "states": states}
        bounds = {**window, **principal.filters}
        return (yield from jobs.listing(superseded=superseded, **words, **bounds))
    sought = filters.parse(asked["where"])
    sought &= filters.where(state=asked.get("state"), kind=kind, queue=queue, run=run_id)
    sought &= filters.where(tenant=principal.tenant, queue=principal.queues)
    return (yield from search.page(sought, superseded=superseded, **window))


@router.get("/v1/jobs/{job_id}", responses=SHOWN)
async def show(*, job_id: str, call: ViewCall, spec: Spec = None, at: At = None) -> Response:
    """Say how a job stands; with `Prefer: wait=n`, once it has ended or the time is over."""
    return await subjects.show(call, call.app.jobs, job_id, spec, at)


@router.get("/v1/jobs/{job_id}/history", responses=answers(documents.HistoryPage, 404))
async def history(*, job_id: str, call: ReadCall, page: Paging) -> Response:
    """Read the moves of a job, in order, a page at a time."""
    return await subjects.history(call, call.app.jobs, job_id, page)


@router.get("/v1/jobs/{job_id}/failures", responses=answers(FailureList, 404))
async def failures(*, job_id: str, call: ReadCall) -> Response:
    """Read why the last attempts of a job failed, in order, with their tracebacks."""
    job = await visible(call, call.app.jobs, job_id)
    found = await call.run(stored_failures.attempts, job.id, most=stored_failures.SHOWN)
    items = [documents.document(documents.FailureDocument, one) for one in found]
    return json_response({"items": items})


@router.get("/v1/jobs/{job_id}/logs", responses=answers(LogPage, 404))
async def read_logs(*, job_id: str, call: ReadCall, after: LineNumber = 0) -> Response:
    """Read the last lines that a job's attempts have logged, in order, those after a number."""
    job = (await visible(call, call.app.jobs, job_id)).record
    found = await call.run(logs.read, job.id, after=after)
    return json_response({"items": found, "done": job.state in JOB.terminal})


@router.get("/v1/jobs/{job_id}/outputs", responses=answers(OutputPage, 404))
async def outputs(*, job_id: str, call: ReadCall, page: Paging) -> Response:
    """Read the results of a job of a batch's last step, in order; one, if it has just one."""
    job = (await visible(call, call.app.jobs, job_id)).record
    codec, filters = call.app.client.codec, {"outputs": job.id}
    start, room = page.number(filters), PAGE_BYTES
    if job.result is not None:
        return page.response([documents.carried(job.result, job.codec, codec)], None)
    items: list[Any] = []
    while len(items) < page.limit and room > 0:
        after, most = start + len(items) - 1, min(FEW, page.limit - len(items))
        found = await call.run(stored_outputs.kept, job.id, after=after, most=most)
        items += [documents.carried(data, job.codec, codec) for _, data in found]
        room -= sum(len(data) for _, data in found)
        if len(found) < most:
            return page.response(items, None)
    return page.response(items, str(start + len(items)), filters)


@router.post("/v1/jobs/{job_id}:cancel", responses=ACTED)
async def cancel(
    *,
    job_id: str,
    call: OperateCall,
    why: Annotated[Reason, Body()] = Reason(),  # noqa: B008 - it never changes
) -> Response:
    """Cancel a job, or ask the worker that runs it; says how it stands now."""
    return await _act(call, job_id, partial(jobs.cancel, reason=why.reason))


async def _act(
    call: Call, job_id: str, acting: Callable[..., Steps[Any]], refusal: str = ""
) -> Response:
    """Do something to a job in the caller's name, and say how it stands now."""
    job = await visible(call, call.app.jobs, job_id)

    def acted() -> Steps[dict[str, Any]]:
        if (yield from acting(job.id, actor=call.principal.actor)) is False:
            raise IllegalMove(f"job {job.id} {refusal}")
        return documents.receipt(job.id, (yield from jobs.get(job.id)))

    return await call.once(acted)


@router.post("/v1/jobs/{job_id}:rerun", status_code=202, responses={**SUBMITTED, **problems(404)})
async def rerun(
    *,
    job_id: str,
    call: RestartCall,
    how: Annotated[RerunOptions, Body()] = RerunOptions(),  # noqa: B008 - it never changes
) -> Response:
    """Run a finished job again, as a new one that points at it.

    It goes on from the steps that are recorded, under the same idempotency key, unless it is to
    start `fresh`. 409 when it succeeded and is not to, has not ended, or was run again before.
    """
    job = (await visible(call, call.app.jobs, job_id)).record
    call.principal.check_rerun(job)
    by = {"actor": call.principal.actor, "trace": caller().trace}

    def rerun() -> Steps[StoredAnswer]:
        new = yield from reruns.rerun(job.id, fresh=how.fresh, **by)
        return acceptance(new, (yield from jobs.get(new)))

    return await accepted(call, call.app.jobs, await call.answer(rerun))


@router.post("/v1/jobs/{job_id}:signal", responses=ACTED)
async def signal(
    *,
    job_id: str,
    call: OperateCall,
    data: Annotated[Any, Body(description="What its next attempt is to know.")] = None,
) -> Response:
    """Wake a job that waits, with data for its next attempt; 409 when it has ended."""
    encoded = None if data is None else call.app.client.codec.encode(data)
    signalling = partial(jobs.signal, signal_id=new_id(), data=encoded)
    return await _act(call, job_id, signalling, "has ended; nothing waits for a signal")


@router.post("/v1/jobs/{job_id}:release", responses=ACTED)
async def release(*, job_id: str, call: OperateCall) -> Response:
    """Let a job be tried again whose arguments did not fit; 409 when it waits for nothing such."""
    return await _act(call, job_id, unfit.release)


@router.post("/v1/jobs/{job_id}:run-now", responses=ACTED)
async def run_now(*, job_id: str, call: OperateCall) -> Response:
    """Run a job that waits for its time before that; 409 when it waits for something else."""
    return await _act(call, job_id, timers.run_now)


@router.post("/v1/jobs/{job_id}:erase", responses=ACTED)
async def erase(*, job_id: str, call: AdminCall) -> Response:
    """Empty a finished job of its content: arguments, result, errors."""
    return await _act(call, job_id, jobs.erase, "has not ended; cancel it first")
