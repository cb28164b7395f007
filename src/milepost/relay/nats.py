"""NATS JetStream as a broker: a publication counts when the stream has acknowledged it.

The message's id goes along as `Nats-Msg-Id`, so a stream drops messages that it has seen within its
window (two minutes by default). Needs the extra `nats`.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count as counted
from itertools import zip_longest
from time import monotonic
from typing import TYPE_CHECKING, Any
from zlib import crc32

from milepost.errors import Invalid, MilepostError, Unavailable
from milepost.relay.adapter import ACK_SECONDS, Hand, Link, public_address, reason
from milepost.relay.broker import Delivery, Incoming, Lag, Outgoing, Undelivered

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.api import StreamConfig

CONNECT_SECONDS = 3.0
API_SECONDS = 10.0
PING_SECONDS = 10
TIDY_SECONDS = 5.0
CHECK_SECONDS = 30.0
"""How often the stream is seen to take a subject: whoever adds one may write over another's."""
UNTIDY_MOST = 10_000
OURS = "milepost"
"""Marks the streams that we made."""
MSG_ID = "Nats-Msg-Id"
NOBODY, HEARTBEAT = "503", "100"
"""What the server says where nobody listens, and while there is nothing to say."""
STORE_FAILED = 10077
"""The server's error for a stream that has as much as it may have."""


class Nats:
    """A NATS server, or several of a cluster, with JetStream.

    With `stream` a stream of that name is made, for the subjects that are used, if there is none;
    without, one that takes them must be there. Messages that we receive leave a stream that we made
    once all its consumers have acknowledged them, the others after `keep_seconds`. `options` go to
    `nats.connect`: `user_credentials`, `tls`, `token`.
    """

    name = "nats"

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str | None = None,
        keep_seconds: float = 7 * 86_400.0,
        **options: Any,
    ) -> None:
        if not isinstance(servers, str | Sequence):
            raise Invalid("servers must be an address, nats://HOST, or a list of them")
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        if not self._servers:
            raise Invalid("servers must name at least one, such as nats://127.0.0.1:4222")
        self._stream = stream
        self._keep = keep_seconds
        self._options = options
        self._link = Link(
            self.address, self._connect, hang_up=_Session.end, alive=_Session.is_alive
        )

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return ", ".join(public_address(url, kind=self.name) for url in self._servers)

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the stream has stored it."""
        headers = {MSG_ID: message.id, **message.headers}
        async with self._session(subject, seconds) as session:
            await session.inbox.publish(subject, message.data, headers)

    async def publish_many(
        self, subject: str, messages: Sequence[Outgoing], *, seconds: float
    ) -> Sequence[MilepostError | None]:
        """Return within `seconds` what was wrong with each; None: the stream has stored it."""
        try:
            async with self._session(subject, seconds) as session:
                sent = [
                    await session.inbox.send(subject, m.data, {MSG_ID: m.id, **m.headers})
                    for m in messages
                ]
                answers = await asyncio.gather(*sent, return_exceptions=True)
        except MilepostError as error:
            return [error] * len(messages)
        errors = [self._refusal(subject, answer) for answer in answers]
        if any(isinstance(error, Unavailable) for error in errors):
            session.subjects.pop(subject, None)  # a stream that was removed is looked for again
        return errors

    def _refusal(self, subject: str, answer: "Msg | BaseException") -> MilepostError | None:
        """Say what is wrong with a message by the server's answer to it."""
        try:
            _check_stored(answer)
        except MilepostError as error:
            return error
        except Exception as error:  # noqa: BLE001 - said in words
            return self._told(error, subject)
        return None

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages for the durable consumer of that name."""
        async with self._session(subject, CONNECT_SECONDS * 2 + seconds) as session:
            durable = _durable(subject, name)
            if durable not in session.consumers:
                session.consumers[durable] = await self._consumer(session, subject, durable)
            await session.tidy(every=TIDY_SECONDS)
            found = await session.consumers[durable].pull(most, seconds)
            return [session.take(subject, message) for message in found]

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:
        """Tell how far the durable consumer of that name is behind."""
        from nats.js.errors import NotFoundError  # noqa: PLC0415 - an extra

        async with self._session(subject, seconds) as session:
            stream = self._stream or await session.stream.find_stream_name_by_subject(subject)
            try:
                told = await session.stream.consumer_info(stream, _durable(subject, name))
            except NotFoundError:  # nobody has received yet
                info = await session.stream.stream_info(stream, subjects_filter=subject)
                return Lag(waiting=sum((info.state.subjects or {}).values()), in_flight=0)
            return Lag(
                waiting=told.num_pending,
                in_flight=told.num_ack_pending,
                redelivered=told.num_redelivered,
            )

    async def close(self) -> None:
        """Give back what is in hand and hang up; the next use connects anew, and at once."""
        await self._link.close()

    @asynccontextmanager
    async def _session(self, subject: str, seconds: float) -> "AsyncIterator[_Session]":
        """Give a connection with a stream that takes the subject, and say what goes wrong."""
        session = None
        try:
            async with asyncio.timeout(seconds):
                session = await self._link.get()
                if self._stream is not None and session.is_unsure_of(subject):
                    await self._ensure_stream(session, self._stream, subject)
                yield session
        except MilepostError:
            raise
        except Exception as error:
            told = self._told(error, subject)
            if session is not None and isinstance(told, Unavailable):
                await self._link.drop(session)  # a stream that was removed is looked for again
            raise told from error

    def _told(self, error: Exception, subject: str) -> MilepostError:
        """Say in words what an error of the client means."""
        from nats import errors  # noqa: PLC0415 - an extra
        from nats.js import errors as refusals  # noqa: PLC0415 - likewise

        text = f"{self.address} did not answer: {reason(error)}"
        match error:
            case refusals.NoStreamResponseError() | refusals.NotFoundError():
                if self._stream is None:
                    return Undelivered(
                        f"no stream takes {subject}: make one, or name it by Nats(..., stream=)"
                    )
                text = f"the stream {self._stream} is gone; it is made anew"
            case refusals.ServiceUnavailableError() if error.err_code == STORE_FAILED:
                return Undelivered(f"the stream that takes {subject} is full: {error.description}")
            case refusals.ServiceUnavailableError():
                text = f"JetStream does not answer: {error.description}"
            case refusals.APIError():
                return Undelivered(f"the stream refused it: {error.description}")
            case errors.MaxPayloadError():
                return Undelivered("the server takes no message as large as this one")
            case _ if "authorization" in str(error).lower():
                text = (
                    f"{self.address} refused the user or the password: they are part of the address"
                    ", nats://USER:PASSWORD@HOST, or given as user_credentials= or token="
                )
        return Unavailable(text)

    async def _ensure_stream(self, session: "_Session", name: str, subject: str) -> None:
        """See that the stream takes the subject; others may write theirs over it meanwhile."""
        async with session.ensuring:
            while session.is_unsure_of(subject):
                config = await self._stream_config(session, name, subject)
                if any(_covers(pattern, subject) for pattern in config.subjects or []):
                    session.subjects[subject] = monotonic()
                    session.ours = name if OURS in (config.metadata or {}) else None
                    break
                config.subjects = [*(config.subjects or []), subject]
                await session.stream.update_stream(config)

    async def _stream_config(self, session: "_Session", name: str, subject: str) -> "StreamConfig":
        """Read the settings of the stream; it is made if there is none."""
        from nats.js import errors  # noqa: PLC0415 - an extra
        from nats.js.api import StreamConfig  # noqa: PLC0415 - likewise

        with suppress(errors.NotFoundError):
            return (await session.stream.stream_info(name)).config
        config = StreamConfig(
            name=name, subjects=[subject], max_age=self._keep, metadata={OURS: "1"}
        )
        with suppress(errors.BadRequestError):  # another program has made it just now
            return (await session.stream.add_stream(config)).config
        return (await session.stream.stream_info(name)).config

    async def _consumer(self, session: "_Session", subject: str, durable: str) -> "_Consumer":
        """Find the consumer, or make it."""
        from nats.js import errors  # noqa: PLC0415 - an extra
        from nats.js.api import AckPolicy, ConsumerConfig  # noqa: PLC0415 - likewise

        stream = self._stream or await session.stream.find_stream_name_by_subject(subject)
        try:
            await session.stream.consumer_info(stream, durable)
        except errors.NotFoundError:
            config = ConsumerConfig(
                durable_name=durable, filter_subject=subject, ack_policy=AckPolicy.EXPLICIT
            )
            await session.stream.add_consumer(stream, config)
        place = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        return await _Consumer(session.client, place).open()

    async def _connect(self) -> "_Session":
        try:
            from nats import errors  # noqa: PLC0415 - an extra
            from nats.aio.client import Client  # noqa: PLC0415 - likewise
        except ImportError as error:
            raise Unavailable("NATS needs an extra: pip install 'milepost[nats]'") from error
        settings = {
            "allow_reconnect": False,  # a lost connection is made anew when it is needed
            "connect_timeout": CONNECT_SECONDS,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.1,
            "ping_interval": PING_SECONDS,
            "error_cb": _silent,
            "name": "milepost",
            **self._options,
        }
        client = Client()
        session = _Session(client)
        try:
            await client.connect(self._servers, closed_cb=session.closed, **settings)
            await session.inbox.open()
        except BaseException as error:
            await client.close()
            if not isinstance(error, errors.Error | OSError):
                raise
            if "authorization" in str(error).lower():
                raise
            raise Unavailable(f"{self.address} cannot be reached: {reason(error)}") from error
        return session


class _Session:
    """A connection, and what is known on it."""

    def __init__(self, client: "Client") -> None:
        self.client = client
        self.stream = client.jetstream(timeout=API_SECONDS)
        self.ours: str | None = None
        self.subjects: dict[str, float] = {}
        """When the stream was last seen to take a subject."""
        self.ensuring = asyncio.Lock()
        self.consumers: dict[str, _Consumer] = {}
        self.inbox = _Inbox(client)
        self.hand = Hand(delays=True)
        self._untidy: dict[str, int] = {}
        self._tidied_at = monotonic()

    def is_alive(self) -> bool:
        return self.client.is_connected

    def is_unsure_of(self, subject: str) -> bool:
        return monotonic() >= self.subjects.get(subject, -CHECK_SECONDS) + CHECK_SECONDS

    async def closed(self) -> None:
        """Tell those who wait for an answer that none will come."""
        self.inbox.end()
        for consumer in self.consumers.values():
            consumer.end()

    def take(self, subject: str, message: "Msg") -> Delivery:
        self._untidy[subject] = self._untidy.get(subject, 0) + 1
        return self.hand.take(_Delivery(message))

    async def tidy(self, *, every: float) -> None:
        """Remove messages that all consumers of their subject have acknowledged.

        The server forgets meanwhile which messages were given back to it, and repeats those when
        their time to be acknowledged is over: so preferably when there are none.
        """
        if self.ours is None or not self._untidy or monotonic() < self._tidied_at + every:
            return
        self._tidied_at = monotonic()
        consumers = await self.stream.consumers_info(self.ours)
        for subject, count in list(self._untidy.items()):
            told = [c for c in consumers if _meets(c.config.filter_subject or ">", subject)]
            if any(c.num_ack_pending for c in told) and count < UNTIDY_MOST:
                continue
            floor = min((c.ack_floor.stream_seq if c.ack_floor else 0 for c in told), default=0)
            if floor:
                await self.stream.purge_stream(self.ours, seq=floor + 1, subject=subject)
            del self._untidy[subject]

    async def end(self) -> None:
        try:
            async with asyncio.timeout(ACK_SECONDS / 2):
                await self.hand.empty()
                if self.is_alive():
                    await self.client.flush()  # acknowledgements may still be on their way
                    await self.tidy(every=0)
                    await self.client.flush()
        finally:
            await self.client.close()


class _Inbox:
    """Where the server's answers come: one subscription, and neither task nor timer for each.

    The client's own requests cost four times as much.
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._prefix = ""
        self._numbers = counted()
        self._waits: dict[str, asyncio.Future[Msg]] = {}

    async def open(self) -> None:
        """Listen."""
        self._prefix = self._client.new_inbox()
        await self._client.subscribe(f"{self._prefix}.*", cb=self._heard)

    async def _heard(self, message: "Msg") -> None:
        answer = self._waits.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def end(self) -> None:
        """Tell those who wait that no answer will come."""
        for answer in list(self._waits.values()):
            if not answer.done():
                answer.set_exception(ConnectionResetError("the connection was closed"))

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Return once a stream has stored it."""
        _check_stored(await (await self.send(subject, data, headers)))

    async def send(
        self, subject: str, data: bytes, headers: dict[str, str]
    ) -> "asyncio.Future[Msg]":
        """Send a message; the answer comes later."""
        place = f"{self._prefix}.{next(self._numbers)}"
        answer = self._waits[place] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._waits.pop(place, None))
        try:
            await self._client.publish(subject, data, reply=place, headers=headers)
        except BaseException:
            answer.cancel()
            raise
        return answer


def _check_stored(answer: "Msg | BaseException") -> None:
    """Raise what the server says against a message; an answer that did not come is one, too."""
    from nats.js import errors  # noqa: PLC0415 - an extra

    if isinstance(answer, BaseException):
        raise answer
    if (answer.headers or {}).get("Status") == NOBODY:
        raise errors.NoStreamResponseError
    if error := json.loads(answer.data).get("error"):
        raise errors.APIError.from_error(error)


class _Consumer:
    """A durable consumer, which is asked for so many messages at a time."""

    def __init__(self, client: "Client", subject: str) -> None:
        self._client = client
        self._subject = subject
        self._prefix = client.new_inbox()
        self._numbers = counted()
        self._turn = asyncio.Lock()
        self._place = ""
        self._most = 0
        self._found: list[Msg] = []
        self._done: asyncio.Future[None] | None = None

    async def open(self) -> "_Consumer":
        """Listen."""
        await self._client.subscribe(f"{self._prefix}.*", cb=self._heard)
        return self

    def end(self) -> None:
        """Tell who waits that no answer will come."""
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionResetError("the connection was closed"))

    async def pull(self, most: int, seconds: float) -> "list[Msg]":
        """Ask for the messages that are there, or for the first one that comes in time."""
        async with self._turn:
            found = await self._asked(most, {"no_wait": True})
            if not found and seconds > 0:
                found = await self._asked(1, {"expires": int(seconds * 1e9)})
                if found and most > 1:
                    found += await self._asked(most - 1, {"no_wait": True})
            return found

    async def _asked(self, most: int, how: dict[str, Any]) -> "list[Msg]":
        self._place = f"{self._prefix}.{next(self._numbers)}"
        self._most, self._found = most, []
        self._done = asyncio.get_running_loop().create_future()
        try:
            request = json.dumps({"batch": most, **how}).encode()
            await self._client.publish(self._subject, request, reply=self._place)
            await self._done
        except BaseException:
            for message in self._found:
                with suppress(Exception):
                    await message.nak()
            raise
        finally:
            self._done = None
        return self._found

    async def _heard(self, message: "Msg") -> None:
        """Take a message, or the server's word that there are no more."""
        from nats.js import errors  # noqa: PLC0415 - an extra

        done = self._done
        if message.subject.startswith(self._prefix):
            status = (message.headers or {}).get("Status")
            if done is None or done.done() or message.subject != self._place:
                return
            if status == NOBODY or "Deleted" in (message.headers or {}).get("Description", ""):
                done.set_exception(errors.NotFoundError(description="the consumer is gone"))
            elif status != HEARTBEAT:
                done.set_result(None)
        elif done is None or done.done():
            await message.nak()  # it came for somebody who was stopped meanwhile
        else:
            self._found.append(message)
            if len(self._found) == self._most:
                done.set_result(None)


async def _silent(_error: Exception) -> None:
    """Say nothing: the call that uses the connection raises."""


def _durable(subject: str, name: str) -> str:
    """Name a consumer: in its stream, which holds several subjects, there is no other so called."""
    if subject == name:
        return name
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", subject)
    told = "" if plain == subject else f"-{crc32(subject.encode()):08x}"
    return f"{name}-{plain}{told}"


def _covers(pattern: str, subject: str) -> bool:
    """Tell whether a stream's pattern takes a subject."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, word in enumerate(wanted):
        if word == ">":
            return len(given) > place
        if place >= len(given) or word not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


def _meets(pattern: str, subject: str) -> bool:
    """Tell whether a message may be of both; either may hold wildcards."""
    for ours, theirs in zip_longest(pattern.split("."), subject.split(".")):
        if ">" in (ours, theirs):
            return True
        if ours is None or theirs is None or ("*" not in (ours, theirs) and ours != theirs):
            return False
    return True


class _Delivery:
    """A message of a JetStream consumer."""

    def __init__(self, message: "Msg") -> None:
        self._message = message
        headers = dict(message.headers or {})
        place = message.metadata
        # Without an id of its own its place in the stream is one.
        own = headers.get(MSG_ID) or f"{place.stream}:{place.sequence.stream}"
        self.message = Incoming(
            own,
            message.data,
            {name.lower(): value for name, value in headers.items()},
            deliveries=place.num_delivered,
        )

    async def acknowledge(self) -> None:
        await self._message.ack()  # one that gets lost only brings the message again

    async def again(self, seconds: float) -> None:
        await self._message.nak(delay=seconds)

    async def terminate(self) -> None:
        await self._message.term()
