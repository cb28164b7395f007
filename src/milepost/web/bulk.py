"""/v1/jobs:bulk: act on many jobs at once, by their ids or a filter, and count them."""

from typing import Any, Literal

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from milepost import filters
from milepost.bulk import KIND, RATE_MOST
from milepost.client import caller
from milepost.lifecycle import JOB, JobState
from milepost.records import Job, Listed
from milepost.store import jobs, reruns
from milepost.store.driver import Steps
from milepost.web.access import Principal
from milepost.web.call import Call, OperateCall
from milepost.web.documents import JobDocument, Receipt, RequestBody
from milepost.web.jobs import create, find
from milepost.web.paging import PageQuery, cursor
from milepost.web.problems import HttpProblem, answers
from milepost.web.route import Route
from milepost.web.subjects import accepts, id_within

router = APIRouter(route_class=Route, tags=["jobs"])
PORTION = 25
MOST = 500
"""How many jobs one call acts on: they are one transaction."""


class JobFilter(RequestBody):
    """Which jobs; at least one of these is given."""

    state: str | None = Field(default=None, description="A public word, or the engine's own.")
    kind: str | None = Field(default=None, min_length=1)
    queue: str | None = Field(default=None, min_length=1)
    run: str | None = Field(default=None, min_length=1)


class BulkAction(RequestBody):
    """An action, and its jobs: by `ids`, by a `filter`, or all that a `where` finds."""

    action: Literal["cancel", "rerun", "erase"]
    ids: list[str] | None = Field(default=None, min_length=1, max_length=MOST)
    filter: JobFilter | None = None
    where: str | None = Field(
        default=None,
        min_length=1,
        max_length=filters.LONGEST,
        description="All jobs that fit; a job of the engine's own acts on them, some at a time.",
        examples=["state:failed error:Timeout age:<1d"],
    )
    cursor: str | None = Field(
        default=None, max_length=1000, description="`next` of the answer before."
    )
    limit: int = Field(default=MOST, ge=1, le=MOST)
    reason: str = Field(default="cancelled", min_length=1, max_length=2000)
    fresh: bool = Field(
        default=False, description="Run again from the start, with idempotency keys of their own."
    )

    rate: float | None = Field(
        default=None,
        gt=0,
        le=RATE_MOST,
        description="Of a `where`: so many jobs a second at most.",
        examples=[10],
    )

    @model_validator(mode="after")
    def _one_way(self) -> "BulkAction":
        if sum(given is not None for given in (self.ids, self.filter, self.where)) != 1:
            raise ValueError("give either ids, a filter or a where")
        if self.action == "erase" and self.where is None:
            raise ValueError("erase takes a where; POST /v1/jobs/{id}:erase is for one job")
        if self.rate is not None and self.where is None:
            raise ValueError("a rate is for a where: ids and a filter are one transaction")
        if self.filter is not None and not self.filters:
            raise ValueError("a filter says at least one of state, kind, queue, run")
        return self

    @property
    def filters(self) -> dict[str, Any]:
        """The conditions of the filter that were given."""
        return {} if self.filter is None else self.filter.model_dump(exclude_none=True)


class BulkDocument(BaseModel):
    """The jobs that were found and acted on, counted."""

    matched: int = Field(description="Jobs that were found, within the caller's bounds.")
    count: int = Field(description="Jobs that were acted on.")
    skipped: int = Field(description="Found, but not to be acted on as they stand.")
    ids: list[str] = Field(description="Those cancelled, or asked to stop; or the new jobs.")
    next: str | None = Field(description="Where to go on; null once the filter is through.")


BULK = {**answers(BulkDocument, 409, 413, 415), **accepts(Receipt, BulkDocument | JobDocument)}


@router.post("/v1/jobs:bulk", responses=BULK)
async def bulk(*, action: BulkAction, call: OperateCall) -> Response:
    """Cancel many jobs, or run many again: those named, or those that a filter finds.

    It is one transaction: all of what is counted is done, or nothing is. A foreign id is not there.
    A filter finds no job that was run again before: the newest of a chain speaks for it.
    With `where` it is a job of its own, which is accepted: cancel that to stop it. Only a token
    with the scope `admin` may erase.
    """
    if action.where is not None:
        return await _started(action, call)
    page = PageQuery(call.request, action.limit, action.cursor)
    trace = caller().trace
    window = page.before(action.filters)
    return await call.once(lambda: acted(action, call.principal, window, trace))


async def _started(action: BulkAction, call: Call) -> Response:
    """Create the job that acts on all that a filter finds, within the caller's bounds."""
    principal = call.principal
    if action.action == "erase" and not principal.may("admin"):
        raise HttpProblem(403, "erasing needs a token with the scope admin")
    if action.action == "rerun":
        principal.check_any_rerun()
    order = await call.app.bulk.order_async(
        action.action,
        filters.parse(action.where or ""),
        within=filters.where(tenant=principal.tenant, queue=principal.queues),
        reason=action.reason,
        fresh=action.fresh,
        rate=action.rate,
    )
    return await create(call, KIND, lambda: call.app.bulk.new(order))


def acted(
    bulk: BulkAction, principal: Principal, window: dict[str, Any], trace: str | None
) -> Steps[dict[str, Any]]:
    """Cancel jobs or run them again, within the caller's bounds, and say to which it was done."""
    cancels, actor = bulk.action == "cancel", principal.actor
    if bulk.ids is not None:
        ids = sorted({id_within(one, what="job") for one in bulk.ids})
        found = yield from named(ids, principal)
    else:
        # The newest of a chain speaks for it.
        filters = bulk.filters if cancels else {**bulk.filters, "superseded": False}
        found = yield from find(principal, filters, **window)
    if cancels:
        done = yield from _cancelled(found, bulk.reason, actor)
    else:
        for job in found:
            principal.check_rerun(job)
        ids = [job.id for job in found]
        done = yield from reruns.rerun_many(ids, fresh=bulk.fresh, actor=actor, trace=trace)
    return {
        "matched": len(found),
        "count": len(done),
        "skipped": len(found) - len(done),
        "ids": done,
        "next": cursor(found[-1].id, bulk.filters) if found.more else None,
    }


def named(ids: list[str], principal: Principal) -> Steps[Listed[Job]]:
    """Read those that the caller may see, some at a time, and keep no arguments or results."""
    found = Listed[Job]()
    for at in range(0, len(ids), PORTION):
        whole = (yield from jobs.find(ids[at : at + PORTION])).values()
        mine = (job for job in whole if principal.sees(job))
        found += [msgspec.structs.replace(job, payload=None, result=None) for job in mine]
    return found


def _cancelled(found: list[Job], reason: str, actor: str) -> Steps[list[str]]:
    done = []
    for job in sorted(found, key=lambda job: job.id):  # in one order: rivals wait, and do not cross
        if job.state in JOB.terminal:
            continue
        state, is_stopping = yield from jobs.cancel(job.id, reason=reason, actor=actor)
        if is_stopping or state == JobState.CANCELLED:
            done.append(job.id)
    return done
