"""What somebody opened, ticked or copied stays and is true, while parts of the page change."""

import asyncio

from tests.support.browser import SCREENS, SOON_MS, follow

MORE = "#attention [for=more-needs]"
BEYOND = "#attention .beyond"


def trouble(shop) -> None:
    """Pause more queues than the overview names at first."""
    for name in ("one", "two", "three", "four", "five"):
        shop.app.queues.pause(name, "maintenance")


async def test_what_was_opened_stays_open_while_its_part_changes(new_shop, opened):
    await asyncio.to_thread(trouble, new_shop)
    page = await opened(new_shop.address)
    await follow(page, "/")
    assert await page.locator(BEYOND).first.is_hidden()
    await page.click(MORE)
    part = await page.query_selector("#attention")
    await asyncio.to_thread(new_shop.app.queues.pause, "six", "maintenance")
    await page.locator("#attention", has_text="Queue six is paused").wait_for(timeout=SOON_MS)
    assert not await part.evaluate("(one) => one.isConnected")  # it was swapped
    assert await page.locator(BEYOND).first.is_visible()


FOLDED = "<details{}><summary>a</summary></details><details><summary>b</summary></details>"
SWAP = """([was, comes]) => {
  const $ = (selector) => document.querySelector(selector);
  $("#queue-list").innerHTML = was;
  const html = `<section id="queue-list">${comes}</section>`;
  const data = JSON.stringify({ id: "queue-list", mark: "other", html });
  $("#stream").dispatchEvent(new CustomEvent("part", { detail: { data } }));
  const folds = [...document.querySelectorAll("#queue-list details")];
  return [...folds.map((one) => one.open), $("#ticked").checked];
}"""


async def test_what_was_unfolded_or_ticked_stays_so_in_any_part(new_shop, opened):
    page = await opened(new_shop.address)
    await page.goto("/queues")
    ticked = "<input type=checkbox id=ticked{}>"
    was = FOLDED.format(" open") + ticked.format(" checked")
    comes = FOLDED.format("") + ticked.format("")
    assert await page.evaluate(SWAP, [was, comes]) == [True, False, True]


async def test_changes_of_numbers_are_not_read_out(new_shop, opened):
    """The live region has the troubles alone, and is not replaced with what it says."""
    await asyncio.to_thread(trouble, new_shop)
    page = await opened(new_shop.address)
    await follow(page, "/")
    spoken = page.locator("[aria-live=polite]")
    assert await spoken.count() == 1
    region = await spoken.element_handle()
    assert "Queue one is paused" in await region.inner_text()
    assert not any(letter.isdigit() for letter in await region.inner_text())
    await asyncio.to_thread(new_shop.app.queues.pause, "six", "maintenance")
    await spoken.filter(has_text="Queue six is paused").wait_for(timeout=SOON_MS, state="attached")
    assert await region.evaluate("(one) => one.isConnected")


async def test_the_command_of_a_screen_is_read_and_copied(shop, opened):
    page = await opened(shop.address, permissions=["clipboard-read", "clipboard-write"])
    await page.goto("/queues")
    await page.click(".cli summary")
    line = page.locator("#cli-line")
    assert (await line.bounding_box())["height"] < 30
    await page.click(".cli [data-copy]")
    assert await page.evaluate("navigator.clipboard.readText()") == await line.inner_text()


async def test_the_command_of_a_screen_is_there_on_a_phone(shop, opened):
    page = await opened(shop.address, screen="phone")
    await page.goto(f"/jobs/{shop.seen.failed}")
    await page.click(".tabs summary")
    line = page.locator(".tabs code")
    assert await line.inner_text() == f"milepost jobs show {shop.seen.failed}"
    box = await line.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= SCREENS["phone"][0]


async def test_nothing_is_said_to_be_copied_that_was_not(shop, opened):
    """Browsers have no clipboard for scripts of a page that came without TLS."""
    page = await opened(shop.address)
    await page.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined });"
        "document.execCommand = () => false;"
    )
    await page.goto("/queues")
    await page.click(".cli summary")
    await page.click(".cli [data-copy]")
    assert await page.inner_text(".cli [data-copy]") != "Copied"
    chosen = await page.evaluate("getSelection().toString()")
    assert chosen == await page.inner_text("#cli-line")


async def test_the_overview_is_one_screen(shop, opened):
    page = await opened(shop.address)
    await page.goto("/")
    for part in ("#latest-errors", "#worst-queues"):
        box = await page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= SCREENS["desktop"][1], part
