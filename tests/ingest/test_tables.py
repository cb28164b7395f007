"""A table is one pipeline's: by its own statements, by a row in the store, until it is released."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier

import msgspec
import pytest

import milepost as mp
from milepost.store import tables


class Painted(msgspec.Struct):
    id: int
    price: str
    colour: str


class Priced(msgspec.Struct):
    id: int
    colour: str
    price: str


class Shelf(mp.Source):
    """Gives the records it holds, each as `made` of the pipeline's own type."""

    def __init__(self, made, *records):
        self.made = made
        self.records = list(records)

    def count(self, window, low, high):
        return len(self.records) if low <= 0 < high else 0

    def fetch(self, window, partition, cursor):
        return mp.Page(list(self.records) if partition.covers(0) else [])


class Paints(Shelf):
    def map(self, raw) -> Painted:
        return msgspec.convert(raw, self.made)


class Prices(Shelf):
    def map(self, raw) -> Priced:
        return msgspec.convert(raw, self.made)


OPTIONS = {"key": "id", "partition_by": "at", "retries": 0}
ONE = {"id": 1, "price": "9.50", "colour": "red"}


@pytest.fixture
def elsewhere(tmp_path):
    """Another app of the same process, on a store of its own."""
    other = mp.App(f"sqlite:///{tmp_path}/elsewhere.db")
    yield other
    other.close()


def run(app, pipeline, **given):
    found = pipeline.start(**given)
    app.drain()
    return found.refresh()


def test_two_apps_of_one_process_write_their_own_columns(app, raw, elsewhere):
    paints = app.pipeline("things", Paints(Painted, ONE), **OPTIONS)
    prices = elsewhere.pipeline("things", Prices(Priced, ONE), **OPTIONS)
    for host, pipeline in ((app, paints), (elsewhere, prices)):
        assert run(host, pipeline).state == "SUCCEEDED"
        [record] = pipeline.records()
        assert (record.price, record.colour) == ("9.50", "red")
    [stored] = raw.execute("SELECT price, colour FROM things")
    assert tuple(stored) == ("9.50", "red")


@pytest.fixture
def paints(app):
    return app.pipeline("paints", Paints(Painted, ONE), **OPTIONS, table="things")


@pytest.fixture
def prices(app):
    return app.pipeline("prices", Prices(Priced, ONE), **OPTIONS, table="things")


def stored(raw, *columns):
    rows = raw.execute(f"SELECT {', '.join(columns)} FROM things WHERE removed_at IS NULL")
    return sorted(map(tuple, rows))


def test_a_second_pipeline_on_a_table_is_refused_in_words(app, raw, paints, prices):
    assert run(app, paints).state == "SUCCEEDED"
    with pytest.raises(mp.IllegalMove) as refused:
        prices.start()
    for said in ("'paints'", "'prices'", "milepost pipelines release things"):
        assert said in str(refused.value)
    assert stored(raw, "price", "colour") == [("9.50", "red")]
    assert run(app, paints).state == "SUCCEEDED"


def test_names_that_differ_in_case_alone_are_one_table(app, paints):
    run(app, paints)
    other = app.pipeline("prices", Prices(Priced, ONE), **OPTIONS, table="Things")
    with pytest.raises(mp.IllegalMove, match="'things' is one of pipeline 'paints'"):
        other.start()


def test_of_two_that_start_at_once_one_has_the_table(app, prices):
    paints = app.pipeline("paints", Paints(Painted, ONE), **OPTIONS, table="things")
    runs = [paints.start(), prices.start()]  # neither has claimed it yet
    app.drain()
    states = sorted(one.refresh().state for one in runs)
    assert states == ["FAILED", "SUCCEEDED"]
    loser = next(one for one in runs if one.state == "FAILED")
    [error] = loser.errors
    assert "milepost pipelines release things" in error.message


def test_before_its_first_run_a_pipeline_says_that_it_has_no_table(app, paints):
    for look in (paints.count, lambda: list(paints.records())):
        with pytest.raises(mp.NotFound, match=r"'things' is not there: .* first run"):
            look()


def test_two_programs_that_claim_a_table_at_once_agree_on_one(app, paints, prices):
    ids = {one.name: (one.start(), one.row.id)[1] for one in (paints, prices)}
    both = Barrier(2)

    def claimed(name, table):
        both.wait()
        try:
            app.client.run(tables.claim, ids[name], name, table, exists=False)
        except mp.IllegalMove as error:
            return str(error)
        return None

    for number in range(10):
        table = f"t{number}"
        with ThreadPoolExecutor(2) as threads:
            said = list(threads.map(claimed, ids, [table, table]))
        assert said.count(None) == 1
        [holding] = [one for one in app.client.run(tables.holdings) if one.table == table]
        loser = next(name for name in ids if name != holding.pipeline)
        words = next(text for text in said if text)
        assert f"one of pipeline {holding.pipeline!r}, and pipeline {loser!r}" in words


def test_a_released_table_is_taken_over_whole(app, raw, paints, prices):
    """Nothing of the one before is taken for the new one's, even if its versions are higher."""
    paints.source.records = [{**ONE, "id": 1}, {**ONE, "id": 2}]
    run(app, paints)
    assert paints.release(reason="renamed") == "paints"
    prices.source.records = [{**ONE, "price": "1.00"}]
    assert run(app, prices).state == "SUCCEEDED"
    assert stored(raw, "id", "price", "colour") == [(1, "1.00", "red")]
    with pytest.raises(mp.IllegalMove, match="one of pipeline 'prices'"):
        paints.start()


def test_a_table_is_not_released_while_its_pipeline_writes_to_it(app, paints):
    started = paints.start()
    app.drain()
    again = paints.start()
    with pytest.raises(mp.IllegalMove, match=f"run {again.id} of pipeline 'paints' is under way"):
        paints.release(reason="now")
    app.drain()
    assert started.refresh().state == again.refresh().state == "SUCCEEDED"
    assert paints.release(reason="now") == "paints"
    with pytest.raises(mp.IllegalMove, match="is free"):
        paints.release(reason="again")


def test_a_release_is_on_the_record(app, paints, prices):
    run(app, paints)
    paints.release(reason="it is called prices now")
    run(app, prices)
    first, second = app.client.run(tables.holdings)
    assert (first.table, first.pipeline, first.reason) == (
        "things",
        "paints",
        "it is called prices now",
    )
    assert first.actor
    assert first.claimed_at <= first.released_at <= second.claimed_at
    assert (second.pipeline, second.released_at, second.actor) == ("prices", None, None)


def test_a_run_that_goes_on_does_not_write_to_a_table_that_is_another_s(app, paints, prices, raw):
    """Force, retry, replay and restore work on what was read before, without a plan."""
    paints.source.records = [{"id": 7}]  # goes into quarantine
    assert run(app, paints).counts.quarantined == 1
    paints.release(reason="renamed")
    run(app, prices)
    paints.source.map = lambda raw: Painted(id=raw["id"], price="?", colour="?")
    again = paints.quarantine.replay()
    app.drain()
    assert again.refresh().state == "FAILED"
    assert stored(raw, "id", "price", "colour") == [(1, "9.50", "red")]


def test_a_pipeline_takes_back_a_table_that_nobody_took(app, paints):
    run(app, paints)
    paints.release(reason="by mistake")
    assert run(app, paints).state == "SUCCEEDED"
    assert [record.id for record in paints.records()] == [1]


def test_a_table_that_is_new_to_a_pipeline_is_filled_by_a_full_run_alone(app, database, paints):
    """Only what changes would be in it; with the records it had before it looks complete."""
    run(app, paints)
    moved = mp.App(database.url)
    elsewhere = moved.pipeline("paints", Paints(Painted, ONE), **OPTIONS, table="moved")
    refused = run(moved, elsewhere)
    assert refused.state == "FAILED"
    assert "remap()" in refused.errors[0].message
    broken = elsewhere.start(full=True)
    elsewhere.source.fetch, fetch = None, elsewhere.source.fetch
    moved.drain()
    assert broken.refresh().state == "FAILED"
    elsewhere.source.fetch = fetch
    assert run(moved, elsewhere).state == "FAILED"  # it was claimed, and never filled
    assert run(moved, elsewhere, full=True).state == "SUCCEEDED"
    assert run(moved, elsewhere).state == "SUCCEEDED"
    assert [record.id for record in elsewhere.records()] == [1]
    moved.close()


def test_a_table_that_is_new_to_a_pipeline_is_filled_by_a_remap(app, database, paints):
    run(app, paints)
    moved = mp.App(database.url)
    elsewhere = moved.pipeline("paints", Paints(Painted, ONE), **OPTIONS, table="moved")
    made = elsewhere.remap()
    moved.drain()
    assert made.refresh().state == "SUCCEEDED"
    assert run(moved, elsewhere).state == "SUCCEEDED"
    assert [record.id for record in elsewhere.records()] == [1]
    moved.close()


def test_a_table_that_somebody_dropped_is_filled_by_a_full_run_alone(app, raw, paints):
    run(app, paints)
    raw.execute("DROP TABLE things")
    assert run(app, paints).state == "FAILED"
    assert run(app, paints, full=True).state == "SUCCEEDED"
    assert [record.id for record in paints.records()] == [1]


class Doubted(Paints):
    """Maps nothing with the number 2 until it is told to; fails while `broken`."""

    broken = False
    doubts = True

    def fetch(self, window, partition, cursor):
        if self.broken:
            raise ValueError("broken")
        return super().fetch(window, partition, cursor)

    def map(self, raw) -> Painted:
        if raw["id"] == 2 and self.doubts:
            raise mp.Reject("not yet")
        return super().map(raw)


@pytest.mark.parametrize("how", ["replay", "resume"])
def test_a_run_that_goes_on_does_not_make_a_dropped_table_anew(app, raw, how):
    """It would hold the few records of this run, and the next incremental one would go on."""
    source = Doubted(Painted, ONE, {**ONE, "id": 2})
    pipeline = app.pipeline("paints", source, **OPTIONS, table="things")
    run(app, pipeline)
    source.broken = how == "resume"
    failed = run(app, pipeline) if source.broken else None
    source.broken = source.doubts = False
    raw.execute("DROP TABLE things")
    source.records = [{**ONE, "id": 3}]
    again = failed.resume() if failed else pipeline.quarantine.replay()
    app.drain()
    assert again.refresh().state == "FAILED"
    assert "start(full=True)" in again.errors[0].message
    assert run(app, pipeline).state == "FAILED"
    made = pipeline.remap()
    app.drain()
    assert made.refresh().state == "SUCCEEDED"
    assert {1, 2} <= {record.id for record in pipeline.records()}
    assert run(app, pipeline).state == "SUCCEEDED"


def test_whoever_sets_the_watermark_before_the_first_run_reads_from_there(app, paints):
    """Nothing was landed, so the table lacks nothing."""
    failed = paints.start()
    failed.cancel("not all of it")
    paints.override_watermark(datetime(2024, 1, 1, tzinfo=UTC), reason="older ones are elsewhere")
    first = run(app, paints)
    assert (first.mode, first.state) == ("incremental", "SUCCEEDED")


def test_a_table_of_another_store_is_not_taken_without_a_word(app, raw, paints):
    """Two stores may share a database, and tables lie outside of both."""
    run(app, paints)
    raw.execute("DELETE FROM pipeline_table")
    refused = run(app, paints)
    assert refused.state == "FAILED"
    assert paints.release(reason="the store is new") is None
    assert run(app, paints, full=True).state == "SUCCEEDED"
    assert [record.id for record in paints.records()] == [1]
