"""A SQLite file that is only looked at: nothing in its folder is different afterwards.

Each look opens the file anew, so that commits of others are seen wherever the file lies,
and reads it in the one way that leaves no trace there:

* A file that is not in WAL mode, or has a `-wal` next to it, is opened read-only.
* One in WAL mode without a `-wal` would get one, and keep it, from a reader that may not write. It
  is opened for writing where that is allowed, which takes the `-wal` away again.
* Where it is not allowed, on a read-only medium, the file cannot change: it is read as it is.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from milepost.address import CAPABILITIES
from milepost.errors import Unavailable
from milepost.store.driver import Steps, drive
from milepost.store.sqlite import BUSY_SECONDS, SqliteReader, translated
from milepost.store.sqlite_calls import execute

T = TypeVar("T")
P = ParamSpec("P")

MAGIC = b"SQLite format 3\0"
WAL = b"\2\2"
WAL_AT = slice(18, 20)
HEADER = 100


class ReadOnlyDriver:
    """Reads a SQLite file, and changes nothing."""

    dialect = "sqlite"
    can = CAPABILITIES[dialect]

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()
        self._mode()  # raises at once if the file is unusable

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that only reads."""
        with self._opened() as connection:
            return drive(operation(*args, **kwargs), partial(execute, connection))

    @contextmanager
    def snapshot(self) -> Iterator[SqliteReader]:
        """Read several answers that belong together."""
        with self._opened() as connection:
            yield SqliteReader(connection)

    def script(self, text: str) -> None:
        """Refuse: this is for looking."""
        raise Unavailable(f"{self._path} was opened to look only, not for {text[:20]!r}…")

    def close(self) -> None:
        """Give everything back: between two looks nothing is open."""

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with translated():
            connection = sqlite3.connect(
                f"{self._path.as_uri()}?{self._mode()}",
                uri=True,
                timeout=BUSY_SECONDS,
                isolation_level=None,
            )
            try:
                connection.execute("PRAGMA query_only = ON")
                connection.execute("BEGIN")
                self._first_look(connection)
                yield connection
            finally:
                connection.close()

    def _first_look(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_CANTOPEN:
                raise
            raise Unavailable(
                f"{self._path} has commits in its -wal file that cannot be read where nothing may "
                "be written; copy both files to a folder of your own and look there"
            ) from error

    def _mode(self) -> str:
        header = self._header()
        if header and not header.startswith(MAGIC):
            raise Unavailable(f"{self._path} is no SQLite database, so no Milepost store")
        if header[WAL_AT] != WAL or self._companion("-wal").exists():
            return "mode=ro"
        free = os.access(self._path, os.W_OK) and os.access(self._path.parent, os.W_OK)
        return "mode=rw" if free else "immutable=1"

    def _header(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                return file.read(HEADER)
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error

    def _companion(self, ending: str) -> Path:
        return self._path.with_name(self._path.name + ending)
