"""B's WORK_DONE and CONSOLIDATE: told of the moves themselves, with run and trace; only hints.

With `messages=` they are also messages of a channel, written by the moves that they tell of.
"""

import asyncio
import json
import sqlite3
from collections import Counter

import msgspec
import psycopg
import pytest
from diamond_shop import OPTIONS, Shop, go

import milepost as mp
from milepost.client import new_id
from milepost.ingest.timeline import timeline
from milepost.relay.broker import broker_at
from milepost.relay.message import CONTENT_TYPE, compose
from milepost.store import events, outbox
from milepost.store.events import Cursor

pytestmark = pytest.mark.in_turn

REFUSED = (sqlite3.Error, psycopg.Error)


def signals(app, since: Cursor):
    """What B's messages say that were told since."""
    found, place, lost = [], since, False
    while True:
        some, place, lost = app.client.run(events.follow, place, most=500)
        assert not lost
        found += some
        if not some:
            return [event for event in found if event.signal]


def test_h_87_each_partition_is_done_once_and_consolidation_called_once(app, shop):
    pipeline = app.pipeline("signals", shop, **OPTIONS)
    since = app.client.run(events.here)
    run = go(app, pipeline.start())
    told = signals(app, since)
    assert [event.signal for event in told] == [*["WORK_DONE"] * 3, "CONSOLIDATE"]
    assert {event.run_id for event in told} == {run.id}
    [trace] = {event.trace for event in told}
    assert trace.split("-")[1] == run.id.replace("-", "")
    assert sorted(event.ordinal for event in told[:3]) == [0, 1, 2]
    assert signals(app, app.client.run(events.here)) == []


def test_where_a_partition_failed_nobody_is_called_to_consolidate(app, shop):
    def away(partition, _cursor):
        if partition.ordinal == 1:
            raise mp.Fail("away")

    shop.before_fetch = away
    pipeline = app.pipeline("signals", shop, **OPTIONS)
    since = app.client.run(events.here)
    go(app, pipeline.start())
    told = signals(app, since)
    assert [event.signal for event in told] == ["WORK_DONE"] * 3
    assert sorted(event.to_state for event in told) == ["FAILED", "SUCCEEDED", "SUCCEEDED"]


def test_h_45_nothing_depends_on_anybody_hearing_them(app, shop):
    pipeline = app.pipeline("unheard", shop, **OPTIONS)
    assert go(app, pipeline.start()).state == mp.RunState.SUCCEEDED


def away(partition, _cursor):
    """Fail one of the three partitions."""
    if partition.ordinal == 1:
        raise mp.Fail("away")


def sent(app, run):
    """Read the messages of a run as they would be told, by their types."""
    messages = app.client.run(outbox.signals, run.id)
    bodies = [msgspec.json.decode(app.client.run(compose, one).body) for one in messages]
    told: dict[str, list] = {"WORK_DONE": [], "CONSOLIDATE": []}
    for body in bodies:
        told[body["data"]["type"]].append(body)
    return told


def test_h_87_messages_tell_of_each_partition_and_of_consolidation_in_bs_fields(app, shop, raw):
    pipeline = app.pipeline("told", shop, **OPTIONS, messages="bus")
    run = go(app, pipeline.start())
    told = sent(app, run)
    trace = run.id.replace("-", "")
    done = sorted((body["data"] for body in told["WORK_DONE"]), key=lambda d: d["partitionId"])
    assert [body["type"] for body in told["WORK_DONE"]] == ["milepost.pipeline.work_done"] * 3
    assert [data["partitionId"] for data in done] == ["partition-0", "partition-1", "partition-2"]
    assert sum(data["recordsProcessed"] for data in done) == 30
    for data in done:
        assert (data["runId"], data["traceId"]) == (run.id, trace)
        assert (data["status"], data["errorMessage"]) == ("completed", None)
        assert data["workerId"]
        assert data["startedAt"] <= data["completedAt"]
    [called] = told["CONSOLIDATE"]
    assert (called["type"], called["subject"]) == ("milepost.pipeline.consolidate", run.id)
    assert called["data"] == {"type": "CONSOLIDATE", "runId": run.id, "traceId": trace}
    assert [one.stands for one in app.channels.messages("bus")] == ["waiting"] * 4
    again = run.record.version
    with pytest.raises(REFUSED, match="by the move that it tells of"):
        raw.execute(
            "INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue,"
            f" kind, state, created_at, due_at) SELECT 'run_{run.id}_{again}', machine, subject_id,"
            f" {again}, n + 1, line, channel, tenant, queue, kind, state, created_at, due_at"
            f" FROM outbox WHERE id = '{called['id']}'"
        )


def test_messages_of_a_failed_partition_say_why_and_nobody_is_called_to_consolidate(app, shop):
    shop.before_fetch = away
    pipeline = app.pipeline("told", shop, **OPTIONS, messages="bus", channel="people")
    first = go(app, pipeline.start())
    told = sent(app, first)
    done = {body["data"]["partitionId"]: body["data"] for body in told["WORK_DONE"]}
    failed = done["partition-1"]
    assert (failed["status"], failed["errorMessage"]) == ("failed", "away")
    assert (len(done), told["CONSOLIDATE"]) == (3, [])
    # A forced run reads nothing and consolidates; a resumed one reads the partition that failed.
    forced = sent(app, go(app, pipeline.start(force=True)))
    assert {word: len(bodies) for word, bodies in forced.items()} == {
        "WORK_DONE": 0,
        "CONSOLIDATE": 1,
    }
    shop.before_fetch = lambda *_: None
    resumed = sent(app, go(app, first.resume()))
    assert {word: len(bodies) for word, bodies in resumed.items()} == {
        "WORK_DONE": 1,
        "CONSOLIDATE": 1,
    }
    # The end of each run goes to its own channel, and to no other.
    assert {one.machine for one in app.channels.messages("people")} == {"run"}
    ids = [one.id for one in app.channels.messages("bus")]
    assert len(ids) == len(set(ids)) == 6


def test_the_timeline_says_sent_when_a_receiver_has_it_and_not_before(app, shop):
    def words(run):
        states = [event.state for event in timeline(run)]
        return Counter(state for state in states if "WORK_DONE" in state or "CONSOLIDATE" in state)

    silent = go(app, app.pipeline("silent", Shop(9), **OPTIONS).start())
    assert not words(silent)
    assert "sent" not in str(timeline(silent))
    run = go(app, app.pipeline("told", shop, **OPTIONS, messages="bus").start())
    assert words(run) == {"WORK_DONE waiting": 3, "CONSOLIDATE waiting": 1}
    app.channels.ack("bus", [one.id for one in app.channels.messages("bus")])
    assert words(run) == {"WORK_DONE sent": 3, "CONSOLIDATE sent": 1}


def test_they_arrive_on_each_broker_once_each(app, shop, broker_server):
    subject, broker = f"bus-{new_id()}", broker_at(broker_server.url)
    app.channel("bus", broker=broker, subject=subject)
    run = go(app, app.pipeline("told", shop, **OPTIONS, messages="bus").start())
    app.relay_once()
    assert [one.stands for one in app.channels.messages("bus")] == ["delivered"] * 4

    async def read():
        found = {}
        async with asyncio.timeout(60):
            while len(found) < 4:
                for one in await broker.receive(subject, name="reader", most=8, seconds=0.5):
                    found[one.message.id] = one.message
                    await one.acknowledge()
        assert not await broker.receive(subject, name="reader", most=8, seconds=0.1)
        await broker.close()
        return found

    arrived = asyncio.run(read())
    assert set(arrived) == {one.id for one in app.channels.messages("bus")}
    assert {one.headers["content-type"] for one in arrived.values()} == {CONTENT_TYPE}
    told = [json.loads(one.data)["data"] for one in arrived.values()]
    assert Counter(data["type"] for data in told) == {"WORK_DONE": 3, "CONSOLIDATE": 1}
    assert {data["runId"] for data in told} == {run.id}


def test_a_name_that_no_channel_can_have_is_refused(app, shop):
    with pytest.raises(mp.Invalid, match="messages="):
        app.pipeline("told", shop, **OPTIONS, messages="")
