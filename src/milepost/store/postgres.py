"""PostgreSQL in both colours: psycopg for synchronous callers, asyncpg for the worker."""

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from milepost.config import StoreUrl
from milepost.errors import IllegalMove, Invalid, SchemaMismatch, Unavailable
from milepost.store import failpoint
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, StatementTimeout, Steps, drive, drive_async

if TYPE_CHECKING:
    import psycopg
    from psycopg_pool import ConnectionPool

__all__ = ["AsyncpgDriver", "PsycopgDriver", "asyncpg_options", "psycopg_options"]

T = TypeVar("T")
P = ParamSpec("P")
REFUSED = ("MP001", "MP002")
DENIED = "42501"
TAKEN = "42P07"
COLLIDED = ("40P01", "40001")
EXISTS = "23505"
TIMED_OUT = ("55P03", "57014")
TRIES = 8
# Fan-in counts in a new statement what others have committed, whatever the server's default is.
BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
CONNECT_SECONDS = 10
CONNECTIONS = 16
IDLE_SECONDS = 300
MISSING = "PostgreSQL needs an extra: pip install 'milepost[postgres]'"


def _pause(attempt: int) -> float:
    """Wait a little longer after each collision, each time a little different."""
    return random.uniform(0, 0.01 * 2**attempt)  # noqa: S311 - jitter, not a secret


class PsycopgDriver:
    """A pool of connections to a PostgreSQL database."""

    dialect = "postgres"

    def __init__(self, url: StoreUrl) -> None:
        self._url = url
        self._pool = _open_pool(url)
        self._script: psycopg.Connection[Any] | None = None

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; again, from its start, if it lost a deadlock."""
        for attempt in range(TRIES):
            try:
                with self._connection() as connection:
                    return self._run_on(connection, operation(*args, **kwargs))
            except _Collision as collision:
                if attempt == TRIES - 1:
                    raise Unavailable(f"gave way too often: {collision}") from collision
                time.sleep(_pause(attempt))
        raise AssertionError

    def _run_on(self, connection: "psycopg.Connection[Any]", steps: Steps[T]) -> T:
        begun = False

        def execute(call: Call) -> Rows:
            nonlocal begun
            statement = query(call.name, "postgres")
            if statement.idle:
                return []
            if not begun and not call.alone:
                connection.execute(BEGIN)
                begun = True
            cursor = connection.execute(
                statement.format.encode(),
                call.parameters,
                prepare=not self._url.pooled,
            )
            return cursor.fetchall() if cursor.description else []

        self._script = connection
        with _translated(connection):
            result = drive(steps, execute)
            failpoint.reach("before:commit")
            if begun:
                connection.execute("COMMIT")
        failpoint.reach("after:commit")
        return result

    @contextmanager
    def snapshot(self) -> Iterator["PsycopgReader"]:
        """Read several answers that belong together."""
        with self._connection() as connection, _translated(connection), connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield PsycopgReader(connection)

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the transaction of the running operation."""
        if self._script is None:
            raise Unavailable("a script runs inside an operation")
        self._script.execute(text.encode())

    def close(self) -> None:
        """Close every connection."""
        self._pool.close()

    @contextmanager
    def _connection(self) -> Iterator["psycopg.Connection[Any]"]:
        from psycopg_pool import PoolClosed, PoolTimeout  # noqa: PLC0415 - an extra

        try:
            with self._pool.connection() as connection:
                yield connection
        except PoolClosed as error:
            raise Unavailable(f"{self._url} was closed") from error
        except PoolTimeout as error:
            raise Unavailable(f"{self._url} cannot be reached; is the server running?") from error


class PsycopgReader:
    """Reads of one snapshot."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def rows(self, call: Call) -> Rows:
        """Read a small answer whole."""
        text = query(call.name, "postgres").format.encode()
        return self._connection.execute(text, call.parameters).fetchall()

    def stream(self, call: Call, *, size: int) -> Iterator[Any]:
        """Read a large answer row by row, fetched `size` at a time."""
        with self._connection.cursor(name=call.name) as cursor:
            cursor.itersize = size
            cursor.execute(query(call.name, "postgres").format.encode(), call.parameters)
            yield from cursor


def _open_pool(url: StoreUrl) -> "ConnectionPool[Any]":
    try:
        import psycopg  # noqa: PLC0415 - an extra: SQLite users need not have it
        from psycopg_pool import ConnectionPool  # noqa: PLC0415 - likewise
    except ImportError as error:
        raise Unavailable(MISSING) from error
    try:
        # One connection first: a pool would only say that it timed out.
        psycopg.connect(url.target, connect_timeout=CONNECT_SECONDS).close()
    except psycopg.Error as error:
        # libpq's own text may repeat the connection string, password included.
        raise Unavailable(f"{url} cannot be reached: {_refusal(error)}") from error
    return ConnectionPool(
        url.target,
        min_size=1,
        max_size=CONNECTIONS,
        timeout=CONNECT_SECONDS,
        kwargs={"autocommit": True, **psycopg_options(url)},
        configure=_write_lists,
        open=True,
    )


def psycopg_options(url: StoreUrl) -> dict[str, Any]:
    """Prepare nothing where the next statement may reach another server process."""
    return {"prepare_threshold": None} if url.pooled else {}


def asyncpg_options(url: StoreUrl) -> dict[str, Any]:
    """Prepare nothing where the next statement may reach another server process."""
    return {"statement_cache_size": 0} if url.pooled else {}


def _write_lists(connection: "psycopg.Connection[Any]") -> None:
    """Write arrays ourselves: psycopg takes as long to spell them as the server to use them."""
    from psycopg.adapt import Dumper  # noqa: PLC0415 - an extra

    class ListDumper(Dumper):
        def dump(self, obj: list[Any]) -> bytes:
            return array(obj).encode()

    connection.adapters.register_dumper(list, ListDumper)


def array(values: list[Any]) -> str:
    """Spell a list as PostgreSQL reads an array; what its elements are, the query says."""
    if values and values.count(values[0]) == len(values):
        return f"{{{','.join([_element(values[0])] * len(values))}}}"
    return _simple_words(values) or f"{{{','.join(map(_element, values))}}}"


def _simple_words(values: list[Any]) -> str | None:
    """Spell texts of which none needs an escape, such as ids, all at once."""
    try:
        words = '","'.join(values)
    except TypeError:
        return None
    plain = words.count('"') == 2 * len(values) - 2 and "\\" not in words and "\0" not in words
    return f'{{"{words}"}}' if plain else None


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f'"\\\\x{value.hex()}"'
    if not isinstance(value, str):
        return str(value)
    # A NUL ends a text in C: what follows it would be lost without a word.
    if "\0" in value:
        raise Invalid("PostgreSQL cannot store it: a text holds U+0000")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _refusal(error: Exception) -> str:
    """Say what the server answered, if it did; libpq's own words may repeat the address."""
    _, answered, reason = str(error).partition("FATAL:")
    return reason.strip().split("\n")[0] if answered else "is the server running?"


class _Collision(Exception):  # noqa: N818 - never leaves this module
    """A deadlock or a serialisation failure: the operation may simply be run again."""


@contextmanager
def _translated(connection: "psycopg.Connection[Any]") -> Iterator[None]:
    import psycopg  # noqa: PLC0415 - an extra: SQLite users need not have it

    try:
        yield
    except BaseException as error:
        if not connection.closed and connection.info.transaction_status:
            _roll_back(connection)
        if isinstance(error, UnicodeEncodeError) or (
            isinstance(error, psycopg.DataError) and error.sqlstate is None
        ):
            raise Invalid(f"PostgreSQL cannot store it: {error}") from error
        if isinstance(error, psycopg.Error):
            raise _meaning(error.sqlstate, error) from error
        raise


def _roll_back(connection: "psycopg.Connection[Any]") -> None:
    import psycopg  # noqa: PLC0415 - an extra

    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


def _meaning(sqlstate: str | None, error: Exception) -> Exception:  # noqa: PLR0911 - a table
    """Translate a database's error; what is a mistake of ours stays as it is."""
    if sqlstate in REFUSED:
        return IllegalMove(_first_line(error).removeprefix("milepost: "))
    if sqlstate in COLLIDED:
        return _Collision(str(error))
    if sqlstate == EXISTS:
        return IllegalMove(f"it exists: {error}")
    if sqlstate is not None and sqlstate[:2] in ("22", "23"):
        return Invalid(f"PostgreSQL cannot store it: {error}")
    if sqlstate in TIMED_OUT:
        return StatementTimeout(f"PostgreSQL ended the statement: {_first_line(error)}")
    if sqlstate == DENIED:
        return Unavailable(
            f"the role lacks a right: {_first_line(error)}; migrate as the tables' owner, and let "
            "it grant the rest (docs/how-to/share-a-database.md)"
        )
    if sqlstate == TAKEN:
        return SchemaMismatch(
            f"{_first_line(error)}: the database has one of its own; give Milepost a schema "
            "(docs/how-to/share-a-database.md)"
        )
    # Connection, resource, operator intervention, system and read-only errors pass by themselves.
    if sqlstate is None or sqlstate[:2] in ("08", "53", "57", "58", "25"):
        return Unavailable(f"PostgreSQL cannot be used now: {error}")
    return error


def _first_line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0]


class AsyncpgDriver:
    """Connections to a PostgreSQL database, for the event loop that opened them.

    They are kept here and not in asyncpg's pool, which spends a task on every return.
    """

    dialect = "postgres"

    def __init__(self, url: StoreUrl, *, connections: int = CONNECTIONS) -> None:
        self._url = url
        self._connections = connections
        self._free = asyncio.Semaphore(connections)
        self._idle: deque[tuple[float, Any]] = deque()
        self._closed = False

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; again, from its start, if it lost a deadlock."""
        for attempt in range(TRIES):
            try:
                async with self._connection() as connection:
                    return await self._run_on(connection, operation(*args, **kwargs))
            except _Collision as collision:
                if attempt == TRIES - 1:
                    raise Unavailable(f"gave way too often: {collision}") from collision
                await asyncio.sleep(_pause(attempt))
        raise AssertionError

    async def _run_on(self, connection: Any, steps: Steps[T]) -> T:
        begun = False

        async def execute(call: Call) -> Rows:
            nonlocal begun
            statement = query(call.name, "postgres")
            if statement.idle:
                return []
            # Unprepared, asyncpg sends a statement in two parts, which a pooler may tear apart.
            if not begun and (self._url.pooled or not call.alone):
                await connection.execute(BEGIN.decode())
                begun = True
            # Lists cross as text: asyncpg asks each element what it is, and reads each id.
            values = [
                array(call.parameters[name]) if name in statement.lists else call.parameters[name]
                for name in statement.parameters
            ]
            rows: Rows = await connection.fetch(statement.written, *values)
            return rows

        result = await drive_async(steps, execute)
        failpoint.reach("before:commit")
        if begun:
            await connection.execute("COMMIT")
        failpoint.reach("after:commit")
        return result

    async def close(self) -> None:
        """Close every connection, once whoever uses one has given it back."""
        self._closed = True
        for _ in range(self._connections):
            await self._free.acquire()
        while self._idle:
            await self._idle.pop()[1].close()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        asyncpg = _asyncpg()
        if self._closed:
            raise Unavailable(f"{self._url} was closed")
        try:
            async with self._free:
                connection = await self._taken()
                try:
                    yield connection
                except asyncpg.InternalClientError:
                    connection.terminate()  # nobody knows which answer it would read next
                    raise
                finally:
                    await self._give_back(connection)
        except asyncpg.PostgresError as error:
            raise _meaning(error.sqlstate, error) from error
        except (
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            OSError,
            TimeoutError,
        ) as error:
            if _is_of_a_value(error):
                raise Invalid(f"PostgreSQL cannot store it: {error}") from error
            raise Unavailable(f"{self._url} cannot be reached; is the server running?") from error

    async def _taken(self) -> Any:
        """Take the connection that was used last, or open one."""
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await _asyncpg().connect(
            self._url.target, timeout=CONNECT_SECONDS, **asyncpg_options(self._url)
        )

    async def _give_back(self, connection: Any) -> None:
        """Keep a connection for the next operation; close those that nobody needed for long."""
        if connection.is_in_transaction():
            await self._roll_back(connection)
        if connection.is_closed():
            return
        now = asyncio.get_running_loop().time()
        self._idle.append((now, connection))
        while now - self._idle[0][0] > IDLE_SECONDS:
            self._idle.popleft()[1].terminate()

    async def _roll_back(self, connection: Any) -> None:
        try:
            await connection.execute("ROLLBACK")
        except BaseException as error:
            # Closing it rolls back as well.
            connection.terminate()
            if not isinstance(error, Exception):
                raise


def _is_of_a_value(error: Exception) -> bool:
    """Tell what asyncpg says of a value from what it says of an address or a certificate."""
    misconfigured = isinstance(error, _asyncpg().ClientConfigurationError)
    return isinstance(error, ValueError) and not misconfigured


def _asyncpg() -> Any:
    try:
        import asyncpg  # noqa: PLC0415 - an extra: SQLite users need not have it
    except ImportError as error:
        raise Unavailable(MISSING) from error
    return asyncpg
