"""Limits of hosts hold whatever happens to workers: none is exceeded, nobody is left behind.

Decision 28: a place is a live lease. Hosts are judged by what they saw themselves, too.
"""

import pytest

from tests.support.databases import _create_database, _migrate
from tests.support.hosted import HostFigures, host_chaos, without_host_locks
from tests.support.limited import MOSTS, Chaos
from tests.support.loopback import Loopback
from tests.support.prove import PROVING
from tests.support.servers import binaries, running

NEWEST = max(binaries(), key=int, default="")
ORDERED_COMMITS = {"fsync": "off", "track_commit_timestamp": "on"}

pytestmark = [pytest.mark.prove, pytest.mark.timeout(3600)]


def plan() -> Chaos:
    if PROVING:
        return Chaos(jobs=60_000, keys=8, kills=150, pauses=12, changes=60, concurrency=40)
    return Chaos(jobs=600, keys=4, kills=4, pauses=1, changes=3, workers=3, concurrency=20)


@pytest.fixture
def hosts(monkeypatch):
    """Hosts of this machine, which workers may reach."""
    with Loopback(plan().keys) as made:
        monkeypatch.setenv("MILEPOST_REQUEST_ALLOW", made.allowed)
        yield made


def check(figures: HostFigures, asked: Chaos, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{figures}")
    assert figures.over == []
    assert figures.left == 0
    assert figures.problems == ()
    assert (figures.kills, figures.pauses) == (asked.kills, asked.pauses)
    assert figures.places >= asked.jobs
    assert figures.unplaced == 0
    assert figures.most_at_host <= max(MOSTS)
    # Those of a process that slept past its lease, and did not notice yet.
    assert figures.late <= asked.pauses * asked.concurrency


@pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand")
def test_on_postgres_no_fault_sends_a_host_more_at_once_than_it_bears(tmp_path, hosts, capsys):
    asked = plan()
    with running(NEWEST, ORDERED_COMMITS) as server:
        _create_database(server.url(), "hosts", None)
        _migrate(server.url("hosts"))
        check(host_chaos(server.url("hosts"), tmp_path, asked, hosts, server), asked, capsys)


def test_on_sqlite_no_fault_sends_a_host_more_at_once_than_it_bears(tmp_path, hosts, capsys):
    asked = plan()
    check(host_chaos(f"sqlite:///{tmp_path}/hosts.db", tmp_path, asked, hosts), asked, capsys)


CONTROL = Chaos(jobs=300, keys=4, kills=0, pauses=0, changes=1, workers=4, concurrency=30)


@pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand")
def test_without_the_locks_the_same_judge_finds_limits_exceeded(tmp_path, hosts, capsys):
    with running(NEWEST, ORDERED_COMMITS) as server:
        _create_database(server.url(), "hosts", None)
        _migrate(server.url("hosts"))
        without_host_locks(server.url("hosts"))
        figures = host_chaos(server.url("hosts"), tmp_path, CONTROL, hosts, server)
    with capsys.disabled():
        print(f"\nwithout locks: {figures}")
    assert figures.over


def test_without_the_count_the_same_judge_finds_limits_exceeded(tmp_path, hosts, capsys):
    url = f"sqlite:///{tmp_path}/hosts.db"
    figures = host_chaos(url, tmp_path, CONTROL, hosts, program="tests.support.hosted_blind:app")
    with capsys.disabled():
        print(f"\nwithout counting: {figures}")
    assert figures.over
    assert figures.most_at_host > max(MOSTS)
