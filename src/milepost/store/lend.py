"""Connections lent to handlers: their writes commit together with the records of the engine.

They are the user's while lent, so they are none of the engine's own: a setting, a codec or a row
factory that a handler leaves behind must not reach the engine. The user's errors stay the user's.
"""

import asyncio
import math
import sqlite3
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar

from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.errors import Unavailable
from milepost.faces import Flow, Wait, perform, perform_async
from milepost.store import failpoint
from milepost.store.borrow import Home, borrow, require_transaction
from milepost.store.connections import (
    Connections,
    asyncpg_library,
    idle_text,
    import_asyncpg,
    psycopg_library,
)
from milepost.store.driver import Steps
from milepost.store.seal import CodecPass
from milepost.store.sqlite import StoreFile, connect

T = TypeVar("T")
P = ParamSpec("P")
CONNECTIONS = 32
IDLE = 4
DAY_SECONDS = 86_400.0
"""How long a transaction may take where nothing else bounds it."""


class LentConnection:
    """A connection in a transaction; the engine's operations can take part in it."""

    def __init__(
        self, connection: Any, schema: str, through: CodecPass | None = None, *, limit: float
    ) -> None:
        """Take one; each thing that the engine does with it may take as long as `limit`."""
        self.connection = connection
        self._limit = limit
        self._home = Home(schema=schema)
        self._borrowed = borrow(connection)
        self._through = through

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation inside the transaction."""
        if self._borrowed.is_async:
            raise TypeError("an asynchronous connection takes run_async")
        # psycopg would begin another transaction, and hide that the handler ended the first.
        require_transaction(self.connection)
        with _limited(self.connection, self._limit):
            return self._borrowed.run(self._home, self._passed(operation), *args, **kwargs)

    async def run_async(
        self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation inside the transaction."""
        require_transaction(self.connection)
        passed = self._passed(operation)
        if not self._borrowed.is_async:
            return self._borrowed.run(self._home, passed, *args, **kwargs)
        async with asyncio.timeout(self._limit):
            return await self._borrowed.run_async(self._home, passed, *args, **kwargs)

    def _passed(self, operation: Callable[P, Steps[T]]) -> Callable[P, Steps[T]]:
        return operation if self._through is None else self._through(operation)


@contextmanager
def _limited(connection: Any, limit: float) -> Iterator[None]:
    """Wait for an answer no longer than so, on a connection that has a deadline."""
    if not hasattr(connection, "until"):
        yield
        return
    deadline = connection.until
    connection.until = min(deadline, time.monotonic() + limit)
    try:
        yield
    finally:
        connection.until = deadline


class _SqliteFile:
    """Connections to a SQLite file, a few of them kept: a new one reads the whole schema first."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        self._file: StoreFile | None = None

    def take(self) -> sqlite3.Connection:
        """Take one that is in no transaction."""
        self._file = self._file or StoreFile(self._path)
        if not self._file.unchanged():
            self.close()
            self._file.follow()
        try:
            return self._idle.pop()
        except IndexError:
            return connect(self._path)

    def give_back(self, connection: sqlite3.Connection) -> None:
        """Roll back, and reset the settings of the user."""
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

    def __init__(self, url: StoreUrl, limits: Timeouts) -> None:
        self._url = url
        self._limits = limits
        self._file = _SqliteFile(url.target)
        self._connections = self._pool()

    def _pool(self) -> Connections:
        library = psycopg_library(autocommit=False, own=False)
        return Connections(self._url, self._limits, library, most=CONNECTIONS)

    @contextmanager
    def lend(
        self, seconds: float = DAY_SECONDS, through: CodecPass | None = None
    ) -> Iterator[LentConnection]:
        """Begin a transaction, for so long; commit it at the end of the block, or undo it."""
        begun = self._sqlite() if self._url.dialect == "sqlite" else self._psycopg(seconds)
        with begun as connection:
            yield LentConnection(connection, self._url.schema, through, limit=self._limits.command)
            failpoint.reach("before:commit")
        failpoint.reach("after:commit")

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
    def _psycopg(self, seconds: float) -> Iterator[Any]:
        import psycopg  # noqa: PLC0415 - an extra

        def begin(connection: Any) -> ExitStack:
            connection.until = time.monotonic() + seconds
            stack = ExitStack()
            # Within this block psycopg itself refuses commit() and rollback().
            stack.enter_context(connection.transaction())
            return stack

        kept = self._connections
        connection, transaction = perform(_begun(kept, begin, (psycopg.OperationalError,)))
        try:
            with transaction:
                connection.execute(_bounds(self._limits, seconds), prepare=False)
                yield connection
                connection.until = time.monotonic() + self._limits.command
        finally:
            connection.until = time.monotonic() + self._limits.command
            kept.give_back(_as_new(connection))

    def close(self) -> None:
        """Close the connections that are not lent."""
        self._file.close()
        former, self._connections = self._connections, self._pool()
        former.close()


def _begun(
    kept: Connections, begin: Callable[[Any], Any], errors: tuple[type[Exception], ...]
) -> Flow[tuple[Any, Any]]:
    """Begin a transaction; on a fresh connection if the one that was kept had ended."""
    for fresh in (False, True):
        connection = yield Wait(kept.take, kept.take_async, (), {"fresh": fresh})
        try:
            return connection, (yield Wait(begin, begin, (connection,)))
        except BaseException as error:
            kept.discard(connection)
            if not isinstance(error, errors):
                raise
            failure = error
    raise Unavailable(f"{kept.url} cannot be used now: {failure}") from failure


def _bounds(limits: Timeouts, seconds: float) -> str:
    """Bound a transaction by its attempt; once it holds its job, by the engine's limit."""
    return f"{idle_text(seconds)}; SET LOCAL milepost.idle = {math.ceil(limits.idle * 1000)}"


def _as_new(connection: Any) -> Any:
    """Reset the settings of the last user."""
    import psycopg  # noqa: PLC0415 - an extra

    try:
        connection.row_factory = psycopg.rows.tuple_row
        connection.execute("RESET ALL")
        connection.commit()
    except psycopg.Error:
        connection.close()
    return connection


def _begin(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the SQLite store cannot be written to now: {error}") from error


class AsyncLender:
    """Lends connections to asynchronous code of one event loop: of asyncpg, or of sqlite3.

    Calls that may wait for SQLite's one writer have threads of their own: in the loop's few, those
    that wait could take up the thread that the writer needs to go on.
    """

    def __init__(self, url: StoreUrl, limits: Timeouts) -> None:
        self._url = url
        self._limits = limits
        self._file = _SqliteFile(url.target)
        library = asyncpg_library(own=False, limited=False)
        self._connections = Connections(url, limits, library, most=CONNECTIONS)
        self._turn = asyncio.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="milepost-lent")
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="milepost-step")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function in a thread, with the caller's context variables."""
        call = partial(copy_context().run, function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @asynccontextmanager
    async def lend(
        self, seconds: float = DAY_SECONDS, through: CodecPass | None = None
    ) -> AsyncIterator[LentConnection]:
        """Begin a transaction, for so long; commit it at the end of the block, or undo it."""
        begun = self._sqlite() if self._url.dialect == "sqlite" else self._asyncpg(seconds)
        async with begun as connection:
            yield LentConnection(connection, self._url.schema, through, limit=self._limits.command)
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
        """Run a call in the writer's thread, to its end, even if the task is cancelled."""
        work = asyncio.get_running_loop().run_in_executor(self._writer, function, *args)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise

    @asynccontextmanager
    async def _asyncpg(self, seconds: float) -> AsyncIterator[Any]:
        asyncpg = import_asyncpg()

        async def begin(connection: Any) -> Any:
            transaction = connection.transaction()
            await self._soon(transaction.start())
            return transaction

        errors = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
        kept = self._connections
        connection, transaction = await perform_async(_begun(kept, begin, errors))
        try:
            await connection.execute(_bounds(self._limits, seconds))
            yield connection
            await self._soon(transaction.commit())
        except BaseException as error:
            await self._undo(connection, transaction, error)
            raise
        finally:
            kept.give_back(await self._as_new(connection))

    async def _soon(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the server's answer to a statement of the engine."""
        async with asyncio.timeout(self._limits.command):
            return await work

    async def _undo(self, connection: Any, transaction: Any, error: BaseException) -> None:
        """Roll back; the connection of an interrupted handler is not used again."""
        goes_on = isinstance(error, Exception) and not connection.is_closed()
        if not goes_on or not connection.is_in_transaction():
            connection.terminate()
            return
        try:
            await self._soon(transaction.rollback())
        except Exception:  # noqa: BLE001 - closing it rolls back as well
            connection.terminate()

    async def _as_new(self, connection: Any) -> Any:
        """Reset the settings of the last user."""
        try:
            await connection.reset(timeout=self._limits.command)
        except BaseException as error:
            connection.terminate()
            if not isinstance(error, Exception):
                raise
        return connection

    async def close(self) -> None:
        """Close the connections that are not lent."""
        self._file.close()
        self._writer.shutdown(wait=False)
        self._threads.shutdown(wait=False)
        await self._connections.close_async()
