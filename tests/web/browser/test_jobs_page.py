"""The list of jobs: it holds still, its address is all of it, and its actions are counted."""

import asyncio
import re

from tests.support.browser import SOON_MS, follow

TOKENS = "() => [...document.querySelectorAll('.token')].map((one) => one.textContent.trim())"
ROWS = "() => [...document.querySelectorAll('[data-row]')].map((row) => row.id)"
PICKED = "() => document.querySelectorAll('[name=id]:checked').length"
NUMBERS = """() => [...document.querySelectorAll("#dialog .counted dd")].map((one) =>
  Number(one.textContent.replaceAll(",", "")))"""
ALL = "/jobs?q=queue%3Apayments+state%3Afailed"
OPEN = "dialog#dialog[open]"


def fail(shop, number: int) -> list[str]:
    """Let so many jobs fail."""
    made = [
        shop.app.new_job("payments.charge", [f"F-{n}"], {"amount": 9_500}, {})
        for n in range(number)
    ]
    ids = shop.app.client.create(made)
    shop.app.drain(queues=["payments"])
    return ids


async def test_rows_hold_still_while_jobs_arrive(each_shop, opened):
    """Check 5."""
    page = await opened(each_shop.address)
    await follow(page, "/jobs?q=queue%3Aindex")
    rows, first = await page.evaluate(ROWS), page.locator("[data-row]").first
    box = await first.bounding_box()

    def arrive():
        new = [each_shop.app.new_job("index.rebuild", [n], {}, {}) for n in range(50)]
        return each_shop.app.client.create(new)

    made = await asyncio.to_thread(arrive)
    pill = page.locator("#job-missing")
    await pill.filter(has_text="50 new jobs match").wait_for(timeout=SOON_MS)
    assert await page.evaluate(ROWS) == rows
    assert await first.bounding_box() == box
    await page.keyboard.press(".")
    await page.wait_for_selector(f"#job-{made[-1]}")


async def test_a_filter_is_its_address(shop, opened):
    """Check 6."""
    page = await opened(shop.address)
    await follow(page, "/jobs?q=queue%3Apayments")
    before = await page.evaluate(TOKENS), await page.evaluate(ROWS)
    await page.locator("[name=id]").first.check()
    await page.fill("#token-input", "state:failed")
    await page.press("#token-input", "Enter")
    await page.wait_for_url("**/jobs?q=queue%3Apayments+state%3Afailed")
    narrowed = await page.evaluate(TOKENS), await page.evaluate(ROWS)
    assert len(narrowed[0]) == 2
    assert set(narrowed[1]) < set(before[1])
    await page.reload()
    assert (await page.evaluate(TOKENS), await page.evaluate(ROWS)) == narrowed
    await page.go_back()
    assert (await page.evaluate(TOKENS), await page.evaluate(ROWS)) == before
    assert await page.evaluate(PICKED) == 0


async def test_an_unknown_token_lists_nothing_and_names_what_is_known(shop, opened):
    """Check 7."""
    page = await opened(shop.address)
    await page.goto("/jobs?q=stat%3Afailed")
    assert await page.evaluate(ROWS) == []
    assert "state" in await page.inner_text(".empty")
    underlined = "(one) => getComputedStyle(one).textDecorationLine"
    assert "underline" in await page.locator(".wrong-token span").first.evaluate(underlined)


async def ask_for_all(page) -> None:
    """Ask to rerun everything that matches."""
    await follow(page, ALL)
    await page.locator("[name=id]").first.check()
    await page.check("#take-all")
    await page.click("[data-bulk][value=rerun]")
    await page.wait_for_selector(OPEN)


async def test_a_rerun_by_filter_is_counted_confirmed_and_not_done_twice(new_shop, opened):
    """Checks 8 and 9."""
    await asyncio.to_thread(fail, new_shop, 103)
    page = await opened(new_shop.address)
    await ask_for_all(page)
    assert sum(await page.evaluate(NUMBERS)) == 103
    button = page.locator("#dialog [data-guarded]")
    for typed in ("", "10", "1034", "102"):
        await page.fill("#typed", typed)
        assert await button.is_disabled(), typed
    await page.fill("#typed", "103")
    assert await button.is_enabled()
    await page.uncheck("#dialog [name=slowly]")
    await button.click()
    await page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))
    await asyncio.to_thread(new_shop.app.drain, queues=["bulk"])
    await ask_for_all(page)
    [run, *left_out] = await page.evaluate(NUMBERS)
    assert (run, sum(left_out)) == (0, 103)
    assert await page.locator("#dialog .button.primary").is_disabled()


async def test_the_keyboard_alone_filters_selects_reruns_and_opens(new_shop, opened):
    """Check 15."""
    await asyncio.to_thread(fail, new_shop, 5)
    page = await opened(new_shop.address)
    await follow(page, "/")
    keys = page.keyboard
    await keys.press("g")
    await keys.press("j")
    await page.wait_for_url("**/jobs")
    await page.wait_for_selector("#live[data-state=on]", state="attached")
    for _ in range(60):
        if await page.evaluate("document.activeElement.id") == "token-input":
            break
        await keys.press("Tab")
    await keys.type("state:failed")
    await keys.press("Enter")
    await page.wait_for_url("**/jobs?q=state%3Afailed")
    await page.wait_for_selector("#live[data-state=on]", state="attached")
    for key in "jxjxjx":
        await keys.press(key)
    assert await page.evaluate(PICKED) == 3
    await keys.press("r")
    await page.wait_for_selector(OPEN)
    await page.locator("#dialog .button.primary").focus()
    await keys.press("Enter")
    await page.wait_for_selector(".notice")
    assert "3 jobs run again" in await page.inner_text(".notice")
    await keys.press("j")
    await keys.press("Enter")
    await page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))


async def test_what_was_typed_is_searched_not_an_older_suggestion(shop, opened):
    """Whoever types fast is ahead of the suggestions."""
    page = await opened(shop.address)
    await follow(page, "/jobs")
    await page.type("#token-input", "state:")
    await page.wait_for_selector("#suggestions [aria-selected=true]")
    held = asyncio.Event()

    async def hold(route):
        await held.wait()
        await route.abort()

    await page.route("**/jobs/suggest*", hold)
    await page.type("#token-input", "failed")
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/jobs?q=state%3Afailed")
    held.set()
