"""Fresh stores for users' tests: an app that exists is pointed at one for a while."""

import asyncio
import os
import shutil
import tempfile
from atexit import register
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from milepost.address import StoreUrl
from milepost.app import App
from milepost.client import Client
from milepost.errors import Invalid, Unavailable
from milepost.faces import refuse_in_loop
from milepost.options import SECONDS_MOST
from milepost.store import workers
from milepost.store.allow import allowed
from milepost.store.connect import open_driver
from milepost.store.connections import MISSING
from milepost.store.migrate import migrate

SQLITE = "sqlite"

_fresh: WeakKeyDictionary[Client, "_Fresh"] = WeakKeyDictionary()
"""The fresh store of an app, while it has one."""


class _Fresh(msgspec.Struct, frozen=True):
    on: str
    url: str


class StoreClock:
    """The clock that decides on leases, due times and schedules, in a test's hand."""

    def __init__(self, app: App) -> None:
        self._client = app.client

    @property
    def now(self) -> datetime:
        """The time of the store's clock; read now."""
        return self._client.run(workers.now)

    def advance(self, seconds: float) -> None:
        """Move the store's clock on; nothing sleeps meanwhile."""
        self._client.run(workers.advance_clock, _checked(seconds))

    async def now_async(self) -> datetime:
        """Read the time of the store's clock."""
        return await self._client.run_async(workers.now)

    async def advance_async(self, seconds: float) -> None:
        """Move the store's clock on; nothing sleeps meanwhile."""
        await self._client.run_async(workers.advance_clock, _checked(seconds))


def _checked(seconds: Any) -> float:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not -SECONDS_MOST <= seconds <= SECONDS_MOST:
        raise Invalid(
            f"advance({seconds!r}): it takes a number of seconds, at most a century at once"
        )
    return float(seconds)


def address(app: App) -> str:
    """Tell the address of the app's fresh store, for an engine or a pool of your own."""
    fresh = _fresh.get(app.client)
    if fresh is None:
        raise Invalid("this app is on its own store: use address() inside fresh_store()")
    return fresh.url


@contextmanager
def connection(app: App) -> Iterator[Any]:
    """Open a transaction on the app's store: to make tables that handlers write, and to look.

    The connection is sqlite3's or psycopg's; it commits at the end of the block.
    """
    with app.client.lend() as lent:
        yield lent.connection


@contextmanager
def fresh_store(app: App, on: str | None = None) -> Iterator[str]:
    """Point an app at an unused store for the time of the block; yields its address.

    `on` is "sqlite" (the default: a file that is removed at the end) or the address of a PostgreSQL
    server, on which a database is made and dropped. The app's own store is not touched.
    """
    refuse_in_loop("fresh_store")
    home, kept = app.client.url, _fresh.get(app.client)
    with new_store(on) as url:
        _leave(app.client)
        _move(app.client, StoreUrl.parse(url), _Fresh(on or SQLITE, url))
        try:
            yield url
        finally:
            _leave(app.client)
            _move(app.client, home, kept)


@asynccontextmanager
async def fresh_store_async(app: App, on: str | None = None) -> AsyncIterator[str]:
    """Point an app at an unused store for the time of the block; yields its address."""
    home, kept = app.client.url, _fresh.get(app.client)
    making = new_store(on)
    url = await asyncio.to_thread(making.__enter__)
    try:
        await app.close_async()
        _move(app.client, StoreUrl.parse(url), _Fresh(on or SQLITE, url))
        try:
            yield url
        finally:
            await app.close_async()
            _move(app.client, home, kept)
    finally:
        await asyncio.to_thread(making.__exit__, None, None, None)


def made_on(app: App) -> str | None:
    """Tell where the app's fresh store was made; None if the app is on its own store."""
    fresh = _fresh.get(app.client)
    return None if fresh is None else fresh.on


def _move(client: Client, url: StoreUrl, fresh: _Fresh | None) -> None:
    client.move_to(url)
    _fresh.pop(client, None)
    if fresh is not None:
        _fresh[client] = fresh


def _leave(client: Client) -> None:
    """Close everything, also connections that a test left open in an event loop."""
    for loop in client.loops:
        # A test framework keeps its loop until after the fixtures; one that runs elsewhere, or is
        # closed, is beyond reach.
        if not (loop.is_closed() or loop.is_running()):
            loop.run_until_complete(client.close_async())
    client.close()


def new_store(on: str | None) -> AbstractContextManager[str]:
    """Make an unused store, and remove it at the end."""
    if on is None or on == SQLITE:
        return _file()
    if StoreUrl.parse(on).can.file:
        raise Invalid(f"{on!r}: a fresh store is made on 'sqlite' or on a PostgreSQL server")
    return _database(on)


@contextmanager
def _file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="milepost-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "milepost.db"
        path.write_bytes(_migrated_file())
        yield f"sqlite:///{path}"


@cache
def _migrated_file() -> bytes:
    """Migrate once; the others are copies."""
    folder = Path(tempfile.mkdtemp(prefix="milepost-"))
    try:
        driver = open_driver(StoreUrl.parse(f"sqlite:///{folder / 'milepost.db'}"))
        migrate(driver)
        driver.close()
        return (folder / "milepost.db").read_bytes()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _database(server: str) -> Iterator[str]:
    name = _created(server, f' TEMPLATE "{_migrated_database(server)}"')
    try:
        with allowed(f"*/{name}*"):
            yield _beside(server, name)
    finally:
        _drop(server, name)


@cache
def _migrated_database(server: str) -> str:
    """Migrate once; the others are copies. It is dropped when the tests are over."""
    name = _created(server)
    register(_drop_quietly, server, name, os.getpid())
    with allowed(f"*/{name}*"):
        driver = open_driver(StoreUrl.parse(_beside(server, name)))
        migrate(driver)
        driver.close()
    return name


def _created(server: str, how: str = "") -> str:
    name = f"milepost_test_{uuid4().hex}"
    _tell(server, f'CREATE DATABASE "{name}"{how}')
    return name


def _beside(server: str, name: str) -> str:
    return urlunsplit(urlsplit(server)._replace(path=f"/{name}"))


def _drop(server: str, name: str) -> None:
    # A worker that was killed may still be connected.
    _tell(server, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _drop_quietly(server: str, name: str, owner: int) -> None:
    # A server that was there for the tests alone may be gone by now.
    if os.getpid() == owner:
        with suppress(Unavailable):
            _drop(server, name)


def _tell(server: str, statement: str) -> None:
    try:
        import psycopg  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise Unavailable(MISSING) from error
    address = StoreUrl.parse(server).target
    try:
        with psycopg.connect(address, autocommit=True, connect_timeout=10) as administrator:
            administrator.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise Unavailable(
            f"{StoreUrl.parse(server)}: its user may not make databases; "
            "ALTER ROLE … CREATEDB, or name another user"
        ) from error
    except psycopg.OperationalError as error:
        # Not the driver's own text: it may repeat the address, password included.
        place = StoreUrl.parse(server)
        raise Unavailable(f"{place} cannot be reached; is the server running?") from error
