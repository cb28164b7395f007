"""Channels as operators and receivers see them: waiting, delivered and dead messages."""

from collections.abc import Sequence
from typing import Any

import msgspec

from milepost.client import Client, caller
from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.faces import Flow, faces
from milepost.relay.message import MOST_BYTES, compose
from milepost.store import inbox, outbox
from milepost.store.driver import Steps
from milepost.store.inbox import RefusedMessage
from milepost.store.outbox import Channel, Message
from milepost.subjects import check_page

STATES = ("waiting", "delivered", "dead")
PAGE_MOST = 1_000


class MessagePage(msgspec.Struct, frozen=True):
    """Events that nobody acknowledged yet, as JSON, and the cursor that stands after them."""

    events: tuple[msgspec.Raw, ...]
    cursor: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The events as Python values."""
        return [msgspec.json.decode(event) for event in self.events]


class Channels:
    """Pulls messages, acknowledges them, and shows how others ended."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _list(self) -> Flow[Sequence[Channel]]:
        """Return every channel that was declared or has had a message."""
        return self._client.flow(outbox.known)

    list, list_async = faces(_list)

    def _pull(self, name: str, cursor: str | None = None, *, limit: int = 100) -> Flow[MessagePage]:
        """Read the unacknowledged messages, after a cursor or from the start, in order.

        A message comes again until it is acknowledged, however often it was read.
        """
        return self._client.flow(offer_page, _check_name(name), cursor, limit=limit)

    pull, pull_async = faces(_pull)

    def _ack(
        self, name: str, ids: Sequence[str] | None = None, *, cursor: str | None = None
    ) -> Flow[int]:
        """Say that these arrived, or all up to a cursor; answer with how many were new."""
        return len((yield from self._client.flow(acknowledge, _check_name(name), ids, cursor)))

    ack, ack_async = faces(_ack)

    def _messages(
        self,
        name: str,
        *,
        state: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> Flow[Sequence[Message]]:
        """Return a page of messages, newest first: waiting, delivered, dead, or all."""
        check_page(limit, most=PAGE_MOST)
        if state is not None and state not in STATES:
            raise Invalid(f"state={state!r}: expected one of {', '.join(STATES)}")
        return self._client.flow(
            outbox.listing, _check_name(name), state=state, most=limit, before=before
        )

    messages, messages_async = faces(_messages)

    def _event(self, message_id: str) -> Flow[dict[str, Any]]:
        """Return the event of a message, or raise `NotFound`."""
        return self._client.flow(_document, message_id)

    event, event_async = faces(_event)

    def _retry(self, name: str, ids: Sequence[str] | None = None) -> Flow[int]:
        """Try dead messages again, those named or all; answer with how many there were."""
        found = yield from self._client.flow(outbox.retry, _check_name(name), _check_ids(ids))
        return len(found)

    retry, retry_async = faces(_retry)

    def _redeliver(self, name: str, ids: Sequence[str]) -> Flow[int]:
        """Deliver messages once more that arrived, or are dead; answer with how many there were."""
        named = _check_ids(ids) or []
        found = yield from self._client.flow(outbox.redeliver, _check_name(name), named)
        return len(found)

    redeliver, redeliver_async = faces(_redeliver)

    def _stop(self, name: str, reason: str = "stopped") -> Flow[bool]:
        """Let nothing leave; messages wait. False when it was stopped already."""
        actor = caller().actor
        return self._client.flow(outbox.stop, _check_name(name), reason=reason, actor=actor)

    stop, stop_async = faces(_stop)

    def _start(self, name: str) -> Flow[bool]:
        """Let messages leave again. False when it was not stopped."""
        return self._client.flow(outbox.start, _check_name(name))

    start, start_async = faces(_start)

    def _refused(
        self, name: str | None = None, *, limit: int = 100
    ) -> Flow[Sequence[RefusedMessage]]:
        """Return messages that came in and could not become a job, the newest first."""
        check_page(limit, most=PAGE_MOST)
        return self._client.flow(inbox.refused, name, most=limit)

    refused, refused_async = faces(_refused)


def offer_page(
    name: str, cursor: str | None, *, limit: int, **seen: str | None
) -> Steps[MessagePage]:
    """Read the events after a cursor, as many as fit a page in number and in size (H-116)."""
    check_page(limit, most=PAGE_MOST)
    after = read_cursor(cursor)
    events: list[msgspec.Raw] = []
    room = MOST_BYTES
    for message in (yield from outbox.offer(name, after=after, most=limit, **seen)):
        event = yield from compose(message)
        room -= len(event.body)
        # One that is as large as a page comes alone; it must come all the same.
        if events and room < 0:
            break
        events.append(msgspec.Raw(event.body))
        after = message.place or after
    return MessagePage(tuple(events), str(after))


def acknowledge(
    name: str, ids: Sequence[str] | None, cursor: str | None, **seen: str | None
) -> Steps[list[str]]:
    """Acknowledge messages by their ids, or all up to a cursor."""
    if (ids is None) == (cursor is None):
        raise Invalid("acknowledge ids, or everything up to a cursor: give one of the two")
    place = read_cursor(cursor)
    return (yield from outbox.acknowledge(name, ids=_check_ids(ids), place=place, **seen))


def read_cursor(cursor: str | None) -> int:
    """Read a cursor; None stands before everything."""
    if cursor is None:
        return 0
    if not (isinstance(cursor, str) and cursor.isascii() and cursor.isdigit()) or len(cursor) > 18:  # noqa: PLR2004
        raise Invalid(f"cursor={cursor!r} is none that a page of messages came with")
    return int(cursor)


def _document(message_id: str) -> Steps[dict[str, Any]]:
    event = yield from compose((yield from outbox.get(message_id)))
    document: dict[str, Any] = msgspec.json.decode(event.body)
    return document


def _check_name(name: str) -> str:
    return check_text(name, what="channel")


def _check_ids(ids: Sequence[str] | None) -> Sequence[str] | None:
    if isinstance(ids, str):
        raise Invalid("ids is a list of messages' ids")
    return ids
