"""Redis or Valkey as a broker: a stream for each subject, a consumer group for each name.

A publication counts when the server has answered it, which is on the disk with `appendonly yes` and
`appendfsync always`. An entry holds the message's `id` and `data`; its other fields are headers.
Needs the extra `redis`.
"""

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from milepost.errors import MilepostError, Unavailable
from milepost.relay.adapter import ACK_SECONDS, Hand, Link, public_address, reason
from milepost.relay.broker import Delivery, Incoming, Lag, Outgoing, Undelivered
from milepost.telemetry import Log

if TYPE_CHECKING:
    from redis.asyncio import Redis as Client

log = Log("milepost.relay")

CONNECT_SECONDS = 3.0
BLOCK_SECONDS = 0.5
"""How long a read waits before messages that were given back are looked for again."""
AT_ONCE = 1_000
"""How many commands go to the server in one pipeline."""
COUNTED = 1_000
RETURNED = "returned"
"""The consumer that holds what others gave back when they left."""
CONSUMER_IDLE_MS = 86_400_000
OWN = (b"id", b"data")

JOIN = """
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
for _, told in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local of = {}
  for place = 1, #told, 2 do of[told[place]] = told[place + 1] end
  if of.pending == 0 and of.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of.name)
  end
end
"""
"""Makes the group, from the beginning of its stream, and forgets consumers that are long gone."""

DONE = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
local function after(one, other)
  local a, b = string.match(one, '(%d+)-(%d+)')
  local c, d = string.match(other, '(%d+)-(%d+)')
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  return a > c or (a == c and b > d)
end
for _, told in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local of = {}
  for place = 1, #told, 2 do of[told[place]] = told[place + 1] end
  if of.name ~= ARGV[1] then
    if after(ARGV[2], of['last-delivered-id']) then return 0 end
    if #redis.call('XPENDING', KEYS[1], of.name, ARGV[2], ARGV[2], 1) > 0 then return 0 end
  end
end
return redis.call('XDEL', KEYS[1], ARGV[2])
"""
"""Acknowledges an entry, and deletes it once every group of its stream has acknowledged it."""

LEAVE = """
local held = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 10000, ARGV[2])
for _, entry in ipairs(held) do
  redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, entry[1], 'IDLE', ARGV[4], 'JUSTID')
end
if #held < 10000 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
"""
"""Gives back whatever a consumer holds, so that any other takes it at once, and removes it."""


class Redis:
    """A Redis or Valkey server, with streams.

    A stream is made when it is first used, unless `create` is False. What a consumer that died held
    is given to others after `idle_seconds`, which is also the longest that a message can be given
    back for. `options` go to redis-py's `Redis.from_url`: `username`, `password`, `ssl_ca_certs`.
    """

    name = "redis"

    def __init__(
        self,
        address: str = "redis://127.0.0.1:6379",
        *,
        create: bool = True,
        idle_seconds: float = 120.0,
        **options: Any,
    ) -> None:
        self._url = address
        self._create = create
        self._idle_ms = int(idle_seconds * 1_000)
        self._options = options
        self._warned = False
        self._link = Link(self.address, self._connect, hang_up=_Session.end)

    @property
    def address(self) -> str:
        """Where it is, without passwords."""
        return public_address(self._url, kind=self.name)

    async def publish(self, subject: str, message: Outgoing, *, seconds: float) -> None:
        """Return once the server has stored it; what is published meanwhile goes along."""
        fields = [word for pair in message.headers.items() for word in pair]
        made = () if self._create else ("NOMKSTREAM",)
        command = ("XADD", subject, *made, "*", "id", message.id, "data", message.data, *fields)
        async with self._session(subject, seconds) as session:
            if await session.do(*command) is None:
                raise Undelivered(
                    f"no stream is called {subject}: make it with XGROUP CREATE ... MKSTREAM, or "
                    "let Redis(..., create=True)"
                )

    async def receive(
        self, subject: str, *, name: str, most: int, seconds: float
    ) -> Sequence[Delivery]:
        """Return the next messages for the group of that name, those given back first."""
        async with self._session(subject, CONNECT_SECONDS * 2 + seconds) as session:
            await session.join(subject, name)
            until = monotonic() + seconds
            while True:
                found = await session.claim(subject, name, most)
                found = found or await session.read(subject, name, most, until - monotonic())
                if found or monotonic() >= until:
                    return found

    async def lag(self, subject: str, *, name: str, seconds: float) -> Lag:
        """Tell how far the group of that name is behind."""
        async with self._session(subject, seconds) as session:
            length = await session.do("XLEN", subject)
            groups = await session.do("XINFO", "GROUPS", subject) if length else []
            told = next((g for g in map(_members, groups) if g["name"] == name.encode()), None)
            if told is None:
                return Lag(waiting=length, in_flight=0, redelivered=0)
            held = await session.do("XPENDING", subject, name, "-", "+", COUNTED)
            waiting = told.get("lag")
            if waiting is None:  # it does not know, since entries were deleted: of one group's
                waiting = max(length - told["pending"], 0)
            # What was given back, or held by one that died, is for the next to take.
            back = sum(1 for _, _, idle, _ in held if idle >= self._idle_ms)
            again = sum(1 for _, _, _, deliveries in held if deliveries > 1)
            in_flight = told["pending"] - back
            return Lag(waiting=waiting + back, in_flight=in_flight, redelivered=again)

    async def close(self) -> None:
        """Give back what is in hand and hang up; the next use connects anew, and at once."""
        await self._link.close()

    @asynccontextmanager
    async def _session(self, subject: str, seconds: float) -> "AsyncIterator[_Session]":
        session = None
        try:
            async with asyncio.timeout(seconds):
                session = await self._link.get()
                yield session
        except MilepostError:
            raise
        except Exception as error:
            told = self._told(error, subject)
            if session is not None and isinstance(told, Unavailable):
                await self._link.drop(session)
            raise told from error

    def _told(self, error: Exception, subject: str) -> MilepostError:
        """Say in words what an error of the client means."""
        from redis import exceptions  # noqa: PLC0415 - an extra

        text = f"{self.address} did not answer: {reason(error)}"
        word = str(error).partition(" ")[0]
        match error:
            case exceptions.OutOfMemoryError():
                return Undelivered(
                    f"{self.address} is full: it has used its maxmemory; receive, or raise it"
                )
            case exceptions.AuthenticationError() | exceptions.AuthorizationError():
                text = (
                    f"{self.address} refused the user or the password: they are part of the address"
                    ", redis://USER:PASSWORD@HOST, or given as username= and password="
                )
            case exceptions.NoPermissionError():
                text = f"{self.address}: the user may not use the stream {subject} (see its ACL)"
            case exceptions.ResponseError() if word == "WRONGTYPE":
                return Undelivered(f"{subject} is no stream: another program uses that key")
            case exceptions.ReadOnlyError():
                text = f"{self.address} is a replica, which stores nothing: give the primary's"
            case exceptions.ResponseError() if word == "MISCONF":
                text = f"{self.address} cannot write to its disk"
            case exceptions.ResponseError() if word not in ("NOGROUP", "ERR"):
                text = f"{self.address} refused: {word}"
        return Unavailable(text)

    async def _connect(self) -> "_Session":
        try:
            from redis.asyncio import Redis as Client  # noqa: PLC0415 - an extra
            from redis.asyncio.retry import Retry  # noqa: PLC0415 - likewise
            from redis.backoff import NoBackoff  # noqa: PLC0415 - likewise
            from redis.exceptions import ConnectionError as Away  # noqa: PLC0415 - likewise
        except ImportError as error:
            raise Unavailable("Redis needs an extra: pip install 'milepost[redis]'") from error
        client = Client.from_url(
            re.sub("^valkey", "redis", self._url),
            **{
                "protocol": 2,
                "socket_connect_timeout": CONNECT_SECONDS,
                "socket_timeout": None,  # calls have limits of their own
                "retry": Retry(NoBackoff(), 0),  # a lost connection is made anew when it is needed
                "client_name": "milepost",
                **self._options,
            },
        )
        client.response_callbacks.clear()  # answers as they come, of every version of the library
        try:
            await _ask(client, "PING")
            await self._check(client)
            return _Session(client, self._idle_ms)
        except BaseException as error:
            await client.aclose()
            if type(error) is Away or isinstance(error, OSError):
                raise Unavailable(f"{self.address} cannot be reached: {reason(error)}") from error
            raise

    async def _check(self, client: "Client") -> None:
        """Say once which settings of the server lose messages."""
        from redis.exceptions import ResponseError  # noqa: PLC0415 - an extra

        if self._warned:
            return
        self._warned = True
        found: dict[str, bytes] = {}
        with suppress(ResponseError):  # a server that is rented may not tell
            for setting in ("appendonly", "maxmemory-policy"):  # one by one, for older servers
                found |= _members(await _ask(client, "CONFIG", "GET", setting))
            for trouble in _troubles(found):
                log.warning("broker may lose messages", broker=self.address, reason=trouble)


async def _ask(client: "Client", *command: Any) -> Any:
    return await client.execute_command(*command)  # type: ignore[no-untyped-call]


def _troubles(settings: Mapping[str, bytes]) -> list[str]:
    """Name the settings of a server that lose messages which it has confirmed."""
    found = []
    if settings.get("appendonly") == b"no":
        found.append(
            "appendonly is off: messages are in memory alone, and lost with the server; set "
            "appendonly yes and appendfsync always"
        )
    if settings.get("maxmemory-policy", b"").startswith(b"allkeys"):
        found.append("maxmemory-policy evicts any key, streams too: set it to noeviction")
    return found


class _Session:
    """A connection, and what is known on it."""

    def __init__(self, client: "Client", idle_ms: int) -> None:
        self.client = client
        self.hand = Hand(delays=True)
        self.idle_ms = idle_ms
        self.consumer = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._joined: set[tuple[str, str]] = set()
        self._claim_at: dict[tuple[str, str], float] = {}
        self._due: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None
        self._ended = False

    async def do(self, *command: Any) -> Any:
        """Send a command with all others that are due: one pipeline, one trip, one fsync."""
        if self._ended:  # the library would connect anew
            raise ConnectionError("the connection was closed")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._due.append((command, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return await answer

    async def _send(self) -> None:
        try:
            while self._due:
                sent, self._due = self._due[:AT_ONCE], self._due[AT_ONCE:]
                await self._send_some(sent)
        finally:
            self._sending = None

    async def _send_some(
        self, sent: Sequence[tuple[tuple[Any, ...], "asyncio.Future[Any]"]]
    ) -> None:
        answers: Sequence[Any] = [ConnectionError("closed")] * len(sent)
        try:
            pipeline = self.client.pipeline(transaction=False)
            for command, _ in sent:
                pipeline.execute_command(*command)
            answers = await pipeline.execute(raise_on_error=False)
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            answers = [error] * len(sent)
        finally:
            for (_, waiting), answer in zip(sent, answers, strict=True):
                if waiting.done():  # whoever waited has given up
                    continue
                if isinstance(answer, Exception):
                    waiting.set_exception(answer)
                else:
                    waiting.set_result(answer)

    async def join(self, subject: str, name: str) -> None:
        """Make the stream and the group, if there is none."""
        if (subject, name) not in self._joined:
            await self.do("EVAL", JOIN, 1, subject, name, CONSUMER_IDLE_MS)
            self._joined.add((subject, name))

    async def claim(self, subject: str, name: str, most: int) -> list[Delivery]:
        """Take messages that were given back, or whose consumer died."""
        if monotonic() < self._claim_at.get((subject, name), 0.0):
            return []
        place = (subject, name, self.consumer, self.idle_ms)
        start: Any = "0-0"
        entries: Sequence[tuple[bytes, Sequence[bytes]]] = ()
        while not entries:
            start, entries, *_ = await self.do("XAUTOCLAIM", *place, start, "COUNT", most)
            if start == b"0-0":
                break
        if not entries:
            self._claim_at[subject, name] = monotonic() + BLOCK_SECONDS
            return []
        counts = await asyncio.gather(
            *(self.do("XPENDING", subject, name, entry, entry, 1) for entry, _ in entries)
        )
        return [
            self.hand.take(_Delivery(self, place[:2], entry, fields, count[0][3] if count else 1))
            for (entry, fields), count in zip(entries, counts, strict=True)
        ]

    async def read(self, subject: str, name: str, most: int, seconds: float) -> list[Delivery]:
        """Take messages that nobody had yet; wait for them for a while."""
        block = max(1, int(min(seconds, BLOCK_SECONDS) * 1_000))
        group = ("GROUP", name, self.consumer, "COUNT", most, "BLOCK", block)
        found = await _ask(self.client, "XREADGROUP", *group, "STREAMS", subject, ">")
        return [
            self.hand.take(_Delivery(self, (subject, name), entry, fields))
            for _, entries in found or ()
            for entry, fields in entries
        ]

    def look_again(self, subject: str, name: str) -> None:
        """Look for messages that were given back when the next are asked for."""
        self._claim_at.pop((subject, name), None)

    async def end(self) -> None:
        try:
            async with asyncio.timeout(ACK_SECONDS / 2):
                for subject, name in self._joined:
                    leaving = (name, self.consumer, RETURNED, self.idle_ms)
                    await self.do("EVAL", LEAVE, 1, subject, *leaving)
        finally:
            self._ended = True
            if self._sending is not None:
                self._sending.cancel()
            await self.client.aclose()


def _members(flat: Sequence[Any]) -> dict[str, Any]:
    """Read an answer that lists names and values in turn."""
    return {name.decode(): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


class _Delivery:
    """An entry of a stream that our consumer holds."""

    def __init__(
        self,
        session: _Session,
        place: tuple[str, str],
        entry: bytes,
        fields: Sequence[bytes],
        count: int = 1,
    ) -> None:
        self._session = session
        self._place = place
        self._entry = entry
        found = dict(zip(fields[::2], fields[1::2], strict=True))
        # Without an id of its own its place in the stream is one.
        own = found.get(b"id", b"").decode(errors="replace") or f"{place[0]}:{entry.decode()}"
        headers = {
            name.decode(errors="replace").lower(): value.decode(errors="replace")
            for name, value in found.items()
            if name not in OWN
        }
        self.message = Incoming(own, found.get(b"data", b""), headers, deliveries=count)

    async def acknowledge(self) -> None:
        subject, name = self._place
        await self._session.do("EVAL", DONE, 1, subject, name, self._entry)

    async def again(self, seconds: float) -> None:
        session, (subject, name) = self._session, self._place
        idle = max(0, session.idle_ms - int(seconds * 1_000))
        place = (subject, name, session.consumer, 0, self._entry)
        await session.do("XCLAIM", *place, "IDLE", idle, "JUSTID")
        session.look_again(subject, name)

    async def terminate(self) -> None:
        await self.acknowledge()
