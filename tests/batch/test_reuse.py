"""`start(params, reuse=True)`: a run with these parameters that goes on is used again."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier

import pytest

import milepost as mp
from milepost.codec import JsonCodec

pytestmark = pytest.mark.both_stores


@dataclass
class Params:
    """What a run is given."""

    count: int
    name: str = "x"


def declared(app):
    batch = app.batch("counts", params=Params)

    @batch.step(retries=0)
    def count(params: Params) -> int:
        if params.count < 0:
            raise mp.Fail("below zero")
        return params.count

    return batch


@pytest.fixture
def counts(app):
    return declared(app)


@pytest.mark.parametrize("asked", [{}, {"hold": True}, {"priority": 3, "tags": {"a": "b"}}])
def test_a_run_is_reused_however_it_was_started(app, counts, asked):
    first = counts.start(Params(1), **asked)
    assert counts.start(Params(1), reuse=True).id == first.id
    assert counts.start(Params(2), reuse=True).id != first.id


def test_of_several_the_newest_is_reused(app, counts):
    older, newer = (counts.start(Params(1)) for _ in range(2))
    assert older.id != newer.id, "a plain start always makes a run"
    assert counts.start(Params(1), reuse=True).id == newer.id


def test_a_run_that_resumes_another_is_reused(app, counts):
    first = counts.start(Params(-1))
    app.drain()
    again = first.resume()
    assert counts.start(Params(-1), reuse=True).id == again.id


def test_what_has_ended_or_is_being_stopped_is_not_reused_h106(app, counts):
    ended = counts.start(Params(1))
    app.drain()
    cancelled = counts.start(Params(1), reuse=True)
    assert cancelled.id != ended.id
    cancelled.cancel("enough")
    assert counts.start(Params(1), reuse=True).id not in (ended.id, cancelled.id)


def test_a_run_that_is_being_stopped_is_not_reused_though_it_was_started_plainly_h106(app):
    batch = app.batch("stopped")
    seen = []

    @batch.step(retries=0)
    def work(ctx: mp.Context) -> None:
        if not seen:
            seen.append(run.cancel("enough"))
            seen.append(batch.start(reuse=True).id)
            ctx.check()

    run = batch.start()
    app.drain()
    assert seen[0] == "STOPPING"
    assert seen[1] != run.id


def test_the_order_of_parameters_is_nothing(app):
    batch = app.batch("plain", params=dict)

    @batch.step
    def work(params: dict) -> None: ...

    first = batch.start({"a": 1, "b": {"c": 2, "d": 3}})
    assert batch.start({"b": {"d": 3, "c": 2}, "a": 1}, reuse=True).id == first.id


def test_of_all_who_ask_at_once_one_starts_it(app, database):
    apps = [mp.App(database.url) for _ in range(4)]
    batches = [declared(own) for own in apps]
    together = Barrier(len(batches))

    def started(batch):
        together.wait()
        return batch.start(Params(7), reuse=True).id

    with ThreadPoolExecutor(len(batches)) as pool:
        assert len(set(pool.map(started, batches))) == 1
    for own in apps:
        own.close()


class Turned(JsonCodec):
    """Bytes that are no JSON, and not the same twice."""

    name = "turned"
    calls = 0

    def encode(self, value):
        Turned.calls += 1
        return bytes([Turned.calls % 256]) + super().encode(value)[::-1]

    def decode(self, data, type_=None):
        return super().decode(data[:0:-1]) if type_ is None else super().decode(data[:0:-1], type_)


def test_runs_whose_parameters_no_database_can_read_are_reused_too(database):
    app = mp.App(database.url, codec=Turned())
    counts = declared(app)
    first = counts.start(Params(1))
    assert counts.start(Params(1), reuse=True).id == first.id
    app.close()
