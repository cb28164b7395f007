"""H-80: a partition that turns out larger than was thought is read by several."""

from datetime import timedelta

import msgspec
import pytest
from diamond_shop import OPTIONS, T0, Shop, go, held, offered
from growing_shop import Growing, GrowingOffsets, everything, kept, options

import milepost as mp
from milepost.store import outbox, pipelines
from milepost.testing import everywhere
from tests.support.prove import PROVING

pytestmark = pytest.mark.in_turn


def grown(shop):
    """Let the source grow tenfold behind the plan: nobody counted these."""
    for number in range(30, 330):
        shop.put(number, price=number % 10 * 10 + 1, at=T0 + timedelta(minutes=number))


def test_h_80_a_partition_that_outgrows_its_estimate_is_split(app, shop):
    def before(_partition, _cursor):
        shop.before_fetch = lambda *_: None
        grown(shop)

    shop.before_fetch = before
    pipeline = app.pipeline("grown", shop, **OPTIONS, page=5, messages="bus")
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED
    told = [one.machine for one in app.client.run(outbox.signals, run.id)]
    assert told == [*["job"] * 6, "run"]
    assert held(pipeline) == offered(shop)
    assert pipeline.watermark == run.window.end
    assert pipeline.gaps == []
    first, more = run.partitions[0], run.partitions[3:]
    assert len(more) == 3
    assert first.low == more[0].low
    assert first.high == more[-1].high
    assert [part.high for part in more[:-1]] == [part.low for part in more[1:]]
    assert first.records < 100  # it stopped where it was found to be too large
    assert max(part.records for part in more) < 200
    assert {part.closed_at is None for part in run.partitions} == {False}


def test_h_80_a_part_that_fails_keeps_the_watermark_and_is_resumed(app, shop):
    broken = [True]

    def before(partition, _cursor):
        if len(shop.data) == 30:
            grown(shop)
        if partition.ordinal > 3 and broken:
            broken.clear()
            raise mp.Fail("away")

    shop.before_fetch = before
    pipeline = app.pipeline("grown", shop, **OPTIONS, page=5)
    run = go(app, pipeline.start())
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "incomplete")
    assert (len(pipeline.gaps), pipeline.watermark) == (1, None)
    again = go(app, run.resume())
    assert again.state == mp.RunState.SUCCEEDED
    assert held(pipeline) == offered(shop)
    assert (pipeline.gaps, pipeline.watermark) == ([], run.window.end)


def test_h_80_one_key_cannot_be_cut_and_is_read_whole(app):
    shop = Shop()

    def crowded(count):
        for number in range(count):
            shop.put(number, price=7, at=T0)

    def before(_partition, _cursor):
        shop.before_fetch = lambda *_: None
        crowded(100)

    crowded(10)
    shop.before_fetch = before
    pipeline = app.pipeline("one-key", shop, **OPTIONS, page=5)
    run = go(app, pipeline.start())
    assert held(pipeline) == offered(shop)
    assert [part.records for part in run.partitions if part.records] == [100]
    assert (pipeline.gaps, pipeline.watermark) == ([], run.window.end)


def test_h_88_who_lost_the_lease_splits_nothing(app, shop):
    """The job that reads now is another attempt; it has the cursor, and goes on."""
    refused = []

    def split(claim, portions, *, codec, split=pipelines.split):
        stale = msgspec.structs.replace(claim, fence=claim.fence - 1)
        try:
            yield from split(stale, portions, codec=codec)
        except mp.LeaseLost:
            refused.append(claim)
        return False

    def before(_partition, _cursor):
        shop.before_fetch = lambda *_: None
        grown(shop)

    shop.before_fetch = before
    pipeline = app.pipeline("grown", shop, **OPTIONS, page=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "split", split)
        run = go(app, pipeline.start())
    assert refused
    assert len(run.partitions) == 3
    assert held(pipeline) == offered(shop)


@pytest.mark.parametrize("source", [Growing, GrowingOffsets])
@pytest.mark.parametrize("by", ["price", "weight", "listed_at", "day"])
def test_h_80_whatever_the_key_and_the_cursor_a_split_reads_everything_once(
    app, tmp_path, source, by
):
    pipeline = app.pipeline("growing", source(by, tmp_path / "grown"), **options(by))
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED, run.errors
    assert kept(pipeline) == everything()
    assert (pipeline.gaps, pipeline.watermark) == ([], run.window.end)
    parts = run.partitions
    assert len(parts) > 3
    assert {part.closed_at is None for part in parts} == {False}
    assert joined(parts, parts[0].low) == parts[2].high


def joined(parts, at):
    """Go from part to part, the smallest at each place, as far as they join."""
    while found := [part.high for part in parts if part.low == at]:
        at = min(found)
    return at


@pytest.mark.parametrize("source", [Growing, GrowingOffsets])
def test_h_80_a_worker_killed_as_it_splits_loses_nothing(database, tmp_path, source, monkeypatch):
    if not PROVING:  # only what splits is where it crashes
        monkeypatch.setattr(everywhere, "HANDLERS", "partition_end")
        monkeypatch.setattr(everywhere, "_matters", lambda *_: False)
    mark = tmp_path / "grown"
    app = mp.App(database.url, lease=2, heartbeat=0.5)
    told = {**options("listed_at"), "partitions": 2, "consolidators": 1, "retry_delay": 0}
    pipeline = app.pipeline("splitting", source("listed_at", mark), **told, retries=5)

    def start():
        mark.unlink(missing_ok=True)
        pipeline.start()

    def check():
        [run] = app.runs.list(kind="splitting")
        run = pipeline.run(run.id).refresh()
        assert run.state == mp.RunState.SUCCEEDED, run.errors
        assert kept(pipeline) == everything()
        assert (pipeline.gaps, pipeline.watermark) == ([], run.window.end)
        ordinals = [part.ordinal for part in run.partitions]
        assert len(ordinals) == len(set(ordinals)) > 2  # it was split, once for each
        assert run.counts.pending == 0

    crashes = mp.testing.crash_everywhere(app, start, check)
    assert crashes >= 2  # before and after the commit
    print(f"{crashes} crashes")
    app.close()
