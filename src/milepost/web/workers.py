"""/v1/workers: who is alive, and what each of them runs."""

from datetime import datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel

from milepost.records import Worker
from milepost.store import workers
from milepost.web.auth import Who, require
from milepost.web.body import Route
from milepost.web.engine import Held
from milepost.web.paging import Limit
from milepost.web.problems import problems

router = APIRouter(route_class=Route, tags=["workers"])


class WorkerDocument(BaseModel):
    """A worker as its row shows it."""

    id: str
    state: str
    live: bool
    host: str | None = None
    pid: int | None = None
    queues: list[str] | None = None
    kinds: list[str] | None = None
    slots: dict[str, int]
    started_at: datetime
    heartbeat_at: datetime
    lease_until: datetime


class WorkerList(BaseModel):
    """The workers, newest first."""

    items: list[WorkerDocument]


@router.get("/v1/workers", responses=problems(422))
async def listing(
    *, app: Held, who: Annotated[Who, require("read")], limit: Limit = 100
) -> WorkerList:
    """List the workers, newest first."""
    who.check_free("the list of workers")
    found = await app.client.run_async(workers.listing, most=limit)
    return WorkerList(items=[_document(worker) for worker in found])


def _document(worker: Worker) -> WorkerDocument:
    return WorkerDocument(
        id=worker.id,
        state=worker.state,
        # Its row says what it last told; its lease says whether it still lives.
        live=worker.state != "STOPPED" and worker.lease_seconds > 0,
        host=worker.host,
        pid=worker.pid,
        queues=msgspec.json.decode(worker.queues) if worker.queues else None,
        kinds=msgspec.json.decode(worker.kinds) if worker.kinds else None,
        slots=msgspec.json.decode(worker.slots) if worker.slots else {},
        started_at=worker.started_at,
        heartbeat_at=worker.heartbeat_at,
        lease_until=worker.lease_until,
    )
