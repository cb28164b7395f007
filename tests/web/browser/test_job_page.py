"""The page of a job: what stands in its way, its error at first sight, the path that it took."""

import asyncio
import re

from tests.support.browser import follow

EXPLAINED = "() => [...document.querySelectorAll('#job-why .explained')].map((p) => p.textContent)"
WALKED = """() => [...document.querySelectorAll("#job-path [data-moves]")].flatMap((edge) =>
  edge.dataset.moves.split(" ").map((move) =>
    [edge.dataset.from, edge.dataset.to, ...move.split(":")].join(" ")))"""


async def test_a_job_is_explained_in_the_words_of_the_command(each_shop, opened):
    """Check 10: for a job in every state of the evening, and behind every blocker there."""
    page = await opened(each_shop.address)
    found = await asyncio.to_thread(blocked, each_shop)
    seen = set()
    for job_id in found:
        await follow(page, f"/jobs/{job_id}")
        told = await asyncio.to_thread(each_shop.app.explain, "job", job_id)
        shown = await page.evaluate(EXPLAINED)
        assert [timeless(one) for one in shown] == [timeless(one) for one in told.details]
        assert timeless(told.next) in timeless(await page.inner_text("#job-why .next"))
        seen |= set(told.reasons)
    assert len(seen) >= 8, seen


def timeless(text: str) -> str:
    """Leave out how long something takes: time passes between two looks."""
    return re.sub(r"[\d.,]+ (s|seconds|min|minutes|h|hours)\b", "some time", text)


def blocked(shop) -> list[str]:
    """Name a job of each queue and state."""
    found = {}
    for job in shop.app.jobs.list(limit=200):
        found.setdefault((job.queue, job.state), job.id)
    return list(found.values())


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
