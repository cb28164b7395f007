"""Serves the API by itself: loopback unless told otherwise, and never open to the world.

uvicorn closes a connection that rests between two requests. A connection that never finishes the
headers of a request it would keep for ever, and as many of them as come (slowloris); and so one
that asks for a large answer and does not read it. `GuardedConnection` ends those.
"""

import asyncio
import ipaddress
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from milepost.client import Client
from milepost.errors import Invalid
from milepost.web.problems import HttpProblem, problem_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Config, Server

GRACE_SECONDS = 3
"""How long streams and slow answers are given when the server stops."""

BACKLOG = 2048

CONNECTIONS = 2_000
"""How many connections are open at once; further ones are answered 503."""

HEADER_SECONDS = 10.0
"""How long the headers of a request may take to come, from a connection's first moment on."""

READ_SECONDS = 60.0
"""How long a client may leave an answer unread that has filled all buffers in between."""


def is_public(host: str) -> bool:
    """Tell whether anybody beyond this machine could reach a server bound there."""
    return not all(ipaddress.ip_address(found).is_loopback for found in _addresses(host))


def _addresses(host: str) -> set[str]:
    with suppress(ValueError):
        return {str(ipaddress.ip_address(host.partition("%")[0]))}
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError) as error:
        raise Invalid(f"host={host!r} is no address of this machine and no name of one") from error
    return {str(each[4][0]).partition("%")[0] for each in found}


def listen(host: str, port: int) -> socket.socket:
    """Bind, or raise `Invalid` saying why not."""
    try:
        family = socket.getaddrinfo(host, port)[0][0]
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Invalid(f"cannot listen at {host} port {port}: {error.strerror or error}") from error
    # Its connections inherit it. Without, the body of an answer waits 40 ms until its head has been
    # acknowledged; event loops set it only on sockets whose protocol is given by number.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return bound


def address(bound: socket.socket) -> tuple[str, int]:
    """Tell where it is bound."""
    name = bound.getsockname()
    return str(name[0]), int(name[1])


def link(bound: socket.socket) -> str:
    """Tell where a browser finds it."""
    host, port = address(bound)
    named = f"[{host}]" if ":" in host else host
    return f"http://{named}:{port}"


def server(api: "ASGIApp", *, root_path: str = "", connections: int = CONNECTIONS) -> "Server":
    """Make a server for a bound socket: `await server.serve([socket])`."""
    # An extra, and it takes a while.
    from uvicorn import Config, Server  # noqa: PLC0415
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # noqa: PLC0415

    def guarded(config: "Config", **state: Any) -> GuardedConnection:
        protocol = cast("Any", AutoHTTPProtocol)(config=config, **state)
        return GuardedConnection(protocol, most=connections)

    config = Config(
        api,
        # It calls whatever it is given.
        http=cast("Any", guarded),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        log_config=None,  # its lines go where all others go
        server_header=False,
        # A caller that claims to be a proxy could name any address as its own.
        proxy_headers=False,
        root_path=root_path,
        timeout_graceful_shutdown=GRACE_SECONDS,
        backlog=BACKLOG,
    )
    return Server(config)


def run_in_thread(serving: "Server", bound: socket.socket, client: Client) -> None:
    """Serve in a thread of one's own until `serving.should_exit`; signals are somebody else's."""
    asyncio.run(_serve(serving, bound, client))


async def _serve(serving: "Server", bound: socket.socket, client: Client) -> None:
    try:
        await serving.serve([bound])
    finally:
        await client.close_async()


class _UvicornProtocol(Protocol):
    """The calls that both of uvicorn's protocols answer."""

    connections: set[Any]
    cycle: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class GuardedConnection(asyncio.Protocol):
    """One connection: uvicorn serves it, and it is closed if no request comes in time."""

    def __init__(self, served: _UvicornProtocol, *, most: int) -> None:
        self._served = served
        self._most = most
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a connection, or answer that there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._served.connection_made(transport)
        if len(self._served.connections) > self._most:
            detail = f"{self._most:,} connections are open here; try again"
            self._refuse(HttpProblem(503, detail, headers={"Retry-After": "1"}))
        else:
            self._await_headers()

    def data_received(self, data: bytes) -> None:
        """Hand data on; the time runs while no request has begun."""
        if self._transport is None or self._transport.is_closing():
            return
        self._served.data_received(data)
        if self._is_busy:
            self._stop()
        elif self._timer is None:
            self._await_headers()

    @property
    def _is_busy(self) -> bool:
        cycle = self._served.cycle
        return cycle is not None and not cycle.response_complete

    def _await_headers(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HEADER_SECONDS, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        if not self._is_busy:
            detail = f"no whole request came within {HEADER_SECONDS:g} seconds"
            self._refuse(HttpProblem(408, detail))

    def _refuse(self, problem: HttpProblem) -> None:
        """Answer where no request is, and none will be."""
        assert self._transport is not None  # noqa: S101 - a connection was made
        if self._transport.is_closing():
            return
        response = problem_response(problem)
        response.headers["Connection"] = "close"
        lines = [f"HTTP/1.1 {problem.status_code} ".encode()]
        lines += [name + b": " + value for name, value in response.raw_headers]
        self._transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        self._transport.close()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand it on."""
        self._stop()
        self._read_again()
        self._served.connection_lost(exc)

    def eof_received(self) -> bool | None:
        """Hand it on."""
        return self._served.eof_received()

    def pause_writing(self) -> None:
        """Hand it on; a client that reads nothing of an answer for long is given up."""
        self._served.pause_writing()
        if self._unread is None and self._transport is not None:
            loop = asyncio.get_running_loop()
            self._unread = loop.call_later(READ_SECONDS, self._transport.abort)

    def resume_writing(self) -> None:
        """Hand it on."""
        self._read_again()
        self._served.resume_writing()

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
