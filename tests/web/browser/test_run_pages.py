"""Runs and pipelines: gates, budgets, partitions and the watermark are drawn as they are."""

import asyncio
import re

from milepost.store.workers import advance_clock as advance
from tests.support import evening
from tests.support.browser import SOON_MS, follow, shown

CELLS = """() => [...document.querySelectorAll("tbody tr:first-child td.cell a")].map((cell) =>
  cell.dataset.state)"""
MARK = "() => document.querySelector('#pipe-watermark svg')?.getAttribute('aria-label')"


def begin(shop) -> str:
    """Start a run whose gate is shut: one of ten jobs before it waits, and one has failed."""
    [batch] = shop.app.batches
    run = batch.start({"count": 10, "first": 100})
    shop.app.drain(queues=["invoices"])
    return run.id


def let_go(shop) -> None:
    """Let the job go on that keeps the gate shut."""
    [waiting] = [job for job in shop.app.jobs.list(limit=50) if job.state == "WAITING"]
    waiting.signal({})
    shop.app.drain(queues=["invoices"])


async def test_a_gate_opens_before_ones_eyes_and_the_budget_is_the_policys(new_shop, opened):
    """Check 13."""
    run_id = await asyncio.to_thread(begin, new_shop)
    page = await opened(new_shop.address)
    await follow(page, f"/runs/{run_id}")
    assert await page.locator(".gate.closed").count() == 1
    budget = page.locator("#run-policy tr", has_text="render")
    assert re.search(r"1 of 2 allowed", await budget.inner_text())  # a fifth of ten jobs
    await asyncio.to_thread(let_go, new_shop)
    await page.wait_for_selector(".gate.opened", timeout=SOON_MS)
    assert await page.locator(".gate.closed").count() == 0


async def test_cells_are_partitions_and_the_watermark_moves_with_what_is_published(
    new_shop, opened, monkeypatch
):
    """Check 14."""
    pipeline, app = new_shop.app.pipelines["orders"], new_shop.app

    def read(*, full: bool = False) -> str:
        run = pipeline.start(full=full)
        app.drain(timeout=30)
        return run.id

    first = await asyncio.to_thread(read)
    page = await opened(new_shop.address)
    await follow(page, "/pipelines/orders")
    await shown(page, CELLS, await states(page, first))
    mark = await page.evaluate(MARK)
    monkeypatch.setattr(evening.Orders, "away", True)
    failed = await asyncio.to_thread(read, full=True)
    await follow(page, "/pipelines/orders")
    assert "FAILED" in await states(page, failed)
    await shown(page, CELLS, await states(page, failed))
    assert await page.evaluate(MARK) == mark
    monkeypatch.setattr(evening.Orders, "away", False)
    await asyncio.to_thread(app.client.run, advance, 5)
    await asyncio.to_thread(read, full=True)
    await page.wait_for_function(f"(was) => ({MARK})() !== was", arg=mark, timeout=SOON_MS)


async def states(page, run_id: str) -> list[str]:
    """Ask how a run's partitions stand."""
    answer = await page.request.get(f"/v1/runs/{run_id}/partitions")
    return [one["job_state"] for one in (await answer.json())["partitions"]]
