"""Columns of a target: how each database calls their types, and how values are handed over.

Values are converted a column at a time, so that what is asked of a type is not asked of each value.
"""

import enum
import math
import re
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from milepost.errors import Invalid
from milepost.ingest.source import INTEGERS

__all__ = ["NAME", "Column", "Part", "column_of", "plain", "to_json"]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")


def to_json(value: Any) -> str:
    """Spell a value that no type of a database fits."""
    return msgspec.json.encode(value).decode()


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _whole(value: Any) -> int:
    """Refuse what a database would round, or would not take."""
    if int(value) not in INTEGERS:
        raise ValueError(f"{value} does not fit into 64 bits")
    return int(value)


def _number(value: Any) -> float:
    """Refuse what is no number: SQLite would store nothing for it."""
    if math.isnan(value):
        raise ValueError("NaN is no number")
    return float(value)


def plain(value: Any) -> Any:
    """Give what a member of an enumeration stands for; anything else is itself."""
    return value.value if isinstance(value, enum.Enum) else value


def _wholes(values: list[Any]) -> list[Any]:
    """Check whole numbers at once: as they are, they are handed over."""
    if set(map(type, values)) == {int} and min(values) in INTEGERS and max(values) in INTEGERS:
        return values
    return list(map(_whole, values))


def _numbers(values: list[Any]) -> list[Any]:
    if set(map(type, values)) == {float} and not any(map(math.isnan, values)):
        return values
    return list(map(_number, values))


ALL: dict[Callable[[Any], Any], Callable[[list[Any]], list[Any]]] = {
    _whole: _wholes,
    _number: _numbers,
}
"""How all values of a column are converted at once, where that is quicker than one by one."""
Converter = Callable[[Any], Any]
TYPES: tuple[tuple[type, str, str, Converter], ...] = (
    (bool, "boolean", "INTEGER", bool),
    (int, "bigint", "INTEGER", _whole),
    (float, "double precision", "REAL", _number),
    (datetime, "timestamptz", "TEXT", _iso),
    (date, "date", "TEXT", _iso),
    (Decimal, "numeric", "TEXT", str),
    (UUID, "uuid", "TEXT", str),
    (str, "text", "TEXT", str),
    (bytes, "bytea", "BLOB", bytes),
)


class Column(msgspec.Struct, frozen=True):
    """A column of a target: how each database calls its type, and how a value is handed over."""

    name: str
    postgres: str
    sqlite: str
    convert: Callable[[Any], Any]

    @property
    def quoted(self) -> str:
        """The name as SQL takes it."""
        return f'"{self.name}"'

    @property
    def is_json(self) -> bool:
        """Whether what is stored is a text of JSON."""
        return self.postgres == "jsonb"

    def converted(self, values: list[Any]) -> list[Any]:
        """Convert the values of many records, or raise what says that one does not fit."""
        if None in values:
            return [None if value is None else self.convert(value) for value in values]
        if self.convert in ALL:
            return ALL[self.convert](values)
        return list(map(self.convert, values))


def column_of(name: str, hint: Any) -> Column:
    """Choose the column for a field of that type."""
    if not NAME.fullmatch(name):
        raise Invalid(f"{name!r} cannot be the name of a column: letters, digits and _")
    for type_, postgres, sqlite, convert in TYPES:
        if isinstance(hint, type) and issubclass(hint, type_):
            chosen = plain if issubclass(hint, enum.Enum) else convert
            return Column(name, postgres, sqlite, chosen)
    return Column(name, "jsonb", "TEXT", to_json)


class Part(msgspec.Struct, frozen=True):
    """Records that are written in one statement, taken apart into columns."""

    versions: list[int]
    hashes: list[bytes]
    columns: list[list[Any]]

    def __getitem__(self, chosen: slice) -> "Part":
        columns = [column[chosen] for column in self.columns]
        return Part(self.versions[chosen], self.hashes[chosen], columns)
