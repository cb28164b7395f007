"""/v1/batches: what is declared, and starting runs of it."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from milepost.batch.start import Batch
from milepost.errors import NotFound
from milepost.options import DEFAULTS
from milepost.web.auth import Who, check_channel, require
from milepost.web.body import Route
from milepost.web.engine import Engine, Held
from milepost.web.jobs import bounded
from milepost.web.paging import Cursor, Limit
from milepost.web.problems import problems
from milepost.web.runs import RUN_ACCEPTED, Accepted, RunPage, pages

router = APIRouter(route_class=Route, tags=["batches"])


class StartOptions(BaseModel):
    """What a start asks for beyond its parameters."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reuse: bool = Field(
        default=False, description="Take the live run with the same parameters, if there is one."
    )
    deadline: float | None = Field(default=None, gt=0)
    priority: int = bounded("priority", DEFAULTS["priority"])
    tags: dict[str, str] | None = None
    channel: str | None = bounded("channel")


class Start(BaseModel):
    """A run to be started."""

    model_config = ConfigDict(extra="forbid", strict=True)

    params: Any = None
    options: StartOptions = StartOptions()


class BatchDocument(BaseModel):
    """A declared batch."""

    name: str
    version: int
    steps: list[str]
    queues: list[str]


class Batches(BaseModel):
    """The declared batches, newest versions only."""

    items: list[BatchDocument]


def _newest(app: Engine) -> dict[str, Batch]:
    return {batch.name: batch for batch in app.batches}  # the newest version comes last


def _queues(batch: Batch) -> list[str]:
    return sorted({step.queue for step in batch.plan()})


@router.get("/v1/batches", responses=problems())
async def listing(*, app: Held, who: Annotated[Who, require("read")]) -> Batches:
    """List the declared batches."""
    found = [batch for batch in _newest(app).values() if batch.steps]
    return Batches(
        items=[
            BatchDocument(
                name=batch.name,
                version=batch.version,
                steps=[step.name for step in batch.steps],
                queues=_queues(batch),
            )
            for batch in found
            if who.queues is None or set(_queues(batch)) <= set(who.queues)
        ]
    )


def _declared(app: Engine, name: str) -> Batch:
    found = _newest(app)
    if name not in found:
        raise NotFound(f"no batch is called {name!r}; GET /v1/batches lists them")
    return found[name]


@router.post("/v1/batches/{name}/runs", status_code=202, responses=RUN_ACCEPTED)
async def start(
    *,
    name: str,
    new: Start,
    app: Held,
    who: Annotated[Who, require("submit")],
    accepted: Accepted,
) -> Response:
    """Start a run of the newest version of a batch; it is durable once this is answered."""
    batch = _declared(app, name)
    for queue in _queues(batch):
        who.check_new(batch.name, queue=queue, priority=new.options.priority)
    await check_channel(app.client, who, new.options.channel)
    starting = batch.starting(new.params, **new.options.model_dump())
    return await accepted(starting)


@router.get("/v1/batches/{name}/runs", responses={200: {"model": RunPage}, **problems(404, 422)})
async def runs_of(
    *,
    name: str,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    state: Annotated[str | None, Query()] = None,
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """List the runs of a batch, newest first."""
    batch = _declared(app, name).name
    return await pages(request, app, who, state=state, batch=batch, limit=limit, given=cursor_)
