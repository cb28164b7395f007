"""Columns of a target: how each database calls their types, and how values are handed over.

Values are converted a column at a time: a type is looked at once, and not for each value.
"""

import enum
import math
import re
from collections.abc import Callable
from datetime import MAXYEAR, UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from milepost.codec import refuse_nan
from milepost.errors import Invalid
from milepost.ingest.source import INTEGERS

LAST_ODD_OFFSET = 1972
DIGITS = 16_383
"""How many digits after the point a numeric of PostgreSQL has at most."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")


def to_json(value: Any) -> str:
    """Spell a value that no type of a database fits."""
    data = msgspec.json.encode(value)
    if b"null" in data:
        refuse_nan(value)
    return data.decode()


# Each gives a value as its column takes it, or refuses one that would be another one there.


def _flag(value: Any) -> bool:
    if value not in (True, False):
        raise ValueError(f"{value!r} is neither true nor false")
    return bool(value)


def _whole(value: Any) -> int:
    whole = int(value)
    if whole not in INTEGERS:
        raise ValueError(f"{value} does not fit into 64 bits")
    if whole != value:
        raise ValueError(f"{value!r} is no whole number")
    return whole


def _number(value: Any) -> float:
    """Refuse also NaN and infinity: SQLite would store nothing for them."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("NaN is no number" if math.isnan(number) else f"{number} is no number")
    if number != value:
        raise ValueError(f"{value!r} is no float: it would be {number!r}")
    return number


def _moment(value: Any) -> str:
    if value.utcoffset() is None:
        raise ValueError(f"{value} needs a time zone: PostgreSQL would take it for its session's")
    # Offsets had seconds once, which no reader of ISO times knows; and there are times at the ends
    # of the calendar that have none in UTC: they could be stored, and never be read.
    if not LAST_ODD_OFFSET < value.year < MAXYEAR:
        try:
            value = value.astimezone(UTC)
        except OverflowError as error:
            raise ValueError(f"{value} lies beyond the calendar in UTC") from error
    return str(value.isoformat())


def _day(value: Any) -> str:
    if isinstance(value, datetime):
        raise ValueError(f"{value!r} is no day: its time would be lost")  # noqa: TRY004 - as others
    return str(value.isoformat())


def _exact(value: Any) -> str:
    """Refuse also a number with more digits than PostgreSQL keeps: it would round it."""
    number = Decimal(value) if isinstance(value, int) else value
    if not isinstance(number, Decimal):
        raise ValueError(f"{value!r} is no Decimal")  # noqa: TRY004 - as others
    if number.is_finite() and int(number.as_tuple().exponent) < -DIGITS:
        raise ValueError(f"{value} has more than {DIGITS} digits after its point")
    return str(number)


def _uuid(value: Any) -> str:
    return str(UUID(str(value)))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")  # noqa: TRY004 - as others
    return str(value)


def _key(value: Any) -> str:
    return str(plain(value))


def _data(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(f"{value!r} is no bytes")  # noqa: TRY004 - as others
    return bytes(value)


def _member_of(hint: type[enum.Enum]) -> Callable[[Any], Any]:
    def member(value: Any) -> Any:
        return value.value if type(value) is hint else hint(value).value

    return member


def plain(value: Any) -> Any:
    """Give the value of a member of an enumeration; anything else is itself."""
    return value.value if isinstance(value, enum.Enum) else value


Converter = Callable[[Any], Any]
SAME: dict[Converter, tuple[type, Callable[[list[Any]], bool]]] = {
    _whole: (int, lambda values: min(values) in INTEGERS and max(values) in INTEGERS),
    _number: (float, lambda values: all(map(math.isfinite, values))),
    _flag: (bool, bool),
    _text: (str, bool),
    _data: (bytes, bool),
}
"""Values of exactly this type, if they fit, are what the converter makes of each of them."""
TYPES: tuple[tuple[type, str, str, Converter], ...] = (
    (bool, "boolean", "BOOLEAN_INTEGER", _flag),
    (int, "bigint", "INTEGER", _whole),
    (float, "double precision", "REAL", _number),
    (datetime, "timestamptz", "DATETIME_TEXT", _moment),
    (date, "date", "DATE_TEXT", _day),
    (Decimal, "numeric", "DECIMAL_TEXT", _exact),
    (UUID, "uuid", "UUID_TEXT", _uuid),
    (str, "text", "TEXT", _text),
    (bytes, "bytea", "BLOB", _data),
)
"""SQLite stores by the word in a type's name that it knows; the rest says which type it is."""
JSON = {"postgres": "jsonb", "sqlite": "JSON_TEXT"}
"""The type of everything else."""


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
        """Whether a text of JSON is stored."""
        return self.postgres == JSON["postgres"]

    @property
    def is_bytes(self) -> bool:
        """Whether bytes are stored."""
        return self.postgres == "bytea"

    @property
    def shown(self) -> str:
        """The SQL that reads it."""
        return f"{{text:{self.quoted}}}" if self.postgres in ("jsonb", "uuid") else self.quoted

    def converted(self, values: list[Any]) -> list[Any]:
        """Convert the values of many records, or raise if one does not fit."""
        if None in values:
            return [None if value is None else self.convert(value) for value in values]
        kind, fits = SAME.get(self.convert, (None, bool))
        if set(map(type, values)) == {kind} and fits(values):
            return values
        return list(map(self.convert, values))


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Invalid(f"{name!r} cannot be the name of a column: letters, digits and _")


def column_of(name: str, hint: Any) -> Column:
    """Choose the column for a field of that type."""
    _check_name(name)
    for type_, postgres, sqlite, convert in TYPES:
        if isinstance(hint, type) and issubclass(hint, type_):
            chosen = _member_of(hint) if issubclass(hint, enum.Enum) else convert
            return Column(name, postgres, sqlite, chosen)
    return Column(name, **JSON, convert=to_json)


def key_of(name: str, *, is_whole: bool) -> Column:
    """Choose the column for the key: whole numbers are told apart as such, all else by its text."""
    _check_name(name)
    if is_whole:
        return Column(name, "bigint", "INTEGER", _whole)
    return Column(name, "text", "TEXT", _key)


class Part(msgspec.Struct, frozen=True):
    """Records that are written in one statement, taken apart into columns."""

    versions: list[int]
    hashes: list[bytes]
    columns: list[list[Any]]

    def __getitem__(self, chosen: slice) -> "Part":
        columns = [column[chosen] for column in self.columns]
        return Part(self.versions[chosen], self.hashes[chosen], columns)
