"""A killed worker takes along what it counted since its last report, and nothing else."""

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

import milepost as mp
from milepost.store import jobs, tally, workers

pytestmark = pytest.mark.in_turn

PROGRAM = """
import milepost as mp

app = mp.App(lease=2, heartbeat=0.3, sweep=0.1, poll_max=0.1)


@app.job
async def work(number: int) -> None: ...


app.run_worker()
"""


def counted(app: mp.App) -> dict[str | None, int]:
    now = app.client.run(workers.now)
    hour = timedelta(hours=1)
    found = app.client.run(tally.moves, now - hour, now + hour, step_seconds=7200)
    told: dict[str | None, int] = {}
    for one in found:
        told[one.move] = told.get(one.move, 0) + one.count
    return told


def submitted(app: mp.App, count: int) -> None:
    @app.job
    async def work(number: int) -> None: ...

    work.submit_many([(number,) for number in range(count)])


def wait_for(app: mp.App, count: int) -> None:
    until = time.monotonic() + 60
    while app.client.run(jobs.state_counts).get("SUCCEEDED", 0) < count:
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_killed_worker_loses_two_seconds_of_its_own_counts(database):
    app = mp.App(database.url)
    submitted(app, 200)
    environment = {**os.environ, "MILEPOST_DATABASE_URL": database.url}
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment) for _ in "ab"]
    try:
        wait_for(app, 200)
        # Two workers report at once; each is heard within a report's time and a sweep's.
        until = time.monotonic() + 30
        while counted(app).get("succeed") != 200:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert counted(app) == {"create": 200, "claim": 200, "succeed": 200}
        app2 = mp.App(database.url)
        submitted(app2, 50)
        wait_for(app2, 250)
        for process in processes:
            process.send_signal(signal.SIGKILL)
    finally:
        for process in processes:
            process.kill()
            process.wait(30)
    app.maintain_once()
    told = counted(app)
    # New jobs are counted with their rows, and jobs by the rows that there are.
    assert told["create"] == 250
    assert app.counts() == {"default": {"SUCCEEDED": 250}}
    assert 200 <= told["succeed"] <= 250
    assert 200 <= told["claim"] <= 250


def test_a_worker_that_stops_reports_everything(database):
    app = mp.App(database.url)
    submitted(app, 30)
    environment = {**os.environ, "MILEPOST_DATABASE_URL": database.url}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment)
    try:
        wait_for(app, 30)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
    app.maintain_once()
    assert counted(app) == {"create": 30, "claim": 30, "succeed": 30}
