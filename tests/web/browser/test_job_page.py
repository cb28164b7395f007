"""The page of a job: what stands in its way, its error at first sight, the path that it took."""

import asyncio

from tests.support.browser import follow

WALKED = """() => [...document.querySelectorAll("#job-path [data-moves]")].flatMap((edge) =>
  edge.dataset.moves.split(" ").map((move) =>
    [edge.dataset.from, edge.dataset.to, ...move.split(":")].join(" ")))"""


async def test_a_failed_jobs_own_frame_is_seen_without_scrolling(shop, opened):
    """Check 11."""
    page = await opened(shop.address)
    await follow(page, f"/jobs/{shop.seen.failed}")
    frame = page.locator("#job-error .frame.own.innermost")
    assert "evening.py" in await frame.inner_text()
    box = await frame.bounding_box()
    assert box["y"] + box["height"] <= 900


async def test_the_lit_path_is_the_jobs_history(each_shop, opened):
    """Check 12."""
    page = await opened(each_shop.address)
    seen = each_shop.seen
    for job_id in (seen.failed, seen.retrying, seen.waiting, seen.cancelled):
        await follow(page, f"/jobs/{job_id}")
        history = await asyncio.to_thread(lambda one: each_shop.app.jobs.get(one).history, job_id)
        moves = [(entry.from_state or "", entry.to_state, entry.move) for entry in history]
        counted = {" ".join([*move, str(moves.count(move))]) for move in moves}
        assert set(await page.evaluate(WALKED)) == counted
