"""The caller's own connection: jobs submitted there commit, or not, with the caller's work.

A connection of SQLAlchemy is asked which database it is through SQLAlchemy itself. That begins the
transaction which the caller is about to commit: done behind its back, it would not know of one.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from milepost.address import DEFAULT_SCHEMA, StoreUrl
from milepost.errors import Invalid
from milepost.faces import Flow, Wait, perform, perform_async
from milepost.store import sqlite_calls
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, Steps, drive, drive_async
from milepost.store.sqlite import statements

T = TypeVar("T")
P = ParamSpec("P")

IDENTITY = "store_identity"
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}
TAKES = "give a connection of sqlite3, psycopg, asyncpg, SQLAlchemy or Django"


class Home(msgspec.Struct, frozen=True):
    """The database of a store, and the schema in it."""

    database: str | None = None
    """None is any."""
    schema: str = DEFAULT_SCHEMA


# A connection stays in its database; asking once saves a round trip on every later submit.
_known: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def identity() -> Steps[str]:
    """Tell which database this is."""
    [(name,)] = yield Call(IDENTITY)
    return str(name)


class BorrowedConnection:
    """Runs operations on a caller's connection and never begins, commits or rolls back."""

    def __init__(self, dialect: str, open_: Callable[[], Any], *, is_async: bool = False) -> None:
        self.dialect = dialect
        self.is_async = is_async
        """Whether it takes `run_async`, and not `run`."""
        self._open = open_

    def run(
        self, home: Home, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation inside the caller's transaction, if that is on the database `home`.

        Without a `database` any will do; then there must be a transaction when it is done.
        """
        return perform(self._flow(home, operation(*args, **kwargs)))

    async def run_async(
        self, home: Home, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation inside the caller's transaction, as `run` does."""
        return await perform_async(self._flow(home, operation(*args, **kwargs)))

    def _flow(self, home: Home, steps: Steps[T]) -> Flow[T]:
        connection = yield Wait(self._open, self._open)
        execute = partial(_rows_of(connection, is_async=self.is_async), connection, home.schema)
        if home.database is not None:
            here = _remembered(connection)
            if here is None:
                here = yield Wait(drive, drive_async, (identity(), execute))
            _check(home.database, here)
            _remember(connection, home.database)
        result: T = yield Wait(drive, drive_async, (steps, execute))
        if home.database is None:
            require_transaction(connection)
        return result

    def script(self, text: str) -> None:
        """Run the statements of a migration, inside the caller's transaction."""
        connection = self._open()
        for statement in statements(text):
            connection.execute(statement)

    @property
    def in_transaction(self) -> bool:
        """Whether the caller has begun a transaction; only sqlite3 is asked."""
        return bool(self._open().in_transaction)


def require_same_kind(borrowed: BorrowedConnection, home: StoreUrl) -> None:
    """Raise `Invalid` unless a connection is to a database of the same kind as the store's."""
    if borrowed.dialect != home.dialect:
        raise Invalid(
            f"this connection speaks {borrowed.dialect} and the app's store is {home}: they must "
            "be the same database"
        )


def require_transaction(connection: Any) -> None:
    """Raise `Invalid` unless a driver's connection is inside a transaction."""
    if _is_of(connection, "sqlite3"):
        inside = connection.in_transaction
    elif _is_of(connection, "asyncpg"):
        inside = not connection.is_closed() and connection.is_in_transaction()
    else:
        inside = bool(connection.info.transaction_status)
    if not inside:
        raise Invalid(
            "this connection is in no transaction: begin one before, and leave its end to the code "
            "that began it; to give up, raise"
        )


def _check(home: str, here: str) -> None:
    # Two names may lead to one file.
    same = here == home or (Path(here).is_absolute() and os.path.realpath(here) == home)
    if not same:
        raise Invalid(
            "within() was given a connection to another database than the app's store: "
            "they must be the same database"
        )


def _remembered(connection: Any) -> str | None:
    try:
        return _known.get(connection)
    except TypeError:  # it cannot be remembered; then it is cheap to ask
        return None


def _remember(connection: Any, name: str) -> None:
    with suppress(TypeError):
        _known[connection] = name


def _is_of(connection: Any, module: str) -> bool:
    """Tell whether a module made a connection; programs and pools make subclasses of their own."""
    return any(kind.__module__.split(".")[0] == module for kind in type(connection).__mro__)


def borrow(connection: Any) -> BorrowedConnection:
    """Recognise a connection of sqlite3, psycopg, asyncpg, SQLAlchemy or Django."""
    if _is_of(connection, "sqlalchemy"):
        return _from_sqlalchemy(connection)
    if _is_of(connection, "django") and hasattr(connection, "ensure_connection"):
        connection.ensure_connection()
        connection = connection.connection
    if _is_of(connection, "sqlite3") and hasattr(connection, "cursor"):
        return BorrowedConnection("sqlite", lambda: connection)
    if _is_of(connection, "psycopg") and hasattr(connection, "cursor"):
        if hasattr(connection, "__aenter__"):
            return BorrowedConnection("postgres", partial(_same, connection), is_async=True)
        return BorrowedConnection("postgres", lambda: connection)
    if _is_of(connection, "asyncpg") and hasattr(connection, "fetch"):
        return BorrowedConnection("postgres", partial(_same, connection), is_async=True)
    raise _unfit(connection)


def _unfit(connection: Any) -> Invalid:
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    return Invalid(f"a {kind} cannot be used here; {TAKES}")


async def _same(connection: Any) -> Any:
    return connection


def _from_sqlalchemy(connection: Any) -> BorrowedConnection:
    if hasattr(connection, "connect"):
        raise Invalid("give a SQLAlchemy connection or session, not an engine")
    is_async = hasattr(connection, "run_sync")
    if not is_async and not hasattr(connection, "connection"):
        raise _unfit(connection)
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    dialect = DIALECTS.get(bind.dialect.name)
    if dialect is None:
        raise Invalid(f"a connection to {bind.dialect.name} cannot be used here; {TAKES}")
    if is_async:
        return BorrowedConnection(dialect, lambda: _begun_async(connection), is_async=True)
    return BorrowedConnection(dialect, lambda: _begun(connection, dialect))


def _begun(connection: Any, dialect: str) -> Any:
    """Have SQLAlchemy begin its transaction, and give out its driver's connection."""
    own = connection.connection() if callable(connection.connection) else connection
    own.exec_driver_sql(query(IDENTITY, dialect).text)
    return _borrowable(own.connection.driver_connection)


async def _begun_async(connection: Any) -> Any:
    own = await connection.connection() if hasattr(connection, "sync_session") else connection
    await own.exec_driver_sql(query(IDENTITY, "postgres").text)
    proxied = await own.get_raw_connection()
    return _borrowable(proxied.driver_connection)


def _borrowable(connection: Any) -> Any:
    if not any(_is_of(connection, module) for module in ("sqlite3", "psycopg", "asyncpg")):
        raise _unfit(connection)
    return connection


def _rows_of(connection: Any, *, is_async: bool) -> Callable[[Any, str, Call], Any]:
    """Choose how a named query is run on a connection."""
    if _is_of(connection, "sqlite3"):
        return _sqlite_rows
    if _is_of(connection, "asyncpg"):
        return _asyncpg_rows
    return _psycopg_rows_async if is_async else _psycopg_rows


def _sqlite_rows(connection: Any, _schema: str, call: Call) -> Rows:
    factories = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    try:
        return sqlite_calls.execute(connection, call)
    finally:
        connection.row_factory, connection.text_factory = factories


# In binary, because texts of times and numbers are as the caller's session has them.
def _psycopg_rows(connection: Any, schema: str, call: Call) -> Rows:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an extra

    with connection.cursor(row_factory=tuple_row, binary=True) as cursor:
        # Where statements are sent ahead of their answers, the end of a block waits for them.
        with connection.pipeline() if connection.info.pipeline_status else nullcontext():
            text = query(call.name, "postgres", schema).format.encode()
            cursor.execute(text, call.parameters)
        rows: Rows = cursor.fetchall() if cursor.description else []
        return rows


async def _psycopg_rows_async(connection: Any, schema: str, call: Call) -> Rows:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an extra

    async with connection.cursor(row_factory=tuple_row, binary=True) as cursor:
        async with connection.pipeline() if connection.info.pipeline_status else nullcontext():
            text = query(call.name, "postgres", schema).format.encode()
            await cursor.execute(text, call.parameters)
        rows: Rows = await cursor.fetchall() if cursor.description else []
        return rows


async def _asyncpg_rows(connection: Any, schema: str, call: Call) -> Rows:
    statement = query(call.name, "postgres", schema)
    values = [call.parameters[name] for name in statement.parameters]
    rows: Rows = await connection.fetch(statement.numbered, *values)
    return rows
