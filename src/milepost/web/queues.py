"""/v1/queues: what stands in each, and claims that rest."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from milepost.codec import check_text
from milepost.errors import NotFound
from milepost.records import Queue
from milepost.store import workers
from milepost.store.driver import Steps
from milepost.web.auth import Who, require
from milepost.web.body import Route
from milepost.web.engine import Engine, Held
from milepost.web.idempotency import Answer, Kept
from milepost.web.limits import PAGE_LONGEST
from milepost.web.paging import Cursor, Limit, named_page
from milepost.web.problems import problems

router = APIRouter(route_class=Route, tags=["queues"])


class QueueDocument(BaseModel):
    """A queue: its jobs by state, and who paused it if it is paused."""

    name: str
    counts: dict[str, int]
    paused: bool
    paused_at: datetime | None = None
    paused_by: str | None = None


class QueueList(BaseModel):
    """A page of the queues that hold a job or were ever paused, by name."""

    items: list[QueueDocument]
    next: str | None


async def _visible(app: Engine, who: Who) -> dict[str, Queue]:
    # Its counts and its rest are of every tenant's jobs.
    if who.tenant is not None:
        who.check_free("a queue")
    found = await app.queues.list_async()
    return {q.name: q for q in found if who.queues is None or q.name in who.queues}


def _document(queue: Queue) -> QueueDocument:
    return QueueDocument(
        name=queue.name,
        counts=dict(queue.counts),
        paused=queue.paused,
        paused_at=queue.paused_at,
        paused_by=queue.paused_by,
    )


@router.get("/v1/queues", responses={200: {"model": QueueList}, **problems()})
async def listing(
    *,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = PAGE_LONGEST,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """List queues, with their jobs counted by state."""
    found = await _visible(app, who)
    shown = {name: _document(queue).model_dump() for name, queue in found.items()}
    return named_page(request, shown, limit=limit, given=cursor_)


@router.get("/v1/queues/{name}", responses=problems(404, 422))
async def show(*, name: str, app: Held, who: Annotated[Who, require("read")]) -> QueueDocument:
    """Show one queue."""
    return _document(_named(await _visible(app, who), name))


def _named(found: dict[str, Queue], name: str) -> Queue:
    if name not in found:
        raise NotFound(f"no job is in a queue {name!r}; GET /v1/queues lists them")
    return found[name]


ACTED: dict[int | str, dict[str, Any]] = {
    200: {"model": QueueDocument, "description": "How it stands now."},
    **problems(404, 422),
}


@router.post("/v1/queues/{name}:pause", responses=ACTED)
async def pause(*, name: str, who: Annotated[Who, require("operate")], once: Kept) -> Response:
    """Let nobody claim from a queue. What runs may end; what is submitted waits."""
    _own(who, name)
    return await once(lambda: _rested(name, who, paused=True))


@router.post("/v1/queues/{name}:resume", responses=ACTED)
async def resume(*, name: str, who: Annotated[Who, require("operate")], once: Kept) -> Response:
    """Let claims from a queue go on."""
    _own(who, name)
    return await once(lambda: _rested(name, who, paused=False))


def _rested(name: str, who: Who, *, paused: bool) -> Steps[Answer]:
    yield from workers.pause(check_text(name, what="queue"), paused=paused, actor=who.actor)
    found = {queue.name: queue for queue in (yield from workers.queue_listing())}
    document = _document(found.get(name, Queue(name, {})))
    return Answer(200, document.model_dump_json().encode())


def _own(who: Who, name: str) -> None:
    if who.tenant is not None:
        who.check_free("a queue")
    if who.queues is not None and name not in who.queues:
        raise NotFound(f"no job is in a queue {name!r}; GET /v1/queues lists them")
