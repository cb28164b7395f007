"""What is not the caller's: contents that a token may not read, and calls from foreign pages."""

import asyncio

import httpx2
import pytest

import milepost as mp
from milepost.store import workers
from milepost.web.api import create_api

WAIT = {"Prefer": "wait=20"}
SECRET = "secret-paper"
CALL = {"kind": "convert", "args": [SECRET]}


async def ended(app, asking):
    """Let a caller that waits meet its job's end."""
    waiting = asyncio.create_task(asking)
    while not await app.jobs.list_async():
        pass
    await app.drain_async()
    return await waiting


async def test_who_may_only_submit_reads_no_result_by_waiting(app, api, token):
    """H-116: waiting for an answer opens nothing that looking would not."""
    answer = await ended(
        app, api.post("/v1/jobs", json=CALL, headers={**token("in", "submit"), **WAIT})
    )
    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers
    assert SECRET not in answer.text
    job = app.jobs.list()[0].id
    operate = {**token("op", "operate"), **WAIT}
    rerun = await api.post(f"/v1/jobs/{job}:rerun", json={"fresh": True}, headers=operate)
    assert (rerun.status_code, SECRET in rerun.text) == (202, False)
    both = {**token("both", "submit", "read"), **WAIT}
    told = {**CALL, "options": {"unique": "k"}}
    await api.post("/v1/jobs", json=told, headers={**both, "Prefer": "wait=0"})
    assert (await ended(app, api.post("/v1/jobs", json=told, headers=both))).status_code == 200


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}])
async def test_a_unique_job_of_somebody_else_is_a_conflict_that_tells_nothing(app, api, token, key):
    """H-116: the same unique key in a foreign queue shows neither the job nor its id."""
    free = token("free", "admin")
    slow = {**token("slow", "submit", "read", "operate", queues=["slow"]), **key}
    first = {**CALL, "options": {"unique": "paper"}}
    theirs = (await api.post("/v1/jobs", json=first, headers=free)).json()["id"]
    mine = {"kind": "convert", "args": ["x"], "options": {"unique": "paper", "queue": "slow"}}
    replacing = {**mine, "options": {**mine["options"], "on_conflict": "replace"}}
    for body, prefer in ((mine, {}), (mine, WAIT), (replacing, {})):
        answer = await api.post("/v1/jobs", json=body, headers={**slow, **prefer})
        assert answer.status_code == 409, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert theirs not in answer.text
        assert SECRET not in answer.text
        assert "location" not in answer.headers
    sent = {"url": "https://partner.example", "unique": "page"}
    theirs = (await api.post("/v1/requests", json=sent, headers=free)).json()["id"]
    answer = await api.post("/v1/requests", json={**sent, "queue": "slow"}, headers=slow)
    assert (answer.status_code, theirs in answer.text) == (409, False)
    assert [job.state for job in app.jobs.list()] == ["QUEUED", "QUEUED"]


async def test_a_submit_says_whether_the_key_was_taken_for_the_same_arguments(app, api, token):
    headers = token("in", "submit")

    async def sent(*args, **options):
        body = {"kind": "convert", "args": args, "options": {"unique": "k", **options}}
        return (await api.post("/v1/jobs", json=body, headers=headers)).json()

    first, same, other = await sent("a"), await sent("a"), await sent("b")
    assert {first["id"]} == {same["id"], other["id"]}
    assert "duplicate" not in first
    assert (same["duplicate"], other["duplicate"]) == ("same", "different")
    replaced = await sent("b", on_conflict="replace")
    assert replaced["id"] != first["id"]
    assert (await app.jobs.get_async(first["id"])).state == "CANCELLED"


KEYED = pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k1"}], ids=["plain", "keyed"])


@KEYED
async def test_one_that_replaces_another_says_where_it_stands(app, api, headers):
    """It waits for the time of the one that it replaced, and was said to be in line."""
    options = {"unique": "k", "start_in": 60}
    await api.post("/v1/jobs", json={**CALL, "options": options})
    newest = {**CALL, "options": {"unique": "k", "on_conflict": "replace"}}
    answer = (await api.post("/v1/jobs", json=newest, headers=headers)).json()
    assert (answer["job_state"], answer.get("duplicate")) == ("WAITING", None)
    assert (await app.jobs.get_async(answer["id"])).state == "WAITING"


@KEYED
async def test_a_key_that_outlasts_its_job_is_a_conflict_and_no_missing_page(database, headers):
    kept = {"keep_succeeded": 60, "keep_failed": 60, "keep_history": 600}
    app = mp.App(database.url, **kept)

    @app.job
    def convert(document: str) -> str:
        return document

    once = {**CALL, "options": {"unique": "k", "unique_for": 80_000}}
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as api:
        first = (await api.post("/v1/jobs", json=once)).json()["id"]
        await app.drain_async()
        for _ in range(3):
            await app.client.run_async(workers.advance_clock, 3700)
            await app.maintain_once_async()
        assert await app.jobs.list_async() == []
        answer = await api.post("/v1/jobs", json=once, headers=headers)
    await app.close_async()
    assert (answer.status_code, first in answer.text) == (409, False)
    assert "stays taken" in answer.json()["detail"]


async def test_a_request_is_replaced_over_http_as_any_job(app, api):
    """The program's own call takes these options, and the API refused them."""
    sent = {"url": "https://partner.example", "unique": "page"}
    first = (await api.post("/v1/requests", json=sent)).json()["id"]
    newest = await api.post("/v1/requests", json={**sent, "on_conflict": "replace"})
    assert newest.status_code == 202
    assert newest.json()["id"] != first
    assert (await app.jobs.get_async(first)).state == "CANCELLED"
    once = {**sent, "unique": "once", "unique_for": 60}
    [a, b] = [(await api.post("/v1/requests", json=once)).json()["id"] for _ in range(2)]
    assert a == b
    wrong = await api.post("/v1/requests", json={**once, "on_conflict": "replace"})
    assert wrong.status_code == 422


STARTS = [
    ("/v1/batches/letters/runs", {"params": {"count": 2}}),
    ("/v1/requests:batch", {"requests": []}),
]


@pytest.mark.parametrize(("path", "body"), STARTS)
async def test_prefer_wait_answers_with_the_end_of_a_run(app, api, token, path, body):
    at_once = await api.post(path, json=body, headers={"Prefer": "respond-async, wait=0"})
    assert at_once.status_code == 202
    assert at_once.headers["preference-applied"] == "respond-async, wait=0"
    waiting = asyncio.create_task(api.post(path, json=body, headers=WAIT))
    while len(await app.runs.list_async()) < 2:
        pass
    await app.drain_async(5)
    answer = await waiting
    assert answer.status_code == 200
    assert (answer.json()["done"], answer.json()["state"]) == (True, "COMPLETE")
    assert answer.headers["preference-applied"] == "wait=20"
    home = "/v1/requests" if "requests" in path else "/v1/runs"
    assert answer.headers["location"] == f"{home}/{answer.json()['id']}"
    mute = await api.post(path, json=body, headers={**token("in", "submit"), **WAIT})
    assert (mute.status_code, "preference-applied" in mute.headers) == (202, False)


async def test_a_live_run_of_somebody_else_is_not_reused(app, api, token):
    """H-116: each tenant has its own run with the same parameters."""
    free, mine = token("free", "admin"), token("mine", "submit", "read", tenant="acme")
    body = {"params": {"count": 1}, "options": {"reuse": True}}
    path = "/v1/batches/letters/runs"
    theirs = (await api.post(path, json=body, headers=free)).json()["id"]
    answer = await api.post(path, json=body, headers={**mine, "Prefer": "wait=0"})
    assert theirs not in answer.text


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://test:8000"},
    {"Origin": "http://test.evil.example"},
    {"Origin": "http://[broken"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Origin": "http://test", "Sec-Fetch-Site": "cross-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_foreign_page_changes_nothing(app, api, headers):
    """A form of another site needs no token on this machine, and no leave to send a POST."""
    await api.post("/v1/jobs", json=CALL)
    for path in ("/v1/queues/default:pause", "/v1/requests/x/callback/y"):
        answer = await api.post(path, headers=headers)
        assert answer.status_code == 403
        assert answer.headers["content-type"] == "application/problem+json"
    assert not app.queues.list()[0].paused
    assert (await api.get("/v1/queues", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://test", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://TEST"},  # something before it speaks TLS
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_its_own_pages_and_programs_are_heard(app, api, headers):
    await api.post("/v1/jobs", json=CALL)
    assert (await api.post("/v1/queues/default:pause", headers=headers)).status_code == 200
