"""The pages of pipelines: the watermark, partitions by run, quarantine, and what can be done."""

import re
from datetime import UTC, datetime
from html import unescape
from itertools import accumulate
from urllib.parse import quote

import httpx2
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

import milepost as mp
from milepost.store import blockers, pipeline_page
from milepost.web.api import create_api
from milepost.web.dashboard import words
from milepost.web.dashboard.pipeline_figures import BARS, density_bars

HTML = {"Accept": "text/html"}
HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e"><img src=x onerror=alert(1)>'


class Stones(mp.Source):
    """Twelve stones; the second partition may be away, and records may be gone."""

    broken = False
    gone = 0

    def count(self, window, low, high):
        return len([n for n in range(12 - self.gone) if low <= n < high])

    def fetch(self, window, partition, cursor):
        if self.broken and partition.ordinal == 1:
            raise mp.Fail(HOSTILE)
        rows = [n for n in range(12 - self.gone) if partition.low <= n < partition.high]
        return mp.Page([{"id": n, "price": n} for n in rows])

    def map(self, raw):
        if raw["id"] == 5:
            raise mp.Reject(f"no fives {HOSTILE}")
        return raw


@pytest.fixture
def source() -> Stones:
    return Stones()


@pytest.fixture
def pipeline(app, source):
    return app.pipeline(
        *("stones", source), key="id", partition_by="price", partitions=2, fresh_within=3600
    )


@pytest_asyncio.fixture
async def pages(app: mp.App, pipeline):
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=HTML
    ) as client:
        yield client
    await app.client.close_async()


async def run_one(app, pipeline, **options) -> str:
    run = await pipeline.start_async(**options)
    await app.drain_async(timeout=20)
    return run.id


async def send(pages, path: str, **fields: str) -> httpx2.Response:
    asked = await pages.get(path)
    token = re.findall(r'name="form_token" value="([^"]+)"', asked.text)[-1]
    return await pages.post(path.partition("?")[0], data={"form_token": token, **fields})


def is_inert(text: str) -> None:
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


async def test_a_pipeline_that_never_ran_can_be_started(app, pages, pipeline):
    assert "never ran" in (await pages.get("/pipelines")).text
    assert "It has never run" in (await pages.get("/pipelines/stones")).text
    done = await send(pages, "/pipelines/stones/start", what="incremental")
    assert (done.status_code, done.headers["location"]) == (303, "/pipelines/stones")
    [run] = await app.runs.list_async(kind="stones")
    assert run.record.mode == "full"
    assert (await pages.get("/pipelines/nothing")).status_code == 404


async def test_cells_show_the_states_of_partitions_and_the_trouble_is_named(
    app, pages, pipeline, source
):
    await run_one(app, pipeline)
    before = await pipeline.watermark_async()
    source.broken = True
    run_id = await run_one(app, pipeline, full=True)
    shown = (await pages.get("/pipelines/stones")).text
    is_inert(shown)
    text = unescape(re.sub(r"<[^>]+>", " ", shown))
    run = await pipeline.run_async(run_id)
    for part in await run.partitions_async():
        where = f"run={run_id}&amp;partition={part.ordinal}"
        [state] = re.findall(rf'{re.escape(where)}"[^>]*data-state="(\w+)"', shown)
        assert state == part.state
    assert re.search(r"Partition 1 \([^)]+ up to the last\) failed", text)
    assert "1 of 2 were read to their ends" in text
    assert "no fives" in text
    # It moves only with what is published.
    assert await pipeline.watermark_async() == before
    assert f"watermark {before:%H:%M:%S}" in text
    told = await app.client.run_async(blockers.explain_pipeline, "stones")
    for detail in (told.heading, *told.details[1:], told.next):
        assert detail in unescape(shown)


@given(st.lists(st.tuples(st.floats(1e-6, 1e6), st.integers(0, 10_000)), min_size=1, max_size=40))
def test_every_record_is_under_one_bar_of_the_density(widths):
    """Cells are as narrow as keys are dense; a bar of a cell's own width could not be seen."""
    bounds = list(accumulate((width for width, _ in widths), initial=10.0))
    counts = [count for _, count in widths]
    cells = [
        (low, high, count, ())
        for low, high, count in zip(bounds, bounds[1:], counts, strict=False)
        if high > low
    ]
    bars = density_bars(cells)
    assert len(bars) == BARS
    assert sum(bars) == pytest.approx(sum(count for _, _, count, _ in cells))


async def test_a_partition_is_chosen_by_the_address(app, pages, pipeline):
    run_id = await run_one(app, pipeline)
    shown = (await pages.get(f"/pipelines/stones?run={run_id}&partition=0")).text
    assert "Partition 0, run" in shown
    assert "the first up to 6" in shown
    assert (await pages.get("/pipelines/stones?run=x&partition=y")).status_code == 422


async def test_a_pipeline_takes_five_statements_and_the_list_one(
    app, pages, pipeline, source, statements
):
    source.broken = True
    run_id = await run_one(app, pipeline)
    await pipeline.start_async()  # a live one
    for path, most in ((f"/pipelines/stones?run={run_id}&partition=1", 5), ("/pipelines", 1)):
        await pages.get(path)
        statements.clear()
        assert (await pages.get(path)).status_code == 200
        own = [name for name in statements if "look" in name or "stands" in name]
        assert len(own) <= most, own
        assert len(statements) - len(own) <= 1, statements  # whether there are tokens


async def test_a_failed_partition_is_read_again_and_a_run_resumed(app, pages, pipeline, source):
    source.broken = True
    run_id = await run_one(app, pipeline)
    source.broken = False
    done = await send(pages, f"/pipelines/stones/runs/{run_id}/retry?partition=1", partition="1")
    assert done.status_code == 303, done.text
    await app.drain_async(timeout=20)
    shown = (await pages.get(done.headers["location"])).text
    assert "retry" in shown
    assert "not part of it" in shown
    assert await pipeline.watermark_async() is not None


async def test_a_failed_run_is_resumed_from_its_page(app, pages, pipeline, source):
    source.broken = True
    run_id = await run_one(app, pipeline)
    source.broken = False
    done = await send(pages, f"/runs/{run_id}/resume")
    assert done.status_code == 303, done.text
    await app.drain_async(timeout=20)
    newer = await app.runs.get_async(done.headers["location"].rpartition("/")[2])
    assert (newer.state, newer.record.resumes) == ("SUCCEEDED", run_id)


async def test_a_backfill_says_what_is_missing(app, pages, pipeline):
    await run_one(app, pipeline)
    wrong = await send(pages, "/pipelines/stones/start", what="backfill", since="yesterday")
    assert wrong.status_code == 422
    assert "expected a time" in wrong.text
    neither = await send(pages, "/pipelines/stones/start", what="backfill")
    assert neither.status_code == 422
    done = await send(
        pages, "/pipelines/stones/start", what="backfill", since="2024-01-01T00:00:00Z"
    )
    assert done.status_code == 303


async def test_the_quarantine_is_grouped_and_replayed(app, pages, pipeline):
    await run_one(app, pipeline)
    asked = await pages.get("/pipelines/stones/replay", headers={"X-Dialog": "1"})
    assert re.search(r"mapped again</dt><dd>1<", asked.text)
    is_inert(asked.text)
    done = await send(pages, "/pipelines/stones/replay")
    assert done.status_code == 303
    assert "/runs/" in done.headers["location"]


async def test_removals_are_decided_with_a_reason(app, pages, pipeline, source):
    await run_one(app, pipeline)
    source.gone = 6
    await run_one(app, pipeline, full=True)
    shown = (await pages.get("/pipelines/stones")).text
    assert "Removals to decide" in shown
    asked = await pages.get("/pipelines/stones/removals?decision=confirm")
    assert "Remove 6 records" in asked.text
    done = await send(
        pages, "/pipelines/stones/removals", decision="dismiss", reason="the source was away"
    )
    assert done.status_code == 303
    page = await app.client.run_async(pipeline_page.read, "stones")
    assert page.waiting_removals == 0
    assert (await send(pages, "/pipelines/stones/removals", decision="maybe")).status_code == 422


async def test_the_watermark_is_set_by_hand_with_a_reason(app, pages, pipeline):
    await run_one(app, pipeline)
    refused = await send(pages, "/pipelines/stones/watermark", to="2026-01-01T00:00:00Z")
    assert refused.status_code == 422
    assert "a reason is recorded" in refused.text
    done = await send(
        pages, "/pipelines/stones/watermark", to="2026-01-01T00:00:00Z", reason=HOSTILE
    )
    assert done.status_code == 303
    assert await pipeline.watermark_async() == datetime(2026, 1, 1, tzinfo=UTC)
    shown = (await pages.get("/pipelines/stones")).text
    is_inert(shown)
    assert "override" in shown
    assert "by local" in shown
    assert "fresh within 1 h” broke" in shown


async def test_tokens_of_a_tenant_or_another_queue_see_nothing_of_it(app, pipeline, token):
    await run_one(app, pipeline)
    transport = httpx2.ASGITransport(app=create_api(app, access="tokens"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        theirs = token("them", "read", "operate", tenant="other") | HTML
        assert (await client.get("/pipelines/stones", headers=theirs)).status_code == 403
        slow = token("slow", "read", "submit", queues=["slow"]) | HTML
        assert (await client.get("/pipelines/stones", headers=slow)).status_code == 404
        assert (await client.get("/pipelines/stones/start", headers=slow)).status_code == 404
        assert "stones" not in (await client.get("/pipelines", headers=slow)).text
        assert "stones" not in (await client.get("/runs/new", headers=slow)).text
        reader = token("reader", "read") | HTML
        shown = (await client.get("/pipelines/stones", headers=reader)).text
        assert 'href="/pipelines/stones/watermark"' not in shown
        assert 'title="needs the scope submit"' in shown
    await app.client.close_async()


@pytest.mark.parametrize("name", ["eu/stones 100%?\x1b", "eu/start", "two\nlines"])
async def test_a_pipeline_of_any_name_has_a_page_and_can_be_started_there(app, source, name):
    """A slash in it led nowhere, and a page that followed another address was loaded for ever."""
    app.pipeline(name, source, key="id", partition_by="price", table="eu_stones")
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    client = httpx2.AsyncClient(transport=transport, base_url="http://test", headers=HTML)
    async with client as pages:
        here = f"/pipelines/{quote(name, safe='')}"
        started = await send(pages, f"{here}/start", what="incremental")
        assert (started.status_code, started.headers["location"]) == (303, here)
        page = unescape((await pages.get(here)).text)
        assert words.visible(name) in page
        [followed] = re.findall(r'hx-sse:connect="([^"]*)"', page)
        assert followed == here
        told = await pages.get(f"/v1/explain/pipeline/{quote(name, safe='')}")
        assert told.json()["id"] == name
    await app.client.close_async()
