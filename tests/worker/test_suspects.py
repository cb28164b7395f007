"""Suspects run alone, in time, and do not keep the other jobs from running."""

import asyncio
import threading
from itertools import groupby

import pytest

import milepost as mp
from milepost.worker.suspects import FIRST_SECONDS, Suspects

pytestmark = pytest.mark.in_turn


class Hand:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock():
    return Hand()


@pytest.fixture
def suspects(clock):
    return Suspects(clock)


def test_without_a_suspect_nobody_is_kept_out(suspects, clock):
    for clock.now in range(100):
        assert not suspects.keep_out(busy=True)


def test_a_busy_worker_makes_room_for_longer_and_longer_and_gives_the_others_as_much(
    suspects, clock
):
    kept_out = []
    suspects.see(waiting=True)
    for tick in range(4_000):
        clock.now = tick / 10
        kept_out.append(suspects.keep_out(busy=True))
        suspects.see(waiting=True)
    lengths = [len(list(group)) for kept, group in groupby(kept_out) if kept]
    assert lengths[:-1] == sorted(lengths[:-1])
    assert lengths[-2] > 10 * FIRST_SECONDS * 10, "long enough for long jobs, in the end"
    assert sum(kept_out) < 0.6 * len(kept_out), "the others have their share"


def test_after_a_suspect_the_others_have_as_long_as_it_took(suspects, clock):
    suspects.see(waiting=True)
    assert not suspects.keep_out(busy=False)
    suspects.began()
    clock.now = 30.0
    assert suspects.keep_out(busy=True)
    assert not suspects.keep_out(busy=False), "it has ended"
    suspects.see(waiting=True)
    clock.now = 59.0
    assert not suspects.keep_out(busy=True)
    clock.now = 61.0
    assert suspects.keep_out(busy=True)


def test_one_that_another_worker_took_keeps_nobody_out(suspects, clock):
    suspects.see(waiting=True)
    clock.now = 5.0
    assert suspects.keep_out(busy=True)
    suspects.see(waiting=False)
    assert not suspects.keep_out(busy=True)


async def test_a_worker_that_is_never_empty_runs_a_suspect_alone_and_the_others_too(
    app, working, until
):
    running, ended, company = set(), [], []

    @app.job(poison_limit=1)  # one loss would end it: it is a suspect from the start
    async def suspect(ctx: mp.Context) -> None:
        running.add(ctx.id)
        for _ in range(10):
            company.append(len(running))
            await asyncio.sleep(0.01)
        running.discard(ctx.id)

    @app.job
    async def stream(ctx: mp.Context) -> None:
        running.add(ctx.id)
        await asyncio.sleep(0.05)
        running.discard(ctx.id)
        ended.append(ctx.id)
        await stream.submit_async()

    async with working(concurrency=4):
        await stream.submit_many_async([()] * 8)
        await until(lambda: len(ended) > 8)
        jobs = [await suspect.submit_async() for _ in range(2)]
        for job in jobs:
            assert (await job.wait_async(60)).state == mp.JobState.SUCCEEDED
        count = len(ended)
        await until(lambda: len(ended) > count + 8)
        assert set(company) == {1}
        for job in await app.jobs.list_async(kind="stream", state="QUEUED", limit=1000):
            await job.cancel_async("over")


async def test_a_worker_that_cannot_take_a_suspect_makes_no_room_for_one(app, working, until):
    """A thread that is stuck is company for as long as it lives: the others wait for nothing."""
    let_go = threading.Event()

    @app.job(timeout=0.05, retries=0)
    def stuck() -> None:
        let_go.wait(60)

    @app.job(poison_limit=1)
    async def suspect() -> None: ...

    try:
        async with working() as worker:
            failed = await (await stuck.submit_async()).wait_async(60)
            assert failed.state == mp.JobState.FAILED
            waiting = await suspect.submit_async()
            await worker._claimer.look_for_suspects()
            assert not worker._claimer.suspects.waiting
            assert (await waiting.refresh_async()).state == mp.JobState.QUEUED
            let_go.set()
            assert (await waiting.wait_async(60)).state == mp.JobState.SUCCEEDED
    finally:
        let_go.set()


async def test_drain_runs_suspects_one_by_one(app):
    running, most = 0, []

    @app.job(poison_limit=1)
    async def suspect() -> None:
        nonlocal running
        running += 1
        most.append(running)
        await asyncio.sleep(0.01)
        running -= 1

    await suspect.submit_many_async([()] * 5)
    assert await app.drain_async() == 5
    assert most == [1] * 5
    await app.client.close_async()
