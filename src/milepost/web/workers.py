"""/v1/workers: which are alive, and the queues and kinds that each serves."""

from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from milepost.records import Worker
from milepost.store import workers
from milepost.web.call import ReadCall, json_response
from milepost.web.documents import ListDocument, document
from milepost.web.paging import Limit
from milepost.web.problems import answers
from milepost.web.route import Route

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


class WorkerList(ListDocument[WorkerDocument]):
    """The workers, newest first, those that have stopped behind the others."""


@router.get("/v1/workers", responses=answers(WorkerList))
async def listing(*, call: ReadCall, limit: Limit = 100) -> Response:
    """List the workers, newest first, those that have stopped behind the others."""
    call.principal.check_unbound("the list of workers")
    found = await call.run(workers.listing, most=limit)
    return json_response({"items": [_document(worker) for worker in found]})


def _document(worker: Worker) -> dict[str, Any]:
    return document(
        WorkerDocument,
        worker,
        # Its row has its last report; its lease says whether it still lives.
        live=worker.state != "STOPPED" and worker.lease_seconds > 0,
        queues=msgspec.json.decode(worker.queues or "null"),
        kinds=msgspec.json.decode(worker.kinds or "null"),
        slots=msgspec.json.decode(worker.slots or "{}"),
    )
