"""PostgreSQL in both colours: psycopg for synchronous callers, asyncpg for the worker."""

import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from milepost.address import CAPABILITIES, StoreUrl
from milepost.config import Timeouts
from milepost.errors import AccessRefused, IllegalMove, Invalid, SchemaMismatch, Unavailable
from milepost.faces import Flow, Wait, pause, perform, perform_async
from milepost.store import failpoint
from milepost.store.catalog import Statement, query
from milepost.store.connections import (
    ENCODING,
    Connections,
    asyncpg_library,
    idle_text,
    import_asyncpg,
    psycopg_library,
)
from milepost.store.driver import Call, Rows, StatementTimeout, Steps, drive, drive_async
from milepost.store.held import LONG_SECONDS, HeldTransaction, PsycopgReader

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
P = ParamSpec("P")
REFUSED = ("MP001", "MP002")
DENIED = "42501"
TAKEN = "42P07"
COLLIDED = ("40P01", "40001")
EXISTS = "23505"
TIMED_OUT = ("55P03", "57014")
TRIES = 8
CONNECTIONS = 16
SNAPSHOT = f"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; {idle_text(LONG_SECONDS)}"

LONGER = {
    ("retention_", "journal_", "events_", "idempotency_"): 10.0,
    ("job_counts", "run_counts", "run_results", "run_errors", "table_"): 60.0,
    ("page_", "partition_", "quarantine_", "raw_", "reading_"): 300.0,
    ("migration_", "schema_"): LONG_SECONDS,
}
"""Statements over many rows, or that wait for another program, may take longer than a claim.

Maintenance does one thing after the other: a statement that waits in vain delays all others.
"""
MADE_SECONDS = 600.0
"""So may a statement on a table of the user's."""


@cache
def _longer(name: str | Statement) -> float:
    """Tell how much longer than others a statement may take."""
    if isinstance(name, Statement):
        return MADE_SECONDS
    return next((seconds for names, seconds in LONGER.items() if name.startswith(names)), 0.0)


class PsycopgDriver:
    """A pool of connections to a PostgreSQL database."""

    dialect = "postgres"
    can = CAPABILITIES[dialect]

    def __init__(self, url: StoreUrl, limits: Timeouts) -> None:
        self._url = url
        self._limit = limits.command
        self._connections = Connections(
            url, limits, psycopg_library(configure=_write_lists), most=CONNECTIONS
        )
        self._script: Any = None
        # A store that is not there is reported when it is opened.
        with self._connections.taken() as connection:
            _check_encoding(url, connection.info.parameter_status("server_encoding"))

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; again, from its start, if it lost a deadlock."""

        def once(*, fresh: bool) -> T:
            with self._connections.taken(fresh=fresh) as connection:
                return self._run_on(connection, operation(*args, **kwargs))

        result: T = perform(_until_committed(once))
        return result

    def _run_on(self, connection: Any, steps: Steps[T]) -> T:
        begun, schema = False, self._url.schema

        def execute(call: Call) -> Rows:
            nonlocal begun
            statement = query(call.name, "postgres", schema)
            if statement.idle:
                return []
            if not begun and not (call.alone or call.whole):
                self._begin(connection)
                begun = True
            limit = self._limit + call.seconds + _longer(call.name)
            connection.until = time.monotonic() + limit
            cursor = connection.execute(
                statement.format.encode(), call.parameters, prepare=not self._url.pooled
            )
            return cursor.fetchall() if cursor.description else []

        self._script = connection
        with _translated(connection):
            result = drive(steps, execute)
            failpoint.reach("before:commit")
            if begun:
                connection.until = time.monotonic() + self._limit
                connection.execute("COMMIT")
        failpoint.reach("after:commit")
        return result

    def _begin(self, connection: Any) -> None:
        import psycopg  # noqa: PLC0415 - an extra

        connection.until = time.monotonic() + self._limit
        try:
            connection.execute(self._connections.begin, prepare=False)
        except psycopg.OperationalError as error:
            connection.close()
            if time.monotonic() >= connection.until:
                raise  # it was waited for long enough
            raise _NotSent(_first_line(error)) from error

    @contextmanager
    def snapshot(self) -> Iterator[PsycopgReader]:
        """Read several answers that belong together."""
        with self._connections.taken() as connection, _translated(connection):
            connection.until = time.monotonic() + LONG_SECONDS
            with connection.transaction():
                connection.execute(SNAPSHOT, prepare=False)
                yield PsycopgReader(connection, self._url.schema)

    @contextmanager
    def held(self) -> Iterator[HeldTransaction]:
        """Hold one transaction open over many operations; it is undone unless it is committed."""
        with self._connections.taken(fresh=True) as connection:
            try:
                with _translated(connection):
                    self._begin(connection)
                    connection.execute(idle_text(LONG_SECONDS))
                    yield HeldTransaction(connection, self._url.schema)
            except (_Collision, _NotSent) as error:
                raise Unavailable(f"{self._url} cannot be used now: {error}") from error

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the transaction of the running operation."""
        if self._script is None:
            raise Unavailable("a script runs inside an operation")
        self._script.until = time.monotonic() + LONG_SECONDS
        self._script.execute(text.encode())

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()


def _check_encoding(url: StoreUrl, encoding: str | None) -> None:
    """Refuse a database that cannot hold every text; the server says it when it is connected to."""
    if encoding not in (None, ENCODING):
        raise SchemaMismatch(
            f"{url} cannot hold a store: its encoding is {encoding}, and a job may hold any text; "
            f"make it one: CREATE DATABASE … ENCODING '{ENCODING}' TEMPLATE template0"
        )


def _write_lists(connection: "psycopg.Connection[Any]") -> None:
    """Write arrays ourselves: psycopg takes as long to spell them as the server to use them."""
    from psycopg.adapt import Dumper  # noqa: PLC0415 - an extra

    class ListDumper(Dumper):
        def dump(self, obj: list[Any]) -> bytes:
            return array(obj).encode()

    connection.adapters.register_dumper(list, ListDumper)


NUMBERS = {int, float, bool}


def array(values: list[Any]) -> str:
    """Spell a list as PostgreSQL reads an array; the query casts its elements."""
    if values and values.count(values[0]) == len(values):
        return f"{{{','.join([_element(values[0])] * len(values))}}}"
    words = _simple_words(values)
    if words is not None:
        return words
    kinds = set(map(type, values))
    if kinds == {bytes}:
        return '{"\\\\x' + '","\\\\x'.join(map(bytes.hex, values)) + '"}'
    return f"{{{','.join(map(_element if kinds - NUMBERS else str, values))}}}"


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
    # A NUL ends a text in C: the rest of it would be lost silently.
    if "\0" in value:
        raise Invalid("PostgreSQL cannot store it: a text holds U+0000")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Collision(Exception):  # noqa: N818 - never leaves this module
    """A deadlock, a serialisation failure, a column changed: the operation may be run again."""


class _NotSent(Exception):  # noqa: N818 - never leaves this module
    """The connection had ended before anything was sent: another one will do."""


def _until_committed(once: Callable[..., Any]) -> Flow[Any]:
    """Try an operation again where nothing was sent, or it lost a deadlock."""
    fresh = False
    for attempt in range(TRIES):
        try:
            return (yield Wait(once, once, (), {"fresh": fresh}))
        except _NotSent as unsent:
            if fresh:
                raise Unavailable(f"PostgreSQL cannot be used now: {unsent}") from unsent
            fresh = True
        except _Collision as collision:
            if attempt == TRIES - 1:
                text = f"deadlock retry limit reached ({TRIES}): {collision}"
                raise Unavailable(text) from collision
            # A little longer after each collision, each time a little different.
            yield from pause(random.uniform(0, 0.01 * 2**attempt))  # noqa: S311 - jitter, no secret
    raise AssertionError


@contextmanager
def _translated(connection: "psycopg.Connection[Any]") -> Iterator[None]:
    import psycopg  # noqa: PLC0415 - an extra: SQLite users need not have it

    try:
        yield
    except BaseException as error:
        if not connection.closed and connection.info.transaction_status:
            _roll_back(connection)  # which also forgets prepared statements
        elif _is_outdated(error):
            connection.execute("DEALLOCATE ALL")
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
    """Translate a database's error; a mistake of the engine stays as it is."""
    if sqlstate in REFUSED:
        return IllegalMove(_first_line(error).removeprefix("milepost: "))
    if sqlstate in COLLIDED or _is_outdated(error):
        return _Collision(str(error))
    if sqlstate == EXISTS:
        return IllegalMove(f"it exists: {error}")
    if sqlstate is not None and sqlstate[:2] in ("22", "23"):
        return Invalid(f"PostgreSQL cannot store it: {error}")
    if sqlstate in TIMED_OUT:
        return StatementTimeout(f"PostgreSQL ended the statement: {_first_line(error)}")
    if sqlstate == DENIED:
        return AccessRefused(
            f"the role lacks a right: {_first_line(error)}; migrate as the tables' owner, and let "
            "it grant what `milepost grants` prints (docs/how-to/share-a-database.md)",
            right=_first_line(error),
        )
    if sqlstate == TAKEN:
        return SchemaMismatch(
            f"{_first_line(error)}: that schema has one of its own; name another in the address, "
            "?schema=NAME (docs/how-to/share-a-database.md)"
        )
    # Connection, resource, operator intervention, system and read-only errors pass by themselves.
    if sqlstate is None or sqlstate[:2] in ("08", "53", "57", "58", "25"):
        return Unavailable(f"PostgreSQL cannot be used now: {error}")
    return error


def _is_outdated(error: BaseException) -> bool:
    """Tell whether a statement was prepared before a column got another type, in any language."""
    told = getattr(error, "diag", None)
    routine = getattr(told, "source_function", None) or getattr(error, "server_source_function", "")
    return routine == "RevalidateCachedQuery"


def _first_line(error: Exception) -> str:
    return str(error).split("\n", maxsplit=1)[0]


class AsyncpgDriver:
    """Connections to a PostgreSQL database, for the event loop that opened them."""

    dialect = "postgres"
    can = CAPABILITIES[dialect]

    def __init__(self, url: StoreUrl, limits: Timeouts) -> None:
        self._url = url
        self._limit = limits.command
        self._connections = Connections(url, limits, asyncpg_library(), most=CONNECTIONS)

    def use(self) -> dict[str, int]:
        """Tell how many of its connections are busy, and how many are idle."""
        return self._connections.use()

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; again, from its start, if it lost a deadlock."""

        async def once(*, fresh: bool) -> T:
            async with self._connection(fresh=fresh) as connection:
                return await self._run_on(connection, operation(*args, **kwargs))

        return await perform_async(_until_committed(once))

    async def _run_on(self, connection: Any, steps: Steps[T]) -> T:
        begun, schema = False, self._url.schema

        async def execute(call: Call) -> Rows:
            nonlocal begun
            statement = query(call.name, "postgres", schema)
            if statement.idle:
                return []
            # Unprepared, asyncpg sends a statement in two parts, which a pooler may tear apart.
            if not begun and (self._url.pooled or not (call.alone or call.whole)):
                await self._begin(connection)
                begun = True
            # Lists cross as text: asyncpg would examine each element, and parse each id.
            values = [
                array(value) if name in statement.lists and value is not None else value
                for name, value in ((name, call.parameters[name]) for name in statement.parameters)
            ]
            limit = self._limit + call.seconds + _longer(call.name)
            rows: Rows = await connection.fetch(statement.written, *values, timeout=limit)
            return rows

        result = await drive_async(steps, execute)
        failpoint.reach("before:commit")
        if begun:
            await connection.execute("COMMIT")
        failpoint.reach("after:commit")
        return result

    async def _begin(self, connection: Any) -> None:
        asyncpg = import_asyncpg()
        try:
            await connection.execute(self._connections.begin)
        except TimeoutError:
            raise  # it was waited for long enough
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            connection.terminate()
            raise _NotSent(_first_line(error)) from error

    async def close(self) -> None:
        """Close every connection, once those in use are given back."""
        await self._connections.close_async()

    @asynccontextmanager
    async def _connection(self, *, fresh: bool) -> AsyncIterator[Any]:
        connection = await self._connections.take_async(fresh=fresh)
        try:
            yield connection
        except BaseException as error:
            # Interrupted, its answer may still come, and would be read as that of the next
            # statement: it is not used again. Closing it rolls back as well.
            broken = (TimeoutError, import_asyncpg().InternalClientError)
            if isinstance(error, broken) or not isinstance(error, Exception):
                connection.terminate()
            elif not connection.is_closed() and connection.is_in_transaction():
                await self._roll_back(connection)
            if isinstance(error, Exception):
                raise self._meaning(error) from error
            raise
        finally:
            self._connections.give_back(connection)

    def _meaning(self, error: Exception) -> Exception:
        asyncpg = import_asyncpg()
        if isinstance(error, asyncpg.PostgresError):
            return _meaning(error.sqlstate, error)
        if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
            return Invalid(f"PostgreSQL cannot store it: {error}")
        if isinstance(error, TimeoutError):
            return Unavailable(f"{self._url} did not answer in time; try again")
        if isinstance(error, (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)):
            return Unavailable(f"{self._url} cannot be reached; is the server running?")
        return error

    async def _roll_back(self, connection: Any) -> None:
        try:
            await connection.execute("ROLLBACK")
        except BaseException as error:
            # Closing it rolls back as well.
            connection.terminate()
            if not isinstance(error, Exception):
                raise
