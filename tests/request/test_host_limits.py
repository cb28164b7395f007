"""Limits of hosts hold over all processes, judged by what the remote saw."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from remote import Says

import milepost as mp
from milepost.request.guard import AddressGuard

pytestmark = pytest.mark.both_stores

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"


class Counted:
    """An answer that takes a while, and counts those that are under way."""

    def __init__(self, *, seconds=0.01):
        self.seconds = seconds
        self.now = self.most = 0
        self.arrived = []
        self._lock = threading.Lock()

    def __call__(self, _asked):
        with self._lock:
            self.arrived.append(time.monotonic())
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self._lock:
            self.now -= 1
        return Says(json=1)


@pytest.fixture
def other(database, remote):
    """Another app on the same store."""
    made = mp.App(database.url, request_allow=f"{HOST}:{remote.port}")
    yield made
    made.close()


def drain(*served):
    """Let each app serve its queue, all at the same time."""
    threads = [
        threading.Thread(target=app.drain, args=(20,), kwargs={"queues": [queue]})
        for app, queue in served
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_processes_send_a_host_no_more_at_once_than_it_bears(app, other, remote):
    remote.answers = [counted := Counted()]
    for one in (app, other):
        one.request_limit(HOST, concurrency=2)
    jobs = [app.request("GET", remote.url, queue="ab"[n % 2]) for n in range(40)]
    drain((app, "a"), (other, "b"))
    assert counted.most == 2
    assert {job.refresh().state for job in jobs} == {"SUCCEEDED"}
    assert sum(job.record.releases + job.record.errors + job.record.polls for job in jobs) == 0
    assert {job.record.limit_key for job in jobs} == {None}, "the job's own limit stays free"


def test_two_processes_send_a_host_no_faster_than_its_rate(app, other, remote):
    remote.answers = [counted := Counted(seconds=0)]
    for one in (app, other):
        one.request_limit(HOST, rate="50/s")
    for n in range(20):
        app.request("GET", remote.url, queue="ab"[n % 2])
    drain((app, "a"), (other, "b"))
    assert len(counted.arrived) == 20
    # Evenly apart, but for how long each is under way.
    assert counted.arrived[-1] - counted.arrived[0] > 19 / 50 - 0.1


def test_a_rule_for_all_hosts_comes_from_the_setting(database, remote):
    remote.answers = [counted := Counted(seconds=0)]
    app = mp.App(database.url, request_allow=f"{HOST}:{remote.port}", request_rate="50/s")
    for _ in range(10):
        app.request("GET", remote.url)
    app.drain()
    app.close()
    assert counted.arrived[-1] - counted.arrived[0] > 9 / 50 - 0.1


def test_a_change_acts_on_the_next_request(app, remote):
    """Without a rule, too: the first may be made while requests are sent."""
    remote.answers = [counted := Counted(seconds=0.05)]
    for most in (1, 3):
        app.limits.set(HOST, scope="host", most=most, reason="try")
        counted.most = 0
        for _ in range(12):
            app.request("GET", remote.url)
        app.drain()
        assert counted.most == most
    assert len(counted.arrived) == 24


def test_a_limit_holds_for_every_spelling_of_its_host(database, remote, monkeypatch):
    """A dot at the end is the same name: it went around the limit."""

    async def resolved(_guard, _host, _port):
        return [HOST]

    monkeypatch.setattr(AddressGuard, "addresses", resolved)
    remote.answers = [counted := Counted(seconds=0.05)]
    app = mp.App(database.url, request_allow=f"localhost:{remote.port}")
    app.request_limit("LocalHost.", concurrency=1)
    for n in range(8):
        host = ("localhost", "localhost.", "LOCALHOST")[n % 3]
        app.request("GET", f"http://{host}:{remote.port}/")
    app.drain()
    app.close()
    assert (len(counted.arrived), counted.most) == (8, 1)


async def test_one_that_waits_for_a_slow_rate_hears_soon_that_it_was_cleared(app, remote):
    remote.answers = [Counted()]
    app.request_limit(HOST, rate="1/h")
    first, second = [await app.request_async("GET", remote.url) for _ in range(2)]
    worker = asyncio.create_task(app.run_worker_async(signals=False))
    try:
        ended = await asyncio.wait(
            [asyncio.ensure_future(one.wait_async(10)) for one in (first, second)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        await asyncio.sleep(0.5)  # the other one waits, in its slot
        assert len(ended[0]) == 1
        await app.limits.clear_async(HOST, scope="host", reason="it is a test of theirs")
        for one in (first, second):
            await one.wait_async(10)
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    await app.close_async()


async def test_those_that_wait_leave_room_for_other_hosts(database, remote):
    """They wait in half of the slots at most; the others are given back until their turn comes."""
    go = threading.Event()

    def answering(asked):
        if asked.path == "/slow":
            go.wait(20)
        return Says(json=1)

    remote.answers = [answering]
    allowed = f"{HOST}:{remote.port},localhost:{remote.port}"
    app = mp.App(database.url, request_allow=allowed, concurrency=4)
    app.request_limit(HOST, concurrency=1)
    slow = [await app.request_async("GET", f"{remote.url}/slow") for _ in range(8)]
    quick = await app.request_async("GET", f"http://localhost:{remote.port}/quick")
    worker = asyncio.create_task(app.run_worker_async(signals=False))
    try:
        assert (await quick.wait_async(timeout=10)).result == 1
        go.set()
        for job in slow:
            assert (await job.wait_async(timeout=20)).result == 1
    finally:
        go.set()
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    records = [(await job.refresh_async()).record for job in slow]
    assert sum(record.releases for record in records) > 0
    assert {record.errors + record.polls for record in records} == {0}
    await app.close_async()


PROGRAM = """
import sys
import milepost as mp

app = mp.App(sys.argv[1], request_allow=sys.argv[2], lease=30)
app.request_limit("127.0.0.1", concurrency=1)
app.run_worker(["a"])
"""


def test_a_killed_process_holds_its_place_until_its_lease_is_over(app, database, remote, advance):
    arrived, go = threading.Event(), threading.Event()

    def held(_asked):
        arrived.set()
        go.wait(20)
        return Says(json=1)

    remote.answers = [held, Says(json=2)]
    app.request_limit(HOST, concurrency=1)
    allowed = f"{HOST}:{remote.port}"
    first = app.request("GET", remote.url, queue="a")
    program = [sys.executable, "-c", PROGRAM, str(database.url), allowed]
    process = subprocess.Popen(program, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    try:
        assert arrived.wait(20)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    second = app.request("GET", remote.url, queue="b", timeout={"pool": 0.2})
    app.drain(queues=["b"])
    assert second.refresh().state != "SUCCEEDED", "nobody knows yet that it was killed"
    assert len(remote.asked) == 1
    advance(31)
    app.drain(timeout=20)
    assert {first.refresh().state, second.refresh().state} == {"SUCCEEDED"}
    go.set()
