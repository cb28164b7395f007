"""`pipeline.remap()`: the target is made anew from what was landed, and no source is asked."""

from datetime import datetime, timedelta
from itertools import islice

import msgspec
import pytest
from diamond_shop import OPTIONS, T0, Diamond, Shop, go, held, offered

import milepost as mp
from milepost.store import pages
from milepost.testing import everywhere
from tests.support.prove import PROVING

pytestmark = pytest.mark.in_turn


class Closed(Shop):
    """A shop that is not to be asked any more."""

    closed = False

    def _refuse(self):
        if self.closed:
            raise AssertionError("the source was asked")

    def count(self, window, low, high):
        self._refuse()
        return super().count(window, low, high)

    def fetch(self, window, partition, cursor):
        self._refuse()
        return super().fetch(window, partition, cursor)

    def upper_bound(self):
        self._refuse()


class Flexible(Closed):
    """A shop whose mapping a test corrects."""

    how = staticmethod(lambda raw: raw)

    def map(self, raw: dict) -> Diamond:
        return msgspec.convert(self.how(raw), Diamond)


class Graded(msgspec.Struct):
    """A diamond of which one thing more is told."""

    id: int
    price: int | None
    updated_at: datetime
    note: str | None = None
    grade: str = "none"


class Grading(Closed):
    closed = True

    def map(self, raw: dict) -> Graded:
        return msgspec.convert({**raw, "grade": f"G{raw['id'] % 3}"}, Graded)


@pytest.fixture
def shop():
    return Flexible(30)


@pytest.fixture
def pipeline(app, shop):
    return app.pipeline("diamonds", shop, **OPTIONS, retries=0)


def dearer(raw):
    return {**raw, "price": raw["price"] + 1}


def test_a_corrected_map_reaches_old_records_without_asking_the_source(app, shop, pipeline):
    first = go(app, pipeline.start())
    mark, version = pipeline.watermark, pipeline.dataset_version
    shop.closed, shop.how = True, dearer
    run = go(app, pipeline.remap())
    assert (run.state, run.mode, run.progress) == (mp.RunState.SUCCEEDED, "remap", 1.0)
    assert held(pipeline) == {key: price + 1 for key, price in offered(shop).items()}
    assert (run.counts.fetched, run.counts.unchanged, run.counts.pending) == (30, 30, 0)
    assert (pipeline.watermark, pipeline.dataset_version) == (mark, version + 1)
    assert (run.window.start, run.window.end) == (None, None)
    assert run.id != first.id
    shop.closed = False
    shop.put(3, price=33)
    run = go(app, pipeline.start())
    assert (run.state, run.mode, run.counts.changed) == (mp.RunState.SUCCEEDED, "incremental", 1)
    assert held(pipeline)[3] == 34


async def test_remap_has_an_asynchronous_twin(app, shop, pipeline):
    await pipeline.start_async()
    await app.drain_async(timeout=20)
    shop.how = dearer
    run = await pipeline.remap_async()
    await app.drain_async(timeout=20)
    assert (await run.refresh_async()).state == mp.RunState.SUCCEEDED
    assert await pipeline.behind_async() == 0
    assert [one.price async for one in pipeline.records_async()][5] == 51
    await app.close_async()


def test_a_field_that_a_type_gained_reaches_old_records(app, database, pipeline):
    go(app, pipeline.start())
    assert pipeline.behind == 0
    later = mp.App(database.url)
    graded = later.pipeline("diamonds", Grading(), **OPTIONS, retries=0)
    assert graded.behind == 30
    run = go(later, graded.remap())
    assert (run.state, run.report["behind"], graded.behind) == (mp.RunState.SUCCEEDED, 0, 0)
    assert [record.grade for record in graded.records()] == [f"G{n % 3}" for n in range(30)]
    later.close()


def test_an_incremental_run_tells_how_many_records_are_behind(app, database, shop, pipeline):
    go(app, pipeline.start())
    later = mp.App(database.url)
    source = Grading(30)
    source.closed = False
    source.put(4, price=44)
    graded = later.pipeline("diamonds", source, **OPTIONS, retries=0)
    run = go(later, graded.start())
    assert (run.mode, run.report["behind"], graded.behind) == ("incremental", 29, 29)
    assert graded.row.behind == 29
    with pytest.raises(mp.Invalid, match="remap"):
        list(graded.records())
    assert go(later, graded.remap()).state == mp.RunState.SUCCEEDED
    assert (graded.row.behind, graded.count()) == (0, 30)
    assert go(later, graded.start()).report["behind"] == 0
    later.close()


def test_h_86_a_remap_enriches_with_the_rules_of_now(app, shop):
    class Priced(Closed):
        margin = 2

        def rules(self):
            return {"margin": self.margin}

        def enrich(self, records, rules):
            for record in records:
                record.price *= rules["margin"]
            return records

    priced = Priced(10)
    pipeline = app.pipeline("priced", priced, **OPTIONS, retries=0)
    go(app, pipeline.start())
    priced.margin, priced.closed = 3, True
    go(app, pipeline.remap())
    assert held(pipeline) == {key: price * 3 for key, price in offered(priced).items()}


def test_quarantine_decides_again(app, shop, pipeline):
    """Records that map now leave it, records that do not map any more enter it."""

    def refuse(*keys):
        def how(raw):
            if raw["id"] in keys:
                raise mp.Reject("not this one")
            return dearer(raw)

        return how

    shop.how = refuse(1, 2)
    go(app, pipeline.start())
    shop.how, shop.closed = refuse(2, 3), True
    run = go(app, pipeline.remap())
    assert (run.state, run.counts.quarantined) == (mp.RunState.SUCCEEDED, 2)
    assert [kept.key for kept in pipeline.quarantine] == ["2", "3"]
    found = held(pipeline)
    assert (found[1], found[3], 2 in found) == (11, 31, False)  # what it last was stays
    assert pipeline.behind == 0  # nothing could make it anew
    shop.how = dearer
    go(app, pipeline.remap())
    assert (len(pipeline.quarantine), pipeline.count()) == (0, 30)


def test_a_mapping_that_refuses_too_much_fails_the_remap_and_harms_nothing(app, shop, pipeline):
    go(app, pipeline.start())
    before = held(pipeline)

    def broken(raw):
        raise ValueError("it is broken")

    shop.how = broken
    run = go(app, pipeline.remap())
    assert run.state == mp.RunState.FAILED
    assert "30 of 30 records are in quarantine" in run.errors[0].message
    assert held(pipeline) == before
    assert go(app, pipeline.start()).mode == "incremental"  # it is in nobody's way
    shop.how = dearer
    assert go(app, pipeline.remap()).state == mp.RunState.SUCCEEDED
    assert (len(pipeline.quarantine), held(pipeline)[0]) == (0, before[0] + 1)


def test_a_schedule_does_not_resume_a_remap(app, shop, pipeline, advance):
    app.schedule(pipeline, "0 2 * * *")
    go(app, pipeline.start())
    shop.how = {}.__getitem__
    assert go(app, pipeline.remap()).state == mp.RunState.FAILED
    with pytest.raises(mp.IllegalMove, match="remap"):
        pipeline.start(force=True)
    shop.how = dearer
    shop.put(7, price=77)
    advance(86_400)
    app.drain(timeout=20)
    [opening] = app.jobs.list(kind="diamonds.start")
    assert pipeline.run(opening.result).mode == "incremental"
    assert held(pipeline)[7] == 78


def test_removed_records_stay_removed(app, shop, pipeline):
    go(app, pipeline.start())
    del shop.data[7]
    assert go(app, pipeline.start(full=True)).counts.removed == 1
    shop.how = dearer
    run = go(app, pipeline.remap())
    assert (run.counts.fetched, run.counts.removed) == (29, 0)
    assert held(pipeline) == {key: price + 1 for key, price in offered(shop).items()}


def test_a_deletion_that_only_the_mapping_saw_is_decided_again(app, shop, pipeline):
    def retired(raw):
        if raw.get("retired"):
            raise mp.Gone(raw["id"])
        return raw

    shop.how = retired
    go(app, pipeline.start())
    for key in (4, 5):
        shop.put(key, price=1, retired=True)
    assert go(app, pipeline.start()).counts.removed == 2
    go(app, pipeline.remap())
    assert pipeline.count() == 28
    del shop.data[5]
    assert go(app, pipeline.start(full=True)).state == mp.RunState.SUCCEEDED
    shop.how = lambda raw: raw
    run = go(app, pipeline.remap())
    assert run.state == mp.RunState.SUCCEEDED
    # The source has one of them; the other was deleted there as well.
    assert held(pipeline) == offered(shop)
    del shop.data[4]
    run = go(app, pipeline.start(full=True))
    assert (run.counts.removed, held(pipeline)) == (1, offered(shop))


def test_a_tombstone_of_the_source_holds_whatever_the_mapping_says(app):
    class Graveyard(Flexible):
        gone = ()

        def fetch(self, window, partition, cursor):
            page = super().fetch(window, partition, cursor)
            return mp.Page([*page.records, *self.gone], page.next)

    yard = Graveyard(10)
    pipeline = app.pipeline("yard", yard, **OPTIONS, retries=0)
    go(app, pipeline.start())
    yard.gone = [mp.Gone(4, T0 + timedelta(days=1))]
    go(app, pipeline.start())
    assert pipeline.count() == 9
    go(app, pipeline.remap())
    assert (pipeline.count(), 4 in held(pipeline)) == (9, False)


def test_records_landed_in_another_shape_go_into_quarantine_with_the_reason(app, database, shop):
    class Raw(msgspec.Struct):
        id: int
        price: int
        updated_at: datetime
        weight: int

    class Weighed(Closed):
        closed = True

        def map(self, raw: Raw) -> Diamond:
            return Diamond(raw.id, raw.price, raw.updated_at, note=f"{raw.weight} ct")

    shop.put(3, weight=5)
    go(app, app.pipeline("diamonds", shop, **OPTIONS).start())
    later = mp.App(database.url)
    weighed = later.pipeline("diamonds", Weighed(), **OPTIONS, retries=0, quarantine_limit=1)
    assert go(later, weighed.remap()).state == mp.RunState.SUCCEEDED
    assert len(weighed.quarantine) == 29
    assert "weight" in weighed.quarantine.list()[0].reason
    assert {one.id: one.note for one in weighed.records()}[3] == "5 ct"
    later.close()


def test_there_is_one_run_at_a_time(app, shop, pipeline):
    with pytest.raises(mp.IllegalMove, match="landed nothing"):
        pipeline.remap()
    start = pipeline.start()
    go(app, start)
    run = pipeline.remap()
    assert pipeline.remap().id == run.id
    for wrong in ({}, {"full": True}, {"since": T0}):
        with pytest.raises(mp.IllegalMove, match="remap"):
            pipeline.start(**wrong)
    go(app, run)
    live = pipeline.start()
    with pytest.raises(mp.IllegalMove, match="under way"):
        pipeline.remap()
    go(app, live)
    assert go(app, pipeline.remap()).state == mp.RunState.SUCCEEDED


def test_what_was_erased_from_the_landing_table_is_said(app, database, shop, pipeline):
    go(app, pipeline.start())
    with database.raw() as connection:
        connection.execute("DELETE FROM raw WHERE key IN ('3', '4')")
    later = mp.App(database.url)
    graded = later.pipeline("diamonds", Grading(), **OPTIONS, retries=0)
    run = go(later, graded.remap())
    assert run.state == mp.RunState.SUCCEEDED
    assert (run.report["behind"], run.report["unlanded"], graded.behind) == (2, 2, 2)
    later.close()


@pytest.fixture
def small(monkeypatch):
    """Make what is listed so small that ten records are many."""
    monkeypatch.setattr(pages, "LISTED", 6)
    monkeypatch.setattr(pages, "LISTED_PAGE", 2)


@pytest.mark.usefixtures("small")
def test_many_records_are_listed_page_by_page(app, shop, pipeline):
    go(app, pipeline.start())
    shop.how = dearer
    run = go(app, pipeline.remap())
    assert (run.counts.pages, run.counts.fetched) == (15, 30)
    assert held(pipeline) == {key: price + 1 for key, price in offered(shop).items()}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("broken", ["rules", "enrich"])
def test_a_remap_that_failed_goes_on(app, shop, pipeline, monkeypatch, broken):
    go(app, pipeline.start())
    shop.how = dearer

    def away(*_):
        raise OSError("the price list is away")

    with monkeypatch.context() as patched:
        patched.setattr(shop, broken, away)
        run = go(app, pipeline.remap())
        assert run.state == mp.RunState.FAILED
    again = go(app, run.resume())
    assert (again.state, again.mode, again.counts.fetched) == (mp.RunState.SUCCEEDED, "remap", 30)
    assert held(pipeline) == {key: price + 1 for key, price in offered(shop).items()}


def test_h_86_a_replay_after_a_plan_that_failed_has_the_rules_of_the_run_before(app):
    class Priced(Flexible):
        def rules(self):
            self._refuse()
            return {"margin": 2}

        def enrich(self, records, rules):
            for record in records:
                record.price *= rules["margin"]
            return records

    priced = Priced(5)
    priced.put(9, price=9)
    priced.how = lambda raw: raw if raw["id"] < 9 else raw["grade"]
    pipeline = app.pipeline("priced", priced, **OPTIONS, retries=0)
    go(app, pipeline.start())
    priced.closed = True
    assert go(app, pipeline.start()).state == mp.RunState.FAILED
    priced.how = lambda raw: {**raw, "price": 7}
    assert go(app, pipeline.quarantine.replay()).state == mp.RunState.SUCCEEDED
    assert held(pipeline)[9] == 14


@pytest.mark.both_stores
@pytest.mark.usefixtures("small")
def test_h_67_a_remap_survives_a_crash_at_any_commit(database, monkeypatch):
    if not PROVING:  # every twelfth place
        places = everywhere._places()
        monkeypatch.setattr(everywhere, "_places", lambda: islice(places, 0, None, 12))
    app = mp.App(database.url, lease=2, heartbeat=0.5)
    shop = Flexible(8)
    options = {**OPTIONS, "partitions": 1, "retries": 5, "retry_delay": 0}
    pipeline = app.pipeline("crashing", shop, **options, batch=4, upsert=2, consolidators=1)

    def start():
        shop.how, shop.closed = (lambda raw: raw), False
        go(app, pipeline.start())
        shop.how, shop.closed = dearer, True
        pipeline.remap()

    def check():
        run, _ = app.runs.list(kind="crashing")
        run = pipeline.run(run.id).refresh()
        assert (run.mode, run.state) == ("remap", mp.RunState.SUCCEEDED), run.errors
        assert (run.counts.fetched, run.counts.pending) == (8, 0)
        assert held(pipeline) == {key: price + 1 for key, price in offered(shop).items()}
        assert pipeline.dataset_version == 2

    crashes = mp.testing.crash_everywhere(app, start, check)
    assert crashes
    app.close()


def test_a_table_of_another_name_is_filled_from_what_was_landed(app, database, shop, pipeline):
    go(app, pipeline.start())
    shop.closed = True
    later = mp.App(database.url)
    moved = later.pipeline("diamonds", shop, **OPTIONS, retries=0, table="jewels")
    assert go(later, moved.remap()).state == mp.RunState.SUCCEEDED
    assert held(moved) == offered(shop)
    later.close()
