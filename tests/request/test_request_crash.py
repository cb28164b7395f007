"""Crashes between sending and hearing (H-91), at every commit, by each policy."""

import asyncio
import json
import threading

import msgspec
import pytest
from remote import Says

import milepost as mp
from milepost.context import Context
from milepost.errors import LeaseLost
from milepost.request.attempt import Attempt
from milepost.request.declaration import Request
from milepost.store import jobs as store_jobs
from milepost.store import workers

pytestmark = pytest.mark.both_stores


def seen(job):
    return [(entry.move, entry.to_state) for entry in job.history][-1]


def test_h91_resend_reaches_an_answer_wherever_the_worker_dies(small, remote):
    """The same key every time: a remote that heeds it does the work once."""
    jobs, counts = [], set()
    remote.answers = [Says(json={"ok": True})]

    def start():
        remote.asked.clear()
        jobs[:] = [small.request("POST", remote.url, json={"pay": 1})]

    def check():
        [job] = jobs
        assert job.refresh().result == {"ok": True}
        assert {asked.headers["idempotency-key"] for asked in remote.asked} == {job.id}
        counts.add(len(remote.asked))

    # Both sides of the claim, of the note before sending, and of the outcome.
    assert mp.testing.crash_everywhere(small, start, check) == 6
    assert counts == {1, 2}, "sent twice where nobody knows whether it was heard"


def test_h91_fail_unknown_never_sends_twice_wherever_the_worker_dies(app, remote):
    jobs, ends = [], []

    def start():
        remote.asked.clear()
        jobs[:] = [app.request("POST", remote.url, json={"pay": 1}, crash="fail_unknown")]

    def check():
        job = jobs[0].refresh()
        assert len(remote.asked) <= 1
        if job.state == "FAILED":
            assert job.error.cause == job.error.code == "outcome_unknown"
            assert "ask the remote" in job.error.message
            assert seen(job) == ("lose", "FAILED")
        else:
            assert job.result == {"status": "done"}
        ends.append((job.state.value, len(remote.asked)))

    assert mp.testing.crash_everywhere(app, start, check) == 6
    # Noted and not sent; sent, heard and not recorded. Nobody can tell these apart.
    assert ends.count(("FAILED", 0)) == 1
    assert ends.count(("FAILED", 1)) == 1


def stopped_under_way(app, remote, **asked):
    """Submit a request, and stop its worker at once while the remote has not answered yet."""
    arrived, go = threading.Event(), threading.Event()

    def held(_):
        arrived.set()
        go.wait(10)
        return Says(json=1)

    remote.answers = [held, Says(json=2)]
    job = app.request("POST", remote.url, **asked)

    async def stop():
        worker = await app.worker()
        async with app.requests.open():
            running = asyncio.create_task(worker.run())
            await asyncio.to_thread(arrived.wait, 10)
            worker.drain()
            worker.drain()  # at once
            await running
        await app.close_async()

    try:
        asyncio.run(stop())
    finally:
        go.set()
    return job.refresh()


def test_h91_a_worker_that_must_stop_leaves_no_doubt_behind(small, remote):
    """With `fail_unknown` what is under way is not simply sent again."""
    job = stopped_under_way(small, remote, crash="fail_unknown")
    assert (job.state, job.error.cause) == ("FAILED", "outcome_unknown")


def test_h91_a_worker_that_must_stop_gives_back_what_may_be_resent(small, remote):
    job = stopped_under_way(small, remote)
    # Due at once: maintenance may have queued it before the worker ended.
    assert job.state in ("RETRYING", "QUEUED")
    assert job.record.releases == 1
    small.drain()
    assert job.refresh().result == 2


def test_h30_a_late_answer_of_a_lost_attempt_changes_nothing(small, remote):
    """Fenced: the note before sending is refused once the lease is another's."""
    job = small.request("POST", remote.url)
    small.client.run(
        workers.register, workers.NewWorker(id="w1", lease_us=10_000_000, program="test")
    )
    [claim] = small.client.run(
        store_jobs.claim, worker_id="w1", line=store_jobs.lines(["default"]), most=1, kinds=None
    )
    small.client.run(workers.advance_clock, 60)
    small.maintain_once()
    assert job.refresh().state in ("RETRYING", "QUEUED")

    async def late():
        async with small.requests.open():
            request = msgspec.convert(json.loads(claim.payload)["request"], Request)
            with pytest.raises(LeaseLost):
                await Attempt(small.requests, Context(claim, small.client), request).outcome()
        await small.close_async()

    asyncio.run(late())
    assert remote.asked == [], "nothing was sent in another's place"
