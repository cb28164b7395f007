"""A transaction of PostgreSQL that stays open: to read one snapshot, or over many operations."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from milepost.address import CAPABILITIES
from milepost.store import failpoint
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, Steps, drive

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
P = ParamSpec("P")
LONG_SECONDS = 3600.0
"""How long a migration, or a look at the whole store, may take."""


class PsycopgReader:
    """Reads of one snapshot."""

    def __init__(self, connection: "psycopg.Connection[Any]", schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def rows(self, call: Call) -> Rows:
        """Read a small answer whole."""
        text = query(call.name, "postgres", self._schema).format.encode()
        return self._connection.execute(text, call.parameters).fetchall()

    def stream(self, call: Call, *, size: int) -> Iterator[Any]:
        """Read a large answer row by row, fetched `size` at a time."""
        with self._connection.cursor(name=str(call.name)) as cursor:
            cursor.itersize = size
            text = query(call.name, "postgres", self._schema).format.encode()
            cursor.execute(text, call.parameters)
            yield from cursor


class HeldTransaction:
    """One transaction, used as a driver: an operation that fails is undone alone."""

    dialect = "postgres"
    can = CAPABILITIES[dialect]

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self.schema = schema

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation as a part of the transaction."""
        self._wait_long()
        with self._connection.transaction():  # a savepoint, as one is open
            return drive(operation(*args, **kwargs), self.ask)

    def ask(self, call: Call) -> Rows:
        """Run one statement."""
        statement = query(call.name, "postgres", self.schema)
        if statement.idle:
            return []
        self._wait_long()
        text = statement.format.encode()
        cursor = self._connection.execute(text, call.parameters, prepare=False)
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def snapshot(self) -> Iterator[PsycopgReader]:
        """Read several answers, of everything that this transaction has done."""
        self._wait_long()
        yield PsycopgReader(self._connection, self.schema)

    def script(self, text: str) -> None:
        """Run many statements as they stand."""
        self._wait_long()
        self._connection.execute(text.encode())

    def load(self, text: str, chunks: Iterable[bytes]) -> None:
        """Send rows to a COPY."""
        with self._connection.cursor() as cursor, cursor.copy(text.encode()) as copy:
            for chunk in chunks:
                self._wait_long()
                copy.write(chunk)

    def unload(self, text: str) -> Iterator[bytes]:
        """Read the rows of a COPY."""
        with self._connection.cursor() as cursor, cursor.copy(text.encode()) as copy:
            for row in copy:
                self._wait_long()
                yield bytes(row)

    def commit(self) -> None:
        """Keep all of it."""
        failpoint.reach("before:commit")
        self._wait_long()
        self._connection.execute("COMMIT")
        failpoint.reach("after:commit")

    def close(self) -> None:
        """Give up: what was not committed is undone."""
        self._connection.close()

    def _wait_long(self) -> None:
        self._connection.until = time.monotonic() + LONG_SECONDS
