"""The page of errors: groups of a time, one closely, what its jobs share, and what can be done."""

import asyncio
import html
import re

import pytest

import milepost as mp
from milepost.client import acting
from milepost.store import errorlist, failures
from milepost.store.errorlist import Closer, ErrorLine
from milepost.web.dashboard import errors

HTML = {"Accept": "text/html"}
BUDGET = 3
SHARED = {"rail_counts", "view_list", "checked_list", "clock_now", "token_any"}
"""Asked once in a while for all pages, or to let somebody in."""
HOSTILE = '<script>alert(1)</script>"><img src=x> \x1b[31mred \u202eevil ' + "A" * 1_000_000


@pytest.fixture
def shop(app):
    """Jobs that fail in two ways, and one whose error is hostile."""

    @app.job(retries=3, retry_delay=3600, queue="payments")
    def charge(order: str) -> None:
        raise ValueError(f"503 for {order}")

    @app.job(retries=0)
    def refund(order: str) -> None:
        raise mp.Fail("nothing to refund", code="nothing")

    @app.job(retries=0)
    def hostile(text: str) -> None:
        raise RuntimeError(text)

    return charge, refund, hostile


async def fill(app, shop):
    charge, refund, _ = shop
    with acting("web", tenant="acme"):
        await charge.submit_many_async([("A-1",), ("A-2",)])
        await charge.options(retries=0).submit_async("A-3")
    await refund.submit_async("<b>A-9</b>")
    await app.drain_async()
    return {one.type: one for one in await app.client.run_async(failures.groups)}


async def test_bars_of_a_day_count_every_failure_and_those_of_two_hours_up_to_a_bound(
    app, shop, monkeypatch
):
    found = await fill(app, shop)
    name = found["ValueError"].fingerprint
    monkeypatch.setattr(errorlist, "LOOK", 2)
    counted = {}
    for hours in (2, 24, 168):
        bars = await app.client.run_async(errorlist.slots, [name], seconds=hours * 3600)
        counted[hours] = len(bars[name]), sum(bars[name])
    assert counted == {2: (48, 2), 24: (24, 3), 168: (42, 3)}
    assert await app.client.run_async(errorlist.slots, [], seconds=86_400) == {}


async def test_the_list_names_each_error_once_and_links_to_it(api, app, shop):
    found = await fill(app, shop)
    page = (await api.get("/errors", headers=HTML)).text
    assert "2 groups" in page
    assert "4 failures" in page
    for group in found.values():
        assert f'href="/errors/{group.fingerprint}"' in page
    assert page.count("<tr id=") == 2
    assert "refund" in page
    assert page.count('class="new">new') >= 2
    assert "That is all of 24 h." in page


async def test_the_error_that_is_shown_stays_the_same_while_others_come(api, app, shop):
    found = await fill(app, shop)
    page = (await api.get("/errors", headers=HTML)).text
    [kept] = re.findall(r'hx-sse:connect="/errors\?shown=([^"&]+)"', page)
    assert kept in {group.fingerprint for group in found.values()}
    [other] = {group.fingerprint for group in found.values()} - {kept}
    for shown, chosen in ((kept, kept), (other, other), ("gone", kept)):
        page = (await api.get("/errors", params={"shown": shown}, headers=HTML)).text
        assert re.findall(r'class="chosen[^<]*<td[^<]*<a[^>]*href="/errors/([^"]+)"', page) == [
            chosen
        ]


async def test_one_error_says_what_its_jobs_share_and_what_became_of_them(api, app, shop):
    group = (await fill(app, shop))["ValueError"]
    page = html.unescape((await api.get(f"/errors/{group.fingerprint}", headers=HTML)).text)
    assert "All are of <b>charge version 1</b>." in page
    assert "All are of queue <b>payments</b>." in page
    assert "All are of tenant <b>acme</b>." in page
    assert f'href="/jobs?q=fingerprint%3A{group.fingerprint}"' in page
    assert "Show 3 jobs" in page
    assert "Rerun 1…" in page
    assert f"q=fingerprint%3A{group.fingerprint}+state%3Afailed" in page
    assert 'href="/queues/payments/pause"' in page
    assert "1 failed" in page
    assert "2 will be tried again" in page
    assert 'order="A-' in page
    assert "innermost" in page
    assert f"milepost errors show {group.fingerprint}" in page


async def test_a_filter_looks_into_type_message_kind_and_place(api, app, shop):
    await fill(app, shop)
    for asked, rows in (("503", 1), ("kind:refund", 1), ("kind:charge 503", 1), ("VALUE", 1)):
        page = (await api.get("/errors", params={"q": asked}, headers=HTML)).text
        assert page.count("<tr id=") == rows, asked
    page = (await api.get("/errors", params={"q": "kind:nobody"}, headers=HTML)).text
    assert "No error matches" in page
    assert (await api.get("/errors?q=%00", headers=HTML)).status_code == 422


async def test_it_asks_three_things_of_the_store(api, app, shop, statements):
    group = (await fill(app, shop))["ValueError"]
    await api.get("/errors", headers=HTML)
    for path in ("/errors", f"/errors/{group.fingerprint}", "/errors?q=503&range=7d"):
        statements.clear()
        await api.get(path, headers=HTML)
        asked = [name for name in statements if name not in SHARED]
        assert len(asked) <= BUDGET, asked


async def test_an_error_that_is_not_there_is_a_404_and_nothing_is_an_empty_page(api, app):
    assert "Nothing failed" in (await api.get("/errors", headers=HTML)).text
    assert (await api.get("/errors/nothing@all/like%20it", headers=HTML)).status_code == 404


async def test_an_error_without_a_frame_has_a_page_too(api, app):
    @app.job(name="send/mail")
    def send(to: str) -> None:
        pass

    await send.options(start_in=1, deadline=0.001).submit_async("x")
    await asyncio.sleep(0.01)
    await app.drain_async()
    page = (await api.get("/errors", headers=HTML)).text
    assert "/errors/deadline%40send%2Fmail" in page
    page = await api.get("/errors/deadline%40send%2Fmail", headers=HTML)
    assert page.status_code == 200
    assert "not fail in code of yours" in page.text


async def test_hostile_texts_are_shown_and_do_nothing(api, app, shop):
    await shop[2].submit_async(HOSTILE)
    await app.drain_async()
    page = (await api.get("/errors", headers=HTML)).text
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert len(page) < 100_000


async def test_a_bound_token_sees_no_errors_and_a_reader_cannot_rerun(app, api, token, shop):
    group = (await fill(app, shop))["ValueError"]
    bound = token("bound", "read", tenant="acme")
    answer = await api.get("/errors", headers={**HTML, **bound})
    assert answer.status_code == 403
    reader = token("reader", "read")
    page = (await api.get(f"/errors/{group.fingerprint}", headers={**HTML, **reader})).text
    assert re.search(r'aria-disabled="true" title="needs the scope operate">Rerun 1', page)


def closer(**shared):
    return Closer((), shared, {"FAILED": 4}, 0)


@pytest.mark.parametrize(
    ("shared", "told"),
    [
        (
            {"kind": {"a": 4}, "version": {"2": 4}, "queue": {"q": 4}, "tenant": {"": 4}},
            "All are of a version 2. All are of queue q.",
        ),
        (
            {"kind": {"a": 4}, "version": {"2": 3, "1": 1}, "queue": {"q": 4}, "tenant": {"t": 1}},
            "All are of a, version 2 in 75 %. All are of queue q. 25 % are of tenant t.",
        ),
        (
            {
                "kind": {"a": 2, "b": 2},
                "version": {"1": 4},
                "queue": {"q": 3, "p": 1},
                "tenant": {"": 4},
            },
            "50 % are of a. All are of version 1. 75 % are of queue q.",
        ),
    ],
)
def test_what_jobs_share_is_said_in_sentences(shared, told):
    pieces = errors.shares(closer(**shared))
    assert "".join(f"{before}{name}{behind}" for before, name, behind in pieces).strip() == told


def test_jobs_that_are_gone_are_said_to_be():
    [(before, *_)] = errors.shares(Closer((), {}, {}, 0))
    assert "removed" in before


def test_words_are_looked_for_where_they_are_bound_to():
    last = failures.attempt_of(1, 0, '{"type": "E", "message": "no: kind", "place": "p.py"}', "f")
    line = ErrorLine(last, "j", "charge", last.at, 1, 0)
    assert errors.matches(line, "kind:charge p.py")
    assert errors.matches(line, "no: F")
    assert not errors.matches(line, "place:charge")
