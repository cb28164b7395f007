"""Histograms and their quantiles, and what a worker adds up between two reports."""

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milepost as mp
from milepost.records import Claim
from milepost.store.tally import BOUNDS, Histogram, WorkerTally, quantile
from tests.support.databases import Database, Raw

MICROS = st.integers(-10_000_000, 200_000_000_000)


@given(st.lists(st.lists(MICROS, min_size=1, max_size=60), max_size=5))
def test_many_are_counted_as_each_would_be(batches: list[list[int]]) -> None:
    one, all_at_once = Histogram(), Histogram()
    for batch in batches:
        for micros in batch:
            one.observe(max(0, micros))
        all_at_once.observe_all(list(batch))
    assert (one.counts, one.sum_us) == (all_at_once.counts, all_at_once.sum_us)


@given(st.lists(st.floats(0, BOUNDS[-1]), min_size=1), st.floats(0, 1))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(seconds: list[float], q: float) -> None:
    buckets = [0] * (len(BOUNDS) + 1)
    for each in seconds:
        buckets[bisect_left(BOUNDS, each)] += 1
    rank = max(0, min(len(seconds) - 1, -int(-q * len(seconds) // 1) - 1))
    true = sorted(seconds)[rank]
    told = quantile(buckets, q)
    assert told is not None
    bucket = bisect_left(BOUNDS, true)
    low = BOUNDS[bucket - 1] if bucket else 0.0
    assert low <= told <= BOUNDS[bucket]


@given(st.lists(st.integers(0, 99), min_size=len(BOUNDS) + 1, max_size=len(BOUNDS) + 1))
def test_quantiles_grow(buckets: list[int]) -> None:
    told = [quantile(buckets, q / 20) for q in range(21)]
    assert told == sorted(told) if any(buckets) else set(told) == {None}


def test_durations_beyond_the_last_bound_are_told_as_that() -> None:
    assert quantile([0] * len(BOUNDS) + [3], 0.5) == BOUNDS[-1]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("kl"), st.none() | MICROS)))
def test_a_report_has_every_claim_once(given: list[tuple[str, str, int | None]]) -> None:
    claims = [claim(queue, kind, waited) for queue, kind, waited in given]
    tally = WorkerTally()
    tally.started(claims)
    rows = tally.take().rows
    assert sum(count for name, _, count, *_ in rows if name == "claim") == len(claims)
    for pair in {(queue, kind) for queue, kind, _ in given}:
        own = [waited for *found, waited in given if tuple(found) == pair and waited is not None]
        waits = [row for row in rows if row[0] == "wait" and row[4:] == pair]
        assert sum(row[2] for row in waits) == len(own)
        assert sum(row[3] for row in waits) == sum(max(0, waited) for waited in own)


def claim(queue: str, kind: str, waited: int | None) -> Claim:
    fields = {"queue": queue, "kind": kind, "waited_us": waited}
    return Claim(*(fields.get(name) for name in Claim.__struct_fields__))  # type: ignore[arg-type]


AGED = {
    "sqlite": "UPDATE tally_delta SET at = at - 6000000",
    "postgres": "UPDATE tally_delta SET at = at - interval '6 seconds'",
}


def test_counts_are_folded_once_they_have_gathered(
    app: mp.App, database: Database, raw: Raw
) -> None:
    """A short drain leaves them to whoever comes later."""

    @app.job
    def nothing() -> None: ...

    def sums() -> int:
        return int(raw.value("SELECT coalesce(sum(count), 0) FROM tally WHERE name = 'succeed'"))

    for folded in (0, 3 * 3):  # of the pair, of the kind and of all jobs
        nothing.submit_many([()] * 3)
        app.drain()
        assert sums() == folded
        raw.execute(AGED[database.dialect])
    app.drain()
    assert sums() == 6 * 3
    assert not raw.value("SELECT count(*) FROM tally_delta WHERE name = 'succeed'")


def test_counts_survive_a_vacuum(database: Database) -> None:
    """VACUUM gives the rows of a SQLite file other numbers."""
    from milepost import outcome
    from milepost.store import jobs, tally
    from tests.support.suite.store import Store

    if database.dialect != "sqlite":
        pytest.skip("rows have no numbers there")
    store = Store(database, "sync")
    try:
        store.worker()
        ended = [store.running() for _ in range(3)]
        store.settle(*((one, outcome.succeeded(b"1")) for one in ended))
        store.run(tally.fold, most=100)
        with store.raw() as raw:
            raw.execute("DELETE FROM job WHERE id = :id", {"id": ended[0].id})
            raw.execute("VACUUM")
        store.create(2)
        for _ in range(2):
            assert store.run(jobs.state_counts) == {"QUEUED": 2, "SUCCEEDED": 2}
            assert sum(sum(c.values()) for c in store.run(jobs.counts).values()) == 4
            store.run(tally.fold, most=100)
    finally:
        store.close()
