"""Ctrl-C while a script drains: what runs may end, then the script is interrupted as ever."""

import signal
import subprocess
import sys

import pytest

import milepost as mp

pytestmark = pytest.mark.in_turn

PROGRAM = """
import asyncio, signal, sys, time
import milepost as mp

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started this may ignore it
app = mp.App(sys.argv[1])


@app.job
def plain() -> str:
    print("begun", flush=True)
    time.sleep(SECONDS)
    return "done"


@app.job
async def awaited() -> str:
    print("begun", flush=True)
    await asyncio.sleep(SECONDS)
    return "done"


for job in (plain, awaited):
    if job.__name__ == sys.argv[2]:
        job.submit()
try:
    app.drain()
except KeyboardInterrupt:
    print("interrupted")
"""


def started(url, kind, seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("SECONDS", str(seconds)), url, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "begun\n"
    return process


@pytest.fixture
def app(database):
    made = mp.App(database.url)
    yield made
    made.close()


@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_the_first_lets_what_runs_end(app, database, kind):
    process = started(database.url, kind, 1)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    assert (process.returncode, said[0]) == (0, "interrupted\n"), said
    [job] = app.jobs.list()
    assert job.result == "done"


@pytest.mark.parametrize("kind", ["plain", "awaited"])
def test_the_second_gives_it_back_unspent(app, database, kind):
    process = started(database.url, kind, 600)
    process.send_signal(signal.SIGINT)
    while "a second signal gives them back" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    assert (process.returncode, said[0]) == (0, "interrupted\n"), said
    [job] = app.jobs.list()
    assert (job.state, job.record.releases, job.attempt) == ("RETRYING", 1, 0)
