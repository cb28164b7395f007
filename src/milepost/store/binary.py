"""Rows in the binary format of PostgreSQL's COPY.

A value has one spelling there, so that the rows that were sent can be compared with those that
stand, byte by byte, without their being read. Only `jsonb` is kept in words of the server's own.
"""

from binascii import unhexlify
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from struct import Struct
from struct import error as unfit
from typing import Any

import msgspec

from milepost.errors import Invalid

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
END = b"\xff\xff"
NULL = b"\xff\xff\xff\xff"
CHUNK = 256 * 1024
YEAR_2000 = 946_684_800_000_000
"""From which PostgreSQL counts, in microseconds."""
MASK = (1 << 64) - 1
OWN_WORDS = "jsonb"
"""The type that the server spells in its own way."""

Pack = Callable[[Any], bytes]

_count, _size = Struct(">h").pack, Struct(">i").pack
_int2, _int4, _int8 = Struct(">ih").pack, Struct(">ii").pack, Struct(">iq").pack
_float8, _bool = Struct(">id").pack, Struct(">i?").pack


def _bytes(value: bytes) -> bytes:
    return _size(len(value)) + value


PACK: dict[str, Pack] = {
    "bool": lambda value: _bool(1, value),
    "bytea": _bytes,
    "float8": lambda value: _float8(8, value),
    "int2": lambda value: _int2(2, value),
    "int4": lambda value: _int4(4, value),
    "int8": lambda value: _int8(8, value),
    "jsonb": lambda value: _bytes(b"\x01" + value),
    "text": _bytes,
    "timestamptz": lambda value: _int8(8, value - YEAR_2000),
    "uuid": lambda value: _bytes(unhexlify(value.replace(b"-", b""))),
}
"""How a value is spelled that SQLite gives as a number, or as bytes: a text, too."""


def numbered(first: int) -> Pack:
    """Give rows numbers in the order in which they come: from the first one on, or below it."""
    places = count()
    return lambda place: _int8(8, next(places) + (first if place >= first else 1))


class Column(msgspec.Struct, frozen=True):
    """A column, and how PostgreSQL calls its type."""

    name: str
    kind: str

    @property
    def is_compared(self) -> bool:
        """Whether what is sent is what comes back."""
        return self.kind != OWN_WORDS


class Sum(msgspec.Struct):
    """How many rows there are, and the sum of their hashes: whatever their order."""

    rows: int = 0
    hashes: int = 0

    def add(self, row: bytes) -> None:
        """Count a row."""
        self.rows += 1
        self.hashes = self.hashes + hash(row) & MASK


class Packer:
    """Spells the rows of one table, and sums them up; columns that are not compared come last."""

    def __init__(self, table: str, columns: Sequence[Column], **instead: Pack) -> None:
        self.sum = Sum()
        self._table, self._columns = table, columns
        self._packs = [instead.get(column.name) or PACK[column.kind] for column in columns]
        self._compared = sum(column.is_compared for column in columns)

    def chunks(self, rows: Iterable[Sequence[Any]]) -> Iterator[bytes]:
        """Spell rows as a COPY reads them, some at a time."""
        head, held, size = _count(len(self._columns)), [HEADER], 0
        for row in rows:
            fields = self._fields(row)
            whole = b"".join(fields)
            told = b"".join(fields[: self._compared]) if self._compared < len(fields) else whole
            self.sum.add(told)
            held += (head, whole)
            size += len(whole)
            if size > CHUNK:
                yield b"".join(held)
                held, size = [], 0
        yield b"".join([*held, END])

    def _fields(self, row: Sequence[Any]) -> list[bytes]:
        try:
            return [
                NULL if value is None else pack(value)
                for pack, value in zip(self._packs, row, strict=True)
            ]
        except (unfit, ValueError, TypeError, AttributeError) as error:
            raise self._refusal(row) from error

    def _refusal(self, row: Sequence[Any]) -> Invalid:
        """Name the value that PostgreSQL has no place for, and the row by its first column."""
        for column, pack, value in zip(self._columns, self._packs, row, strict=True):
            try:
                _ = value is None or pack(value)
            except (unfit, ValueError, TypeError, AttributeError):
                return Invalid(
                    f"PostgreSQL cannot store {self._table}.{column.name} of the row that begins "
                    f"with {row[0]!r}: it is no {column.kind}"
                )
        raise AssertionError


def summed(chunks: Iterable[bytes]) -> Sum:
    """Sum up the rows that a COPY gives, each in a piece of its own, perhaps after the header."""
    found = Sum()
    for chunk in chunks:
        row = chunk.removeprefix(HEADER)
        if row and row != END:
            found.add(row[2:])
    return found
