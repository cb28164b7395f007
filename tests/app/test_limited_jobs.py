"""Jobs under limits, run by the real worker: how many at once, how fast, in which order."""

import asyncio
import time
from collections import Counter, defaultdict
from contextlib import closing

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import milepost as mp
from milepost.store import rules
from milepost.store.rules import Limit as Stored
from tests.support.databases import everyday_names

POSTGRES = [name for name in everyday_names() if name != "sqlite"]


class Seen:
    """What ran: in which order, and how many of each key at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.most: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    async def run(self, key: str, *, turns: int = 3) -> None:
        self.order.append(key)
        self._now[key] += 1
        self.most[key] = max(self.most[key], self._now[key])
        for _ in range(turns):
            await asyncio.sleep(0)
        self._now[key] -= 1


def most_at_once(found: list[mp.JobHandle]) -> Counter[str]:
    """Judge by the journal: how many leases of each key there were at once, at most."""
    moves = sorted(
        (entry.at, entry.to_state == "RUNNING", job.limit_key or "")
        for job in found
        for entry in job.history
        if "RUNNING" in (entry.to_state, entry.from_state) and entry.to_state != entry.from_state
    )
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for _, begins, key in moves:
        now[key] += 1 if begins else -1
        most[key] = max(most[key], now[key])
    return most


def test_as_many_of_a_key_run_at_once_as_its_limit_allows_and_no_more(app):
    seen = Seen()

    @app.job(limit=mp.Limit(2, key="customer"))
    async def convert(customer: str) -> None:
        await seen.run(customer)

    convert.submit_many([("a",)] * 7 + [("b",)] * 2 + [("c",)])
    assert app.drain(5) == 10
    assert seen.most == {"a": 2, "b": 2, "c": 1}


def test_a_queue_is_limited_whatever_its_jobs_are(app):
    app.queue("slow", most=2)
    seen = Seen()

    @app.job(queue="slow")
    async def one() -> None:
        await seen.run("slow")

    @app.job(queue="slow", limit=mp.Limit(1, key="who"))
    async def two(who: str) -> None:
        await seen.run("slow")
        await seen.run(who)

    one.submit_many([()] * 5)
    two.submit_many([("a",), ("a",), ("b",)])
    assert app.drain(5) == 8
    assert (seen.most["slow"], seen.most["a"]) == (2, 1)


def test_jobs_start_at_their_rate_after_a_burst(app, advance):
    ran = []

    @app.job(limit=mp.Limit(rate="60/h", burst=3, key="who"))
    def ask(who: str) -> None:
        ran.append(who)

    ask.submit_many([("a",)] * 6 + [("b",)])
    app.drain()
    assert Counter(ran) == {"a": 3, "b": 1}
    advance(130)
    app.drain()
    assert Counter(ran) == {"a": 5, "b": 1}


def test_units_are_reserved_at_the_start_and_put_right_at_the_end_l18(app, advance):
    ran = []

    @app.job(limit=mp.Limit(rate="60/m", burst=100, units="tokens"), retries=0)
    def ask(ctx: mp.Context, n: int, used: int) -> None:
        ran.append(n)
        ctx.count("tokens", used)

    ask.options(units=60).submit(1, 100)  # took more than it said
    ask.options(units=60).submit(2, 0)
    app.drain()
    assert ran == [1]
    advance(50)
    app.drain()
    assert ran == [1]
    advance(15)
    app.drain()
    assert ran == [1, 2]
    # It took nothing in the end: all but what was earned meanwhile is there for the next.
    ask.options(units=90).submit(3, 90)
    app.drain()
    assert ran == [1, 2]
    advance(30)
    app.drain()
    assert ran == [1, 2, 3]


@pytest.mark.parametrize("used", [1e300, -1e300, 1e17])
def test_whatever_an_attempt_counts_it_ends_as_it_ended(app, used):
    @app.job(limit=mp.Limit(rate="1/d", units="tokens"), retries=0)
    def ask(ctx: mp.Context) -> None:
        ctx.count("tokens", used)

    done, following = ask.submit(), ask.submit()
    assert app.drain() == 1 + (used < 0)
    assert done.refresh().state == "SUCCEEDED"
    assert following.refresh().state == ("SUCCEEDED" if used < 0 else "QUEUED")
    assert following.explain()


def test_a_rate_that_was_lowered_under_a_huge_job_stops_nobody_else(app):
    @app.job(limit=mp.Limit(rate=1e10, units="bytes"), retries=0)
    def fetch() -> None: ...

    @app.job
    def plain() -> None: ...

    huge = fetch.options(units=1e10).submit()
    app.limits.set("fetch", rate="1/d")
    other = plain.submit()
    app.drain()
    assert [job.refresh().state for job in (huge, other)] == ["SUCCEEDED", "SUCCEEDED"]


def test_what_an_attempt_counted_is_owed_also_if_its_bucket_was_full_meanwhile_l18(app, advance):
    @app.job(limit=mp.Limit(rate="1/s", burst=10, units="tokens"), retries=0)
    def ask(ctx: mp.Context) -> None:
        advance(100)
        app.client.run(rules.prune, most=10)
        ctx.count("tokens", 1_000)

    ask.submit()
    assert app.drain() == 1
    ask.submit()
    assert app.drain() == 0
    advance(1_000)
    assert app.drain() == 1


def test_an_ordered_key_keeps_its_order_through_retries_and_polls_l11(app, advance):
    ran = []
    fails = {"a1"}

    @app.job(limit=mp.Limit(key="who", ordered=True), retries=1, retry_delay=60)
    def step(ctx: mp.Context, who: str, n: int) -> object:
        ran.append(f"{who}{n}")
        if f"{who}{n}" in fails and ctx.attempt == 1:
            raise ValueError(n)
        if (who, n) == ("b", 1) and ran.count("b1") == 1:
            return mp.Later(60)
        return None

    step.submit_many([(who, n) for n in (1, 2) for who in "ab"])
    other = step.submit("c", 1)
    app.drain()
    assert sorted(ran) == ["a1", "b1", "c1"]
    assert other.refresh().state == "SUCCEEDED"
    advance(61)
    app.drain(5)
    assert sorted(ran) == ["a1", "a1", "a2", "b1", "b1", "b2", "c1"]
    assert ran.index("a2") > max(n for n, name in enumerate(ran) if name == "a1")


def test_an_ordered_key_goes_on_after_a_failure_and_after_a_cancel(app):
    ran = []

    @app.job(limit=mp.Limit(ordered=True), retries=1, retry_delay=3600)
    def step(n: int) -> None:
        ran.append(n)
        if n < 2:
            raise mp.Fail("no") if n == 0 else ValueError(n)

    first, second, third = step.submit_many([(0,), (1,), (2,)])
    app.drain()
    assert (ran, first.refresh().state) == ([0, 1], "FAILED")
    assert third.refresh().state == "QUEUED"
    second.cancel()
    app.drain()
    assert ran == [0, 1, 2]


def test_an_ordered_key_keeps_its_order_where_the_clock_is_set_back_l17(app, advance):
    ran = []

    @app.job(limit=mp.Limit(key="who", ordered=True))
    def step(who: str, n: int) -> None:
        ran.append(n)

    step.submit("a", 1)
    advance(-5)
    step.submit_many([("a", 2), ("b", 9), ("a", 3)])
    advance(-5)
    step.options(unique="u").submit("a", 4)
    app.drain(5)
    assert [n for n in ran if n < 9] == [1, 2, 3, 4]


def test_an_ordered_key_keeps_the_order_in_which_held_jobs_were_submitted(app):
    """On SQLite many of them are submitted within one millisecond, which is all that it tells."""
    ran = []

    @app.job(limit=mp.Limit(ordered=True))
    def step(n: int) -> None:
        ran.append(n)

    jobs = [step.options(hold=True).submit(n) for n in range(9)]
    for job in reversed(jobs):
        job.submit()
    app.drain(5)
    assert ran == [8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_an_ordered_key_keeps_the_order_in_which_sleeping_jobs_were_sent_on(app, advance):
    ran = []

    @app.job(limit=mp.Limit(ordered=True))
    def step(n: int) -> None:
        ran.append(n)

    jobs = [step.options(start_in=60).submit(n) for n in range(9)]
    step.submit(9)
    advance(-5)
    for job in reversed(jobs):
        job.run_now()
    step.submit(10)
    app.drain(5)
    assert ran == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10]


@pytest.mark.parametrize("database", POSTGRES, indirect=True)
def test_the_order_is_that_of_what_is_committed_l13(database, app):
    """In a SQLite file nobody is born while another's transaction is open."""
    ran = []

    @app.job(limit=mp.Limit(ordered=True))
    def step(n: int) -> None:
        ran.append(n)

    with psycopg.connect(database.url) as connection:
        step.within(connection).submit(1)
        step.submit(2)
        app.drain()
        assert ran == [2]
    step.submit(3)
    app.drain()
    assert ran == [2, 1, 3]


@pytest.mark.parametrize("database", POSTGRES, indirect=True)
def test_an_attempt_keeps_its_turn_also_if_an_older_submit_commits_meanwhile_l13(
    database, app, advance
):
    ran = []

    @app.job(limit=mp.Limit(ordered=True), retries=1, retry_delay=60)
    def step(ctx: mp.Context, n: int) -> None:
        ran.append(n)
        if n == 2 and ctx.attempt == 1:
            raise TimeoutError

    with psycopg.connect(database.url) as connection:
        step.within(connection).submit(1)
        step.submit(2)
        app.drain()
        assert ran == [2]
    advance(61)
    app.drain(5)
    assert ran == [2, 2, 1]


def test_an_attempt_keeps_its_turn_where_the_clock_is_set_back_l17(app, advance):
    ran = []

    @app.job(limit=mp.Limit(ordered=True), retries=1, retry_delay=60)
    def step(ctx: mp.Context, n: int) -> None:
        ran.append(n)
        if n == 1 and ctx.attempt == 1:
            raise TimeoutError

    step.submit(1)
    app.drain()
    advance(-5)
    step.submit(2)
    advance(66)
    app.drain(5)
    assert ran == [1, 1, 2]


@pytest.mark.parametrize("database", POSTGRES, indirect=True)
def test_a_claim_by_an_old_snapshot_is_refused_l5(database, app):
    app.limits.list()
    with closing(psycopg.connect(database.url)) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.Error, match="claimed in READ COMMITTED"):
            other.execute("SELECT milepost.milepost_lock_stripes(0, 16)")


def test_another_tenant_comes_next_whatever_the_first_has_submitted_l20(app):
    ran = []

    @app.job(limit=mp.Limit(key="tenant"))
    def convert(tenant: str) -> None:
        ran.append(tenant)

    convert.submit_many([("big",)] * 300)
    convert.submit("small")
    app.drain()
    assert ran.index("small") < 150


def test_a_limit_that_is_lowered_stops_nobody_and_one_that_is_raised_lets_go_l6(app):
    seen = Seen()

    @app.job(limit=mp.Limit(3))
    async def work(n: int) -> None:
        if n == 0:
            named = ("job", "work"), Stored(most=1)
            await app.client.run_async(rules.change, *named, actor="jo", reason="slowly")
        await seen.run("", turns=20)

    work.submit_many([(n,) for n in range(9)])
    assert app.drain(5) == 9
    seen.most.clear()
    work.submit_many([(n,) for n in range(1, 5)])
    app.drain(5)
    assert seen.most[""] == 1
    app.client.run(rules.change, ("job", "work"), Stored(most=4), actor="jo", reason="done")
    work.submit_many([(n,) for n in range(1, 9)])
    app.drain(5)
    assert 1 < seen.most[""] <= 4


calls = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["ok", "retry", "later", "fail"])),
    min_size=10,
    max_size=25,
)


@pytest.mark.both_stores
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=calls, most=st.sampled_from([1, 2, 3, 0]), in_queue=st.sampled_from([99, 3]))
def test_no_limit_is_ever_exceeded(database, calls, most, in_queue):
    """Random keys, limits, retries, polls and failures: judged by handlers, and by the journal."""
    seen, tried = Seen(), defaultdict(int)
    with closing(mp.App(database.url)) as app:
        name = f"rule-{time.monotonic_ns()}"
        limit = mp.Limit(most or None, key="key", ordered=not most, name=name)
        app.queue(name, most=in_queue)

        @app.job(name=name, queue=name, limit=limit, retries=1, retry_delay=0)
        async def work(key: str, n: int, how: str) -> object:
            await asyncio.gather(seen.run(key), seen.run("all"))
            tried[n] += 1
            if how == "fail" or (how == "retry" and tried[n] == 1):
                raise mp.Fail("no") if how == "fail" else ValueError(how)
            return mp.Later(0) if how == "later" and tried[n] == 1 else None

        found = work.submit_many([(key, n, how) for n, (key, how) in enumerate(calls)])
        app.drain(20)
        allowed = most or 1
        assert all(job.refresh().done for job in found)
        assert seen.most["all"] <= in_queue
        assert all(count <= allowed for key, count in seen.most.items() if key != "all")
        if database.backend == "sqlite":
            # There an entry's time is that of its commit.
            assert all(count <= allowed for count in most_at_once(found).values())
