"""POST /v1/jobs:bulk: many jobs at once, counted, within the caller's bounds."""

import pytest

from milepost.store.tokens import Bounds

pytestmark = pytest.mark.both_stores

NOWHERE = "018f0000-0000-7000-8000-000000000000"
CALL = {"kind": "convert", "args": ["a"]}


async def submitted(api, count, body=CALL, headers=None):
    return [
        (await api.post("/v1/jobs", json=body, headers=headers)).json()["id"] for _ in range(count)
    ]


async def test_many_are_cancelled_by_a_filter_page_by_page(app, api):
    ids = await submitted(api, 5)
    [other] = await submitted(api, 1, {"kind": "slowly", "args": [1]})
    body = {"action": "cancel", "filter": {"kind": "convert"}, "limit": 2, "reason": "enough"}
    done, following = [], None
    for _ in range(3):
        asked = body if following is None else {**body, "cursor": following}
        answer = (await api.post("/v1/jobs:bulk", json=asked)).json()
        done += answer["ids"]
        following = answer["next"]
    assert following is None
    assert sorted(done) == sorted(ids)
    assert {app.jobs.get(i).record.cancel_reason for i in ids} == {"enough"}
    assert app.jobs.get(other).state == "QUEUED"


async def test_many_are_run_again_once_for_a_key(app, api):
    failed = await submitted(api, 3, {"kind": "broken"})
    await app.drain_async()
    [waiting] = await submitted(api, 1, {"kind": "broken"})
    body = {"action": "rerun", "ids": [*failed, waiting, NOWHERE, failed[0]]}
    told = [
        await api.post("/v1/jobs:bulk", json=body, headers={"Idempotency-Key": "k"})
        for _ in range(2)
    ]
    assert told[0].text == told[1].text
    answer = told[0].json()
    assert (answer["matched"], answer["count"], answer["skipped"]) == (4, 3, 1)
    assert {app.jobs.get(i).record.rerun_of for i in answer["ids"]} == set(failed)
    assert len(app.jobs.list()) == 7


async def test_the_same_rerun_by_a_filter_matches_as_many_each_time(app, api):
    """The newest of a chain speaks for it: it matched 3, then 6, then 12."""
    await submitted(api, 3, {"kind": "broken"})
    body = {"action": "rerun", "filter": {"state": "FAILED"}}
    for _ in range(3):
        await app.drain_async()
        answer = (await api.post("/v1/jobs:bulk", json=body)).json()
        assert (answer["matched"], answer["count"]) == (3, 3)
    answer = (await api.post("/v1/jobs:bulk", json=body)).json()
    assert (answer["matched"], answer["count"]) == (0, 0), "the newest of each has not ended"


async def test_many_that_succeeded_are_run_again_only_afresh(app, api):
    ids = await submitted(api, 2)
    await app.drain_async()
    body = {"action": "rerun", "filter": {"kind": "convert"}}
    answer = (await api.post("/v1/jobs:bulk", json=body)).json()
    assert (answer["matched"], answer["count"], answer["skipped"]) == (2, 0, 2)
    answer = (await api.post("/v1/jobs:bulk", json={**body, "fresh": True})).json()
    assert (answer["matched"], answer["count"]) == (2, 2)
    named = {"action": "rerun", "ids": ids, "fresh": True}
    assert (await api.post("/v1/jobs:bulk", json=named)).json()["skipped"] == 2


async def test_what_is_foreign_is_not_there(app, api, token):
    """H-116: neither acted on nor counted."""
    [job] = await submitted(api, 1)
    bound = [token("t", "admin", tenant="other"), token("q", "admin", queues=["slow"])]
    for header in bound:
        for which in ({"ids": [job]}, {"filter": {"kind": "convert"}}):
            answer = await api.post(
                "/v1/jobs:bulk", json={"action": "cancel", **which}, headers=header
            )
            assert (answer.status_code, answer.json()["matched"]) == (200, 0)
    asked = {"action": "cancel", "where": "kind:convert"}
    by_tenant = await api.post("/v1/jobs:bulk", json=asked, headers=bound[0])
    by_queue = await api.post("/v1/jobs:bulk", json=asked, headers=bound[1])
    assert (by_tenant.status_code, by_queue.status_code) == (202, 403)
    for header in bound:
        found = await api.get("/v1/jobs", params={"where": "kind:convert"}, headers=header)
        assert found.json()["items"] == []
    erase = {"action": "erase", "where": "kind:convert"}
    operator = token("o", "operate")
    assert (await api.post("/v1/jobs:bulk", json=erase, headers=operator)).status_code == 403
    await app.drain_async(queues=["bulk"])
    assert app.jobs.get(by_tenant.json()["id"]).result.matched == 0
    assert app.jobs.get(job).state == "QUEUED"


MISFITS = (
    {"action": "cancel"},
    {"action": "cancel", "filter": {}},
    {"action": "cancel", "ids": []},
    {"action": "cancel", "ids": ["x"] * 501},
    {"action": "cancel", "ids": [NOWHERE], "filter": {"kind": "convert"}},
    {"action": "erase", "ids": [NOWHERE]},
    {"action": "cancel", "filter": {"state": "DREAMING"}},
    {"action": "cancel", "filter": {"kind": "convert"}, "cursor": "x"},
    {"action": "cancel", "ids": ["nonsense"]},
    {"action": "cancel", "ids": ["nonsense\u0000"]},
    {"action": "cancel", "filter": {"run": "nonsense"}},
)


async def test_what_does_not_fit_is_told(api, subtests):
    for body in MISFITS:
        with subtests.test(body=str(body)[:80]):
            assert (await api.post("/v1/jobs:bulk", json=body)).status_code == 422


async def test_all_that_a_filter_finds_are_acted_on_by_a_job(app, api):
    await submitted(api, 3)
    asked = {"action": "cancel", "where": "kind:convert state:pending", "reason": "no more"}
    posted = await api.post("/v1/jobs:bulk", json=asked)
    assert posted.status_code == 202
    await app.drain_async(queues=["bulk"])
    done = (await api.get(posted.headers["location"])).json()
    assert (done["state"], done["result"]["done"]) == ("COMPLETE", 3)
    for other in ({"action": "erase", "where": None}, {"where": "sate:x"}, {"ids": ["a"]}):
        wrong = {**asked, **other}
        assert (await api.post("/v1/jobs:bulk", json=wrong)).status_code == 422


async def test_a_blank_filter_of_a_tenants_token_acts_on_nothing(app, api, token):
    """Its tenant counted as a term: two spaces cancelled every job of the tenant."""
    mine = token("mine", "submit", "operate", tenant="acme")
    [job] = await submitted(api, 1, headers=mine)
    answer = await api.post("/v1/jobs:bulk", json={"action": "cancel", "where": "  "}, headers=mine)
    assert (answer.status_code, "at least one term" in answer.text) == (422, True)
    await app.drain_async(queues=["bulk"])
    assert app.jobs.get(job).state == "QUEUED"


async def test_only_an_admin_runs_an_action_on_many_jobs_again(app, api, token):
    """Whoever may only operate ran an admin's erase again, in the admin's name."""
    boss, operator = token("boss", "admin"), token("operator", "submit", "operate")
    again = token("second", "admin")
    [job] = await submitted(api, 1, headers=boss)
    await app.drain_async()
    asked = {"action": "erase", "where": "kind:convert"}
    order = (await api.post("/v1/jobs:bulk", json=asked, headers=boss)).json()["id"]
    await api.post(f"/v1/jobs/{order}:cancel", headers=boss)
    one = await api.post(f"/v1/jobs/{order}:rerun", headers=operator)
    many = {"action": "rerun", "ids": [order]}
    named = await api.post("/v1/jobs:bulk", json=many, headers=operator)
    found = {"action": "rerun", "where": "kind:jobs.bulk"}
    sought = await api.post("/v1/jobs:bulk", json=found, headers=operator)
    assert (one.status_code, named.status_code, sought.status_code) == (403, 403, 202)
    assert "POST /v1/jobs:bulk" in one.json()["detail"]
    await app.drain_async(queues=["bulk"])
    assert app.jobs.get(sought.json()["id"]).result.matched == 0
    assert app.jobs.get(job).record.payload is not None

    await api.post(f"/v1/jobs/{order}:rerun", headers=again)
    await app.drain_async(queues=["bulk"])
    assert app.jobs.get(job).record.payload is None
    assert app.jobs.get(job).history[-1].actor == "second"


async def test_bounds_that_a_filter_cannot_say_refuse_a_rerun_of_many(app, api, token):
    """A token whose jobs have priority 3 at most ran one of priority 9 again, by a filter."""
    urgent = {"kind": "broken", "options": {"priority": 9}}
    await submitted(api, 1, urgent, headers=token("any", "submit"))
    await app.drain_async()
    asked = {"action": "rerun", "where": "kind:broken"}
    every = (Bounds(max_priority=3), Bounds(requests=False), Bounds(kinds=("jobs.bulk",)))
    for number, bounds in enumerate(every):
        low = token(f"low {number}", "submit", "operate", bounds=bounds)
        answer = await api.post("/v1/jobs:bulk", json=asked, headers=low)
        assert (answer.status_code, "ids" in answer.json()["detail"]) == (403, True)
    there = token("there", "submit", "operate", queues=["bulk"])
    answer = await api.post("/v1/jobs:bulk", json={**asked, "action": "cancel"}, headers=there)
    await app.drain_async(queues=["bulk"])
    assert app.jobs.get(answer.json()["id"]).result.matched == 0
