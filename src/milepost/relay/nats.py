"""NATS JetStream as a broker: a publication counts when the stream has acknowledged it.

The message's id goes along as `Nats-Msg-Id`, so a stream drops messages that it has seen within its
window (two minutes by default). Needs the extra `nats`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from milepost.errors import Invalid, Unavailable
from milepost.relay.broker import Delivery, Incoming, Outgoing, Undelivered

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

CONNECT_SECONDS = 3.0
ACK_SECONDS = 10.0
AWAY_SECONDS = 0.5
MSG_ID = "Nats-Msg-Id"


class Nats:
    """A NATS server, or several of a cluster, with JetStream.

    With `stream` a stream of that name is made, for the subjects that are used, if there is none;
    without, one that takes them must be there. `options` go to `nats.connect`: `user_credentials`,
    `tls`, `token`.
    """

    name = "nats"

    def __init__(
        self,
        servers: str | Sequence[str] = "nats://127.0.0.1:4222",
        *,
        stream: str | None = None,
        **options: Any,
    ) -> None:
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        if not self._servers:
            raise Invalid("servers must name at least one, such as nats://127.0.0.1:4222")
        self._stream = stream
        self._options = options
        self._connection: Client | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._away_until = 0.0
        self._subjects: set[str] = set()
        self._consumers: dict[tuple[str, str], JetStreamContext.PullSubscription] = {}

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return ", ".join(_public(server) for server in self._servers)

    def _unavailable(self, what: str, error: BaseException) -> Unavailable:
        # Its text may repeat an address with a password; its name never does.
        return Unavailable(f"{self.address} {what}: {type(error).__name__}")

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the stream has stored it."""
        from nats import errors  # noqa: PLC0415 - an extra
        from nats.js import errors as refusals  # noqa: PLC0415 - likewise

        stream = await self._ready(subject)
        headers = {MSG_ID: message.id, **message.headers}
        try:
            await stream.publish(subject, message.data, timeout=seconds, headers=headers)
        except refusals.NoStreamResponseError as error:
            await self.close()  # a stream that was removed is looked for again
            raise Unavailable(
                f"no stream takes {subject}: make one, or name it by Nats(..., stream=)"
            ) from error
        except refusals.ServiceUnavailableError as error:
            raise Unavailable(f"JetStream does not answer: {error.description}") from error
        except refusals.APIError as error:
            raise Undelivered(f"the stream refused it: {error.description}") from error
        except errors.MaxPayloadError as error:
            raise Undelivered("the server takes no message as large as this one") from error
        except (errors.Error, OSError, TimeoutError) as error:
            await self.close()
            raise self._unavailable("did not answer", error) from error

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages for the durable consumer of that name."""
        from nats import errors  # noqa: PLC0415 - an extra

        try:
            stream = await self._ready(subject)
            if (subject, name) not in self._consumers:
                consumer = await stream.pull_subscribe(subject, durable=name)
                self._consumers[subject, name] = consumer
            consumer = self._consumers[subject, name]
            with suppress(TimeoutError):  # the client's own, and the bare one when time is short
                return [_Delivery(found) for found in await consumer.fetch(most, timeout=seconds)]
        except (errors.Error, OSError, TimeoutError) as error:
            await self.close()
            raise self._unavailable("did not answer", error) from error
        return []

    async def close(self) -> None:
        """Hang up; the next use connects anew, and at once."""
        await self._hang_up()
        self._away_until = 0.0

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._subjects.clear()
        self._consumers.clear()
        if connection is not None:
            with suppress(Exception):
                await connection.close()

    async def _ready(self, subject: str) -> "JetStreamContext":
        """Connect, and see to it that a stream takes the subject."""
        self._enter_loop()
        async with self._opening:
            if self._connection is None or not self._connection.is_connected:
                await self._hang_up()
                self._connection = await self._connect()
            stream = self._connection.jetstream(timeout=ACK_SECONDS)
            if self._stream is not None and subject not in self._subjects:
                await _ensure_stream(stream, self._stream, subject)
                self._subjects.add(subject)
            return stream

    def _enter_loop(self) -> None:
        """Begin anew in another event loop: a connection belongs to the one that made it."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening, self._connection = loop, asyncio.Lock(), None
            self._away_until = 0.0
            self._subjects.clear()
            self._consumers.clear()

    async def _connect(self) -> "Client":
        try:
            import nats  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Unavailable("NATS needs an extra: pip install 'milepost[nats]'") from error
        settings = {
            "allow_reconnect": False,  # a lost connection is made anew when it is needed
            "connect_timeout": CONNECT_SECONDS,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0.1,
            "error_cb": _silent,
            "name": "milepost",
            **self._options,
        }
        now = asyncio.get_running_loop().time()
        if now < self._away_until:
            raise Unavailable(f"{self.address} cannot be reached")
        try:
            async with asyncio.timeout(CONNECT_SECONDS * 2):
                return await nats.connect(self._servers, **settings)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            # Others that wait for the connection need not try, one after the other.
            self._away_until = now + AWAY_SECONDS
            raise self._unavailable("cannot be reached", error) from error


async def _silent(_error: Exception) -> None:
    """Say nothing: the call that uses the connection raises."""


async def _ensure_stream(stream: "JetStreamContext", name: str, subject: str) -> None:
    """Make the stream, or let the one that is there take the subject too."""
    from nats.js import errors  # noqa: PLC0415 - an extra
    from nats.js.api import StreamConfig  # noqa: PLC0415 - likewise

    try:
        there = await stream.stream_info(name)
    except errors.NotFoundError:
        await stream.add_stream(StreamConfig(name=name, subjects=[subject]))
        return
    subjects = there.config.subjects or []
    if not any(_covers(pattern, subject) for pattern in subjects):
        there.config.subjects = [*subjects, subject]
        await stream.update_stream(there.config)


def _covers(pattern: str, subject: str) -> bool:
    """Tell whether a stream's pattern takes a subject."""
    wanted, given = pattern.split("."), subject.split(".")
    for place, word in enumerate(wanted):
        if word == ">":
            return len(given) > place
        if place >= len(given) or word not in ("*", given[place]):
            return False
    return len(wanted) == len(given)


def _public(server: str) -> str:
    parts = urlsplit(server)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


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
        """Say that it is ours now; a lost acknowledgement only brings it again."""
        with suppress(Exception):
            await self._message.ack_sync(timeout=ACK_SECONDS)

    async def again(self, seconds: float) -> None:
        """Give it back."""
        with suppress(Exception):
            await self._message.nak(delay=seconds)

    async def terminate(self) -> None:
        """Say that it can never be used."""
        with suppress(Exception):
            await self._message.term()
