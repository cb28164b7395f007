"""/v1/batches: those declared, and starting runs of them."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from milepost.batch.declaration import Batch
from milepost.errors import NotFound
from milepost.options import DEFAULTS
from milepost.web.call import Call, ReadCall, SubmitCall, json_response
from milepost.web.documents import ListDocument, RequestBody, RunPage
from milepost.web.jobs import bounded
from milepost.web.paging import Paging
from milepost.web.problems import answers
from milepost.web.route import Route
from milepost.web.runs import RUN_ACCEPTED, create, list_runs

router = APIRouter(route_class=Route, tags=["batches"])


class StartOptions(RequestBody):
    """Options of a start, beyond its parameters."""

    reuse: bool = Field(
        default=False, description="Take the live run with the same parameters, if there is one."
    )
    deadline: float | None = Field(default=None, gt=0)
    priority: int = bounded("priority", DEFAULTS["priority"])
    tags: dict[str, str] | None = None
    channel: str | None = bounded("channel")


class StartBatch(RequestBody):
    """A run to be started."""

    params: Any = None
    options: StartOptions = StartOptions()


class BatchDocument(BaseModel):
    """A declared batch."""

    name: str
    version: int
    steps: list[str]
    queues: list[str]


class BatchList(ListDocument[BatchDocument]):
    """The declared batches, newest versions only."""


def _newest(call: Call) -> dict[str, Batch]:
    return {batch.name: batch for batch in call.app.batches}  # the newest version comes last


def _declared(call: Call, name: str) -> Batch:
    found = _newest(call).get(name)
    if found is None:
        raise NotFound(f"no batch is called {name!r}; GET /v1/batches lists them")
    return found


def _document(batch: Batch) -> dict[str, Any]:
    return {
        "name": batch.name,
        "version": batch.version,
        "steps": [step.name for step in batch.steps],
        "queues": _queues(batch),
    }


def _queues(batch: Batch) -> list[str]:
    return sorted({step.queue for step in batch.plan()})


@router.get("/v1/batches", responses=answers(BatchList))
async def listing(*, call: ReadCall) -> Response:
    """List the declared batches."""
    found = [_document(batch) for batch in _newest(call).values() if batch.steps]
    sees = call.principal.sees_queue
    return json_response({"items": [one for one in found if all(map(sees, one["queues"]))]})


@router.post("/v1/batches/{name}/runs", status_code=202, responses=RUN_ACCEPTED)
async def start(*, name: str, new: StartBatch, call: SubmitCall) -> Response:
    """Start a run of the newest version of a batch; it is durable once this is answered."""
    batch = _declared(call, name)
    for queue in _queues(batch):
        call.principal.check_new(batch.name, queue=queue, priority=new.options.priority)
    await call.principal.check_channel(call.app.client, new.options.channel)
    make = partial(batch.starting, new.params, **new.options.model_dump())
    return await create(call, name, make)


@router.get("/v1/batches/{name}/runs", responses=answers(RunPage, 404))
async def runs_of(
    *, name: str, call: ReadCall, page: Paging, state: Annotated[str | None, Query()] = None
) -> Response:
    """List the runs of a batch, newest first."""
    return await list_runs(call, page, state=state, batch=_declared(call, name).name)
