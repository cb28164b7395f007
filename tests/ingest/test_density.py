"""How a source is cut: few counts, even partitions, nothing left out (H-82)."""

import asyncio
import bisect
import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from milepost.errors import Invalid
from milepost.ingest.keys import Axis, axis_of, read, written
from milepost.ingest.scan import scanned

pytestmark = pytest.mark.in_turn

COUNT = 20_000


def lognormal(seed):
    """Prices in cents, log-normal with sigma 1.1; ten of them are favourites, under 2 % each."""
    chance = random.Random(seed)
    keys = [int(chance.lognormvariate(12.5, 1.1)) + 5_000 for _ in range(COUNT)]
    for _ in range(10):
        favourite = chance.choice(keys)
        for _ in range(int(COUNT * 0.015)):
            keys[chance.randrange(COUNT)] = favourite
    return sorted(keys)


def cut(keys, axis, *, parts=30, origin=0.0):
    asked = []

    async def count(low, high):
        asked.append((low, high))
        return bisect.bisect_left(keys, high) - bisect.bisect_left(keys, low)

    plan = asyncio.run(scanned(count, axis, parts=parts, page=30, origin=origin))
    assert plan.calls == len(asked)
    return plan


@pytest.mark.parametrize("seed", range(20))
def test_h_82_skewed_prices_are_cut_evenly_in_sixty_calls(seed):
    keys = lognormal(seed)
    plan = cut(keys, Axis("number"))
    assert plan.calls <= 60
    assert len(plan.partitions) == 30
    largest = max(part.estimate for part in plan.partitions)
    assert largest <= 1.5 * COUNT / 30
    assert plan.largest <= 1.5
    held = [
        bisect.bisect_left(keys, p.high) - bisect.bisect_left(keys, p.low) for p in plan.partitions
    ]
    assert held == [part.estimate for part in plan.partitions]


DISTRIBUTIONS = {
    "none": [],
    "one": [7],
    "one key": [5] * 1000,
    "two keys": [1] * 500 + [10**9] * 500,
    "negative": sorted(int(random.Random(1).gauss(0, 5000)) for _ in range(5000)),
    "below zero": list(range(-5000, -10)),
    "fractions": sorted(random.Random(2).betavariate(0.5, 5) for _ in range(5000)),
    "clusters": sorted([*range(1000), *range(10**8, 10**8 + 1000)]),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_h_82_partitions_are_contiguous_disjoint_and_covering(name):
    keys = DISTRIBUTIONS[name]
    plan = cut(keys, Axis("number"), parts=8)
    parts = plan.partitions
    assert plan.calls <= 24
    assert (parts[0].low, parts[-1].high) == (float("-inf"), float("inf"))
    assert all(one.high == two.low for one, two in pairwise(parts))
    assert all(part.low < part.high for part in parts)
    assert sum(part.estimate for part in parts) == len(keys) == plan.counted
    assert sum(count for *_, count in plan.histogram) == len(keys)


def test_times_and_days_are_cut_like_numbers():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    times = sorted(
        now - timedelta(minutes=random.Random(3).expovariate(1 / 9000) * 60 * n % 9**6)
        for n in range(3000)
    )
    plan = cut(times, Axis("time"), origin=Axis("time").place(now))
    assert len(plan.partitions) == 30
    assert plan.largest <= 1.6
    days = sorted((now - timedelta(days=n % 700)).date() for n in range(3000))
    plan = cut(days, Axis("date"), parts=7, origin=Axis("date").place(now.date()))
    assert len(plan.partitions) == 7
    assert plan.largest <= 1.5


def test_bounds_save_the_search_for_the_ends():
    keys = sorted(random.Random(4).randrange(1000, 9000) for _ in range(5000))
    known = cut(keys, axis_of(None, (1000, 9000)), parts=10)
    assert known.calls < cut(keys, Axis("number"), parts=10).calls + 3
    assert known.partitions[0].low == float("-inf")
    with pytest.raises(Invalid, match="bounds"):
        axis_of(None, ("a", "b"))


def test_a_source_that_contradicts_itself_does_not_break_the_plan():
    chance = random.Random(5)

    async def count(low, high):
        return chance.randrange(-5, 1000)

    plan = asyncio.run(scanned(count, Axis("number"), parts=10, page=30, origin=0.0))
    parts = plan.partitions
    assert all(one.high == two.low for one, two in pairwise(parts))
    assert all(part.estimate >= 0 for part in parts)


@pytest.mark.parametrize(
    "bound",
    [
        1,
        2.5,
        float("inf"),
        float("-inf"),
        None,
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=UTC).date(),
    ],
)
def test_bounds_are_written_down_and_read_back(bound):
    assert read(written(bound)) == bound
