"""/v1/requests: HTTP requests as jobs, one or many, and where a remote calls back (spec C)."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter
from pydantic import ConfigDict, Discriminator, Field, Tag
from starlette.responses import Response

from milepost.batch.declaration import Collect, FailFast, FailurePolicy, Tolerate
from milepost.batch.handles import RunHandle
from milepost.client import new_id
from milepost.declare import known_limit
from milepost.errors import IllegalMove, NotFound
from milepost.limit import StoredLimit
from milepost.options import DEFAULTS, OnConflict
from milepost.records import Job
from milepost.request.batch import FINAL, BatchOptions
from milepost.request.batch import KIND as BATCH
from milepost.request.declaration import job_options
from milepost.request.kind import KIND, REPLAY
from milepost.store import chains, jobs, requests, rules
from milepost.subjects import Finder, Subject, checked_id
from milepost.web import runs as web_runs
from milepost.web.call import Call, Engine, SubmitCall, ViewCall
from milepost.web.documents import (
    REQUESTS,
    RequestBatchDocument,
    RequestBatchReceipt,
    RequestBody,
    RequestDocument,
    RequestReceipt,
    response_document,
    whole_document,
)
from milepost.web.jobs import bounded, check_template, create
from milepost.web.paging import NO_CURSOR, PAGE_BYTES, PageQuery, Paging, cursor, place
from milepost.web.problems import HttpProblem, answers, problems
from milepost.web.route import JsonRequest, PushedRoute, Route
from milepost.web.subjects import accepts, answer, visible

router = APIRouter(route_class=Route, tags=["requests"])
pushed = APIRouter(route_class=PushedRoute, tags=["requests"])
MOST = 1_000
"""How many requests one call may bring; a program brings more by app.request_batch."""

CALLBACK_BYTES = 64 * 1024
"""How much a remote may say when it calls back: larger results are fetched, not pushed."""

CALLBACK_SIGNALS = 100
"""How many callbacks a job keeps that it has not read."""

KINDS = frozenset({KIND, REPLAY, FINAL, BATCH})
"""The kinds of jobs and runs that stand under /v1/requests."""

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class RequestPart(RequestBody):
    """A part of a request, named as `app.request` names it."""

    model_config = ConfigDict(populate_by_name=True)

    def options(self) -> dict[str, Any]:
        """Say the options given, by the names that `app.request` takes."""
        return self.model_dump(by_alias=True, exclude_unset=True)


class PollRule(RequestPart):
    """Where to look while a reply says pending, instead of sending the request again."""

    url: str = Field(min_length=1, examples=["$.href"])
    every: float | None = Field(default=None, ge=0)


class ReplyRule(RequestPart):
    """How a reply is read: by a value in its JSON, by its status code, or by a function."""

    state: str | None = Field(default=None, examples=["$.status"])
    complete: list[Any] = Field(default=[], examples=[["done"]])
    pending: list[Any] = Field(default=[], examples=[["working"]])
    failed: list[Any] = Field(default=[], examples=[["error"]])
    result: str | None = None
    error: str | None = None
    by: str | None = Field(default=None, min_length=1)
    poll: PollRule | None = None


class TimeoutRule(RequestPart):
    """How long each part of a request may take, in seconds."""

    connect: float = Field(default=10, gt=0)
    read: float = Field(default=30, gt=0)
    write: float = Field(default=30, gt=0)
    pool: float = Field(default=300, gt=0)
    total: float = Field(default=300, gt=0)


class NewRequest(RequestPart):
    """A request to be sent."""

    method: Method = "GET"
    url: str = Field(min_length=1, examples=["https://partner.example/convert"])
    headers: dict[str, str] = Field(default={})
    json_: Any = Field(default=None, alias="json", examples=[{"document": "report"}])
    content: str | None = None
    reply: ReplyRule | None = None
    poll: float | None = Field(default=60, ge=0)
    crash: Literal["resend", "fail_unknown"] = "resend"
    timeout: TimeoutRule | Annotated[float, Field(gt=0)] | None = None
    redirects: int = Field(default=0, ge=0, le=20)
    record: bool = True
    callback: bool = False
    secrets: list[str] = Field(default=[], examples=[["partner-token"]])
    retries: int = bounded("retries", DEFAULTS["retries"])
    retry_delay: float = Field(default=1, ge=0)
    queue: str | None = bounded("queue")
    priority: int | None = bounded("priority")
    start_in: float | None = bounded("start_in")
    deadline: float | None = bounded("deadline")
    unique: str | None = bounded("unique")
    on_conflict: OnConflict | None = bounded("on_conflict")
    unique_for: float | None = bounded("unique_for")
    tags: dict[str, str] | None = None
    channel: str | None = bounded("channel")
    poll_limit: int = bounded("poll_limit", DEFAULTS["poll_limit"])
    limit: str | None = Field(
        default=None,
        min_length=1,
        description="The name of a limit that a program declares or an operator has set.",
        examples=["partner"],
    )
    limit_key: str | None = bounded("limit_key")
    units: float | None = bounded("units")


def _item_kind(item: Any) -> str:
    given = isinstance(item, dict) and "batch" in item
    return "batch" if given or isinstance(item, NestedBatch) else "request"


class BatchPart(RequestPart):
    """Options of every batch of requests."""

    final: NewRequest | None = Field(default=None, description="A call of its own, at the end.")
    policy: Literal["fail_fast", "collect"] | float = Field(
        default="fail_fast", description="Or the share of requests that may fail."
    )
    channel: str | None = bounded("channel")

    @property
    def failure_policy(self) -> FailurePolicy:
        """Say how many failures are tolerated."""
        if isinstance(self.policy, str):
            return FailFast() if self.policy == "fail_fast" else Collect()
        return Tolerate(self.policy)

    def batch_options(self) -> dict[str, Any]:
        """Say the options that every batch has, by the names that `app.request_batch` takes."""
        final = None if self.final is None else self.final.options()
        return {"policy": self.failure_policy, "final": final, "channel": self.channel}


class NestedBatch(BatchPart):
    """A batch within a batch, as one of its items; at most eight stand within one another."""

    batch: list["BatchEntry"] = Field(min_length=1, max_length=MOST)

    def options(self) -> dict[str, Any]:
        """Say it as `app.request_batch` takes it."""
        return {"batch": [one.options() for one in self.batch], **self.batch_options()}


BatchEntry = Annotated[
    Annotated[NewRequest, Tag("request")] | Annotated[NestedBatch, Tag("batch")],
    Discriminator(_item_kind),
]


class NewRequestBatch(BatchPart):
    """Requests that belong together."""

    requests: list[BatchEntry] = Field(max_length=MOST)
    queue: str | None = bounded("queue")
    priority: int = bounded("priority", DEFAULTS["priority"])
    deadline: float | None = Field(default=None, gt=0)
    tags: dict[str, str] | None = None


SENT = accepts(RequestReceipt, RequestDocument)
BATCH_SENT = accepts(RequestBatchReceipt, RequestBatchDocument, 404)


@router.post("/v1/requests", status_code=202, responses=SENT)
async def send(*, new: NewRequest, call: SubmitCall) -> Response:
    """Send an HTTP request as a job; it is durable once this is answered."""
    given = new.options()
    known = await _known_limits(call, [new])
    prepare = call.app.requests.prepare
    job, made = prepare(given.pop("method", "GET"), given.pop("url"), given, known)
    make = partial(job.new, (made,), {})
    return await create(call, job.definition.name, make, REQUESTS)


async def _known_limits(
    call: Call, asked: Sequence[NewRequest | NestedBatch]
) -> dict[str, StoredLimit]:
    """Read the limits of the store, if a request calls one by its name."""
    if not any(_limits(one) for one in asked):
        return {}
    found = await call.run(rules.rules)
    return {name: known_limit(rule) for (scope, name), rule in found.items() if scope == "job"}


def _limits(one: NewRequest | NestedBatch) -> bool:
    if isinstance(one, NestedBatch):
        return any(map(_limits, one.batch))
    return one.limit is not None


@router.post("/v1/batches", status_code=202, responses=BATCH_SENT)
@router.post("/v1/requests:batch", status_code=202, responses=BATCH_SENT)
async def send_batch(*, new: NewRequestBatch, call: SubmitCall) -> Response:
    """Send many requests as one run: one message, and one end, for all of them."""
    known = await _known_limits(call, new.requests)
    asking = BatchOptions(**job_options(new.options()) | new.batch_options(), known=known)
    items = [one.options() for one in new.requests]
    tree = call.app.request_batches.starting(items, asking, {})
    made = [job for part in tree.parts for job in part.jobs]
    if len(made) > MOST:
        raise HttpProblem(422, f"requests: {len(made):,} in all; one call brings {MOST:,} at most")
    call.principal.check_new(tree.run.kind, queue=tree.run.queue, priority=tree.run.priority)
    for job in made:
        check_template(call.principal, job)
    told = {part.run.channel for part in tree.parts} | {job.template.channel for job in made}
    for channel in told:
        await call.principal.check_channel(call.app.client, channel)
    starting = partial(chains.start, *tree, admit=call.app.client.refuse_full)
    return await web_runs.create(call, BATCH, lambda: starting, REQUESTS)


@router.get(
    "/v1/requests/{request_id}", responses=answers(RequestDocument | RequestBatchDocument, 404)
)
async def show(*, request_id: str, call: ViewCall, page: Paging) -> Response:
    """Say how a request, or a batch of them, stands: PENDING, COMPLETE or FAIL (spec C).

    A batch comes with its responses, a page at a time.
    """
    found = await _find(call, request_id)

    async def told() -> dict[str, Any]:
        shown = await whole_document(found, call.app.client, REQUESTS)
        return shown | (await _responses(call, found, page) if isinstance(found, RunHandle) else {})

    return await answer(call, found, told)


async def _responses(call: Call, found: RunHandle, page: PageQuery) -> dict[str, Any]:
    """Read a page of the responses of a batch."""
    filters = {"responses": found.id}
    run_id, _, job_id = (place(page.cursor, filters) or "").partition(" ")
    try:
        after = (checked_id(run_id), checked_id(job_id)) if run_id else None
    except NotFound as error:
        raise HttpProblem(422, NO_CURSOR) from error
    rows, last = await call.run(
        requests.response_page, found.id, after=after, most=page.limit, most_bytes=PAGE_BYTES
    )
    return {
        "responses": [response_document(row, found, call.app.client.codec) for row in rows],
        "next": last and cursor(" ".join(last), filters),
    }


async def _find(call: Call, request_id: str) -> Subject[Any]:
    """Read a request or a batch of them; other jobs and runs are found under their own paths."""
    finders: tuple[Finder[Any], ...] = (call.app.jobs, call.app.runs)
    for finder in finders:
        with suppress(NotFound):
            found: Subject[Any] = await visible(call, finder, request_id)
            if found.record.kind in KINDS:
                return found
    raise NotFound(f"there is no request {request_id}, and no batch of requests")


@pushed.post(
    "/v1/requests/{job_id}/callback/{token}",
    status_code=202,
    responses={202: {"description": "Heard."}, **problems(404, 413, 415, 422)},
    openapi_extra={"requestBody": {"content": {"application/json": {"schema": {}}}}},
)
async def call_back(*, job_id: str, token: str, request: JsonRequest) -> Response:
    """Hear from a remote that was told to call here; the address itself lets it in."""
    app: Engine = request.app.state.engine
    try:
        job = await _awaiting(app, job_id, token)
    except NotFound:
        await request.app.state.throttle.count(request.scope)
        raise
    # Only now: nothing that a stranger sends is read.
    request.app.state.callbacks.take(job.id)
    data = await request.small(CALLBACK_BYTES)
    encoded = None if data is None else app.client.codec.encode(_without_secrets(app, data))
    try:
        await app.client.run_async(
            jobs.signal,
            job.id,
            signal_id=new_id(),
            data=encoded,
            actor="callback",
            most=CALLBACK_SIGNALS,
        )
    except IllegalMove as error:
        raise HttpProblem(429, str(error), headers={"Retry-After": "60"}) from error
    return Response(status_code=202)


def _without_secrets(app: Engine, data: Any) -> Any:
    """Keep secrets out of the store that a remote repeats, where this process knows them."""
    plain = msgspec.json.encode(data)
    hidden = app.requests.secrets.hider.content(plain)
    try:
        return data if hidden == plain else msgspec.json.decode(hidden)
    except msgspec.DecodeError:  # a number; None says only to look again
        return None


async def _awaiting(app: Engine, job_id: str, token: str) -> Job:
    """Find the job that this address was made for; a wrong one learns nothing."""
    unknown = NotFound(f"there is no callback for job {job_id}")
    try:
        job = await app.client.run_async(jobs.get, checked_id(job_id))
    except NotFound:
        raise unknown from None
    if job.kind != KIND or job.payload is None:
        raise unknown
    payload = msgspec.json.encode(app.client.codec.decode(job.payload))
    known = msgspec.json.decode(payload)["request"].get("callback") or ""
    if not known or not secrets.compare_digest(known.encode(), token.encode(errors="replace")):
        raise unknown
    return job
