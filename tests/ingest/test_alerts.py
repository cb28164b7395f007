"""A run that did not end well is told once, through its channel, in B's two texts."""

import msgspec

import milepost as mp
from conftest import OPTIONS, T0, go
from milepost.relay.message import compose
from milepost.store import outbox


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
