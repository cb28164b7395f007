"""RabbitMQ as a broker: a publication counts when the broker has confirmed it.

A subject is the queue of that name. It is a quorum queue, which is on disk before it confirms,
refuses messages when it is full, and moves those that came too often to the queue
`SUBJECT.dead`. The id of a message is its property `message_id`. Needs the extra `rabbitmq`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from milepost.errors import MilepostError, Unavailable
from milepost.relay.adapter import Hand, Link, public_address, reason
from milepost.relay.broker import Delivery, Incoming, Lag, Outgoing, Undelivered

if TYPE_CHECKING:
    from aio_pika.abc import (
        AbstractChannel,
        AbstractConnection,
        AbstractIncomingMessage,
        AbstractQueue,
    )

CONNECT_SECONDS = 6.0
HEARTBEAT_SECONDS = 20
DELIVERY_LIMIT = 1_000
"""How often a message may be given back: a store that is away for an hour must not use it up."""
KEY = "key"
"""The header that carries the ordering key, for exchanges that route by it."""
TOO_LARGE = "larger than configured max size"


class RabbitMQ:
    """A RabbitMQ server, with a queue for each subject.

    Queues that are missing are made, with `arguments` in addition to ours: `x-max-length` bounds
    one, `x-single-active-consumer` keeps its order. With `declare=False` they must be there, and
    are used as they are. With `exchange` messages are published there, under their subject as
    routing key. `options` go to `aio_pika.connect`: `ssl_context`, `heartbeat`.
    """

    name = "rabbitmq"

    def __init__(
        self,
        address: str = "amqp://guest:guest@127.0.0.1:5672/",
        *,
        declare: bool = True,
        exchange: str = "",
        delivery_limit: int = DELIVERY_LIMIT,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._url = address
        self._declare = declare
        self._exchange = exchange
        self._arguments = {"x-delivery-limit": delivery_limit, **(arguments or {})}
        self._options = options
        self._link = Link(
            self.address, self._connect, hang_up=_Session.end, alive=_Session.is_alive
        )

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return public_address(self._url, kind=self.name)

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the broker has confirmed it."""
        async with self._session(subject, seconds) as session:
            if self._declare and not self._exchange:
                await self._ensure(session, subject)
            channel = await session.publisher()
            await (await channel.get_underlay_channel()).basic_publish(
                message.data,
                exchange=self._exchange,
                routing_key=subject,
                properties=_properties(message),
                mandatory=True,
            )

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages of the queue; consumers of every name share them."""
        async with self._session(subject, CONNECT_SECONDS + seconds) as session:
            await self._ensure(session, subject)
            found = await session.consumer(subject).receive(name, most, seconds)
            return [session.hand.take(_Delivery(message)) for message in found]

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:  # noqa: ARG002 - one queue for every name
        """Tell how many messages wait in the queue and in the one of the dead."""
        async with self._session(subject, seconds) as session:
            return Lag(
                waiting=await session.depth(subject) or 0,
                dead=await session.depth(dead_queue(subject)),
            )

    async def close(self) -> None:
        """Give back what is in hand and hang up; the next use connects anew, and at once."""
        await self._link.close()

    @asynccontextmanager
    async def _session(self, subject: str, seconds: float) -> "AsyncIterator[_Session]":
        """Give a connection, and say what goes wrong on it."""
        session = None
        try:
            async with asyncio.timeout(seconds):
                session = await self._link.get()
                yield session
        except MilepostError:
            raise
        except Exception as error:
            told = self._told(error, subject)
            if session is not None:
                session.queues.discard(subject)  # one that was removed is made anew
                if isinstance(told, Unavailable):
                    await self._link.drop(session)
            raise told from error

    async def _ensure(self, session: "_Session", subject: str) -> None:
        """See to it that the queue is there, once for each connection."""
        if subject in session.queues:
            return
        async with session.declaring:
            if subject not in session.queues:
                async with session.passing_channel() as channel:
                    if self._declare:
                        await _declare_queue(channel, subject, self._arguments)
                    else:
                        await channel.declare_queue(subject, passive=True)
                session.queues.add(subject)

    def _told(self, error: Exception, subject: str) -> MilepostError:
        """Say in words what an error of the client means."""
        from aio_pika import exceptions as client  # noqa: PLC0415 - an extra

        match error:
            case client.PublishError():
                where = f"exchange {self._exchange!r}" if self._exchange else "RabbitMQ"
                return Undelivered(f"{where} has no queue for {subject}: bind one to that key")
            case client.DeliveryError():
                return Undelivered(
                    f"queue {subject} refused it: it is full (x-max-length, x-max-length-bytes)"
                    ", or RabbitMQ could not store it"
                )
            case client.ChannelClosed():
                return self._refused(error, subject)
            case TimeoutError():
                return Unavailable(
                    f"{self.address} did not answer in time: it hangs, or an alarm of its memory or"
                    " disk holds publications up (vm_memory_high_watermark, disk_free_limit)"
                )
        return Unavailable(f"{self.address} did not answer: {reason(error)}")

    def _refused(self, error: Exception, subject: str) -> MilepostError:
        """Say in words why RabbitMQ closed a channel; its own name the setting, and no password."""
        from aio_pika import exceptions as client  # noqa: PLC0415 - an extra

        cause = str(error.args[-1]) if error.args else reason(error)
        match error:
            case client.ChannelPreconditionFailed() if TOO_LARGE in cause:
                return Undelivered(
                    "RabbitMQ takes no message as large as this one (max_message_size)"
                )
            case client.ChannelPreconditionFailed():
                return Unavailable(
                    f"queue {subject} is there with other settings ({cause}): remove it,"
                    " or use it as it is by RabbitMQ(..., declare=False)"
                )
            case client.ChannelNotFoundEntity():
                return Unavailable(
                    f"{cause}: make it, or let RabbitMQ(..., declare=True) make queues"
                )
        return Unavailable(f"{self.address} refused {subject}: {cause}")

    async def _connect(self) -> "_Session":
        try:
            import aio_pika  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Unavailable(
                "RabbitMQ needs an extra: pip install 'milepost[rabbitmq]'"
            ) from error
        properties = {"connection_name": "milepost"}
        settings = {
            "client_properties": properties,
            "heartbeat": HEARTBEAT_SECONDS,
            **self._options,
        }
        try:
            return _Session(await aio_pika.connect(self._url, **settings))
        except aio_pika.exceptions.ProbableAuthenticationError as error:
            raise Unavailable(
                f"{self.address} refused the user or the password: they are part of the address,"
                " amqp://USER:PASSWORD@HOST (guest is let in from its own machine alone)"
            ) from error
        except aio_pika.exceptions.InvalidFrameError as error:  # an end, where it opens the host
            raise Unavailable(
                f"{self.address} refused the virtual host, the path of the address: make it by"
                " `rabbitmqctl add_vhost`, and let the user in by `rabbitmqctl set_permissions`"
            ) from error
        except (aio_pika.exceptions.AMQPError, OSError) as error:
            raise Unavailable(f"{self.address} cannot be reached: {reason(error)}") from error


class _Session:
    """A connection, and what is known on it.

    An error closes the channel that it came on, so that each use has its own.
    """

    def __init__(self, connection: "AbstractConnection") -> None:
        self.connection = connection
        self.queues: set[str] = set()
        self.declaring = asyncio.Lock()
        self.hand = Hand(delays=False)
        self._publisher: AbstractChannel | None = None
        self._opening = asyncio.Lock()
        self._consumers: dict[str, _Consumer] = {}

    def is_alive(self) -> bool:
        return not self.connection.is_closed

    async def publisher(self) -> "AbstractChannel":
        """Give the channel for publications; what cannot be routed raises."""
        async with self._opening:
            if self._publisher is None or self._publisher.is_closed:
                channel = self.connection.channel(publisher_confirms=True, on_return_raises=True)
                await channel.initialize()
                self._publisher = channel
            return self._publisher

    def consumer(self, subject: str) -> "_Consumer":
        """Give the consumer of a queue."""
        return self._consumers.setdefault(subject, _Consumer(self.connection, subject))

    @asynccontextmanager
    async def passing_channel(self) -> "AsyncIterator[AbstractChannel]":
        """Open a channel for a question."""
        channel = self.connection.channel(publisher_confirms=False)
        await channel.initialize()
        try:
            yield channel
        finally:
            if not channel.is_closed:
                await channel.close()

    async def depth(self, queue: str) -> int | None:
        """Count the messages that wait in a queue; None when there is none."""
        from aio_pika.exceptions import ChannelNotFoundEntity  # noqa: PLC0415 - an extra

        with suppress(ChannelNotFoundEntity):
            async with self.passing_channel() as channel:
                found = await channel.declare_queue(queue, passive=True)
                return found.declaration_result.message_count
        return None

    async def end(self) -> None:
        await self.hand.empty()
        await self.connection.close()


class _Consumer:
    """Receives from one queue, and only while somebody asks.

    RabbitMQ pushes: a consumer that stays would be given the next message for each that is
    acknowledged, and keep it from others. So there is one for each call, for as many as it asks.
    """

    def __init__(self, connection: "AbstractConnection", queue: str) -> None:
        self._connection = connection
        self._name = queue
        self._queue: AbstractQueue | None = None
        self._came: deque[AbstractIncomingMessage] = deque()
        self._arrived = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._prefetch = 0

    async def receive(
        self, name: str, most: int, seconds: float
    ) -> "list[AbstractIncomingMessage]":
        """Wait for the first message, and take those that came with it."""
        async with self._one_at_a_time:
            queue = await self._opened()
            if not self._came:
                await self._consume(queue, name, most, seconds)
            return [self._came.popleft() for _ in range(min(most, len(self._came)))]

    async def _consume(self, queue: "AbstractQueue", name: str, most: int, seconds: float) -> None:
        if most != self._prefetch:
            await queue.channel.set_qos(prefetch_count=most)
            self._prefetch = most
        self._arrived.clear()
        tag = await queue.consume(self._take, consumer_tag=f"{name}-{uuid4().hex[:8]}")
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()
        finally:
            await queue.cancel(tag)

    async def _take(self, message: "AbstractIncomingMessage") -> None:
        self._came.append(message)
        self._arrived.set()

    async def _opened(self) -> "AbstractQueue":
        if self._queue is None or self._queue.channel.is_closed:
            channel = self._connection.channel(publisher_confirms=False)
            await channel.initialize()
            self._queue = await channel.get_queue(self._name, ensure=False)
            self._came.clear()  # what came on the other has gone back
            self._prefetch = 0
        return self._queue


class _Delivery:
    """A message of a queue, as the connection's hand holds it."""

    def __init__(self, message: "AbstractIncomingMessage") -> None:
        self._message = message
        headers = {name.lower(): _text(value) for name, value in message.headers.items()}
        if message.content_type:
            headers["content-type"] = message.content_type
        # A queue gives messages no place: without an id of its own each time is another message.
        own = message.message_id or uuid4().hex
        self.message = Incoming(own, message.body, headers, deliveries=_deliveries(message))

    async def acknowledge(self) -> None:
        await self._message.ack()

    async def again(self, seconds: float) -> None:  # noqa: ARG002 - held until the time has come
        await self._message.nack(requeue=True)

    async def terminate(self) -> None:
        await self._message.reject(requeue=False)


def dead_queue(subject: str) -> str:
    """Name the queue of messages that were given up."""
    return f"{subject}.dead"


async def _declare_queue(
    channel: "AbstractChannel", subject: str, arguments: Mapping[str, Any]
) -> None:
    """Make the queue of a subject, and that of its dead, unless they are there."""
    quorum: dict[str, Any] = {"x-queue-type": "quorum"}
    await channel.declare_queue(dead_queue(subject), durable=True, arguments=quorum)
    ours = {
        **quorum,
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead_queue(subject),
        "x-dead-letter-strategy": "at-least-once",
    }
    await channel.declare_queue(subject, durable=True, arguments={**ours, **arguments})


def _properties(message: Outgoing) -> Any:
    """Give each part of a message its own place."""
    from pamqp.commands import Basic  # noqa: PLC0415 - an extra

    headers: dict[str, Any] = {**message.headers}
    kind = headers.pop("Content-Type", None)
    if message.key is not None:
        headers[KEY] = message.key
    return Basic.Properties(
        content_type=kind,
        headers=headers,
        message_id=message.id,
        delivery_mode=2,  # on disk
        app_id="milepost",
    )


def _deliveries(message: "AbstractIncomingMessage") -> int | None:
    """Tell how often it came: a quorum queue counts, another only marks what came before."""
    counted = message.headers.get("x-delivery-count")
    if isinstance(counted, int):
        return counted + 1
    return None if message.redelivered else 1


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
