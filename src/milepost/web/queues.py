"""/v1/queues: what stands in each, and claims that rest."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel

from milepost.errors import NotFound
from milepost.records import Queue
from milepost.web.auth import Who, require
from milepost.web.body import Route
from milepost.web.engine import Engine, Held
from milepost.web.problems import problems

__all__ = ["router"]

router = APIRouter(route_class=Route, tags=["queues"])


class QueueDocument(BaseModel):
    """A queue: its jobs by state, and who paused it if it is paused."""

    name: str
    counts: dict[str, int]
    paused: bool
    paused_at: datetime | None = None
    paused_by: str | None = None


class QueueList(BaseModel):
    """Every queue that holds a job or was ever paused."""

    items: list[QueueDocument]


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


@router.get("/v1/queues", responses=problems())
async def listing(*, app: Held, who: Annotated[Who, require("read")]) -> QueueList:
    """List queues, with their jobs counted by state."""
    return QueueList(items=[_document(queue) for queue in (await _visible(app, who)).values()])


@router.get("/v1/queues/{name}", responses=problems(404, 422))
async def show(*, name: str, app: Held, who: Annotated[Who, require("read")]) -> QueueDocument:
    """Show one queue."""
    return _document(_named(await _visible(app, who), name))


def _named(found: dict[str, Queue], name: str) -> Queue:
    if name not in found:
        raise NotFound(f"no job is in a queue {name!r}; GET /v1/queues lists them")
    return found[name]


ACTED: dict[int | str, dict[str, Any]] = problems(404, 422)


@router.post("/v1/queues/{name}:pause", responses=ACTED)
async def pause(*, name: str, app: Held, who: Annotated[Who, require("operate")]) -> QueueDocument:
    """Let nobody claim from a queue. What runs may end; what is submitted waits."""
    _own(who, name)
    await app.queues.pause_async(name)
    return _document(_named(await _visible(app, who), name))


@router.post("/v1/queues/{name}:resume", responses=ACTED)
async def resume(*, name: str, app: Held, who: Annotated[Who, require("operate")]) -> QueueDocument:
    """Let claims from a queue go on."""
    _own(who, name)
    await app.queues.resume_async(name)
    return _document((await _visible(app, who)).get(name, Queue(name, {})))


def _own(who: Who, name: str) -> None:
    if who.tenant is not None:
        who.check_free("a queue")
    if who.queues is not None and name not in who.queues:
        raise NotFound(f"no job is in a queue {name!r}; GET /v1/queues lists them")
