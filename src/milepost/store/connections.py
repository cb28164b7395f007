"""Connections to PostgreSQL: opened with limits, kept for the next caller, dropped when they end.

A peer that is gone may say nothing (F4). So every wait has an end on this side, by keepalives and
a deadline for each statement, and on the server's, which ends the transaction of a program that it
does not hear from. The server gets these settings when a connection is opened, or, where a pooler
refuses that, with every BEGIN.

`Connections` is a pool in either colour; a `Library` says how its connections are handled.
"""

import asyncio
import math
import os
import select
import socket
import threading
import time
from bisect import insort
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import msgspec

from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.errors import AccessRefused, Invalid, MilepostError, Unavailable
from milepost.faces import Flow, Wait, faces

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
IDLE_SECONDS = 300
CLOSE_SECONDS = 1.0
"""How long connections in use are waited for when all is closed."""
PROBES = 3
"""So many keepalives go unanswered before a connection is given up."""
MISSING = "PostgreSQL needs an extra: pip install 'milepost[postgres]'"
REFUSED_STATES = ("28", "3D", "42")
REFUSED_WORDS = (
    "authentication",
    "does not exist",
    "pg_hba.conf",
    "permission denied",
    "not permit",
)
TRACKED = {"DateStyle": "ISO", "TimeZone": "UTC", "standard_conforming_strings": "on"}
"""Reading and writing values needs these; a transaction pooler keeps them for each client."""
PARSED = {
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "array_nulls": "on",
}
"""And these, which no pooler keeps."""
PLANNED = {"enable_seqscan": "off", "jit": "off"}
"""A plan that is made while a table is small, and kept, must serve a large one."""
LEVEL = {"default_transaction_isolation": "read committed"}
"""Statements outside a transaction, such as claims under limits, see commits of others, too."""
WATCHED = {"client_connection_check_interval": "500"}
"""A server looks twice a second, while a statement runs, whether its program is still there."""
ENCODING = "UTF8"
SETTINGS_REFUSED = "unsupported startup parameter"
"""PgBouncer's answer to a setting: it cannot know whose the connection will be."""

_open: "WeakSet[Any]" = WeakSet()
_if_killed: dict[str, str] = {}
"""The settings of connections in a process that may be killed at any time."""


def end_with_process() -> None:
    """Have servers end the statements of this process when it is killed.

    By default one goes on to its end, with its locks.
    """
    _if_killed.update(WATCHED)


def settings_of(limits: Timeouts, *, own: bool) -> dict[str, str]:
    """List the settings of a session, whatever is set for its database or the role.

    A connection that is lent is not the engine's own: how it reads values is left to its user.
    """
    return {
        "idle_in_transaction_session_timeout": str(math.ceil(limits.idle * 1000)),
        # By default a server keeps the connection of a machine that is gone for two hours.
        "tcp_keepalives_idle": str(_keepalive(limits)),
        "tcp_keepalives_interval": str(_keepalive(limits)),
        "tcp_keepalives_count": str(PROBES),
        **_if_killed,
        **({**PARSED, **PLANNED, **LEVEL} if own else {}),
    }


def begin_text(limits: Timeouts, *, with_settings: bool) -> str:
    """Spell the beginning of a transaction; fan-in sees commits of others meanwhile."""
    # Whatever the server's default level is.
    sets = [idle_text(limits.idle), *(f"SET LOCAL {name} = {PARSED[name]}" for name in PARSED)]
    return "; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED", *(sets if with_settings else [])])


def idle_text(seconds: float) -> str:
    """Have the server wait so long, from now on, for a transaction that is not heard of."""
    return f"SET LOCAL idle_in_transaction_session_timeout = {math.ceil(seconds * 1000)}"


class Library(msgspec.Struct, frozen=True):
    """How the connections of a library are opened, examined and closed."""

    open: Callable[..., Any]
    """Given the address, the limits, and whether the server gets its settings now."""
    semaphore: Callable[[int], Any]
    errors: Callable[[], tuple[type[Exception], ...]]
    """The errors that say why a connection was not opened."""
    is_closed: Callable[[Any], bool]
    in_transaction: Callable[[Any], bool]
    drop: Callable[[Any], None]
    """Close it at once."""


# psycopg


@cache
def connection_class() -> "type[psycopg.Connection[Any]]":
    """Make the class of connections that stop waiting at a deadline."""
    _psycopg()
    import psycopg  # noqa: PLC0415 - an extra

    class LimitedConnection(psycopg.Connection[Any]):
        until = math.inf
        """When to wait no longer, by the monotonic clock."""

        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            """Wait for an answer until the deadline."""
            return super().wait(_by(self, gen), *args, **kwargs)

        def __del__(self, *_: object) -> None:
            """Say nothing of a program that ends without closing its store."""

    return LimitedConnection


def _by(connection: Any, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Pass a wait on until the deadline; psycopg looks in several times a second."""
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() >= connection.until:
                _give_up(connection)
                raise _psycopg().OperationalError("the server did not answer in time")
            wanted = waiting.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer


def _give_up(connection: Any) -> None:
    """Close a connection whose answer may still come; tell the server, if it is there."""
    if _psycopg().capabilities.has_cancel_safe():
        with suppress(Exception):
            connection.cancel_safe(timeout=CLOSE_SECONDS)
    connection.close()


def psycopg_library(
    *,
    own: bool = True,
    autocommit: bool = True,
    configure: Callable[[Any], None] | None = None,
) -> Library:
    """Describe connections of psycopg, for threads; lent ones are not the engine's own."""
    return Library(
        open=partial(_connect, own=own, autocommit=autocommit, configure=configure),
        semaphore=threading.Semaphore,
        errors=lambda: (_psycopg().Error,),
        is_closed=lambda connection: connection.closed,
        in_transaction=lambda connection: connection.info.transaction_status,
        drop=lambda connection: connection.close(),
    )


def _connect(
    url: StoreUrl,
    limits: Timeouts,
    *,
    with_settings: bool,
    own: bool,
    autocommit: bool,
    configure: Callable[[Any], None] | None,
) -> Any:
    psycopg = _psycopg()
    try:
        given = psycopg.conninfo.conninfo_to_dict(url.target)
    except psycopg.ProgrammingError as error:
        raise Invalid(f"{url}: {_first_line(error)}") from error
    more: dict[str, Any] = {**_tcp(limits), **given, "client_encoding": ENCODING}
    if with_settings:
        settings = {**settings_of(limits, own=own), **(TRACKED if own else {})}
        escaped = {name: value.replace(" ", "\\ ") for name, value in settings.items()}
        words = [f"-c {name}={value}" for name, value in escaped.items()]
        more["options"] = " ".join([str(given.get("options") or ""), *words]).strip()
    if url.pooled:  # the next statement may reach another server process
        more["prepare_threshold"] = None
    connection = connection_class().connect(autocommit=autocommit, **more)
    if own and not with_settings:
        sets = "; ".join(f"SET {name} = '{value}'" for name, value in TRACKED.items())
        connection.execute(sets.encode())
    if configure is not None:
        configure(connection)
    _open.add(connection)
    return connection


def _tcp(limits: Timeouts) -> dict[str, Any]:
    """Say when a peer that does not answer is given up."""
    return {
        "connect_timeout": max(1, round(limits.connect)),
        "keepalives": 1,
        "keepalives_idle": _keepalive(limits),
        "keepalives_interval": _keepalive(limits),
        "keepalives_count": PROBES,
        "tcp_user_timeout": math.ceil(limits.command * 1000),
    }


def _keepalive(limits: Timeouts) -> int:
    return max(1, round(limits.command / (PROBES + 1)))


# asyncpg


def asyncpg_library(*, own: bool = True, limited: bool = True) -> Library:
    """Describe connections of asyncpg, for tasks; if `limited`, each statement has a limit."""

    def errors() -> tuple[type[Exception], ...]:
        asyncpg = import_asyncpg()
        return asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError

    return Library(
        open=partial(connect_async, own=own, limited=limited),
        semaphore=asyncio.Semaphore,
        errors=errors,
        is_closed=lambda connection: connection.is_closed(),
        in_transaction=lambda connection: connection.is_in_transaction(),
        drop=lambda connection: connection.terminate(),
    )


async def connect_async(
    url: StoreUrl,
    limits: Timeouts,
    *,
    with_settings: bool = False,
    own: bool = False,
    limited: bool = True,
) -> Any:
    """Open a connection for the running loop; the server is given the settings of its session."""
    settings = TRACKED if own else {}
    if with_settings:
        settings = settings | settings_of(limits, own=own)
    more: dict[str, Any] = {"server_settings": settings}
    if url.pooled:  # the next statement may reach another server process
        more["statement_cache_size"] = 0
    if limited:
        more["command_timeout"] = limits.command
    connection = await import_asyncpg().connect(url.target, timeout=limits.connect, **more)
    _keep_alive(connection, limits)
    _open.add(connection)
    return connection


def _keep_alive(connection: Any, limits: Timeouts) -> None:
    """Have the system give up a peer that does not answer; libpq does it for psycopg."""
    there = socket.socket(fileno=os.dup(_number(connection)))
    with there:
        if there.family == getattr(socket, "AF_UNIX", None):
            return
        there.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        wanted = {
            "TCP_KEEPIDLE": _keepalive(limits),
            "TCP_KEEPINTVL": _keepalive(limits),
            "TCP_KEEPCNT": PROBES,
            "TCP_USER_TIMEOUT": math.ceil(limits.command * 1000),
        }
        for name, value in wanted.items():
            if hasattr(socket, name):  # not every system knows each
                there.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _number(connection: Any) -> int:
    """Tell the number of the socket of a connection."""
    if hasattr(connection, "pgconn"):
        return int(connection.pgconn.socket)
    return int(connection._transport.get_extra_info("socket").fileno())  # noqa: SLF001 - no other way


# The pool


class Connections:
    """Connections that are kept for the next caller: the one that was opened first is taken first.

    It knows the most statements, which a server plans anew for every connection. They are kept
    here and not in a library's pool: asyncpg's spends a task on every return.
    """

    def __init__(self, url: StoreUrl, limits: Timeouts, library: Library, *, most: int) -> None:
        self.limits = limits
        self.url = url
        self._library = library
        self._most = most
        self._room: Any = library.semaphore(most)
        self._idle: list[tuple[int, float, Any]] = []
        """Those that nobody uses, the first one last: when it was opened, since when it is idle."""
        self._opened_at: dict[int, int] = {}
        self._places = count(1)
        self._closed = False
        self._give_settings(at_start=not url.pooled)

    def _give_settings(self, *, at_start: bool) -> None:
        """Choose when the server gets its settings: at a connection's start, or with BEGIN."""
        self._at_start = at_start
        self.begin = begin_text(self.limits, with_settings=not at_start)

    def _take(self, *, fresh: bool = False) -> Flow[Any]:
        """Take a connection that is alive, or open one; `fresh`, none that was used before."""
        if self._closed:
            raise Unavailable(f"{self.url} was closed")
        if not (yield Wait(self._wait_for_room, self._room.acquire)):
            raise Unavailable(
                f"all {self._most} connections of this process to {self.url} were in use for "
                f"{self.limits.command:g} s; try again"
            )
        try:
            return (None if fresh else self._kept()) or (yield from self._opened())
        except BaseException:
            self._room.release()
            raise

    take, take_async = faces(_take)

    def _wait_for_room(self) -> bool:
        return bool(self._room.acquire(timeout=self.limits.command))

    def _kept(self) -> Any:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()[2]
                if not self._library.is_closed(connection) and _silent(_number(connection)):
                    return connection
                self._drop(connection)
        return None

    def _opened(self) -> Flow[Any]:
        open_, settings = self._library.open, {"with_settings": self._at_start}
        try:
            connection = yield Wait(open_, open_, (self.url, self.limits), settings)
        except self._library.errors() as error:
            if _if_killed and any(name in str(error) for name in WATCHED):
                _if_killed.clear()  # a server on another system, which cannot look
                return (yield from self._opened())
            if self._at_start and SETTINGS_REFUSED in str(error):
                self._give_settings(at_start=False)
                return (yield from self._opened())
            raise unreachable(self.url, error) from error
        self._opened_at[id(connection)] = -next(self._places)
        return connection

    def _drop(self, connection: Any) -> None:
        self._opened_at.pop(id(connection), None)
        self._library.drop(connection)

    def use(self) -> dict[str, int]:
        """Tell how many are busy, and how many are idle."""
        free: int = self._room._value  # noqa: SLF001 - asking costs those who take nothing
        return {"busy": self._most - free, "idle": len(self._idle)}

    def give_back(self, connection: Any) -> None:
        """Keep a connection for the next caller; close those that nobody needed for long."""
        now = time.monotonic()
        library = self._library
        try:
            closed = self._closed or library.is_closed(connection)
            if closed or library.in_transaction(connection):
                self._drop(connection)
                return
            insort(self._idle, (self._opened_at[id(connection)], now, connection))
            with suppress(IndexError):
                while now - self._idle[0][1] > IDLE_SECONDS:
                    self._drop(self._idle.pop(0)[2])
        finally:
            self._room.release()

    def discard(self, connection: Any) -> None:
        """Close a connection that is not to be used again."""
        self._drop(connection)
        self.give_back(connection)

    @contextmanager
    def taken(self, *, fresh: bool = False) -> Iterator[Any]:
        """Use a connection."""
        connection = self.take(fresh=fresh)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def close(self) -> None:
        """Close idle connections; the others are closed when they are given back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._drop(self._idle.pop()[2])

    async def close_async(self) -> None:
        """Close every connection, once those in use are given back."""
        self._closed = True
        with suppress(TimeoutError):  # a caller that hangs has a deadline of its own
            async with asyncio.timeout(CLOSE_SECONDS):
                for _ in range(self._most):
                    await self._room.acquire()
        while self._idle:
            connection = self._idle.pop()[2]
            try:
                await connection.close(timeout=1)
            except Exception:  # noqa: BLE001 - it need not hear of it
                connection.terminate()


def _silent(number: int) -> bool:
    """Tell whether nothing came in: on an idle connection nothing does, except its end."""
    if not hasattr(select, "poll"):
        return not select.select([number], [], [], 0)[0]
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return not poll.poll(0)


# Errors


def unreachable(url: StoreUrl, error: Exception) -> MilepostError:
    """Say why no connection came about, in words that repeat no password."""
    state = getattr(error, "sqlstate", None)
    said = str(error) if state else str(error).partition("FATAL:")[2]
    reason = said.strip().split("\n")[0]
    if not reason:
        return Unavailable(f"{url} cannot be reached; is the server running?")
    if (state or "").startswith(REFUSED_STATES) or any(word in reason for word in REFUSED_WORDS):
        return AccessRefused(f"{url} cannot be used: {reason}")
    return Unavailable(f"{url} cannot be reached: {reason}")


def _first_line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0]


def _psycopg() -> Any:
    try:
        import psycopg  # noqa: PLC0415 - an extra: SQLite users need not have it
    except ImportError as error:
        raise Unavailable(MISSING) from error
    return psycopg


def import_asyncpg() -> Any:
    """Import asyncpg, or say which extra is missing."""
    try:
        import asyncpg  # noqa: PLC0415 - an extra: SQLite users need not have it
    except ImportError as error:
        raise Unavailable(MISSING) from error
    return asyncpg


# After a fork


def _leave_to_parent() -> None:
    """Let go of the parent's connections, and say nothing on them.

    While a child holds one, the server does not learn that the parent has died.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in list(_open):
        with suppress(Exception):  # it was closed before
            os.dup2(nowhere, _number(connection), inheritable=False)
    os.close(nowhere)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
