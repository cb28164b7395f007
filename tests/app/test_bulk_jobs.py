"""Acting on all jobs that a filter finds: a job that goes on after a crash, and can be stopped."""

import time

import pytest

import milepost as mp
from milepost import bulk, filters
from milepost.client import acting
from milepost.errors import Invalid

pytestmark = pytest.mark.in_turn


@pytest.fixture
def shop(app):
    @app.job(retries=0)
    def sell(price: int) -> None:
        if price % 2:
            raise mp.Fail("too dear", code="dear")

    return sell


def act(app, action, where, **how):
    job = app.bulk.start(action, filters.parse(where), **how)
    app.drain()
    return job.refresh()


def test_jobs_are_run_again_cancelled_and_erased_by_a_filter(app, shop, monkeypatch):
    monkeypatch.setattr(bulk, "BATCH", 2)
    sold = shop.submit_many([(price,) for price in range(10)])
    app.drain()
    again = act(app, "rerun", "error:dear")
    assert (again.result.matched, again.result.done, again.progress) == (5, 5, 1.0)
    # Reruns fail as well, and are run again once more; those before them are not.
    assert act(app, "rerun", "error:dear").result.done == 5
    assert len(app.jobs.list(where="error:dear")) == 15

    erased = act(app, "erase", "kind:sell state:succeeded,failed")
    assert (erased.result.matched, erased.result.done) == (20, 20)
    assert all(job.refresh().record.payload is None for job in sold)

    waiting = [shop.options(start_in=3600, tags={"to": "stop"}).submit(n) for n in range(5)]
    with acting("ada"):
        job = app.bulk.start("cancel", filters.parse("tag.to:stop"), reason="no more")
    app.drain()
    assert job.refresh().result.done == 5
    last = waiting[0].history[-1]
    assert (last.move, last.actor, last.detail) == ("cancel", "ada", "no more")


def test_it_leaves_later_jobs_alone_goes_on_where_it_was_and_stops_when_asked(app, shop, raw):
    old = shop.options(start_in=3600).submit(1)
    order = app.bulk.start("cancel", filters.parse("kind:sell age:<1h"))
    late = shop.options(start_in=3600).submit(2)
    app.drain()
    assert order.refresh().result.done == 1
    assert (old.refresh().state, late.refresh().state) == ("CANCELLED", "WAITING")

    stopped = app.bulk.start("cancel", filters.parse("kind:sell"))
    stopped.cancel("wrong filter")
    app.drain()
    assert (stopped.refresh().state, late.refresh().state) == ("CANCELLED", "WAITING")


def test_a_running_one_stops_between_two_batches(app, shop, monkeypatch):
    monkeypatch.setattr(bulk, "BATCH", 1)
    jobs = [shop.options(start_in=3600).submit(n) for n in range(3)]
    acted = bulk._acted

    def once(client, ids, order, *, actor, ctx):
        done = acted(client, ids, order, actor=actor, ctx=ctx)
        ctx.ask_to_stop("enough")
        return done

    monkeypatch.setattr(bulk, "_acted", once)
    job = act(app, "cancel", "kind:sell")
    assert job.state == "CANCELLED"
    assert sorted(one.refresh().state for one in jobs) == ["CANCELLED", "WAITING", "WAITING"]


def test_an_attempt_goes_on_where_the_one_before_it_failed(app, shop, advance, monkeypatch):
    monkeypatch.setattr(bulk, "BATCH", 2)
    jobs = [shop.options(start_in=9e6).submit(n) for n in range(5)]
    acted, seen = bulk._acted, []

    def broken(client, ids, order, *, actor, ctx):
        seen.append(ids)
        if len(seen) == 2:
            raise ConnectionError
        return acted(client, ids, order, actor=actor, ctx=ctx)

    monkeypatch.setattr(bulk, "_acted", broken)
    job = act(app, "cancel", "kind:sell")
    assert job.state == "RETRYING"
    advance(3600)
    app.drain()
    assert (job.refresh().result.matched, job.result.done) == (5, 5)
    newest = [one.id for one in reversed(jobs)]
    assert seen == [newest[:2], newest[2:4], newest[2:4], newest[4:]]


def test_a_filter_without_terms_and_an_unknown_action_are_refused(app):
    with pytest.raises(Invalid, match="at least one term"):
        app.bulk.start("cancel", filters.parse(" "))
    with pytest.raises(Invalid, match="expected one of cancel, rerun, erase"):
        app.bulk.start("delete", filters.parse("kind:sell"))


def test_a_rate_is_kept_and_a_stop_is_heard_between(app, shop):
    jobs = [shop.options(start_in=3600).submit(n) for n in range(4)]
    began = time.monotonic()
    assert act(app, "cancel", "kind:sell", rate=2).result.done == 4
    assert time.monotonic() - began >= 0.9, "two at once, a second, and two more"
    assert {job.refresh().state for job in jobs} == {"CANCELLED"}
    with pytest.raises(Invalid, match="rate=0"):
        app.bulk.start("cancel", filters.parse("kind:sell"), rate=0)
