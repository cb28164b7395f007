"""A source that has many more records than were counted, by any key, in pages or by offsets."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

import milepost as mp

T0 = datetime(2024, 1, 1, tzinfo=UTC)
COUNTED, GROWN = 30, 200
SIZE = 5


class Stone(msgspec.Struct):
    """A record that can be cut by a whole number, a fraction, a time or a day."""

    id: int
    price: int
    weight: float
    listed_at: datetime
    day: date
    updated_at: datetime


def stone(number: int) -> Stone:
    """Make a record; from the thirtieth on they crowd among the first ten."""
    at = number * 10 if number < COUNTED else number % 10 * 10 + 1 + number % 7
    return Stone(
        id=number,
        price=at,
        weight=at / 8,
        listed_at=T0 + timedelta(hours=at),
        day=(T0 + timedelta(days=at)).date(),
        updated_at=T0 + timedelta(seconds=number),
    )


class Growing(mp.Source[dict, Stone, list]):
    """Grows tenfold with the first page that is read; every process knows that it has."""

    def __init__(self, by: str, mark: Path) -> None:
        self.by = by
        self.mark = mark

    def rows(self, low, high) -> list[Stone]:
        count = GROWN if self.mark.exists() else COUNTED
        found = [one for one in map(stone, range(count)) if low <= getattr(one, self.by) < high]
        return sorted(found, key=lambda one: (getattr(one, self.by), one.id))

    def count(self, window, low, high) -> int:
        return len(self.rows(low, high))

    def fetch(self, window, partition, cursor):
        self.mark.touch()
        rows = self.rows(partition.low, partition.high)
        at = 0 if cursor is None else 1 + [one.id for one in rows].index(cursor[0])
        more = at + SIZE < len(rows)
        page = rows[at : at + SIZE]
        return mp.Page([msgspec.to_builtins(one) for one in page], [page[-1].id] if more else None)

    def map(self, raw: dict) -> Stone:
        return msgspec.convert(raw, Stone)


class GrowingOffsets(Growing, mp.OffsetSource):
    """The same, read by offsets; its last page is an empty one."""

    again = 2

    def fetch(self, window, partition, cursor):
        self.mark.touch()
        at = cursor or 0
        rows = self.rows(partition.low, partition.high)[at : at + SIZE]
        return [msgspec.to_builtins(one) for one in rows]


def options(by: str) -> dict:
    """What a pipeline of such a source is declared with."""
    return {"key": "id", "version": "updated_at", "partition_by": by, "partitions": 3, "page": SIZE}


def everything() -> dict:
    return {number: stone(number) for number in range(GROWN)}


def kept(pipeline) -> dict:
    return {one.id: one for one in pipeline.records()}
