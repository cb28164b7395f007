"""PostgreSQL by psycopg: the synchronous colour."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.config import StoreUrl
from milepost.errors import IllegalMove, Unavailable
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, Steps

if TYPE_CHECKING:
    import psycopg

__all__ = ["PsycopgDriver"]

T = TypeVar("T")
REFUSED = ("MP001", "MP002")
CONNECT_SECONDS = 10


class PsycopgDriver:
    """A connection to a PostgreSQL database."""

    dialect = "postgres"

    def __init__(self, url: StoreUrl) -> None:
        self._connection = _connect(url)

    def run(self, steps: Steps[T]) -> T:
        """Run an operation in one transaction."""
        with _translated(), self._connection.transaction():
            try:
                call = next(steps)
                while True:
                    call = steps.send(self.rows(call))
            except StopIteration as end:
                result: T = end.value
                return result

    @contextmanager
    def snapshot(self) -> Iterator["PsycopgDriver"]:
        """Read several answers that belong together."""
        with _translated(), self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            yield self

    def stream(self, call: Call, *, size: int) -> Iterator[tuple[Any, ...]]:
        """Read a large answer row by row, fetched `size` at a time."""
        with self._connection.cursor(name=call.name) as cursor:
            cursor.itersize = size
            cursor.execute(_text(call), call.parameters)
            yield from cursor

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the caller's transaction."""
        with _translated():
            self._connection.execute(text.encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, call: Call) -> Rows:
        """Run one named query."""
        cursor = self._connection.execute(_text(call), call.parameters)
        return cursor.fetchall() if cursor.description else []


def _text(call: Call) -> bytes:
    return query(call.name, "postgres").format.encode()


def _connect(url: StoreUrl) -> "psycopg.Connection[tuple[Any, ...]]":
    try:
        import psycopg  # noqa: PLC0415 - an extra: SQLite users need not have it
    except ImportError as error:
        raise Unavailable("PostgreSQL needs an extra: pip install 'milepost[postgres]'") from error
    try:
        return psycopg.connect(url.target, autocommit=True, connect_timeout=CONNECT_SECONDS)
    except psycopg.Error as error:
        # libpq's own text may repeat the connection string, password included.
        raise Unavailable(f"{url} cannot be reached; is the server running?") from error


@contextmanager
def _translated() -> Iterator[None]:
    import psycopg  # noqa: PLC0415 - an extra: SQLite users need not have it

    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate in REFUSED:
            raise IllegalMove(str(error.diag.message_primary).removeprefix("milepost: ")) from error
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
            raise Unavailable(f"PostgreSQL cannot be used: {error}") from error
        raise
