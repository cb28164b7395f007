"""Records taken apart a column at a time give just what they give one by one."""

import enum
import math
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from milepost.ingest.target import Target


class Colour(enum.Enum):
    RED = "red"


class Everything(msgspec.Struct):
    id: str
    count: int
    share: float
    is_new: bool
    at: datetime
    day: date
    price: Decimal
    other: UUID
    name: str | None
    data: bytes
    colour: Colour
    tags: list[str]


class Plain(msgspec.Struct):
    id: int


FITTING = (
    ("count", st.integers(-(2**63), 2**63 - 1)),
    ("share", st.floats(allow_nan=False)),
    ("is_new", st.booleans()),
    ("at", st.datetimes(timezones=st.just(UTC))),
    ("day", st.dates()),
    ("price", st.decimals(allow_nan=False)),
    ("other", st.uuids()),
    ("name", st.text()),
    ("data", st.binary()),
    ("colour", st.just(Colour.RED)),
    ("tags", st.lists(st.text(), max_size=2)),
)
HOSTILE = st.sampled_from(
    [None, 2**63, -(2**63) - 1, math.nan, math.inf, True, 1, 1.5, "12", "", b"x", [], object()]
)
RECORDS = st.lists(
    st.builds(
        lambda fields, odd: {**fields, **odd},
        st.fixed_dictionaries(dict(FITTING)),
        st.just({})
        | st.dictionaries(st.sampled_from([name for name, _ in FITTING]), HOSTILE, max_size=2),
    ),
    min_size=1,
    max_size=4,
)
MAKES = st.sampled_from([dict, SimpleNamespace])


def one_by_one(target: Target, records: list[Any]) -> list[list[Any]] | None:
    try:
        values = [[_value(one, column.name) for one in records] for column in target.columns]
        return [
            [None if value is None else column.convert(value) for value in found]
            for column, found in zip(target.columns, values, strict=True)
        ]
    except Exception:  # noqa: BLE001 - whatever a hostile value raises
        return None


def _value(record: Any, name: str) -> Any:
    return record.get(name) if isinstance(record, dict) else getattr(record, name, None)


def at_once(target: Target, keys: list[str], records: list[Any]) -> list[list[Any]] | None:
    try:
        return target.rows(keys, records)
    except Exception:  # noqa: BLE001 - then they are taken one by one
        return None


def same(some: Any, other: Any) -> bool:
    """Compare with types: 1 is not True, nor 1.0."""
    return repr(some) == repr(other)


@given(RECORDS, MAKES)
def test_columns_are_what_rows_are(records, make):
    target = Target("things", key="id", record=Everything)
    keys = [f"k{number}" for number in range(len(records))]
    made = [make(id=key, **fields) for key, fields in zip(keys, records, strict=True)]
    assert same(at_once(target, keys, made), one_by_one(target, made))


@given(st.lists(st.integers() | st.booleans(), min_size=1, max_size=4))
def test_a_whole_key_is_the_same_number_or_none(numbers):
    target = Target("things", key="id", record=Plain)
    keys = [str(number) for number in numbers]
    made = [SimpleNamespace(id=number) for number in numbers]
    assert same(at_once(target, keys, made), one_by_one(target, made))


def test_a_field_that_is_missing_is_null_and_not_the_mappings_default():
    @dataclass
    class Thing:
        id: str
        count: int | None

    target = Target("things", key="id", record=Thing)
    for record in ({"id": "a"}, defaultdict(int, id="a"), SimpleNamespace(id="a")):
        assert target.rows(["a"], [record]) == [["a"], [None]]


def test_another_key_than_the_records_own_is_refused():
    target = Target("things", key="id", record=Plain)
    assert at_once(target, ["1", "2"], [Plain(1), Plain(3)]) is None


def test_a_key_that_a_function_finds_is_the_columns():
    target = Target("things", key=lambda raw: raw["n"], record=Plain)
    assert target.rows(["a", "b"], [Plain(1), Plain(2)]) == [["a", "b"], [1, 2]]
