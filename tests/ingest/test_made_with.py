"""What a record was made with is known of each record, so a full run makes anew what is behind."""

import enum
from datetime import datetime
from typing import Annotated, Literal, Optional

import msgspec
import pytest
from diamond_shop import OPTIONS, Diamond, Shop, go, held, offered

import milepost as mp
from milepost.ingest.mapping import shape_of

pytestmark = pytest.mark.in_turn


class Priced(Shop):
    """A shop whose prices are its own times the margin of the rules."""

    margin = 2

    def rules(self):
        return {"margin": self.margin}

    def enrich(self, records, rules):
        for record in records:
            record.price *= rules["margin"]
        return records


@pytest.fixture
def priced():
    return Priced(30)


@pytest.fixture
def declare(app, database):
    """Declare the pipeline as the next version of a program does: in an app of its own."""
    made = []

    def declared(source, **options):
        made.append(mp.App(database.url))
        return made[-1], made[-1].pipeline("stones", source, **OPTIONS, retries=0, **options)

    yield declared
    for one in made:
        one.close()


def priced_by(source):
    return {key: price * source.margin for key, price in offered(source).items()}


def test_h_86_a_full_run_makes_anew_what_an_incremental_one_left_with_old_rules(app, priced):
    pipeline = app.pipeline("stones", priced, **OPTIONS, retries=0)
    go(app, pipeline.start())
    priced.margin = 3
    priced.put(4, price=44)
    run = go(app, pipeline.start())
    assert (run.mode, run.counts.changed) == ("incremental", 1)
    assert (held(pipeline)[4], held(pipeline)[5]) == (132, 100)
    run = go(app, pipeline.start(full=True))
    assert (run.state, run.counts.unchanged) == (mp.RunState.SUCCEEDED, 30)
    assert held(pipeline) == priced_by(priced)


def test_h_86_a_full_run_that_failed_before_it_wrote_does_not_pass_for_done(app, priced):
    pipeline = app.pipeline("stones", priced, **OPTIONS, retries=0)
    go(app, pipeline.start())
    priced.margin, enrich = 3, priced.enrich

    def broken(records, rules):
        raise OSError("the price list is locked")

    priced.enrich = broken
    assert go(app, pipeline.start(full=True)).state == mp.RunState.FAILED
    priced.enrich = enrich
    assert go(app, pipeline.start(full=True)).state == mp.RunState.SUCCEEDED
    assert held(pipeline) == priced_by(priced)


def test_nothing_is_made_anew_while_rules_and_mapping_are_the_same(app, priced):
    pipeline = app.pipeline("stones", priced, **OPTIONS, retries=0)
    go(app, pipeline.start())
    given = []
    priced.enrich = lambda records, _: given.extend(records) or records
    go(app, pipeline.start(full=True))
    assert given == []


class Graded(msgspec.Struct):
    """A diamond of which one thing more is told."""

    id: int
    price: int | None
    updated_at: datetime
    note: str | None = None
    grade: str | None = None


class Grading(Shop):
    def map(self, raw: dict) -> Graded:
        return msgspec.convert({**raw, "grade": f"G{raw['id'] % 3}"}, Graded)


def test_a_full_run_gives_old_records_the_field_that_their_type_gained(declare):
    first, plain = declare(Shop(20))
    go(first, plain.start())
    second, graded = declare(Grading(20))
    run = go(second, graded.start(full=True))
    assert (run.state, run.counts.unchanged) == (mp.RunState.SUCCEEDED, 20)
    assert [record.grade for record in graded.records()] == [f"G{n % 3}" for n in range(20)]


class Rounded(Shop):
    def map(self, raw: dict) -> Diamond:
        return msgspec.convert({**raw, "note": "rounded"}, Diamond)


@pytest.mark.parametrize("version", [2, "2024-06"])
def test_a_full_run_notices_that_the_version_of_the_mapping_changed(declare, version):
    first, old = declare(Shop(20))
    go(first, old.start())
    second, same = declare(Rounded(20))
    go(second, same.start(full=True))
    assert {record.note for record in same.records()} == {None}  # nobody said that it changed
    third, new = declare(Rounded(20), mapping_version=version)
    go(third, new.start(full=True))
    assert {record.note for record in new.records()} == {"rounded"}


def test_records_that_a_worker_of_the_version_before_has_made_are_found_behind(declare):
    """Two versions of a program share a store while one takes over from the other."""
    old, before = declare(Shop(20))
    go(old, before.start())
    new, after = declare(Rounded(20), mapping_version=2)
    assert go(old, after.start(full=True)).state == mp.RunState.SUCCEEDED  # the old one's worker
    assert after.behind == 20
    go(new, after.start(full=True))
    assert (after.behind, {record.note for record in after.records()}) == (0, {"rounded"})


def test_a_mapping_version_is_a_number_or_a_text(app):
    for wrong in (1.5, True, "", None):
        with pytest.raises(mp.Invalid, match="mapping_version"):
            app.pipeline("stones", Shop(), **OPTIONS, mapping_version=wrong)


class Colour(enum.Enum):
    RED = "red"


class Inner(msgspec.Struct):
    weight: int


class Tree(msgspec.Struct):
    name: str
    children: "list[Tree]"


def struct(**fields):
    return msgspec.defstruct("Record", list(fields.items()))


SHAPES = [
    struct(id=int),
    struct(id=str),
    struct(id=int, price=int),
    struct(id=int, price=int | None),
    struct(id=int, inner=Inner),
    struct(id=int, inner=list[Inner]),
    struct(id=int, inner=dict[str, Inner]),
    struct(id=int, inner=msgspec.defstruct("Inner", [("weight", int), ("unit", str)])),
    struct(id=int, colour=Colour),
    struct(id=int, colour=enum.Enum("Colour", {"RED": "red", "BLUE": "blue"})),
    struct(id=int, colour=Literal["red"]),
    struct(id=int, colour=Literal["red", "blue"]),
    Tree,
    dict,
]


def test_shapes_that_differ_are_told_apart_and_no_others():
    shapes = [shape_of(one) for one in SHAPES]
    assert len(set(shapes)) == len(shapes)
    assert shape_of(struct(price=int, id=int)) == shape_of(struct(id=int, price=int))
    optional = struct(id=int, price=Optional[int])  # noqa: UP045 - another spelling of the same
    assert shape_of(optional) == shape_of(struct(id=int, price=None | int))
    bounded = struct(id=Annotated[int, msgspec.Meta(ge=0)])
    assert shape_of(bounded) == shape_of(struct(id=int))
    assert not any(" at 0x" in shape for shape in shapes)
