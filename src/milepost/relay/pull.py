"""Channels as people and receivers see them: what waits, what is dead, and who has what."""

from collections.abc import Sequence
from typing import Any

import msgspec

from milepost.client import Client, caller
from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.relay.message import MOST_BYTES, compose
from milepost.store import inbox, outbox
from milepost.store.driver import Steps
from milepost.store.inbox import Refused
from milepost.store.outbox import Channel, Message

STATES = ("waiting", "delivered", "dead")
PAGE_MOST = 1_000


class Page(msgspec.Struct, frozen=True):
    """Events that nobody acknowledged yet, as JSON, and the cursor that stands after them."""

    events: tuple[msgspec.Raw, ...]
    cursor: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The events as Python values."""
        return [msgspec.json.decode(event) for event in self.events]


class Channels:
    """Pulls messages, acknowledges them, and shows what became of others."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> Sequence[Channel]:
        """Return every channel that was declared or has had a message."""
        return self._client.run(outbox.known)

    async def list_async(self) -> Sequence[Channel]:
        """Return every channel that was declared or has had a message."""
        return await self._client.run_async(outbox.known)

    def pull(self, name: str, cursor: str | None = None, *, limit: int = 100) -> Page:
        """Read what nobody acknowledged, after a cursor or from the start, in order.

        A message comes again until it is acknowledged, however often it was read.
        """
        return self._client.run(offered, _checked(name), cursor, limit=limit)

    async def pull_async(self, name: str, cursor: str | None = None, *, limit: int = 100) -> Page:
        """Read what nobody acknowledged, after a cursor or from the start, in order."""
        return await self._client.run_async(offered, _checked(name), cursor, limit=limit)

    def ack(self, name: str, ids: Sequence[str] | None = None, *, cursor: str | None = None) -> int:
        """Say that these arrived, or all up to a cursor; answer with how many were new."""
        return len(self._client.run(acknowledged, _checked(name), ids, cursor))

    async def ack_async(
        self, name: str, ids: Sequence[str] | None = None, *, cursor: str | None = None
    ) -> int:
        """Say that these arrived, or all up to a cursor; answer with how many were new."""
        return len(await self._client.run_async(acknowledged, _checked(name), ids, cursor))

    def messages(
        self,
        name: str,
        *,
        state: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> Sequence[Message]:
        """Return a page of messages, newest first: waiting, delivered, dead, or all."""
        where = _filter(state, limit, before)
        return self._client.run(outbox.listing, _checked(name), **where)

    async def messages_async(
        self,
        name: str,
        *,
        state: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> Sequence[Message]:
        """Return a page of messages, newest first: waiting, delivered, dead, or all."""
        where = _filter(state, limit, before)
        return await self._client.run_async(outbox.listing, _checked(name), **where)

    def event(self, message_id: str) -> dict[str, Any]:
        """Return what a message says, or raise `NotFound`."""
        return self._client.run(_event, message_id)

    async def event_async(self, message_id: str) -> dict[str, Any]:
        """Return what a message says, or raise `NotFound`."""
        return await self._client.run_async(_event, message_id)

    def retry(self, name: str, ids: Sequence[str] | None = None) -> int:
        """Try dead messages again, those named or all; answer with how many there were."""
        return len(self._client.run(outbox.retry, _checked(name), _named(ids)))

    async def retry_async(self, name: str, ids: Sequence[str] | None = None) -> int:
        """Try dead messages again, those named or all; answer with how many there were."""
        return len(await self._client.run_async(outbox.retry, _checked(name), _named(ids)))

    def stop(self, name: str, reason: str = "stopped") -> bool:
        """Let nothing leave; messages wait. False when it was stopped already."""
        return self._client.run(outbox.stop, _checked(name), reason=reason, actor=caller().actor)

    async def stop_async(self, name: str, reason: str = "stopped") -> bool:
        """Let nothing leave; messages wait. False when it was stopped already."""
        return await self._client.run_async(
            outbox.stop, _checked(name), reason=reason, actor=caller().actor
        )

    def start(self, name: str) -> bool:
        """Let messages leave again. False when it was not stopped."""
        return self._client.run(outbox.start, _checked(name))

    async def start_async(self, name: str) -> bool:
        """Let messages leave again. False when it was not stopped."""
        return await self._client.run_async(outbox.start, _checked(name))

    def refused(self, name: str | None = None, *, limit: int = 100) -> Sequence[Refused]:
        """Return what came in and could not become a job, the newest first."""
        _check_page(limit)
        return self._client.run(inbox.refused, name, most=limit)

    async def refused_async(
        self, name: str | None = None, *, limit: int = 100
    ) -> Sequence[Refused]:
        """Return what came in and could not become a job, the newest first."""
        _check_page(limit)
        return await self._client.run_async(inbox.refused, name, most=limit)


def offered(
    name: str,
    cursor: str | None,
    *,
    limit: int,
    tenant: str | None = None,
    queues: str | None = None,
) -> Steps[Page]:
    """Read the events after a cursor, as many as fit a page in number and in size (H-116)."""
    _check_page(limit)
    after = read_cursor(cursor)
    events: list[msgspec.Raw] = []
    room = MOST_BYTES
    seen = {"tenant": tenant, "queues": queues}
    for message in (yield from outbox.offer(name, after=after, most=limit, **seen)):
        event = yield from compose(message)
        room -= len(event.body)
        # One that is as large as a page comes alone; it must come all the same.
        if events and room < 0:
            break
        events.append(msgspec.Raw(event.body))
        after = message.place or after
    return Page(tuple(events), str(after))


def acknowledged(
    name: str,
    ids: Sequence[str] | None,
    cursor: str | None,
    *,
    tenant: str | None = None,
    queues: str | None = None,
) -> Steps[list[str]]:
    """Acknowledge messages by their ids, or all up to a cursor."""
    if (ids is None) == (cursor is None):
        raise Invalid("acknowledge ids, or everything up to a cursor: give one of the two")
    seen = {"tenant": tenant, "queues": queues}
    if ids is not None:
        return (yield from outbox.acknowledge(name, _named(ids) or [], **seen))
    return (yield from outbox.acknowledge_up_to(name, read_cursor(cursor), **seen))


def read_cursor(cursor: str | None) -> int:
    """Read a cursor; None stands before everything."""
    if cursor is None:
        return 0
    if not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:  # noqa: PLR2004
        raise Invalid(f"cursor={cursor!r} is none that a page of messages came with")
    return int(cursor)


def _event(message_id: str) -> Steps[dict[str, Any]]:
    event = yield from compose((yield from outbox.get(message_id)))
    document: dict[str, Any] = msgspec.json.decode(event.body)
    return document


def _check_page(limit: int) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= PAGE_MOST:
        raise Invalid(f"limit={limit!r} must be a whole number between 1 and {PAGE_MOST:,}")


def _checked(name: str) -> str:
    return check_text(name, what="channel")


def _named(ids: Sequence[str] | None) -> Sequence[str] | None:
    if isinstance(ids, str):
        raise Invalid("ids is a list of messages' ids")
    return ids


def _filter(state: str | None, limit: int, before: int | None) -> dict[str, Any]:
    _check_page(limit)
    if state is not None and state not in STATES:
        raise Invalid(f"state={state!r}: expected one of {', '.join(STATES)}")
    return {"state": state, "most": limit, "before": before}
