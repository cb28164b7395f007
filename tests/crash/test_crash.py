"""Workers are killed, paused past their lease and cut off: nothing is lost or counts twice."""

from signal import SIGTERM

import pytest

from tests.support.crash import Plan, broken_invariants, crash
from tests.support.databases import _create_database, _migrate
from tests.support.prove import PROVING
from tests.support.servers import binaries, running

SHARE = 1 if PROVING else 20
NEWEST = max(binaries(), key=int, default="")
DURABLE = {"fsync": "off"}
"""A commit that was answered survives the server; the machine itself does not crash here."""

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]


def check(url, figures, plan, capsys):
    with capsys.disabled():
        print(f"\n{figures}")
    assert broken_invariants(url, figures) == []
    assert (figures.kills, figures.pauses) == (plan.kills, plan.pauses)
    assert figures.kills_lost >= 0.8 * plan.kills
    # One that had only just started may end by the signal itself.
    assert set(figures.exits) <= {0, -SIGTERM}, figures.exits
    assert figures.moves["succeed"] >= plan.jobs


@pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand")
def test_on_postgres_no_kill_pause_or_restart_loses_or_doubles_an_effect(tmp_path, capsys):
    plan = Plan(jobs=2000 // SHARE, kills=100 // SHARE, pauses=20 // SHARE, restarts=20 // SHARE)
    with running(NEWEST, DURABLE) as server:
        _create_database(server.url(), "crash", None)
        _migrate(server.url("crash"))
        figures = crash(server.url("crash"), tmp_path, plan, server)
        check(server.url("crash"), figures, plan, capsys)
    assert figures.restarts == plan.restarts


def test_on_sqlite_no_kill_or_pause_loses_or_doubles_an_effect(tmp_path, capsys):
    plan = Plan(jobs=2000 // SHARE, kills=100 // SHARE, pauses=20 // SHARE)
    url = f"sqlite:///{tmp_path}/crash.db"
    figures = crash(url, tmp_path, plan)
    check(url, figures, plan, capsys)
