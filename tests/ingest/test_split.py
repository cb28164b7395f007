"""H-80: a partition that turns out larger than was thought is read by several."""

from datetime import timedelta

from diamond_shop import OPTIONS, T0, go, held, offered

import milepost as mp


def grown(shop):
    """Let the source grow tenfold behind the plan: nobody counted these."""
    for number in range(30, 330):
        shop.put(number, price=number % 10 * 10 + 1, at=T0 + timedelta(minutes=number))


def test_h_80_a_partition_that_outgrows_its_estimate_is_split(app, shop):
    def before(_partition, _cursor):
        shop.before_fetch = lambda *_: None
        grown(shop)

    shop.before_fetch = before
    pipeline = app.pipeline("grown", shop, **OPTIONS, page=5)
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED
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


def test_h_80_one_key_cannot_be_cut_and_is_read_whole(app, shop):
    def before(_partition, _cursor):
        shop.before_fetch = lambda *_: None
        for number in range(30, 130):
            shop.put(number, price=0, at=T0)

    shop.before_fetch = before
    pipeline = app.pipeline("one-key", shop, **OPTIONS, page=5)
    run = go(app, pipeline.start())
    assert held(pipeline) == offered(shop)
    assert run.counts.pending == 0
