"""A field that gets another type: every value stays what it is, or the run is refused unread."""

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from threading import Barrier
from typing import Any
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

import msgspec
import pytest
from diamond_shop import by_hand
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost as mp
from milepost.errors import Invalid
from milepost.ingest.columns import TYPES, Part
from milepost.ingest.target import Target
from milepost.store.driver import Call
from tests.support.prove import PROVING, size

RUN = str(uuid4())
INTEGERS = st.integers(-(2**63), 2**63 - 1)
VALUES = {
    bool: st.booleans(),
    int: INTEGERS | st.integers(0, 62).map(lambda bit: 2**bit) | st.integers(-9, 9),
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    date: st.dates(),
    Decimal: st.decimals(allow_nan=False, allow_infinity=False, places=6)
    | st.decimals("-1e40", "1e40"),
    UUID: st.uuids(),
    str: st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    bytes: st.binary(),
    list: st.lists(st.integers(-(2**53), 2**53) | st.booleans() | st.none()),
}
SAMPLES: dict[type, list[Any]] = {
    bool: [True, False],
    int: [0, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)],
    float: [0.1, -2.5, 5e-324, 1.7976931348623157e308, 2.0**60],
    datetime: [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)],
    date: [date.min, date.max],
    Decimal: [Decimal("0.10"), Decimal("1E+40"), Decimal("-1e-40")],
    UUID: [UUID(int=0), UUID(int=2**128 - 1)],
    str: ["", "5", "1.5", "true", "'; DROP TABLE things", "é"],
    bytes: [b"", b"\0\xff"],
    list: [[], [1, None, "x"]],
}
KEEPING = {(bool, int), (int, Decimal)}
"""Whatever is stored, it is the same in the other type."""
PAIRS = list(itertools.permutations(SAMPLES, 2))


def made(type_: Any, table: str = "things") -> Target:
    record = msgspec.defstruct("Thing", [("id", int), ("value", type_ | None)])
    return Target(table, key="id", record=record)


CLAIMS = WeakKeyDictionary()
"""The job that writes, for each app: one will do."""


def write(app, target, values, *, first=0):
    keys = [str(number) for number in range(first, first + len(values))]
    records = [{"id": int(key), "value": value} for key, value in zip(keys, values, strict=True)]
    part = Part([1] * len(keys), [b"h"] * len(keys), target.rows(keys, records) if keys else [])
    if keys:
        if app not in CLAIMS:
            CLAIMS[app] = by_hand(app)
        app.client.run(target.write, CLAIMS[app], RUN, part, made_with=1)


def read(app, target):
    rows = app.client.run(target.read, after=None, most=1000)
    return [target.shown(row).value for row in rows]


def is_changed(app, target) -> str | None:
    """Prepare a table for another type; answer how that was refused."""
    try:
        app.client.run(target.prepare)
    except Invalid as error:
        return str(error)
    return None


def statements(refusal: str) -> list[str]:
    [texts] = re.findall(r"run `(.*);` and start", refusal)
    return texts.split("; ")


def test_every_type_that_has_a_column_is_tried():
    assert {type_ for type_, *_ in TYPES} | {list} == set(SAMPLES) == set(VALUES)


@pytest.mark.prove
@pytest.mark.parametrize("old", SAMPLES, ids=lambda one: one.__name__)
def test_a_change_of_type_keeps_every_value_or_is_refused_with_the_alter(app, raw, old):
    """Every day half of the pairs on each database, and all that keep what is stored."""
    for number, (first, new) in enumerate(PAIRS):
        is_its_turn = number % 2 == (raw.dialect == "postgres")
        if first is old and (PROVING or is_its_turn or (old, new) in KEEPING):
            change(app, raw, old, new)


def change(app, raw, old, new):
    table = f"{old.__name__}_to_{new.__name__}".lower()
    before, after = made(old, table), made(new, table)
    assert is_changed(app, before) is None
    write(app, before, SAMPLES[old])
    refusal = is_changed(app, after)
    assert (refusal is None) == ((old, new) in KEEPING), table
    if refusal is None:
        assert read(app, after) == SAMPLES[old]
    else:
        assert read(app, before) == SAMPLES[old]
        raw.execute(f"DELETE FROM {table}")  # that they fit, nobody says
        for statement in statements(refusal):
            raw.execute(statement)
        assert is_changed(app, after) is None
    write(app, after, SAMPLES[new], first=100)
    assert read(app, after)[-len(SAMPLES[new]) :] == SAMPLES[new]


TABLES = itertools.count()


@pytest.mark.prove
@settings(
    max_examples=size(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_after_any_change_of_type_old_and_new_values_are_what_they_were(app, data):
    old, new = data.draw(st.sampled_from(PAIRS + [(int, float)] * 30))
    few = st.lists(VALUES[old], max_size=4)
    values, more = data.draw(few), data.draw(st.lists(VALUES[new], max_size=4))
    table = f"things_{next(TABLES)}"
    before, after = made(old, table), made(new, table)
    is_changed(app, before)
    write(app, before, values)
    if is_changed(app, after) is not None:
        assert read(app, before) == values
        assert (old, new) != (int, float) or any(float(value) != value for value in values)
        return
    write(app, after, more, first=100)
    assert read(app, after) == values + more


def test_whole_numbers_that_are_floats_become_floats(app):
    whole, broken = made(int), made(float)
    is_changed(app, whole)
    values = [0, 7, -(2**53), 2**60, -(2**63)]
    write(app, whole, values)
    assert is_changed(app, broken) is None
    write(app, broken, [0.5], first=10)
    assert read(app, broken) == [*values, 0.5]
    assert [type(value) for value in read(app, broken)] == [float] * 6


def test_one_number_that_is_no_float_keeps_them_all_from_becoming_floats(app):
    whole, broken = made(int), made(float)
    is_changed(app, whole)
    write(app, whole, [1, 2**53 + 1])
    assert str(2**53 + 1) in is_changed(app, broken)
    assert read(app, whole) == [1, 2**53 + 1]


def test_what_uses_a_column_is_named_before_it_is_changed(app, raw):
    whole, broken = made(int), made(float)
    is_changed(app, whole)
    raw.execute("CREATE VIEW cheap AS SELECT id FROM things WHERE value < 10")
    assert "view cheap must be dropped first" in is_changed(app, broken)
    raw.execute("DROP VIEW cheap")
    assert is_changed(app, broken) is None


@pytest.mark.parametrize("table", ["state", "version", "job_id"])
def test_words_of_the_engine_s_own_triggers_are_not_taken_for_a_table(app, table):
    """Whoever was told to drop those first would have dropped the lifecycle's guards."""
    whole, broken = made(int, table), made(float, table)
    is_changed(app, whole)
    assert is_changed(app, broken) is None


def test_a_field_of_any_name_is_beside_one_that_gets_another_type(app):
    def both(type_):
        fields = [("id", int), ("value", type_), ("value_changed", bool), ("value_new", int)]
        return Target("things", key="id", record=msgspec.defstruct("Thing", fields))

    is_changed(app, both(int))
    assert is_changed(app, both(float)) is None


def test_an_index_of_the_users_stays_or_is_named(app, raw):
    whole, broken = made(int), made(float)
    is_changed(app, whole)
    raw.execute("CREATE INDEX by_value ON things (value)")
    refusal = is_changed(app, broken)
    assert refusal is None if raw.dialect == "postgres" else "index by_value" in refusal


@pytest.mark.parametrize("kind", ["varchar(3)", "varchar"])
def test_a_text_that_somebody_made_shorter_is_made_wide_again(app, raw, kind):
    if raw.dialect == "sqlite":
        pytest.skip("a text has no length there")
    texts = made(str)
    is_changed(app, texts)
    raw.execute(f"ALTER TABLE things ALTER COLUMN value TYPE {kind}")
    write(app, texts, ["abc"])
    assert is_changed(app, texts) is None
    write(app, texts, ["abcd"], first=1)
    assert read(app, texts) == ["abc", "abcd"]


@pytest.mark.parametrize("kind", ["numeric(4, 1)", "timestamp(0)", "real", "json"])
def test_a_column_that_somebody_made_rounds_nothing(app, raw, kind):
    if raw.dialect == "sqlite":
        pytest.skip("nothing is rounded by a type there")
    type_ = {"numeric(4, 1)": Decimal, "timestamp(0)": datetime, "real": float, "json": list}[kind]
    target = made(type_)
    is_changed(app, target)
    raw.execute(f"ALTER TABLE things ALTER COLUMN value TYPE {kind} USING value::text::{kind}")
    refusal = is_changed(app, target)
    for statement in statements(refusal) if refusal else ():
        raw.execute(statement)
    assert is_changed(app, target) is None
    write(app, target, SAMPLES[type_])
    assert read(app, target) == SAMPLES[type_]


def test_a_key_that_gets_another_type_is_refused(app, raw):
    numbers = made(int)
    is_changed(app, numbers)
    named = Target(
        "things", key="id", record=msgspec.defstruct("Thing", [("id", str), ("value", int | None)])
    )
    refusal = is_changed(app, named)
    assert "column 'id'" in refusal
    for statement in statements(refusal):
        raw.execute(statement)
    assert is_changed(app, named) is None


@pytest.mark.parametrize("fields", [["a", "A"], ["Run_ID"]])
def test_names_that_are_one_column_in_sqlite_are_refused_where_they_are_declared(fields):
    with pytest.raises(Invalid, match="the record has"):
        Target(
            "things",
            key="id",
            record=msgspec.defstruct("Thing", [("id", int), *((name, int) for name in fields)]),
        )


WRONG = [
    (bool, "no"),
    (int, 1.5),
    (int, "5"),
    (float, 2**53 + 1),
    (float, Decimal("0.1")),
    (float, float("inf")),
    (datetime, datetime(2024, 1, 1)),  # noqa: DTZ001 - it is what is refused
    (date, datetime(2024, 1, 1, 12, tzinfo=UTC)),
    (Decimal, "x"),
    (Decimal, 0.1),
    (Decimal, Decimal("1e-20000")),
    (UUID, "x"),
    (str, 5),
    (bytes, 5),
]


@pytest.mark.parametrize(("type_", "value"), WRONG, ids=lambda one: str(one)[:20])
def test_a_value_that_its_column_would_change_is_refused(type_, value):
    with pytest.raises((ValueError, AttributeError)):
        made(type_).rows(["1"], [{"id": 1, "value": value}])
    with pytest.raises((ValueError, AttributeError)):
        made(type_).row("1", {"id": 1, "value": value})


class Priced(msgspec.Struct):
    id: int
    price: int


class Counted(mp.Source):
    """Counts how often it is asked for anything."""

    def __init__(self, price):
        self.price = price
        self.asked = 0

    def count(self, window, low, high):
        self.asked += 1
        return 1 if low <= 0 < high else 0

    def fetch(self, window, partition, cursor):
        self.asked += 1
        return mp.Page([{"id": 1, "price": self.price}] if partition.covers(0) else [])

    def rules(self):
        self.asked += 1


def source(type_, price):
    record = msgspec.defstruct("Record", [("id", int), ("price", type_)])

    class Shelf(Counted):
        def map(self, raw) -> record:
            return msgspec.convert(raw, record)

    return Shelf(price)


def run(database, shelf):
    """Run a pipeline whole, as a program that was deployed with that source does."""
    app = mp.App(database.url)
    pipeline = app.pipeline("items", shelf, key="id", partition_by="at", retries=3)
    found = pipeline.start(full=True)
    app.drain()
    found.refresh()
    prices = [record.price for record in pipeline.records()] if found.state == "SUCCEEDED" else None
    app.close()
    return found, prices


def test_a_field_that_became_a_float_is_not_rounded(app, database):
    assert run(database, source(int, 9))[1] == [9]
    assert run(database, source(float, 9.5))[1] == [9.5]


def test_a_field_that_became_a_text_is_refused_before_anything_is_read(app, database, raw):
    run(database, source(int, 9))
    shelf = source(str, "nine")
    refused, _ = run(database, shelf)
    assert (refused.state, shelf.asked) == ("FAILED", 0)
    [error] = refused.errors
    for statement in statements(error.message):
        raw.execute(statement)
    assert run(database, shelf)[1] == ["nine"]


async def test_a_reader_that_is_connected_sees_the_new_type(app, database):
    """What it has prepared for the column as it was is prepared again."""
    whole, broken = made(int), made(float)
    app.client.run(whole.prepare)
    write(app, whole, [1])
    looks = {"after": None, "most": 9}
    for _ in range(9):  # the drivers wait for a statement to come back before they prepare it
        await app.client.run_async(whole.read, **looks)
        app.client.run(whole.read, **looks)
        app.client.run(_alone, whole)
    other = mp.App(database.url)
    other.client.run(broken.prepare)
    write(other, broken, [0.5], first=1)
    other.close()
    for found in (
        await app.client.run_async(whole.read, **looks),
        app.client.run(whole.read, **looks),
        app.client.run(_alone, whole),
    ):
        assert [row[1] for row in found] == [1.0, 0.5]
    await app.client.close_async()


def _alone(target):
    return (yield Call(target.statement("read"), {"after": None, "most": 9}, alone=True))


def test_a_run_without_a_plan_rounds_nothing_either(app, database):
    """A replay, a retry and a forced run go on with what was read by a program before this one."""
    run(database, source(int, 9.5))
    other = mp.App(database.url)
    pipeline = other.pipeline("items", source(float, 9.5), key="id", partition_by="at")
    assert [kept.key for kept in pipeline.quarantine.list()] == ["1"]
    again = pipeline.quarantine.replay()
    other.drain()
    assert again.refresh().state == "SUCCEEDED"
    assert [record.price for record in pipeline.records()] == [9.5]
    other.close()


def test_two_programs_that_change_a_table_at_once_change_it_once(app):
    """Those that consolidate a run begin together, perhaps with a record that has a field more."""
    is_changed(app, made(int))
    grown = msgspec.defstruct("Thing", [("id", int), ("value", float | None), ("note", str)])
    target = Target("things", key="id", record=grown)
    together = Barrier(4)

    def prepared(_):
        together.wait()
        return is_changed(app, target)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(prepared, range(4))) == [None] * 4
    keys = ["1"]
    part = Part([1], [b"h"], target.rows(keys, [{"id": 1, "value": 0.5, "note": "new"}]))
    app.client.run(target.write, by_hand(app), RUN, part, made_with=1)
    assert read(app, target) == [0.5]
