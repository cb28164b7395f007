"""`milepost demo --dashboard`: an evening happens, in the store and not on the screen."""

import sys

import pytest
from rich.console import Console

from milepost.demo import dashboard
from milepost.store import dashboard as kept
from tests.support.prove import PROVING

SHORT = {
    "MINUTES": 6,
    "RUNS_AT": (6,),
    "LATE_SINCE": 5,
    "FAILING_SINCE": 4,
    "PAUSED_SINCE": 3,
    "UNSERVED_SINCE": 2,
}


@pytest.mark.prove
def test_an_evening_has_something_of_everything(tmp_path, monkeypatch, capfd):
    for name, value in {} if PROVING else SHORT.items():
        monkeypatch.setattr(dashboard, name, value)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", f"sqlite:///{tmp_path}/evening.db")
    for name in ("EVENING_PACE", "EVENING_TROUBLE"):
        monkeypatch.setenv(name, "")
    sys.modules.pop("milepost.demo.evening", None)
    evening = dashboard.Evening(Console(quiet=True))
    with dashboard.lines_in(tmp_path / "evening.log", evening.app.settings):
        evening.fill()
    counts = {state for states in evening.app.counts().values() for state in states}
    assert counts >= {"SUCCEEDED", "RETRYING", "QUEUED", "WAITING"}
    paused = {one.name: one.paused_by for one in evening.app.queues.list() if one.paused}
    assert paused == {"mail": "ana"}
    assert {run.state for run in evening.app.runs.list(kind="import-catalogue")} == {"SUCCEEDED"}
    [check] = evening.app.client.run(kept.checks)
    assert (check.name, check.clean) == ("verify", True)
    assert capfd.readouterr().err == ""
    assert "503 from api.pay.example" in (tmp_path / "evening.log").read_text()
    evening.app.close()
