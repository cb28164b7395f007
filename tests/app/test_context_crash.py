"""A handler of three steps, killed at its commits: every effect once, every result kept."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import three_steps

from milepost.job import Job
from milepost.observe.verify import verify
from milepost.store import workers
from tests.support.prove import PROVING

pytestmark = pytest.mark.in_turn

KILLS = [
    ("job_claim", 1, "after"),
    ("durable_record", 1, "after"),
    ("durable_record", 2, "before"),
    ("durable_record", 2, "after"),
    ("durable_record", 3, "after"),
    ("job_succeed", 1, "after"),
]


@pytest.fixture
def app(database, tmp_path):
    made = three_steps.program(database.url, tmp_path)
    yield made
    made.close()


@pytest.mark.prove
@pytest.mark.parametrize("kind", ["plain", "awaited"] if PROVING else ["either"])
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: "-".join(map(str, kill)))
def test_every_step_has_its_effect_once(app, database, tmp_path, kind, kill):
    query, turn, moment = kill
    # Every day each store sees every kill once, and both colours are tried.
    kind = {"sqlite": "plain", "postgres": "awaited"}[database.dialect] if not PROVING else kind
    with database.raw() as raw:
        raw.execute("CREATE TABLE effect (name text NOT NULL)")
    job = Job(app, app.registry.newest(kind)).submit(3)
    killed = subprocess.run(
        [sys.executable, three_steps.__file__, database.url, tmp_path, query, str(turn), moment],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert job.refresh().state == ("SUCCEEDED" if query == "job_succeed" else "RUNNING")

    app.client.run(workers.advance_clock, 31)
    app.drain()

    assert job.refresh().result == "3 loaded"
    assert Path(tmp_path / "effects").read_text().split() == ["reserve", "notify"]
    with database.raw() as raw:
        assert raw.execute("SELECT name FROM effect") == [("load",)]
    assert [entry.move for entry in job.history].count("lose") == (query != "job_succeed")
    with database.driver() as driver:
        assert verify(driver).clean
