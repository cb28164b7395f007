"""Jobs claimed ahead start in their turn, and go to other workers if they do not."""

import asyncio
import json
import threading
import time
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milepost as mp
from milepost.lifecycle import WorkerState
from milepost.records import NewJob, Template
from milepost.store import creation, limits, rules, workers
from milepost.store import jobs as stored
from milepost.worker import floors
from milepost.worker.ahead import AheadPolicy, Pace
from milepost.worker.lanes import LanePolicy
from milepost.worker.slots import SlotTable
from tests.support.suite.store import new_id
from tests.worker.conftest import QUICK

RATES = st.floats(0, 1e7)
SLOTS = st.integers(1, 100_000)
SIZES = st.floats(0, 1e8)

# The estimate


@given(slots=SLOTS, rate=RATES, size=SIZES)
def test_no_more_are_held_than_end_soon_and_within_every_bound(slots, rate, size):
    policy = AheadPolicy()
    ahead = policy.ahead(slots, rate=rate, size=size)
    assert 0 <= ahead <= slots * policy.of_slots
    assert slots + ahead <= max(slots, rate * policy.soon)
    assert slots + ahead <= max(slots, policy.enough)
    assert ahead * size <= policy.most_bytes


@given(slots=SLOTS, rates=st.lists(RATES, min_size=2), sizes=st.lists(SIZES, min_size=2))
def test_more_are_claimed_ahead_the_quicker_and_the_smaller_jobs_are(slots, rates, sizes):
    policy = AheadPolicy()
    by_rate = [policy.ahead(slots, rate=rate, size=1) for rate in sorted(rates)]
    assert all(less <= more for less, more in pairwise(by_rate))
    by_size = [policy.ahead(slots, rate=1e5, size=size) for size in sorted(sizes)]
    assert all(more >= less for more, less in pairwise(by_size))


def test_a_worker_with_default_settings_gets_near_a_tuned_one_and_one_of_long_jobs_nothing():
    policy = AheadPolicy()
    assert policy.ahead(100, rate=20_000, size=100) == 1_500
    assert policy.ahead(100, rate=100_000, size=100) == 2_900
    assert policy.ahead(3_000, rate=100_000, size=100) == 0, "it claims many without"
    assert policy.ahead(100, rate=1_000, size=100) == 0, "its slots hold what ends soon"
    assert policy.ahead(1, rate=400, size=100) == 30
    assert policy.ahead(1, rate=399, size=100) == 0, "a claim for each is no burden"


@pytest.fixture
def pace():
    made = Pace(AheadPolicy())
    made.work(100.0)
    return made


@given(st.lists(st.tuples(st.floats(0.0001, 10), st.integers(0, 1_000)), max_size=50))
def test_the_pace_is_never_above_the_jobs_that_ended_in_a_window(steps):
    policy = AheadPolicy()
    pace, now, ended = Pace(policy), 100.0, 0
    pace.work(now)
    for seconds, count in steps:
        now, ended = now + seconds, ended + count
        assert 0 <= pace.rate(now, ended=ended) <= ended / policy.window


def test_the_pace_follows_within_two_windows_and_is_nothing_soon_after_jobs_became_long(pace):
    ended = 0
    for tick in range(1, 11):
        ended += 200
        rate = pace.rate(100 + tick / 100, ended=ended)
    assert rate == pytest.approx(20_000, rel=0.1)
    for tick in range(11, 14):
        rate = pace.rate(100 + tick / 100, ended=ended)
    assert rate == 0


def test_the_pace_counts_the_time_in_which_lanes_have_jobs(pace):
    pace.rest(100.02)
    assert pace.rate(200, ended=400) == pytest.approx(20_000)
    pace.work(200)
    assert pace.rate(200.005, ended=400) < 20_000


def test_a_pace_that_is_forgotten_begins_from_zero(pace):
    assert pace.rate(100.02, ended=400)
    pace.forget(100.02, ended=400)
    assert pace.rate(100.03, ended=400) == 0


# Jobs that wait for a slot


@pytest.fixture
def app(database):
    """An app whose worker runs one job at a time, of each colour."""
    made = mp.App(database.url, **QUICK, threads=1)
    yield made
    made.close()


class Eager(AheadPolicy):
    """Claims ten ahead, whatever the pace, and takes its time."""

    def ahead(self, slots, *, rate, size):
        return 10


@pytest.fixture
def eager(monkeypatch):
    """Have workers claim ahead, and keep such jobs."""
    monkeypatch.setattr(SlotTable, "policy", Eager(patience=60))


def waiting(worker):
    return [r for r in worker._slots._running.values() if not (r.placed or r.ended)]


def moves(job):
    return [(entry.move, entry.actor) for entry in job.history]


@asynccontextmanager
async def one_ahead(app, working, until, **options):
    """Run a worker whose only slot is taken; it has claimed one more job, with these options."""
    let_go = asyncio.Event()

    @app.job(name="work")
    async def work(*, waits: bool) -> None:
        if waits:
            await let_go.wait()

    async with working(concurrency=1) as worker:
        await app.queues.pause_async("default")
        worker._tasks._seconds = 0.0  # jobs were short so far
        first = await work.submit_async(waits=True)
        second = await work.options(**options).submit_async(waits=False)
        await app.queues.resume_async("default")
        await until(lambda: waiting(worker))
        yield SimpleNamespace(worker=worker, let_go=let_go, first=first, ahead=second)
        let_go.set()


@pytest.mark.in_turn
async def test_a_job_claimed_ahead_is_held_and_starts_when_a_slot_is_free(
    app, working, until, eager
):
    async with one_ahead(app, working, until) as case:
        slots = case.worker._slots
        assert json.loads(slots.text()) == {"PROCESSING": 1}, "there is one slot"
        assert slots.known.keys() == {case.first.id, case.ahead.id}
        await case.worker._claimer.reconcile()
        assert (await app.jobs.get_async(case.ahead.id)).state == mp.JobState.RUNNING
        case.let_go.set()
        assert (await case.ahead.wait_async(20)).state == mp.JobState.SUCCEEDED
    assert [move for move, _ in moves(case.ahead)] == ["create", "claim", "succeed"]


@pytest.mark.in_turn
async def test_cancelling_a_job_claimed_ahead_does_not_wait_for_a_slot(app, working, until, eager):
    async with one_ahead(app, working, until) as case:
        await case.ahead.cancel_async("not needed")
        assert (await case.ahead.wait_async(20)).state == mp.JobState.CANCELLED
        assert (await app.jobs.get_async(case.first.id)).state == mp.JobState.RUNNING


@pytest.mark.in_turn
async def test_a_deadline_ends_a_job_claimed_ahead_that_has_no_slot(app, working, until, eager):
    async with one_ahead(app, working, until, deadline=30) as case:
        waiting(case.worker)[0].claimed -= 31
        ended = await case.ahead.wait_async(20)
        assert (ended.state, ended.error.cause) == (mp.JobState.FAILED, "deadline")


@asynccontextmanager
async def one_in_line(app, working, until, **options):
    """Run a worker whose only thread is taken; one more job, with these options, waits for it."""
    let_go = threading.Event()

    @app.job(name="work", retries=0)
    def work(*, waits: bool) -> None:
        if waits:
            let_go.wait(60)

    try:
        async with working() as worker:
            await app.queues.pause_async("default")
            worker._threads._seconds = 0.0  # jobs were short so far
            first = await work.submit_async(waits=True)
            second = await work.options(**options).submit_async(waits=False)
            await app.queues.resume_async("default")
            [running] = await until(
                lambda: [
                    r
                    for r in worker._slots._running.values()
                    if r.claim.id == second.id and r.placed and r.began is None
                ]
            )
            yield SimpleNamespace(worker=worker, first=first, job=second, running=running)
            let_go.set()
    finally:
        let_go.set()


@pytest.mark.in_turn
async def test_cancelling_a_job_in_the_line_of_a_thread_does_not_wait_for_the_thread(
    app, working, until, eager
):
    """It waited for the long one before it, for an hour if need be."""
    async with one_in_line(app, working, until) as case:
        await case.job.cancel_async("not needed")
        assert (await case.job.wait_async(20)).state == mp.JobState.CANCELLED
        assert (await app.jobs.get_async(case.first.id)).state == mp.JobState.RUNNING


@pytest.mark.in_turn
async def test_a_deadline_ends_a_job_in_the_line_of_a_thread(app, working, until, eager):
    async with one_in_line(app, working, until, deadline=30) as case:
        case.running.claimed -= 31
        ended = await case.job.wait_async(20)
        assert (ended.state, ended.error.cause) == (mp.JobState.FAILED, "deadline")
        assert (await app.jobs.get_async(case.first.id)).state == mp.JobState.RUNNING


@pytest.mark.in_turn
async def test_the_time_of_an_attempt_begins_with_its_handler(app, working, until, eager):
    async with one_ahead(app, working, until, timeout=30) as case:
        waiting(case.worker)[0].claimed -= 60
        case.worker._slots.end_overdue()
        assert waiting(case.worker)
        case.let_go.set()
        assert (await case.ahead.wait_async(20)).state == mp.JobState.SUCCEEDED


@pytest.mark.both_stores
async def test_a_worker_that_stops_gives_jobs_claimed_ahead_back_at_once(
    app, working, until, eager
):
    async with one_ahead(app, working, until) as case:
        case.worker.drain()
        await until(lambda: not waiting(case.worker))
        await until(lambda: len(case.worker._slots) == 1)
        job = await app.jobs.get_async(case.ahead.id)
        assert job.state in (mp.JobState.RETRYING, mp.JobState.QUEUED)
        assert (await app.jobs.get_async(case.first.id)).state == mp.JobState.RUNNING
    assert [move for move, _ in moves(case.ahead)][:3] == ["create", "claim", "release"]
    assert job.attempt == 0, "nothing is spent"


@pytest.mark.in_turn
async def test_no_more_handlers_run_at_once_than_slots(app, working, until, eager):
    running, most = set(), []

    @app.job
    async def awaited(ctx: mp.Context) -> None:
        running.add(ctx.id)
        most.append(len(running))
        await asyncio.sleep(0)
        running.discard(ctx.id)

    @app.job
    def plain(ctx: mp.Context) -> None:
        running.add(ctx.id)
        most.append(len(running))
        time.sleep(0.0001)
        running.discard(ctx.id)

    for _ in range(5):
        await awaited.submit_many_async([()] * 20)
        await plain.submit_many_async([()] * 20)
    async with working(concurrency=2) as worker:
        await until(lambda: worker._slots.ran == 200)
    assert max(most) <= 2


@pytest.mark.both_stores
async def test_a_job_whose_loss_would_end_it_is_not_claimed_ahead(app, working, until, eager):
    """Those of a killed worker were FAILED although none had begun, a thousand at a time."""
    begun, held = set(), []

    @app.job(retries=0)
    async def once(ctx: mp.Context) -> None:
        begun.add(ctx.id)
        held.append(sum(r.claim.retries == 0 for r in waiting(case)))

    @app.job
    async def often() -> None:
        held.append(sum(r.claim.retries == 0 for r in waiting(case)))

    for _ in range(20):
        await often.submit_many_async([()] * 5)
        jobs = await once.submit_many_async([()] * 5)
    async with working(concurrency=4) as case:
        await until(lambda: case._slots.ran == 200)
    assert begun >= {job.id for job in jobs}
    assert max(held) <= 1, "a fourth of the slots, when the bottom of the line is looked at"


@pytest.mark.in_turn
async def test_jobs_that_were_lost_before_stop_claiming_ahead(app, monkeypatch):
    worker = await app.worker(None, 1)
    forgot = []
    monkeypatch.setattr(worker._slots, "none_ahead", forgot.append)
    numbers = {"losses": 0, "errors": 0, "retries": 3}
    claim = stored.Claim(**dict.fromkeys(stored.Claim.__struct_fields__) | numbers)
    worker._claimer._learn([claim])
    assert not forgot
    worker._claimer._learn([claim, msgspec.structs.replace(claim, losses=1)])
    assert forgot


@pytest.mark.in_turn
async def test_a_job_that_does_not_start_is_released_for_a_worker_that_takes_it(
    app, working, until, eager
):
    async with one_ahead(app, working, until) as case:
        slots, late = case.worker._slots, waiting(case.worker)
        await until(lambda: case.worker.state is not None)
        own = (await app.workers.list_async())[0]
        elsewhere = msgspec.structs.replace(own, queues='["other"]')
        older = msgspec.structs.replace(own, kinds='["work 7"]')
        assert slots.release_late(late, [elsewhere, older]) == 0
        assert slots.release_late(late, [elsewhere, own]) == 1
        assert slots.release_late(late, [own]) == 0, "once"
        await until(lambda: moves(case.ahead)[-1][0] in ("release", "due", "claim"))
        assert not case.worker._tasks.is_short, "nothing is claimed ahead now"


@pytest.mark.in_turn
async def test_a_job_without_a_slot_is_released_in_the_end_if_no_other_worker_is_free(
    app, working, until, eager
):
    async with one_ahead(app, working, until) as case:
        slots, late = case.worker._slots, waiting(case.worker)
        assert slots.release_late(late, []) == 0
        late[0].claimed -= slots.policy.longest
        assert slots.release_late(late, []) == 1


@pytest.mark.in_turn
async def test_a_job_in_the_line_of_a_thread_is_released_in_the_end_too(app, working, until, eager):
    """A hundred were held behind long ones, and others that came first by priority after them."""
    async with one_in_line(app, working, until) as case:
        slots, late = case.worker._slots, [case.running]
        assert slots.release_late(late, []) == 0
        late[0].claimed -= slots.policy.longest
        assert slots.release_late(late, []) == 1
        assert case.worker._threads.depth(100) == 1, "no more are claimed than there are threads"
        await until(lambda: moves(case.job)[-1][0] in ("release", "due"))
        assert (await app.jobs.get_async(case.first.id)).state == mp.JobState.RUNNING


@pytest.mark.both_stores
def test_a_worker_is_free_while_it_lives_and_rests(app):
    run = app.client.run

    def free(besides):
        return [other.id for other in run(workers.listing, free_beside=besides)]

    for name in ("rests", "works"):
        run(workers.register, workers.NewWorker(id=name, lease_us=30_000_000))
    run(workers.walk, "works", WorkerState.STARTUP, WorkerState.POLLING)
    run(workers.walk, "rests", WorkerState.STARTUP, WorkerState.BACKOFF)
    assert free("works") == ["rests"]
    assert free("rests") == []
    run(workers.advance_clock, 31)
    assert free("works") == []


@pytest.mark.in_turn
async def test_jobs_that_may_be_long_are_claimed_for_slots_and_only_in_their_turn(
    app, eager, monkeypatch
):
    @app.job
    async def awaited() -> None: ...

    @app.job
    def plain() -> None: ...

    worker = await app.worker(None, 8)
    claimer, short, both = worker._claimer, "awaited 1", {"awaited 1", "plain 1"}

    def fitting():
        most, kinds = claimer._fitting()
        return most, {kind for kind in kinds if kind in both}

    claimer._last.met = {worker._tasks}
    worker._tasks._seconds = 0.0
    assert fitting() == (4, both), "the last claim found few: within slots"
    claimer._last.plenty = True
    assert fitting() == (2, both), "the bottom of the line is looked at: for a fourth of the slots"
    monkeypatch.setattr(claimer._floors, "due", lambda _: False)
    assert fitting() == (9, {short}), "half of 8 slots and 10 ahead"
    claimer._last.met = {worker._tasks, worker._threads}
    assert fitting()[0] <= 4, "the last claim met one that may be long"
    claimer._last.met = {worker._tasks}
    worker._tasks._seconds = 1.0
    assert fitting() == (4, both), "they have become long"


@pytest.mark.both_stores
async def test_a_job_under_a_limit_has_its_turn_while_others_are_claimed_ahead(
    app, working, until, eager, monkeypatch
):
    monkeypatch.setattr(floors, "RESCAN_SECONDS", 0.1)
    over = asyncio.Event()

    @app.job
    async def stream() -> None:
        if not over.is_set():
            await stream.submit_async()

    @app.job
    async def limited() -> None:
        over.set()

    await stream.submit_many_async([()] * 30)
    await app.client.run_async(rules.declare, {("job", "r"): rules.Limit(most=1)})
    async with working(concurrency=2) as worker:
        worker._tasks.policy = LanePolicy(short=60.0)  # however slow this machine is
        await until(lambda: worker._slots.ran > 30 and len(waiting(worker)) > 4)
        key = limits.limit_key("r", "a")
        job = NewJob(new_id(), None, Template(kind="limited"), key=key)
        await app.client.run_async(creation.create, [job])
        await asyncio.wait_for(over.wait(), 15)


# Two workers


@pytest.mark.both_stores
@pytest.mark.parametrize(("colour", "slots"), [("async", 1), ("plain", 100)])
async def test_two_hundred_short_jobs_do_not_wait_for_a_long_one_on_one_of_two_workers(
    app, working, until, colour, slots
):
    began, let_go = threading.Event(), threading.Event()

    @app.job(name="async")
    async def awaited(*, is_long: bool) -> None:
        if is_long:
            began.set()
            while not let_go.is_set():  # noqa: ASYNC110 - the plain one waits for the same
                await asyncio.sleep(0.01)

    @app.job(name="plain")
    def plain(*, is_long: bool) -> None:
        if is_long:
            began.set()
            let_go.wait(60)

    work = {"async": awaited, "plain": plain}[colour]
    some = [{"is_long": False}] * 100
    jobs = await work.submit_many_async([*some, {"is_long": True}, *some])
    long, short = jobs[100], [*jobs[:100], *jobs[101:]]
    try:
        async with working(concurrency=slots) as first:
            await until(began.is_set)
            async with working(concurrency=slots) as second:
                for job in short:
                    assert (await job.wait_async(20)).state == mp.JobState.SUCCEEDED
                assert (await app.jobs.get_async(long.id)).state == mp.JobState.RUNNING
                let_go.set()
    finally:
        let_go.set()
    released = [job for job in short if ("release", first.id) in moves(job)]
    assert released, "some were claimed ahead, and waited behind the long one"
    for job in released:
        assert moves(job)[-1] == ("succeed", second.id)
        assert job.attempt == 1, "what was released is not spent"
