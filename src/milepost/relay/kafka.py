"""Kafka as a broker, experimental: a publication counts when every replica in sync has it.

A subject is a topic, the name of a consumer its group. Kafka keeps a place in each partition, no
state for each message: an acknowledged one is done for good when those before it are. Messages that
are given back are held here, and come again here. Needs the extra `kafka`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import unquote

from milepost.errors import Invalid, MilepostError, Unavailable
from milepost.relay.adapter import Hand, Link, reason, split_address
from milepost.relay.broker import Delivery, Incoming, Lag, Outgoing, Undelivered

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

T = TypeVar("T")

CONNECT_SECONDS = 6.0
MESSAGE_SECONDS = 10.0
"""How long the client tries by itself to publish a message."""
SESSION_SECONDS = 10
"""How long a group waits for a consumer that died, before another gets its partitions."""
BUSY_SECONDS = 3600
"""How long a consumer may be busy without asking for more."""
UNKNOWN_LOOKS = 12
"""How often a topic is looked for that is unknown: it may just be being made."""
LOOK_SECONDS = 0.25
COMMIT_SECONDS = 0.05
ID = "id"
"""The header that carries the id of a message."""


class Kafka:
    """A Kafka cluster; `address` names one of its servers or several, kafka://HOST:PORT,HOST:PORT.

    `options` are librdkafka's, with underscores for dots: `security_protocol`, `sasl_mechanism`,
    `ssl_ca_location`. A user and a password in the address are for SASL, over TLS by default.
    """

    name = "kafka"

    def __init__(self, address: str = "kafka://127.0.0.1:9092", **options: Any) -> None:
        self._settings = _settings(address, options)
        self._link = Link(self.address, self._connect, hang_up=_Session.end)

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return f"kafka://{self._settings['bootstrap.servers']}"

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once every replica in sync has it."""
        async with self._session(subject, seconds) as session:
            await session.publish(subject, message)

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages of the partitions that the group has given to this consumer."""
        async with self._session(subject, CONNECT_SECONDS + seconds) as session:
            found = await session.consumer(subject, name).receive(most, seconds)
            return [session.hand.take(delivery) for delivery in found]

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:
        """Tell how far the group's place is from the end of the topic."""
        async with self._session(subject, seconds) as session:
            behind = await session.watching.call(session.behind, subject, name, seconds)
            consumer = session.consumers.get((subject, name))
            if consumer is None:
                return Lag(waiting=behind)
            in_flight = consumer.in_flight()
            return Lag(waiting=max(behind - in_flight, 0), in_flight=in_flight)

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
            trouble = None if session is None else session.trouble
            told = _told(error, self.address, subject, trouble)
            if session is not None and isinstance(told, Unavailable):
                await self._link.drop(session)
            raise told from error

    async def _connect(self) -> "_Session":
        try:
            import confluent_kafka  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Unavailable("Kafka needs an extra: pip install 'milepost[kafka]'") from error
        try:
            session = _Session(self._settings)
        except confluent_kafka.KafkaException as error:  # its text may repeat a password
            raise Invalid(f"{self.address}: librdkafka refuses one of the options") from error
        try:
            await session.reach()
        except BaseException:
            session.stop()
            raise
        return session


class _Session:
    """A producer, the consumers, and what is in hand."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415 - an extra

        self._settings = {**settings, "error_cb": self._note}
        self.trouble: KafkaError | None = None
        self.hand = Hand(delays=False)
        self._topics: set[str] = set()
        self.consumers: dict[tuple[str, str], _Consumer] = {}
        self.producer: Producer = Producer(
            {
                "acks": "all",
                # Brokers before 0.11 have none; they are told by `api_version_request=False`.
                "enable.idempotence": bool(settings.get("api.version.request", True)),
                "message.timeout.ms": int(MESSAGE_SECONDS * 1000),
                "linger.ms": 0,
                **self._settings,
            },
            logger=_Silent(),
        )
        self.sending = _Thread(idle=lambda: self.producer.poll(COMMIT_SECONDS))
        self.watching = _Thread()

    def _note(self, error: "KafkaError") -> None:
        """Remember what the client complains of: it goes on trying."""
        self.trouble = error

    async def reach(self) -> None:
        """Return once the cluster has answered, or raise what the client complains of."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        answered = False
        while not answered:
            with suppress(KafkaException):
                await self.sending.call(self.producer.list_topics, timeout=LOOK_SECONDS)
                answered = True
            if not answered and self.trouble is not None:
                raise KafkaException(self.trouble)
        self.trouble = None

    async def publish(self, topic: str, message: Outgoing) -> None:
        """Return once it is stored, or raise the client's error."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        if topic not in self._topics:
            await self._find(topic)
            self._topics.add(topic)
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[KafkaError | None] = loop.create_future()

        def report(error: "KafkaError | None", _message: "Message") -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, stored, error)

        headers = {name.lower(): value.encode() for name, value in message.headers.items()}
        self.producer.produce(
            topic,
            message.data,
            key=None if message.key is None else message.key.encode(),
            headers={**headers, ID: message.id.encode()},
            on_delivery=report,
        )
        if (error := await stored) is not None:
            raise KafkaException(error)

    async def _find(self, topic: str) -> None:
        """Ask for a topic, which makes it where the broker may: the client would ask for ever."""
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        asked, error = partial(self.producer.list_topics, topic, timeout=CONNECT_SECONDS), None
        for _ in range(UNKNOWN_LOOKS):
            try:
                error = (await self.sending.call(asked)).topics[topic].error
            except KafkaException as unreadable:  # 0.9's answer while it makes one
                error = unreadable.args[0]
            if error is None:
                return
            await asyncio.sleep(LOOK_SECONDS)
        raise KafkaException(error)

    def consumer(self, subject: str, name: str) -> "_Consumer":
        """Give the consumer of a topic in a group."""
        if (subject, name) not in self.consumers:
            self.consumers[subject, name] = _Consumer(
                self._settings, subject, _group(subject, name)
            )
        return self.consumers[subject, name]

    def behind(self, topic: str, name: str, seconds: float) -> int:
        """Count the messages after the group's place, without joining the group."""
        from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - an extra

        settings = {**self._settings, "group.id": _group(topic, name)}
        watcher = Consumer(settings, logger=_Silent())
        try:
            found = watcher.list_topics(topic, timeout=seconds).topics[topic]
            places = [TopicPartition(topic, number) for number in found.partitions]
            count = 0
            for place in watcher.committed(places, timeout=seconds):
                first, end = watcher.get_watermark_offsets(place, timeout=seconds)
                count += end - (place.offset if place.offset >= 0 else first)
            return count
        finally:
            watcher.close()

    async def end(self) -> None:
        await self.hand.empty()
        closing = [consumer.end() for consumer in self.consumers.values()]
        self.stop()
        await asyncio.gather(*closing)

    def stop(self) -> None:
        """Let go of the producer: what it has not sent by now is told to have failed."""
        self.sending.send(self.producer.purge)
        self.sending.send(partial(self.producer.poll, 0))
        self.sending.stop()
        self.watching.stop()


class _Consumer:
    """Receives from the partitions of a topic that its group has given to it.

    The client's calls block: all are made by a thread of its own, which alone knows the places.
    """

    def __init__(self, settings: dict[str, Any], topic: str, group: str) -> None:
        from confluent_kafka import Consumer  # noqa: PLC0415 - an extra

        self._topic = topic
        self._thread = _Thread()
        self._loop = asyncio.get_running_loop()
        self._receiving = asyncio.Lock()
        self._ready: deque[_Delivery] = deque()
        self._places: dict[int, _Place] = {}
        self._commit_due = False
        self._consumer: Consumer = Consumer(
            {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": True,
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "max.poll.interval.ms": BUSY_SECONDS * 1000,
                **settings,
            },
            logger=_Silent(),
        )
        self._consumer.subscribe([topic], on_revoke=self._revoked, on_lost=self._revoked)

    async def receive(self, most: int, seconds: float) -> "list[_Delivery]":
        """Wait for the first message, and take those that are here."""
        async with self._receiving:
            end = self._loop.time() + seconds
            while not self._ready:
                left = end - self._loop.time()
                await self._thread.call(self._fill, most, max(min(left, LOOK_SECONDS), 0))
                if left <= 0:
                    break
            return [self._ready.popleft() for _ in range(min(most, len(self._ready)))]

    def in_flight(self) -> int:
        """Count the messages that were handed out and are not done."""
        places = list(self._places.values())
        return sum(len(place.open) for place in places) - len(self._ready)

    def hand_out_again(self, delivery: "_Delivery") -> None:
        """Let a message come again, unless its partition is another's by now."""
        if delivery.place.ours:
            self._ready.append(delivery)

    def done(self, delivery: "_Delivery") -> None:
        """Count a message as done, and tell Kafka soon."""
        self._thread.send(partial(delivery.place.open.pop, delivery.offset, None))
        if not self._commit_due:
            self._commit_due = True
            self._loop.call_later(COMMIT_SECONDS, self._thread.send, self._commit)

    def end(self) -> "asyncio.Future[None]":
        """Leave the group, in a good while at most; what is not done comes again."""
        self._thread.send(partial(self._commit, wait=True))
        closed = self._thread.call(self._consumer.close)
        self._thread.stop()
        return closed

    def _fill(self, most: int, seconds: float) -> None:
        found = self._consumer.poll(seconds)
        while found is not None:
            self._take(found)
            found = self._consumer.poll(0) if len(self._ready) < most else None

    def _take(self, message: "Message") -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        error = message.error()
        if error is None:
            place = self._places.setdefault(_number(message.partition()), _Place())
            offset = _number(message.offset())
            place.open[offset] = None
            place.end = offset + 1
            self._ready.append(_Delivery(self, message, place))
        elif not error.retriable() and error.code() not in _passing():
            raise KafkaException(error)

    def _commit(self, *, wait: bool = False) -> None:
        """Write down the lowest place that is open, in each partition (B-12)."""
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - an extra

        self._commit_due = False
        moved = [
            TopicPartition(self._topic, number, place.lowest())
            for number, place in self._places.items()
            if place.lowest() != place.committed
        ]
        with suppress(KafkaException):  # what is not written down comes again
            if moved:
                if wait:
                    self._consumer.commit(offsets=moved, asynchronous=False)
                else:
                    self._consumer.commit(offsets=moved, asynchronous=True)
                for place in self._places.values():
                    place.committed = place.lowest()

    def _revoked(self, _consumer: "Consumer", partitions: "list[Any]") -> None:
        """Give partitions away: what is in hand of them comes to their next consumer."""
        self._commit(wait=True)
        for partition in partitions:
            place = self._places.pop(partition.partition, None)
            if place is not None:
                place.ours = False
        for delivery in [found for found in list(self._ready) if not found.place.ours]:
            with suppress(ValueError):  # it was just handed out
                self._ready.remove(delivery)


class _Place:
    """Where a consumer is in a partition: offsets that are open, and where it has read to."""

    def __init__(self) -> None:
        self.open: dict[int, None] = {}
        self.end = 0
        self.committed = -1
        self.ours = True

    def lowest(self) -> int:
        """Give the place from which messages must come again."""
        return next(iter(self.open), self.end)


class _Delivery:
    """A message of a topic, as the connection's hand holds it."""

    def __init__(self, consumer: _Consumer, message: "Message", place: _Place) -> None:
        self._consumer = consumer
        self.place = place
        self.offset = _number(message.offset())
        came: Sequence[tuple[str, bytes | None]] = cast("Any", message.headers() or [])
        headers = {name.lower(): (value or b"").decode(errors="replace") for name, value in came}
        # Without a header for it, its place is its id: brokers before 0.11 drop headers.
        own = headers.pop(ID, None)
        where = f"{message.topic()}:{message.partition()}:{self.offset}"
        self.message = Incoming(own or where, message.value() or b"", headers)

    async def acknowledge(self) -> None:
        self._consumer.done(self)

    async def again(self, seconds: float) -> None:  # noqa: ARG002 - held until the time has come
        self._consumer.hand_out_again(self)

    async def terminate(self) -> None:
        self._consumer.done(self)


class _Thread:
    """A thread that makes a client's calls, one after the other, and nobody waits for at the end.

    They block, and may hang when the broker is away.
    """

    def __init__(self, idle: Callable[[], object] | None = None) -> None:
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        Thread(target=self._run, name="milepost-kafka", daemon=True).start()

    def send(self, call: Callable[[], object]) -> None:
        """Have something done, and hear nothing of it."""
        self._calls.put(call)

    def call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> "asyncio.Future[T]":
        """Have something done, and give its result."""
        answer: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            result: T | Exception
            try:
                result = function(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - raised by whoever waits
                result = error
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(_settle, answer, result)

        self._calls.put(run)
        return answer

    def stop(self) -> None:
        """End once everything has been done."""
        self._calls.put(None)

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(block=self._idle is None)
            except Empty:
                call = self._idle
            if call is None:
                return
            with suppress(Exception):  # as a thread's last words, these would be lost
                call()


class _Silent:
    """Says nothing: the call that uses the client raises."""

    def log(self, *_: object, **__: object) -> None:
        """Say nothing."""


def _settle(answer: "asyncio.Future[Any]", result: object) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _settings(address: str, options: dict[str, Any]) -> dict[str, Any]:
    """Read an address and options as librdkafka's settings."""
    parts = split_address(address, kind="kafka", several=True)
    found = {"bootstrap.servers": parts.netloc.rpartition("@")[2]}
    if parts.username:
        found |= {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": unquote(parts.username),
            "sasl.password": unquote(parts.password or ""),
        }
    return {**found, **{name.replace("_", "."): value for name, value in options.items()}}


def _group(subject: str, name: str) -> str:
    """Name a group: one for each topic, or every topic would wait for the others' members."""
    return name if name == subject else f"{name}.{subject}"


def _passing() -> set[int]:
    """Name the errors that a consumer gets over: its topic is being made."""
    from confluent_kafka import KafkaError  # noqa: PLC0415 - an extra

    return {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._PARTITION_EOF}  # noqa: SLF001 - their names


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _told(
    error: Exception, address: str, subject: str, trouble: "KafkaError | None" = None
) -> MilepostError:
    """Say in words what an error of the client means, or what it complained of before."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

    found = error.args[0] if isinstance(error, KafkaException) else trouble
    if found is None:
        return Unavailable(f"{address} did not answer: {reason(error)}")
    for codes, told in _words(address, subject):
        if found.code() in codes:
            return told
    # Its text may repeat what is in the settings; its name never does.
    return Unavailable(f"{address} did not answer: {found.name()}")


def _words(address: str, subject: str) -> list[tuple[set[int], MilepostError]]:
    """Name the setting behind each error that has one."""
    from confluent_kafka import KafkaError as Code  # noqa: PLC0415 - an extra

    return [
        (
            {Code.MSG_SIZE_TOO_LARGE, Code.INVALID_MSG_SIZE, Code.RECORD_LIST_TOO_LARGE},
            Undelivered("Kafka takes no message as large as this one (message.max.bytes)"),
        ),
        (
            {Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code.TOPIC_EXCEPTION},  # noqa: SLF001 - their names
            Undelivered(
                f"Kafka has no topic {subject}: make it, or set auto.create.topics.enable there"
            ),
        ),
        (
            {Code.TOPIC_AUTHORIZATION_FAILED, Code.GROUP_AUTHORIZATION_FAILED},
            Unavailable(f"{address} does not let this user use {subject}: see its ACLs"),
        ),
        (
            {Code.NOT_ENOUGH_REPLICAS, Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND},
            Unavailable(f"{subject} has too few replicas in sync (min.insync.replicas)"),
        ),
        (
            {Code._AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED},  # noqa: SLF001 - their names
            Unavailable(
                f"{address} refused the user or the password: they are part of the address,"
                " kafka://USER:PASSWORD@HOST, and sasl_mechanism= must be the broker's"
            ),
        ),
        (
            {Code._UNSUPPORTED_FEATURE},  # noqa: SLF001 - its name
            Unavailable(
                f"{address} is too old for that: set enable_idempotence=False, or for brokers"
                " before 0.10 api_version_request=False and broker_version_fallback="
            ),
        ),
    ]
