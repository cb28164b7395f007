"""Final messages over HTTP: pulled from a cursor on, and acknowledged."""

from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from milepost.relay.pull import acknowledge, offer_page
from milepost.store import outbox
from milepost.store.driver import Steps
from milepost.web.call import OperateCall, ReadCall, json_response
from milepost.web.documents import PageDocument, RequestBody, document
from milepost.web.paging import PAGE_LONGEST, LongPaging, Paging, cursor, place
from milepost.web.problems import HttpProblem, answers
from milepost.web.route import Route

router = APIRouter(route_class=Route, tags=["channels"])


class ChannelDocument(BaseModel):
    """A channel as it stands."""

    name: str
    kind: str = Field(examples=["pull", "webhook"])
    target: str | None = None
    tenant: str | None = Field(
        default=None, description="Whose it is; `*` for every tenant's, null if nobody declared it."
    )
    state: str = Field(examples=["active", "stopped", "vanished"])
    waiting: int
    dead: int
    reason: str | None = None


class ChannelList(PageDocument[ChannelDocument]):
    """A page of the channels, by name."""


class EventDocument(BaseModel):
    """A CloudEvent 1.0: how a job or a run ended."""

    model_config = ConfigDict(extra="allow")

    specversion: str = Field(examples=["1.0"])
    id: str
    source: str
    type: str = Field(examples=["milepost.job.succeeded"])
    subject: str = Field(description="The id of the job or run.")
    time: str
    data: dict[str, Any]


class EventPage(BaseModel):
    """Messages that nobody acknowledged, in order."""

    items: list[EventDocument]
    next: str | None = Field(description="The cursor of the next page; null if there is none now.")
    cursor: str = Field(
        description="Where this page ends: read on from it, or acknowledge up to it."
    )


class Acknowledgement(RequestBody):
    """Messages that arrived: by their ids, or all up to a cursor."""

    ids: list[str] | None = Field(default=None, max_length=PAGE_LONGEST)
    cursor: str | None = Field(default=None, max_length=1000)


class MessageRetry(RequestBody):
    """Which dead messages to try again: those named, or all."""

    ids: list[str] | None = Field(default=None, max_length=PAGE_LONGEST)


class MessageRedelivery(RequestBody):
    """Which messages to deliver once more."""

    ids: list[str] = Field(min_length=1, max_length=PAGE_LONGEST)


class MessageCount(BaseModel):
    """How many messages it was done to."""

    count: int


@router.get("/v1/channels", responses=answers(ChannelList))
async def listing(*, call: ReadCall, page: LongPaging) -> Response:
    """List the channels that were declared or have had a message."""
    call.principal.check_unbound("the list of channels")
    found = await call.run(outbox.known)
    return page.named({each.name: document(ChannelDocument, each) for each in found})


@router.get("/v1/channels/{name}/messages", responses=answers(EventPage))
async def pull(*, name: str, call: ReadCall, page: Paging) -> Response:
    """Read the messages that nobody acknowledged, in order, after a cursor or from the start.

    A message comes again until it is acknowledged: tell them apart by their `id`.
    """
    filters = _filters(name)
    after = place(page.cursor, filters)
    found = await call.run(offer_page, name, after, limit=page.limit, **call.principal.filters)
    here = cursor(found.cursor, filters)
    # A page may be short because it is large: only an empty one is the last.
    following = here if found.events else None
    return json_response({"items": found.events, "next": following, "cursor": here})


def _filters(name: str) -> dict[str, str]:
    """Bind cursors to a channel."""
    if "\0" in name:
        raise HttpProblem(422, "name: it holds a character that no database stores")
    return {"channel": name}


@router.post("/v1/channels/{name}/messages:ack", responses=answers(MessageCount, 413, 415))
async def ack(*, name: str, call: OperateCall, arrived: Acknowledgement) -> Response:
    """Say that messages arrived: those named, or all up to a cursor. Says how many were new."""
    upto = place(arrived.cursor, _filters(name))
    bounds = call.principal.filters
    return await call.once(lambda: _counted(acknowledge(name, arrived.ids, upto, **bounds)))


@router.post("/v1/channels/{name}/messages:retry", responses=answers(MessageCount, 404, 413, 415))
async def retry(
    *,
    name: str,
    call: OperateCall,
    revived: Annotated[MessageRetry, Body()] = MessageRetry(),  # noqa: B008 - it never changes
) -> Response:
    """Try dead messages again: those named, or all."""
    _filters(name)
    call.principal.check_unbound("trying again")
    return await call.once(lambda: _counted(outbox.retry(name, revived.ids)))


@router.post(
    "/v1/channels/{name}/messages:redeliver", responses=answers(MessageCount, 404, 413, 415)
)
async def redeliver(*, name: str, call: OperateCall, again: MessageRedelivery) -> Response:
    """Deliver messages once more that arrived, or are dead: the same ones, under their ids."""
    _filters(name)
    call.principal.check_unbound("delivering again")
    return await call.once(lambda: _counted(outbox.redeliver(name, again.ids)))


def _counted(acting: Steps[list[str]]) -> Steps[dict[str, int]]:
    return {"count": len((yield from acting))}
