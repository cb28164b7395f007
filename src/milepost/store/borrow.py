"""The caller's own connection: what is submitted there commits, or not, with the caller's work."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from milepost.errors import Invalid
from milepost.store import sqlite
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, Steps, drive, drive_async

__all__ = ["BorrowedAsyncConnection", "BorrowedConnection", "borrow"]

T = TypeVar("T")
P = ParamSpec("P")


class BorrowedConnection:
    """Runs operations on a synchronous connection and never begins, commits or rolls back."""

    def __init__(self, dialect: str, execute: Callable[[Call], Rows]) -> None:
        self.dialect = dialect
        self._execute = execute

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation inside the caller's transaction."""
        return drive(operation(*args, **kwargs), self._execute)


class BorrowedAsyncConnection:
    """Runs operations on an asynchronous connection and never begins, commits or rolls back."""

    def __init__(self, dialect: str, execute: Callable[[Call], Any]) -> None:
        self.dialect = dialect
        self._execute = execute

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation inside the caller's transaction."""
        return await drive_async(operation(*args, **kwargs), self._execute)


def borrow(connection: Any) -> BorrowedConnection | BorrowedAsyncConnection:
    """Recognise a connection of sqlite3, psycopg, asyncpg, SQLAlchemy or Django."""
    inner, is_async = _unwrapped(connection)
    module = type(inner).__module__.split(".")[0]
    if module == "sqlite3":
        return BorrowedConnection("sqlite", lambda call: _sqlite_rows(inner, call))
    if module == "psycopg":
        if "Async" in type(inner).__name__:
            return BorrowedAsyncConnection("postgres", lambda call: _psycopg_async(inner, call))
        return BorrowedConnection("postgres", lambda call: _psycopg_rows(inner, call))
    if module == "asyncpg":
        return BorrowedAsyncConnection("postgres", lambda call: _asyncpg_rows(inner, call))
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    hint = " (its driver cannot be borrowed)" if is_async else ""
    raise Invalid(
        f"within() cannot use a {kind}{hint}; it takes connections of sqlite3, psycopg, asyncpg, "
        "SQLAlchemy or Django"
    )


def _unwrapped(connection: Any) -> tuple[Any, bool]:
    """Find the driver's connection inside what a framework wraps around it."""
    module = type(connection).__module__.split(".")[0]
    if module == "sqlalchemy":
        return _from_sqlalchemy(connection)
    if module == "django":
        connection.ensure_connection()
        return connection.connection, False
    return connection, False


def _from_sqlalchemy(connection: Any) -> tuple[Any, bool]:
    is_async = "Async" in type(connection).__name__
    inner = getattr(connection, "sync_session", None) or connection
    inner = getattr(inner, "sync_connection", None) or inner
    if hasattr(inner, "bind") and not hasattr(inner, "connection"):
        raise Invalid("within() takes a SQLAlchemy connection or session, not an engine")
    proxied = inner.connection() if callable(inner.connection) else inner.connection
    # A session gives a Connection, which gives the pool's proxy.
    if not hasattr(proxied, "driver_connection"):
        proxied = proxied.connection
    return proxied.driver_connection, is_async


def _sqlite_rows(connection: Any, call: Call) -> Rows:
    factory, connection.row_factory = connection.row_factory, None
    try:
        return sqlite.execute(connection, call)
    finally:
        connection.row_factory = factory


def _psycopg_rows(connection: Any, call: Call) -> Rows:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an extra

    with connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(query(call.name, "postgres").format.encode(), call.parameters)
        rows: Rows = cursor.fetchall() if cursor.description else []
        return rows


async def _psycopg_async(connection: Any, call: Call) -> Rows:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - an extra

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(query(call.name, "postgres").format.encode(), call.parameters)
        rows: Rows = await cursor.fetchall() if cursor.description else []
        return rows


async def _asyncpg_rows(connection: Any, call: Call) -> Rows:
    statement = query(call.name, "postgres")
    values = [call.parameters[name] for name in statement.parameters]
    rows: Rows = await connection.fetch(statement.numbered, *values)
    return rows
