"""Steps under limits: outputs become jobs without user code, and have their keys all the same."""

from collections.abc import Iterator

import pytest

import milepost as mp
from milepost.batch import outputs
from milepost.client import acting

pytestmark = pytest.mark.both_stores


def keys(app, kind):
    found = app.jobs.list(kind=kind, limit=999)
    return sorted((job.limit or "-", job.limit_key or "-") for job in found)


@pytest.mark.parametrize("way", ["along", "staged"])
def test_each_output_is_counted_under_the_key_of_its_step(app, monkeypatch, way):
    if way == "staged":
        monkeypatch.setattr(outputs, "CHUNK", 2)
        monkeypatch.setattr(outputs, "ALONG_BYTES", 0)
    batch = app.batch("b", params=int)

    @batch.step(limit=mp.Limit(2, key=lambda count: f"of {count}"))
    def split(count: int) -> Iterator[int]:
        yield from range(count)
        yield mp.to("last", 99)

    @batch.step(limit=mp.Limit(2, key="n", name="rows"))
    def load(n: int) -> int:
        return n

    @batch.step(limit=mp.Limit(key="tenant"))
    def last(n: int) -> None: ...

    with acting("api", tenant="acme"):
        run = batch.start(3)
    app.drain(5)
    assert run.refresh().state == "SUCCEEDED"
    assert keys(app, "b.split") == [("b.split", "of 3")]
    assert keys(app, "b.load") == [("rows", str(n)) for n in range(3)]
    assert keys(app, "b.last") == [("b.last", "acme")] * 4


def test_items_that_are_added_and_jobs_of_a_resumed_run_have_their_keys(app):
    broken = {"b"}
    batch = app.batch("b", params=str, policy=mp.Collect())

    @batch.step(limit=mp.Limit(1, key="item"))
    def load(item: str) -> str:
        return item

    @batch.step(limit=mp.Limit(1, key="item", ordered=True), retries=0)
    def check(item: str) -> None:
        if item in broken:
            raise ValueError(item)

    run = batch.start("", hold=True)
    assert run.add(["a", "b", "c"]) == 3
    run.submit()
    app.drain(5)
    assert run.refresh().state == "FAILED"
    broken.clear()
    again = run.resume()
    app.drain(5)
    assert again.refresh().state == "SUCCEEDED"
    assert keys(app, "b.load") == [("b.load", item) for item in "abc"]
    assert keys(app, "b.check") == [("b.check", item) for item in "abbc"]


def test_an_output_without_a_key_fails_its_producer_by_the_parameters_name_l9(app):
    batch = app.batch("b")

    @batch.step(retries=0)
    def find() -> dict[str, str]:
        return {}

    @batch.step(limit=mp.Limit(1, key=lambda order: order.get("customer")))
    def bill(order: dict[str, str]) -> None: ...

    run = batch.start()
    app.drain()
    assert run.refresh().state == "FAILED"
    [error] = run.errors
    assert "the limit key of b.bill is None" in error.message


def test_what_there_is_one_of_in_a_run_takes_no_limit(app):
    batch = app.batch("b")
    for declare in (batch.reduce, batch.on_success, batch.on_failure):
        with pytest.raises(mp.Invalid, match="takes no limit, a run has one of them"):
            declare(limit=mp.Limit(1))(lambda found: None)
