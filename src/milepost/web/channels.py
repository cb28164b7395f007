"""Final messages over HTTP: pulled from a cursor on, and acknowledged."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from milepost.relay.pull import acknowledged, offered
from milepost.store import outbox
from milepost.store.driver import Steps
from milepost.web.auth import Who, require
from milepost.web.body import Route
from milepost.web.engine import Held
from milepost.web.idempotency import Answer, Kept
from milepost.web.limits import PAGE_LONGEST
from milepost.web.paging import Cursor, Limit, cursor, named_page, place
from milepost.web.problems import Problem, problems

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


class ChannelList(BaseModel):
    """A page of the channels, by name."""

    items: list[ChannelDocument]
    next: str | None


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


class Arrived(BaseModel):
    """What has arrived: messages by their ids, or everything up to a cursor."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=PAGE_LONGEST)
    cursor: str | None = Field(default=None, max_length=1000)


class Revived(BaseModel):
    """Which dead messages to try again: those named, or all."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[str] | None = Field(default=None, max_length=PAGE_LONGEST)


class Count(BaseModel):
    """How many messages it was done to."""

    count: int


@router.get("/v1/channels", responses={200: {"model": ChannelList}, **problems()})
async def listing(
    *,
    request: Request,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = PAGE_LONGEST,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """List the channels that were declared or have had a message."""
    who.check_free("the list of channels")
    found = await app.client.run_async(outbox.known)
    names = ChannelDocument.model_fields
    shown = {each.name: {name: getattr(each, name) for name in names} for each in found}
    return named_page(request, shown, limit=limit, given=cursor_)


@router.get("/v1/channels/{name}/messages", responses={200: {"model": EventPage}, **problems(422)})
async def pull(
    *,
    name: str,
    app: Held,
    who: Annotated[Who, require("read")],
    limit: Limit = 100,
    cursor_: Annotated[Cursor, Query(alias="cursor")] = None,
) -> Response:
    """Read the messages that nobody acknowledged, in order, after a cursor or from the start.

    A message comes again until it is acknowledged: tell them apart by their `id`.
    """
    _check(name)
    filters = {"channel": name}
    found = await app.client.run_async(
        offered, name, place(cursor_, filters), limit=limit, **who.filters
    )
    here = cursor(found.cursor, filters)
    # A page may be short because it is large: only an empty one is the last.
    following = here if found.events else None
    return _json({"items": found.events, "next": following, "cursor": here})


ACKNOWLEDGED: dict[int | str, dict[str, Any]] = {200: {"model": Count}, **problems(413, 415, 422)}
ACTED: dict[int | str, dict[str, Any]] = {200: {"model": Count}, **problems(404, 413, 415, 422)}


@router.post("/v1/channels/{name}/messages:ack", responses=ACKNOWLEDGED)
async def ack(
    *,
    name: str,
    who: Annotated[Who, require("operate")],
    once: Kept,
    arrived: Arrived,
) -> Response:
    """Say that messages arrived: those named, or all up to a cursor. Says how many were new."""
    _check(name)
    upto = place(arrived.cursor, {"channel": name})
    return await once(lambda: _acknowledged(name, arrived.ids, upto, who.filters))


def _acknowledged(
    name: str, ids: list[str] | None, upto: str | None, seen: dict[str, Any]
) -> Steps[Answer]:
    return _counted((yield from acknowledged(name, ids, upto, **seen)))


@router.post("/v1/channels/{name}/messages:retry", responses=ACTED)
async def retry(
    *,
    name: str,
    who: Annotated[Who, require("operate")],
    once: Kept,
    revived: Annotated[Revived, Body()] = Revived(),  # noqa: B008 - it never changes
) -> Response:
    """Try dead messages again: those named, or all."""
    _check(name)
    who.check_free("trying again")
    return await once(lambda: _retried(name, revived.ids))


def _retried(name: str, ids: list[str] | None) -> Steps[Answer]:
    return _counted((yield from outbox.retry(name, ids)))


def _counted(ids: list[str]) -> Answer:
    return Answer(200, msgspec.json.encode({"count": len(ids)}))


def _check(name: str) -> None:
    if "\0" in name:
        raise Problem(422, "name: it holds a character that no database stores")


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")
