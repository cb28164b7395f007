"""Spec E as its reader would try it: tasks, workers that die, leases, and an audit log."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from threading import Thread

import httpx2
import pytest

import milepost as mp
from tests.support.serving import served

LEASE = 30
MINUTE = 60
PROGRAM = """
import os, signal
import milepost as mp

app = mp.App()

@app.job(retries=0, recoveries={recoveries}, retry_delay=60)
def task(ctx: mp.Context) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def audit(raw, job):
    """Read E's words for the task out of the audit log, in order."""
    query = f"SELECT to_status FROM audit_logs WHERE task_id = '{job.id}' ORDER BY id"
    return [status for (status,) in raw.execute(query)]


@pytest.fixture
def task(app):
    """E's rule: an exception is final, a crash is tried again twice."""

    @app.job(retries=0, recoveries=2, retry_delay=MINUTE)
    def task(ctx: mp.Context) -> str:
        declared.words.append(app.jobs.get(ctx.id).as_spec("E"))
        if declared.broken is not None:
            raise declared.broken
        ctx.count("tokens", 120)
        return f"attempt {ctx.attempt}"

    declared = task
    declared.words, declared.broken = [], None
    return declared


@pytest.fixture
def dies(database, tmp_path):
    """Run a worker process that is killed while it holds a task."""

    def run(recoveries):
        (tmp_path / "program.py").write_text(PROGRAM.format(recoveries=recoveries))
        ended = subprocess.run(
            [sys.executable, "-m", "milepost.cli", "worker", "program:app"],
            env={**os.environ, "MILEPOST_DATABASE_URL": database.url},
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr

    return run


def test_a_task_is_pending_running_and_done(app, task):
    """Claiming: setting its status to running; ReportingSuccess: done, records usage metrics."""
    job = task.submit()
    assert job.as_spec("E") == "pending"
    assert app.drain() == 1
    assert task.words == ["running"]
    assert job.refresh().as_spec("E") == "done"
    assert job.result == "attempt 1"
    assert job.usage == {"tokens": 120}
    with served(app) as url:
        assert httpx2.get(f"{url}/v1/jobs/{job.id}").json()["usage"] == {"tokens": 120}


def test_an_exception_is_final(app, task, advance):
    """ReportingFailure: status error, records the exception details; error is terminal."""
    task.broken = RuntimeError("out of ink")
    job = task.submit()
    app.drain()
    assert job.refresh().as_spec("E") == "error"
    assert (job.error.type, job.error.message) == ("RuntimeError", "out of ink")
    advance(MINUTE)
    assert app.drain() == 0
    assert task.words == ["running"]


def test_a_crash_is_recovered_by_another_worker(app, task, dies, advance, raw):
    """If a worker crashes while holding a lease, Recovery will reset running to pending."""
    job = task.submit()
    dies(recoveries=2)
    assert job.refresh().as_spec("E") == "running"
    assert app.drain() == 0, "its lease is not over"

    advance(LEASE + 1)
    app.maintain_once()
    assert job.refresh().as_spec("E") == "pending"

    advance(MINUTE)
    assert app.drain() == 1
    assert job.refresh().as_spec("E") == "done"
    assert (job.result, job.attempt) == ("attempt 2", 2)
    recovered = ["pending", "running", "pending", "pending", "running", "done"]
    assert audit(raw, job) == recovered, "its loss, its due time and both claims are told"


def test_a_crash_is_not_recovered_beyond_max_tries(app, task, dies, advance):
    """reset the task from running to pending (if try_count < max_tries)."""
    job = task.options(recoveries=0).submit()
    dies(recoveries=0)
    advance(LEASE + 1)
    app.maintain_once()
    assert job.refresh().as_spec("E") == "error"
    assert job.error.cause == "attempts_exhausted"
    assert app.drain() == 0


def test_a_worker_whose_lease_is_over_reports_nothing(app, database, advance):
    """Lease Uniqueness: only one worker may hold a lease for a specific task; H-30."""
    other = mp.App(database.url)

    @other.job(name="slow", retry_delay=0)
    def second(ctx: mp.Context) -> str:
        return f"second, fence {ctx.fence}"

    @app.job(name="slow", retry_delay=0)
    def first(ctx: mp.Context) -> str:
        if ctx.fence == 1:
            advance(LEASE + 1)
            assert other.drain(timeout=20) == 1
        return "first, too late"

    job = first.submit()
    app.drain()
    other.close()
    assert job.refresh().result == "second, fence 2"
    moves = Counter(entry.move for entry in job.history)
    assert (moves["claim"], moves["lose"], moves["succeed"]) == (2, 1, 1)


@pytest.mark.both_stores
def test_workers_that_poll_at_once_never_take_the_same_task(app, database):
    """Claiming → Polling: Claim attempt fails (e.g., task grabbed by another worker)."""
    ran = Counter()

    def program():
        made = mp.App(database.url)

        @made.job(name="task")
        def task(number: int) -> None:
            ran[number] += 1

        return made

    workers = [program() for _ in range(3)]
    app.job(name="task")(lambda number: None).submit_many([(n,) for n in range(60)])
    threads = [Thread(target=worker.drain) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for worker in workers:
        worker.close()
    assert ran == Counter(range(60))
    assert app.counts() == {"default": {"SUCCEEDED": 60}}


def test_a_running_task_has_a_lease_in_the_future(app, database):
    """Lease Timeout: Every task in running must have a valid lease_timeout in the future."""
    held = []

    @app.job
    def task(ctx: mp.Context) -> None:
        with database.raw() as raw:
            held.extend(
                raw.execute(
                    f"SELECT worker.lease_until > {raw.now} FROM job"
                    " JOIN worker ON worker.id = job.worker_id"
                    f" WHERE job.state = 'RUNNING' AND job.id = '{ctx.id}'"
                )
            )

    task.submit()
    app.drain()
    assert [bool(valid) for (valid,) in held] == [True]


@pytest.mark.both_stores
def test_every_transition_is_in_the_audit_log_and_cannot_be_changed(app, task, raw):
    """Audit Completeness: every transition accompanied by an immutable audit_logs entry."""
    job = task.submit()
    app.drain()
    assert audit(raw, job) == ["pending", "running", "done"]
    for statement in (
        "UPDATE journal SET actor = 'nobody'",
        f"DELETE FROM journal WHERE subject_id = '{job.id}'",
    ):
        with pytest.raises(Exception, match="milepost"):
            raw.execute(statement)
    assert audit(raw, job) == ["pending", "running", "done"]


def test_a_status_never_changes_without_its_time(app, task, raw):
    """A task cannot transition to done or error without updated_at being refreshed."""
    job = task.submit()
    app.drain()
    stamps = [entry.at for entry in job.history]
    assert stamps == sorted(stamps)
    assert job.refresh().finished_at >= job.started_at >= job.created_at
    with pytest.raises(Exception, match="milepost"):
        raw.execute(f"UPDATE job SET state = 'FAILED' WHERE id = '{job.id}'")


def test_the_log_outlives_its_task_when_asked_to(database, raw):
    """An immutable audit_logs entry: it stays when retention has removed the task."""
    app = mp.App(database.url, keep_succeeded="1d", keep_audit="365d")

    @app.job
    def task() -> None: ...

    job = task.submit()
    app.drain()
    mp.testing.StoreClock(app).advance(3 * 86_400)
    app.maintain_once()
    with pytest.raises(mp.NotFound):
        app.jobs.get(job.id)
    assert audit(raw, job) == ["pending", "running", "done"]
    app.close()


def test_success_and_failure_are_told(app, task):
    """notifies the API of success … notifies the API of failure."""
    done = task.options(channel="api").submit()
    app.drain()
    task.broken = RuntimeError("out of ink")
    broken = task.options(channel="api").submit()
    app.drain()
    told = {event["subject"]: event["data"] for event in app.channels.pull("api").messages}
    assert told[done.id]["result"] == "attempt 1"
    assert told[broken.id]["error"]["message"] == "out of ink"


async def test_the_loop_goes_through_its_states_and_outlives_its_tasks(app):
    """The worker loop never exits under normal operation; Polling → Backoff → Idle."""

    @app.job(retries=0)
    async def breaks(how: str) -> None:
        raise {"error": RuntimeError, "exit": SystemExit, "interrupt": KeyboardInterrupt}[how]

    @app.job
    async def works() -> str:
        return "done"

    working = asyncio.create_task(app.run_worker_async())
    jobs = [await breaks.submit_async(how) for how in ("error", "exit", "interrupt")]
    for job in jobs:
        await job.wait_async(30)
        assert job.as_spec("E") == "error"
    job = await works.submit_async()
    await job.wait_async(30)
    assert job.as_spec("E") == "done"
    assert not working.done()

    states = set()
    while "IDLE" not in states:
        [worker] = await app.workers.list_async()
        states.add(worker.state)
        await asyncio.sleep(0.05)
    assert app.settings.error_wait == 5, "ErrorWait: 5s delay before reconnect, at most"
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await app.close_async()
