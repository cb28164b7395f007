"""Idempotency-Key: what is sent again does nothing again, and is answered as before (H-95)."""

import asyncio

import pytest

from milepost.store import idempotency
from milepost.web.api import describe
from tests.support.prove import size

pytestmark = pytest.mark.both_stores

CALL = {"kind": "convert", "args": ["a"], "options": {"tags": {"b": "1", "a": "2"}}}


@pytest.mark.prove
async def test_many_at_once_with_one_key_make_one_job_and_hear_the_same(app, api):
    """1,000 under proof."""
    times = size(1000)
    headers = {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(
        *(api.post("/v1/jobs", json=CALL, headers=headers) for _ in range(times))
    )
    assert {answer.status_code for answer in answers} == {202}
    assert len({(a.text, a.headers["location"], a.headers["retry-after"]) for a in answers}) == 1
    assert len(app.jobs.list()) == 1


async def test_how_it_is_spelled_makes_no_difference_but_what_it_says_does(app, api):
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    first = await api.post("/v1/jobs", json=CALL, headers=headers)
    spelled = b'{ "options":{"tags":{"a":"2","b":"1"}},  "args":["a"], "kind":"convert"}'
    assert (await api.post("/v1/jobs", content=spelled, headers=headers)).text == first.text
    other = await api.post("/v1/jobs", json={**CALL, "args": ["b"]}, headers=headers)
    assert other.status_code == 422
    assert other.json()["type"] == "urn:milepost:problem:idempotency-key-reused"
    elsewhere = await api.post(
        "/v1/batches/letters/runs", json={"params": {"count": 1}}, headers=headers
    )
    assert elsewhere.status_code == 422
    assert len(app.jobs.list()) == 1


async def test_a_key_is_its_callers_own(app, api, token):
    ids = set()
    for name in ("ada", "boris"):
        header = {**token(name, "submit"), "Idempotency-Key": "same"}
        for _ in range(2):
            ids.add((await api.post("/v1/jobs", json=CALL, headers=header)).json()["id"])
    assert len(ids) == 2


async def test_what_was_refused_may_be_sent_again(app, api):
    headers = {"Idempotency-Key": "k"}
    refused = await api.post("/v1/jobs", json={**CALL, "kind": "nothing"}, headers=headers)
    assert refused.status_code == 422
    assert (await api.post("/v1/jobs", json=CALL, headers=headers)).status_code == 202


async def test_every_act_can_carry_a_key(app, api):
    job_id = (await api.post("/v1/jobs", json=CALL)).json()["id"]
    await app.drain_async()
    path, key = f"/v1/jobs/{job_id}:rerun", {"Idempotency-Key": "r"}
    again = [
        (await api.post(path, json={"fresh": True}, headers=key)).json()["id"] for _ in range(3)
    ]
    assert len(set(again)) == 1
    runs = [
        (
            await api.post(
                "/v1/batches/letters/runs",
                json={"params": {"count": 9}},
                headers={"Idempotency-Key": "b"},
            )
        ).json()["id"]
        for _ in range(3)
    ]
    assert len(set(runs)) == 1
    await app.drain_async(5)
    resumed = [
        (await api.post(f"/v1/runs/{runs[0]}:resume", headers={"Idempotency-Key": "s"})).json()
        for _ in range(3)
    ]
    assert len({run["id"] for run in resumed}) == 1
    waiting = (await api.post("/v1/jobs", json={"kind": "patient"})).json()["id"]
    for _ in range(3):
        answer = await api.post(
            f"/v1/jobs/{waiting}:signal", json=1, headers={"Idempotency-Key": "t"}
        )
        assert answer.status_code == 200


def test_every_post_takes_a_key():
    """But the one that a remote makes: its address is its key."""
    paths = describe().openapi()["paths"]
    without = {
        path
        for path, methods in paths.items()
        if "post" in methods
        and "Idempotency-Key" not in {p["name"] for p in methods["post"].get("parameters", [])}
    }
    assert without == {"/v1/requests/{job_id}/callback/{token}"}


async def test_a_pause_that_is_sent_again_does_not_undo_a_resume(app, api):
    await api.post("/v1/jobs", json=CALL)
    for what in ("queues/default", "schedules/nightly"):
        key = {"Idempotency-Key": f"pause {what}"}
        first = await api.post(f"/v1/{what}:pause", headers=key)
        assert first.json()["paused_by"] == "local"
        key_back = {"Idempotency-Key": f"resume {what}"}
        assert (await api.post(f"/v1/{what}:resume", headers=key_back)).status_code == 200
        assert (await api.post(f"/v1/{what}:pause", headers=key)).text == first.text
        assert (await api.get(f"/v1/{what}")).json()["paused_by"] is None


async def test_a_run_is_cancelled_once(app, api):
    run = (await api.post("/v1/batches/letters/runs", json={"params": {"count": 1}})).json()["id"]
    key = {"Idempotency-Key": "c"}
    told = {(await api.post(f"/v1/runs/{run}:cancel", headers=key)).text for _ in range(3)}
    assert len(told) == 1
    assert app.runs.get(run).state == "CANCELLED"
    other = await api.post(f"/v1/runs/{run}:cancel", json={"reason": "x"}, headers=key)
    assert other.status_code == 422


async def test_an_answer_is_kept_for_a_day(app, api, advance):
    headers = {"Idempotency-Key": "k"}
    first = (await api.post("/v1/jobs", json=CALL, headers=headers)).json()["id"]
    advance(idempotency.KEEP_SECONDS - 60)
    assert app.client.run(idempotency.prune, most=10) == 0
    assert (await api.post("/v1/jobs", json=CALL, headers=headers)).json()["id"] == first
    advance(120)
    await app.maintain_once_async()
    assert (await api.post("/v1/jobs", json=CALL, headers=headers)).json()["id"] != first


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there"])
async def test_a_key_that_cannot_be_kept_is_refused(api, key):
    answer = await api.post("/v1/jobs", json=CALL, headers={"Idempotency-Key": key})
    assert answer.status_code == 422
