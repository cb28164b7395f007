"""Numbered migrations: checksummed, repeatable, one runner at a time."""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from milepost.config import StoreUrl, command_for
from milepost.errors import SchemaMismatch
from milepost.store.catalog import query
from milepost.store.driver import Call, Driver, Steps

__all__ = ["Migration", "check", "migrate", "migrations", "pending", "script"]

TABLES_NAMED = 5


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


def _apply(driver: Driver, upto: int | None) -> Steps[list[Migration]]:
    yield Call("migration_lock")
    yield Call("migration_table")
    applied = yield Call("migration_list")
    todo = _missing(migrations(driver.dialect), applied, upto)
    for migration in todo:
        driver.script(migration.text)
        yield Call("migration_add", _row(migration))
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
                f"migration {name} was applied with another text: the store or this program "
                "was altered by hand; restore the original or move to a fresh store"
            )
    return [m for m in by_number.values() if upto is None or m.number <= upto]


def script(dialect: str, wanted: list[Migration]) -> str:
    """Return what a person can run instead of `migrate`; nothing when nothing is wanted."""
    if not wanted:
        return ""
    table = query("migration_table", dialect).text
    return "\n".join([f"BEGIN;\n{table};\n", *(m.script for m in wanted), "COMMIT;\n"])


def pending(driver: Driver) -> list[Migration]:
    """Return what `migrate` would apply."""
    return driver.run(_look, driver.dialect)


def check(driver: Driver, url: StoreUrl) -> None:
    """Raise `SchemaMismatch` unless the store is exactly at this program's version."""
    missing = pending(driver)
    if not missing:
        return
    remedy = f"`{command_for('milepost migrate', url, os.environ)}`"
    if len(missing) == len(migrations(driver.dialect)):
        raise SchemaMismatch(
            f"there is no Milepost store here yet: {url} {_described(driver)}; is it the one you "
            f"mean? {remedy} sets a store up there"
        )
    raise SchemaMismatch(
        f"the store's schema is older than this program ({len(missing)} migrations are "
        f"missing); run {remedy}"
    )


def _described(driver: Driver) -> str:
    """Say what a database is that is not a store."""
    tables = [name for (name,) in driver.run(_tables)]
    if not tables:
        return "has no tables"
    more = ", …" if len(tables) > TABLES_NAMED else ""
    return f"has the tables of something else ({', '.join(tables[:TABLES_NAMED])}{more})"


def _tables() -> Steps[list[tuple[str]]]:
    return (yield Call("table_list"))


def _look(dialect: str) -> Steps[list[Migration]]:
    exists = yield Call("migration_exists")
    applied = (yield Call("migration_list")) if exists else []
    return _missing(migrations(dialect), applied, None)
