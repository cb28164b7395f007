"""What a message broker must be able to do. NATS (`milepost.relay.nats`) is one of them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from milepost.relay.message import CONTENT_TYPE, Event


class Outgoing(msgspec.Struct, frozen=True):
    """A message to be published; a broker that can recognises the `id` when it comes again."""

    id: str
    data: bytes
    headers: Mapping[str, str]


class Incoming(msgspec.Struct, frozen=True):
    """A message as it came, its headers in lower case; its `id` is the same however often."""

    id: str
    data: bytes
    headers: Mapping[str, str]
    deliveries: int = 1


class Delivery(Protocol):
    """An incoming message in our hand: exactly one of its three ends is due."""

    message: Incoming

    async def acknowledge(self) -> None:
        """Say that it is ours now: it must not come again."""
        ...

    async def again(self, seconds: float) -> None:
        """Give it back: it must come again, not before that."""
        ...

    async def terminate(self) -> None:
        """Say that it can never be used: it must not come again."""
        ...


class Broker(Protocol):
    """A connection that opens itself when it is first used, and again when it was lost.

    Everything raises `Unavailable` when the broker cannot be reached, and `Undelivered` when it
    refuses a message.
    """

    name: str
    """What it is called in lists of channels."""

    @property
    def address(self) -> str:
        """Where it is, without what is secret."""
        ...

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the broker has stored it."""
        ...

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages for the consumer of that name, none if none came in time."""
        ...

    async def close(self) -> None:
        """Hang up; the next use connects anew."""
        ...


class Published:
    """A courier that publishes on a broker."""

    def __init__(self, broker: Broker, subject: str, *, seconds: float) -> None:
        self._broker = broker
        self._subject = subject
        self._seconds = seconds
        self.kind = broker.name
        self.target = f"{broker.address} {subject}"

    async def deliver(self, event: Event) -> None:
        """Publish it, and wait until the broker has it."""
        traced = {} if event.traceparent is None else {"traceparent": event.traceparent}
        headers = {"Content-Type": CONTENT_TYPE, **traced}
        outgoing = Outgoing(event.id, event.body, headers)
        await self._broker.publish(self._subject, outgoing, seconds=self._seconds)

    async def close(self) -> None:
        """Hang up."""
        await self._broker.close()
