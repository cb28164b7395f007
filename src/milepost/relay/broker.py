"""The ways out and in: a courier delivers events, a broker is one that also receives messages.

NATS (`milepost.relay.nats`) is a broker; another is a file of that size next to it.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from milepost.errors import MilepostError
from milepost.relay.message import CONTENT_TYPE, CloudEvent

TROUBLE_MOST = 30.0


class Undelivered(MilepostError):  # noqa: N818 - public name
    """A delivery that failed, and counts; it is tried again, not before `after` seconds."""

    def __init__(self, text: str, *, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


class ReceiverGone(MilepostError):  # noqa: N818 - says what became of the receiver
    """The receiver wants no more: the channel stops until an operator starts it again."""


class Courier(Protocol):
    """One way out.

    `deliver` returns when the other side has the event for good. It raises `Undelivered` when the
    message was not taken, `Unavailable` when nobody could be reached at all (which counts against
    no message), `ReceiverGone` when the other side wants no more.
    """

    kind: str
    target: str

    async def deliver(self, event: CloudEvent) -> None:
        """Take an event there."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


def cancelled() -> bool:
    """Tell whether this task was asked to end: a library may swallow that, so loops ask."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def trouble_seconds(failures: int) -> float:
    """Say how long to wait after so many failures in a row to reach the other side."""
    return min(0.1 * 2.0 ** min(failures, 20), TROUBLE_MOST)


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
    """Its name in lists of channels."""

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
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


class BrokerCourier:
    """A courier that publishes on a broker."""

    def __init__(self, broker: Broker, subject: str, *, seconds: float) -> None:
        self._broker = broker
        self._subject = subject
        self._seconds = seconds
        self.kind = broker.name
        self.target = f"{broker.address} {subject}"

    async def deliver(self, event: CloudEvent) -> None:
        """Publish it, and wait until the broker has it."""
        traced = {} if event.traceparent is None else {"traceparent": event.traceparent}
        headers = {"Content-Type": CONTENT_TYPE, **traced}
        outgoing = Outgoing(event.id, event.body, headers)
        await self._broker.publish(self._subject, outgoing, seconds=self._seconds)

    async def close(self) -> None:
        """Hang up."""
        await self._broker.close()
