"""app.limits.clear: a key whose rate was used up by mistake starts anew, on record."""

import asyncio
import re
from datetime import UTC, datetime, timedelta

import pytest

import milepost as mp
from milepost.store import buckets, rules
from milepost.store.rules import Limit

ABSURD = 1e300


def asked(app: mp.App, **limit: object) -> mp.Job:
    """Declare a kind that counts as many tokens as it is told, by customer."""

    @app.job(limit=mp.Limit(key="customer", rate="60/m", units="tokens", **limit), retries=0)
    async def ask(ctx: mp.Context, customer: str, used: float = 1) -> None:
        ctx.count("tokens", used)

    return ask


def test_a_key_that_an_absurd_count_closed_goes_on_when_it_is_cleared(app):
    ask = asked(app)
    ask.submit("acme", ABSURD)
    ask.submit("tiny", 1_000)
    app.drain()
    following, other = ask.submit("acme"), ask.submit("tiny")
    assert app.drain() == 0
    stand = app.limits.clear("ask", "acme", reason="it counted bytes")
    assert (stand.name, stand.rate, stand.set_by) == ("ask", "60/m", None)
    assert app.drain() == 1
    assert [job.refresh().state for job in (following, other)] == ["SUCCEEDED", "QUEUED"]


def test_who_cleared_which_key_and_why_is_on_record(app):
    ask = asked(app)
    ask.submit("acme", ABSURD)
    app.drain()
    app.limits.clear("ask", "acme", reason="it counted bytes")
    cleared, declared = app.limits.changes("ask")
    assert (cleared.key, cleared.actor, cleared.reason) == ("acme", "client", "it counted bytes")
    assert (cleared.before, cleared.after) == (declared.after, declared.after)
    assert cleared.free_at > datetime.now(UTC) + timedelta(days=36_000)
    assert (declared.key, declared.free_at) == (None, None)


async def test_workers_that_rest_hear_of_it_at_once(database):
    app = mp.App(database.url, poll_max=60.0, poll_min=30.0)
    ask = asked(app)
    closing = await ask.submit_async("acme", ABSURD)
    worker = await app.worker(None, 5)
    running = asyncio.create_task(worker.run())
    await closing.wait_async(20)
    following = await ask.submit_async("acme")
    await asyncio.sleep(0.3)  # it has looked, and rests
    assert (await following.refresh_async()).state == "QUEUED"
    await app.limits.clear_async("ask", "acme")
    await following.wait_async(10)
    worker.drain()
    await running
    await app.close_async()


def test_a_limit_without_keys_a_queue_a_host_and_a_source_are_cleared_by_their_names(app):
    slow = Limit(rate=1, per_us=86_400_000_000, burst=1)
    names = [("queue", "slow"), ("host", "partner.example"), ("source", "shop")]
    app.client.run(rules.declare, dict.fromkeys([*names, ("host", "*")], slow))

    @app.job(limit=mp.Limit(rate="1/d"))
    def whole() -> None: ...

    whole.submit_many([()] * 2)
    assert app.drain() == 1
    app.limits.clear("whole")
    assert app.drain() == 1
    for scope, name in [*names, ("host", "other.example")]:
        take = {"limit": slow, "within": 1}
        assert app.client.run(buckets.take, scope, name, **take) == 0
        assert app.client.run(buckets.take, scope, name, **take) > 80_000
        of, key = ("*", name) if name == "other.example" else (name, None)
        app.limits.clear(of, key, scope=scope)
        assert app.client.run(buckets.take, scope, name, **take) == 0
    assert [change.key for change in app.limits.changes("*")] == ["other.example", None]


def test_what_is_not_there_is_not_found_and_keys_with_least_left_are_named(app):
    ask = asked(app)
    ask.submit_many([("acme", 90), ("late", 500), ("idle",)])
    app.drain()
    for name, key in (("nothing", "acme"), ("ask", "nobody"), ("ask", None)):
        with pytest.raises(mp.NotFound):
            app.limits.clear(name, key)
    with pytest.raises(mp.NotFound, match=r"least is left of: late, acme, idle$"):
        app.limits.clear("ask", "nobody")
    with pytest.raises(mp.NotFound, match="there is no limit 'nothing'"):
        app.limits.clear("nothing")
    app.limits.set("default", scope="queue", most=3)
    with pytest.raises(mp.NotFound, match="queue default has no rate"):
        app.limits.clear("default")
    with pytest.raises(mp.Invalid, match="a queue has no keys"):
        app.limits.clear("default", "acme")
    app.limits.set("*", scope="host", rate="1/s")
    with pytest.raises(mp.Invalid, match="say which host"):
        app.limits.clear("*")
    assert {change.key for change in app.limits.changes()} == {None}


def test_a_bucket_that_is_full_has_nothing_to_clear(app, advance):
    ask = asked(app)
    ask.submit("acme")
    app.drain()
    advance(30)
    with pytest.raises(mp.NotFound, match=r"nothing to clear for 'acme'$"):
        app.limits.clear("ask", "acme")


def test_a_long_key_is_cleared_by_its_text_and_by_what_is_shown_of_it(app):
    ask = asked(app)
    for shorten in (False, True):
        job = ask.submit("x" * 300, ABSURD)
        app.drain()
        key = job.refresh().limit_key if shorten else "x" * 300
        app.limits.clear("ask", key)


def test_explain_names_the_command_where_a_key_owes_more_than_it_holds(app):
    ask = asked(app, burst=10)
    ask.submit("acme & co", 11)
    app.drain()
    following = ask.submit("acme & co")
    assert "limits clear" not in following.explain().text
    following.cancel()
    app.limits.clear("ask", "acme & co")
    ask.submit("acme & co", 5_000)
    app.drain()
    told = ask.submit("acme & co").explain().text
    assert re.search(r"it owes 83\.[0-9] minutes more than it holds", told)
    assert "`milepost limits clear ask 'acme & co'`" in told


def test_explain_of_a_queue_names_its_scope(app):
    app.limits.set("default", scope="queue", rate="1/s", burst=60)

    @app.job
    def plain() -> None: ...

    plain.submit_many([()] * 60)
    app.drain()
    app.limits.set("default", scope="queue", rate="1/s", burst=1)
    assert "limits clear" not in plain.submit().explain().text
    taken = Limit(rate=1, per_us=1_000_000, burst=9_000)
    app.client.run(buckets.take, "queue", "default", 900, limit=taken)
    told = plain.submit().explain().text
    assert "`milepost limits clear default --scope queue`" in told
