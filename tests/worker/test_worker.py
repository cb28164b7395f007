"""What a worker promises to the jobs it runs, and to those it does not."""

import asyncio
import contextvars
import json
import os
import sys
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

import milepost as mp
from milepost.context import Context
from milepost.store import jobs, queues, timers, workers
from milepost.worker.execute import Executor
from milepost.worker.lanes import AsyncLanes, LanePolicy
from milepost.worker.slots import RunningJob
from milepost.worker.threads import ThreadLanes

pytestmark = pytest.mark.in_turn


def moves(job):
    return [entry.move for entry in job.history]


# What a handler can say


def test_plain_and_async_handlers_return_values(app):
    @app.job
    def plain(number: int) -> int:
        return number + 1

    @app.job
    async def awaited(number: int) -> int:
        await asyncio.sleep(0)
        return number + 2

    one, two = plain.submit(1), awaited.submit(1)
    assert app.drain() == 2
    assert (one.refresh().result, two.refresh().result) == (2, 3)


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_later_sleeps_and_spends_nothing(app, advance, how, colour):
    def decide(ctx):
        if ctx.claim.polls < 2:
            if how == "raised":
                try:
                    raise mp.Later(30, detail="not yet")  # noqa: TRY301 - the promise
                except Exception:  # noqa: BLE001 - a handler's own, which must not swallow it
                    return "swallowed"
            return mp.Later(30, detail="not yet")
        return "ready"

    if colour == "plain":

        @app.job(retries=0, name="poll")
        def poll(ctx: mp.Context):
            return decide(ctx)

    else:

        @app.job(retries=0, name="poll")
        async def poll(ctx: mp.Context):
            return decide(ctx)

    job = poll.submit()
    for _ in range(3):
        app.drain()
        advance(31)
    assert job.refresh().result == "ready"
    assert (job.attempt, job.record.polls, job.record.errors) == (1, 2, 0)
    assert moves(job) == ["create", *("claim", "later", "wake") * 2, "claim", "succeed"]
    assert job.history[2].detail == "not yet"


def test_later_without_a_number_is_a_minute(app, advance):
    @app.job
    def poll(ctx: mp.Context) -> str:
        if ctx.claim.polls == 0:
            raise mp.Later
        return "ready"

    job = poll.submit()
    app.drain()
    advance(55)
    assert app.drain() == 0
    advance(6)
    assert app.drain() == 1
    assert job.refresh().result == "ready"


def test_a_poll_limit_ends_what_never_gets_ready(app):
    @app.job(poll_limit=2)
    def poll() -> None:
        raise mp.Later(0)

    job = poll.submit()
    assert app.drain() == 3
    assert (job.refresh().error.cause, job.record.polls) == ("poll_limit", 2)
    assert moves(job)[-1] == "fail"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1, 1e30])
def test_a_later_that_cannot_be_meant_fails_its_job_only(app, seconds):
    @app.job
    def poll() -> None:
        raise mp.Later(seconds)

    @app.job
    def fine() -> int:
        return 1

    sick, well = poll.submit(), fine.submit()
    app.drain()
    assert sick.refresh().state == mp.JobState.FAILED
    assert well.refresh().result == 1


def test_fail_ends_a_job_at_once(app):
    @app.job(retries=3)
    def convert() -> None:
        raise mp.Fail("unsupported format", code="validation")

    job = convert.submit()
    assert app.drain() == 1
    assert moves(job) == ["create", "claim", "fail"]
    error = job.refresh().error
    assert (error.type, error.message, error.cause, error.code) == (
        "Fail",
        "unsupported format",
        "error",
        "validation",
    )


class SurrogateError(Exception):
    """As for a file name that is not text."""

    def __str__(self):
        return "no such file: \udcff\0.txt"


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("cannot even say it")


class GreedyError(Exception):
    retry_after = float("inf")


class OddError(Exception):
    retry_after = float("nan")
    code = "odd\0code\ud800"


@pytest.mark.parametrize("error", [SurrogateError, MuteError, GreedyError, OddError])
@pytest.mark.parametrize("colour", ["plain", "async"])
@pytest.mark.both_stores
def test_whatever_an_error_says_it_is_recorded_and_the_worker_lives(app, error, colour):
    if colour == "plain":

        @app.job(retries=0, name="odd")
        def odd() -> None:
            raise error

    else:

        @app.job(retries=0, name="odd")
        async def odd() -> None:
            raise error

    @app.job
    async def fine() -> int:
        return 1

    sick, well = odd.submit(), fine.submit()
    app.drain()
    assert well.refresh().result == 1
    assert (sick.refresh().state, sick.error.type) == (mp.JobState.FAILED, error.__name__)


def test_an_outcome_that_the_store_refuses_fails_its_job_only(app):
    @app.job
    async def wasteful(ctx: mp.Context, name: str) -> int:
        ctx.count(name, float("nan") if name == "nan" else 1)
        return 1

    sick = [wasteful.submit(name) for name in ("nan", "a\0b")]
    well = wasteful.submit("tokens")
    app.drain()
    assert well.refresh().result == 1
    for job in sick:
        assert job.refresh().done


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, BaseException])
@pytest.mark.parametrize("colour", ["plain", "async"])
def test_a_handler_that_ends_the_program_ends_its_job_only(app, error, colour):
    if colour == "async" and error is GeneratorExit:
        pytest.skip("Python itself ends a coroutine by it")
    if colour == "plain":

        @app.job(name="leave")
        def leave() -> None:
            raise error("bye") if error is not SystemExit else sys.exit("bye")

    else:

        @app.job(name="leave")
        async def leave() -> None:
            raise error("bye") if error is not SystemExit else sys.exit("bye")

    @app.job
    def stay() -> int:
        return 1

    gone, there = leave.submit(), stay.submit()
    app.drain()
    assert there.refresh().result == 1
    assert gone.refresh().state == mp.JobState.FAILED
    assert (gone.error.type, gone.error.message) == (error.__name__, "bye")


def test_an_unstorable_or_too_large_result_fails_the_job_once(database):
    app = mp.App(database.url, max_payload=1000)

    @app.job
    def give(what: str):
        return {"object": object(), "nan": float("nan"), "large": "x" * 2000}[what]

    given = [give.submit(what) for what in ("object", "nan", "large")]
    assert app.drain() == 3
    assert {job.refresh().error.type for job in given} == {"Invalid"}
    app.close()


# Cancelling


async def test_cancelling_a_running_async_job_stops_it_where_it_waits(app, working, until):
    begun, cleaned = asyncio.Event(), []

    @app.job
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # cleaning up takes several sweeps and is not interrupted
                await asyncio.sleep(0.01)
            cleaned.append(1)

    job = await endless.submit_async()
    async with working():
        await asyncio.wait_for(begun.wait(), 10)
        assert await job.cancel_async("changed my mind") == mp.JobState.RUNNING
        assert (await job.wait_async(10)).state == mp.JobState.CANCELLED
    assert cleaned == [1]
    assert moves(job) == ["create", "claim", "note", "cancel"]
    assert job.history[-1].detail == "changed my mind"


async def test_cancelling_a_running_plain_job_shows_in_its_context(app, working, until):
    begun = threading.Event()

    @app.job
    def endless(ctx: mp.Context, how: str) -> str:
        begun.set()
        end = time.monotonic() + 10
        while not ctx.cancelled and time.monotonic() < end:
            time.sleep(0.005)
        if how == "check":
            mp.current().check()
        elif how == "raise":
            raise RuntimeError("interrupted")
        return "finished anyway"

    async with working():
        for how, state in [("check", "CANCELLED"), ("raise", "CANCELLED"), ("end", "SUCCEEDED")]:
            begun.clear()
            job = await endless.submit_async(how)
            assert await asyncio.to_thread(begun.wait, 10)
            await job.cancel_async("enough")
            assert (await job.wait_async(10)).state == state


async def test_a_handlers_own_cancelled_error_is_a_failure_of_its_own(app, working, until):
    """Nobody cancelled the job: it must not hang in RUNNING, nor take others with it."""

    @app.job(retries=1, retry_delay=0)
    async def awkward(ctx: mp.Context) -> int:
        if ctx.attempt == 1:
            task = asyncio.create_task(asyncio.sleep(10))
            task.cancel()
            await task
        return ctx.attempt

    @app.job
    async def fine() -> int:
        return 1

    odd, others = await awkward.submit_async(), await fine.submit_many_async([()] * 20)
    async with working():
        assert (await odd.wait_async(10)).result == 2
        for job in others:
            assert (await job.wait_async(10)).result == 1
    assert moves(odd) == ["create", "claim", "retry", "due", "claim", "succeed"]


# Timeouts


async def test_an_async_attempt_that_takes_too_long_is_ended_and_tried_again(app, working, until):
    ended = []

    @app.job(timeout=0.2, retries=1, retry_delay=0)
    async def slow(ctx: mp.Context) -> int:
        if ctx.attempt == 1:
            try:
                await asyncio.sleep(30)
            finally:
                ended.append(ctx.cancelled)
        return ctx.attempt

    job = await slow.submit_async()
    async with working():
        assert (await job.wait_async(10)).result == 2
    assert ended == [True]
    assert [e.detail for e in job.history if e.move == "retry"] == ["TimedOut"]
    assert job.error.code == "timeout"


async def test_a_stuck_thread_is_fenced_off_and_another_takes_its_place(database, until):
    app = mp.App(database.url, threads=1, sweep=0.05, poll_max=0.1)
    let_go, late = threading.Event(), []

    @app.job(timeout=0.2, retries=0)
    def stuck() -> str:
        let_go.wait(20)
        late.append(1)
        return "too late"

    @app.job
    def fine() -> int:
        return 1

    sick = await stuck.submit_async()
    well = await fine.submit_many_async([()] * 5)
    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    assert (await sick.wait_async(10)).error.type == "TimedOut"
    for job in well:
        assert (await job.wait_async(10)).result == 1
    assert worker._threads.zombies == 1
    let_go.set()
    await until(lambda: worker._threads.zombies == 0)
    worker.drain()
    await running
    assert late == [1]
    assert (await sick.refresh_async()).state == mp.JobState.FAILED
    assert [e.move for e in await sick.history_async()] == ["create", "claim", "fail"]
    await app.close_async()


async def test_waiting_for_a_thread_is_not_running(database):
    """Ten jobs of a tenth of a second with one thread: none of them takes longer than that."""
    app = mp.App(database.url, threads=1, sweep=0.05, poll_max=0.1)

    @app.job(timeout=0.5, retries=0)
    def brief() -> None:
        time.sleep(0.1)

    handles = await brief.submit_many_async([()] * 10)
    assert await app.drain_async() == 10
    assert {(await job.refresh_async()).state for job in handles} == {mp.JobState.SUCCEEDED}
    await app.close_async()


async def test_a_deadline_ends_a_running_job(app, working):
    @app.job(deadline=0.3)
    async def endless() -> None:
        await asyncio.Event().wait()

    job = await endless.submit_async()
    async with working():
        await job.wait_async(10)
    assert (job.error.cause, moves(job)[-1]) == ("deadline", "expire")


def beside(app, reported):
    """What lanes call: an executor, a settler that notes moves, a row whose lease is kept."""
    settler = SimpleNamespace(report=lambda _, outcome: reported.append(outcome.move))
    row = SimpleNamespace(may_start=lambda: True)
    return Executor(app.client.codec, app.client.hooks, max_result=1000), settler, row


def threaded(app, reported, *, threads):
    return ThreadLanes(*beside(app, reported), threads=threads)


def test_a_claimed_job_whose_deadline_has_passed_never_begins(app, until):
    ran, reported = [], []

    @app.job(name="plain")
    def plain() -> None:
        ran.append(1)

    @app.job(name="awaited")
    async def awaited() -> None:
        ran.append(1)

    async def run() -> None:
        tasks, threads = AsyncLanes(*beside(app, reported)), threaded(app, reported, threads=1)
        for job, lanes in ((plain, threads), (awaited, tasks)):
            claim = msgspec.structs.replace(CLAIM, kind=job.definition.name, remaining_us=0)
            lanes.start([RunningJob(claim, job.definition, Context(claim), lanes)])
        await until(lambda: len(reported) == 2)
        await tasks.close()
        threads.close()

    asyncio.run(run())
    assert (ran, reported) == ([], ["expire", "expire"])


def test_a_few_threads_do_what_is_quick_and_all_are_called_for_what_is_not(tmp_path, until):
    """Quick jobs on every thread would fight for the interpreter; slow ones must not queue."""
    app, ended = mp.App(f"sqlite:///{tmp_path}/s.db"), []
    together = threading.Barrier(8, timeout=20)

    @app.job(name="quick")
    def quick() -> None:
        pass

    @app.job(name="slow")
    def slow() -> None:
        together.wait()

    def running(job, lanes):
        claim = msgspec.structs.replace(CLAIM, kind=job.definition.name)
        return RunningJob(claim, job.definition, Context(claim), lanes)

    async def run() -> None:
        lanes = threaded(app, ended, threads=16)
        lanes._seconds = 0.0  # they have been quick so far
        lanes.policy = LanePolicy(patience=60)
        lanes.start([running(quick, lanes) for _ in range(300)])
        await until(lambda: len(ended) == 300)
        assert lanes._threads == 2
        lanes.policy = LanePolicy()
        lanes._seconds, lanes._patient = 0.0, False
        lanes.start([running(slow, lanes) for _ in range(8)])
        await until(lambda: len(ended) == 308)
        for burst in range(60):  # whatever ends while the loop looks is seen by its next look
            before = len(ended)
            lanes.start([running(quick, lanes) for _ in range(burst)])
            while len(ended) < before + burst:
                async with asyncio.timeout(20):
                    await asyncio.sleep(0)
        lanes.close()

    asyncio.run(run())
    assert set(ended) == {"succeed"}


CLAIM = jobs.Claim(
    **dict.fromkeys(jobs.Claim.__struct_fields__)
    | {"id": "01890000-0000-7000-8000-000000000000", "kind": "k", "kind_version": 1, "fence": 1}
    | {"payload": b"{}", "codec": "json", "errors": 0, "losses": 0, "polls": 0, "releases": 0}
    | {"retries": 3, "poll_limit": 1000, "poison_limit": 3, "queue": "default", "priority": 0}
    | {"queued_seq": 1, "tenant": ""},
)


# Between jobs

LEAK: contextvars.ContextVar[str] = contextvars.ContextVar("leak", default="clean")


@pytest.mark.parametrize("colour", ["plain", "async"])
@pytest.mark.parametrize("before", [None, "outer"])
def test_context_variables_do_not_leak_between_jobs(database, colour, before):
    app = mp.App(database.url, threads=1)
    seen = []

    def look(name):
        seen.append(LEAK.get())
        LEAK.set(name)

    if colour == "plain":

        @app.job(name="note")
        def note(name: str) -> None:
            look(name)

    else:

        @app.job(name="note")
        async def note(name: str) -> None:
            look(name)

    note.submit_many([(f"job {n}",) for n in range(10)])

    def drain():
        if before is not None:
            LEAK.set(before)
        app.drain()

    contextvars.copy_context().run(drain)
    assert seen == [before or "clean"] * 10
    app.close()


def test_usage_is_recorded_with_each_attempts_outcome(app, raw):
    @app.job(retry_delay=0, retries=1)
    def count(ctx: mp.Context) -> None:
        ctx.count("tokens", 100)
        ctx.count("tokens", 20.5)
        ctx.count("pages")
        if ctx.attempt == 1:
            raise ConnectionError

    job = count.submit()
    app.drain()
    rows = raw.execute("SELECT job_id, fence, name, amount FROM usage ORDER BY fence, name")
    # What the failed attempt used is spent as well.
    assert [(str(row[0]), *row[1:]) for row in rows] == [
        (job.id, attempt, name, amount)
        for attempt in (1, 2)
        for name, amount in (("pages", 1.0), ("tokens", 120.5))
    ]


# What it leaves alone


def test_unknown_kinds_and_versions_are_left_alone(database, app):
    @app.job(name="render", version=2)
    def render() -> int:
        return 2

    other = mp.App(database.url)

    @other.job(name="render", version=1)
    def old() -> int:
        return 1

    @other.job
    def elsewhere() -> int:
        return 3

    mine, theirs, foreign = render.submit(), old.submit(), elsewhere.submit()
    assert app.drain() == 1
    assert mine.refresh().result == 2
    assert {theirs.refresh().state, foreign.refresh().state} == {mp.JobState.QUEUED}
    assert theirs.record.fence == 0
    assert other.drain() == 2
    other.close()


def test_a_paused_queue_is_not_served_until_it_goes_on(app):
    @app.job(queue="slow")
    def work() -> None: ...

    app.client.run(queues.pause, "slow", paused=True, actor="me")
    job = work.submit()
    assert app.drain() == 0
    app.client.run(queues.pause, "slow", paused=False, actor="me")
    assert app.drain() == 1
    assert job.refresh().state == mp.JobState.SUCCEEDED


async def test_all_queues_are_served_unless_some_are_named(app, working, until):
    @app.job
    async def work() -> None: ...

    handles = {name: await work.options(queue=name).submit_async() for name in "abc"}
    async with working(["b"]):
        await handles["b"].wait_async(10)
    assert (await handles["a"].refresh_async()).state == mp.JobState.QUEUED
    async with working():
        for job in handles.values():
            await job.wait_async(10)


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_no_more_run_at_once_than_was_asked(app, working, colour):
    now, most = 0, 0
    lock = threading.Lock()

    def enter(step):
        nonlocal now, most
        with lock:
            now += step
            most = max(most, now)

    if colour == "plain":

        @app.job(name="work")
        def work() -> None:
            enter(1)
            time.sleep(0.01)
            enter(-1)

    else:

        @app.job(name="work")
        async def work() -> None:
            enter(1)
            await asyncio.sleep(0.01)
            enter(-1)

    handles = await work.submit_many_async([()] * 20)
    async with working(None, 3):
        for job in handles:
            await job.wait_async(20)
    assert most <= 3


async def test_a_long_plain_job_does_not_keep_the_next_from_a_free_thread(app, working):
    hold = threading.Event()

    @app.job
    def work(long: int) -> int:
        if long:
            hold.wait(10)
        return long

    async with working():
        slow = await work.submit_async(1)
        quick = [await work.submit_async(0) for _ in range(5)]
        for job in quick:
            assert (await job.wait_async(10)).result == 0
        assert (await slow.refresh_async()).state == mp.JobState.RUNNING
        hold.set()
        assert (await slow.wait_async(10)).result == 1


# Leases


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(database):
    app = mp.App(database.url, lease=0.6, heartbeat=0.15, sweep=0.1, poll_max=0.1)

    @app.job
    async def rude() -> str:
        time.sleep(1.5)  # noqa: ASYNC251 - that is the rudeness
        return "done"

    job = await rude.submit_async()
    stop = threading.Event()

    def others() -> None:
        # Maintenance elsewhere looks for dead workers all the while.
        other = mp.App(database.url)
        while not stop.wait(0.1):
            other.maintain_once()
        other.close()

    elsewhere = threading.Thread(target=others)
    elsewhere.start()
    await app.drain_async()
    stop.set()
    await asyncio.to_thread(elsewhere.join)
    assert (await job.refresh_async()).result == "done"
    assert [e.move for e in await job.history_async()] == ["create", "claim", "succeed"]
    await app.close_async()


def paused_past_its_lease():
    """Move the clock past the lease, and take from the dead before any of them can stir."""
    yield from workers.advance_clock(31)
    buried = yield from workers.bury(most=10)
    yield from timers.lose(actor="maintenance", most=10)
    return buried


async def test_a_buried_worker_begins_again_and_its_late_outcome_changes_nothing(
    database, until, app
):
    quick = mp.App(database.url, heartbeat=0.1, sweep=0.05, error_wait=0.05, poll_max=0.1)
    begun, returned = [], []

    @quick.job(name="slow", retry_delay=0)
    def slow(ctx: mp.Context) -> int:
        begun.append(ctx.fence)
        if ctx.fence == 1:
            hold.wait(10)
        returned.append(ctx.fence)
        return ctx.fence

    hold = threading.Event()
    job = await slow.submit_async()
    worker = await quick.worker()
    first = worker.id
    running = asyncio.create_task(worker.run())
    await until(lambda: begun)
    # As if the process had been paused past its lease while others went on.
    await until(lambda: app.client.run(paused_past_its_lease))
    await asyncio.to_thread(app.maintain_once)
    assert (await job.wait_async(10)).result == 2
    assert worker.id != first
    hold.set()
    await until(lambda: returned == [2, 1])
    worker.drain()
    await running
    assert (await job.refresh_async()).result == 2
    history = await job.history_async()
    assert [e.move for e in history] == ["create", "claim", "lose", "due", "claim", "succeed"]
    assert history[2].detail == first
    states = {w.id: w.state for w in await quick.workers.list_async()}
    assert states[first] == states[worker.id] == "STOPPED"
    await quick.close_async()


async def test_a_claim_whose_reply_was_lost_is_given_back_unspent(app, working, until):
    from milepost.store import failpoint

    @app.job
    async def work() -> int:
        return 1

    job = await work.submit_async()
    fired = []

    def cut_once() -> None:
        if not fired:
            fired.append(1)
            failpoint.cut()

    # The statement committed by itself; the answer never came. On SQLite the claim's thread
    # commits, perhaps for others too: nobody else may ask for anything until it has happened.
    claiming = threading.local()

    def mark() -> None:
        claiming.here = True
        if app.client.url.dialect == "postgres":
            cut_once()

    def cut_claims() -> None:
        if getattr(claiming, "here", False) and jobs_running(app):
            cut_once()

    with failpoint.armed("after:job_claim", mark), failpoint.armed("after:commit", cut_claims):
        async with working():
            await until(lambda: fired)
            assert (await job.wait_async(15)).result == 1
    assert moves(job) == ["create", "claim", "release", "due", "claim", "succeed"]
    assert (job.attempt, job.record.releases, job.record.errors) == (1, 1, 0)


def jobs_running(app):
    if app.client.url.dialect == "postgres":
        return 0
    import sqlite3

    with sqlite3.connect(app.client.url.target) as connection:
        found = connection.execute("SELECT count(*) FROM job WHERE state = 'RUNNING'").fetchone()[0]
    connection.close()
    return found


# Draining


async def test_a_drain_lets_what_runs_end_and_claims_nothing_more(app, working, until):
    let_go = asyncio.Event()
    begun = []

    @app.job
    async def work(number: int) -> int:
        begun.append(number)
        await let_go.wait()
        return number

    first = await work.submit_async(1)
    worker = await app.worker(None, 1)
    running = asyncio.create_task(worker.run())
    second = await work.submit_async(2)
    await until(lambda: begun)
    worker.drain()
    asyncio.get_running_loop().call_later(0.2, let_go.set)
    await asyncio.wait_for(running, 10)
    assert (await first.refresh_async()).result == 1
    assert (await second.refresh_async()).state == mp.JobState.QUEUED
    await app.client.close_async()


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_what_does_not_end_in_time_is_given_back_unspent(database, until, colour):
    app = mp.App(database.url, grace=0.1, sweep=0.05, poll_max=0.1)
    begun, hold = [], threading.Event()

    if colour == "plain":

        @app.job(name="endless")
        def endless() -> None:
            begun.append(1)
            hold.wait(10)

    else:

        @app.job(name="endless")
        async def endless() -> None:
            begun.append(1)
            await asyncio.sleep(10)

    job = await endless.submit_async()
    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: begun)
    worker.drain()
    await asyncio.wait_for(running, 10)
    hold.set()
    await job.refresh_async()
    # Maintenance may already have sent it on.
    assert job.state in {mp.JobState.RETRYING, mp.JobState.QUEUED}
    assert (job.attempt, job.record.releases) == (0, 1)
    assert [e.move for e in await job.history_async()][:3] == ["create", "claim", "release"]
    await app.close_async()


async def test_a_second_request_to_stop_gives_back_at_once(app, until):
    begun = []

    @app.job
    async def endless() -> None:
        begun.append(1)
        await asyncio.sleep(60)

    job = await endless.submit_async()
    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: begun)
    worker.drain()

    async def draining():
        return [one.state for one in await app.workers.list_async()] == ["DRAINING"]

    await until(draining)
    assert not running.done()
    worker.drain()
    await asyncio.wait_for(running, 5)
    assert (await job.refresh_async()).record.releases == 1
    await app.client.close_async()


async def test_a_worker_stops_although_the_store_is_away(app, until, monkeypatch):
    monkeypatch.setattr("milepost.worker.settler.FLUSH_SECONDS", 0.3)
    begun = []

    @app.job
    async def endless() -> None:
        begun.append(1)
        await asyncio.sleep(60)

    await endless.submit_async()
    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: begun)

    async def away(*_args, **_kwargs):
        raise mp.Unavailable("away")

    monkeypatch.setattr(worker._driver, "run", away)
    worker.drain()
    worker.drain()
    await asyncio.wait_for(running, 10)
    monkeypatch.undo()
    await app.client.close_async()


async def test_an_unexpected_error_is_waited_out_and_not_the_end(app, working, until, monkeypatch):
    @app.job
    async def work() -> int:
        return 1

    async with working() as worker:
        await until(lambda: worker.state == "IDLE")
        run, troubles = worker._driver.run, []

        async def troubled(operation, *args, **kwargs):
            if operation is jobs.claim and len(troubles) < 2:
                troubles.append(worker.state)
                raise ZeroDivisionError("a bug of ours")
            return await run(operation, *args, **kwargs)

        monkeypatch.setattr(worker._driver, "run", troubled)
        job = await work.submit_async()
        assert (await job.wait_async(10)).result == 1
        assert len(troubles) == 2


# What its row shows


async def test_the_row_shows_both_machines(app, working, until):
    let_go = asyncio.Event()

    @app.job
    async def work() -> None:
        await let_go.wait()

    async def shows(state, slots):
        for shown in await app.workers.list_async():
            if (shown.state, json.loads(shown.slots)) == (state, slots):
                return shown
        return None

    async with working(None, 2) as worker:
        shown = await until(lambda: shows("IDLE", {"FREE": 2}))
        assert (shown.id, shown.pid) == (worker.id, os.getpid())
        own = ["jobs.bulk 1", "request 1", "request.final 1", "request.replay 1"]  # the engine's
        assert json.loads(shown.kinds) == [*own, "work 1"]
        await work.submit_many_async([()] * 3)
        await until(lambda: shows("POLLING", {"PROCESSING": 2}))
        let_go.set()
        await until(lambda: shows("IDLE", {"FREE": 2}))
    [shown] = await app.workers.list_async()
    assert (shown.state, shown.move) == ("STOPPED", "stop")


async def test_a_retry_that_is_due_is_taken_up_without_waiting_for_the_next_poll(database):
    app = mp.App(database.url, sweep=0.05)

    @app.job(retry_delay=0.05)
    async def flaky(ctx: mp.Context) -> int:
        if ctx.attempt == 1:
            raise ConnectionError
        return ctx.attempt

    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    job = await flaky.submit_async()
    end = time.monotonic() + 5
    while (await job.refresh_async()).state != mp.JobState.RETRYING and time.monotonic() < end:
        worker._pause = 60  # it rests as one that found nothing for long
        await asyncio.sleep(0)
    assert (await job.wait_async(5)).result == 2
    worker.drain()
    await running
    await app.close_async()
