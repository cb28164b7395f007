"""Fresh stores to measure in, made and removed: a user's own data is never touched."""

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from milepost.address import StoreUrl
from milepost.errors import Unavailable
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate


@contextmanager
def fresh(store: StoreUrl) -> Iterator[StoreUrl]:
    """Make a store beside the one that is named, and remove it afterwards."""
    make = _file if store.can.file else _database
    with make(store) as made:
        driver = open_driver(made)
        try:
            migrate(driver)
        finally:
            driver.close()
        yield made


@contextmanager
def _file(store: StoreUrl) -> Iterator[StoreUrl]:
    # In the same folder, because that is the disk that counts.
    beside = Path(store.target).absolute().parent
    try:
        folder = tempfile.TemporaryDirectory(prefix="milepost-bench-", dir=beside)
    except OSError as error:
        raise Unavailable(f"no file can be made in {beside}: {error.strerror}") from error
    with folder as made:
        yield StoreUrl("sqlite", f"{made}/bench.db")


@contextmanager
def _database(store: StoreUrl) -> Iterator[StoreUrl]:
    open_driver(store).close()  # raises a readable error if that fails
    import psycopg  # noqa: PLC0415 - an extra

    name = f"milepost_bench_{secrets.token_hex(6)}"
    with psycopg.connect(store.target, autocommit=True) as connection:
        try:
            connection.execute(f"CREATE DATABASE {name}".encode())
        except psycopg.Error as error:
            raise Unavailable(
                f"{store}: bench works in a database of its own and could not make one "
                f"({str(error).splitlines()[0]}); name a role that may: ALTER ROLE … CREATEDB"
            ) from error
        try:
            yield StoreUrl.parse(_renamed(store.target, name))
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _renamed(target: str, name: str) -> str:
    """Address another database of the same server; a schema of the old one is not in it."""
    parts = urlsplit(target)
    kept = [(k, v) for k, v in parse_qsl(parts.query) if k not in ("dbname", "options")]
    return urlunsplit(parts._replace(path=f"/{name}", query=urlencode(kept)))
