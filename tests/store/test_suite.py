"""The suite that defines a store, on every database at hand, in both colours."""

from collections.abc import Iterator

import pytest

from milepost.testing import suite
from milepost.testing.databases import Backends, backend_names
from milepost.testing.suite import COLOURS, Store, opened


@pytest.fixture(scope="session")
def servers_stores() -> Iterator[dict[str, Store]]:
    """Stores on servers are emptied rather than made anew: that is ten times as fast."""
    kept: dict[str, Store] = {}
    yield kept
    for made in kept.values():
        made.close()


def empty(store: Store) -> None:
    tables = [
        name
        for (name,) in store.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        if name not in ("clock", "migration")
    ]
    with store.raw() as hand:
        hand.execute("SET session_replication_role = replica")
        hand.execute(f"TRUNCATE {', '.join(tables)}")
        hand.execute("UPDATE clock SET offset_us = 0")


def everywhere() -> list[str]:
    """Both colours of everything, but only one of servers that are older than the wheel's."""
    return [
        f"{name}-{colour}"
        for name in backend_names()
        for colour in COLOURS
        if colour == "sync" or name in ("sqlite", "postgres18", "postgres-url")
    ]


@pytest.fixture(params=everywhere())
def store(
    request: pytest.FixtureRequest, backends: Backends, servers_stores: dict[str, Store]
) -> Iterator[Store]:
    backend, _, colour = request.param.rpartition("-")
    if backend == "sqlite":
        with opened(backends.fresh(backend), colour) as made:
            yield made
            assert made.problems() == []
        return
    if request.param not in servers_stores:
        servers_stores[request.param] = Store(backends.fresh(backend), colour)
    made = servers_stores[request.param]
    empty(made)
    yield made
    # Whatever a test did, the journal and the rows agree afterwards (I8, I9).
    assert made.problems() == []


class TestBirths(suite.BirthSuite):
    pass


class TestClaims(suite.ClaimSuite):
    pass


class TestSettling(suite.SettleSuite):
    pass


class TestLeases(suite.LeaseSuite):
    pass


class TestTimers(suite.TimerSuite):
    pass


class TestClock(suite.ClockSuite):
    pass


class TestCancel(suite.CancelSuite):
    pass


class TestErase(suite.EraseSuite):
    pass


class TestSignals(suite.SignalSuite):
    pass


class TestReading(suite.ReadSuite):
    pass


class TestFilling(suite.FillSuite):
    pass


class TestFanIn(suite.FanInSuite):
    pass


class TestOutputs(suite.OutputSuite):
    pass


class TestStopping(suite.StopSuite):
    pass


class TestWorkers(suite.WorkerSuite):
    pass


class TestHistories(suite.HistorySuite):
    pass


class TestFailpoints(suite.FailpointSuite):
    pass


def test_no_theme_is_left_out() -> None:
    collected = {c.__bases__[0] for n, c in globals().items() if n.startswith("Test")}
    assert collected == set(suite.StoreSuite.__bases__)
