"""The ways out and in: a courier delivers events, a broker is one that also receives messages.

`BROKERS` names those there are, each a file next to this one; `milepost.relay.adapter` has the
parts that they share, and `tests/relay/conformance.py` is the definition of a broker.
"""

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Protocol, cast

import msgspec

from milepost.errors import Invalid, MilepostError, Unavailable
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
    """A message to be published; a broker that can recognises the `id` when it comes again.

    Messages of one `key` keep their order, where the broker can.
    """

    id: str
    data: bytes
    headers: Mapping[str, str]
    key: str | None = None


class Incoming(msgspec.Struct, frozen=True):
    """A message as it came, its headers in lower case; its `id` is the same however often.

    `deliveries` is how often it came, with this time; None where the broker does not count.
    """

    id: str
    data: bytes
    headers: Mapping[str, str]
    deliveries: int | None = None


class Lag(msgspec.Struct, frozen=True):
    """How far a consumer is behind; None where the broker does not tell."""

    waiting: int | None = None
    """Messages that wait to be handed out."""
    in_flight: int | None = None
    """Messages that were handed out and have not come to an end."""
    redelivered: int | None = None
    """Of those, messages that came more than once."""
    dead: int | None = None
    """Messages that the broker has given up."""


class Delivery(Protocol):
    """An incoming message in our hand: exactly one of its three ends is due.

    None of them raises, nor takes much longer than a second when the broker is away: an end that is
    lost brings the message again.
    """

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

    Everything raises `Unavailable` when the broker cannot be reached or refuses the password, and
    `Undelivered` when it refuses a message: nobody takes its subject, a queue is full, it is too
    large. The error says which setting is wrong, and never a password.
    """

    name: str
    """Its name in lists of channels."""

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        ...

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the broker has stored it, or raise within `seconds`."""
        ...

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages for the consumer of that name, none if none came in time.

        The broker hands out no more than `most` to this call: what is not asked for stays for
        other consumers of that name.
        """
        ...

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:
        """Tell how far the consumer of that name is behind, or raise within `seconds`."""
        ...

    async def close(self) -> None:
        """Give back what is in hand, and hang up; the next use connects anew."""
        ...


class BulkBroker(Broker, Protocol):
    """A broker that publishes many messages for less than one by one."""

    async def publish_many(
        self, subject: str, messages: Sequence[Outgoing], *, seconds: float
    ) -> Sequence[MilepostError | None]:
        """Return within `seconds` what was wrong with each; None: it is stored."""
        ...


async def publish_all(
    broker: Broker, subject: str, messages: Sequence[Outgoing], *, seconds: float
) -> Sequence[MilepostError | None]:
    """Publish many messages; answer with what was wrong with each."""
    if hasattr(broker, "publish_many"):
        many = cast("BulkBroker", broker)
        return await many.publish_many(subject, messages, seconds=seconds)

    async def one(message: Outgoing) -> MilepostError | None:
        try:
            await broker.publish(subject, message, seconds=seconds)
        except MilepostError as error:
            return error
        except Exception as error:  # noqa: BLE001 - an adapter's mistake fails that message alone
            return Unavailable(f"{broker.address} failed: {type(error).__name__}")
        return None

    return await asyncio.gather(*map(one, messages))


class BrokerKind(msgspec.Struct, frozen=True):
    """A kind of broker: its name is that of its module and of its extra."""

    name: str
    adapter: str
    schemes: tuple[str, ...]
    options: Mapping[str, str] = {}

    def at(self, url: str) -> Broker:
        """Make one."""
        module = import_module(f"milepost.relay.{self.name}")
        return cast("Broker", getattr(module, self.adapter)(url, **self.options))


BROKERS = {
    kind.name: kind
    for kind in (
        BrokerKind("nats", "Nats", ("nats", "tls"), {"stream": "MILEPOST"}),
        BrokerKind("rabbitmq", "RabbitMQ", ("amqp", "amqps")),
        BrokerKind("redis", "Redis", ("redis", "rediss", "valkey", "valkeys")),
        BrokerKind("kafka", "Kafka", ("kafka",)),
        BrokerKind("servicebus", "ServiceBus", ("sb",)),
        BrokerKind("sqs", "SQS", ("sqs",)),
    )
}
SCHEMES = {scheme: kind for kind in BROKERS.values() for scheme in kind.schemes}


def kind_at(url: str) -> BrokerKind:
    """Tell which kind of broker an address is of, or raise `Invalid`; it is never repeated."""
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme not in SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise Invalid(f"the address of a broker begins with one of {known}")
    return SCHEMES[scheme]


def broker_at(url: str) -> Broker:
    """Make the broker at an address; its scheme says which kind."""
    return kind_at(url).at(url)


def check_broker(given: Broker | str) -> None:
    """Raise `Invalid` unless it is a broker, or the name of one."""
    if isinstance(given, str) and given not in BROKERS:
        raise Invalid(f"no broker is called {given!r}: there are {', '.join(BROKERS)}")
    if not isinstance(given, str) and (isinstance(given, type) or not hasattr(given, "publish")):
        raise Invalid(f"{given!r} is no broker: name one, such as 'nats', or make it, Nats(...)")


def broker_named(name: str, url: str) -> Broker:
    """Make the broker of that name, which must be the one of MILEPOST_BROKER_URL."""
    check_broker(name)
    schemes = " or ".join(f"{scheme}://" for scheme in BROKERS[name].schemes)
    if not url:
        raise Invalid(f"broker {name!r}: set MILEPOST_BROKER_URL to its address, {schemes}HOST")
    if (found := kind_at(url)).name != name:
        raise Invalid(
            f"broker {name!r}: MILEPOST_BROKER_URL is the address of {found.name}, "
            f"not one that begins with {schemes}"
        )
    return found.at(url)


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
        outgoing = Outgoing(event.id, event.body, headers, event.key)
        await self._broker.publish(self._subject, outgoing, seconds=self._seconds)

    async def close(self) -> None:
        """Hang up."""
        await self._broker.close()
