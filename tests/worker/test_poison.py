"""A job that kills its process, as the out-of-memory killer does, fails no neighbours."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

import milepost as mp
from milepost.lifecycle import JOB
from milepost.observe.verify import verify
from milepost.store import workers

pytestmark = pytest.mark.in_turn

PROGRAM = """
import asyncio, os, signal
import milepost as mp

app = mp.App()

@app.job(retries={retries}, poison_limit={poison_limit})
async def sleep(number: int) -> int:
    if mp.current().fence < {limit}:  # in company: the last time it is alone, and nobody waits
        await asyncio.sleep(0.8)
    return number

@app.job(retries={retries}, poison_limit={poison_limit})
async def kill() -> None:
    await asyncio.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
"""
QUICK = {
    "MILEPOST_SWEEP": "0.1",
    "MILEPOST_LEASE": "1.5",
    "MILEPOST_HEARTBEAT": "0.3",
    "MILEPOST_POLL_MAX": "0.1",
}
MOST = 12
"""More processes than that the killer must not need."""


def submitted(app, retries: int, poison_limit: int):
    @app.job(retries=retries, poison_limit=poison_limit)
    async def sleep(number: int) -> int: ...

    @app.job(retries=retries, poison_limit=poison_limit)
    async def kill() -> None: ...

    return [*sleep.submit_many([(number,) for number in range(5)]), kill.submit()]


def worked_off(folder, database, jobs, *arguments: str) -> int:
    """Let a worker run, again and again, until every job has ended; tell how many were killed."""
    killed = 0
    environment = {**os.environ, **QUICK, "MILEPOST_DATABASE_URL": database.url}
    command = [sys.executable, "-m", "milepost.cli", "worker", "crew:app", *arguments]
    until = time.monotonic() + 120
    while killed < MOST:
        process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
        try:
            while process.poll() is None and time.monotonic() < until:
                if all(job.refresh().state in JOB.terminal for job in jobs):
                    return killed
                time.sleep(0.1)
            assert process.returncode == -signal.SIGKILL
            killed += 1
            with database.driver() as driver:  # its lease is over
                driver.run(workers.advance_clock, float(QUICK["MILEPOST_LEASE"]))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    raise AssertionError("the killer was never stopped")


@pytest.mark.parametrize(
    "policy",
    [(3, 3, "poisoned"), (1, 3, "attempts_exhausted"), (9, 2, "poisoned")],
    ids=["usual", "few retries", "low limit"],
)
def test_the_neighbours_of_a_killer_succeed_and_it_is_bounded_f7(tmp_path, app, database, policy):
    retries, poison_limit, cause = policy
    limit = min(poison_limit, retries + 1)
    program = PROGRAM.format(retries=retries, poison_limit=poison_limit, limit=limit)
    (tmp_path / "crew.py").write_text(program)
    jobs = submitted(app, retries, poison_limit)
    killed = worked_off(tmp_path, database, jobs)
    *neighbours, killer = [app.jobs.get(job.id) for job in jobs]
    assert [job.state for job in neighbours] == [mp.JobState.SUCCEEDED] * 5
    assert (killer.state, killer.error.cause) == (mp.JobState.FAILED, cause)
    # The last chance is a process of its own: no worker dies of that.
    assert killed == killer.record.losses == limit - 1
    assert killer.record.errors == 1
    for job in jobs:
        claims = [entry.detail for entry in job.history if entry.move == "claim"]
        assert claims == [None] * (limit - 1) + ["alone"]
    with database.driver() as driver:
        assert verify(driver).problems == []


def test_each_of_several_processes_is_its_own_company(tmp_path, app, database):
    (tmp_path / "crew.py").write_text(PROGRAM.format(retries=3, poison_limit=3, limit=3))
    jobs = submitted(app, 3, 3)
    assert worked_off(tmp_path, database, jobs, "--processes", "2") == 0, "children are replaced"
    *neighbours, killer = [app.jobs.get(job.id) for job in jobs]
    assert [job.state for job in neighbours] == [mp.JobState.SUCCEEDED] * 5
    assert (killer.state, killer.error.cause) == (mp.JobState.FAILED, "poisoned")
    assert killer.record.losses == 2
    told = "its process was killed by signal 9 (SIGKILL) while it ran alone, after 2 lost workers"
    assert killer.error.message == told
    assert [one.type for one in killer.failures] == ["Lost", "Lost", "ProcessDied"]
    ended = {group.fingerprint: group.failed for group in app.errors.list()}
    assert ended == {"ProcessDied@kill": 1, "Lost@kill": 0, "Lost@sleep": 0}
