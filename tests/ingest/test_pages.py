"""Pages at the store: applied once, under a fence, or not at all; taken by one, and never lost."""

import pytest
from diamond_shop import OPTIONS, Shop

from milepost.errors import IllegalMove, LeaseLost
from milepost.store import jobs, pages, pipelines, workers
from milepost.store.driver import Call
from milepost.store.pages import NewPage


@pytest.fixture
def pipeline(app):
    return app.pipeline("stones", Shop(12), **{**OPTIONS, "partitions": 1})


def claimed(app, kind, *, worker="w"):
    """Hold one job of a kind, as a worker does."""
    app.client.run(workers.register, workers.NewWorker(id=worker, lease_us=1_000_000_000))
    [claim] = app.client.run(
        jobs.claim, worker_id=worker, line=jobs.lines(["default"]), most=1, kinds=[f"{kind} 1"]
    )
    return claim


@pytest.fixture
def held(app, pipeline):
    """A partition that a worker reads, and what its run is about."""
    run = pipeline.start()
    plan = claimed(app, "stones.plan")
    app.client.run(pipeline.target.prepare)
    app.client.run(pipelines.fix, plan, end=None, before=None, rules=None, digest="")
    work = [pipeline.job(1, run.id, {"low": 0, "high": 9}, 0), *pipeline.consolidating(run.id)]
    planned = {"bounds": [(0, "0", "9")], "counted": 2, "calls": 1}
    assert app.client.run(pipelines.seal, plan, work, **planned)
    # H-49: the plan and every partition are there together, and only once.
    assert not app.client.run(pipelines.seal, plan, work, **planned)
    return claimed(app, "stones.fetch"), app.client.run(pipelines.get, run.id)


def page(claim, number, *keys, done=False):
    records = dict.fromkeys(keys, (1, b"0" * 16, b"{}"))
    return NewPage(claim, number, b"{}", records, len(keys), done=done)


def land(app, pipeline, row, *given, fresh=False):
    return app.client.run(
        pages.land,
        given,
        row,
        check=pipeline.target.statement("check"),
        made_with=1,
        fresh=fresh,
    )


def test_a_page_landed_as_new_is_refused_whole_where_a_record_is_known(app, pipeline, held):
    claim, row = held
    assert land(app, pipeline, row, page(claim, 0, "a", "b"), fresh=True) == ["applied"]
    with pytest.raises(IllegalMove):
        land(app, pipeline, row, page(claim, 1, "b", "c"), fresh=True)
    assert app.client.run(pages.cursor, claim).pages == 1
    assert land(app, pipeline, row, page(claim, 1, "b", "c")) == ["applied"]
    found = app.client.run(landed, row.pipeline_id, ["a", "b", "c"])
    assert sorted(key for key, *_ in found) == ["a", "b", "c"]
    counted = app.client.run(pages.counts, row)
    assert (counted["fetched"], counted["new"], counted["unchanged"]) == (4, 3, 1)


def test_h_46_a_page_is_applied_once_and_every_repetition_is_counted(app, pipeline, held):
    """B's ProcessPage, SkipDuplicate and SkipCompleted (H-87)."""
    claim, row = held
    assert land(app, pipeline, row, page(claim, 0, "a", "b")) == ["applied"]
    assert land(app, pipeline, row, page(claim, 0, "a", "b")) == ["duplicate"]
    assert land(app, pipeline, row, page(claim, 7, "z")) == ["duplicate"]  # not the next one
    assert land(app, pipeline, row, page(claim, 1, "c", done=True)) == ["applied"]
    assert land(app, pipeline, row, page(claim, 1, "c", done=True)) == ["completed"]
    counted = app.client.run(pages.counts, row)
    assert (counted["fetched"], counted["pages"], counted["new"]) == (3, 2, 3)
    assert (counted["duplicates"], counted["completions"]) == (2, 1)
    notes = [e.detail for e in app.jobs.get(claim.id).history if e.move == "note"]
    assert notes == ["2 records", "1 records"]
    assert app.jobs.get(claim.id).as_spec("B") == "PartitionFetchingPages"


def test_h_88_an_attempt_that_was_overtaken_stores_nothing(app, pipeline, held):
    claim, row = held
    import msgspec

    stale = msgspec.structs.replace(claim, fence=claim.fence - 1)
    assert land(app, pipeline, row, page(stale, 0, "a"), page(claim, 0, "b")) == [
        "lost",
        "applied",
    ]
    found = app.client.run(landed, row.pipeline_id, ["a", "b"])
    assert [key for key, *_ in found] == ["b"]
    with pytest.raises(LeaseLost):
        app.client.run(pages.cursor, stale)


def test_h_48_the_last_page_closes_its_reading_in_the_same_transaction(app, pipeline, held):
    claim, row = held
    assert land(app, pipeline, row, page(claim, 0, "a", done=True)) == ["applied"]
    cursor = app.client.run(pages.cursor, claim)
    assert (cursor.pages, cursor.done) == (1, True)
    [state] = pipeline.run(row.run_id).partitions
    assert state.closed_at is not None
    assert state.state == "RUNNING"  # whoever takes it next has nothing left to read


def test_h_67_what_somebody_took_and_did_not_finish_is_not_done(app, pipeline, held, raw):
    claim, row = held
    land(
        app,
        pipeline,
        row,
        page(claim, 0, "a", "b"),
    )
    first = app.client.run(pages.take, claim, row, most=10)
    assert [key for key, *_ in first.records] == ["a", "b"]
    other = claimed_consolidator(app, raw, row.run_id)
    assert app.client.run(pages.take, other, row, most=10).pages == []  # nothing is free
    assert app.client.run(pages.unfinished, row) == 2  # and yet it is not done
    # Its taker is lost: the pages are free again.
    raw.execute(
        "UPDATE job SET state = 'RETRYING', move = 'retry', version = version + 1,"
        f" worker_id = NULL, errors = errors + 1 WHERE id = '{claim.id}'"
    )
    second = app.client.run(pages.take, other, row, most=10)
    assert len(second.records) == 2
    with pytest.raises(LeaseLost):
        app.client.run(pages.mark, claim, row, first, [], gone={}, remove="")
    app.client.run(pages.mark, other, row, second, [], gone={}, remove="")
    assert app.client.run(pages.unfinished, row) == 0


def landed(pipeline_id, keys):
    """Read records as the source gave them."""
    return (yield Call("raw_read", {"pipeline_id": pipeline_id, "key": keys}))


def claimed_consolidator(app, raw, run_id):
    """Let one consolidating job past its gate, by hand, and hold it."""
    [(job_id,)] = raw.execute(
        f"SELECT id FROM job WHERE run_id = '{run_id}' AND kind = 'stones.consolidate' LIMIT 1"
    )
    raw.execute(
        "UPDATE job SET state = 'QUEUED', move = 'open', version = version + 1"
        f" WHERE id = '{job_id}'"
    )
    return claimed(app, "stones.consolidate")
