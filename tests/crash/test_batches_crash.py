"""Batches under fire: workers are killed while children end together, and every gate opens once."""

import os
import random
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from milepost.observe.verify import verify
from milepost.testing.databases import Backends
from milepost.testing.prove import PROVING, size

PROGRAM = """
import asyncio
from collections.abc import Iterable, Iterator
import milepost as mp

app = mp.App(concurrency=8)
batch = app.batch("fire", params=int)

@batch.step(retries=50, retry_delay=0, poison_limit=50)
def find(params: int) -> Iterator[int]:
    yield from range(params)

@batch.step(retries=50, retry_delay=0, poison_limit=50)
async def load(number: int) -> int:
    await asyncio.sleep(0.05)
    return number

@batch.step(gated=True, retries=50, retry_delay=0, poison_limit=50)
async def index(number: int) -> int:
    await asyncio.sleep(0.05)
    return number

@batch.reduce(retries=50, retry_delay=0, poison_limit=50)
def total(numbers: Iterable[int]) -> int:
    return sum(numbers)
"""
QUICK = {
    "MILEPOST_SWEEP": "0.1",
    "MILEPOST_LEASE": "2",
    "MILEPOST_HEARTBEAT": "0.3",
    "MILEPOST_POLL_MAX": "0.1",
    "MILEPOST_ERROR_WAIT": "0.2",
}
RUNS = size(1_000)
CHILDREN = 6
WORKERS = 4
KILLS = size(100)

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]


class Crew:
    """Worker processes, one of which dies now and then."""

    def __init__(self, folder, url):
        self._folder = folder
        self._environment = {**os.environ, **QUICK, "MILEPOST_DATABASE_URL": url}
        self._processes = [self._started() for _ in range(WORKERS)]

    def _started(self):
        return subprocess.Popen(
            [sys.executable, "-m", "milepost.cli", "worker", "fire:app"],
            cwd=self._folder,
            env=self._environment,
            stderr=subprocess.DEVNULL,
        )

    def are_at_work(self, app):
        """Whether each has registered: one that is killed as it starts proves nothing."""
        known = {worker.pid for worker in app.workers.list()}
        return all(process.pid in known for process in self._processes)

    def kill_one(self, chance):
        place = chance.randrange(WORKERS)
        self._processes[place].kill()
        self._processes[place].wait()
        self._processes[place] = self._started()

    def close(self):
        for process in self._processes:
            process.kill()
            process.wait()


@contextmanager
def crew(folder, url):
    made = Crew(folder, url)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["sqlite", "postgres18"])
def database(request, backends: Backends):
    return backends.fresh(request.param)


def test_every_gate_opens_once_and_every_reducer_succeeds_once(database, tmp_path):
    (tmp_path / "fire.py").write_text(PROGRAM)
    namespace: dict = {}
    exec(
        compile(PROGRAM.replace("mp.App(", f"mp.App({database.url!r}, "), "fire", "exec"), namespace
    )
    app, batch = namespace["app"], namespace["batch"]
    runs = [batch.start(CHILDREN) for _ in range(RUNS)]
    chance = random.Random(7)
    with crew(tmp_path, database.url) as workers:
        while app.runs.list(state="RUNNING", limit=1) == []:
            time.sleep(0.05)
        killed = 0
        while killed < KILLS and app.runs.list(state="RUNNING", limit=1):
            if workers.are_at_work(app):
                time.sleep(chance.uniform(0, 0.2))
                workers.kill_one(chance)
                killed += 1
            time.sleep(0.02)
        for run in runs:
            run.wait(600 if PROVING else 120)
    for run in runs:
        moves = [entry.move for entry in run.history]
        assert moves == ["create", "begin", "advance", "advance", "finalize", "finish"]
        assert run.report == sum(range(CHILDREN))
        assert [step.counts for step in run.steps] == [
            {"SUCCEEDED": 1},
            {"SUCCEEDED": CHILDREN},
            {"SUCCEEDED": CHILDREN},
            {"SUCCEEDED": 1},
        ]
    with database.driver() as driver:
        assert verify(driver).clean
        lost = sum(job.record.losses for job in app.jobs.list(limit=10_000))
    assert lost > 0, "nothing was under way when workers died"
    print(f"{RUNS} runs, {killed} kills, {lost} attempts lost")
    app.close()
