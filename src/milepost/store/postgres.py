"""PostgreSQL by psycopg: the synchronous colour."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar, cast

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
                    call = steps.send(self._rows(call))
            except StopIteration as end:
                result: T = end.value
                return result

    def stream(self, call: Call, *, size: int) -> Iterator[Rows]:
        """Read a large answer in batches of at most `size` rows, from one snapshot."""
        with (
            _translated(),
            self._connection.transaction(),
            self._connection.cursor(name="milepost_stream") as cursor,
        ):
            cursor.itersize = size
            cursor.execute(_text(call), call.parameters)
            while rows := cursor.fetchmany(size):
                yield rows

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the caller's transaction."""
        with _translated():
            self._connection.execute(cast("LiteralString", text))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, call: Call) -> Rows:
        cursor = self._connection.execute(_text(call), call.parameters)
        return cursor.fetchall() if cursor.description else []


def _text(call: Call) -> LiteralString:
    return cast("LiteralString", query(call.name, "postgres").format)


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
