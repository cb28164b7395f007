"""Watches connections: how many there are, and how long each takes to say what it wants.

uvicorn closes a connection that rests between two requests. One that never finishes the headers of
a request it would keep for ever, and as many of them as come (slowloris); and so one that asks for
a large answer and does not read it.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from milepost.web.problems import Problem, problem_response

if TYPE_CHECKING:
    from uvicorn import Config

HEADER_SECONDS = 10.0
"""How long the headers of a request may take to come, from a connection's first moment on."""

READ_SECONDS = 60.0
"""How long a client may leave an answer unread that has filled what lies between."""


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


class Watched(asyncio.Protocol):
    """One connection: uvicorn serves it, and it is closed if it says nothing in time."""

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
            self._refuse(Problem(503, detail, headers={"Retry-After": "1"}))
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
            seconds = f"{HEADER_SECONDS:g}"
            self._refuse(Problem(408, f"no whole request came within {seconds} seconds"))

    def _refuse(self, problem: Problem) -> None:
        assert self._transport is not None  # noqa: S101 - a connection was made
        if not self._transport.is_closing():
            self._transport.write(_written(problem))
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
        """Hand it on; whoever reads nothing of an answer for long is given up."""
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


def _written(problem: Problem) -> bytes:
    """Write a problem where no request is, and none will be."""
    response = problem_response(problem)
    response.headers["Connection"] = "close"
    lines = [f"HTTP/1.1 {problem.status_code} ".encode()]
    lines += [name + b": " + value for name, value in response.raw_headers]
    return b"\r\n".join([*lines, b"", bytes(response.body)])


def watching(served: Callable[..., Any], *, most: int) -> Callable[..., Watched]:
    """Make what uvicorn makes a connection's protocol with: its own, watched."""

    def made(config: "Config", **state: Any) -> Watched:
        return Watched(served(config=config, **state), most=most)

    return made
