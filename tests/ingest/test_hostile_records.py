"""Records and cursors that nobody here wrote: exact, in quarantine, or refused in words."""

import math
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum

import msgspec
import pytest

import milepost as mp


class Shelf(mp.Source):
    """Gives the records it holds; `fetch` one page after the other by `cursors`."""

    def __init__(self, *records):
        self.records = list(records)

    def count(self, window, low, high):
        return len(self.records) if low <= 0 < high else 0

    def fetch(self, window, partition, cursor):
        return mp.Page(list(self.records) if partition.covers(0) else [])


class Item(msgspec.Struct):
    id: int
    name: str | None = None
    size: int = 0
    weight: float = 0.0


class Items(Shelf):
    def map(self, raw) -> Item:
        return msgspec.convert(raw, Item)


OPTIONS = {"key": "id", "partition_by": "at", "quarantine_limit": 1.0, "removal_limit": 1.0}


def read(app, source, **options):
    pipeline = app.pipeline("items", source, **{**OPTIONS, **options}, retries=0)
    run = pipeline.start()
    app.drain()
    return pipeline, run.refresh()


def read_each(app, sources, **options):
    """Read many sources by a pipeline each, in one go; answer with each one's pipeline and run."""
    made = [
        app.pipeline(f"items_{number}", source, **{**OPTIONS, **options}, retries=0)
        for number, source in enumerate(sources)
    ]
    runs = [pipeline.start() for pipeline in made]
    app.drain()
    return [(pipeline, run.refresh()) for pipeline, run in zip(made, runs, strict=True)]


def read_again(app, pipelines):
    """Read everything once more, in one go; answer with the runs."""
    runs = [pipeline.start(full=True) for pipeline in pipelines]
    app.drain()
    return [run.refresh() for run in runs]


def why(pipeline):
    return {kept.key: kept.reason for kept in pipeline.quarantine.list()}


GOOD = {"id": 1, "name": "good"}


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


def knot():
    value = {"id": 2}
    value["name"] = value
    return value


HOSTILE = {
    "what is nested deeper than Python can show": {"id": 2, "name": nested(100_000)},
    "a lone surrogate": {"id": 2, "name": "\ud800"},
    "NaN": {"id": 2, "weight": math.nan},
    "infinity": {"id": 2, "weight": math.inf},
    "too many bytes": {"id": 2, "name": "x" * 2_000_000},
    "what no codec carries": {"id": 2, "name": object()},
    "a whole number of 65 bits": {"id": 2, "size": 2**64},
    "a key of 65 bits": {"id": 2**64},
    "a key of surrogates": {"id": "\udfff"},
    "a key without end": {"id": "k" * 10_000},
    "no key": {"name": "nobody"},
    "a key that is nested deeper than Python can show": {"id": nested(100_000)},
    "a key of more digits than Python writes": {"id": 10**5_000},
    "a number of more digits than Python writes": {"id": 2, "size": 10**5_000},
    "a key of bytes": {"id": b"\xff"},
    "a dictionary that holds itself": knot(),
}


def test_one_hostile_record_goes_into_quarantine_and_the_run_succeeds(app):
    """Each alone in a run: none hides behind what another does to it."""
    found = read_each(app, [Items(GOOD, record) for record in HOSTILE.values()])
    for what, (pipeline, run) in zip(HOSTILE, found, strict=True):
        assert run.state == "SUCCEEDED", what
        assert [item.id for item in pipeline.records()] == [1], what
        [reason] = why(pipeline).values()
        assert reason, what
        assert run.counts.quarantined == 1, what


class Picky(Items):
    """Refuses a record with the error that it is told."""

    def __init__(self, error):
        super().__init__(GOOD, {"id": 2})
        self.error = error

    def map(self, raw) -> Item:
        if raw["id"] == 2:
            raise self.error("not this one")
        return super().map(raw)


def test_a_record_whose_map_raises_goes_into_quarantine(app):
    errors = (OSError, TimeoutError, mp.Fail, ConnectionError)
    found = read_each(app, map(Picky, errors))
    for error, (pipeline, run) in zip(errors, found, strict=True):
        assert run.state == "SUCCEEDED", error
        assert why(pipeline) == {"2": "not this one"}, error


def test_a_record_that_a_source_corrects_leaves_the_quarantine(app):
    source = Items(GOOD, {"id": 2, "name": "\ud800"})
    pipeline, _ = read(app, source)
    source.records[1] = {"id": 2, "name": "fine"}
    pipeline.start(full=True)
    app.drain()
    assert [item.name for item in pipeline.records()] == ["good", "fine"]
    assert why(pipeline) == {}


def test_a_record_that_the_source_has_no_more_leaves_the_quarantine(app):
    sources = [Items(GOOD, bad) for bad in ({"id": 2, "name": "\ud800"}, {"name": "nobody"})]
    pipelines = [pipeline for pipeline, _ in read_each(app, sources)]
    assert [len(why(pipeline)) for pipeline in pipelines] == [1, 1]
    for source in sources:
        del source.records[1]
    read_again(app, pipelines)
    for pipeline in pipelines:
        assert why(pipeline) == {}
        assert [item.id for item in pipeline.records()] == [1]


def test_a_record_in_quarantine_leaves_it_by_its_tombstone(app):
    source = Items(GOOD, {"id": 2, "name": "\ud800"})
    pipeline, _ = read(app, source)
    source.records[1] = mp.Gone(2)
    for _ in range(2):
        run = pipeline.start()
        app.drain()
        assert (run.refresh().state, why(pipeline)) == ("SUCCEEDED", {})


def test_a_replay_of_records_without_a_key_keeps_them_and_succeeds(app):
    pipeline, _ = read(app, Items(GOOD, {"name": "nobody"}))
    run = pipeline.quarantine.replay()
    app.drain()
    assert run.refresh().state == "SUCCEEDED", run.errors
    assert len(why(pipeline)) == 1


def test_not_a_number_is_not_stored_as_nothing(app):
    class Weighed(Items):
        def map(self, raw) -> Item:
            return Item(raw["id"], weight=math.nan if raw["id"] == 2 else 1.0)

    pipeline, run = read(app, Weighed(GOOD, {"id": 2}))
    assert run.state == "SUCCEEDED"
    assert [item.id for item in pipeline.records()] == [1]
    assert "NaN" in why(pipeline)["2"]


class Grade(StrEnum):
    FINE = "fine"


class Sample(msgspec.Struct):
    id: int
    moment: datetime | None = None
    grade: Grade | None = None
    notes: dict[str, float | str | None] | None = None


# The second is one of a time zone whose offset had seconds then.
AMSTERDAM = timezone(timedelta(minutes=19, seconds=32))
VALUES = [
    {"moment": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))},
    {"moment": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
    {"moment": datetime.min.replace(tzinfo=UTC)},
    {"moment": datetime.max.replace(tzinfo=UTC)},
    {"moment": datetime(1930, 5, 17, tzinfo=AMSTERDAM)},
    {"moment": "today"},
    {"grade": Grade.FINE},
    {"grade": "fine"},
    {"grade": "unheard of"},
    {"notes": {"a": math.nan}},
    {"notes": {"a": math.inf}},
    {"notes": {"a": "\0"}},
    {"notes": {"a": 0.1, "b": None}},
]


def test_every_value_is_exact_or_in_quarantine_and_the_target_can_be_read(app):
    class Samples(Shelf):
        def map(self, raw) -> Sample:
            return Sample(raw["id"], **VALUES[raw["id"]])

    pipeline, run = read(app, Samples(*({"id": number} for number in range(len(VALUES)))))
    assert run.state == "SUCCEEDED", run.errors
    kept = {int(key) for key in why(pipeline)}
    found = {one.id: one for one in pipeline.records()}
    assert kept | found.keys() == set(range(len(VALUES)))
    assert not kept & found.keys()
    assert {0, 1, 5, 8, 9, 10} <= kept
    assert {2, 3, 4, 6, 7, 12} <= found.keys()
    for number, one in found.items():
        [(name, value)] = VALUES[number].items()
        assert getattr(one, name) == value


def test_a_run_none_of_whose_records_has_the_key_fails_and_names_the_field(app):
    pipeline, run = read(app, Items({"ident": 1}, {"ident": 2}))
    assert run.state == "FAILED"
    assert "key='id'" in str(run.errors)
    assert pipeline.watermark is None


def test_key_and_version_may_be_functions_of_the_raw_record(app):
    source = Items({"shop": "a", "no": 7, "at": "2024-01-02T00:00Z", "id": 1})

    def numbered(raw):
        return f"{raw['shop']}-{raw['no']}"

    pipeline, run = read(app, source, key=numbered, version=lambda raw: raw["at"])
    assert run.state == "SUCCEEDED"
    assert [item.id for item in pipeline.records()] == [1]
    assert pipeline.count() == 1
    source.records = []
    pipeline.start(full=True)
    app.drain()
    assert pipeline.count() == 0


def test_a_record_with_a_long_whole_key_is_removed_where_it_stands(app):
    keys = (10**18, 2**63 - 1, -(2**63), -(10**18) - 1)
    sources = [Items({"id": key}, GOOD) for key in keys]
    pipelines = [pipeline for pipeline, _ in read_each(app, sources)]
    assert [pipeline.count() for pipeline in pipelines] == [2, 2, 2, 2]
    for source in sources:
        del source.records[0]
    for key, pipeline, run in zip(keys, pipelines, read_again(app, pipelines), strict=True):
        assert run.counts.removed == 1, key
        assert [item.id for item in pipeline.records()] == [1], key


def test_a_key_beyond_64_bits_removes_nobody_else(app):
    source = Items({"id": 2**63 - 1}, {"id": 2**64})
    pipeline, _ = read(app, source)
    del source.records[1]
    pipeline.start(full=True)
    app.drain()
    assert [item.id for item in pipeline.records()] == [2**63 - 1]


def test_a_key_that_is_spelled_another_way_removes_nobody_else(app):
    source = Items({"id": 7}, {"id": "007"}, {"id": "-0"}, {"id": 0})
    pipeline, _ = read(app, source)
    assert set(why(pipeline)) == {"007", "-0"}
    del source.records[1:3]
    pipeline.start(full=True)
    app.drain()
    assert [item.id for item in pipeline.records()] == [0, 7]


def test_h_84_a_record_whose_version_cannot_be_read_is_not_taken_for_gone(app):
    """It is in quarantine; what could be used of it before stays, also where it is looked again."""
    source = Items({"id": 1, "size": 1}, {"id": 2, "size": 1}, {"id": 3, "size": 1})
    pipeline, _ = read(app, source, version="size")
    source.records[1:] = [{"id": 2, "size": "garbage"}]
    run = pipeline.start(full=True)
    app.drain()
    assert (run.refresh().state, run.counts.removed) == ("SUCCEEDED", 1)
    assert [item.id for item in pipeline.records()] == [1, 2]
    assert len(pipeline.quarantine) == 1


VERSIONS = {
    "nested": nested(100_000),
    "many digits": 10**5_000,
    "NaN": math.nan,
    "bytes": b"1",
    "no time": "1",
    "a flag": True,
    "none": None,
}


def test_a_version_that_cannot_be_read_puts_its_record_into_quarantine(app):
    sources = [Items({"id": 1, "at": 1}, {"id": 2, "at": at}) for at in VERSIONS.values()]
    found = read_each(app, sources, version="at")
    for what, (pipeline, run) in zip(VERSIONS, found, strict=True):
        assert (run.state, len(pipeline.quarantine)) == ("SUCCEEDED", 1), what
        assert [item.id for item in pipeline.records()] == [1], what


class Yard(Items):
    """Tells of a record that is gone: on its page, or when it is mapped."""

    def __init__(self, key, where):
        self.key = key
        super().__init__(GOOD, mp.Gone(key) if where == "page" else {"id": 2, "name": "gone"})

    def map(self, raw) -> Item:
        if raw["name"] == "gone":
            raise mp.Gone(self.key)
        return msgspec.convert(raw, Item)


@pytest.mark.parametrize("where", ["page", "map"])
def test_a_tombstone_whose_key_no_record_can_have_removes_nothing(app, where):
    keys = ("\ud800", "a\0b", "k" * 10_000, "?", "", None)
    found = read_each(app, [Yard(key, where) for key in keys])
    for key, (pipeline, run) in zip(keys, found, strict=True):
        assert (run.state, run.counts.removed) == ("SUCCEEDED", 0), repr(key)
        assert [item.id for item in pipeline.records()] == [1], repr(key)


def test_h_84_a_record_that_gets_a_key_is_not_counted_as_removed(app):
    """What stood for it in quarantine was nobody's in the target: no limit, and no decision."""
    source = Items(GOOD, {"id": 2}, {"name": "nobody"})
    pipeline, _ = read(app, source, removal_limit=0.2)
    source.records[2] = {"id": 3, "name": "nobody"}
    run = pipeline.start(full=True)
    app.drain()
    assert (run.refresh().state, why(pipeline)) == ("SUCCEEDED", {})
    source.records = [GOOD, {"name": "nobody"}]
    refused = pipeline.start(full=True)
    app.drain()
    assert "2 of 3 records are not in the source" in refused.refresh().errors[0].message
    assert pipeline.removals.list() == ["2", "3"]
    assert len(pipeline.removals) == pipeline.removals.confirm(reason="they were sold") == 2


def test_a_replay_takes_only_what_is_in_quarantine(app):
    """One that was removed would be back."""
    source = Items({"id": 1}, {"id": 2}, {"id": 3, "name": 3})
    pipeline, _ = read(app, source)
    del source.records[1]
    pipeline.start(full=True)
    app.drain()
    for key in ("1", "2", "nobody"):
        with pytest.raises(mp.NotFound, match=f"'{key}' of pipeline 'items' is not in quarantine"):
            pipeline.quarantine.replay(["3", key])
    assert [item.id for item in pipeline.records()] == [1]


class Paged(Items):
    def __init__(self, cursor):
        super().__init__({"id": 1}, {"id": 2})
        self.cursor = cursor

    def fetch(self, window, partition, cursor):
        if not partition.covers(0):
            return mp.Page([])
        if cursor is None:
            return mp.Page(self.records[:1], self.cursor)
        assert cursor == self.cursor
        return mp.Page(self.records[1:])


def test_a_cursor_that_would_come_back_changed_is_refused_at_the_first_page(app):
    cursors = ((1, 2), datetime(2024, 1, 1, tzinfo=UTC), b"at", {1: 2}, math.nan, object())
    found = read_each(app, map(Paged, cursors))
    for cursor, (pipeline, run) in zip(cursors, found, strict=True):
        assert run.state == "FAILED", cursor
        [part] = [part for part in run.partitions if part.error]
        assert "cursor" in part.error, cursor
        assert pipeline.count() == 0, cursor


def test_a_cursor_that_comes_back_as_it_was_is_taken(app):
    cursors = ("next", 7, [1, "2"], {"after": 3, "of": None}, 1.5, True)
    found = read_each(app, map(Paged, cursors))
    for cursor, (pipeline, run) in zip(cursors, found, strict=True):
        assert run.state == "SUCCEEDED", cursor
        assert pipeline.count() == 2, cursor
