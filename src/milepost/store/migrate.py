"""Numbered migrations: checksummed, repeatable, one runner at a time."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol

from milepost.address import DEFAULT_SCHEMA, StoreUrl
from milepost.config import command_for
from milepost.errors import SchemaMismatch
from milepost.store.catalog import query
from milepost.store.driver import Call, Driver, Steps
from milepost.store.moved import moved

TABLES_NAMED = 5
EARLIER = {"job", "journal", "migration"}
"""Found in the schema `public`, where stores were before each had a schema of its own."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        """Identify the text, so that an altered file is noticed."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def script(self) -> str:
        """Return what to run by hand: the migration and the row that records it."""
        return (
            f"-- migration {self.name}\n{self.text}\nINSERT INTO migration (number, name, checksum)"
            f" VALUES ({self.number}, '{self.name}', '{self.checksum}');\n"
        )


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """Return every migration of the dialect, in order."""
    folder = files("milepost.sql") / "migrations" / dialect
    found = [path for path in folder.iterdir() if path.name.endswith(".sql")]
    return tuple(
        Migration(
            int(path.name.split("_")[0]),
            path.name.removesuffix(".sql"),
            path.read_text(encoding="utf-8"),
        )
        for path in sorted(found, key=lambda path: path.name)
    )


def migrate(driver: Driver, *, upto: int | None = None) -> list[Migration]:
    """Apply what is missing, all in one transaction, and return what was applied.

    Where nothing is missing nothing is asked that only the tables' owner may do.
    """
    return driver.run(_apply, driver, upto) if pending(driver) else []


class Script(Protocol):
    """Whatever runs a migration's statements."""

    dialect: str

    def script(self, text: str) -> None:
        """Run many statements as they stand, in the transaction that is open."""
        ...


def set_up(runner: Script, url: StoreUrl, *, asked: bool) -> Steps[None]:
    """Set a store up in a transaction of the caller's; beside others' tables only if asked to."""
    found = [name for (name,) in (yield from _tables())]
    if found and not asked:
        raise _no_store(url, _naming(found))
    yield from _apply(runner, None)


def _apply(driver: Script, upto: int | None) -> Steps[list[Migration]]:
    yield Call("migration_lock")
    yield Call("schema_create")
    yield Call("schema_enter")
    if not (yield Call("migration_exists")):
        yield Call("migration_table")
    applied = yield Call("migration_list")
    todo = _missing(migrations(driver.dialect), applied, upto)
    for migration in todo:
        driver.script(migration.text)
        yield Call("migration_add", _row(migration))
    yield Call("schema_seal")
    return todo


def _row(migration: Migration) -> dict[str, object]:
    return {
        "number": migration.number,
        "name": migration.name,
        "checksum": migration.checksum,
    }


def _missing(
    known: Iterable[Migration], applied: list[tuple[object, ...]], upto: int | None
) -> list[Migration]:
    by_number = {migration.number: migration for migration in known}
    for number, name, checksum in applied:
        migration = by_number.pop(int(str(number)), None)
        if migration is None:
            raise SchemaMismatch(
                f"the store has migration {name}, which this Milepost does not know: "
                "it was set up by a newer one; upgrade this program"
            )
        if migration.checksum != checksum:
            raise SchemaMismatch(
                f"migration {name} was applied with another text: the store was made by another "
                "version (before 0.1 migrations may be rewritten), or was altered by hand. It is "
                "left as it is: finish its work with the version that made it, and set up a new "
                "one here: another file, database, or ?schema=NAME in the address"
            )
    return [m for m in by_number.values() if upto is None or m.number <= upto]


def script(dialect: str, wanted: list[Migration], *, schema: str = DEFAULT_SCHEMA) -> str:
    """Return what a person can run instead of `migrate`; nothing when nothing is wanted."""
    return f"BEGIN;\n{steps(dialect, wanted, schema=schema)}\nCOMMIT;\n" if wanted else ""


def steps(dialect: str, wanted: Sequence[Migration], *, schema: str) -> str:
    """Return all that `migrate` runs inside its transaction."""
    first = ["migration_table"] if wanted[0].number == 1 else []
    before, after = (
        [f"{query(name, dialect, schema).text};\n" for name in names]
        for names in (["schema_create", "schema_enter", *first], ["schema_seal"])
    )
    return "\n".join([*before, *(m.script for m in wanted), *after])


def pending(driver: Driver) -> list[Migration]:
    """Return what `migrate` would apply."""
    return driver.run(_look, driver.dialect)


def check(driver: Driver, url: StoreUrl) -> None:
    """Raise `SchemaMismatch` unless the store is at this program's version, and still in use."""
    check_version(driver, url)
    if (found := driver.run(moved)) is not None:
        raise SchemaMismatch(f"{url} {found.told}")


def check_version(driver: Driver, url: StoreUrl) -> None:
    """Raise `SchemaMismatch` unless the store is exactly at this program's version."""
    missing = pending(driver)
    if not missing:
        return
    if len(missing) == len(migrations(driver.dialect)):
        raise _no_store(url, _described(driver))
    raise SchemaMismatch(
        f"the store's schema is older than this program ({len(missing)} migrations are "
        f"missing); run {_remedy(url)}"
    )


def _remedy(url: StoreUrl) -> str:
    return f"`{command_for('milepost migrate', url, os.environ)}`"


def _no_store(url: StoreUrl, described: str) -> SchemaMismatch:
    return SchemaMismatch(
        f"there is no Milepost store here yet: {url} {described}; is it the one you mean? "
        f"{_remedy(url)} sets a store up there{_where(url)}, and so does App(migrate=True)"
    )


def _where(url: StoreUrl) -> str:
    return f", in the schema {url.schema}" if url.can.schemas else ""


def tables(driver: Driver) -> list[str]:
    """Name the tables of a database that is not a store."""
    return [name for (name,) in driver.run(_tables)]


def _described(driver: Driver) -> str:
    """Say what a database is that is not a store."""
    found = tables(driver)
    if not found:
        return "has no tables"
    if driver.dialect == "postgres" and set(found) >= EARLIER:
        return "has a store of an earlier version, which this one cannot use, in its schema public"
    return _naming(found)


def _naming(found: list[str]) -> str:
    more = ", …" if len(found) > TABLES_NAMED else ""
    return f"has the tables of something else ({', '.join(found[:TABLES_NAMED])}{more})"


def _tables() -> Steps[list[tuple[str]]]:
    return (yield Call("table_list"))


def _look(dialect: str) -> Steps[list[Migration]]:
    exists = yield Call("migration_exists")
    applied = (yield Call("migration_list")) if exists else []
    return _missing(migrations(dialect), applied, None)
