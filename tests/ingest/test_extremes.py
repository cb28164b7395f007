"""Records at the ends of an axis: the first and last partition are open-ended for every kind."""

import asyncio
import math
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise
from typing import TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milepost as mp
from milepost.ingest.keys import Axis, read, written
from milepost.ingest.scan import scanned

pytestmark = pytest.mark.in_turn

EXTREMES = {
    int: [-(2**63), -(10**18), -1, 0, 1, 10**18, 2**63 - 1],
    float: [-math.inf, -sys.float_info.max, -5e-324, 0.0, 1.5, sys.float_info.max, math.inf],
    datetime: [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
        datetime.min.replace(tzinfo=UTC),
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(2024, 2, 29, tzinfo=UTC),
        datetime(9999, 12, 30, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
    ],
    date: [date.min, date(1, 1, 2), date(2024, 2, 29), date(9999, 12, 30), date.max],
}
KINDS = {int: "int", float: "float", datetime: "time", date: "date"}


class Row(msgspec.Struct):
    id: int


def source_of(kind, keys):
    class Raw(TypedDict, total=False):
        id: int
        at: kind

    class Things(mp.Source[Raw, Row, None]):
        def count(self, window, low, high):
            return sum(low <= key < high for key in keys)

        def fetch(self, window, partition, cursor):
            return mp.Page([{"id": n} for n, key in enumerate(keys) if partition.covers(key)])

        def map(self, raw) -> Row:
            return Row(raw["id"])

    return Things()


@pytest.mark.parametrize("kind", EXTREMES)
def test_a_run_reads_the_records_at_both_ends_of_its_keys(app, kind):
    keys = EXTREMES[kind] * 3
    pipeline = app.pipeline(
        "things", source_of(kind, keys), key="id", partition_by="at", partitions=4
    )
    run = pipeline.start()
    app.drain()
    assert run.refresh().state == "SUCCEEDED"
    assert run.counts.new == len(keys)
    assert sorted(row.id for row in pipeline.records()) == list(range(len(keys)))


def any_key(kind):
    extremes = st.sampled_from(EXTREMES[kind])
    if kind is int:
        return extremes | st.integers(-(2**63), 2**63 - 1)
    if kind is float:
        return extremes | st.floats(allow_nan=False)
    return extremes | (st.datetimes(timezones=st.just(UTC)) if kind is datetime else st.dates())


@pytest.mark.parametrize("kind", EXTREMES)
@given(data=st.data())
def test_every_key_lies_in_exactly_one_partition(kind, data):
    keys = data.draw(st.lists(any_key(kind), max_size=40))
    origin = data.draw(st.sampled_from([0.0, 1e9 if kind is datetime else 19_000.0]))

    async def count(low, high):
        return sum(low <= key < high for key in keys)

    axis = Axis(KINDS[kind])
    plan = asyncio.run(scanned(count, axis, parts=5, page=1, origin=origin))
    assert plan.counted == len(keys)
    stored = [
        msgspec.structs.replace(
            part, low=read(written(part.low), axis), high=read(written(part.high), axis)
        )
        for part in plan.partitions
    ]
    for parts in (plan.partitions, stored):
        assert parts[0].is_first
        assert parts[-1].is_last
        assert all(one.high == two.low for one, two in pairwise(parts))
        for key in keys:
            assert [part.covers(key) for part in parts].count(True) == 1
