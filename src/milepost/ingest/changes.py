"""A column whose field got another type: changed if every value stays as it is, refused if not."""

import re
from collections.abc import Iterator, Mapping

import msgspec

from milepost.address import CAPABILITIES
from milepost.ingest.columns import Column
from milepost.store.catalog import Statement

SPELLED = {"timestamptz": "timestamp with time zone"}
"""Types that PostgreSQL tells in other words than it takes."""
WIDER = {
    "bigint": "smallint|integer|boolean",
    "double precision": "smallint|integer|bigint",
    "numeric": r"smallint|integer|bigint|numeric\(.*\)",
    "text": r"character varying(\(\d+\))?",
    "timestamp with time zone": r"timestamp\(\d\) with time zone",
    "INTEGER": "BOOLEAN_INTEGER",
    "REAL": "INTEGER",
    "DECIMAL_TEXT": "INTEGER",
}
"""The types of a column all of whose values are the same in this one: True is 1."""
EXACT = 2**53
"""Up to here every whole number is a float; beyond, those with zeros enough at their end."""
CONVERSIONS = {
    # By way of text nothing is rounded: a value that does not fit lets the statement fail.
    "postgres": (
        ("smallint|integer|bigint", "bigint|double precision|numeric", "{name}::{kind}"),
        ("boolean", "bigint|double precision|numeric", "{name}::integer::{kind}"),
        ("date", "timestamptz", "{name}::timestamp AT TIME ZONE 'UTC'"),
        ("timestamp with time zone", "date", "({name} AT TIME ZONE 'UTC')::date"),
        (".*", "jsonb", "to_jsonb({name})"),
        (".*", "bytea", "convert_to({name}::text, 'UTF8')"),
        ("jsonb", ".*", "({name} #>> '{{}}')::{kind}"),
        ("bytea", ".*", "convert_from({name}, 'UTF8')::{kind}"),
        (".*", ".*", "{name}::text::{kind}"),
    ),
    # A value that does not fit is NULL, and not something else.
    "sqlite": (
        ("INTEGER|BOOLEAN_INTEGER", "INTEGER|REAL", "CAST({name} AS {kind})"),
        ("REAL", "INTEGER", "CASE WHEN {whole} = {name} THEN {whole} END"),
        (".*", "REAL", "CASE WHEN {json} IN ('integer', 'real') THEN CAST({name} AS REAL) END"),
        (".*", ".*INTEGER", "CASE WHEN {json} IN ('integer') THEN CAST({name} AS {kind}) END"),
        ("DATE_TEXT", "DATETIME_TEXT", "{name} || 'T00:00:00+00:00'"),
        ("DATETIME_TEXT", "DATE_TEXT", "substr({name}, 1, 10)"),
        (".*", "JSON_TEXT", "json_quote({name})"),
        ("JSON_TEXT", ".*", "CAST(json_extract({name}, '$') AS {kind})"),
        (".*", ".*", "CAST({name} AS {kind})"),
    ),
}
"""How values of a type become those of another: the first row that fits both."""


class TableColumns(msgspec.Struct, frozen=True):
    """The columns of a table that is there, and their types as the database tells them."""

    dialect: str = ""
    types: Mapping[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self.types)

    def type_of(self, column: str) -> str | None:
        """Tell the type of a column, by its name as the database compares names."""
        exact = bool(self) and CAPABILITIES[self.dialect].exact_case
        return self.types.get(column if exact else column.lower())


class TypeChange(msgspec.Struct, frozen=True):
    """A column that is in the table with another type than its field has."""

    table: str
    column: Column
    found: str
    dialect: str
    is_key: bool = False

    @property
    def needed(self) -> str:
        """The type that it must have, as the database tells it."""
        kind: str = getattr(self.column, self.dialect)
        return SPELLED.get(kind, kind)

    @property
    def is_real(self) -> bool:
        """Whether there is anything to change."""
        return self.found != self.needed

    @property
    def widens(self) -> bool:
        """Whether the type keeps every value; of whole numbers in floats, most: `lossy` tells."""
        allowed = WIDER.get(self.needed)
        return not self.is_key and allowed is not None and bool(re.fullmatch(allowed, self.found))

    @property
    def lossy(self) -> Statement:
        """Look for a value that would not come back as it is."""
        name, least = self.column.quoted, -(2**63)
        # The lowest bit divides the rest of a float's 53.
        rest = f"abs({name}) / ({name} & -{name}) > {EXACT}"
        inexact = (
            f"CASE WHEN {name} BETWEEN -{EXACT} AND {EXACT} OR {name} = {least} THEN false"
            f" ELSE {rest} END"
        )
        strange = f"typeof({name}) NOT IN ('integer', 'null')"
        is_float = self.needed in ("double precision", "REAL")
        postgres = inexact.replace(name, f"{name}::bigint") if is_float else "false"
        sqlite = f"{strange} OR {inexact}" if is_float else strange
        look = f'SELECT {{}} FROM "{self.table}" WHERE {{}} LIMIT 1'
        return self._statement(look.format(name, postgres), look.format(name, sqlite), "lossy")

    def statements(self) -> list[Statement]:
        """Change it."""
        return [self._statement(text, text, "widen") for text in self._texts()]

    def _statement(self, postgres: str, sqlite: str, verb: str) -> Statement:
        return Statement(f"target:{self.table}:{verb}", postgres, sqlite)

    def refusal(self, why: str) -> str:
        """Name the change that is refused, and its statements."""
        texts = "; ".join(self._texts())
        return (
            f"column {self.column.name!r} of table {self.table!r} is {self.found}, and its field "
            f"now needs {self.needed}: {why}. Nothing was read. If that is meant, run `{texts};` "
            "and start with full=True, which makes every record anew; or give the field another "
            "name"
        )

    def _texts(self) -> Iterator[str]:
        table, name = f'"{self.table}"', self.column.quoted
        if CAPABILITIES[self.dialect].alter_types:
            kind = self.column.postgres
            yield f"ALTER TABLE {table} ALTER COLUMN {name} TYPE {kind} USING {self._value()}"
            return
        if self.is_key:
            # A key cannot be dropped: the table is made anew.
            yield f'ALTER TABLE {table} RENAME TO "{self.table}_before"'
            return
        # A field's name has no space: no column of the record is called so.
        new = f'"{self.column.name} changed"'
        yield f"ALTER TABLE {table} ADD COLUMN {new} {self.needed}"
        yield f"UPDATE {table} SET {new} = {self._value()}"
        yield f"ALTER TABLE {table} DROP COLUMN {name}"
        yield f"ALTER TABLE {table} RENAME COLUMN {new} TO {name}"

    def _value(self) -> str:
        """Convert a value."""
        name, kind = self.column.quoted, getattr(self.column, self.dialect)
        words = {
            "name": name,
            "kind": kind,
            "whole": f"CAST({name} AS INTEGER)",
            "json": f"CASE WHEN json_valid({name}) THEN json_type({name}) END",
        }
        return next(
            text.format(**words)
            for found, needed, text in CONVERSIONS[self.dialect]
            if re.fullmatch(found, self.found) and re.fullmatch(needed, kind)
        )
