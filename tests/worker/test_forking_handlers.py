"""Handlers that fork: the child owns nothing of the worker's, and none becomes a second worker."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.databases import Backends, everyday_names

PROGRAM = """
import asyncio, multiprocessing, os, signal, sys, time
import milepost as mp

app = mp.App(lease=3, heartbeat=0.5, sweep=0.1, poll_max=0.1, grace=2)
forks = multiprocessing.get_context("fork")


def nap():
    time.sleep(600)


def looked(answers):
    answers.put([signal.set_wakeup_fd(-1), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL])


@app.job
def terminates_a_child() -> int:
    child = forks.Process(target=nap)
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


@app.job
async def terminates_a_child_in_the_loop() -> int:
    child = forks.Process(target=nap)
    child.start()
    child.terminate()
    child.join()
    return child.exitcode


@app.job
async def looks() -> list:
    answers = forks.Queue()
    child = forks.Process(target=looked, args=(answers,))
    child.start()
    answer = answers.get()
    child.join()
    return answer


@app.job
def returns_twice() -> int:
    child = os.fork()
    return os.waitpid(child, 0)[1] if child else 7


@app.job
def raises_in_the_child() -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    raise ValueError("in the child")


@app.job
async def returns_twice_in_the_loop() -> int:
    child = os.fork()
    return os.waitpid(child, 0)[1] if child else 7


@app.job
async def awaits_in_the_child() -> int:
    waiting = asyncio.get_running_loop().create_future()
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    await waiting


@app.job
async def awaits_beside_what_is_ready() -> int:
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: open(f"ready-{os.getpid()}", "w").close())
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    await loop.create_future()


@app.job
def keeps_a_child() -> int:
    child = os.fork()
    if child == 0:
        os.closerange(0, 3)
        time.sleep(60)
        os._exit(0)
    return child


@app.job
def number(n: int) -> int:
    return n
"""
EXPECTED = {
    "terminates_a_child": -signal.SIGTERM,
    "terminates_a_child_in_the_loop": -signal.SIGTERM,
    "looks": [-1, True],
    "returns_twice": 0,
    "raises_in_the_child": 1,
    "returns_twice_in_the_loop": 0,
    "awaits_in_the_child": 0,
    "awaits_beside_what_is_ready": 0,
}

pytestmark = [
    pytest.mark.in_turn,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.filterwarnings("ignore:.* waits and no live worker"),
]


@pytest.fixture(params=everyday_names())
def database(request, backends: Backends):
    made = backends.fresh(request.param)
    yield made
    backends.drop(made)


@pytest.fixture
def kinds(tmp_path, database, monkeypatch):
    (tmp_path / "forking.py").write_text(PROGRAM)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", database.url)
    namespace = {"__name__": "forking"}
    exec(compile(PROGRAM, "forking.py", "exec"), namespace)
    yield namespace
    namespace["app"].close()


@pytest.fixture
def process(tmp_path, kinds):
    started = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "worker", "forking.py"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield started
    started.kill()
    started.communicate()


def test_a_worker_goes_on_whatever_its_handlers_fork(kinds, process, tmp_path):
    """A child inherited the loop's descriptor for signals: its own SIGTERM drained the worker.

    A child that awaits goes no further: it ran whatever else the parent's loop had ready, and took
    its events from the parent, which stalled.
    """
    for kind, result in EXPECTED.items():
        job = kinds[kind].submit().wait(60)
        assert (kind, job.state, job.result) == (kind, "SUCCEEDED", result), job.error
        moves = [entry.move for entry in job.history]
        assert (kind, moves) == (kind, ["create", "claim", "succeed"])
    jobs = kinds["number"].submit_many([(n,) for n in range(50)])
    assert [job.wait(60).result for job in jobs] == list(range(50))
    assert process.poll() is None, process.stderr.read()
    assert [path.name for path in tmp_path.glob("ready-*")] == [f"ready-{process.pid}"]
    assert len(kinds["app"].workers.list()) == 1
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_a_child_that_lives_on_holds_no_connection_of_the_worker(kinds, process, database):
    """The server would not learn that the worker died: what it had locked would stay locked."""
    if database.dialect != "postgres":
        pytest.skip("a file has no connections")
    child = kinds["keeps_a_child"].submit().wait(60).result
    try:
        process.kill()
        process.wait(30)
        kinds["app"].close()
        end = time.monotonic() + 30
        with database.raw() as raw:
            while others(raw):
                assert time.monotonic() < end, others(raw)
                time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)


def others(raw):
    return raw.execute(
        "SELECT pid, state, query FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
