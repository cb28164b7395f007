"""`milepost worker`: one process, or several that are replaced when they die, drained together."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

import milepost as mp
from milepost.cli.worker import Supervisor
from tests.support.databases import Backends

pytestmark = pytest.mark.in_turn

PROGRAM = """
import os, time
import milepost as mp

app = mp.App()

@app.job
def whoami() -> int:
    return os.getpid()

@app.job
def slow(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()

@app.job(timeout=0.1, retries=0)
def stuck() -> None:
    time.sleep(600)

other = 3
"""

QUICK = {
    "MILEPOST_SWEEP": "0.1",
    "MILEPOST_LEASE": "2",
    "MILEPOST_HEARTBEAT": "0.3",
    "MILEPOST_POLL_MAX": "0.1",
}


@pytest.fixture
def database(backends: Backends):
    """One store is enough: nothing here knows which."""
    return backends.fresh("sqlite")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "crew.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def crew(folder, database):
    """The same program in this process, to submit with."""
    app = mp.App(database.url)

    @app.job
    def whoami() -> int:
        return os.getpid()

    @app.job
    def slow(seconds: float) -> int:
        return os.getpid()

    @app.job(timeout=0.1, retries=0)
    def stuck() -> None: ...

    app.whoami, app.slow, app.stuck = whoami, slow, stuck
    yield app
    app.close()


@contextmanager
def started(folder, database, *arguments, grace="20"):
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "worker", "crew:app", *arguments],
        cwd=folder,
        env={**os.environ, **QUICK, "MILEPOST_GRACE": grace, "MILEPOST_DATABASE_URL": database.url},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def alive(app, least=1):
    pids = {worker.pid for worker in app.workers.list() if worker.state == "IDLE"}
    return pids if len(pids) >= least else None


def test_a_worker_process_runs_jobs_and_ends_with_code_0_at_sigterm(crew, folder, database):
    with started(folder, database) as process:
        job = crew.whoami.submit()
        assert job.wait(30).result == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_sigterm_lets_what_runs_end(crew, folder, database):
    with started(folder, database) as process:
        job = crew.slow.submit(1.0)
        until(lambda: job.refresh().state == mp.JobState.RUNNING)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert job.refresh().result == process.pid


def test_a_second_sigterm_gives_back_at_once(crew, folder, database):
    with started(folder, database, grace="600") as process:
        job = crew.slow.submit(600)
        until(lambda: job.refresh().state == mp.JobState.RUNNING)
        process.send_signal(signal.SIGTERM)
        until(lambda: [worker.state for worker in crew.workers.list()] == ["DRAINING"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stderr.read()
    assert "running jobs are given back" in said
    assert (job.refresh().state, job.record.releases, job.attempt) == ("RETRYING", 1, 0)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_whose_threads_are_stuck_is_started_anew(
    crew, folder, database, monkeypatch, processes
):
    """A thread cannot be killed: its process is replaced before they pile up."""
    monkeypatch.setenv("MILEPOST_THREADS", "2")
    with started(folder, database, "--processes", processes) as process:
        before = until(lambda: alive(crew, int(processes)))
        for job in [crew.stuck.submit() for _ in range(2 * int(processes))]:
            assert job.wait(60).error.type == "TimedOut"
        stopped = until(
            lambda: [worker for worker in crew.workers.list() if worker.state == "STOPPED"]
        )
        assert {worker.pid for worker in stopped} <= before
        until(lambda: alive(crew, int(processes)))
        assert crew.whoami.submit().wait(60).state == mp.JobState.SUCCEEDED
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stderr.read()
    assert "past their timeout, restarting n=" in said
    assert said.count("worker starts; Ctrl-C drains store=sqlite") >= int(processes) + 1


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_workers_whose_supervisor_was_killed_drain_by_themselves(crew, folder, database):
    with started(folder, database, "--processes", "2") as supervisor:
        pids = until(lambda: alive(crew, 2))
        supervisor.kill()
        until(lambda: all(gone(pid) for pid in pids))
    assert {worker.state for worker in crew.workers.list()} == {"STOPPED"}


def test_a_killed_child_is_replaced_and_sigterm_ends_all_with_code_0(crew, folder, database):
    with started(folder, database, "--processes", "2") as supervisor:
        first = until(lambda: alive(crew, 2))
        assert supervisor.pid not in first
        victim = min(first)
        os.kill(victim, signal.SIGKILL)
        until(lambda: (alive(crew) or set()) - first)
        assert crew.whoami.submit().wait(30).result != victim
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0
        assert f"worker ended; starting another pid={victim} code=-9" in supervisor.stderr.read()
    until(lambda: not [w for w in crew.workers.list() if w.state != "STOPPED" and w.pid != victim])


def test_one_ctrl_c_in_a_terminal_drains_and_does_not_hurry_the_children(crew, folder, database):
    """A terminal signals the whole foreground group: the children must hear of it once."""
    with started(folder, database, "--processes", "2") as supervisor:
        children = until(lambda: alive(crew, 2))
        assert {os.getpgid(pid) for pid in children} == children
        job = crew.slow.submit(1.0)
        until(lambda: job.refresh().state == mp.JobState.RUNNING)
        os.killpg(supervisor.pid, signal.SIGINT)
        assert supervisor.wait(30) == 0
    assert job.refresh().state == mp.JobState.SUCCEEDED
    assert [e.move for e in job.history] == ["create", "claim", "succeed"]


def test_queues_and_concurrency_reach_the_children(crew, folder, database):
    arguments = ("--processes", "2", "--queue", "a", "--queue", "b", "--concurrency", "3")
    with started(folder, database, *arguments) as supervisor:
        until(lambda: alive(crew, 2))
        shown = [
            (json.loads(w.queues), sum(json.loads(w.slots).values())) for w in crew.workers.list()
        ]
        assert shown == [(["a", "b"], 3)] * 2
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("crew", "expected MODULE:APP"),
        ("nowhere:app", "no module 'nowhere'"),
        ("crew:nothing", "no App called 'nothing'; it has app"),
        ("crew:other", "no App called 'other'"),
    ],
)
def test_a_wrong_target_is_a_usage_error_that_says_what_is_wrong(folder, database, target, said):
    done = subprocess.run(
        [sys.executable, "-m", "milepost.cli", "worker", target],
        cwd=folder,
        env={**os.environ, "MILEPOST_DATABASE_URL": database.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_store_is_exit_code_75_for_a_command_that_does_not_wait(folder):
    """A worker waits for it: see test_store_away."""
    done = subprocess.run(
        [sys.executable, "-m", "milepost.cli", "workers"],
        cwd=folder,
        env={**os.environ, "MILEPOST_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75
    assert "Traceback" not in done.stderr


def test_a_child_that_was_being_made_when_the_signal_came_is_stopped_too(monkeypatch):
    supervisor = Supervisor(["crew:app"], 1, grace=20)
    made = []

    class Child:
        pid, returncode = 1, None

        def __init__(self, *_args, **_kwargs):
            made.append(self)
            supervisor._pass_on(signal.SIGTERM, None)

        def poll(self):
            return self.returncode

        def terminate(self):
            self.returncode = 0

    monkeypatch.setattr(subprocess, "Popen", Child)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert supervisor.run() == 0
    assert [child.returncode for child in made] == [0]
