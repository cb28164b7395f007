"""Suspects run alone, in time, and do not keep the other jobs from running."""

import asyncio
import threading
from itertools import groupby

import pytest

import milepost as mp
from milepost.store.jobs import Line, Suspect
from milepost.worker.suspects import BLOCKED_TIMES, FIRST_SECONDS, TRIED_MOST, Suspects

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


BLOCKED = Suspect(Line("default", 0, 1), "an-id", limited=True)


@pytest.mark.parametrize("job_seconds", [0.3, 1, 5, 20])
def test_blocked_suspects_take_little_of_the_others_time(suspects, clock, job_seconds):
    """A busy worker got empty for them again and again: it stood still for up to half its time."""
    kept, since = 0, None
    for tick in range(60_000):
        clock.now = tick / 10
        if tick % 10 == 0:
            suspects.see(waiting=True)
        if not suspects.keep_out(busy=True):
            since = None
            continue
        kept += 1
        since = clock.now if since is None else since
        if clock.now - since >= job_seconds:  # it is empty
            suspects.pass_over([BLOCKED])
            since = None
    assert 0 < kept / 60_000 < 3 / BLOCKED_TIMES


def test_when_none_is_blocked_any_more_room_is_made_as_soon_as_ever(suspects, clock):
    suspects.see(waiting=True)
    for _ in range(9):
        suspects.pass_over([BLOCKED])
    assert suspects.blocked_seconds == BLOCKED_TIMES * FIRST_SECONDS
    suspects.began()
    assert not suspects.keep_out(busy=False)
    suspects.see(waiting=False)
    suspects.see(waiting=True)
    clock.now += 2 * FIRST_SECONDS
    assert suspects.keep_out(busy=True)


def test_suspects_behind_those_that_were_blocked_are_next(suspects):
    many = [Suspect(Line("default", 0, n), f"id-{n}", limited=True) for n in range(TRIED_MOST)]
    suspects.pass_over(many)
    assert suspects.after == many[-1]
    suspects.see(waiting=True)
    assert suspects.after == many[-1]
    suspects.pass_over(many[:1])
    assert suspects.after is None, "all were tried"


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


# Suspects under limits


@pytest.mark.both_stores
async def test_a_suspect_that_its_limit_blocks_holds_up_no_other(app, working, until):
    """Only the first in line was ever tried: no suspect of any queue ran."""
    ran: list[str] = []

    @app.job(poison_limit=1, limit=mp.Limit(1, key="key", name="blocked"))
    async def blocked(key: str) -> None:
        ran.append("blocked")

    @app.job(poison_limit=1, queue="elsewhere")
    async def free() -> None:
        ran.append("free")

    @app.job(poison_limit=1, limit=mp.Limit(1, key="key", name="open"))
    async def limited(key: str) -> None:
        ran.append("limited")

    await blocked.submit_async("a")
    await limited.submit_async("a")
    await free.submit_async()
    await app.limits.set_async("blocked", most=0, reason="a test")
    async with working():
        await until(lambda: sorted(ran) == ["free", "limited"])
        await app.limits.set_async("blocked", most=1, reason="a test")
        await until(lambda: "blocked" in ran)


@pytest.mark.both_stores
async def test_more_blocked_suspects_than_are_tried_at_once_hide_none(app, working):
    @app.job(poison_limit=1, limit=mp.Limit(1, key="key", name="blocked"))
    async def blocked(key: int) -> None: ...

    @app.job(poison_limit=1, limit=mp.Limit(1, key="key", name="open"))
    async def limited(key: int) -> None: ...

    await blocked.submit_many_async([(n,) for n in range(3 * TRIED_MOST)])
    behind = await limited.submit_async(1)
    await app.limits.set_async("blocked", most=0, reason="a test")
    async with working():
        assert (await behind.wait_async(20)).state == mp.JobState.SUCCEEDED


@pytest.mark.both_stores
async def test_a_worker_that_is_never_empty_runs_a_suspect_that_was_blocked(app, working, until):
    """It makes room less often while all suspects are blocked, but it goes on to do so."""
    ended: list[str] = []

    @app.job(poison_limit=1, limit=mp.Limit(1, key="key", name="blocked"))
    async def blocked(key: str) -> None: ...

    @app.job
    async def stream(ctx: mp.Context) -> None:
        await asyncio.sleep(0.05)
        ended.append(ctx.id)
        await stream.submit_async()

    one = await blocked.submit_async("a")
    await app.limits.set_async("blocked", most=0, reason="a test")
    async with working(concurrency=4) as worker:
        await stream.submit_many_async([()] * 8)
        await until(lambda: worker._claimer.suspects.blocked_seconds)
        count = len(ended)
        await until(lambda: len(ended) > count + 20)
        await app.limits.set_async("blocked", most=1, reason="a test")
        assert (await one.wait_async(60)).state == mp.JobState.SUCCEEDED
        for job in await app.jobs.list_async(kind="stream", state="QUEUED", limit=1000):
            await job.cancel_async("over")
