"""Azure Service Bus as a broker: a publication counts when the namespace has accepted it.

A message is received under a lock and completed when its end is due. Experimental: tested on a
small peer that speaks its protocol, not on Azure. Needs the extra `servicebus`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

from milepost.errors import Invalid, MilepostError, Unavailable
from milepost.relay.adapter import Hand, Link, reason, split_address
from milepost.relay.broker import Delivery, Incoming, Lag, Outgoing, Undelivered

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
    from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

EXTRA = "Service Bus needs an extra: pip install 'milepost[servicebus]'"
OPEN_SECONDS = 6.0
SESSION_MOST = 128
"""How long the id of a session may be."""
SESSION_SECONDS = 2.0
"""The least that a session is waited for: taking one lasts that long."""
ENDING: set[asyncio.Task[None]] = set()
"""Connections that are being hung up."""


class ServiceBus:
    """The queues of a namespace.

    `address` is a connection string, `sb://POLICY:KEY@NAMESPACE.servicebus.windows.net` (with the
    key percent-encoded), or without a key, and then `credential` is one of `azure-identity`. A
    subject is the name of a queue, which must be there. A message's key is the id of its session:
    with `sessions` the queues are received in the order of each. `options` go to the client:
    `transport_type`, `http_proxy`.
    """

    name = "servicebus"

    def __init__(
        self, address: str, *, credential: Any = None, sessions: bool = False, **options: Any
    ) -> None:
        self._host, self._connection_string = _parts(address)
        if not self._connection_string and credential is None:
            raise Invalid(
                "a Service Bus namespace needs a key, sb://POLICY:KEY@NAMESPACE, a connection"
                " string, or ServiceBus(..., credential=)"
            )
        self._credential = credential
        self._sessions = sessions
        self._options = options
        self._link = Link(self.address, self._connect, hang_up=_Connection.close)

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return f"sb://{self._host}"

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the queue has accepted it."""
        made = _made(message)
        async with self._connection(subject, seconds) as connection:
            await connection.send(subject, made)

    async def receive(
        self,
        subject: str,
        *,
        name: str,  # noqa: ARG002 - a queue has consumers without a name
        most: int,
        seconds: float,
    ) -> Sequence[Delivery]:
        """Return the next messages of the queue; its consumers share them, whatever their name."""
        async with self._connection(subject, seconds + OPEN_SECONDS, receiving=True) as connection:
            return await connection.receive(subject, most, seconds)

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:  # noqa: ARG002 - as above
        """Read the queue's counts, which takes a policy that may manage it."""
        try:
            async with asyncio.timeout(seconds):
                return await self._counts(subject)
        except MilepostError:
            raise
        except Exception as error:
            raise self._told(error, subject, receiving=True) from error

    async def _counts(self, subject: str) -> Lag:
        try:
            from azure.servicebus.aio import management  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Unavailable(EXTRA) from error
        kind = management.ServiceBusAdministrationClient
        if self._connection_string:
            asking = kind.from_connection_string(self._connection_string, retry_total=0)
        else:
            asking = kind(self._host, self._credential, retry_total=0)
        async with asking:
            found = await asking.get_queue_runtime_properties(subject)
        return Lag(
            waiting=(found.active_message_count or 0) + (found.scheduled_message_count or 0),
            dead=found.dead_letter_message_count,
        )

    async def close(self) -> None:
        """Give back what is in hand, and hang up; the next use connects anew."""
        await self._link.close()

    @asynccontextmanager
    async def _connection(
        self, subject: str, seconds: float, *, receiving: bool = False
    ) -> "AsyncIterator[_Connection]":
        """Give a connection, and say what goes wrong."""
        connection = None
        try:
            async with asyncio.timeout(seconds):
                connection = await self._link.get()
                yield connection
        except MilepostError:
            raise
        except Exception as error:
            told = self._told(error, subject, receiving=receiving)
            if connection is not None and isinstance(told, Unavailable):
                await self._link.drop(connection)
            raise told from error

    def _told(self, error: Exception, subject: str, *, receiving: bool) -> MilepostError:
        """Say in words what an error of the client means."""
        from azure.core import exceptions as core  # noqa: PLC0415 - an extra
        from azure.servicebus import exceptions  # noqa: PLC0415 - likewise

        refusal = Unavailable if receiving else Undelivered
        match error:
            case exceptions.MessagingEntityNotFoundError() | core.ResourceNotFoundError():
                told = refusal(f"{self.address} has no queue {subject!r}: create it there")
            case exceptions.MessagingEntityDisabledError():
                told = refusal(f"the queue {subject!r} of {self.address} is disabled")
            case exceptions.MessageSizeExceededError():
                told = Undelivered("the namespace takes no message as large as this one")
            case exceptions.ServiceBusQuotaExceededError():
                told = Undelivered(f"the queue {subject!r} of {self.address} is full")
            case (
                exceptions.ServiceBusAuthenticationError()
                | exceptions.ServiceBusAuthorizationError()
                | core.ClientAuthenticationError()
            ):
                told = Unavailable(
                    f"{self.address} refuses the policy or its password, the key: look at"
                    " SharedAccessKeyName and SharedAccessKey, sb://POLICY:KEY@NAMESPACE, and the"
                    " policy's right to send, listen or manage"
                )
            case TimeoutError():
                told = Unavailable(f"{self.address} did not answer in time")
            case _:
                told = Unavailable(f"{self.address} cannot be reached: {reason(error)}")
        return told

    async def _connect(self) -> "_Connection":
        try:
            from azure.servicebus.aio import ServiceBusClient  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Unavailable(EXTRA) from error
        settings = {"retry_total": 0, **self._options}  # whoever calls tries again, and counts
        if self._connection_string:
            client = ServiceBusClient.from_connection_string(self._connection_string, **settings)
        else:
            client = ServiceBusClient(self._host, self._credential, **settings)
        return _Connection(client, sessions=self._sessions)


class _Connection:
    """A client, its senders and receivers, and what is in hand."""

    def __init__(self, client: "ServiceBusClient", *, sessions: bool) -> None:
        self._client = client
        self._sessions = sessions
        self._links: set[ServiceBusSender | ServiceBusReceiver] = set()
        self._senders: dict[str, tuple[ServiceBusSender, asyncio.Lock]] = {}
        self._receivers: dict[str, ServiceBusReceiver] = {}
        self._hand = Hand(delays=False)

    async def close(self) -> None:
        """Give back what is in hand, and hang up."""
        try:
            await self._hand.empty()
        finally:
            # The client leaves its sockets open where it is interrupted, so it is not.
            ending = asyncio.create_task(self._hang_up())
            ENDING.add(ending)
            ending.add_done_callback(ENDING.discard)
            await asyncio.shield(ending)

    async def _hang_up(self) -> None:
        # All links at once: each takes a while.
        await asyncio.gather(*(link.close() for link in self._links), return_exceptions=True)
        await self._client.close()

    async def send(self, queue: str, message: "ServiceBusMessage") -> None:
        """Send a message, after those that wait to be sent on the same link."""
        if queue not in self._senders:
            made = self._client.get_queue_sender(queue)
            self._links.add(made)
            self._senders[queue] = made, asyncio.Lock()
        sender, sending = self._senders[queue]
        async with sending:
            await sender.send_messages(message)

    async def receive(self, queue: str, most: int, seconds: float) -> list[Delivery]:
        """Receive from the queue, or from the next of its sessions."""
        if self._sessions:
            return await self._receive_session(queue, most, seconds)
        if queue not in self._receivers:
            made = self._client.get_queue_receiver(queue)
            self._links.add(made)
            # Opened apart: the first call's wait would be for that too.
            self._receivers[queue] = await made.__aenter__()
        receiver = self._receivers[queue]
        found = await receiver.receive_messages(most, max_wait_time=max(seconds, 0.001))
        return [self._hand.take(_Delivery(receiver, message)) for message in found]

    async def _receive_session(self, queue: str, most: int, seconds: float) -> list[Delivery]:
        from azure.servicebus import NEXT_AVAILABLE_SESSION  # noqa: PLC0415 - an extra
        from azure.servicebus.exceptions import OperationTimeoutError  # noqa: PLC0415 - likewise

        wait = max(seconds, SESSION_SECONDS)
        receiver = self._client.get_queue_receiver(
            queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait
        )
        self._links.add(receiver)
        found: Sequence[ServiceBusReceivedMessage] = ()
        with suppress(OperationTimeoutError):  # no session has messages
            found = await receiver.receive_messages(most, max_wait_time=wait)
        session = _Session(receiver, len(found), self._links)
        if not found:
            await session.leave()
        return [self._hand.take(_Delivery(receiver, message, session)) for message in found]


class _Session:
    """A session that is ours until all that was received of it has come to an end."""

    def __init__(self, receiver: "ServiceBusReceiver", count: int, links: set[Any]) -> None:
        self._receiver = receiver
        self._count = count
        self._links = links

    async def ended(self) -> None:
        """Count an end; the last lets another consumer have the session."""
        self._count -= 1
        if self._count == 0:
            await self.leave()

    async def leave(self) -> None:
        """Let another consumer have the session."""
        await self._receiver.close()
        self._links.discard(self._receiver)


class _Delivery:
    """A message under a lock."""

    def __init__(
        self,
        receiver: "ServiceBusReceiver",
        message: "ServiceBusReceivedMessage",
        session: _Session | None = None,
    ) -> None:
        self._receiver = receiver
        self._message = message
        self._session = session
        self.message = Incoming(
            message.message_id or str(message.sequence_number),
            b"".join(message.body),
            _headers(message),
            deliveries=(message.delivery_count or 0) + 1,
        )

    async def acknowledge(self) -> None:
        """Say that it is ours now; a lost acknowledgement only brings it again."""
        await self._receiver.complete_message(self._message)
        await self._ended()

    async def again(self, seconds: float) -> None:  # noqa: ARG002 - held until it is due
        """Give it back."""
        await self._receiver.abandon_message(self._message)
        await self._ended()

    async def terminate(self) -> None:
        """Put it among the dead letters."""
        await self._receiver.dead_letter_message(
            self._message, reason="milepost: it can never be used"
        )
        await self._ended()

    async def _ended(self) -> None:
        if self._session is not None:
            await self._session.ended()


def _made(message: Outgoing) -> "ServiceBusMessage":
    try:
        from azure.servicebus import ServiceBusMessage  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unavailable(EXTRA) from error

    headers: dict[str | bytes, Any] = {
        name.lower(): value for name, value in message.headers.items()
    }
    if message.key is not None and len(message.key) > SESSION_MOST:
        raise Undelivered(f"a key longer than {SESSION_MOST} characters is no session's id")
    return ServiceBusMessage(
        message.data,
        message_id=message.id,
        content_type=headers.pop("content-type", None),
        session_id=message.key,
        application_properties=headers,
    )


def _headers(message: "ServiceBusReceivedMessage") -> Mapping[str, str]:
    found = {
        _text(name).lower(): _text(value)
        for name, value in (message.application_properties or {}).items()
        if isinstance(value, str | bytes)
    }
    return found | ({"content-type": message.content_type} if message.content_type else {})


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")


def _parts(address: str) -> tuple[str, str]:
    """Read an address: the namespace, and the connection string if there is a key."""
    if isinstance(address, str) and address.partition("=")[0].strip().lower() == "endpoint":
        found = dict(part.partition("=")[::2] for part in address.split(";") if "=" in part)
        endpoint = {name.strip().lower(): value for name, value in found.items()}["endpoint"]
        return _place(endpoint), address
    parts = split_address(address, kind="servicebus")
    asked = parse_qs(parts.query)
    if not parts.hostname or set(asked) - {"emulator"}:
        raise Invalid(
            "address must be a connection string, Endpoint=sb://…, or like"
            " sb://POLICY:KEY@NAMESPACE.servicebus.windows.net"
        )
    host = _place(address)
    if not (parts.username and parts.password):
        return host, ""
    policy, key = unquote(parts.username), unquote(parts.password)
    settings = f"Endpoint=sb://{host};SharedAccessKeyName={policy};SharedAccessKey={key}"
    local = ";UseDevelopmentEmulator=true" if asked.get("emulator") == ["true"] else ""
    return host, settings + local


def _place(url: str) -> str:
    parts = split_address(url, kind="servicebus")
    return (parts.hostname or "") + (f":{parts.port}" if parts.port else "")
