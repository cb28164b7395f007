"""/v1/queues: the jobs of each by state, and pausing claims from it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from milepost.codec import check_text
from milepost.errors import NotFound
from milepost.records import Queue
from milepost.store import journal, queues
from milepost.store.driver import Steps
from milepost.web.call import Call, OperateCall, ReadCall, json_response
from milepost.web.documents import PageDocument, RequestBody
from milepost.web.paging import LongPaging
from milepost.web.problems import answers, problems
from milepost.web.route import Route
from milepost.web.subjects import At, past

router = APIRouter(route_class=Route, tags=["queues"])


class QueueDocument(BaseModel):
    """A queue: its jobs by state, who paused it if it is paused, and how many may wait."""

    name: str
    counts: dict[str, int]
    paused: bool
    paused_at: datetime | None = None
    paused_by: str | None = None
    reason: str | None = Field(default=None, description="Why it is paused, if that was said.")
    max_waiting: int | None = None
    transport: str = Field(default="store", description="The kind of broker it is on, if any.")


class PauseReason(RequestBody):
    """Why a queue is paused."""

    reason: str | None = Field(default=None, min_length=1, max_length=2000)


class QueueList(PageDocument[QueueDocument]):
    """A page of the queues that hold a job or were ever paused, by name."""


PAUSED = answers(QueueDocument, 404, description="How it stands now.")


async def _visible(call: Call) -> dict[str, Queue]:
    # Its counts and its pause are of every tenant's jobs.
    call.principal.check_unbound("a queue", queues=False)
    found: Sequence[Queue] = await call.app.queues.list_async()
    return {queue.name: queue for queue in found if call.principal.sees_queue(queue.name)}


def _unknown(name: str) -> NotFound:
    return NotFound(f"no job is in a queue {name!r}; GET /v1/queues lists them")


@router.get("/v1/queues", responses=answers(QueueList))
async def listing(*, call: ReadCall, page: LongPaging) -> Response:
    """List queues, with their jobs counted by state."""
    return page.named(await _visible(call))


@router.get("/v1/queues/{name}", responses=answers(QueueDocument, 404))
async def show(*, name: str, call: ReadCall, at: At = None) -> Response:
    """Show one queue; as it stood at a time, its jobs that are still kept are counted."""
    found = (await _visible(call)).get(name)
    if found is None:
        raise _unknown(name)
    if at is not None:
        found = Queue(name, await call.run(journal.queue_at, name, await past(call, at)))
    return json_response(found)


@router.post("/v1/queues/{name}:pause", responses={**PAUSED, **problems(413, 415)})
async def pause(
    *,
    name: str,
    call: OperateCall,
    why: Annotated[PauseReason, Body()] = PauseReason(),  # noqa: B008 - it never changes
) -> Response:
    """Let nobody claim from a queue. Running jobs may end; those submitted wait."""
    return await _pause(call, name, paused=True, reason=why.reason)


@router.post("/v1/queues/{name}:resume", responses=PAUSED)
async def resume(*, name: str, call: OperateCall) -> Response:
    """Let claims from a queue go on."""
    return await _pause(call, name, paused=False)


async def _pause(call: Call, name: str, *, paused: bool, reason: str | None = None) -> Response:
    call.principal.check_unbound("a queue", queues=False)
    if not call.principal.sees_queue(name):
        raise _unknown(name)

    def operation() -> Steps[Queue]:
        said = {"actor": call.principal.actor, "reason": reason}
        yield from queues.pause(check_text(name, what="queue"), paused=paused, **said)
        found = {queue.name: queue for queue in (yield from queues.listing())}
        return found.get(name, Queue(name, {}))

    return await call.once(operation)
