"""What a worker does with jobs under limits, and that no priority starves."""

import asyncio
import time
from contextlib import closing
from itertools import groupby, pairwise

import psycopg
import pytest

import milepost as mp
from milepost.errors import Unavailable
from milepost.store import jobs, limits, workers
from milepost.store.limits import STRIPES, Look
from milepost.worker import floors
from milepost.worker.floors import Floors
from milepost.worker.limited import (
    LOOK_US,
    SHARE_LEAST,
    SWEEP,
    SWEEP_TURN,
    VISITS,
    LimitedLine,
)
from milepost.worker.slots import SlotTable
from tests.support.databases import everyday_names

POSTGRES = [name for name in everyday_names() if name != "sqlite"]


def look(**told) -> Look:
    given = {"locked": STRIPES, "front": 0, "blocked": 0, "visited": 0, "after": None}
    return Look(**{**given, "key_us": None, "queue_us": None, **told})


# Where it looks


def test_as_long_as_the_first_in_line_may_start_most_go_by_arrival():
    line = LimitedLine()
    for _ in range(4):
        reach = line.reach(100)
        assert reach.front + reach.visits * reach.quantum + reach.newest >= 100
        assert reach.front >= 80
        line.learn(look(front=reach.front, visited=VISITS, after="z"), reach, taken=100)


def test_every_second_claim_looks_at_keys_and_at_the_newest_jobs_l22():
    line = LimitedLine()
    walks = []
    for _ in range(6):
        reach = line.reach(100)
        walks.append(bool(reach.visits and reach.newest))
        line.learn(look(front=100, visited=reach.visits, after="z"), reach, taken=100)
    assert walks in ([True, False] * 3, [False, True] * 3)


def test_a_line_that_was_met_whole_is_not_walked_by_keys_unless_some_were_left_behind():
    """Behind an old snapshot a walk over keys passes all dead entries."""
    line = LimitedLine()
    line.learn(look(front=7), line.reach(100), taken=7)
    for _ in range(4):
        reach = line.reach(100)
        assert (reach.front, reach.visits, reach.newest) == (100, 0, 0)
        line.learn(look(front=7), reach, taken=7)
    line.learn(look(front=40, blocked=1), line.reach(100), taken=39)
    assert any(line.reach(100).visits for _ in range(2))
    line.floors.whole = True
    line.learn(look(front=7), line.reach(100), taken=7)
    assert not any(line.reach(100).visits for _ in range(2))


def test_keys_are_looked_at_from_where_the_first_job_stood_at_the_bottom():
    line = LimitedLine()
    line.floors.top_before = 30
    firsts = (("default", 0, 17), ("default", 1, None))
    line.learn(look(front=7, firsts=firsts), line.reach(100), taken=7)
    assert line.reach(100).bottoms == {("default", 0): 17, ("default", 1): 30}


def looks(line: LimitedLine, times: int, *, fixed_us: int, each_us: int) -> list[int]:
    """Look so many times, while much is blocked; answer with how many keys each look had."""
    asked = []
    for _ in range(times):
        line.free({(f"k{n}", "default", 0): None for n in range(100)})
        reach = line.reach(100)
        seen = reach.front + reach.visits + len(reach.freed)
        told = {"front": reach.front, "visited": seen - reach.front, "after": "z"}
        some = look(**told, blocked=reach.front, took_us=fixed_us + seen * each_us)
        line.learn(some, reach, taken=seen // 10)
        asked.append(seen)
    return asked


def test_where_each_key_takes_long_a_look_has_so_many_that_it_stays_short():
    """Behind an old snapshot the live leases of a key stand among all former ones."""
    line = LimitedLine()
    assert max(looks(line, 40, fixed_us=500, each_us=1_000)[20:]) <= 2 * LOOK_US / 1_000
    assert looks(line, 40, fixed_us=500, each_us=5)[-2] > 100


@pytest.mark.parametrize("fixed_us", [1_000, 5_000, 30_000])
def test_what_every_look_takes_does_not_make_looks_small(fixed_us):
    """On a crowded server even a look at nothing takes milliseconds: small claims add to that."""
    line = LimitedLine()
    for _ in range(12):
        line.learn(look(took_us=fixed_us), line.reach(100), taken=0)
    assert min(looks(line, 60, fixed_us=fixed_us, each_us=5)[40:]) > 100


def test_a_line_that_was_empty_for_long_is_claimed_from_as_much_as_any_at_once():
    """Looks at nothing said that a key takes milliseconds: the first claims were tiny."""
    line = LimitedLine()
    for _ in range(30):
        line.learn(look(took_us=2_000), line.reach(1_000), taken=0)
    assert line.reach(1_000).front > 900


def test_on_a_crowded_server_looks_that_bring_jobs_stay_large():
    """Smaller ones would take more of a server that has too much to do."""
    line = LimitedLine()
    for _ in range(20):
        reach = line.reach(1_000)
        told = {"front": reach.front, "visited": reach.visits, "after": "z"}
        seen = reach.front + reach.visits
        line.learn(look(**told, took_us=2_000 + 50 * seen), reach, taken=seen)
    assert line.reach(1_000).front > 400


def test_a_look_from_the_bottom_says_nothing_of_what_a_key_takes():
    line = LimitedLine()
    line.floors.whole = True
    for _ in range(6):
        line.learn(look(front=6, took_us=90_000), line.reach(100), taken=6)
    assert line.reach(100).front + line.reach(100).front > 100


def test_where_jobs_are_blocked_it_goes_by_keys_and_comes_back():
    line = LimitedLine()
    for _ in range(10):
        reach = line.reach(100)
        line.learn(look(front=reach.front, blocked=100, visited=100, after="z"), reach, taken=0)
    assert line.reach(160).front == 160 * SHARE_LEAST
    assert line.reach(160).visits > VISITS
    for _ in range(10):
        reach = line.reach(100)
        line.learn(look(front=reach.front, visited=100, after="z"), reach, taken=100)
    assert line.reach(100).front >= 80


def test_keys_that_were_freed_are_looked_at_once_while_others_are_blocked():
    line = LimitedLine()
    line.free({("k", "default", 0): None})
    assert not line.reach(10).freed
    reach = line.reach(10)
    line.learn(look(front=10, blocked=10, visited=9, after="z"), reach, taken=0)
    line.free({("k", "default", 0): None})
    reach = line.reach(10)
    assert list(reach.freed) == [("k", "default", 0)]
    line.learn(look(front=1, blocked=1, visited=9, after="z"), reach, taken=0)
    assert not line.reach(10).freed


def test_few_keys_share_a_claim_evenly():
    line = LimitedLine()
    for _ in range(2):
        reach = line.reach(100)
        line.learn(look(front=reach.front, visited=4 if reach.visits else 0), reach, taken=100)
    assert (line.reach(100).front, line.reach(100).quantum) == (0, 25)


def test_who_meets_others_asks_for_fewer_stripes_and_gets_more_when_they_are_gone():
    line = LimitedLine()
    for _ in range(5):
        reach = line.reach(10)
        line.learn(look(locked=reach.stripes // 2), reach, taken=0)
    assert line.reach(10).stripes == 2
    for _ in range(STRIPES):
        reach = line.reach(10)
        line.learn(look(locked=reach.stripes), reach, taken=0)
    assert line.reach(10).stripes == STRIPES


def test_keys_are_walked_in_order_from_where_the_last_look_ended():
    line = LimitedLine()
    for after in ("c", "m", None):
        while not (reach := line.reach(100)).visits:
            line.learn(look(front=100), reach, taken=100)
        line.learn(look(front=84, visited=VISITS, after=after), reach, taken=100)
    while not (reach := line.reach(100)).visits:
        line.learn(look(front=100), reach, taken=100)
    assert reach.after == ""


# What comes of it


async def test_a_rate_is_kept_and_waited_for_no_longer_than_needed(app, working):
    started = []

    @app.job(limit=mp.Limit(rate="20/s", burst=1))
    async def call(number: int) -> None:
        started.append(time.monotonic())

    calls = await call.submit_many_async([(n,) for n in range(9)])
    async with working():
        for one in calls:
            await one.wait_async(20)
    started.sort()
    gaps = [later - earlier for earlier, later in pairwise(started)]
    assert started[-1] - started[0] >= 8 * 0.05 - 0.02, gaps
    assert sorted(gaps)[len(gaps) // 2] < 0.5, gaps


async def test_the_next_of_a_key_starts_when_the_one_before_ends_not_at_the_next_poll(database):
    app = mp.App(database.url, poll_max=60.0, poll_min=30.0)

    @app.job(limit=mp.Limit(1, key="customer"))
    async def serve(customer: str) -> None:
        await asyncio.sleep(0.01)

    app.queue("narrow", most=1)
    jobs_ = await serve.submit_many_async([("one",)] * 5)
    jobs_ += await serve.options(queue="narrow").submit_many_async([(f"{n}",) for n in range(5)])
    worker = await app.worker(None, 20)
    running = asyncio.create_task(worker.run())
    for job in jobs_:
        await job.wait_async(20)
    worker.drain()
    await running
    await app.close_async()


async def test_no_more_of_a_key_run_at_once_and_other_keys_do_not_wait(app, working):
    running: dict[str, int] = {}
    seen: dict[str, int] = {}

    @app.job(limit=mp.Limit(2, key="customer"))
    async def serve(customer: str) -> None:
        running[customer] = running.get(customer, 0) + 1
        seen[customer] = max(seen.get(customer, 0), running[customer])
        await asyncio.sleep(0.02)
        running[customer] -= 1

    jobs = await serve.submit_many_async([("big",)] * 10 + [("small",)])
    async with working():
        small = await jobs[-1].wait_async(20)
        for job in jobs:
            await job.wait_async(20)
    assert seen == {"big": 2, "small": 1}
    before = [(await job.refresh_async()).started_at for job in jobs[:10]]
    assert sum(at is not None and at < small.started_at for at in before) <= 3


def test_the_lowest_priority_gets_an_eighth_under_a_flood(app):
    @app.job()
    def work() -> None: ...

    work.options(priority=9).submit_many([()] * 400)
    work.submit_many([()] * 60)
    run = app.client.run
    run(workers.register, workers.NewWorker(id="w", lease_us=60_000_000))
    floors, claims, now = Floors(), [], 0.0
    while len(claims) < 320:
        floors.know(["default"])
        found = run(jobs.claim, worker_id="w", line=floors.line(now), most=10)
        came_to_end = len(found) < 10
        floors.learn(found, came_to_end=came_to_end, began=now, ended=now)
        claims += found
        now += 0.01
    assert [claim.priority for claim in claims[:10]] == [9] * 10
    assert sum(claim.priority == 0 for claim in claims) >= 320 / 8


async def test_few_keys_do_not_hide_an_ordered_job_that_is_tried_again_l11(app, working):
    """It keeps its place, which may be below where keys were looked at: its key stood for good."""
    second = asyncio.Event()

    @app.job(limit=mp.Limit(key="who", ordered=True), retries=1, retry_delay=2.5)
    async def step(ctx: mp.Context, who: str, n: int) -> None:
        if n == 1 and ctx.attempt == 1:
            raise ValueError(n)
        if n == 2:
            second.set()

    @app.job(limit=mp.Limit(1, key="who"))
    async def other(who: str) -> None:
        await asyncio.sleep(0.5)

    step.submit_many([("a", 1), ("a", 2)])
    other.submit_many([("x",)] * 30)
    async with working(concurrency=10):
        await asyncio.wait_for(second.wait(), 8)


async def test_few_keys_do_not_hide_jobs_behind_many_of_a_kind_unknown_here_l15(
    database, app, working
):
    behind = asyncio.Event()

    @app.job(limit=mp.Limit(5, key="who", name="r"))
    async def mine(who: str) -> None:
        if who == "a":
            behind.set()
        await asyncio.sleep(0.05)

    with closing(mp.App(database.url)) as elsewhere:

        @elsewhere.job(limit=mp.Limit(5, key="who", name="r"))
        async def theirs(who: str) -> None: ...

        mine.submit_many([("x",)] * 30)
        theirs.submit_many([("a",)] * 100)
        mine.submit_many([("a",)])
    async with working(concurrency=10):
        await asyncio.wait_for(behind.wait(), 8)


@pytest.mark.both_stores
async def test_jobs_under_a_limit_and_others_take_turns_though_each_would_fill_every_claim_l16(
    app, working, until, monkeypatch
):
    """Those without a limit had no turn from the first second on, until all others were done."""
    monkeypatch.setattr(floors, "RESCAN_SECONDS", 0.05)
    monkeypatch.setattr(floors, "RESCAN_TIMES", 0)
    ran: list[str] = []

    @app.job(limit=mp.Limit(1000, key="key"))
    async def limited(key: int) -> None:
        ran.append("limited")

    @app.job
    async def plain() -> None:
        ran.append("plain")

    await plain.submit_many_async([()] * 400)
    await limited.submit_many_async([(n % 50,) for n in range(400)])
    async with working(concurrency=1):
        await until(lambda: len(ran) - ran.index("limited") >= 200 if "limited" in ran else False)
    both = ran[ran.index("limited") : ran.index("limited") + 200]
    assert min(both.count("plain"), both.count("limited")) >= 50


HELD = ["milepost_lock_stripes(0, 16)", "milepost_lock_queue('narrow')"]
"""What another claim holds while it chooses."""


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("database", POSTGRES, indirect=True)
async def test_a_worker_whose_jobs_others_choose_from_looks_again_soon(database, held):
    """It rested as if there were none, for a tenth of a second and more in each drain."""
    ran = asyncio.Event()
    patient = mp.App(database.url, poll_min=20.0, poll_max=20.0)
    patient.queue("narrow", most=5)

    @patient.job(queue="narrow", limit=mp.Limit(1, key="key"))
    async def limited(key: str) -> None:
        ran.set()

    await limited.submit_async("a")
    worker = await patient.worker()
    async with await psycopg.AsyncConnection.connect(database.url) as other:
        await other.execute("SET search_path TO milepost")
        await other.execute(f"SELECT {held}")
        running = asyncio.create_task(worker.run())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ran.wait(), 2)
        await other.rollback()
        await asyncio.wait_for(ran.wait(), 5)
    worker.drain()
    await asyncio.wait_for(running, 30)
    await patient.client.close_async()
    patient.close()


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("database", POSTGRES, indirect=True)
async def test_a_drain_goes_on_when_others_have_chosen(database, app, held):
    """It ended with all jobs in line: another one was choosing at that moment."""
    app.queue("narrow", most=5)

    @app.job(queue="narrow", limit=mp.Limit(1, key="key"))
    def limited(key: str) -> None: ...

    await asyncio.to_thread(limited.submit, "a")
    async with await psycopg.AsyncConnection.connect(database.url) as other:
        await other.execute("SET search_path TO milepost")
        await other.execute(f"SELECT {held}")
        draining = asyncio.create_task(asyncio.to_thread(app.drain))
        await asyncio.wait([draining], timeout=1)
        await other.rollback()
        assert await asyncio.wait_for(draining, 10) == 1


@pytest.mark.both_stores
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("named", [None, ["a", "b", "c"]])
async def test_no_full_queue_keeps_another_one_from_its_turns(app, working, until, limited, named):
    """The same queue was served alone as long as it was full."""
    ran: list[str] = []

    @app.job(**({"limit": mp.Limit(1000, key="number")} if limited else {}))
    async def work(queue: str, number: int) -> None:
        ran.append(queue)

    for queue in "abc":
        some = [(queue, number % 40) for number in range(300)]
        await work.options(queue=queue).submit_many_async(some)
    async with working(queues=named, concurrency=1):
        await until(lambda: len(ran) >= 150)
    had = [ran[:150].count(queue) for queue in "abc"]
    assert min(had) >= 20, had


@pytest.mark.both_stores
async def test_full_queues_with_limits_of_their_own_take_turns(app, working, until):
    """What was claimed stood in no line of keys: the others seemed to be empty."""
    ran: list[str] = []

    @app.job
    async def work(queue: str) -> None:
        ran.append(queue)
        await asyncio.sleep(0.002)

    for queue in "abc":
        app.queue(queue, most=50)
        await work.options(queue=queue).submit_many_async([(queue,)] * 300)
    async with working(concurrency=4):
        await until(lambda: len(ran) >= 720, seconds=30)
    longest = max(len(list(same)) for _, same in groupby(ran[:720]))
    assert longest < 100


@pytest.mark.both_stores
async def test_jobs_that_were_claimed_before_a_look_at_others_failed_run_at_once(
    app, working, until, monkeypatch
):
    """Nobody ran them until the worker was asked what it held."""
    failed: list[int] = []
    plain_claim, limited_claim = jobs.claim, limits.claim
    found = [0]

    def counting(**given):
        claims = yield from plain_claim(**given)
        found[0] = len(claims)
        return claims

    def failing(**given):
        if found[0] and not failed:
            failed.append(found[0])
            raise Unavailable("the connection was dropped")
        return (yield from limited_claim(**given))

    monkeypatch.setattr(jobs, "claim", counting)
    monkeypatch.setattr(limits, "claim", failing)
    ran: list[int] = []

    @app.job
    async def plain(ctx: mp.Context) -> None:
        ran.append(ctx.fence)

    @app.job(limit=mp.Limit(1, key="key"))
    async def limited(key: str) -> None: ...

    await limited.submit_many_async([("a",)] * 5)
    await plain.submit_many_async([()] * 8)
    async with working(concurrency=100):
        await until(lambda: len(ran) == 8)
    assert failed
    assert ran == [1] * 8, "each of them ran under its first claim"


@pytest.mark.both_stores
async def test_a_job_that_waits_for_its_limit_does_not_keep_others_from_being_claimed_ahead(
    app, working, until
):
    """One was enough: jobs without a limit were claimed for free slots alone from then on."""
    ran, ahead = [0], [0]
    slots: list[SlotTable] = []

    @app.job
    async def plain() -> None:
        ran[0] += 1
        ahead[0] = max(ahead[0], *(len(each) - 20 for each in slots), 0)

    @app.job(limit=mp.Limit(rate="1/h", burst=1, key="who"))
    async def rare(who: str) -> None: ...

    await rare.submit_many_async([("a",)] * 2)
    await plain.submit_many_async([()] * 6_000)
    async with working(concurrency=20) as worker:
        slots.append(worker._slots)
        await until(lambda: ran[0] == 6_000, seconds=30)
    assert ahead[0] > 20


async def test_a_line_without_jobs_is_not_asked_at_each_claim_of_the_other(app, working, until):
    """Each second claim of jobs under limits asked which queues had others, and looked for them."""
    looks, ran = {"plain": 0, "limited": 0}, [0]

    @app.job(limit=mp.Limit(1_000, key="who"))
    async def limited(who: str) -> None:
        await asyncio.sleep(0.01)
        ran[0] += 1

    await limited.submit_many_async([(str(number % 99),) for number in range(400)])
    async with working(concurrency=4) as worker:
        driver = worker._claimer._driver
        run = driver.run

        async def counting(operation, *given, **named):
            looks["plain"] += operation is jobs.claim
            looks["limited"] += operation is limits.claim
            return await run(operation, *given, **named)

        driver.run = counting
        await until(lambda: ran[0] == 400)
    assert looks["plain"] < looks["limited"] / 4


@pytest.mark.both_stores
async def test_blocked_jobs_of_a_higher_priority_hide_no_ordered_job_that_is_tried_again_l11(
    app, working, until
):
    """It keeps its number, which was below where its line was looked at: its key stood."""
    second = asyncio.Event()
    began: list[tuple[int, int]] = []

    @app.job(limit=mp.Limit(key="who", ordered=True), retries=1, retry_delay=1.5)
    async def step(ctx: mp.Context, who: str, number: int) -> None:
        began.append((number, ctx.attempt))
        if (number, ctx.attempt) == (1, 1):
            raise ValueError(number)
        if number == 2:
            second.set()

    @app.job(limit=mp.Limit(1, key="who", name="blocked"))
    async def other(who: str) -> None: ...

    step.submit_many([("a", 1), ("a", 2)])
    await app.limits.set_async("blocked", most=0, reason="they wait")
    async with working(concurrency=4):
        await until(lambda: (1, 1) in began)
        for _ in range(4):
            await step.submit_async("b", 7)
            await asyncio.sleep(0.3)
        await other.options(priority=9).submit_many_async([("x",)] * 200)
        await asyncio.wait_for(second.wait(), 10)


@pytest.mark.parametrize("database", POSTGRES, indirect=True)
async def test_blocked_jobs_of_a_higher_priority_hide_no_job_that_was_committed_late_l13(
    database, app, working, until
):
    ran: set[str] = set()

    @app.job(limit=mp.Limit(1, key="who", name="blocked"))
    async def blocked(who: str) -> None: ...

    @app.job(limit=mp.Limit(5, key="who", name="free"))
    async def free(who: str) -> None:
        ran.add(who)

    await free.submit_async("first")
    await app.limits.set_async("blocked", most=0, reason="they wait")
    async with working(concurrency=4):
        await until(lambda: "first" in ran)
        with psycopg.connect(database.url) as other:
            await asyncio.to_thread(free.within(other).submit, "late")
            for number in range(5):
                await free.submit_async(f"{number}")
                await asyncio.sleep(0.3)
            await blocked.options(priority=9).submit_many_async([("y",)] * 100)
        await until(lambda: "late" in ran, seconds=8)


@pytest.mark.both_stores
@pytest.mark.parametrize("concurrency", [1, 10, 100])
async def test_blocked_jobs_hide_no_job_behind_many_of_a_kind_unknown_here_l15(
    database, app, working, concurrency
):
    behind = asyncio.Event()

    @app.job(limit=mp.Limit(5, key="who", name="shared"))
    async def mine(who: str) -> None:
        behind.set()

    @app.job(limit=mp.Limit(1, key="who", name="blocked"))
    async def blocked(who: str) -> None: ...

    with closing(mp.App(database.url)) as elsewhere:

        @elsewhere.job(limit=mp.Limit(5, key="who", name="shared"))
        async def theirs(who: str) -> None: ...

        blocked.submit_many([(f"y{n % 40}",) for n in range(400)])
        await app.limits.set_async("blocked", most=0, reason="they wait")
        theirs.submit_many([("a",)] * 100)
        mine.submit_many([("a",)])
    async with working(concurrency=concurrency):
        await asyncio.wait_for(behind.wait(), 8)


@pytest.mark.both_stores
def test_a_drain_ends_with_nothing_that_may_start_behind_blocked_jobs(database, app):
    """It ended after eight looks behind them: 2,048 jobs."""
    ran: list[str] = []

    @app.job(limit=mp.Limit(5, key="who", name="shared"))
    def mine(who: str) -> None:
        ran.append(who)

    @app.job(limit=mp.Limit(1, key="who", name="blocked"))
    def blocked(who: str) -> None: ...

    with closing(mp.App(database.url)) as elsewhere:

        @elsewhere.job(limit=mp.Limit(5, key="who", name="shared"))
        def theirs(who: str) -> None: ...

        blocked.options(priority=9).submit_many([(f"y{n}",) for n in range(5_000)])
        app.limits.set("blocked", most=0, reason="they wait")
        theirs.submit_many([("a",)] * 100)
        mine.submit_many([("a",), ("a",)])
    app.drain()
    assert ran == ["a", "a"]


@pytest.mark.both_stores
@pytest.mark.parametrize("blocked", [26, 42, 300])
def test_a_drain_beside_blocked_jobs_ends_after_few_looks(app, monkeypatch, blocked):
    """Looks behind them counted as none at the bottom: it asked for another, hundreds of times."""
    looks, real = [], limits.claim

    def claim(**given: object) -> object:
        looks.append(given)
        return real(**given)

    @app.job(limit=mp.Limit(1, key="who", name="blocked"))
    def work(who: str) -> None: ...

    work.submit_many([(f"{number}",) for number in range(blocked)])
    app.limits.set("blocked", most=0, reason="they wait")
    monkeypatch.setattr(limits, "claim", claim)
    assert app.drain() == 0
    assert len(looks) <= 10


@pytest.mark.both_stores
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_blocked_jobs_of_one_queue_hide_none_of_another_from_a_drain(
    database, app, order, monkeypatch
):
    """Looks behind them began at the last one met: a queue that came after it there was left."""
    first, second = order
    monkeypatch.setattr(floors.random, "shuffle", lambda names: names.sort(key=order.index))
    ran: list[str] = []

    @app.job(limit=mp.Limit(5, key="who", name="shared"))
    def mine(who: str) -> None:
        ran.append(who)

    @app.job(limit=mp.Limit(1, key="who", name="blocked"))
    def blocked(who: str) -> None: ...

    with closing(mp.App(database.url)) as elsewhere:

        @elsewhere.job(limit=mp.Limit(5, key="who", name="shared"))
        def theirs(who: str) -> None: ...

        blocked.options(queue=first).submit_many([(f"y{n}",) for n in range(1_500)])
        blocked.options(queue=second).submit_many([(f"y{n}",) for n in range(300)])
        app.limits.set("blocked", most=0, reason="they wait")
        theirs.options(queue=second).submit_many([("a",)] * 100)
        mine.options(queue=second).submit("a")
    app.drain()
    assert ran == ["a"]


@pytest.mark.both_stores
def test_jobs_of_a_full_queue_hide_none_of_another_that_has_a_limit(app):
    """Without keys, they stood for good behind as many as a claim asks for."""
    ran: list[str] = []

    @app.job
    def work(queue: str) -> None:
        ran.append(queue)

    for queue in "ab":
        app.queue(queue, most=5)
    work.options(queue="a", priority=9).submit_many([("a",)] * 300)
    work.options(queue="b").submit_many([("b",)] * 3)
    app.limits.set("a", scope="queue", most=0, reason="they wait")
    assert app.drain() == 3
    assert ran == ["b"] * 3


@pytest.mark.both_stores
async def test_many_blocked_keys_hide_none_that_may_start_l21(app, working, until):
    """Not among the newest jobs, it waited for its turn in the order of keys: seconds."""
    app.settings = app.settings.chosen(poll_max=2.0)
    ran: list[str] = []

    @app.job(limit=mp.Limit(rate="1/h", burst=1, key="who"))
    async def call(who: str) -> None:
        ran.append(who)

    await call.submit_many_async([(f"{number}",) for number in range(500) for _ in range(2)])
    async with working(concurrency=50):
        await until(lambda: len(ran) == 500)
        await asyncio.sleep(3)  # all wait, and the worker rests for longer each time
        await call.submit_many_async([("new",), *((f"{number}",) for number in range(20))])
        await until(lambda: "new" in ran, seconds=2.5)


def test_a_look_behind_blocked_jobs_goes_on_after_the_last_one_and_ends_where_the_line_does():
    line = LimitedLine()
    line.floors.know(["default"])
    line.line(0.0)
    reach = line.reach(10)
    line.looked([], look(front=10, blocked=10, last=("default", 0, 7, 3)), reach, began=0, ended=0)
    assert line.sweep.looks(0.0)
    places = line.line(0.1, beyond=True)
    assert [(one.priority, one.floor) for one in places] == [(n, 0) for n in range(9, -1, -1)]
    reach = line.reach(10)
    assert (reach.front, reach.visits, reach.newest) == (SWEEP, 0, 0)
    told = look(front=SWEEP, blocked=SWEEP, last=("default", 0, 600, 4))
    line.looked([], told, reach, began=0, ended=0)
    [place] = line.line(0.2, beyond=True)
    assert (place.queue, place.floor, place.past) == ("default", 600, 4)
    line.looked([], look(front=9, blocked=9), line.reach(10), began=0, ended=0)
    assert not line.sweep.hides


def test_while_others_are_found_a_look_behind_blocked_jobs_takes_one():
    """Older jobs of its key may be free by now: those would be overtaken."""
    line = LimitedLine()
    line.floors.know(["default"])
    line.line(0.0)
    told = look(front=10, blocked=10, last=("default", 0, 7, 3))
    line.looked([], told, line.reach(10), began=0, ended=0)
    ones = []
    for _ in range(2 * SWEEP_TURN):
        line.line(0.1)
        ones.append(line.takes_one)
    assert ones.count(True) == 2
    line.line(0.2, beyond=True)
    assert not line.takes_one


def test_looks_behind_blocked_jobs_take_a_share_of_the_time():
    line = LimitedLine()
    line.floors.know(["default"])
    line.line(0.0)
    told = look(front=10, blocked=10, last=("default", 0, 7, 3))
    line.looked([], told, line.reach(10), began=0, ended=0)
    line.sweep.took(1.0, 1.1)
    assert not line.sweep.looks(2.9)
    assert line.sweep.looks(3.2)


@pytest.mark.both_stores
@pytest.mark.parametrize("concurrency", [1, 2, 8])
async def test_few_slots_serve_many_tenants_in_turn_l20(app, working, until, concurrency):
    """Those slots looked at one key in turn, each second time: one tenant had a third of them."""
    started: list[str] = []

    @app.job(limit=mp.Limit(key="tenant"))
    async def work(tenant: str) -> None:
        started.append(tenant)
        await asyncio.sleep(0.005)

    for tenant in "abcdefgh":
        await work.submit_many_async([(tenant,)] * 100)
    async with working(concurrency=concurrency):
        await until(lambda: len(started) >= 20)
        before = len(started)
        others = [(tenant,) for tenant in "abcdefgh"] * 3
        await work.submit_many_async([("single",), *others])
        await until(lambda: len(started) >= before + 160, seconds=30)
    shares = [started[before : before + 160].count(tenant) for tenant in "abcdefgh"]
    assert started.index("single") <= before + 80
    assert max(shares) <= 45, shares
    assert min(shares) >= 5, shares


def test_few_keys_are_looked_at_alone_as_long_as_they_fill_a_claim():
    line = LimitedLine()
    for _ in range(2):
        reach = line.reach(100)
        line.learn(look(front=reach.front, visited=4 if reach.visits else 0), reach, taken=100)
    assert line.reach(100).front == 0
    line.floors.whole = True
    assert line.reach(100).front == 100
    line.floors.whole = False
    line.learn(look(visited=4), line.reach(100), taken=60)
    assert line.reach(100).front == 100


@pytest.mark.both_stores
@pytest.mark.parametrize("most", [None, 50])
@pytest.mark.parametrize("concurrency", [1, 2, 4])
async def test_a_single_job_starts_soon_though_another_tenant_has_many_l20(
    app, working, until, concurrency, most
):
    """A busy worker claims for a slot or two: with fewer than four slots it came last."""
    started: list[str] = []

    @app.job(limit=mp.Limit(most, key="tenant"))
    async def work(tenant: str) -> None:
        started.append(tenant)
        await asyncio.sleep(0.02)

    await work.submit_many_async([("big",)] * 100)
    async with working(concurrency=concurrency):
        await until(lambda: len(started) >= 2 * concurrency)
        before = len(started)
        await work.submit_async("small")
        await until(lambda: "small" in started)
    assert started.index("small") <= before + 5 + 2 * concurrency


@pytest.mark.both_stores
@pytest.mark.parametrize("case", ["the queue has a rate", "keys have a rate"])
async def test_a_full_queue_is_not_looked_at_at_the_pace_of_a_rate(
    database, until, monkeypatch, case
):
    """Only the end of the job that runs lets the next one start."""
    began, ended, looks = asyncio.Event(), asyncio.Event(), []
    in_queue = case == "the queue has a rate"
    patient = mp.App(database.url, poll_min=0.02, poll_max=1.0)
    real = limits.claim

    def claim(**given: object) -> object:
        looks.append(given)
        return real(**given)

    @patient.job(limit=None if in_queue else mp.Limit(rate="50/s", burst=1, key="who"))
    async def call(who: str) -> None:
        began.set()
        await ended.wait()

    patient.queue("q", most=1, rate="20/s" if in_queue else None)
    await call.options(queue="q").submit_many_async([("a",)] * 200)
    worker = await patient.worker(None, 100)
    running = asyncio.create_task(worker.run())
    await until(began.is_set)
    await asyncio.sleep(2)
    monkeypatch.setattr(limits, "claim", claim)
    await asyncio.sleep(1.5)
    met = len(looks)
    worker.drain()
    ended.set()
    await asyncio.wait_for(running, 30)
    await patient.close_async()
    assert met <= 10


def test_a_look_behind_blocked_jobs_that_takes_long_comes_less_often():
    """Behind an old snapshot it reads every job that there was: it was one look in 32."""
    line = LimitedLine()
    line.floors.know(["default"])

    def comes(now: float) -> bool:
        line.sweep.hides = True
        found = False
        for _ in range(SWEEP_TURN):
            line.line(now)
            if line.takes_one:
                found = True
                look = Look(16, 256, 256, 0, None, None, None, last=("default", 0, 7, 7))
                line.looked([], look, line.reach(1), began=now, ended=now + 0.02)
                line.sweep.hides = True
        return found

    assert [comes(now) for now in (1.0, 2.0, 8.9)] == [True, False, False]
    assert [comes(now) for now in (9.1, 9.2, 17.2)] == [True, False, True]
