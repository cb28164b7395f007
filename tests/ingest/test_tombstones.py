"""Records that a source says were deleted: removed by any run, and back when they come back."""

from datetime import timedelta

import msgspec
import pytest
from diamond_shop import OPTIONS, T0, Diamond, Shop, go, held, offered

import milepost as mp

pytestmark = pytest.mark.in_turn


class Graveyard(Shop):
    """A shop that tells in its pages what was deleted."""

    def __init__(self, count):
        super().__init__(count)
        self.gone = []

    def fetch(self, window, partition, cursor):
        page = super().fetch(window, partition, cursor)
        first = partition.is_first and cursor is None
        return mp.Page([*page.records, *(self.gone if first else [])], page.next)


@pytest.fixture
def yard():
    return Graveyard(10)


@pytest.fixture
def pipeline(app, yard):
    return app.pipeline("yard", yard, **OPTIONS, retries=0)


def test_a_tombstone_in_a_page_removes_its_record_in_an_incremental_run(app, yard, pipeline):
    go(app, pipeline.start())
    del yard.data[4]
    yard.gone = [mp.Gone(4), mp.Gone(999)]
    run = go(app, pipeline.start())
    assert (run.mode, run.state) == ("incremental", mp.RunState.SUCCEEDED)
    assert (run.counts.removed, run.counts.fetched) == (1, 0)
    assert held(pipeline) == offered(yard)
    again = go(app, pipeline.start())
    assert again.counts.removed == 0


def test_a_record_that_comes_back_after_its_tombstone_is_back(app, yard, pipeline):
    go(app, pipeline.start())
    yard.gone = [mp.Gone(4)]
    go(app, pipeline.start())
    assert 4 not in held(pipeline)
    yard.put(4, price=44)
    go(app, pipeline.start())
    assert held(pipeline)[4] == 44
    assert pipeline.count() == 10


def test_a_tombstone_that_is_older_than_the_record_removes_nothing(app, yard, pipeline):
    go(app, pipeline.start())
    yard.gone = [mp.Gone(4, T0), mp.Gone(5, T0 + timedelta(days=1))]
    go(app, pipeline.start())
    assert 4 in held(pipeline)
    assert 5 not in held(pipeline)


@pytest.mark.parametrize("how", [{"full": True}, {"since": T0 - timedelta(days=9)}])
def test_h_83_a_record_that_is_older_than_its_tombstone_does_not_come_back(
    app, yard, pipeline, how
):
    """A backfill of a log reads what was written before the deletion, and not the deletion."""
    go(app, pipeline.start())
    deleted = T0 + timedelta(days=1)
    yard.gone = [mp.Gone(4, deleted), mp.Gone(5, deleted)]
    go(app, pipeline.start())
    yard.gone = []
    for start in (lambda: pipeline.start(**how), pipeline.remap, lambda: pipeline.start(**how)):
        run = go(app, start())
        assert (run.state, pipeline.count()) == (mp.RunState.SUCCEEDED, 8)
    yard.put(4, price=44)
    go(app, pipeline.start())
    assert (held(pipeline)[4], pipeline.count()) == (44, 9)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_a_tombstone_holds_whichever_page_of_a_run_tells_it(app, first, partitions):
    """A source that gives its changes one by one gives a record and its deletion, in any order."""

    class Log(Shop):
        def fetch(self, window, partition, cursor):
            page = super().fetch(window, partition, cursor)
            begins = partition.is_first and cursor is None
            ends = partition.is_last and page.next is None
            late = T0 + timedelta(days=1)
            told = [mp.Gone(2, late), mp.Gone(7, late), mp.Gone(4, T0), mp.Gone(5)]
            return mp.Page(
                [*page.records, *(told if (begins if first else ends) else [])], page.next
            )

    changes = Log(10)
    pipeline = app.pipeline("log", changes, **{**OPTIONS, "partitions": partitions}, retries=0)
    assert go(app, pipeline.start()).state == mp.RunState.SUCCEEDED
    # Of the other two, one is newer than its deletion, and one was seen by the same run.
    del changes.data[2], changes.data[7]
    assert held(pipeline) == offered(changes)
    go(app, pipeline.remap())
    assert held(pipeline) == offered(changes)


def raised(key):
    raise mp.Gone(key)


@pytest.mark.parametrize("tell", [mp.Gone, raised])
def test_map_says_that_a_record_is_gone(app, yard, tell):
    class Marked(Graveyard):
        def map(self, raw) -> Diamond:
            if raw.get("deleted"):
                return tell(raw["id"])
            return msgspec.convert(raw, Diamond)

    marked = Marked(10)
    pipeline = app.pipeline("marked", marked, **OPTIONS, retries=0)
    go(app, pipeline.start())
    assert pipeline.count() == 10
    marked.put(3, price=30, deleted=True)
    run = go(app, pipeline.start())
    assert (run.state, run.counts.removed) == (mp.RunState.SUCCEEDED, 1)
    assert 3 not in held(pipeline)
    full = go(app, pipeline.start(full=True))
    assert (full.counts.removed, pipeline.count()) == (0, 9)


def test_a_key_that_is_no_key_is_refused_where_it_is_said():
    with pytest.raises(mp.Reject):
        mp.Gone(1, version="yesterday")
