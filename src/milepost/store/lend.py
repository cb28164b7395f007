"""Connections lent to handlers: what they write commits together with what the engine records.

They are the user's while lent, so they are none of the engine's own: a setting, a codec or a row
factory that somebody leaves behind must not reach the engine. The user's errors stay the user's.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from milepost.config import StoreUrl
from milepost.errors import Unavailable
from milepost.store import failpoint
from milepost.store.borrow import BorrowedConnection, borrow, require_transaction
from milepost.store.driver import Steps
from milepost.store.postgres import asyncpg_options, psycopg_options
from milepost.store.sqlite import File, connect

if TYPE_CHECKING:
    from psycopg_pool import ConnectionPool

__all__ = ["AsyncLender", "Lender", "Lent"]

T = TypeVar("T")
P = ParamSpec("P")
CONNECTIONS = 32
IDLE = 4
WAIT_SECONDS = 30.0


class Lent:
    """A connection in a transaction; the engine's operations can take part in it."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._borrowed = borrow(connection)

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation inside the transaction."""
        if not isinstance(self._borrowed, BorrowedConnection):
            raise TypeError("an asynchronous connection takes run_async")
        # psycopg would begin another transaction, and what was ended inside would never be noticed.
        require_transaction(self.connection)
        return self._borrowed.run(None, operation, *args, **kwargs)

    async def run_async(
        self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation inside the transaction."""
        require_transaction(self.connection)
        if isinstance(self._borrowed, BorrowedConnection):
            return self._borrowed.run(None, operation, *args, **kwargs)
        return await self._borrowed.run(None, operation, *args, **kwargs)


class _SqliteFile:
    """Connections to a SQLite file, a few of them kept: a new one reads the whole schema first."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._file: File | None = None

    def take(self) -> sqlite3.Connection:
        """Take one that is in no transaction."""
        self._file = self._file or File(self._path)
        if not self._file.unchanged():
            self.close()
            self._file.follow()
        try:
            return self._idle.pop()
        except IndexError:
            return connect(self._path)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Undo what is not committed, and forget what the user has set."""
        try:
            connection.rollback()
        except sqlite3.Error:  # the user closed it, or it is broken: closing it undoes all
            connection.close()
            return
        connection.row_factory, connection.text_factory = None, str
        if len(self._idle) < IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close those that are kept."""
        while self._idle:
            self._idle.pop().close()


class Lender:
    """Lends connections to plain code: of sqlite3, or of psycopg."""

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._file = _SqliteFile(url.target)
        self._lock = Lock()
        self._pool: ConnectionPool[Any] | None = None

    @contextmanager
    def lend(self) -> Iterator[Lent]:
        """Begin a transaction; commit it at the end of the block, or undo it."""
        with self._begun() as connection:
            yield Lent(connection)
            failpoint.reach("before:commit")
        failpoint.reach("after:commit")

    def _begun(self) -> AbstractContextManager[Any]:
        return self._sqlite() if self._url.dialect == "sqlite" else self._psycopg()

    @contextmanager
    def _sqlite(self) -> Iterator[sqlite3.Connection]:
        connection = self._file.take()
        try:
            _begin(connection)
            yield connection
            connection.execute("COMMIT")
        finally:
            self._file.give_back(connection)

    @contextmanager
    def _psycopg(self) -> Iterator[Any]:
        from psycopg_pool import PoolTimeout  # noqa: PLC0415 - an extra

        pool = self._opened()
        try:
            taken = pool.getconn(WAIT_SECONDS)
        except PoolTimeout as error:
            raise _none(self._url) from error
        try:
            # Within this block psycopg itself refuses commit() and rollback().
            with taken.transaction():
                yield taken
        finally:
            pool.putconn(taken)

    def _opened(self) -> "ConnectionPool[Any]":
        from psycopg_pool import ConnectionPool  # noqa: PLC0415 - an extra

        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    self._url.target,
                    min_size=0,
                    max_size=CONNECTIONS,
                    kwargs=psycopg_options(self._url),
                    check=ConnectionPool.check_connection,
                    reset=_as_new,
                    open=True,
                )
            return self._pool

    def close(self) -> None:
        """Close what is not lent."""
        self._file.close()
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def _none(url: StoreUrl) -> Unavailable:
    return Unavailable(
        f"no connection to {url} for a transaction: is the server running? This process opens at "
        f"most {CONNECTIONS} such transactions at once, and waits {WAIT_SECONDS:g} s for one"
    )


def _as_new(connection: Any) -> None:
    """Forget what the last user has set."""
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an extra

    connection.row_factory = tuple_row
    connection.execute("RESET ALL")
    connection.commit()


def _begin(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the SQLite store cannot be written to now: {error}") from error


class AsyncLender:
    """Lends connections to asynchronous code of one event loop: of asyncpg, or of sqlite3.

    What may wait for SQLite's one writer has threads of its own: in the loop's own few, those who
    wait could take up the thread that the writer needs to go on.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._file = _SqliteFile(url.target)
        self._pool: Any = None
        self._turn = asyncio.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="milepost-lent")
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="milepost-step")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in a thread, with the caller's context variables."""
        call = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Lent]:
        """Begin a transaction; commit it at the end of the block, or undo it."""
        begun = self._sqlite() if self._url.dialect == "sqlite" else self._asyncpg()
        async with begun as connection:
            yield Lent(connection)
            failpoint.reach("before:commit")
        failpoint.reach("after:commit")

    @asynccontextmanager
    async def _sqlite(self) -> AsyncIterator[Any]:
        async with self._turn:
            connection = self._file.take()
            try:
                await self._whole(_begin, connection)
                yield connection
                await self._whole(connection.execute, "COMMIT")
            finally:
                self._file.give_back(connection)

    async def _whole(self, function: Callable[..., object], *args: object) -> None:
        """Run what may wait in the writer's thread, to its end, even if the task is cancelled."""
        work = asyncio.get_running_loop().run_in_executor(self._writer, function, *args)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    @asynccontextmanager
    async def _asyncpg(self) -> AsyncIterator[Any]:
        import asyncpg  # noqa: PLC0415 - an extra

        if self._pool is None:
            # Nothing is opened before it is needed: there is nothing to wait for.
            self._pool = asyncpg.create_pool(
                self._url.target, min_size=0, max_size=CONNECTIONS, **asyncpg_options(self._url)
            )
        pool = await self._pool
        try:
            taken = await pool.acquire(timeout=WAIT_SECONDS)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise _none(self._url) from error
        try:
            async with taken.transaction():
                yield taken
        finally:
            await pool.release(taken)

    async def close(self) -> None:
        """Close what is not lent."""
        self._file.close()
        self._writer.shutdown(wait=False)
        self._threads.shutdown(wait=False)
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()
