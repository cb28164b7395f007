"""A small peer that speaks the protocol of Service Bus: it shows our calls, not Azure's behaviour.

AMQP 1.0 without TLS, tokens put on `$cbs` and checked, queues with peek-lock, lock ends, delivery
counts, dead letters and sessions, kept in a file. HTTP on the same port: GET reads a queue's
counts, as Azure's management does; PUT makes a queue or changes it; until told otherwise a queue
that is missing is made by its first use, which Azure does not. Started with a port, a folder, a
policy and its key. The codec is the client's own: others need a compiler to be installed.
"""

import asyncio
import base64
import hashlib
import hmac
import pickle
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from azure.servicebus._pyamqp import _decode, _encode, outcomes, performatives
from azure.servicebus._pyamqp.endpoints import Source, Target
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.message import Header, Message, Properties
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes

AMQP, SASL = b"AMQP\x00\x01\x00\x00", b"AMQP\x03\x01\x00\x00"
FRAME_BYTES, MESSAGE_BYTES = 65_536, 262_144
DELIVERIES_MOST = 10
BATCHED = 0x80013700
SESSION = b"com.microsoft:session-filter"
ACCEPTED, REJECTED, RELEASED = 0x24, 0x25, 0x26
COUNTS = """<entry xmlns="http://www.w3.org/2005/Atom"><title type="text">{name}</title>
<content type="application/xml">
<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">
<CountDetails xmlns:d="http://schemas.microsoft.com/netservices/2011/06/servicebus">
<d:ActiveMessageCount>{waiting}</d:ActiveMessageCount>
<d:DeadLetterMessageCount>{dead}</d:DeadLetterMessageCount>
<d:ScheduledMessageCount>0</d:ScheduledMessageCount>
<d:TransferMessageCount>0</d:TransferMessageCount>
<d:TransferDeadLetterMessageCount>0</d:TransferDeadLetterMessageCount>
</CountDetails></QueueDescription></content></entry>"""


class Stored:
    """A message of a queue."""

    def __init__(self, sequence: int, body: bytes, session: str | None) -> None:
        self.sequence = sequence
        self.body = body
        self.session = session
        self.count = 0
        self.locked_until = 0.0


class Queue:
    """A queue: its settings and messages."""

    def __init__(
        self, *, sessions: bool = False, lock_seconds: float = 30, most: int = 100_000
    ) -> None:
        self.sessions = sessions
        self.lock_seconds = lock_seconds
        self.most = most
        self.sequence = 0
        self.messages: list[Stored] = []
        self.dead: list[Stored] = []

    def add(self, body: bytes, session: str | None) -> None:
        self.sequence += 1
        self.messages.append(Stored(self.sequence, body, session))

    def lose_locks(self) -> None:
        now = time.time()
        for message in [m for m in self.messages if 0 < m.locked_until < now]:
            self.give_back(message)

    def give_back(self, message: Stored) -> None:
        message.locked_until = 0
        message.count += 1
        if message.count >= DELIVERIES_MOST:
            self.bury(message)

    def bury(self, message: Stored) -> None:
        self.messages.remove(message)
        self.dead.append(message)


class Peer:
    """The namespace."""

    def __init__(self, folder: Path, policy: str, key: str) -> None:
        self.file = folder / "queues"
        self.policy = policy
        self.key = key
        self.queues: dict[str, Queue] = {}
        self.creates = True
        self.links: list[Link] = []
        self.sessions: dict[tuple[str, str], Link] = {}
        if self.file.exists():
            self.queues = pickle.loads(self.file.read_bytes())

    def save(self) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_bytes(pickle.dumps(self.queues))
        fresh.replace(self.file)

    def allows(self, token: str) -> bool:
        asked = {k: v[0] for k, v in parse_qs(token.partition(" ")[2]).items()}
        signed = f"{_quoted(token, 'sr')}\n{asked.get('se')}".encode()
        right = base64.b64encode(hmac.digest(self.key.encode(), signed, hashlib.sha256)).decode()
        return asked.get("skn") == self.policy and asked.get("sig") == right

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        with suppress(OSError, EOFError):
            await connection.serve()
        self.links = [link for link in self.links if link.connection is not connection]
        self.sessions = {k: v for k, v in self.sessions.items() if v.connection is not connection}
        writer.close()

    async def keep_time(self) -> None:
        while True:
            await asyncio.sleep(0.02)
            for queue in self.queues.values():
                queue.lose_locks()
            self.pump()

    def pump(self) -> None:
        for link in list(self.links):
            link.pump()


def _quoted(token: str, name: str) -> str:
    """Find a token's field as it is written: the signature is of that."""
    fields = dict(part.partition("=")[::2] for part in token.partition(" ")[2].split("&"))
    return fields.get(name, "")


class Link:
    """One end of a link: the client sends on it, or receives."""

    def __init__(self, connection: "Connection", channel: int, fields: list[Any]) -> None:
        self.connection = connection
        self.peer = connection.peer
        self.channel = channel
        self.name, self.handle, self.receives = fields[0], fields[1], fields[2]
        place, other = (fields[5], fields[6]) if self.receives else (fields[6], fields[5])
        self.uri: bytes = place[0]
        self.other: bytes | None = other[0] if other else None
        self.path = unquote(urlsplit(self.uri.decode()).path or self.uri.decode()).lstrip("/")
        filters = place[7] if self.receives and len(place) > 7 and place[7] else {}
        self.wants_session = SESSION in filters
        self.session: str | None = None
        self.wait_until = time.time() + (fields[13] or {}).get(b"com.microsoft:timeout", 2000) / 1e3
        self.attached = False
        self.credit = self.sent = 0
        self.draining = False
        self.partial = bytearray()
        self.in_flight: dict[int, Stored] = {}

    @property
    def queue(self) -> Queue | None:
        return self.peer.queues.get(self.path)

    @property
    def is_management(self) -> bool:
        return self.path == "$cbs" or self.path.endswith("/$management")

    def attach(self) -> None:
        if self.queue is None and self.peer.creates and not self.is_management:
            self.peer.queues[self.path] = Queue()
        if self.queue is None and not self.is_management:
            self._attached(found=False)
            self.detach(b"amqp:not-found", f"The messaging entity '{self.path}' was not found.")
        elif self.wants_session:
            self._attach_session()
        else:
            self._attached(found=True)

    def _attach_session(self) -> None:
        queue = self.queue
        assert queue is not None
        for message in queue.messages:
            key = (self.path, message.session or "")
            if message.locked_until == 0 and key not in self.peer.sessions:
                self.session = message.session or ""
                self.peer.sessions[key] = self
                self._attached(found=True)
                return
        if time.time() > self.wait_until:
            self._attached(found=False)
            self.detach(b"com.microsoft:timeout", "There is no session with messages.")

    def _attached(self, *, found: bool) -> None:
        self.attached = found
        filters = {SESSION: self.session} if self.session is not None else None
        place, other = {"address": self.uri}, {"address": self.other}
        source = Source(**(place if self.receives else other), filters=filters)
        target = Target(**(other if self.receives else place))
        ticks = int((time.time() + 30 + 62135596800) * 10_000_000)
        until = {TYPE: AMQPTypes.long, VALUE: ticks}
        self.connection.send(
            self.channel,
            performatives.AttachFrame(
                name=self.name,
                handle=self.handle,
                role=not self.receives,
                send_settle_mode=0,
                rcv_settle_mode=1,
                source=source if found or not self.receives else None,
                target=target if found or self.receives else None,
                unsettled=None,
                incomplete_unsettled=False,
                initial_delivery_count=0 if self.receives else None,
                max_message_size=MESSAGE_BYTES,
                offered_capabilities=None,
                desired_capabilities=None,
                properties={b"com.microsoft:locked-until-utc": until} if filters else None,
            ),
        )
        if found and not self.receives:
            self.grant(1000)

    def grant(self, credit: int) -> None:
        self._flow(credit, self.sent)

    def _flow(self, credit: int, count: int) -> None:
        self.connection.send(
            self.channel,
            performatives.FlowFrame(
                next_incoming_id=0,
                incoming_window=65535,
                next_outgoing_id=self.connection.delivery_id,
                outgoing_window=65535,
                handle=self.handle,
                delivery_count=count,
                link_credit=credit,
                available=None,
                drain=self.draining,
                echo=False,
                properties=None,
            ),
        )

    def detach(self, condition: bytes, text: str) -> None:
        error = AMQPError(condition=condition, description=text, info=None)
        frame = performatives.DetachFrame(handle=self.handle, closed=True, error=error)
        self.connection.send(self.channel, frame)
        self.connection.forget(self)

    def take_transfer(self, fields: list[Any]) -> None:
        """Take a part of a message that the client sends."""
        if fields[1] is not None:
            self.first = fields
        self.partial += fields[11]
        if fields[5]:
            return
        body, self.partial = bytes(self.partial), bytearray()
        self.sent += 1
        outcome = self._store(body, self.first[3] == BATCHED)
        self.connection.settle(self.channel, self.first[1], outcome, receiver=True)
        self.grant(1000)
        self.peer.pump()

    def _store(self, body: bytes, batched: bool) -> Any:  # noqa: FBT001
        if self.is_management:
            self.connection.manage(self, body)
            return outcomes.Accepted()
        queue = self.queue
        assert queue is not None
        if len(body) > MESSAGE_BYTES:
            return _rejected(b"amqp:link:message-size-exceeded", "The message is too large.")
        found = [value for code, _, value in sections(body) if code == 0x75] if batched else [body]
        if len(queue.messages) + len(found) > queue.most:
            return _rejected(b"amqp:resource-limit-exceeded", "The maximum size has been reached.")
        for message in found:
            properties = _decode.decode_payload(memoryview(message)).properties
            group: Any = properties.group_id if properties else None
            session = group.decode() if group else None
            if queue.sessions and session is None:
                return _rejected(b"amqp:not-allowed", "The entity requires a session id.")
            queue.add(message, session)
        self.peer.save()
        return outcomes.Accepted()

    def pump(self) -> None:
        """Hand out messages, as far as there is credit."""
        if self.wants_session and not self.attached:
            self._attach_session()
        queue = self.queue
        if not self.receives or self.is_management or queue is None:
            return
        for message in list(queue.messages):
            if self.credit <= 0:
                break
            if message.locked_until == 0 and self.session in (None, message.session):
                message.locked_until = time.time() + queue.lock_seconds
                self._hand_out(message)
        if self.draining and self.credit > 0:
            self.sent, self.credit = self.sent + self.credit, 0
            self._flow(0, self.sent)
            self.draining = False

    def _hand_out(self, message: Stored) -> None:
        body = bytearray()
        notes: dict[str | bytes, Any] = {
            b"x-opt-sequence-number": {TYPE: AMQPTypes.long, VALUE: message.sequence},
            b"x-opt-locked-until": {
                TYPE: AMQPTypes.timestamp,
                VALUE: int(message.locked_until * 1000),
            },
        }
        header = Header(delivery_count=message.count)
        _encode.encode_payload(body, Message(header=header, message_annotations=notes))
        for code, raw, _ in sections(message.body):
            if code not in (0x70, 0x71, 0x72):
                body += raw
        self.in_flight[self.transfer(bytes(body))] = message

    def transfer(self, body: bytes) -> int:
        """Send a message to the client, in as many frames as it takes."""
        self.credit -= 1
        self.sent += 1
        self.connection.delivery_id += 1
        delivery, tag = self.connection.delivery_id, uuid.uuid4().bytes_le
        room = FRAME_BYTES - 512
        parts = [body[at : at + room] for at in range(0, len(body), room)]
        for place, part in enumerate(parts):
            frame = performatives.TransferFrame(
                handle=self.handle,
                delivery_id=delivery if place == 0 else None,
                delivery_tag=tag if place == 0 else None,
                message_format=0,
                settled=False,
                more=place < len(parts) - 1,
                rcv_settle_mode=None,
                state=None,
                resume=None,
                aborted=None,
                batchable=None,
                payload=part,
            )
            self.connection.send(self.channel, frame)
        return delivery

    def end(self, delivery: int, code: int) -> None:
        """Bring a message to the end that the client wants."""
        message, queue = self.in_flight.pop(delivery, None), self.queue
        if message is None or queue is None or message not in queue.messages:
            return
        if code == ACCEPTED:
            queue.messages.remove(message)
        elif code == REJECTED:
            queue.bury(message)
        elif code == RELEASED:
            message.locked_until = 0
        else:
            queue.give_back(message)
        self.peer.save()


def _rejected(condition: bytes, text: str) -> Any:
    return outcomes.Rejected(error=AMQPError(condition=condition, description=text, info=None))


def sections(body: bytes) -> Iterator[tuple[int, bytes, Any]]:
    """Walk through the sections of a message: code, bytes, value."""
    left = memoryview(body)
    while left:
        code = left[2]
        rest, value = _decode._DECODE_BY_CONSTRUCTOR[left[3]](left[4:])
        yield code, bytes(left[: len(left) - len(rest)]), value
        left = rest


class Connection:
    """One connection of a client."""

    def __init__(
        self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.peer = peer
        self.reader = reader
        self.writer = writer
        self.links: dict[tuple[int, int], Link] = {}
        self.delivery_id = 0
        self.allowed = False

    def send(self, channel: int, frame: Any, kind: int = 0) -> None:
        _, body = _encode.encode_frame(frame)
        assert body is not None
        size = (len(body) + 8).to_bytes(4, "big")
        self.writer.write(size + bytes([2, kind]) + channel.to_bytes(2, "big") + body)

    async def serve(self) -> None:
        first = await self.reader.readexactly(8)
        if not first.startswith(b"AMQP"):
            await self.serve_http(first)
            return
        if first == SASL:
            self.writer.write(SASL)
            names = [b"MSSBCBS", b"PLAIN", b"ANONYMOUS"]
            self.send(0, performatives.SASLMechanism(sasl_server_mechanisms=names), kind=1)
            await self.frame()
            self.send(0, performatives.SASLOutcome(code=0, additional_data=None), kind=1)
            first = await self.reader.readexactly(8)
        self.writer.write(AMQP)
        while True:
            channel, found = await self.frame()
            if found is not None and not self.take(channel, *found):
                break
        await self.writer.drain()

    async def frame(self) -> tuple[int, tuple[int, list[Any]] | None]:
        head = await self.reader.readexactly(8)
        size, channel = int.from_bytes(head[:4], "big"), int.from_bytes(head[6:], "big")
        body = await self.reader.readexactly(size - 8)
        return channel, _decode.decode_frame(memoryview(body)) if body else None

    def take(self, channel: int, code: int, fields: list[Any]) -> bool:  # noqa: C901 - a protocol's frames
        """Take a frame; tell whether more can come."""
        link = self.links.get((channel, fields[0])) if code in (0x14, 0x16) else None
        if code == 0x10:
            self.send(0, _open())
        elif code == 0x11:
            self.send(channel, _begin(channel))
        elif code == 0x12:
            made = Link(self, channel, fields)
            self.links[channel, made.handle] = made
            self.peer.links.append(made)
            if not self.allowed and not made.is_management:
                made._attached(found=False)
                made.detach(b"amqp:unauthorized-access", "There is no token for this entity.")
            else:
                made.attach()
        elif code == 0x13 and fields[4] is not None:
            self.take_credit(self.links.get((channel, fields[4])), fields)
        elif code == 0x14 and link is not None:
            link.take_transfer(fields)
        elif code == 0x15 and fields[0]:
            self.take_ends(channel, fields)
        elif code == 0x16 and link is not None:
            frame = performatives.DetachFrame(handle=link.handle, closed=True, error=None)
            self.send(channel, frame)
            self.forget(link)
        elif code == 0x17:
            self.send(channel, performatives.EndFrame(error=None))
        elif code == 0x18:
            self.send(0, performatives.CloseFrame(error=None))
            return False
        return True

    def take_credit(self, link: Link | None, fields: list[Any]) -> None:
        if link is not None and link.receives:
            link.credit = (fields[5] or 0) + (fields[6] or 0) - link.sent
            link.draining = bool(fields[8])
            link.pump()

    def take_ends(self, channel: int, fields: list[Any]) -> None:
        first, last = fields[1], fields[2] if fields[2] is not None else fields[1]
        code = _outcome(fields[4])
        for link in list(self.links.values()):
            for delivery in [d for d in link.in_flight if first <= d <= last]:
                link.end(delivery, code)
        if not fields[3]:
            outcome = {
                ACCEPTED: outcomes.Accepted(),
                REJECTED: outcomes.Rejected(error=None),
                RELEASED: outcomes.Released(),
            }.get(code, outcomes.Modified(None, None, None))
            self.settle(channel, first, outcome, receiver=False, last=last)
        self.peer.pump()

    def settle(
        self, channel: int, first: int, outcome: Any, *, receiver: bool, last: int | None = None
    ) -> None:
        self.send(
            channel,
            performatives.DispositionFrame(
                role=receiver, first=first, last=last, settled=True, state=outcome, batchable=None
            ),
        )

    def forget(self, link: Link) -> None:
        self.links.pop((link.channel, link.handle), None)
        self.peer.links = [each for each in self.peer.links if each is not link]
        self.peer.sessions = {k: v for k, v in self.peer.sessions.items() if v is not link}

    def manage(self, link: Link, body: bytes) -> None:
        """Answer a request to a node of management: tokens are put, everything else is refused."""
        asked = _decode.decode_payload(memoryview(body))
        status, text = 501, "not implemented"
        if link.path == "$cbs":
            token = asked.value.decode() if isinstance(asked.value, bytes) else str(asked.value)
            self.allowed = self.peer.allows(token)
            status, text = (202, "Accepted") if self.allowed else (401, "InvalidSignature")
        [answers] = [e for e in self.links.values() if e.receives and e.path == link.path]
        asked_id: Any = asked.properties.message_id if asked.properties else None
        told = Message(
            properties=Properties(correlation_id=asked_id),
            application_properties={
                b"status-code": status,
                b"status-description": text,
                b"statusCode": status,
                b"statusDescription": text,
            },
            value={},
        )
        made = bytearray()
        _encode.encode_payload(made, told)
        answers.transfer(bytes(made))

    def put(self, name: str, asked: dict[str, str]) -> None:
        """Make a queue or change its settings; without a name say whether any may be used."""
        if not name:
            self.peer.creates = asked["creates"] == "yes"
            return
        queue = self.peer.queues.setdefault(name, Queue())
        queue.sessions = "sessions" in asked
        queue.lock_seconds = float(asked.get("lock", queue.lock_seconds))
        queue.most = int(asked.get("most", queue.most))
        self.peer.save()

    async def serve_http(self, first: bytes) -> None:
        request = (first + await self.reader.readuntil(b"\r\n\r\n")).decode()
        method, target = request.split()[:2]
        parts = urlsplit(target)
        name, asked = parts.path.strip("/"), parse_qs(parts.query)
        status, body = "404 Not Found", ""
        if method == "PUT":
            self.put(name, {key: value for key, [value] in asked.items()})
            status = "201 Created"
        elif not any(self.peer.allows(line[15:]) for line in request.splitlines()):
            status = "401 Unauthorized"
        elif queue := self.peer.queues.get(name):
            status = "200 OK"
            waiting, dead = len(queue.messages), len(queue.dead)
            body = COUNTS.format(name=name, waiting=waiting, dead=dead)
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/atom+xml\r\nConnection: close\r\n"
        self.writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await self.writer.drain()


def _open() -> Any:
    return performatives.OpenFrame(
        container_id="peer",
        hostname=None,
        max_frame_size=FRAME_BYTES,
        channel_max=100,
        idle_timeout=None,
        outgoing_locales=None,
        incoming_locales=None,
        offered_capabilities=None,
        desired_capabilities=None,
        properties=None,
    )


def _begin(channel: int) -> Any:
    return performatives.BeginFrame(
        remote_channel=channel,
        next_outgoing_id=1,
        incoming_window=65535,
        outgoing_window=65535,
        handle_max=255,
        offered_capabilities=None,
        desired_capabilities=None,
        properties=None,
    )


def _outcome(state: Any) -> int:
    """Tell which outcome the client named: the codec gives it as a name, or as described."""
    if isinstance(state, dict):
        [name] = state
        return {"accepted": ACCEPTED, "rejected": REJECTED, "released": RELEASED}.get(name, 0x27)
    return int(getattr(state, "descriptor", 0x27))


async def main(port: str, folder: str, policy: str, key: str) -> None:
    """Serve until killed."""
    peer = Peer(Path(folder), policy, key)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", int(port))
    await asyncio.gather(server.serve_forever(), peer.keep_time())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
