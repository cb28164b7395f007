"""A run that did not end well, or that never came, is told once, in B's texts, to a channel."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import pytest
from diamond_shop import OPTIONS, T0, go

import milepost as mp
from milepost.relay.message import compose
from milepost.store import outbox, watermarks
from tests.relay.receivers import receiving

pytestmark = pytest.mark.in_turn


def messages(app):
    """What waits in the channel, as it would be told."""
    found = app.client.run(outbox.listing, "people", state="waiting", most=10)
    return [app.client.run(compose, message) for message in found]


def test_a_failed_run_is_told_once_in_bs_two_texts(app, shop):
    def away(partition, _cursor):
        if partition.ordinal == 1:
            raise mp.Fail("away")

    shop.before_fetch = away
    pipeline = app.pipeline("told", shop, **OPTIONS, channel="people")
    run = go(app, pipeline.start())
    app.maintain_once()
    [event] = messages(app)
    data = msgspec.json.decode(event.body)["data"]
    assert data["alert"] == {
        "title": "Consolidation Failed",
        "text": f"Run {run.id} failed. Watermark NOT advanced.",
        "severity": "error",
    }
    assert data["error"]["cause"] == "incomplete"
    assert "Watermark NOT advanced" in event.told["error"]
    assert (event.told["subject"], event.told["severity"]) == ("Consolidation Failed", "error")


def test_a_run_that_was_cancelled_is_not_told_as_a_failure(app, shop):
    run = app.pipeline("told", shop, **OPTIONS, channel="people").start()
    run.cancel("tried out")
    app.drain()
    [event] = messages(app)
    assert (event.told["subject"], event.told["severity"]) == ("Run Cancelled", "warning")
    assert msgspec.json.decode(event.body)["data"]["alert"]["text"] == (
        f"Run {run.id} was cancelled. Watermark NOT advanced."
    )


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
def test_the_mail_of_a_failed_run_says_consolidation_failed_and_successes_stay_silent(app, shop):
    with receiving() as receiver:
        address = f"json://127.0.0.1:{receiver.port}/mail"
        app.channel("people", people=[address], on="failure")
        pipeline = app.pipeline("told", shop, **OPTIONS, channel="people")
        go(app, pipeline.start())

        def away(*_):
            raise mp.Fail("away")

        shop.before_fetch = away
        run = go(app, pipeline.start(full=True))
        app.relay_once()
    assert run.state == mp.RunState.FAILED
    [request] = receiver.got
    assert msgspec.json.decode(request.body)["title"] == "Consolidation Failed"


def test_h_44_a_lost_compare_and_set_is_a_critical_alert(app, shop):
    pipeline = app.pipeline("told", shop, **OPTIONS, channel="people")
    go(app, pipeline.start())
    run = pipeline.start()
    pipeline.override_watermark(T0, reason="somebody else")
    go(app, run)
    told = [msgspec.json.decode(event.body)["data"] for event in messages(app)]
    alerts = [data["alert"] for data in told if "alert" in data]
    assert [alert["severity"] for alert in alerts] == ["critical"]


def test_h_76_a_schedule_resumes_what_failed_and_then_goes_on(app, shop, advance):
    broken = [True]

    def away(partition, _cursor):
        if partition.ordinal == 1 and broken:
            broken.clear()
            raise mp.Fail("away")

    shop.before_fetch = away
    pipeline = app.pipeline("nightly", shop, **OPTIONS)
    app.schedule(pipeline, "0 2 * * *")
    app.drain()
    for _ in range(3):
        advance(86_400)
        app.drain(timeout=20)
    third, second, first = app.runs.list(kind="nightly")
    assert (first.state, first.record.cause) == (mp.RunState.FAILED, "incomplete")
    assert (second.state, second.record.resumes) == (mp.RunState.SUCCEEDED, first.id)
    assert pipeline.run(second.id).window == pipeline.run(first.id).window
    assert (third.state, third.record.mode) == (mp.RunState.SUCCEEDED, "incremental")


def stale(app):
    """What the channel tells of pipelines that are not fresh."""
    told = [msgspec.json.decode(event.body)["data"] for event in messages(app)]
    return [data["alert"] for data in told if data["kind"].endswith(".stale")]


def test_h_87_a_pipeline_that_is_not_fresh_is_told_once_until_it_is_again(app, shop, advance):
    pipeline = app.pipeline("watched", shop, **OPTIONS, channel="people", fresh_within=3600)
    go(app, pipeline.start())
    advance(3000)
    app.drain()
    assert stale(app) == []
    advance(700)
    for _ in range(3):
        app.maintain_once()
        app.drain()
    [alert] = stale(app)
    assert (alert["title"], alert["severity"]) == ("Pipeline Stale", "warning")
    assert alert["text"].startswith("Pipeline watched is not fresh. Watermark 20")
    assert alert["text"].endswith("older than fresh_within=3600.")
    go(app, pipeline.start())
    advance(3700)
    app.drain()
    app.drain()
    assert len(stale(app)) == 2


def test_a_pipeline_whose_first_run_never_ended_well_is_told_too(app, shop, advance):
    def away(_partition, _cursor):
        raise mp.Fail("away")

    shop.before_fetch = away
    pipeline = app.pipeline("never", shop, **OPTIONS, channel="people", fresh_within=60)
    go(app, pipeline.start())
    advance(61)
    app.drain()
    [alert] = stale(app)
    assert "Watermark None" in alert["text"]


def test_of_two_who_look_at_once_one_tells(app, database, shop, advance):
    app.pipeline("both", shop, **OPTIONS, fresh_within=60).start()
    advance(61)
    with ThreadPoolExecutor(4) as pool, ExitStack() as opened:
        drivers = [opened.enter_context(database.driver()) for _ in range(4)]
        looked = [pool.submit(one.run, watermarks.alert, actor="test") for one in drivers]
        found = [look.result(20) for look in looked]
    assert sorted(found) == [0, 0, 0, 1]
    assert len(app.jobs.list(kind="both.stale")) == 1


def test_fresh_within_is_a_number_of_seconds(app, shop):
    with pytest.raises(mp.Invalid, match="fresh_within=0"):
        app.pipeline("wrong", shop, **OPTIONS, fresh_within=0)
