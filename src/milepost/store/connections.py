"""Connections to PostgreSQL: opened with limits, kept for the next caller, dropped when they end.

A peer that is gone may say nothing (F4). So every wait has an end on this side, by keepalives and
a deadline for each statement, and on the server's, which ends the transaction of a program that it
does not hear from. The server is told when a connection is opened, or, where a pooler stands
between and refuses that, with every BEGIN.
"""

import asyncio
import math
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from milepost.config import Limits, StoreUrl
from milepost.errors import AccessRefused, Invalid, MilepostError, Unavailable

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
IDLE_SECONDS = 300
CLOSE_SECONDS = 1.0
"""How long those who use a connection are waited for when all is closed."""
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
"""What reading and writing values needs; a transaction pooler keeps these for each client."""
PARSED = {
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "array_nulls": "on",
}
"""What it needs besides, and no pooler keeps."""
ENCODING = "UTF8"
UNTOLD = "unsupported startup parameter"
"""What PgBouncer says to a setting: it does not know to whom the connection will belong."""

_open: "WeakSet[Any]" = WeakSet()


def settings_of(limits: Limits, *, own: bool) -> dict[str, str]:
    """Say what the server is to keep to, whatever is set for its database or the role.

    A connection that is lent is not the engine's own: how it reads values is left to its user.
    """
    return {
        "idle_in_transaction_session_timeout": str(math.ceil(limits.idle * 1000)),
        # By default a server keeps the connection of a machine that is gone for two hours.
        "tcp_keepalives_idle": str(_keepalive(limits)),
        "tcp_keepalives_interval": str(_keepalive(limits)),
        "tcp_keepalives_count": str(PROBES),
        **(PARSED if own else {}),
    }


def begin_text(limits: Limits, *, told: bool) -> str:
    """Spell the beginning of a transaction; fan-in counts what others have committed meanwhile."""
    # Whatever the server's default level is.
    sets = [idle_text(limits.idle), *(f"SET LOCAL {name} = {PARSED[name]}" for name in PARSED)]
    return "; ".join(["BEGIN ISOLATION LEVEL READ COMMITTED", *([] if told else sets)])


def idle_text(seconds: float) -> str:
    """Have the server wait so long, from now on, for a transaction that is not heard of."""
    return f"SET LOCAL idle_in_transaction_session_timeout = {math.ceil(seconds * 1000)}"


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


def connect(
    url: StoreUrl, limits: Limits, *, told: bool, own: bool = True, autocommit: bool = True
) -> Any:
    """Open a connection; `told`, the server is given its limits."""
    psycopg = _psycopg()
    try:
        given = psycopg.conninfo.conninfo_to_dict(url.target)
    except psycopg.ProgrammingError as error:
        raise Invalid(f"{url}: {_first_line(error)}") from error
    more: dict[str, Any] = {**_tcp(limits), **given, "client_encoding": ENCODING}
    if told:
        settings = {**settings_of(limits, own=own), **(TRACKED if own else {})}
        words = [f"-c {name}={value}" for name, value in settings.items()]
        more["options"] = " ".join([str(given.get("options") or ""), *words]).strip()
    if url.pooled:  # the next statement may reach another server process
        more["prepare_threshold"] = None
    connection = connection_class().connect(autocommit=autocommit, **more)
    _open.add(connection)
    return connection


def _tcp(limits: Limits) -> dict[str, Any]:
    """Say when a peer that does not answer is given up."""
    return {
        "connect_timeout": max(1, round(limits.connect)),
        "keepalives": 1,
        "keepalives_idle": _keepalive(limits),
        "keepalives_interval": _keepalive(limits),
        "keepalives_count": PROBES,
        "tcp_user_timeout": math.ceil(limits.command * 1000),
    }


def _keepalive(limits: Limits) -> int:
    return max(1, round(limits.command / (PROBES + 1)))


class Connections:
    """Connections for threads: the one that was used last is taken first."""

    def __init__(
        self,
        url: StoreUrl,
        limits: Limits,
        *,
        most: int,
        own: bool = True,
        autocommit: bool = True,
        configure: Callable[[Any], None] | None = None,
    ) -> None:
        """Make a pool; connections that are the engine's `own` read values as it needs them."""
        self.limits = limits
        self._url = url
        self._own = own
        self._autocommit = autocommit
        self._configure = configure
        self._most = most
        self._room = threading.Semaphore(most)
        self._idle: deque[tuple[float, Any]] = deque()
        self._closed = False
        self._tell(told=not url.pooled)

    def _tell(self, *, told: bool) -> None:
        self._told = told
        self.begin = begin_text(self.limits, told=told).encode()

    @contextmanager
    def taken(self, *, fresh: bool = False) -> Iterator[Any]:
        """Use a connection."""
        connection = self.take(fresh=fresh)
        try:
            yield connection
        finally:
            self.give_back(connection)

    def take(self, *, fresh: bool = False) -> Any:
        """Take a connection that is alive, or open one; `fresh`, none of those that rest."""
        if self._closed:
            raise Unavailable(f"{self._url} was closed")
        if not self._room.acquire(timeout=self.limits.command):
            raise Unavailable(
                f"all {self._most} connections of this process to {self._url} were in use for "
                f"{self.limits.command:g} s; try again"
            )
        try:
            return (None if fresh else self._kept()) or self._opened()
        except BaseException:
            self._room.release()
            raise

    def _kept(self) -> Any:
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()[1]
                if not connection.closed and _silent(connection.pgconn.socket):
                    return connection
                connection.close()
        return None

    def _opened(self) -> Any:
        psycopg = _psycopg()
        try:
            made = connect(
                self._url,
                self.limits,
                told=self._told,
                own=self._own,
                autocommit=self._autocommit,
            )
            if self._own and not self._told:
                made.execute("; ".join(f"SET {n} = '{v}'" for n, v in TRACKED.items()).encode())
            if self._configure is not None:
                self._configure(made)
        except psycopg.Error as error:
            if self._told and UNTOLD in str(error):
                self._tell(told=False)
                return self._opened()
            raise unreachable(self._url, error) from error
        return made

    def give_back(self, connection: Any) -> None:
        """Keep a connection for the next one; close those that nobody needed for long."""
        now = time.monotonic()
        try:
            if self._closed or connection.closed or connection.info.transaction_status:
                connection.close()
                return
            self._idle.append((now, connection))
            with suppress(IndexError):
                while now - self._idle[0][0] > IDLE_SECONDS:
                    self._idle.popleft()[1].close()
        finally:
            self._room.release()

    def close(self) -> None:
        """Close what is not in use; the rest is closed when it is given back."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop()[1].close()


# asyncpg


async def connect_async(
    url: StoreUrl,
    limits: Limits,
    *,
    limited: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Any:
    """Open a connection for the running loop; the server is given the `settings`."""
    more: dict[str, Any] = {"server_settings": dict(settings or {})}
    if url.pooled:  # the next statement may reach another server process
        more["statement_cache_size"] = 0
    if limited:
        more["command_timeout"] = limits.command
    connection = await import_asyncpg().connect(url.target, timeout=limits.connect, **more)
    _keep_alive(connection, limits)
    _open.add(connection)
    return connection


def _keep_alive(connection: Any, limits: Limits) -> None:
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


class AsyncConnections:
    """Connections for the tasks of one event loop: the one that was used last is taken first.

    They are kept here and not in asyncpg's pool, which spends a task on every return.
    """

    def __init__(
        self,
        url: StoreUrl,
        limits: Limits,
        *,
        most: int,
        own: bool = True,
        limited: bool = True,
    ) -> None:
        """Make a pool; the engine's `own` connections; `limited`, a statement has a limit."""
        self.limits = limits
        self._own = own
        self._limited = limited
        self._url = url
        self._most = most
        self._room = asyncio.Semaphore(most)
        self._idle: deque[tuple[float, Any]] = deque()
        self._closed = False
        self._tell(told=not url.pooled)

    def _tell(self, *, told: bool) -> None:
        self._told = told
        self.begin = begin_text(self.limits, told=told)

    async def take(self, *, fresh: bool = False) -> Any:
        """Take a connection that is alive, or open one; `fresh`, none of those that rest."""
        if self._closed:
            raise Unavailable(f"{self._url} was closed")
        await self._room.acquire()
        try:
            while self._idle and not fresh:
                connection = self._idle.pop()[1]
                if not connection.is_closed() and _silent(_number(connection)):
                    return connection
                connection.terminate()
            return await self._opened()
        except BaseException:
            self._room.release()
            raise

    async def _opened(self) -> Any:
        asyncpg = import_asyncpg()
        own = TRACKED if self._own else {}
        told = settings_of(self.limits, own=self._own) if self._told else {}
        try:
            return await connect_async(
                self._url, self.limits, limited=self._limited, settings={**own, **told}
            )
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            if self._told and UNTOLD in str(error):
                self._tell(told=False)
                return await self._opened()
            raise unreachable(self._url, error) from error

    def give_back(self, connection: Any) -> None:
        """Keep a connection for the next one; close those that nobody needed for long."""
        now = time.monotonic()
        self._room.release()
        if self._closed or connection.is_closed() or connection.is_in_transaction():
            connection.terminate()
            return
        self._idle.append((now, connection))
        while now - self._idle[0][0] > IDLE_SECONDS:
            self._idle.popleft()[1].terminate()

    async def close(self) -> None:
        """Close every connection, once whoever uses one has given it back."""
        self._closed = True
        with suppress(TimeoutError):  # who hangs has a deadline of its own
            async with asyncio.timeout(CLOSE_SECONDS):
                for _ in range(self._most):
                    await self._room.acquire()
        while self._idle:
            await _hang_up(self._idle.pop()[1])


async def _hang_up(connection: Any) -> None:
    try:
        await connection.close(timeout=1)
    except Exception:  # noqa: BLE001 - it need not hear of it
        connection.terminate()


def _silent(number: int) -> bool:
    """Tell whether nothing came in: on a connection that rests nothing does, except its end."""
    if not hasattr(select, "poll"):
        return not select.select([number], [], [], 0)[0]
    looked = select.poll()
    looked.register(number, select.POLLIN)
    return not looked.poll(0)


# What goes wrong


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
    """Import asyncpg, or say what is missing."""
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
