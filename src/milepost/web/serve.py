"""Serves the API by itself: loopback unless told otherwise, and never open to the world."""

import asyncio
import ipaddress
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from milepost.client import Client
from milepost.errors import Invalid

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from uvicorn import Server

GRACE_SECONDS = 3
"""How long streams and slow answers are given when the server stops."""

BACKLOG = 2048

CONNECTIONS = 2_000
"""How many connections are open at once; further ones are answered 503."""


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

    from milepost.web.watch import watching  # noqa: PLC0415

    config = Config(
        api,
        # It calls whatever it is given.
        http=cast("Any", watching(AutoHTTPProtocol, most=connections)),
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        # Whoever claims to be a proxy could name any address as the caller's.
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
