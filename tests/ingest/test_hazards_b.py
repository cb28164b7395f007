"""Where spec B, as it is written, loses records: each hazard by its number."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import pytest
from diamond_shop import OPTIONS, T0, Diamond, Shop, go, held, offered

import milepost as mp
from milepost.store import buckets, budgets, rules, watermarks
from milepost.store.rules import Limit
from milepost.store.watermarks import micros_of

pytestmark = pytest.mark.in_turn


class BrokenError(Exception):
    """The source is away."""


def break_partition(shop, ordinal, *, after=0):
    """Let a partition fail once it has given so many pages."""
    seen = []

    def before(partition, _cursor):
        if partition.ordinal == ordinal:
            seen.append(1)
            if len(seen) > after:
                raise BrokenError("away")

    shop.before_fetch = before
    return seen


def mend(shop):
    shop.before_fetch = lambda _partition, _cursor: None


# Runs


def test_h_14_a_failed_run_has_a_state_and_an_end_in_every_query(app, shop, pipeline, raw):
    break_partition(shop, 1)
    run = go(app, pipeline.start())
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "incomplete")
    assert run.record.finished_at is not None
    row = (
        "SELECT completed_workers, failed_workers, completed_at, watermark_after FROM run_metadata"
    )
    assert raw.execute(row) == [(2, 1, None, None)]
    assert raw.value("SELECT count(*) FROM runs WHERE finished_at IS NULL") == 0


def test_h_15_force_publishes_a_partial_run_and_leaves_the_gap_open(app, shop, pipeline):
    """H-74: the watermark never passes what was not read."""
    break_partition(shop, 1, after=1)
    failed = go(app, pipeline.start())
    assert pipeline.watermark is None
    assert pipeline.target.name == "diamonds"
    forced = go(app, pipeline.start(force=True))
    assert (forced.state, forced.mode) == (mp.RunState.SUCCEEDED, "forced")
    assert forced.record.rerun_of == failed.id
    assert 0 < len(held(pipeline)) < 30
    assert pipeline.watermark is None
    assert [gap.ordinal for gap in pipeline.gaps] == [1]
    assert forced.report["complete"] is False
    # The gap is read again: from its cursor by a retry, which closes it and moves the watermark.
    mend(shop)
    retried = go(app, failed.retry(1))
    assert (retried.state, retried.mode) == (mp.RunState.SUCCEEDED, "retry")
    assert held(pipeline) == offered(shop)
    assert (pipeline.gaps, pipeline.watermark) == ([], failed.window.end)


def test_a_run_that_was_never_planned_is_not_forced(app, shop, pipeline):
    """It has read nothing: the forced run could only fail."""
    shop.count = lambda window, low, high: 1 / 0
    failed = go(app, pipeline.start())
    assert (failed.state, failed.record.cause) == (mp.RunState.FAILED, "plan")
    for force in (failed.force, lambda: pipeline.start(force=True)):
        with pytest.raises(mp.IllegalMove, match="never planned"):
            force()
    del shop.count
    assert go(app, failed.resume()).state == mp.RunState.SUCCEEDED


def test_h_16_the_last_partition_to_end_may_be_the_one_that_fails(app, shop, pipeline):
    break_partition(shop, 2, after=1)
    run = go(app, pipeline.start())
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "incomplete")
    assert run.steps[2].counts == {"CANCELLED": 3}  # consolidation was skipped


@pytest.mark.both_stores
def test_h_17_a_watermark_that_was_moved_meanwhile_fails_the_run(app, shop, pipeline, raw):
    """H-44, H-73: compared and set in the transaction that ends the run, or nothing of both."""
    go(app, pipeline.start())
    shop.put(3, price=33)
    run = pipeline.start()
    pipeline.override_watermark(T0, reason="somebody else")
    go(app, run)
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "watermark_conflict")
    assert pipeline.watermark == T0
    row = f"SELECT completed_at, watermark_after FROM run_metadata WHERE run_id = '{run.id}'"
    assert raw.execute(row) == [(None, None)]
    assert not any(entry.move == "finish" for entry in run.history)


@pytest.mark.both_stores
def test_h_44_the_run_and_its_watermark_end_together(app, shop, pipeline, raw):
    run = go(app, pipeline.start())
    [entry] = app.client.run(watermarks.entries, "diamonds")
    assert (entry.move, entry.run_id, entry.from_mark) == ("advance", run.id, None)
    assert run.record.finished_at is not None
    known = app.client.run(watermarks.find, "diamonds")
    assert known.last_run_id == run.id
    assert known.last_run_completed_at <= run.record.finished_at
    assert raw.value("SELECT watermark_after IS NOT NULL FROM run_metadata") in (True, 1)


def test_h_45_what_the_last_end_should_have_done_maintenance_does(app, shop, pipeline):
    """The trigger is state: a message that nobody sent is not missed."""
    run = pipeline.start()
    app.drain()
    for _ in range(5):
        app.maintain_once()
        app.drain()
    assert run.refresh().state == mp.RunState.SUCCEEDED
    assert [e.move for e in run.history].count("advance") == 2


def test_h_65_a_run_consolidates_and_counts_its_own_records(app, shop, pipeline):
    break_partition(shop, 1)
    first = go(app, pipeline.start())
    mend(shop)
    second = go(app, pipeline.start())
    assert second.counts.fetched == 30
    assert second.counts.new + second.counts.unchanged == 30
    assert first.counts.fetched < 30
    assert first.counts.pending == first.counts.fetched  # nobody else's work
    assert held(pipeline) == offered(shop)


# Windows


def test_h_69_the_end_of_the_window_is_fixed_before_the_first_read(app, shop, pipeline):
    began = datetime.now(UTC) - timedelta(milliseconds=2)

    def before(partition, _cursor):
        if partition.ordinal == 2:
            shop.put(0, price=7)  # read already, and changes while the run goes on
            mend(shop)

    shop.before_fetch = before
    run = go(app, pipeline.start())
    first_read = min(window.end for window, *_ in shop.calls)
    assert began <= run.window.end == first_read == pipeline.watermark
    go(app, pipeline.start())
    assert held(pipeline) == offered(shop)


def test_h_70_what_committed_late_is_found_by_the_overlap(app, shop, pipeline):
    go(app, pipeline.start())
    shop.put(3, price=33, at=pipeline.watermark - timedelta(seconds=600))
    run = go(app, pipeline.start())
    assert held(pipeline)[3] == 33
    assert run.about.overlap == 900_000_000  # recorded with the run
    shop.put(4, price=44, at=pipeline.watermark - timedelta(seconds=6_000))
    go(app, pipeline.start())
    assert held(pipeline)[4] == 40  # later than promised


def test_h_70_a_margin_keeps_away_from_what_is_not_committed_yet(app, shop):
    pipeline = app.pipeline("careful", shop, **OPTIONS, margin=60)
    run = go(app, pipeline.start())
    assert run.window.end < datetime.now(UTC) - timedelta(seconds=59)


def test_h_71_the_watermark_is_the_least_of_what_was_closed(app, shop, pipeline):
    break_partition(shop, 0)
    run = go(app, pipeline.start())
    closed = [part.closed_at is not None for part in run.partitions]
    assert closed == [False, True, True]
    assert pipeline.watermark is None
    mend(shop)
    complete = go(app, pipeline.start())  # a later run that covers all of it closes the gap
    assert pipeline.gaps == []
    assert pipeline.watermark == complete.window.end


def test_h_72_the_start_belongs_to_a_window_and_the_end_does_not(app, shop, pipeline):
    go(app, pipeline.start())
    mark = pipeline.watermark
    shop.put(5, price=55, at=mark)  # at the bound itself
    run = go(app, pipeline.start())
    assert held(pipeline)[5] == 55
    shop.put(6, price=66, at=run.window.end)
    go(app, pipeline.start())
    assert held(pipeline)[6] == 66
    assert run.window.covers(run.window.start)
    assert not run.window.covers(run.window.end)


@pytest.mark.both_stores
def test_h_73_one_run_at_a_time_and_never_back(app, shop, pipeline, raw):
    first = pipeline.start()
    assert pipeline.start().id == first.id
    go(app, first)
    mark = pipeline.watermark
    with pytest.raises(Exception, match="never goes back"):
        raw.execute("UPDATE pipeline SET mark = mark - 1, version = version + 1, move = 'advance'")
    pipeline.override_watermark(T0, reason="read a year again")
    assert pipeline.watermark == T0 < mark
    for bare in (
        "mark = NULL",
        "mark = mark - 1",
        "mark = mark + 1",
        "mark = 0, move = 'override'",
    ):
        with pytest.raises(Exception, match="watermark"):
            raw.execute(f"UPDATE pipeline SET {bare}")
    assert pipeline.watermark == T0
    *_, entry = app.client.run(watermarks.entries, "diamonds")
    assert (entry.move, entry.reason) == ("override", "read a year again")


def test_h_73_an_older_run_that_ends_last_does_not_set_it_back(app, shop, pipeline):
    break_partition(shop, 1)
    older = go(app, pipeline.start())
    mend(shop)
    newer = go(app, pipeline.start())
    resumed = go(app, older.resume())
    assert (resumed.state, resumed.record.cause) == (mp.RunState.FAILED, "watermark_conflict")
    assert pipeline.watermark == newer.window.end


def test_h_75_what_cannot_be_mapped_is_kept_with_its_reason_and_replayed(app, shop):
    class Picky(Shop):
        refuses = True

        def map(self, raw: dict) -> Diamond:
            if self.refuses and raw["id"] == 3:
                raise mp.Reject("no threes")
            if self.refuses and raw["id"] == 4:
                raise ValueError("broken")
            return super().map(raw)

    shop = Picky(30)
    pipeline = app.pipeline("picky", shop, **OPTIONS)
    run = go(app, pipeline.start())
    assert (run.state, run.counts.quarantined, len(pipeline.quarantine)) == ("SUCCEEDED", 2, 2)
    [three, four] = pipeline.quarantine
    assert (three.key, three.type, three.reason) == ("3", "Reject", "no threes")
    assert (four.type, four.reason) == ("ValueError", "broken")
    assert msgspec.json.decode(three.payload)["id"] == 3
    assert pipeline.watermark == run.window.end
    shop.refuses = False
    replayed = go(app, pipeline.quarantine.replay())
    assert (replayed.state, replayed.mode) == (mp.RunState.SUCCEEDED, "replay")
    assert (len(pipeline.quarantine), held(pipeline)) == (0, offered(shop))
    assert pipeline.watermark == run.window.end
    assert run.counts.quarantined == 2  # what was, stays
    with pytest.raises(mp.IllegalMove, match="empty"):
        pipeline.quarantine.replay()


def test_h_75_too_many_in_quarantine_fail_the_run(app):
    class Wrong(Shop):
        def map(self, raw: dict) -> Diamond:
            raise KeyError("carat")

    pipeline = app.pipeline("wrong", Wrong(30), **OPTIONS)
    run = go(app, pipeline.start())
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "finalizer")
    assert pipeline.watermark is None
    assert len(pipeline.quarantine) == 30
    assert "replay" in run.errors[0].message
    # It is mended, and the run goes on: nothing is read again.
    pipeline.source.map = lambda raw: Shop.map(pipeline.source, raw)
    read = len(pipeline.source.fetched)
    assert go(app, pipeline.quarantine.replay()).state == mp.RunState.SUCCEEDED
    assert pipeline.watermark is None
    again = go(app, run.resume())
    assert again.state == mp.RunState.SUCCEEDED, again.errors
    assert (pipeline.watermark, held(pipeline)) == (run.window.end, offered(pipeline.source))
    assert len(pipeline.source.fetched) == read


def test_a_finalizer_is_tried_as_often_as_the_pipeline_says_and_resumed(app, shop, advance):
    """B's consolidator: after that the run has failed, and its watermark stays (H-34)."""
    pipeline = app.pipeline("diamonds", shop, **OPTIONS, retries=2)
    tried = []

    async def broken(ctx, phase, note=pipeline.note):
        await note(ctx, phase)
        if phase == "UpdatingRunMetadata":
            tried.append(ctx.attempt)
            raise BrokenError("no report today")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "note", broken)
        run = go(app, pipeline.start())
        while not run.done:
            advance(60)
            go(app, run)
    assert (run.state, run.record.cause, tried) == (mp.RunState.FAILED, "finalizer", [1, 2, 3])
    assert (pipeline.watermark, pipeline.dataset_version) == (None, 0)
    again = go(app, run.resume())
    assert (again.state, pipeline.watermark) == (mp.RunState.SUCCEEDED, run.window.end)


def test_h_75_a_record_without_key_or_version_is_kept_too(app, shop):
    shop.data[3]["updated_at"] = T0.isoformat()
    pipeline = app.pipeline("odd", shop, **OPTIONS)
    fetch = shop.fetch

    def odd(window, partition, cursor):
        page = fetch(window, partition, cursor)
        return mp.Page([{**r, "id": None} if r["id"] == 3 else r for r in page.records], page.next)

    shop.fetch = odd
    run = go(app, pipeline.start())
    assert (run.counts.quarantined, len(held(pipeline))) == (1, 29)
    [kept] = pipeline.quarantine
    assert "no id" in kept.reason


def test_h_76_a_failed_run_goes_on_with_the_same_bounds(app, shop, pipeline):
    break_partition(shop, 1, after=1)
    failed = go(app, pipeline.start())
    mend(shop)
    shop.fetched.clear()
    resumed = go(app, failed.resume())
    assert (resumed.state, resumed.mode) == (mp.RunState.SUCCEEDED, "full")
    assert resumed.window == failed.window
    assert pipeline.watermark == failed.window.end
    # Only the failed partition was read, from where it had come to.
    assert {partition.ordinal for _, partition, _ in shop.fetched} == {1}
    assert shop.fetched[0][2] is not None
    assert resumed.counts.fetched == 30
    assert held(pipeline) == offered(shop)


def test_h_76_a_window_is_never_larger_than_allowed(app, shop):
    pipeline = app.pipeline("small-steps", shop, **OPTIONS, max_window=3600)
    go(app, pipeline.start())
    pipeline.override_watermark(T0, reason="far behind")
    run = go(app, pipeline.start())
    assert run.window.end == T0 + timedelta(hours=1) == pipeline.watermark


def test_h_76_small_windows_close_a_large_gap_step_by_step(app, shop, pipeline):
    """H-74: what they have read is no gap any more, and the watermark goes on."""
    go(app, pipeline.start())
    pipeline.override_watermark(T0, reason="far behind")
    break_partition(shop, 0)
    failed = go(app, pipeline.start())
    assert (failed.state, len(pipeline.gaps)) == (mp.RunState.FAILED, 1)
    mend(shop)
    own = pipeline.options
    pipeline.options = {**own, "max_window": 3600}
    for hour in (1, 2, 3):
        assert go(app, pipeline.start()).state == mp.RunState.SUCCEEDED
        assert pipeline.watermark == T0 + timedelta(hours=hour)
        [gap] = pipeline.gaps
        assert (gap.root_id, gap.start_mark) == (failed.id, micros_of(pipeline.watermark))
    pipeline.options = own
    run = go(app, pipeline.start())
    assert (pipeline.gaps, pipeline.watermark) == ([], run.window.end)
    assert pipeline.watermark > failed.window.end


def test_h_77_a_watermark_that_was_lost_is_an_error_and_no_full_run(app, shop, pipeline):
    go(app, pipeline.start())
    pipeline.override_watermark(None, reason="lost")
    with pytest.raises(mp.IllegalMove, match="watermark is missing"):
        pipeline.start()
    assert go(app, pipeline.start(full=True)).state == mp.RunState.SUCCEEDED


def test_a_backfill_may_be_the_first_run(app, shop, pipeline):
    backfill = go(app, pipeline.start(since=T0, until=T0 + timedelta(minutes=5)))
    assert (backfill.mode, pipeline.count()) == ("backfill", 5)
    run = go(app, pipeline.start())
    assert (run.mode, run.state) == ("full", mp.RunState.SUCCEEDED)
    assert held(pipeline) == offered(shop)


def test_a_start_beside_a_run_of_another_kind_is_refused(app, shop, pipeline):
    go(app, pipeline.start())
    incremental = pipeline.start()
    assert pipeline.start().id == incremental.id
    for other in ({"full": True}, {"since": T0}, {"since": T0, "until": T0 + timedelta(days=1)}):
        with pytest.raises(mp.IllegalMove, match=f"{incremental.id}.*incremental"):
            pipeline.start(**other)
    go(app, incremental)
    full = pipeline.start(full=True)
    assert pipeline.start().id == pipeline.start(full=True).id == full.id
    go(app, full)
    backfill = pipeline.start(since=T0)
    assert pipeline.start(since=T0).id == backfill.id
    with pytest.raises(mp.IllegalMove, match="backfill"):
        pipeline.start()


def test_a_schedule_waits_for_a_run_of_another_kind(app, shop, pipeline, advance):
    app.schedule(pipeline, "0 2 * * *")
    go(app, pipeline.start())

    def away(_partition, _cursor):
        raise mp.Later(3 * 86_400)

    shop.before_fetch = away
    backfill = pipeline.start(since=T0)
    app.drain()
    advance(86_400)
    app.drain()
    [opening] = app.jobs.list(kind="diamonds.start")
    assert (opening.state, backfill.refresh().state) == (mp.JobState.WAITING, mp.RunState.RUNNING)
    backfill.cancel("enough")
    mend(shop)
    advance(120)
    app.drain()
    assert opening.refresh().state == mp.JobState.SUCCEEDED
    assert pipeline.run(opening.result).mode == "incremental"


def test_a_full_run_that_failed_does_not_hold_the_watermark(app, shop, pipeline):
    go(app, pipeline.start())
    break_partition(shop, 1)
    assert go(app, pipeline.start(full=True)).state == mp.RunState.FAILED
    mend(shop)
    before = pipeline.watermark
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED
    assert pipeline.watermark == run.window.end > before
    assert pipeline.gaps == []


def test_an_upper_bound_before_the_start_fails_in_words(app, shop, pipeline):
    go(app, pipeline.start())
    shop.upper_bound = lambda: T0
    mark = pipeline.watermark
    run = go(app, pipeline.start())
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "plan")
    assert "went back" in str(run.errors)
    assert pipeline.watermark == mark
    assert all(w.start is None or w.start <= w.end for w, _, _ in shop.calls)


@pytest.mark.parametrize(
    ("measure", "bound", "said"),
    [
        ("time", 1_700_000_000, "must be a datetime"),
        ("sequence", None, "returns the number"),
        ("sequence", T0, "must be a whole number"),
        ("sequence", 2**63, "must be a whole number"),
    ],
)
def test_h_71_an_upper_bound_of_another_measure_moves_no_watermark(app, shop, measure, bound, said):
    """The store's clock, taken for a number, is beyond all that a sequence will ever say."""
    shop.measure = measure
    shop.upper_bound = lambda: bound
    pipeline = app.pipeline("diamonds", shop, **OPTIONS, retries=0)
    run = go(app, pipeline.start())
    assert (run.state, pipeline.watermark) == (mp.RunState.FAILED, None)
    assert said in str(run.errors)


@pytest.mark.parametrize("circle", [1, 2, 7])
def test_a_source_that_goes_round_in_circles_fails_in_words(app, shop, circle):
    def fetch(window, partition, cursor):
        number = 0 if cursor is None else cursor
        return mp.Page([shop.data[number]], (number + 1) % circle)

    shop.fetch = fetch
    pipeline = app.pipeline("circles", shop, **{**OPTIONS, "partitions": 1})
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.FAILED
    assert any("never end" in (part.error or "") for part in run.partitions)


def test_a_feed_that_waits_for_the_end_of_a_window_is_not_read_for_ever(app, shop):
    """What changed lately is read up to a time to come: some feeds say nothing until then."""
    fetch, looks = shop.fetch, []

    def waiting(window, partition, cursor):
        if window.start is None:
            return fetch(window, partition, cursor)
        looks.append(cursor)
        assert len(looks) < 20, "it is read for ever"
        return mp.Page([], "caught up")

    pipeline = app.pipeline("changes", shop, **OPTIONS, retries=0)
    go(app, pipeline.start())
    del shop.data[3]
    shop.fetch = waiting
    run = go(app, pipeline.start(full=True))
    assert run.state == mp.RunState.FAILED
    assert "the same records and the same cursor again" in str(run.errors)
    assert 3 in held(pipeline)


# Pages


def test_h_47_an_attempt_goes_on_at_the_cursor_of_the_one_before(app, shop):
    """H-48, H-87: nothing is read twice, and nothing is counted twice."""
    pipeline = app.pipeline("again", shop, **OPTIONS, retries=2, retry_delay=0)
    fail = iter([False, False, True, False, False, False, True] + [False] * 50)

    def before(_partition, _cursor):
        if next(fail):
            raise BrokenError("away")

    shop.before_fetch = before
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED
    asked = [(partition.ordinal, cursor) for _, partition, cursor in shop.fetched]
    assert len(asked) == len(set(map(str, asked)))
    assert (run.counts.fetched, run.counts.pages) == (30, len(asked))
    assert sum(part.records for part in run.partitions) == 30


class Numbers(mp.OffsetSource):
    """Offsets over a list that moves while it is read."""

    again = 2

    def __init__(self, rows):
        self.rows = rows
        self.after_first = lambda: None

    def count(self, window, low, high):
        return len([r for r in self.rows if low <= r["price"] < high])

    def fetch(self, window, partition, cursor):
        rows = [r for r in self.rows if partition.low <= r["price"] < partition.high]
        page = rows[cursor or 0 : (cursor or 0) + 5]
        self.after_first()
        return page


def test_h_78_offsets_over_a_list_that_moves(app):
    rows = [{"id": n, "price": n, "updated_at": T0} for n in range(40)]
    source = Numbers(rows)

    def shift():
        source.after_first = lambda: None
        for _ in range(3):
            rows.append(rows.pop(0))  # what was read moves to the end, and three are skipped

    source.after_first = shift
    pipeline = app.pipeline("offsets", source, **{**OPTIONS, "partitions": 1})
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED, run.errors
    assert {r["id"] for r in pipeline.records()} == set(range(40))
    assert run.counts.fetched > 40  # some were read again


def test_h_79_a_short_page_is_not_the_end(app, shop):
    fetch = shop.fetch

    def short(window, partition, cursor):
        page = fetch(window, partition, cursor and cursor[0])
        if cursor is None or not cursor[1]:
            return mp.Page([], [cursor and cursor[0], 1])  # nothing, and yet not the end
        return mp.Page(page.records, None if page.next is None else [page.next, 0])

    shop.fetch = short
    pipeline = app.pipeline("short", shop, **OPTIONS)
    go(app, pipeline.start())
    assert held(pipeline) == offered(shop)


def test_h_80_an_estimate_does_not_stop_a_partition(app, shop):
    shop.count = lambda window, low, high: 1  # far too low
    pipeline = app.pipeline("low", shop, **OPTIONS)
    run = go(app, pipeline.start())
    assert (run.counts.counted, run.counts.fetched) == (1, 30)
    assert held(pipeline) == offered(shop)


def test_h_81_a_key_that_moves_while_it_is_read_is_caught_by_the_next_window(app, shop, pipeline):
    def before(partition, cursor):
        if partition.ordinal == 2 and cursor is None:
            shop.put(29, price=1)  # to a range that is read already, out of one that is not
            mend(shop)

    shop.before_fetch = before
    go(app, pipeline.start())
    assert 29 not in held(pipeline)
    go(app, pipeline.start())
    assert held(pipeline) == offered(shop)


@pytest.mark.both_stores
def test_h_84_the_order_of_runs_is_the_databases_and_no_clients_clock(app, shop, pipeline, ahead):
    """One run was started by a host whose clock is an hour ahead."""
    with ahead(hours=1):
        go(app, pipeline.start())
    gone = 1
    del shop.data[gone]
    full = go(app, pipeline.start(full=True))
    assert (full.state, full.counts.removed) == (mp.RunState.SUCCEEDED, 1)
    assert gone not in held(pipeline)
    break_partition(shop, 1)
    failed = go(app, pipeline.start(full=True))
    assert failed.state == mp.RunState.FAILED
    mend(shop)
    assert pipeline.start(force=True).about.root_id == failed.id


@pytest.mark.parametrize("what", ["force", "resume"])
@pytest.mark.both_stores
def test_who_loses_a_race_to_go_on_with_a_run_is_told_which_one_is_under_way(
    app, shop, pipeline, what
):
    break_partition(shop, 1)
    failed = go(app, pipeline.start())
    together = threading.Barrier(4)

    def attempt(_):
        together.wait(20)
        try:
            return getattr(pipeline.run(failed.id), what)().id
        except mp.IllegalMove as error:
            return str(error)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(attempt, range(4)))
    assert sum("is under way" in answer for answer in answers) == 3


def test_the_finalizer_asks_for_nothing_beyond_tomorrow_with_the_pipelines_own_retries(app, shop):
    """H-69: a window's end is fixed, and near: no source is asked for the year 9987."""
    pipeline = app.pipeline("own", shop, **OPTIONS, retries=1, retry_delay=0)
    go(app, pipeline.start())
    del shop.data[1]
    shop.fetched.clear()
    tries = []

    def before(_partition, _cursor):
        if shop.fetched and shop.fetched[-1][1].is_last and shop.fetched[-1][1].is_first:
            tries.append(1)
            raise BrokenError("away")

    shop.before_fetch = before
    run = go(app, pipeline.start(full=True))
    assert (run.state, len(tries)) == (mp.RunState.FAILED, 2)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert max(window.end for window, _, _ in shop.fetched) < tomorrow


def test_the_finalizer_goes_on_at_its_cursor(app, shop):
    pipeline = app.pipeline("kept", shop, **{**OPTIONS, "partitions": 1}, retries=9, retry_delay=0)
    now = datetime.now(UTC)
    for number in range(30):
        shop.put(number, price=number, at=now - timedelta(seconds=60))
    go(app, pipeline.start())
    del shop.data[1]
    count = iter(range(1000))

    def before(_partition, _cursor):
        if shop.confirming and next(count) % 3 == 2:
            raise BrokenError("away")

    shop.confirming = False
    enter = pipeline._finalizer.confirmer.confirm

    async def confirm(ctx, row):
        shop.confirming = True
        return await enter(ctx, row)

    pipeline._finalizer.confirmer.confirm = confirm
    shop.before_fetch = before
    shop.fetched.clear()
    run = go(app, pipeline.start(full=True))
    assert (run.state, run.counts.removed) == (mp.RunState.SUCCEEDED, 1)
    # Two passes of six pages, each read once, after six pages of the run itself.
    assert len(shop.fetched) == 18


@pytest.mark.parametrize("ends", ["an attempt", "the run"])
def test_h_81_a_finalizer_that_goes_on_removes_nothing_that_it_found_there(app, shop, ends):
    """It was marked again as missing, behind the cursor of the look that had found it."""
    tries = 9 if ends == "an attempt" else 0
    options = {**OPTIONS, "partitions": 1, "removal_limit": 1.0}
    pipeline = app.pipeline("kept", shop, **options, retries=tries, retry_delay=0)
    go(app, pipeline.start())
    fetch, pages = shop.fetch, []

    def changing(window, partition, cursor):
        if window.start is None and cursor is None:
            for number in range(9):  # after the window's end: this run does not see them
                shop.put(number, price=number * 10)
        pages.append(window.start is not None)
        if pages.count(True) == 4 and pages[-1]:  # the second page of the second look
            raise BrokenError("away")
        return fetch(window, partition, cursor)

    del shop.data[29]
    shop.fetch = changing
    run = go(app, pipeline.start(full=True))
    if ends == "the run":
        assert (run.state, run.record.cause) == (mp.RunState.FAILED, "finalizer")
        run = go(app, run.resume())
    assert (run.state, run.counts.removed) == (mp.RunState.SUCCEEDED, 1)
    assert held(pipeline).keys() == offered(shop).keys()


@pytest.mark.parametrize("late", [0, 60])
def test_h_81_what_changed_while_a_full_run_read_is_not_removed(app, shop, pipeline, late):
    """Nor what was committed late, with a time before the window's end (H-70)."""
    go(app, pipeline.start())
    gone, moved = 1, 29

    def before(partition, cursor):
        if partition.ordinal == 2 and cursor is None:
            shop.put(moved, price=1, at=datetime.now(UTC) - timedelta(seconds=late))
            mend(shop)

    del shop.data[gone]
    shop.before_fetch = before
    full = go(app, pipeline.start(full=True))
    assert (full.state, full.counts.removed) == (mp.RunState.SUCCEEDED, 1)
    assert moved in held(pipeline)
    following = go(app, pipeline.start())
    assert following.counts.removed == 0
    assert held(pipeline) == offered(shop)


def test_h_81_a_record_that_changes_in_every_run_is_not_removed(app, shop, pipeline):
    """No window ever sees it: each time it has changed once more before it is read."""
    go(app, pipeline.start())
    gone, hot = 1, 29
    del shop.data[gone]
    shop.before_fetch = lambda _partition, cursor: cursor or shop.put(hot, price=1)
    for full in (True, False, False):
        run = go(app, pipeline.start(full=full))
        assert run.state == mp.RunState.SUCCEEDED
        assert {gone, hot} <= set(held(pipeline))  # nothing can be told for certain
    mend(shop)
    run = go(app, pipeline.start())
    assert (run.counts.removed, held(pipeline)) == (1, offered(shop))


@pytest.mark.parametrize("version", ["updated_at", None])
def test_h_83_a_worker_that_wakes_late_writes_nothing(app, shop, version):
    """It was paused with its records in hand: others have done its work since, and more."""
    options = {**OPTIONS, "version": version, "removal_limit": 1.0}
    pipeline = app.pipeline("late", shop, **options, retries=0)
    write, writes = pipeline.target.write, []

    def seen(*given, **named):
        writes.append((given, named))
        return write(*given, **named)

    pipeline.target.write = seen
    go(app, pipeline.start())
    shop.put(3, price=33)
    del shop.data[4]
    go(app, pipeline.start(full=True))
    assert held(pipeline) == offered(shop)
    given, named = writes[0]
    app.client.run(write, *given, **named)
    assert held(pipeline) == offered(shop)


def test_h_83_an_older_version_does_not_overwrite(app, shop, pipeline):
    go(app, pipeline.start())
    shop.put(3, price=33)
    go(app, pipeline.start())
    shop.put(3, price=30, at=T0)  # a replica that lags
    run = go(app, pipeline.start(full=True))
    assert held(pipeline)[3] == 33
    assert run.counts.unchanged == 30


def test_h_83_without_a_version_what_was_read_last_counts(app, shop):
    pipeline = app.pipeline("unversioned", shop, key="id", partition_by="price", partitions=2)
    go(app, pipeline.start())
    shop.put(3, price=33)
    go(app, pipeline.start())
    shop.put(3, price=30, at=T0)
    go(app, pipeline.start(full=True))
    assert held(pipeline) == offered(shop)


def test_h_84_what_is_gone_is_removed_softly_within_a_share_and_comes_back(app, shop, raw):
    pipeline = app.pipeline("removing", shop, **OPTIONS, removal_limit=0.5)
    go(app, pipeline.start())
    for number in (1, 2):
        del shop.data[number]
    go(app, pipeline.start())
    assert len(held(pipeline)) == 30  # an incremental run says nothing of what it does not see
    run = go(app, pipeline.start(full=True))
    assert (run.counts.removed, run.counts.unchanged) == (2, 28)
    assert held(pipeline) == offered(shop)
    assert raw.value("SELECT count(*) FROM removing WHERE removed_at IS NOT NULL") == 2
    assert pipeline.restore(run) == 2
    assert len(held(pipeline)) == 30
    shop.put(1, price=10, at=T0)
    run = go(app, pipeline.start(full=True))
    assert set(held(pipeline)) == set(shop.data)
    shop.put(2, price=20, at=T0 + timedelta(minutes=2))
    go(app, pipeline.start(full=True))  # what comes back, just as it was, is back
    assert held(pipeline) == offered(shop)


def test_h_84_more_than_the_safe_share_is_not_removed(app, shop):
    shop = Shop(60)
    pipeline = app.pipeline("safe", shop, **OPTIONS, removal_limit=0.2)
    go(app, pipeline.start())
    mark = pipeline.watermark
    for number in range(20):
        del shop.data[number]
    run = go(app, pipeline.start(full=True))
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "finalizer")
    assert "nothing was removed" in run.errors[0].message
    assert (len(held(pipeline)), pipeline.watermark) == (60, mark)


def test_h_84_much_that_is_gone_is_marked_page_by_page(app, shop, monkeypatch):
    monkeypatch.setattr("milepost.ingest.finalize.SOME", 3)
    pipeline = app.pipeline("paged", shop, **OPTIONS, removal_limit=1.0)
    go(app, pipeline.start())
    for number in (*range(1, 7), 12, 20, 29):
        del shop.data[number]
    assert go(app, pipeline.start(full=True)).counts.removed == 9
    assert held(pipeline) == offered(shop)


def test_h_85_the_dataset_has_a_version_that_grows_at_the_end(app, shop, pipeline):
    assert pipeline.dataset_version == 0
    break_partition(shop, 1)
    go(app, pipeline.start())
    assert pipeline.dataset_version == 0
    mend(shop)
    go(app, pipeline.start())
    assert pipeline.dataset_version == 1


def test_h_89_one_budget_for_everybody_and_a_pause_is_no_failure(app, shop, advance):
    class BusyError(Exception):
        retry_after = 40

    told = iter([True])

    def before(_partition, _cursor):
        if next(told, False):
            raise BusyError

    shop.before_fetch = before
    pipeline = app.pipeline("busy", shop, **OPTIONS, retries=0)
    run = pipeline.start()
    app.drain()
    # Whoever else calls this source hears of the pause.
    assert app.client.run(budgets.standing, "busy").blocked > 30
    advance(41)
    go(app, run)
    assert run.state == mp.RunState.SUCCEEDED
    found = [app.jobs.get(part.job_id).record for part in run.partitions]
    assert sum(job.errors for job in found) == 0
    assert sum(job.polls for job in found) >= 1


def test_h_89_calls_are_handed_out_one_by_one(app):
    limit = Limit(rate=6, per_us=60_000_000, burst=1)
    take = partial(app.client.run, buckets.take, "source", "shared", limit=limit)
    assert [round(take(), -1) for _ in range(3)] == [0, 10, 20]
    # What is free too late is not reserved: whoever comes back would have to wait again.
    assert [round(take(within=5), -1) for _ in range(3)] == [30, 30, 30]
    assert round(take(after=100), -1) == 100
    assert round(take(), -1) == 110


class Sleepless:
    """Moves the store's clock where calls of sources sleep; `naps` are taken all the same."""

    def __init__(self, advance, naps=0.0):
        self.advance, self.naps = advance, naps
        self.seconds = []

    def __getattr__(self, name):
        return getattr(asyncio, name)

    async def sleep(self, wait):
        self.seconds.append(wait)
        await asyncio.sleep(self.naps)
        self.advance(wait)


@pytest.fixture
def sleepless(app, advance, monkeypatch):
    app.settings = replace(app.settings, lease=9_999.0)
    made = Sleepless(advance)
    monkeypatch.setattr("milepost.ingest.calls.asyncio", made)
    return made


@pytest.fixture
def slept(sleepless):
    """The seconds that calls of sources have slept; the store's clock has moved instead."""
    return sleepless.seconds


def finish(app, run, advance):
    for _ in range(20):
        app.drain()
        if run.refresh().done:
            break
        advance(60)
    assert run.state == mp.RunState.SUCCEEDED


def test_h_89_the_rate_in_force_acts_from_the_next_page_on(app, shop, slept, advance):
    pipeline = app.pipeline("rated", shop, **OPTIONS, rate="100/s")

    def before(_partition, _cursor):
        assert max(slept) < 0.1
        mend(shop)
        slow = Limit(rate=6, per_us=60_000_000, burst=1)
        app.client.run(rules.change, ("source", "rated"), slow, actor="me", reason="it groans")

    shop.before_fetch = before
    finish(app, pipeline.start(), advance)
    assert max(slept) > 5
    rule = app.client.run(rules.rules)["source", "rated"]
    assert rule.declared == Limit(rate=100, per_us=1_000_000, burst=1)
    assert (rule.set_by, rule.reason) == ("me", "it groans")


def test_h_89_a_pipeline_without_a_rate_takes_the_one_that_is_set(app, shop, slept):
    pipeline = app.pipeline("free", shop, **OPTIONS)
    slow = Limit(rate=1, per_us=1_000_000, burst=1)
    app.client.run(rules.change, ("source", "free"), slow, actor="me", reason=None)
    assert go(app, pipeline.start()).state == mp.RunState.SUCCEEDED
    assert sum(slept) > 5


def test_h_89_a_rate_slower_than_a_worker_waits_gets_on(app, shop, slept, advance):
    """Calls that came back later paid anew each time, and a plan began anew: for ever."""
    pipeline = app.pipeline("slow", shop, **OPTIONS, rate="6/m")
    finish(app, pipeline.start(), advance)


def test_h_89_counts_that_a_plan_makes_at_once_take_turns(app, shop, sleepless, advance):
    """The third of them found that it would wait too long, and the plan began anew: for ever."""
    sleepless.naps = 0.03  # while one sleeps the others ask
    pipeline = app.pipeline("slow", shop, **OPTIONS, rate="6/m")
    run = pipeline.start()
    finish(app, run, advance)
    [plan] = [job for job in app.jobs.list() if job.kind == "slow.plan"]
    assert [entry.move for entry in plan.history] == ["create", "claim", "succeed"]


def test_h_90_credentials_are_renewed_once_and_the_call_repeated(app, shop):
    class RefusedError(Exception):
        status_code = 401

    logins = []
    shop.valid = False

    def before(_partition, _cursor):
        if not shop.valid:
            raise RefusedError

    def login():
        logins.append(1)
        shop.valid = True

    shop.before_fetch, shop.login = before, login
    pipeline = app.pipeline("login", shop, **OPTIONS, retries=0)
    run = go(app, pipeline.start())
    assert (run.state, len(logins)) == (mp.RunState.SUCCEEDED, 1)


def test_h_75_what_the_same_run_reads_again_and_can_use_leaves_the_quarantine(app, shop, pipeline):
    shop.map = lambda raw: 1 / 0 if raw.get("note") == "bad" else Shop.map(shop, raw)
    shop.put(12, price=120, at=T0, note="bad")
    break_partition(shop, 1, after=1)
    run = go(app, pipeline.start())
    assert go(app, run.force()).state == mp.RunState.SUCCEEDED
    assert [kept.key for kept in pipeline.quarantine] == ["12"]
    mend(shop)
    shop.put(12, price=189, at=T0 + timedelta(hours=1))  # where it has not come to yet
    again = go(app, run.retry(1))
    assert (again.state, again.about.root_id) == (mp.RunState.SUCCEEDED, run.id)
    assert (len(pipeline.quarantine), held(pipeline)) == (0, offered(shop))


# Removals that are too many


def _lose(app, shop, pipeline, count):
    go(app, pipeline.start())
    for number in range(count):
        del shop.data[number]
    return go(app, pipeline.start(full=True))


@pytest.mark.parametrize("size", [1, 4, 10, 30])
def test_h_84_the_removal_limit_holds_at_every_size(app, size):
    shop = Shop(size)
    pipeline = app.pipeline("small", shop, **OPTIONS, retries=0)
    refused = _lose(app, shop, pipeline, size)
    assert refused.state == mp.RunState.FAILED
    assert "pipelines removals confirm small" in str(refused.errors)
    assert (pipeline.count(), len(pipeline.removals)) == (size, size)


def test_incremental_runs_go_on_after_a_removal_was_refused(app, shop, pipeline):
    _lose(app, shop, pipeline, 20)
    shop.put(77, price=77)
    run = go(app, pipeline.start())
    assert (run.state, run.counts.removed) == (mp.RunState.SUCCEEDED, 0)
    assert pipeline.watermark == run.window.end
    assert pipeline.count() == 31


def test_a_run_whose_removals_were_refused_can_be_forced(app, shop, pipeline):
    refused = _lose(app, shop, pipeline, 20)
    forced = go(app, pipeline.run(refused.id).force())
    assert (forced.state, pipeline.count()) == (mp.RunState.SUCCEEDED, 30)


def test_an_operator_confirms_removals_on_the_record(app, shop, pipeline):
    refused = _lose(app, shop, pipeline, 20)
    assert pipeline.removals.list(limit=2) == ["0", "1"]
    assert pipeline.removals.confirm(reason="the supplier closed a branch") == 20
    [decision] = pipeline.removals.decisions
    assert (decision.decision, decision.records, decision.run_id) == ("confirmed", 20, refused.id)
    assert decision.reason == "the supplier closed a branch"
    assert decision.actor
    run = go(app, pipeline.start())
    assert (run.state, run.counts.removed) == (mp.RunState.SUCCEEDED, 20)
    assert held(pipeline) == offered(shop)
    with pytest.raises(mp.IllegalMove, match="no removal"):
        pipeline.removals.confirm(reason="again")


def test_an_operator_who_changes_his_mind_leaves_both_decisions_on_the_record(app, shop, pipeline):
    _lose(app, shop, pipeline, 20)
    pipeline.removals.confirm(reason="gone")
    assert (len(pipeline.removals), pipeline.removals.list()) == (0, [])  # nothing waits
    assert pipeline.removals.dismiss(reason="they are back tomorrow") == 20
    told = {(one.decision, one.reason) for one in pipeline.removals.decisions}
    assert told == {("confirmed", "gone"), ("dismissed", "they are back tomorrow")}
    run = go(app, pipeline.start())
    assert (run.state, run.counts.removed, pipeline.count()) == (mp.RunState.SUCCEEDED, 0, 30)


def test_a_refused_run_is_resumed_after_the_decision(app, shop, pipeline):
    refused = _lose(app, shop, pipeline, 20)
    assert go(app, refused.resume()).state == mp.RunState.FAILED
    pipeline.removals.dismiss(reason="the supplier's page was broken")
    assert len(pipeline.removals) == 0
    [last] = app.runs.list(kind="diamonds", limit=1)
    resumed = go(app, pipeline.run(last.id).resume())
    assert (resumed.state, pipeline.count()) == (mp.RunState.SUCCEEDED, 30)
    again = go(app, pipeline.start(full=True))
    assert (again.state, len(pipeline.removals)) == (mp.RunState.FAILED, 20)


def test_a_record_that_comes_back_is_not_removed_by_a_decision_on_its_absence(app, shop, pipeline):
    kept = {number: dict(shop.data[number]) for number in range(20)}
    _lose(app, shop, pipeline, 20)
    pipeline.removals.confirm(reason="gone")
    shop.data.update({7: kept[7]})
    shop.put(7, price=7)
    run = go(app, pipeline.start())
    assert (run.state, run.counts.removed) == (mp.RunState.SUCCEEDED, 19)
    assert held(pipeline) == offered(shop)
