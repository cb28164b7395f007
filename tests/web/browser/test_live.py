"""What is shown is the store's: at once, while somebody looks, and after the server was away."""

import asyncio
import re
from urllib.parse import urlsplit

import pytest

from tests.support.browser import SOON_MS, follow, shown
from tests.support.prove import PROVING
from tests.support.serving import served

QUIET_MS = 10_000 if PROVING else 2_000
BEATS = {"clock_now", "token_any"}
COUNTS = """
() => Object.fromEntries([...document.querySelectorAll("#machine table tr")].map((row) =>
  [row.cells[0].textContent.toUpperCase(), Number(row.cells[1].textContent.replaceAll(",", ""))]))
"""
SHOWS = "([state, number]) => (%s)()[state] === number" % COUNTS.strip()  # noqa: UP031
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


async def shows(page, state: str, number: int) -> None:
    """Wait until the overview counts so many."""
    await page.wait_for_function(SHOWS, arg=[state, number], timeout=SOON_MS)


async def queued_now(shop, page) -> int:
    """Wait until the overview counts what the store does, and give how many are queued."""
    held = await asyncio.to_thread(shop.counts)
    await shown(page, COUNTS, held)
    return int(held["QUEUED"])


async def test_the_overview_counts_what_the_store_counts_and_links_to_as_many(each_shop, opened):
    """Check 3."""
    page = await opened(each_shop.address)
    await follow(page, "/")
    held = await asyncio.to_thread(each_shop.counts)
    await shown(page, COUNTS, held)
    for state, number in held.items():
        link = page.locator(f'#machine .on-wide a[href*="state%3A{state.lower()}"]')
        assert f": {number:,} job" in await link.get_attribute("aria-label"), state
        listed = await page.request.get(await link.get_attribute("href"))
        found = re.search(r'id="job-matches"[^>]*>([\d,]+) match', await listed.text())
        assert found is not None, state
        assert int(found[1].replace(",", "")) == number, state


async def test_a_submitted_job_is_counted_without_a_reload(each_shop, opened):
    """Check 4."""
    page = await opened(each_shop.address)
    await follow(page, "/")
    await page.evaluate("window.kept = true")
    queued = await queued_now(each_shop, page)
    await asyncio.to_thread(each_shop.submit, "index.rebuild", 7)
    await shows(page, "QUEUED", queued + 1)
    assert await page.evaluate("window.kept")


async def test_a_hidden_tab_asks_nothing_and_is_right_when_it_is_back(each_shop, opened):
    """Check 16, its first half."""
    page = await opened(each_shop.address)
    await follow(page, "/")
    queued = await queued_now(each_shop, page)
    await page.evaluate(HIDE, True)
    await ended(each_shop)
    each_shop.asked.clear()
    page.watch.requests.clear()
    await asyncio.to_thread(each_shop.submit, "index.rebuild", 7)
    await page.wait_for_timeout(QUIET_MS)
    assert (each_shop.asked, page.watch.requests) == ([], [])
    assert (await page.evaluate(COUNTS))["QUEUED"] == queued
    await page.evaluate(HIDE, False)
    await shows(page, "QUEUED", queued + 1)


async def ended(shop) -> None:
    """Wait until the server reads no page any more."""
    for _ in range(200):
        asked = len(shop.asked)
        await asyncio.sleep(0.7)
        if len(shop.asked) == asked:
            return
    pytest.fail("the server goes on asking")


async def test_a_page_goes_on_after_the_server_was_away(empty_shop, opened):
    """Check 16, its second half."""
    shop = empty_shop
    shop.submit("index.rebuild", 1)
    with served(shop.server) as address:
        page = await opened(address)
        await follow(page, "/")
        await shows(page, "QUEUED", 1)
        page.watch.is_cut_off = True
    shop.submit("index.rebuild", 2)
    with served(shop.server, port=urlsplit(address).port):
        await page.wait_for_function(SHOWS, arg=["QUEUED", 2], timeout=60_000)
        await page.wait_for_selector("#live[data-state=on]")


async def test_nothing_moves_for_those_who_want_no_motion(shop, opened):
    """Check 17."""
    page = await opened(shop.address, reduced_motion="reduce")
    for path in ("/", "/queues", f"/jobs/{shop.seen.retrying}"):
        await follow(page, path)
        assert await page.evaluate("document.getAnimations().length") == 0, path


async def test_a_page_whose_stream_was_refused_at_first_asks_again(shop, opened):
    """A page that came while a server was started anew."""
    page = await opened(shop.address)
    page.watch.is_cut_off, refused = True, []

    async def refuse_once(route):
        if "event-stream" in route.request.headers.get("accept", "") and not refused:
            refused.append(route.request.url)
            await route.abort()
        else:
            await route.continue_()

    await page.route("**/queues", refuse_once)
    await page.clock.install()
    async with page.expect_event("requestfailed"):
        await page.goto("/queues")
    await page.clock.fast_forward(13_000)
    await page.wait_for_selector("#live[data-state=on]")
