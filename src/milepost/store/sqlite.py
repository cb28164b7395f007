"""SQLite: one file, one writer at a time, every commit on disk before it is answered."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from milepost.errors import IllegalMove, MilepostError, Unavailable
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, Steps

__all__ = ["SqliteDriver", "statements"]

T = TypeVar("T")
BUSY_SECONDS = 30
MINIMUM = (3, 37, 0)


class SqliteDriver:
    """A connection to a SQLite file."""

    dialect = "sqlite"

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < MINIMUM:
            raise Unavailable(
                f"SQLite {sqlite3.sqlite_version} is too old: Milepost needs 3.37 or newer"
            )
        self._connection = _connect(path)

    def run(self, steps: Steps[T]) -> T:
        """Run an operation in one transaction that takes the write lock at once."""
        with self._transaction("IMMEDIATE"), _translated():
            try:
                call = next(steps)
                while True:
                    call = steps.send(self.rows(call))
            except StopIteration as end:
                result: T = end.value
                return result

    @contextmanager
    def snapshot(self) -> Iterator["SqliteDriver"]:
        """Read several answers that belong together."""
        with self._transaction("DEFERRED"):
            yield self

    def stream(self, call: Call, *, size: int) -> Iterator[tuple[Any, ...]]:
        """Read a large answer row by row, fetched `size` at a time."""
        cursor = self._connection.execute(query(call.name, self.dialect).text, call.parameters)
        cursor.arraysize = size
        yield from cursor

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the caller's transaction."""
        with _translated():
            for statement in statements(text):
                self._connection.execute(statement)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def rows(self, call: Call) -> Rows:
        """Run one named query."""
        statement = query(call.name, self.dialect)
        return self._connection.execute(statement.text, call.parameters).fetchall()

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        with _translated():
            self._connection.execute(f"BEGIN {kind}")
        try:
            yield
        except BaseException:
            # RAISE(ROLLBACK) and a full disk end the transaction by themselves.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        with _translated():
            self._connection.execute("COMMIT")


def _connect(path: str) -> sqlite3.Connection:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Unavailable(f"{path}: the folder {folder} does not exist; make it first")
    with _translated():
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
    return connection


def statements(text: str) -> Iterator[str]:
    """Split a script where its statements end; a trigger's body is one statement."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise _meaning(error) from error
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the SQLite store cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"the file is not a usable SQLite store: {error}") from error


def _meaning(error: sqlite3.IntegrityError) -> MilepostError:
    text = str(error)
    return (
        IllegalMove(text.removeprefix("milepost: ")) if "milepost:" in text else Unavailable(text)
    )
