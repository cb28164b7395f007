"""verify also holds the counters of a run's steps against the jobs that are there."""

from collections.abc import Iterator

import pytest

from milepost import outcome
from tests.support.databases import Database
from tests.support.suite.store import Store, opened


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with opened(database, "sync") as made:
        yield made


def test_counters_that_agree_are_no_problem(store: Store) -> None:
    store.worker()
    run_id = store.start([3, 1], slots=4)
    a, b = store.claim(2)
    store.settle((a, outcome.succeeded()), (b, outcome.later(None)))
    store.start([0], reduce=True)
    assert store.count(run_id) == (2, 1, 0, 0)
    assert store.problems() == []


def test_a_counter_that_lost_an_open_job_is_named(store: Store) -> None:
    run_id = store.start([3])
    store.rows(f"UPDATE step_count SET open = open - 1 WHERE slot = 0 AND run_id = '{run_id}'")
    assert store.problems() == [f"run {run_id}: its step 0 counts 2 open jobs, but has 3"]


def test_a_counter_that_keeps_an_ended_job_open_is_named(store: Store) -> None:
    run_id = store.start([0], hold=True)
    store.rows(f"UPDATE step_count SET open = 1 WHERE slot = 0 AND run_id = '{run_id}'")
    assert store.problems() == [f"run {run_id}: its step 0 counts 1 open jobs, but has 0"]


@pytest.mark.parametrize("name", ["succeeded", "failed", "cancelled"])
def test_more_ends_counted_than_there_is_retention_fewer_is_a_problem(
    store: Store, name: str
) -> None:
    store.worker()
    run_id = store.start([1], fail_fast=False, tolerance=1.0)
    [claim] = store.claim()
    ends = {
        "succeeded": outcome.succeeded(),
        "failed": outcome.failed(outcome.Problem("E", "m")),
        "cancelled": outcome.cancelled(),
    }
    store.settle((claim, ends[name]))
    store.rows(f"UPDATE step_count SET {name} = 2 WHERE run_id = '{run_id}'")
    assert store.problems() == []
    store.rows(f"UPDATE step_count SET {name} = 0 WHERE run_id = '{run_id}'")
    assert store.problems() == [f"run {run_id}: its step 0 counts 0 {name} jobs, but has 1"]
