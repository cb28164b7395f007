"""Limits hold whatever happens to workers and the server: none is exceeded, nobody is left behind.

Hazards L-1 to L-6.
"""

import pytest

from tests.support.databases import _create_database, _migrate
from tests.support.limited import Chaos, chaos, without_locks
from tests.support.prove import PROVING
from tests.support.servers import binaries, running

NEWEST = max(binaries(), key=int, default="")
ORDERED_COMMITS = {"fsync": "off", "track_commit_timestamp": "on"}

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


def plan(**more: int) -> Chaos:
    if PROVING:
        return Chaos(jobs=1_000_000, keys=2_000, kills=300, pauses=20, changes=60, **more)
    return Chaos(jobs=20_000, keys=400, kills=6, pauses=1, changes=4, workers=3, **more)


def check(figures, asked, capsys):
    with capsys.disabled():
        print(f"\n{figures}")
    assert figures.over == []
    assert figures.left == 0
    assert figures.problems == ()
    assert figures.kills == asked.kills
    assert figures.claims >= asked.jobs


@pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand")
def test_on_postgres_no_fault_lets_a_key_run_more_often_than_its_limit(tmp_path, capsys):
    asked = plan(restarts=20 if PROVING else 1)
    with running(NEWEST, ORDERED_COMMITS) as server:
        _create_database(server.url(), "limits", None)
        _migrate(server.url("limits"))
        check(chaos(server.url("limits"), tmp_path, asked, server), asked, capsys)


def test_on_sqlite_no_fault_lets_a_key_run_more_often_than_its_limit(tmp_path, capsys):
    asked = plan()
    check(chaos(f"sqlite:///{tmp_path}/limits.db", tmp_path, asked), asked, capsys)


@pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand")
def test_without_the_locks_the_same_judge_finds_limits_exceeded(tmp_path, capsys):
    asked = Chaos(jobs=1_000, keys=5, kills=0, pauses=0, changes=1, workers=4, concurrency=50)
    with running(NEWEST, ORDERED_COMMITS) as server:
        _create_database(server.url(), "limits", None)
        _migrate(server.url("limits"))
        without_locks(server.url("limits"))
        figures = chaos(server.url("limits"), tmp_path, asked, server)
    with capsys.disabled():
        print(f"\nwithout locks: {figures}")
    assert figures.over
