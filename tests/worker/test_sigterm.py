"""SIGTERM ends a worker within its grace time and five seconds, whatever its handlers do (H-38).

Their jobs are given back, or lost with the lease; none stays RUNNING.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

from milepost.ending import LAST_SECONDS
from milepost.store import workers
from tests.support.databases import Backends, everyday_names
from tests.support.prove import PROVING

pytestmark = pytest.mark.in_turn

PROGRAM = """
import asyncio, atexit, multiprocessing, os, threading, time
from concurrent.futures import ThreadPoolExecutor
import milepost as mp
import milepost.cli.worker, milepost.ending

if last := float(os.environ.get("LAST", 0)):
    milepost.ending.LAST_SECONDS, milepost.cli.worker.END_SECONDS = last, 2 * last

app = mp.App(lease=2, heartbeat=0.3, sweep=0.1, poll_max=0.1, grace=1)


@app.job
async def swallows() -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass


@app.job
async def in_a_thread() -> None:
    await asyncio.to_thread(time.sleep, 600)


@app.job
def leaves_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()


@app.job
def leaves_a_pool() -> None:
    app.pool = ThreadPoolExecutor(1)
    app.pool.submit(time.sleep, 600)


@app.job
def leaves_a_process() -> None:
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(13,)).start()


@app.job
def leaves_a_hook() -> None:
    atexit.register(time.sleep, 600)


@app.job
async def leaves_a_task() -> None:
    async def stays():
        while True:
            try:
                await asyncio.sleep(600)
            except BaseException:
                pass

    app.task = asyncio.create_task(stays())


@app.job
async def blocks() -> None:
    time.sleep(600)


@app.job
async def spins() -> None:
    while True:
        pass


@app.job
def insists() -> None:
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass


@app.job(retries=0)
async def leaves() -> None:
    raise GeneratorExit("no generator here")


@app.job(retries=0)
def leaves_plainly() -> None:
    raise GeneratorExit("no generator here")
"""
GRACE = 1
SOON = LAST_SECONDS if PROVING else 1.0
"""How long after the grace time most workers here may take; some, as long as everywhere."""
PATIENT = ("blocks", "leaves_a_hook")
SLACK = 5
"""What a crowded machine may add to the promise."""


@pytest.fixture(params=everyday_names())
def database(request, backends: Backends):
    made = backends.fresh(request.param)
    yield made
    backends.drop(made)


@pytest.fixture
def app(tmp_path, database, monkeypatch):
    (tmp_path / "stubborn.py").write_text(PROGRAM)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", database.url)
    namespace = {"__name__": "stubborn"}
    exec(compile(PROGRAM, "stubborn.py", "exec"), namespace)
    namespace["app"].kinds = namespace
    yield namespace["app"]
    namespace["app"].close()


@contextmanager
def started(folder, database, *arguments, last=SOON):
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "worker", "stubborn.py", *arguments],
        cwd=folder,
        env={**os.environ, "MILEPOST_DATABASE_URL": database.url, "LAST": str(last)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that a handler left
        process.communicate()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "kind",
    [
        "swallows",
        "in_a_thread",
        "leaves_a_thread",
        "leaves_a_pool",
        "leaves_a_process",
        "leaves_a_hook",
        "leaves_a_task",
        "blocks",
        "spins",
        "insists",
        "leaves",
        "leaves_plainly",
    ],
)
def test_a_worker_ends_in_time_whatever_its_handler_does(app, database, tmp_path, kind):
    job = app.kinds[kind].submit()
    last = LAST_SECONDS if kind in PATIENT else SOON
    with started(tmp_path, database, last=last) as process:
        until(lambda: job.refresh().state != "QUEUED")
        if kind.startswith("leaves"):
            until(lambda: job.refresh().state in ("SUCCEEDED", "FAILED"))
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(15)
        assert time.monotonic() - began < GRACE + last + 0.5 + SLACK
    app.client.run(workers.advance_clock, 60)
    app.maintain_once()
    assert job.refresh().state != "RUNNING"
    if kind.startswith("leaves_pl") or kind == "leaves":
        assert job.error.type == "GeneratorExit"


def test_a_program_that_goes_on_after_its_worker_is_ended_by_nobody(database, tmp_path):
    """What it does then is its own; only what keeps its interpreter from ending is cut short."""
    goes_on = f"\napp.run_worker()\ntime.sleep({GRACE + SOON + 0.5})\nprint('done', flush=True)\n"
    (tmp_path / "program.py").write_text(f"{PROGRAM}{goes_on}time.sleep(0.1)\n")
    process = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "MILEPOST_DATABASE_URL": database.url, "LAST": str(SOON)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        with database.driver() as driver:
            until(lambda: driver.run(workers.listing))
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "done\n"
    assert process.returncode == 0


def test_a_worker_that_hears_no_signal_is_ended_by_its_supervisor(app, database, tmp_path):
    """As C code makes it that holds the interpreter's lock; here its process is stopped."""
    with started(tmp_path, database, "--processes", "2") as process:
        until(lambda: len(app.workers.list()) == 2)
        os.kill(app.workers.list()[0].pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "did not end" in process.stderr.read()
