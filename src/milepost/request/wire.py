"""The way out: one pool of connections for a worker, each to an address that the guard judged.

This is the only module that knows httpx2's engine, httpcore2; import it when something is sent.
There is no client above the pool on purpose: a client's cookies would travel from one job's request
to another's. Proxies of the environment are not read.
"""

import asyncio
import logging
import socket
import ssl
import time
import zlib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin

import httpcore2
import msgspec

from milepost.errors import Invalid
from milepost.request.declaration import WireRequest
from milepost.request.guard import AddressGuard, Refused, parse
from milepost.request.reply import Answer, TooLarge

KEEP_SECONDS = 15.0
UNSENT = (httpcore2.ConnectError, httpcore2.ConnectTimeout, httpcore2.ConnectionNotAvailable)
"""Nothing has left this machine."""
UNSENDABLE = (httpcore2.LocalProtocolError, httpcore2.UnsupportedProtocol)
UNHEARD = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.RemoteProtocolError)
"""It may have been sent, or not, or in part."""
FAILURES = (*UNSENT, *UNSENDABLE, *UNHEARD)
REDIRECTS = frozenset({301, 302, 303, 307, 308})
BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
"""Like every answer to a HEAD: their headers describe a body that does not come."""
AS_GET = frozenset({301, 302, 303})
LOGGERS = ("httpcore2.connection", "httpcore2.http11", "httpcore2.http2")
_sending: ContextVar[bool] = ContextVar("milepost_sending", default=False)


class _EventsOnly(logging.Filter):
    """Leaves the event's name of a debug line: the rest shows headers (H-105).

    Only of the engine's own requests; those that others send with the same library are theirs.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if _sending.get():
            record.msg, record.args = record.getMessage().partition(" ")[0], None
        return True


for _name in LOGGERS:
    logging.getLogger(_name).addFilter(_EventsOnly())


class UnreadableReply(Invalid):
    """A reply that was heard and cannot be used: too large, or packed in an unknown way."""

    def __init__(self, error: Invalid, answer: Answer) -> None:
        super().__init__(str(error))
        self.answer = answer
        self.code = error.code if isinstance(error, TooLarge) else "malformed"


class _Backend(httpcore2.AsyncNetworkBackend):
    """Connects to judged addresses only."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface's own
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Resolve, judge, connect: the name is not asked for again."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._guard.addresses(host, port)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"{host} was not resolved in time") from error
        except OSError as error:
            raise httpcore2.ConnectError(
                f"{host} was not found: {error.strerror or error}"
            ) from error
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._inner.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure or httpcore2.ConnectError(f"{host} has no address")

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore2.AsyncNetworkStream:
        """Refuse: no URL leads there."""
        raise Refused("a request goes to a host, not to a socket of this machine")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


Origin = tuple[str, str, int]


class Wire:
    """Sends requests; keeps idle connections by origin, the last one used first.

    httpcore2's own pool asks every connection how it is whenever a request comes or goes; with a
    hundred of them that was half of a worker's time.
    """

    def __init__(
        self, guard: AddressGuard, *, connections: int, trusted: ssl.SSLContext | None = None
    ) -> None:
        self._backend = _Backend(guard)
        self._trusted = trusted
        self._most = connections
        self._idle: dict[Origin, list[httpcore2.AsyncHTTPConnection]] = {}
        self._count = 0
        self._swept = 0.0

    async def send(self, outgoing: WireRequest) -> Answer:
        """Send, follow redirects as far as asked, and read the answer up to its limit."""
        quiet = _sending.set(True)
        try:
            return await self._follow(outgoing)
        finally:
            _sending.reset(quiet)

    async def _follow(self, outgoing: WireRequest) -> Answer:
        answer = await self._exchange(outgoing)
        for _ in range(outgoing.redirects):
            onward = _redirect(outgoing, answer)
            if onward is None:
                return answer
            outgoing = onward
            try:
                answer = await self._exchange(outgoing)
            except UNSENT as error:
                # The first one was sent.
                raise httpcore2.ReadError(f"{outgoing.target.host} was not reached") from error
        return answer

    async def _exchange(self, outgoing: WireRequest) -> Answer:
        target = outgoing.target
        scheme, host, path = (part.encode() for part in (target.scheme, target.host, target.path))
        headers = [("Host", target.authority), *outgoing.headers.items()]
        if outgoing.content or outgoing.method in ("POST", "PUT", "PATCH"):
            headers.append(("Content-Length", str(len(outgoing.content))))
        request = httpcore2.Request(
            outgoing.method.encode(),
            httpcore2.URL(scheme=scheme, host=host, port=target.port, target=path),
            headers=[(name.encode(), value.encode()) for name, value in headers],
            content=outgoing.content,
            extensions={"timeout": msgspec.structs.asdict(outgoing.timeouts)},
        )
        connection = await self._take(target.origin)
        try:
            response = await connection.handle_async_request(request)
            return await _read_answer(response, outgoing)
        finally:
            await self._give_back(target.origin, connection)

    async def close(self) -> None:
        """Close every idle connection."""
        for connections in self._idle.values():
            for connection in connections:
                await connection.aclose()
        self._idle.clear()
        self._count = 0

    async def _take(self, origin: Origin) -> httpcore2.AsyncHTTPConnection:
        """Give out an idle connection, or a new one."""
        await self._sweep()
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            self._count -= 1
            if connection.is_available() and not connection.has_expired():
                return connection
            await connection.aclose()
        scheme, host, port = origin
        return httpcore2.AsyncHTTPConnection(
            httpcore2.Origin(scheme.encode(), host.encode(), port),
            ssl_context=(self._trusted or _trusted()) if scheme == "https" else None,
            keepalive_expiry=KEEP_SECONDS,
            network_backend=self._backend,
            socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
        )

    async def _give_back(self, origin: Origin, connection: httpcore2.AsyncHTTPConnection) -> None:
        """Keep a connection for the next one, if it can still be used and there is room."""
        if self._count < self._most and connection.is_connected() and connection.is_idle():
            self._idle.setdefault(origin, []).append(connection)
            self._count += 1
        else:
            await connection.aclose()

    async def _sweep(self) -> None:
        """Close, now and then, the connections that were not used again."""
        now = time.monotonic()
        if now - self._swept < KEEP_SECONDS:
            return
        self._swept = now
        for origin, connections in list(self._idle.items()):
            over = [one for one in connections if one.has_expired()]
            self._count -= len(over)
            kept = self._idle[origin] = [one for one in connections if one not in over]
            if not kept:
                del self._idle[origin]
            for one in over:
                await one.aclose()


async def _read_answer(response: httpcore2.Response, outgoing: WireRequest) -> Answer:
    headers, url = _decode_headers(response.headers), outgoing.target.shown
    try:
        bodiless = outgoing.method == "HEAD" or response.status in BODILESS
        content = await _read_body(response, {} if bodiless else headers, outgoing.most)
    except Invalid as error:
        raise UnreadableReply(error, Answer(response.status, headers, b"", url)) from None
    finally:
        await response.aclose()
    return Answer(response.status, headers, content, url)


@cache
def _trusted() -> ssl.SSLContext:
    """Read the certificates of the world once; that takes a while."""
    return httpcore2.default_ssl_context()


def _decode_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in raw:
        plain, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[plain] = f"{headers[plain]}, {text}" if plain in headers else text
    return headers


def _redirect(outgoing: WireRequest, answer: Answer) -> WireRequest | None:
    """Say where a redirect leads; its target is judged like any other. None when it leads nowhere.

    Credentials stay with the origin they were meant for, and a request over TLS is not sent again
    without it.
    """
    location = answer.headers.get("location")
    if answer.status not in REDIRECTS or not location or not outgoing.redirects:
        return None
    old = outgoing.target
    try:
        target = parse(urljoin(f"{old.scheme}://{old.authority}{old.path}", location))
    except ValueError:
        raise Refused("a redirect leads to what is no URL; nothing was sent there") from None
    if (old.scheme, target.scheme) == ("https", "http"):
        raise Refused("a redirect leads from https to http; nothing was sent there")
    headers = dict(outgoing.headers)
    if target.origin != old.origin:
        headers = {n: v for n, v in headers.items() if n.lower() not in outgoing.private}
    onward = msgspec.structs.replace(outgoing, target=target, headers=headers)
    if answer.status in AS_GET and outgoing.method not in ("GET", "HEAD"):
        kept = {n: v for n, v in headers.items() if n.lower() != "content-type"}
        return msgspec.structs.replace(onward, method="GET", content=b"", headers=kept)
    if outgoing.sealed and target.origin != old.origin:
        raise Refused(
            f"a redirect leads to {target.host}, and the body holds a secret that is for "
            f"{old.host}; nothing was sent there"
        )
    return onward


async def _read_body(response: httpcore2.Response, headers: Mapping[str, str], most: int) -> bytes:
    """Read a body while it stays within the limit: as it comes, and as it unpacks."""
    told = headers.get("content-length", "")
    if told.isdigit() and int(told) > most:
        raise TooLarge(f"the reply has {int(told):,} bytes, and the limit is {most:,}")
    unpacker = _unpacker(headers.get("content-encoding", ""))
    pieces: list[bytes] = []
    come = size = 0
    async for chunk in response.aiter_stream():
        # Empty members unpack to nothing: the packed bytes are counted too.
        come += len(chunk)
        if come <= most:
            piece = chunk if unpacker is None else unpacker.unpacked(chunk, most - size + 1)
            pieces.append(piece)
            size += len(piece)
        if max(come, size) > most:
            raise TooLarge(f"the reply has more than {most:,} bytes, which is the limit")
    if unpacker is not None:
        unpacker.finish()
    return b"".join(pieces)


class _Unpacker:
    """Unpacks a body piece by piece: every gzip member of it, and the last one to its end."""

    def __init__(self, *, members: bool) -> None:
        self._members = members
        self._stream = _stream()
        self._begun = False

    def unpacked(self, chunk: bytes, room: int) -> bytes:
        """Unpack a chunk, and no more than there is room for: bytes may become gigabytes."""
        pieces: list[bytes] = []
        while room > 0 and (chunk := self._onward(chunk)):
            try:
                piece = self._stream.decompress(chunk, room)
            except zlib.error as error:
                raise Invalid(f"the reply could not be unpacked: {error}") from None
            pieces.append(piece)
            room -= len(piece)
            chunk = self._stream.unused_data
        return b"".join(pieces)

    def _onward(self, chunk: bytes) -> bytes:
        """Begin the next member where one ended; zeros between and after them are padding."""
        if self._stream.eof:
            chunk = chunk.lstrip(b"\0")
            if chunk and not self._members:
                raise Invalid("the reply could not be unpacked: it goes on after its end")
            self._stream = _stream() if chunk else self._stream
        self._begun = self._begun or bool(chunk)
        return chunk

    def finish(self) -> None:
        """Refuse a body that was cut short: half of a text is not the server's answer."""
        if self._begun and not self._stream.eof:
            raise Invalid("the reply could not be unpacked: it was cut short")


def _stream() -> Any:
    return zlib.decompressobj(zlib.MAX_WBITS | 32)  # either header, by itself


def _unpacker(encoding: str) -> _Unpacker | None:
    kind = encoding.strip().lower()
    if kind in ("", "identity"):
        return None
    if kind in ("gzip", "x-gzip", "deflate"):
        return _Unpacker(members=kind != "deflate")
    raise Invalid(f"the reply is packed as {kind[:40]!r}, which was not asked for")
