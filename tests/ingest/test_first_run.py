"""A first run writes its records as new ones, and loses nothing where one of them is not."""

from datetime import timedelta

import pytest
from diamond_shop import OPTIONS, T0, Shop, by_hand, go, held, offered

from milepost import outcome
from milepost.errors import IllegalMove
from milepost.ingest.columns import Part
from milepost.records import Settlement
from milepost.store import jobs

pytestmark = pytest.mark.in_turn


class Repeating(Shop):
    """Gives record 0 with every page, each time a newer version of it."""

    versions = 0

    def fetch(self, window, partition, cursor):
        found = super().fetch(window, partition, cursor)
        self.versions += 1
        self.put(0, price=0, at=T0 + timedelta(seconds=self.versions), note=f"n{self.versions}")
        found.records.append(dict(self.data[0]))
        return found


def test_a_record_that_comes_with_every_page_ends_as_its_newest_version(app):
    shop = Repeating(60)
    pipeline = app.pipeline("repeating", shop, **OPTIONS)
    run = go(app, pipeline.start())
    assert run.state == "SUCCEEDED", run.errors
    assert held(pipeline) == offered(shop)
    [first] = [record for record in pipeline.records() if record.id == 0]
    assert first.note == f"n{shop.versions}"
    assert run.counts.pending == 0


@pytest.mark.parametrize("newer", [False, True])
def test_h_83_what_stands_in_the_target_already_is_replaced_unless_it_is_newer(app, newer):
    shop = Shop(12)
    pipeline = app.pipeline("known", shop, **OPTIONS)
    columns = [[3, 4], [-3, -4], [T0.isoformat()] * 2, ["kept"] * 2]
    there = Part([2**62 if newer else 0] * 2, [b""] * 2, columns)
    run = pipeline.start()

    def write(*_: object) -> None:
        """Write as an attempt does that is killed before it can mark its pages."""
        claim = by_hand(app)
        app.client.run(pipeline.target.write, claim, run.id, there, made_with=1)
        app.client.run(jobs.settle, [Settlement(claim, outcome.succeeded())], actor="hand")

    shop.before_fetch = write
    run = go(app, run)
    assert run.state == "SUCCEEDED", run.errors
    found = held(pipeline)
    assert {**found, 3: 30, 4: 40} == offered(shop)
    assert (found[3], found[4]) == ((-3, -4) if newer else (30, 40))


def test_records_written_as_new_are_refused_whole_where_one_is_there(app, pipeline):
    app.client.run(pipeline.target.prepare)
    run_id = pipeline.start().id

    def write(*ids):
        columns = [list(ids), [1] * len(ids), [T0.isoformat()] * len(ids), [None] * len(ids)]
        part = Part([1] * len(ids), [b""] * len(ids), columns)
        claim = by_hand(app)
        app.client.run(pipeline.target.write, claim, run_id, part, made_with=1, fresh=True)

    write(1, 2)
    with pytest.raises(IllegalMove):
        write(0, 2, 3)
    assert held(pipeline) == {1: 1, 2: 1}
