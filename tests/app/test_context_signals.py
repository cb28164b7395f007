"""What a handler is told by signals (H-93): in order, once, and never lost with an attempt."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

import milepost as mp
from milepost.store import jobs
from tests.support.databases import Database

pytestmark = pytest.mark.in_turn


@pytest.fixture
def app(database: Database) -> Iterator[mp.App]:
    made = mp.App(database.url)
    yield made
    made.close()


def test_h93_a_handler_reads_what_woke_it_and_what_came_before(app):
    @app.job()
    def publish(ctx: mp.Context) -> list[object]:
        heard = ctx.signals()
        assert ctx.signals() == heard  # asking again loses nothing
        if len(heard) < 2:
            raise mp.Later(None)
        return heard

    job = publish.submit()
    job.signal({"n": 1})  # before anybody waits: remembered
    job.signal()
    app.drain()
    assert job.refresh().result == [{"n": 1}, None]


def test_h93_signals_are_used_up_by_an_attempt_that_waits_again(app):
    heard = []

    @app.job()
    def publish(ctx: mp.Context) -> str:
        heard.append(ctx.signals())
        if len(heard) < 4:
            raise mp.Later(None)
        return "published"

    job = publish.submit()
    app.drain()
    for word in ("a", "b", "c"):
        assert job.refresh().state == "WAITING"
        job.signal(word)
        app.drain()
    assert job.refresh().result == "published"
    assert heard == [[], ["a"], ["b"], ["c"]]


def test_h93_a_signal_taken_by_an_attempt_that_fails_is_left_to_the_next(app):
    heard = []

    @app.job(retries=2, retry_delay=0)
    async def publish(ctx: mp.Context) -> str:
        heard.append(await ctx.signals_async())
        if ctx.attempt < 3:
            raise ConnectionError
        return "published"

    job = publish.submit()
    job.signal("go")
    app.drain(timeout=30)
    assert job.refresh().result == "published"
    assert heard == [["go"]] * 3


def test_h93_a_signal_that_comes_while_the_handler_decides_to_wait_wakes_it(app):
    heard = []

    @app.job()
    def publish(ctx: mp.Context) -> str:
        heard.append(ctx.signals())
        if len(heard) == 1:
            app.jobs.get(ctx.id).signal("in between")
            raise mp.Later(None)
        return "published"

    job = publish.submit()
    app.drain()
    assert job.refresh().result == "published"
    assert heard == [[], ["in between"]]


@pytest.mark.parametrize("delay", [60, None])
def test_h93_an_unread_signal_does_not_keep_a_polling_job_running(app, delay):
    calls = []

    @app.job(poll_limit=20)
    def poll() -> None:
        calls.append(1)
        raise mp.Later(delay)

    job = poll.submit()
    job.signal("nobody reads this")
    app.drain()
    assert (job.refresh().state, len(calls)) == ("WAITING", 1)
    job.signal("nor this, but it comes while the job sleeps")
    app.drain()
    assert (job.refresh().state, len(calls)) == ("WAITING", 2)


def test_h93_a_signal_during_any_attempt_is_answered_by_one_more(app):
    calls = []

    @app.job(poll_limit=20)
    def poll(ctx: mp.Context) -> None:
        calls.append(1)
        if len(calls) <= 3:
            app.jobs.get(ctx.id).signal()
        raise mp.Later(60)

    job = poll.submit()
    app.drain()
    assert (job.refresh().state, len(calls)) == ("WAITING", 4)


def test_signals_read_in_a_transaction_are_read_again_if_it_is_undone(app):
    heard = []

    @app.job(retries=0)
    def publish(ctx: mp.Context) -> None:
        with suppress(LookupError), ctx.transaction():
            heard.append(ctx.signals())
            raise LookupError
        heard.append(ctx.signals())

    job = publish.submit()
    job.signal("go")
    app.drain()
    assert job.refresh().state == "SUCCEEDED"
    assert heard == [["go"], ["go"]]


def test_an_attempt_that_was_overtaken_is_told_nothing(app):
    """The statement itself holds the fence."""
    seen = {}

    @app.job(retries=1, retry_delay=0)
    def publish(ctx: mp.Context) -> None:
        if ctx.attempt == 1:
            seen["first"] = ctx.claim
            raise ConnectionError
        seen["late"] = app.client.run(jobs.signals, seen["first"])
        seen["now"] = ctx.signals()

    job = publish.submit()
    job.signal(7)
    app.drain(timeout=30)
    assert job.refresh().state == "SUCCEEDED"
    assert (seen["late"], seen["now"]) == ([], [7])


async def test_the_plain_call_names_its_twin_in_a_loop(app):
    @app.job()
    async def publish(ctx: mp.Context) -> str:
        with pytest.raises(mp.Invalid, match="signals_async"):
            ctx.signals()
        return "ok"

    job = await publish.submit_async()
    await app.drain_async()
    assert (await job.refresh_async()).result == "ok"
    await app.client.close_async()
