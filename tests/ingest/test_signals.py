"""B's WORK_DONE and CONSOLIDATE: told of the moves themselves, with run and trace; only hints."""

from diamond_shop import OPTIONS, go

import milepost as mp
from milepost.store import events
from milepost.store.events import Cursor


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
