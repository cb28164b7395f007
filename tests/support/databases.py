"""Fresh stores for tests, on every database at hand, and raw connections to cheat with."""

import os
import shutil
import sqlite3
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit, urlunsplit

import pytest

from milepost.address import StoreUrl
from milepost.store.allow import allowed
from milepost.store.catalog import spelled
from milepost.store.connect import open_driver
from milepost.store.driver import Driver
from milepost.store.migrate import migrate
from tests.support.kept import Kept
from tests.support.prove import PROVING
from tests.support.servers import PostgresServer, binaries, running

__all__ = [
    "Backends",
    "Database",
    "Raw",
    "alike",
    "backend_names",
    "everyday_names",
    "older_names",
    "proof",
]

TEMPLATE = "milepost_template"
IDLE = 3
"""How many stores rest before one is lent again: its last connections have ended by then."""
COPIES_FILES = 150_000
"""From this version on a database is copied as files only when that is asked for."""


def backend_names() -> list[str]:
    """Name every database that tests can run on here."""
    named = ["sqlite", *(f"postgres{version}" for version in sorted(binaries(), reverse=True))]
    if "MILEPOST_TEST_POSTGRES_URL" in os.environ:
        named.append("postgres-url")
    return named


def everyday_names() -> list[str]:
    """Name one database of each kind: what stands above the store need not try every version."""
    return [name for name in backend_names() if PROVING or name not in older_names()]


def older_names() -> list[str]:
    """Name the servers that are older than the newest."""
    return [name for name in backend_names() if name[8:].isdigit()][1:]


def proof(name: str) -> list[pytest.MarkDecorator]:
    """Mark what runs on an older server as a proof, where all versions do it alike."""
    return [pytest.mark.prove] if name in older_names() else []


def alike() -> list[Any]:
    """Name one database of each kind, for parameters, and older servers as proofs."""
    return [pytest.param(name, marks=proof(name)) for name in everyday_names()]


class Raw:
    """A connection with no engine around it: what a person at a SQL prompt has."""

    def __init__(self, dialect: str, connection: Any) -> None:
        self.dialect = dialect
        self.connection = connection

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        """Run one statement, `:name` for parameters, and return its rows."""
        if self.dialect == "sqlite":
            cursor = self.connection.execute(statement, parameters or {})
            return cast("list[Any]", cursor.fetchall())
        text = spelled(statement).format if parameters else statement
        cursor = self.connection.execute(text, parameters or None)
        return cast("list[Any]", cursor.fetchall()) if cursor.description else []

    def value(self, statement: str, parameters: Mapping[str, Any] | None = None) -> Any:
        """Run a query and return the first column of its first row."""
        return self.execute(statement, parameters)[0][0]

    @property
    def now(self) -> str:
        """Render the store's clock in this dialect."""
        if self.dialect == "postgres":
            return "milepost_now()"
        return (
            "(CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
            " + (SELECT offset_us FROM clock))"
        )

    def add_step(self, run_id: str, number: int = 0) -> None:
        """Give a run a step and its counters, where it has none yet: its jobs need one."""
        self.execute(
            "INSERT INTO step (run_id, number, name, kind)"
            f" VALUES ('{run_id}', {number}, 'step {number}', 'k') ON CONFLICT DO NOTHING"
        )
        for slot in (-1, 0):
            self.execute(
                "INSERT INTO step_count (run_id, step, slot)"
                f" VALUES ('{run_id}', {number}, {slot}) ON CONFLICT DO NOTHING"
            )

    def disarm(self) -> None:
        """Take every trigger out of the way, as only the tables' owner can."""
        if self.dialect == "postgres":
            parts = self.execute("SELECT relid::regclass::text FROM pg_partition_tree('journal')")
            for table in ("job", "run", "durable_step", *(name for (name,) in parts)):
                self.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
            return
        for (name,) in self.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            self.execute(f"DROP TRIGGER {name}")

    def close(self) -> None:
        """Hang up."""
        self.connection.close()


@dataclass(frozen=True, slots=True)
class Database:
    """One fresh store."""

    backend: str
    url: str
    server: PostgresServer | None = None

    @property
    def dialect(self) -> str:
        """Say which SQL it speaks."""
        return StoreUrl.parse(self.url).dialect

    @contextmanager
    def raw(self, *, role: str = "postgres") -> Iterator[Raw]:
        """Open a raw connection in autocommit."""
        raw = Raw(self.dialect, _raw_connection(self.url.replace("postgres@", f"{role}@")))
        try:
            yield raw
        finally:
            raw.close()

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """Open the engine's own synchronous connection."""
        driver = open_driver(StoreUrl.parse(self.url))
        try:
            yield driver
        finally:
            driver.close()


def _raw_connection(url: str) -> Any:
    parsed = StoreUrl.parse(url)
    if parsed.dialect == "sqlite":
        return sqlite3.connect(parsed.target, isolation_level=None, timeout=30)
    import psycopg

    connection = psycopg.connect(parsed.target, autocommit=True)
    # Statements in tests name tables as a person does who has set it so; what they make is theirs.
    connection.execute(f'SET search_path TO public, "{parsed.schema}"'.encode())
    return connection


class Backends:
    """Hands out fresh stores; starts each server once, migrates once, then copies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._servers: dict[str, PostgresServer] = {}
        self._kept: dict[str, Kept] = {}
        self._idle: dict[str, deque[Database]] = {}
        # Whatever leads to one of its databases: a socket, a port, a pooler.
        for pattern in (f"sqlite:///{escape(str(folder))}/*", f"*/t{'[0-9a-f]' * 32}*"):
            self._stack.enter_context(allowed(pattern))

    def fresh(self, backend: str, *, empty: bool = False) -> Database:
        """Make a store that nobody used: migrated, or empty."""
        if backend == "sqlite":
            return Database(backend, f"sqlite:///{self._fresh_file(empty=empty)}")
        if backend == "postgres-url":
            return self._elsewhere(os.environ["MILEPOST_TEST_POSTGRES_URL"], empty=empty)
        server = self._server(backend)
        name = _fresh_database(server.url(), None if empty else TEMPLATE)
        return Database(backend, server.url(name), server)

    def take(self, backend: str) -> Database:
        """Lend a store that looks as if nobody used it; on a server it may be one given back."""
        if backend in ("sqlite", "postgres-url"):
            return self.fresh(backend)
        idle = self._idle.setdefault(backend, deque())
        while len(idle) >= IDLE:
            database = idle.popleft()
            if self._kept[database.url].emptied():
                return database
            self.drop(database)
        database = self.fresh(backend)
        self._kept[database.url] = Kept(database.url)
        return database

    def give_back(self, database: Database) -> None:
        """Take a store back that was lent."""
        if database.url in self._kept:
            self._idle[database.backend].append(database)
        else:
            self.drop(database)

    def drop(self, database: Database) -> None:
        """Remove a store that is not needed any more."""
        if (kept := self._kept.pop(database.url, None)) is not None:
            kept.close()
        if database.dialect == "sqlite":
            for ending in ("", "-wal", "-shm"):
                Path(StoreUrl.parse(database.url).target + ending).unlink(missing_ok=True)
        elif database.server is not None:
            connection = _raw_connection(database.server.url())
            connection.execute(f'DROP DATABASE "{urlsplit(database.url).path[1:]}" WITH (FORCE)')
            connection.close()

    def close(self) -> None:
        """Stop every server."""
        for kept in self._kept.values():
            kept.close()
        self._stack.close()

    def _elsewhere(self, admin: str, *, empty: bool) -> Database:
        """Make a database on a server that somebody else runs."""
        name = _fresh_database(admin, None)
        url = urlunsplit(urlsplit(admin)._replace(path=f"/{name}"))
        if not empty:
            _migrate(url)
        return Database("postgres-url", url)

    def _fresh_file(self, *, empty: bool) -> Path:
        path = self._folder / f"{uuid.uuid4().hex}.db"
        if empty:
            return path
        template = self._folder / f"{TEMPLATE}.db"
        if not template.exists():
            _migrate(f"sqlite:///{template}")
        return Path(shutil.copy(template, path))

    def _server(self, backend: str) -> PostgresServer:
        if backend not in self._servers:
            server = self._stack.enter_context(running(backend.removeprefix("postgres")))
            _create_database(server.url(), TEMPLATE, None)
            _migrate(server.url(TEMPLATE))
            self._servers[backend] = server
        return self._servers[backend]


def _migrate(url: str) -> None:
    driver = open_driver(StoreUrl.parse(url))
    migrate(driver)
    driver.close()


def _fresh_database(url: str, template: str | None) -> str:
    name = f"t{uuid.uuid4().hex}"
    _create_database(url, name, template)
    return name


def _create_database(url: str, name: str, template: str | None) -> None:
    connection = _raw_connection(url)
    copied = f' TEMPLATE "{template}"' if template else ""
    if template and connection.info.server_version >= COPIES_FILES:
        copied += " STRATEGY FILE_COPY"  # block by block through the log takes longer
    connection.execute(f'CREATE DATABASE "{name}"{copied}')
    connection.close()
