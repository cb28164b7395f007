"""Jobs as a page lists them: rows, the same rows again, and counts; each is one statement."""

import time

import pytest

import milepost as mp
from milepost.filters import Where, parse
from milepost.store import joblist
from milepost.store.joblist import Count


@pytest.fixture
def shop(app):
    @app.job(retries=0)
    def sell(price: int) -> None:
        if price % 2:
            raise mp.Fail("too dear", code="dear")

    @app.job(queue="slow")
    def pack(box: int) -> int:
        return box

    app.sell, app.pack = sell, pack
    return app


def now_us():
    return time.time_ns() // 1000


def page(app, text="", **how):
    how = {"now_us": now_us(), "most": 50, **how}
    return app.client.run(joblist.page, parse(text), **how)


def ids(found):
    return [line.job.id for line in found]


@pytest.mark.parametrize("text", ["", "kind:sell", "tag.for:you", "error:dear", "state:queued"])
def test_a_page_goes_on_where_the_one_before_ended(shop, text):
    jobs = [shop.sell.options(tags={"for": "you"}).submit(1) for _ in range(5)]
    if text == "error:dear":
        shop.drain()
    newest = [job.id for job in reversed(jobs)]
    first = page(shop, text, most=2)
    second = page(shop, text, most=2, before=first.next)
    third = page(shop, text, most=2, before=second.next)
    assert [ids(one) for one in (first, second, third)] == [newest[:2], newest[2:4], newest[4:]]
    assert (third.next, third.looked_to) == (None, None)


def test_a_page_says_up_to_where_it_looked(shop, monkeypatch):
    monkeypatch.setattr(joblist, "LOOK", 3)
    rare = shop.pack.submit(1)
    for _ in range(4):
        shop.sell.submit(2)
    first = page(shop, "kind:pack")
    assert (ids(first), first.more) == ([], True)
    assert abs(first.looked_to.timestamp() - time.time()) < 60
    assert ids(page(shop, "kind:pack", before=first.next)) == [rare.id]


def test_rows_are_read_again_with_what_became_of_them_and_what_is_missing(shop):
    jobs = [shop.sell.submit(price) for price in range(4)]
    shown = ids(page(shop, "state:queued"))
    again = lambda: shop.client.run(  # noqa: E731 - asked three times
        joblist.again, parse("state:queued"), shown, now_us=now_us(), is_last=True
    )
    assert (ids(again().lines), again().missing) == (shown, Count(0))
    shop.drain()
    late = shop.sell.submit(2)
    found = again()
    assert (ids(found.lines), found.missing) == (shown, Count(1))
    assert [line.fits for line in found.lines] == [False] * 4
    assert {line.job.state for line in found.lines} == {"SUCCEEDED", "FAILED"}
    assert late.id not in shown
    assert len(jobs) == len(shown)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("", {"FAILED": 2, "SUCCEEDED": 3, "QUEUED": 1}),
        ("state:failed", {"FAILED": 2, "SUCCEEDED": 3, "QUEUED": 1}),
        ("queue:slow", {"SUCCEEDED": 1, "QUEUED": 1}),
        ("-queue:slow", {"FAILED": 2, "SUCCEEDED": 2}),
        ("kind:sell", {"FAILED": 2, "SUCCEEDED": 2}),
        ("kind:sell age:<1h", {"FAILED": 2, "SUCCEEDED": 2}),
        ("error:dear state:queued", {"FAILED": 2}),
        ("tag.box:red", {"QUEUED": 1}),
    ],
)
def test_jobs_are_counted_by_state_without_the_term_for_it(shop, text, counted):
    for price in range(4):
        shop.sell.submit(price)
    shop.pack.submit(1)
    shop.drain()
    shop.pack.options(tags={"box": "red"}).submit(2)
    found = shop.client.run(joblist.counts, parse(text), now_us=now_us())
    assert {word: one.number for word, one in found.of.items() if one.number} == counted
    assert not found.total().more


def test_a_count_that_stops_early_says_so(shop, monkeypatch):
    monkeypatch.setattr(joblist, "COUNT_LOOK", 3)
    for _ in range(5):
        shop.sell.submit(2)
    found = shop.client.run(joblist.counts, parse("kind:sell"), now_us=now_us())
    assert found.of["QUEUED"] == Count(3, more=True)
    by_kind = shop.client.run(joblist.counts_by, "kind", Where(), now_us=now_us())
    assert by_kind.of == {"sell": Count(5)}


def test_large_content_is_told_by_its_size(app):
    @app.job
    def keep(text: str) -> None: ...

    keep.submit("x" * 100_000)
    [line] = page(app)
    assert (line.job.payload, line.job.size > 100_000) == (None, True)
