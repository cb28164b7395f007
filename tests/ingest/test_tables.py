"""A table is one pipeline's: by its own statements, by a row in the store, until it is released."""

import msgspec
import pytest

import milepost as mp


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
