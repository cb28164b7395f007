"""Answers have a size: a page ends early where its items are large, and goes on at its cursor."""

import httpx2
import pytest

import milepost as mp
from milepost.codec import JsonCodec
from milepost.store import journal, runs
from milepost.web import jobs as web_jobs
from milepost.web import paging, subjects
from milepost.web.api import create_api

pytestmark = pytest.mark.both_stores

LARGE = 10_000


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """Let a page end after a few items."""
    for module in (paging, web_jobs, subjects):
        monkeypatch.setattr(module, "PAGE_BYTES", 3 * LARGE)


async def pages(api, path):
    """Read all pages; each is within its size, and none is empty but perhaps the last."""
    joint = "&" if "?" in path else "?"
    found, following = [], ""
    while True:
        answer = await api.get(path + following)
        assert answer.status_code == 200, answer.text
        # What is sent is at most the budget, one more item, and their envelopes.
        assert len(answer.content) < 6 * LARGE
        page = answer.json()
        found.append(page["items"])
        if page["next"] is None:
            return found
        assert page["items"]
        following = f"{joint}cursor={page['next']}"


async def test_a_page_of_large_results_ends_early_and_goes_on(app, api):
    made = [app.new_job("convert", ["x" * LARGE], {}, {}) for _ in range(9)]
    made += [app.new_job("convert", ["tiny"], {}, {}) for _ in range(20)]
    await app.client.create_async(made)
    await app.drain_async()
    found = await pages(api, "/v1/jobs?limit=1000&state=COMPLETE")
    assert [item["id"] for page in found for item in page] == sorted(
        (job.id for job in made), reverse=True
    )
    assert len(found) >= 5
    assert len(found[0]) > 20  # what is small does not end a page


async def test_one_item_comes_however_large_it_is(app, api):
    made = [app.new_job("convert", ["x" * 5 * LARGE], {}, {}) for _ in range(2)]
    await app.client.create_async(made)
    found = await pages(api, "/v1/jobs")
    assert [[item["id"] for item in page] for page in found] == [[made[1].id], [made[0].id]]


async def test_runs_with_large_parameters_are_read_in_pages_too(app, api):
    heavy = app.batch("heavy", params=str)

    @heavy.step
    def only(params: str) -> None:
        pass

    started = [await heavy.start_async("x" * LARGE) for _ in range(7)]
    rows = await app.client.run_async(runs.listing, most=100, most_bytes=3 * LARGE)
    assert len(rows) == 3
    found = await pages(api, "/v1/runs?limit=100")
    ids = [item["id"] for page in found for item in page]
    assert ids == sorted((run.id for run in started), reverse=True)


async def test_a_bulk_action_reads_no_more_than_a_page_and_goes_on(app, api):
    large = [app.new_job("slowly", [n], {}, {"tags": {"n": "x"}}) for n in range(3)]
    large += [app.new_job("convert", ["x" * LARGE], {}, {}) for _ in range(8)]
    await app.client.create_async(large)
    asked, count = {"action": "cancel", "filter": {"state": "PENDING"}}, 0
    body = dict(asked)
    for _ in range(20):
        told = (await api.post("/v1/jobs:bulk", json=body)).json()
        assert told["matched"] <= 7
        count += told["count"]
        if told["next"] is None:
            break
        body = {**asked, "cursor": told["next"]}
    assert count == len(large)


class Padded(JsonCodec):
    """A codec that takes much room, as an encrypting one takes some."""

    name = "padded"

    def encode(self, value):
        return super().encode(value) + b" " * LARGE


async def test_what_a_codec_adds_ends_a_page_too_and_loses_nothing(database):
    """What is measured is what is stored; what is read of it may be a fraction."""
    padded = mp.App(database.url, codec=Padded())

    @padded.job(retries=0)
    def broken() -> None:
        raise mp.Fail("no such format")

    made = [padded.new_job("broken", [], {}, {}) for _ in range(10)]
    await padded.client.create_async(made)
    await padded.drain_async()
    transport = httpx2.ASGITransport(app=create_api(padded, access="open"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as api:
        found = await pages(api, "/v1/jobs?limit=100")
        assert len(found) > 2
        assert len({item["id"] for page in found for item in page}) == 10
        path = f"/v1/jobs/{made[0].id}/history"
        moves = [item["move"] for page in await pages(api, path) for item in page]
        assert moves == [entry.move for entry in await padded.jobs.get(made[0].id).history_async()]
    await padded.close_async()


async def test_histories_are_read_in_pages_with_their_attempts(app, api):
    [job_id] = await app.client.create_async([app.new_job("patient", [], {}, {"hold": True})])
    job = app.jobs.get(job_id)
    await job.submit_async()
    for _ in range(3):
        await app.drain_async()
        await job.signal_async({"go": 1})
    await app.drain_async()
    path = f"/v1/jobs/{job_id}/history"
    whole = (await api.get(path)).json()
    assert whole["next"] is None
    assert len(whole["items"]) >= 6
    assert [item["attempt"] for item in whole["items"]][-1] == 1
    found = await pages(api, f"{path}?limit=2")
    assert [item for page in found for item in page] == whole["items"]
    assert len(found) >= 3
    refused = await api.get(f"{path}?cursor=bm9uZQ")
    assert refused.status_code == 422
    other = (await api.get(f"{path}?limit=1")).json()["next"]
    [elsewhere] = await app.client.create_async([app.new_job("patient", [], {}, {})])
    answer = await api.get(f"/v1/jobs/{elsewhere}/history?cursor={other}")
    assert answer.status_code == 422


async def test_a_history_with_large_details_ends_early(app, api):
    [job_id] = await app.client.create_async([app.new_job("patient", [], {}, {})])
    await api.post(f"/v1/jobs/{job_id}:cancel", json={"reason": "r" * 2000})
    found = await app.client.run_async(
        journal.history_page, job_id, after=0, most=100, most_bytes=1, machine="job"
    )
    assert len(found) == 2  # the first says nothing: it takes no room
    found = await app.client.run_async(
        journal.history_page, job_id, after=1, most=100, most_bytes=1, machine="job"
    )
    assert [entry.move for entry in found] == ["cancel"]


async def test_a_runs_history_is_paged_too(app, api):
    run = await app.batches[0].start_async({"count": 1})
    await app.drain_async()
    path = f"/v1/runs/{run.id}/history"
    whole = (await api.get(path)).json()["items"]
    found = await pages(api, f"{path}?limit=1")
    assert [item for page in found for item in page] == whole
    assert len(whole) > 2


async def test_what_is_listed_by_name_comes_in_pages(app, api):
    names = [f"queue-{n:03}" for n in range(25)]
    made = [app.new_job("convert", ["a"], {}, {"queue": name, "channel": name}) for name in names]
    await app.client.create_async(made)
    await app.drain_async(queues=names)
    for path in ("/v1/queues", "/v1/channels"):
        found = await pages(api, f"{path}?limit=10")
        assert [len(page) for page in found] == [10, 10, 5]
        assert [item["name"] for page in found for item in page] == names
        [whole] = await pages(api, path)
        assert [item["name"] for item in whole] == names


async def test_jobs_that_are_named_are_acted_on_whatever_they_carry(app, api):
    made = [app.new_job("convert", ["x" * LARGE], {}, {}) for _ in range(60)]
    await app.client.create_async(made)
    body = {"action": "cancel", "ids": [job.id for job in made]}
    told = (await api.post("/v1/jobs:bulk", json=body)).json()
    assert (told["matched"], told["count"]) == (60, 60)
