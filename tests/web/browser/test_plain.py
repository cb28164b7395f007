"""Without JavaScript pages are links and forms, and confirmations are pages."""

import asyncio
import re

import milepost as mp
from tests.support import evening
from tests.support.browser import follow
from tests.support.serving import served


async def test_pages_are_linked_and_shown_without_scripts(shop, opened):
    page = await opened(shop.address, java_script_enabled=False)
    await page.goto("/")
    for name in ("Jobs", "Errors", "Runs", "Pipelines", "Queues & workers", "Limits", "Schedules"):
        await page.locator(".rail").get_by_role("link", name=name).first.click()
        assert await page.locator("h1").inner_text() == name
    await page.goto("/jobs")
    await page.fill("#token-input", "state:failed")
    await page.press("#token-input", "Enter")
    await page.wait_for_url("**/jobs?q=state%3Afailed")
    await page.locator("[data-row] a").first.click()
    await page.wait_for_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))
    assert await page.locator("#job-why").is_visible()


async def test_under_a_prefix_pages_lead_to_each_other_and_are_live(new_shop, opened):
    """Every link, form and stream stays under the mount."""
    server = mp.App(new_shop.url)
    evening.declare(server)
    with served(server, under="/ops/milepost") as address:
        page = await opened(address.removesuffix("/ops/milepost"))
        await page.goto(f"{address}/")
        for name in ("Jobs", "Runs", "Queues & workers", "Limits", "Schedules"):
            await page.locator(".rail").get_by_role("link", name=name).first.click()
            await page.get_by_role("heading", level=1, name=name).wait_for()
            assert page.url.startswith(f"{address}/")
        new = new_shop.app.new_job("payments.charge", ["A-1"], {"amount": 9_900}, {})
        [job_id] = await asyncio.to_thread(new_shop.app.client.create, [new])
        await page.goto(f"{address}/jobs")
        await page.locator("[data-row] a").first.click()
        await page.wait_for_url(f"{address}/jobs/{job_id}")
        await asyncio.to_thread(new_shop.app.jobs.get(job_id).cancel, "no more")
        await page.get_by_text("no more").first.wait_for()
        assert all(path.startswith("/ops/milepost/") for path in page.watch.requests)
        await page.goto("about:blank")  # its stream ends before the server does
    server.close()


async def test_actions_are_confirmed_on_pages_and_done_without_scripts(empty_shop, opened):
    shop = empty_shop
    failed = await asyncio.to_thread(fail_one, shop)
    page = await opened(shop.address, java_script_enabled=False)
    await page.goto("/queues")
    await page.get_by_role("link", name="Pause…").first.click()
    await page.fill("[name=reason]", "maintenance")
    await page.get_by_role("button", name="Pause").click()
    assert "maintenance" in await page.inner_text("#queue-list")
    await page.goto("/jobs?q=state%3Afailed")
    await page.locator("[name=id]").first.check()
    await page.locator("[data-bulk][value=rerun]").click()
    await page.get_by_role("button", name="Rerun 1").click()
    assert "1 job run again" in await page.inner_text(".notice")
    again = await asyncio.to_thread(lambda: shop.app.jobs.get(failed).rerun_by)
    assert again is not None


def fail_one(shop) -> str:
    """Let a job fail."""
    new = shop.app.new_job("payments.charge", ["A-1"], {"amount": 9_900}, {})
    [job_id] = shop.app.client.create([new])
    shop.app.drain()
    return job_id


async def test_a_dialog_is_the_same_question_as_the_page(shop, opened):
    page = await opened(shop.address)
    await follow(page, "/queues")
    await page.get_by_role("link", name="Pause…").first.click()
    await page.wait_for_selector("dialog#dialog[open]")
    in_dialog = await page.inner_text("dialog#dialog h2")
    await page.keyboard.press("Escape")
    await page.wait_for_selector("dialog#dialog", state="hidden")
    await page.goto(await page.get_by_role("link", name="Pause…").first.get_attribute("href"))
    assert in_dialog in await page.inner_text("main")
