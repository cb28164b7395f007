"""The suite that defines a store, on every database at hand, in both colours.

All of them when proving; every day each case takes its turn.
"""

import zlib
from collections.abc import Iterator

import pytest

from milepost.store import jobs
from tests.support import suite
from tests.support.databases import Backends, backend_names
from tests.support.prove import PROVING
from tests.support.suite import COLOURS, Store, opened


@pytest.fixture(scope="session")
def servers_stores() -> Iterator[dict[str, Store]]:
    """Stores on servers are emptied rather than made anew: that is ten times as fast."""
    kept: dict[str, Store] = {}
    yield kept
    for made in kept.values():
        made.close()


TABLES = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'milepost'::regnamespace
        AND relname NOT IN ('clock', 'migration')
"""


def empty(store: Store) -> None:
    """Delete row by row: TRUNCATE makes new files, and every plan that was made is made again."""
    deleted = "".join(f"DELETE FROM {table};" for (table,) in store.rows(TABLES))
    store.rows(
        f"BEGIN; SET LOCAL session_replication_role = replica; {deleted}"
        "UPDATE clock SET offset_us = 0; COMMIT"
    )


OLDER = [name for name in backend_names() if name not in ("sqlite", "postgres18", "postgres-url")]


def everywhere() -> list[str]:
    """Both colours of everything, but only one of servers that are older than the wheel's."""
    return [
        f"{name}-{colour}"
        for name in backend_names()
        for colour in COLOURS
        if colour == "sync" or name not in OLDER
    ]


def daily(case: str) -> list[str]:
    """Name where a case runs every day: SQLite and the newest server, each in one colour.

    Colours change from case to case, and every driver has its half of the suite.
    """
    colour = COLOURS[zlib.crc32(case.encode()) % len(COLOURS)]
    return [f"{name}-{colour}" for name in backend_names() if name not in OLDER]


def with_proofs(everyday: list[str]) -> list[object]:
    """Run the other colours and the older servers when proving."""
    others = [name for name in everywhere() if name not in everyday]
    proofs = [pytest.param(name, marks=pytest.mark.prove) for name in others]
    return [*everyday, *proofs] if PROVING else list(everyday)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" not in metafunc.fixturenames:
        return
    chosen = daily(metafunc.function.__qualname__)
    if metafunc.cls is TestFailpoints:
        # A crash at every point takes long: one colour of each database.
        chosen = [name for name in everywhere() if name in ("sqlite-sync", "postgres18-async")]
    metafunc.parametrize("store", with_proofs(chosen), indirect=True)


@pytest.fixture
def store(
    request: pytest.FixtureRequest, backends: Backends, servers_stores: dict[str, Store]
) -> Iterator[Store]:
    backend, _, colour = request.param.rpartition("-")
    if backend == "sqlite":
        with opened(backends.fresh(backend), colour) as made:
            yield made
            assert made.problems() == []
            assert made.run(jobs.counts) == made.counted()
        return
    if request.param not in servers_stores:
        servers_stores[request.param] = Store(backends.fresh(backend), colour)
    made = servers_stores[request.param]
    empty(made)
    yield made
    # Whatever a test did, journal, rows and counts of jobs agree afterwards (I8, I9).
    assert made.problems() == []
    assert made.run(jobs.counts) == made.counted()


class TestCreation(suite.CreationSuite):
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


class TestTally(suite.TallySuite):
    pass


class TestFilling(suite.FillSuite):
    pass


class TestFanIn(suite.FanInSuite):
    pass


class TestOutputs(suite.OutputSuite):
    pass


class TestStopping(suite.StopSuite):
    pass


class TestHosts(suite.HostSuite):
    pass


class TestLimits(suite.LimitSuite):
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
