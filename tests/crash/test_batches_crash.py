"""Batches under fire: workers are killed while children end together, and every gate opens once."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from milepost.observe.verify import verify
from tests.support.databases import Backends
from tests.support.prove import PROVING

PROGRAM = """
import asyncio
from collections.abc import Iterable, Iterator
import milepost as mp

app = mp.App(concurrency=SLOTS)
batch = app.batch("fire", params=int)

@batch.step(retries=50, retry_delay=0, poison_limit=50)
def find(params: int) -> Iterator[int]:
    yield from range(params)

@batch.step(retries=50, retry_delay=0, poison_limit=50)
async def load(number: int) -> int:
    await asyncio.sleep(LONG)
    return number

@batch.step(gated=True, retries=50, retry_delay=0, poison_limit=50)
async def index(number: int) -> int:
    await asyncio.sleep(LONG)
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
RUNS = 1_000 if PROVING else 40
AT_ONCE = 50 if PROVING else 20
"""So many runs are open at a time: what is killed is always in the middle of several."""
OPEN = "SELECT count(*) FROM run WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"
CHILDREN = 6
WORKERS = 4
KILLS = 500 if PROVING else 10
NURSERY = """
import os, signal, sys
from milepost.cli import main
import fire

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        main(["worker", "fire:app"])
        os._exit(0)
    print(child, flush=True)
"""

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]

FEW_AT_ONCE = "SLOTS, LONG = 8, 0.05"
MANY_AT_ONCE = """
import os
from milepost.worker.settler import Settler

SLOTS, LONG = 500, 0.01
settle = Settler._settle_some

async def told(settler, batch):
    if settler._writing:
        with open("beside", "a") as seen:
            seen.write(f"{os.getpid()}\\n")
    await settle(settler, batch)

Settler._settle_some = told
"""
"""What a worker needs to settle in two transactions at once, and a word when it does."""
IDLE_SECONDS = 120
"""So long nobody may be at work before a proof fails: workers that cannot start prove nothing."""
WIDE_KILLS = 40 if PROVING else 3
WIDE_CHILDREN = 1_500 if PROVING else 1_200
"""More than one transaction publishes, and more than one lets through a gate."""


class Crew:
    """Worker processes that die at any moment, each of which is replaced.

    They are forked by one that has imported everything: to start Python anew five hundred times
    would take longer than the work.
    """

    def __init__(self, folder, url, program):
        (folder / "fire.py").write_text(program)
        environment = {**os.environ, **QUICK, "MILEPOST_DATABASE_URL": url}
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", NURSERY],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._pids = [self._started() for _ in range(WORKERS)]
        self._until = time.monotonic() + IDLE_SECONDS

    def _started(self):
        self._nursery.stdin.write("one more\n")
        self._nursery.stdin.flush()
        return int(self._nursery.stdout.readline())

    def kill_one(self, app, chance):
        """Kill one that is at work; False when none is yet: one that only starts proves nothing."""
        assert time.monotonic() < self._until, "no worker is at work"
        known = {worker.pid for worker in app.workers.list() if worker.state != "STOPPED"}
        at_work = [place for place, pid in enumerate(self._pids) if pid in known]
        if not at_work:
            return False
        self._until = time.monotonic() + IDLE_SECONDS
        place = chance.choice(at_work)
        os.kill(self._pids[place], signal.SIGKILL)
        self._pids[place] = self._started()
        return True

    def close(self):
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
        self._nursery.communicate(timeout=30)


@contextmanager
def crew(folder, url, program):
    made = Crew(folder, url, program)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["sqlite", "postgres18"])
def database(request, backends: Backends):
    return backends.fresh(request.param)


def declared(url):
    """Declare the batch in this process as well, to start runs of it."""
    program = FEW_AT_ONCE + PROGRAM.replace("mp.App(", f"mp.App({url!r}, ")
    namespace: dict = {}
    exec(compile(program, "fire", "exec"), namespace)
    return namespace["app"], namespace["batch"]


def check(run, children):
    """Every gate opened once, every chunk and the reducer succeeded once."""
    moves = [entry.move for entry in run.history]
    assert moves == ["create", "begin", "advance", "advance", "finalize", "finish"]
    assert run.report == sum(range(children))
    assert [step.counts for step in run.steps] == [
        {"SUCCEEDED": 1},
        {"SUCCEEDED": children},
        {"SUCCEEDED": children},
        {"SUCCEEDED": 1},
    ]


def test_every_gate_opens_once_and_every_reducer_succeeds_once(database, tmp_path):
    app, batch = declared(database.url)
    runs = []
    chance = random.Random(7)
    killed = 0
    with (
        crew(tmp_path, database.url, FEW_AT_ONCE + PROGRAM) as workers,
        database.raw() as raw,
    ):
        while killed < KILLS or len(runs) < RUNS:
            missing = AT_ONCE - raw.value(OPEN)
            runs += [batch.start(CHILDREN) for _ in range(missing)]
            # As many kills for each run, however fast this machine is.
            if killed * RUNS < KILLS * len(runs):
                killed += workers.kill_one(app, chance)
            time.sleep(chance.uniform(0, 0.1))
        for run in runs:
            run.wait(600 if PROVING else 120)
        lost = raw.value("SELECT sum(losses) FROM job")
    for run in runs:
        check(run, CHILDREN)
    with database.driver() as driver:
        assert verify(driver).clean
    assert lost > 0, "nothing was under way when workers died"
    print(f"{len(runs)} runs, {killed} kills, {lost} attempts lost")
    app.close()


@pytest.mark.parametrize("database", ["postgres18"], indirect=True)
def test_two_settling_transactions_of_a_killed_worker_leave_nothing_half_done(database, tmp_path):
    """H-34, H-58: with many slots a worker settles a run's next jobs beside the last ones."""
    app, batch = declared(database.url)
    runs = []
    chance = random.Random(11)
    killed = 0
    with (
        crew(tmp_path, database.url, MANY_AT_ONCE + PROGRAM) as workers,
        database.raw() as raw,
    ):
        while killed < WIDE_KILLS:
            if raw.value(OPEN) < 2:
                runs.append(batch.start(WIDE_CHILDREN))
            if killed < len(runs):
                killed += workers.kill_one(app, chance)
            time.sleep(chance.uniform(0, 1.0))
        for run in runs:
            run.wait(600 if PROVING else 120)
        lost = raw.value("SELECT sum(losses) FROM job")
        twice = raw.value(
            "SELECT count(*) FROM (SELECT subject_id FROM journal WHERE machine = 'job'"
            " AND move = 'succeed' GROUP BY subject_id HAVING count(*) > 1) AS many"
        )
    for run in runs:
        check(run, WIDE_CHILDREN)
    assert twice == 0
    with database.driver() as driver:
        assert verify(driver).clean
    seen = tmp_path / "beside"
    beside = len(seen.read_text().splitlines()) if seen.exists() else 0
    print(f"{len(runs)} runs, {killed} kills, {lost} attempts lost, {beside} settled beside")
    if PROVING:
        assert lost > 0
        assert beside > 0
    app.close()
