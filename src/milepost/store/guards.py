"""The guards that stand in a database, compared with those that this program renders.

A guard is a trigger, a function, a constraint or a unique index of the store. Databases spell them
in their own words, so the migrations are applied once more, on the same database software and for
a moment only: in memory for SQLite, and on PostgreSQL in a schema that is rolled back. What the
two say is then compared word by word.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from functools import partial

import msgspec

from milepost.store.catalog import query
from milepost.store.driver import Call, Driver, Steps, drive
from milepost.store.migrate import migrations, steps

COPY = "milepost_rendered"
WEEK = re.compile(r"journal_\d{8}")
MODEL = "journal_default"
"""Every partition of the journal is guarded as this one is."""
HARMFUL = ("rule", "setting")
"""None of these is rendered: those that stand switch guards off."""

Key = tuple[str, str, str]


class Guard(msgspec.Struct, frozen=True):
    """One guard, as the database spells it."""

    kind: str
    table: str
    name: str
    text: str | None
    active: bool
    part: bool

    @property
    def key(self) -> Key:
        """Which one it is."""
        return (self.kind, self.table, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" on {self.table}" if self.table else "")


class Guards(msgspec.Struct, frozen=True):
    """The guards that stand and those that are rendered: none where no copy may be made."""

    standing: dict[Key, Guard]
    rendered: dict[Key, Guard] | None


class _Copied(Exception):  # noqa: N818 - carries the answer out of a transaction that is undone
    def __init__(self, found: list[Guard]) -> None:
        self.found = found


_rendered: dict[str, list[Guard]] = {}
"""What each version of the database software makes of the migrations."""


def guards(driver: Driver) -> Guards:
    """Read the guards of a store, and render them anew."""
    schema, may_copy, version = driver.run(_place)
    standing = [_unquoted(guard, schema) for guard in driver.run(_standing, schema)]
    if not may_copy:
        return Guards({guard.key: guard for guard in standing}, None)
    known = f"{driver.dialect} {version}"
    if known not in _rendered:
        _rendered[known] = _rendered_by(driver)
    return Guards(
        {guard.key: guard for guard in standing},
        {guard.key: guard for guard in _placed(_rendered[known], standing, schema)},
    )


def _unquoted(guard: Guard, schema: str) -> Guard:
    """Name the schema without quotes, which the copy's needs none of."""
    if guard.text is None or not schema:
        return guard
    return msgspec.structs.replace(guard, text=guard.text.replace(f'"{schema}"', schema))


def wrong(found: Guards) -> Iterator[tuple[Guard, str]]:
    """Name the guards that are missing, switched off or not as they were rendered."""
    expected = found.standing if found.rendered is None else found.rendered
    for key, guard in sorted(expected.items()):
        stands = found.standing.get(key)
        if stands is None:
            yield guard, "it is missing"
        elif stands.text != guard.text:
            yield guard, "it was altered"
        elif not stands.active:
            yield guard, "it is disabled"
    for guard in found.standing.values():
        if guard.kind in HARMFUL:
            yield guard, "it stands in the way of the guards"


def _place() -> Steps[tuple[str, bool, str]]:
    [(schema, may_copy, version)] = yield Call("guards_schema")
    return schema, bool(may_copy), version


def _standing(schema: str) -> Steps[list[Guard]]:
    yield Call("guards_plain")
    rows = yield Call("guards_standing", {"schema": schema})
    return [
        Guard(kind, table, name, text, bool(active), bool(part))
        for kind, table, name, text, active, part in rows
    ]


def _rendered_by(driver: Driver) -> list[Guard]:
    if driver.dialect == "sqlite":
        return _rendered_in_memory()
    try:
        driver.run(_copy, driver)
    except _Copied as copied:
        return copied.found
    raise AssertionError


def _rendered_in_memory() -> list[Guard]:
    import sqlite3  # noqa: PLC0415 - loaded when used

    from milepost.store.sqlite_calls import execute  # noqa: PLC0415 - likewise

    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        memory.execute(query("migration_table", "sqlite").text)
        for migration in migrations("sqlite"):
            memory.executescript(migration.text)
        return drive(_standing(""), partial(execute, memory))


def _copy(driver: Driver) -> Steps[None]:
    yield Call("guards_plain")  # begins the transaction
    driver.script(steps(driver.dialect, migrations(driver.dialect), schema=COPY))
    raise _Copied((yield from _standing(COPY)))


def _placed(rendered: list[Guard], standing: list[Guard], schema: str) -> Iterator[Guard]:
    """Say the rendered guards of this store: in its schema, for each partition that it has."""
    parts = {guard.table for guard in standing if guard.part}
    for guard in rendered:
        if WEEK.fullmatch(guard.table):
            continue
        text = None if guard.text is None else guard.text.replace(COPY, schema)
        for table in parts | {MODEL} if guard.table == MODEL else (guard.table,):
            here = None if text is None else text.replace(f".{MODEL} ", f".{table} ")
            yield msgspec.structs.replace(guard, table=table, text=here)
