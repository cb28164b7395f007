"""Jobs, runs, queues and schedules over HTTP: what C's caller sees, and how mistakes are told."""

import asyncio
import logging
from collections.abc import Iterator

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import milepost as mp
from milepost.web.access import RateLimiter
from milepost.web.api import create_api
from milepost.web.problems import HttpProblem
from milepost.web.route import DEEPEST

CALL = {"kind": "convert", "args": ["report"], "kwargs": {"format": "html"}}


def told(answer, status, name=None):
    """Check that an answer is a problem as RFC 9457 has it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert set(problem) >= {"type", "title", "status", "detail"}
    assert problem["status"] == status
    if name is not None:
        assert problem["type"] == f"urn:milepost:problem:{name}"
    return problem["detail"]


async def test_a_caller_posts_looks_and_looks_again(app, api):
    """C: POST answers PENDING with an id, a GET before the worker too, a GET after COMPLETE."""
    posted = await api.post("/v1/jobs", json=CALL)
    assert posted.status_code == 202
    assert posted.headers["retry-after"] == "1"
    location = posted.headers["location"]
    assert location == f"/v1/jobs/{posted.json()['id']}"
    assert posted.json()["state"] == "PENDING"
    assert posted.json()["done"] is False

    before = (await api.get(location)).json()
    assert (before["state"], before["job_state"], before["done"]) == ("PENDING", "QUEUED", False)
    assert not {"result", "error"} & set(before)
    await app.drain_async()
    after = (await api.get(location)).json()
    assert (after["state"], after["job_state"], after["done"]) == ("COMPLETE", "SUCCEEDED", True)
    assert after["result"] == "report.html"
    assert "error" not in after
    moves = (await api.get(f"{location}/history")).json()["items"]
    assert [move["move"] for move in moves] == ["create", "claim", "succeed"]


async def test_a_job_under_a_limit_is_submitted_with_its_key_and_units(app, api):
    @app.job(limit=mp.Limit(key="who", rate="50/s", units="tokens"))
    def ask(who: str) -> None: ...

    for options, key, units in [
        ({}, "acme", None),
        ({"limit_key": "all", "units": 12.5}, "all", 12.5),
    ]:
        asked = {"kind": "ask", "args": ["acme"], "options": options}
        posted = await api.post("/v1/jobs", json=asked, headers={"idempotency-key": key})
        shown = (await api.get(posted.headers["location"])).json()
        assert (shown["limit"], shown["limit_key"], shown.get("units")) == ("ask", key, units)
    await app.drain_async()
    assert {job.state for job in app.jobs.list(kind="ask")} == {"SUCCEEDED"}
    for options, said in [
        ({"units": 51}, "units=51 is more than ask may ever take at once, 50"),
        ({"units": 0}, "options.units"),
        ({"limit_key": ""}, "options.limit_key"),
    ]:
        refused = await api.post("/v1/jobs", json={**asked, "options": options})
        assert said in told(refused, 422)
    refused = await api.post("/v1/jobs", json={**CALL, "options": {"limit_key": "a"}})
    assert "limit_key= is for kinds with a limit=" in told(refused, 422)


async def test_the_lines_that_a_job_logged_are_read_from_a_number_on(app, api):
    @app.job
    def chat() -> None:
        for number in range(3):
            logging.getLogger("shop").warning("line %d", number)

    location = f"/v1/jobs/{(await chat.submit_async()).id}/logs"
    assert (await api.get(location)).json() == {"items": [], "done": False}
    await app.drain_async()
    told = (await api.get(location)).json()
    assert ([line["text"] for line in told["items"]], told["done"]) == (
        ["line 0", "line 1", "line 2"],
        True,
    )
    assert [line["n"] for line in (await api.get(f"{location}?after=2")).json()["items"]] == [3]
    assert (await api.get(f"{location}?after=x")).status_code == 422


async def test_jobs_are_searched_and_a_page_says_how_far_it_looked(app, api, monkeypatch):
    for _ in range(5):
        await api.post("/v1/jobs", json=CALL)
    tagged = {**CALL, "options": {"tags": {"user": "42"}}}
    made = (await api.post("/v1/jobs", json=tagged)).json()
    found = await api.get("/v1/jobs", params={"where": "tag.user:42 state:pending"})
    assert [job["id"] for job in found.json()["items"]] == [made["id"]]
    assert found.json()["next"] is None
    wrong = await api.get("/v1/jobs", params={"where": "sate:x"})
    assert "column 1: there is no key 'sate'" in told(wrong, 422)
    monkeypatch.setattr("milepost.store.search.LOOK", 3)
    page = (await api.get("/v1/jobs", params={"where": "-kind:convert", "limit": 2})).json()
    assert (page["items"], bool(page["next"]), bool(page["looked_to"])) == ([], True, True)
    asked = {"where": "-kind:convert", "limit": 2, "cursor": page["next"]}
    assert (await api.get("/v1/jobs", params=asked)).json()["items"] == []
    told(await api.get("/v1/jobs", params={**asked, "where": "kind:convert"}), 422)


async def test_one_job_is_told_with_its_usage(app, api):
    @app.job
    def spend(ctx: mp.Context) -> None:
        ctx.count("tokens", 120)

    job = await spend.submit_async()
    assert (await api.get(f"/v1/jobs/{job.id}")).json()["usage"] == {}
    await app.drain_async()
    assert (await api.get(f"/v1/jobs/{job.id}")).json()["usage"] == {"tokens": 120}
    [listed] = (await api.get("/v1/jobs?kind=spend")).json()["items"]
    assert "usage" not in listed


async def test_once_it_is_done_there_is_a_result_or_an_error(app, api):
    ids = [
        (await api.post("/v1/jobs", json=body)).json()["id"]
        for body in (CALL, {"kind": "broken"}, {"kind": "convert", "args": ["x"]})
    ]
    await api.post(f"/v1/jobs/{ids[2]}:cancel", json={"reason": "not needed"})
    await app.drain_async()
    done, failed, cancelled = [(await api.get(f"/v1/jobs/{job_id}")).json() for job_id in ids]
    for document in (done, failed, cancelled):
        assert document["done"]
        assert ("result" in document) + ("error" in document) == 1
    assert failed["state"] == "FAILED"
    assert failed["error"]["message"] == "no such format"
    assert cancelled["state"] == "CANCELLED"
    assert cancelled["error"] == {
        "type": "Cancelled",
        "message": "not needed",
        "cause": None,
        "code": "cancelled",
    }


async def test_prefer_wait_answers_with_the_end(app, api):
    headers = {"Prefer": "respond-async, wait=20"}
    waiting = asyncio.create_task(api.post("/v1/jobs", json=CALL, headers=headers))
    while not await app.jobs.list_async():
        pass
    await app.drain_async()
    answer = await waiting
    assert answer.status_code == 200
    assert answer.json()["result"] == "report.html"
    assert answer.headers["preference-applied"] == "respond-async, wait=20"
    assert answer.headers["location"].startswith("/v1/jobs/")

    at_once = await api.post("/v1/jobs", json=CALL, headers={"Prefer": "respond-async"})
    assert at_once.status_code == 202
    assert at_once.headers["preference-applied"] == "respond-async"
    waiting = asyncio.create_task(
        api.get(at_once.headers["location"], headers={"Prefer": "wait=20"})
    )
    await asyncio.sleep(0)
    await app.drain_async()
    assert (await waiting).json()["done"]


async def test_who_waits_too_short_hears_how_it_stands(api):
    posted = await api.post("/v1/jobs", json=CALL, headers={"Prefer": "wait=0"})
    assert posted.status_code == 202
    assert posted.headers["preference-applied"] == "wait=0"
    shown = await api.get(posted.headers["location"], headers={"Prefer": "wait=1"})
    assert shown.json()["done"] is False
    for odd in ("wait=x", "wait", "wait=-1", "handling=lenient", ";;,=", "wait=99999999999"):
        if odd != "wait=99999999999":
            answer = await api.get(posted.headers["location"], headers={"Prefer": odd})
            assert answer.status_code == 200


async def test_an_etag_saves_sending_what_is_known(app, api):
    location = (await api.post("/v1/jobs", json=CALL)).headers["location"]
    tag = (await api.get(location)).headers["etag"]
    same = await api.get(location, headers={"If-None-Match": f'"x", W/{tag}'})
    assert same.status_code == 304
    assert same.content == b""
    await app.drain_async()
    changed = await api.get(location, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


async def test_d_a_job_is_shown_as_its_record_in_ds_names(app, api):
    """D's table of fields, word for word; a job that failed tells why."""
    posted = await api.post("/v1/jobs", json={"kind": "broken"})
    where = posted.headers["location"]
    before = (await api.get(f"{where}?as=D")).json()
    assert (before["state"], before["startedAt"], before["lastError"]) == ("QUEUED", None, None)
    await app.drain_async()
    after = await api.get(f"{where}?as=d", headers={"Prefer": "wait=1"})
    assert set(after.json()) == {
        "jobId",
        "state",
        "createdAt",
        "startedAt",
        "completedAt",
        "retryCount",
        "maxRetries",
        "lastError",
        "errorType",
    }
    record = after.json()
    assert (record["jobId"], record["state"]) == (posted.json()["id"], "FAILED")
    assert record["lastError"] == "no such format"
    known = {"If-None-Match": after.headers["etag"]}
    assert (await api.get(f"{where}?as=D", headers=known)).status_code == 304


async def test_the_other_specs_show_their_word(app, api):
    where = (await api.post("/v1/jobs", json=CALL)).headers["location"]
    job_id = where.rpartition("/")[2]
    for spec, word in (("A", "READY"), ("B", "PartitionPending"), ("C", "IDLE"), ("e", "pending")):
        shown = (await api.get(f"{where}?as={spec}")).json()
        assert shown == {"id": job_id, "state": word}, spec
    run = await app.batches[0].start_async({"count": 1})
    shown = (await api.get(f"/v1/runs/{run.id}?as=A")).json()
    assert shown == {"id": run.id, "state": run.as_spec("A")}
    assert "A, B, C, D, E" in told(await api.get(f"{where}?as=F"), 422)
    assert "A, B, C" in told(await api.get(f"/v1/runs/{run.id}?as=D"), 422)


@pytest.mark.parametrize("state", ["queued", "Queued", "pending"])
async def test_states_are_asked_for_in_either_case(app, api, state):
    await api.post("/v1/jobs", json=CALL)
    run = await app.batches[0].start_async({"count": 1})
    for path in ("jobs", "runs", "batches/letters/runs"):
        found = (await api.get(f"/v1/{path}?state={state}")).json()["items"]
        assert found, path
    chosen = {"action": "cancel", "filter": {"state": state, "kind": "convert"}}
    assert (await api.post("/v1/jobs:bulk", json=chosen)).json()["count"] == 1
    assert (await api.get(f"/v1/runs?state=Failed&batch={run.record.kind}")).json()["items"] == []


async def test_pages_go_on_where_they_stopped(api):
    ids = [(await api.post("/v1/jobs", json=CALL)).json()["id"] for _ in range(5)]
    seen, url = [], "/v1/jobs?limit=2&kind=convert&state=PENDING"
    for _ in range(3):
        answer = await api.get(url)
        seen += [item["id"] for item in answer.json()["items"]]
        if answer.json()["next"] is None:
            break
        url = answer.links["next"]["url"]
    assert seen == ids[::-1]
    cursor = (await api.get("/v1/jobs?limit=2")).json()["next"]
    assert "other filters" in told(await api.get(f"/v1/jobs?kind=x&cursor={cursor}"), 422)
    for wrong in ("x", "!!", "W10", "a" * 2000):
        told(await api.get(f"/v1/jobs?cursor={wrong}"), 422)
    for wrong in ("limit=0", "limit=1001", "limit=x", "state=DREAMING"):
        told(await api.get(f"/v1/jobs?{wrong}"), 422)


@pytest.mark.parametrize(
    ("state", "count"), [("PENDING", 1), ("QUEUED", 1), ("COMPLETE", 0), ("RUNNING", 0)]
)
async def test_states_are_asked_for_in_either_word(api, state, count):
    await api.post("/v1/jobs", json=CALL)
    assert len((await api.get(f"/v1/jobs?state={state}")).json()["items"]) == count


MISFITS = (
    (b"{", 400, "malformed-json"),
    (b'{"kind": "convert", "args": ' + b"[" * 150 + b"]" * 150 + b"}", 400, "too-deep"),
    (b"[" * 100_000, 400, None),
    (b"\xff\xfe", 400, "malformed-json"),
    (b"[]", 422, None),
    (b"null", 422, None),
    (b'{"kind": "nothing"}', 422, None),
    (b'{"kind": "letters.write", "args": [{}]}', 422, None),
    (b'{"kind": "convert"}', 422, None),
    (b'{"kind": "convert", "args": [1]}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "extra": 1}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"priority": 10}}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"queue": " "}}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"channel": " "}}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"start_in": 1e300}}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"queue": "a\\u0000b"}}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"start_at": "now"}}', 422, None),
    (b'{"kind": "convert", "args": ["a"], "options": {"start_at": "2030-01-01"}}', 422, None),
)


async def test_a_body_that_does_not_fit_is_told_where(api, subtests):
    headers = {"Content-Type": "application/json"}
    for body, status, name in MISFITS:
        with subtests.test(body=body[:80]):
            told(await api.post("/v1/jobs", content=body, headers=headers), status, name)


async def test_a_problem_does_not_repeat_what_was_sent(api):
    body = {"kind": "convert", "args": [{"card": "canary-4111"}]}
    assert "canary" not in (await api.post("/v1/jobs", json=body)).text
    body = {"kind": "convert", "args": ["a"], "options": {"priority": "canary-4111"}}
    assert "canary" not in (await api.post("/v1/jobs", json=body)).text


async def test_limits_are_told_at_the_door(app, api):
    most = app.settings.max_payload
    headers = {"Content-Type": "application/json"}
    big = b'{"kind": "convert", "args": ["' + b"x" * (most + 70_000) + b'"]}'
    told(await api.post("/v1/jobs", content=big, headers=headers), 413)

    async def pieces():
        for start in range(0, len(big), 65_536):
            yield big[start : start + 65_536]

    told(await api.post("/v1/jobs", content=pieces(), headers=headers), 413)
    fits = b'{"kind": "convert", "args": ["' + b"x" * (most + 1) + b'"]}'
    told(await api.post("/v1/jobs", content=fits, headers=headers), 422)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx"):
        answer = await api.post("/v1/jobs", content=b"{}", headers={"Content-Type": kind})
        told(answer, 415)
    told(await api.post("/v1/jobs", content=b"{}"), 415)
    deep: object = 1
    for _ in range(DEEPEST - 2):
        deep = [deep]
    assert (await api.post("/v1/jobs", json={"kind": "convert", "args": [deep]})).status_code == 422


async def test_what_is_not_there_and_what_is_not_taken_are_told(api):
    told(await api.get("/v2/jobs"), 404)
    told(await api.get("/v1/jobs/"), 404)
    told(await api.get("/v1/jobs/nonsense"), 404)
    told(await api.get("/v1/runs/nonsense"), 404)
    told(await api.get("/v1/queues/nowhere"), 404)
    told(await api.get("/v1/schedules/nowhere"), 404)
    told(await api.post("/v1/schedules/nowhere:pause"), 404)
    told(await api.post("/v1/batches/nothing/runs", json={}), 404)
    put = await api.put("/v1/jobs", json={})
    told(put, 405)
    assert put.headers["allow"]


def test_a_caller_in_a_hurry_is_told_when_to_come_again():
    time = [0.0]
    rates = RateLimiter(10, now=lambda: time[0])
    for _ in range(20):
        rates.take("ada")
    with pytest.raises(HttpProblem) as refused:
        rates.take("ada")
    assert refused.value.status_code == 429
    assert refused.value.headers == {"Retry-After": "1"}
    rates.take("boris")
    time[0] += 0.1
    rates.take("ada")
    with pytest.raises(HttpProblem):
        rates.take("ada")


async def test_the_rate_is_each_callers_own(database, token, app):
    ada, boris = token("ada", "read"), token("boris", "read")
    hurried = mp.App(database.url, api_rate=1)
    transport = httpx2.ASGITransport(app=hurried.asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        answers = [await client.get("/v1/jobs", headers=ada) for _ in range(5)]
        told(answers[-1], 429)
        assert answers[-1].headers["retry-after"] == "1"
        assert (await client.get("/v1/jobs", headers=boris)).status_code == 200
    await hurried.close_async()


async def test_a_store_that_cannot_be_used_is_a_503(tmp_path):
    lost = mp.App("postgresql://nobody:canary@127.0.0.1:1/none")
    transport = httpx2.ASGITransport(app=create_api(lost, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/readyz", "/v1/jobs"):
            answer = await client.get(path)
            told(answer, 503)
            assert answer.headers["retry-after"]
            assert "canary" not in answer.text
        assert (await client.get("/livez")).status_code == 200


async def test_it_can_be_mounted_under_any_prefix(app):
    outer = Starlette(routes=[Mount("/tasks/queue", app.asgi(access="open"))])
    transport = httpx2.ASGITransport(app=outer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/tasks/queue/livez")).status_code == 200
        posted = await client.post("/tasks/queue/v1/jobs", json=CALL)
        assert posted.headers["location"].startswith("/tasks/queue/v1/jobs/")
        assert (await client.get(posted.headers["location"])).status_code == 200
        await client.post("/tasks/queue/v1/jobs", json=CALL)
        page = await client.get("/tasks/queue/v1/jobs?limit=1")
        following = await client.get(page.links["next"]["url"])
        assert following.json()["items"][0]["id"] == posted.json()["id"]
        described = (await client.get("/tasks/queue/openapi.json")).json()
        assert described["servers"] == [{"url": "/tasks/queue"}]
        keyed = {"Idempotency-Key": "k"}
        mounted = await client.post("/tasks/queue/v1/jobs", json=CALL, headers=keyed)
    transport = httpx2.ASGITransport(app=app.asgi(access="open"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        plain = await client.post("/v1/jobs", json=CALL, headers=keyed)
    assert plain.json() == mounted.json()
    assert plain.headers["location"] == f"/v1/jobs/{plain.json()['id']}"
    await app.client.close_async()


async def test_a_run_is_started_followed_and_resumed(app, api):
    started = await api.post("/v1/batches/letters/runs", json={"params": {"count": 8}})
    assert started.status_code == 202
    location = started.headers["location"]
    shown = (await api.get(location)).json()
    assert (shown["state"], shown["run_state"], shown["done"]) == ("PENDING", "QUEUED", False)
    assert not {"result", "error"} & set(shown)
    assert shown["parameters"] == {"count": 8}
    await app.drain_async(5)
    failed = (await api.get(location, headers={"Prefer": "wait=5"})).json()
    assert (failed["state"], failed["done"]) == ("FAILED", True)
    assert failed["error"]["cause"]
    assert "result" not in failed
    assert failed["errors"][0]["message"] == "too many letters"
    assert [step["name"] for step in failed["steps"]] == ["write", "send"]
    history = (await api.get(f"{location}/history")).json()["items"]
    assert history[0]["move"] == "create"
    resumed = await api.post(f"{location}:resume")
    assert resumed.status_code == 202
    assert (await api.get(resumed.headers["location"])).json()["resumes"] == failed["id"]
    assert len((await api.get("/v1/batches/letters/runs")).json()["items"]) == 2
    assert (await api.post(f"{location}:resume")).json()["id"] in resumed.headers["location"]
    of_run = await api.get(f"/v1/jobs?run={failed['id']}")
    assert {item["run"] for item in of_run.json()["items"]} == {failed["id"]}
    told(await api.post("/v1/batches/letters/runs", json={"params": {"count": "x"}}), 422)
    reuse = {"params": {"count": 3}, "options": {"reuse": True}}
    twice = [(await api.post("/v1/batches/letters/runs", json=reuse)).json()["id"] for _ in "ab"]
    assert len(set(twice)) == 1
    cancelled = await api.post(f"/v1/runs/{twice[0]}:cancel", json={"reason": "enough"})
    assert cancelled.json()["state"] == "CANCELLED"


async def test_a_signal_wakes_what_waits(app, api):
    location = (await api.post("/v1/jobs", json={"kind": "patient"})).headers["location"]
    await app.drain_async()
    assert (await api.get(location)).json()["job_state"] == "WAITING"
    answer = await api.post(f"{location}:signal", json={"answer": 42})
    assert answer.json()["job_state"] == "QUEUED"
    await app.drain_async()
    assert (await api.get(location)).json()["result"] == "woken"
    told(await api.post(f"{location}:signal", json=None), 409)
    told(await api.post(f"{location}:rerun"), 409)
    again = await api.post(f"{location}:rerun", json={"fresh": True})
    newer = (await api.get(again.headers["location"])).json()
    assert newer["rerun_of"] in location
    assert (await api.get(location)).json()["rerun_by"] == newer["id"]
    told(await api.post(f"{location}:rerun", json={"fresh": "yes"}), 422)


async def test_a_list_leaves_out_what_was_run_again(app, api):
    location = (await api.post("/v1/jobs", json={"kind": "broken"})).headers["location"]
    await app.drain_async()
    failed = (await api.get(location)).json()
    [one] = (await api.get(f"{location}/failures")).json()["items"]
    assert (one["attempt"], one["type"], one["message"]) == (1, "Fail", "no such format")
    assert "raise mp.Fail" in one["traceback"]
    assert one["fingerprint"] == failed["fingerprint"]
    [group] = (await api.get("/v1/errors")).json()["items"]
    assert (group["count"], group["failed"], group["job"]) == (1, 1, failed["id"])
    same = (await api.get(f"/v1/errors/{group['fingerprint']}")).json()
    assert same["shared"]["kind"] == {"broken": 1}
    assert [(each["job"], each["type"]) for each in same["examples"]] == [(failed["id"], "Fail")]
    told(await api.get("/v1/errors/none"), 404)
    again = await api.post(f"{location}:rerun")
    assert again.status_code == 202
    for asked, count in (("", 2), ("?superseded=false", 1), ("?superseded=true", 1)):
        assert len((await api.get(f"/v1/jobs{asked}")).json()["items"]) == count
    [newest] = (await api.get("/v1/jobs?superseded=false")).json()["items"]
    assert again.headers["location"].endswith(newest["id"])
    assert newest["id"] in told(await api.post(f"{location}:rerun"), 409)


async def test_what_a_last_step_gave_is_read_a_page_at_a_time(app, api):
    batch = app.batch("given")

    @batch.step
    def give() -> Iterator[dict[str, int]]:
        yield from ({"number": number} for number in range(45))

    await batch.start_async()
    await app.drain_async()
    [job] = await app.jobs.list_async(kind="given.give")
    path, items = f"/v1/jobs/{job.id}/outputs", []
    first = (await api.get(path, params={"limit": 20})).json()
    following = first["next"]
    items += first["items"]
    while following is not None:
        page = (await api.get(path, params={"limit": 20, "cursor": following})).json()
        items, following = items + page["items"], page["next"]
    assert items == [{"number": number} for number in range(45)]
    told(await api.get(path, params={"cursor": "none"}), 422)

    location = (await api.post("/v1/jobs", json=CALL)).headers["location"]
    assert (await api.get(f"{location}/outputs")).json() == {"items": [], "next": None}
    await app.drain_async()
    assert (await api.get(f"{location}/outputs")).json()["items"] == ["report.html"]


async def test_a_job_whose_arguments_do_not_fit_is_released(app, api):
    location = (await api.post("/v1/jobs", json=CALL)).headers["location"]
    told(await api.post(f"{location}:release"), 409)
    changed = mp.App(app.client.url.address)

    @changed.job(name="convert")
    def convert(number: int) -> int:
        return number

    await changed.drain_async()
    await changed.close_async()
    waiting = (await api.get(location)).json()
    assert (waiting["job_state"], waiting["phase"]) == ("WAITING", "unfit")
    answer = await api.post(f"{location}:release")
    assert (answer.status_code, answer.json()["job_state"]) == (200, "QUEUED")
    told(await api.post("/v1/jobs/01890a5d-ac96-774b-bcce-b302099a8057:release"), 404)


async def test_queues_and_schedules_rest_and_go_on(app, api):
    await api.post("/v1/jobs", json=CALL)
    paused = (await api.post("/v1/queues/default:pause")).json()
    assert (paused["paused"], paused["paused_by"], paused["counts"]) == (
        True,
        "local",
        {"QUEUED": 1},
    )
    assert await app.drain_async() == 0
    assert (await api.post("/v1/queues/default:resume")).json()["paused"] is False
    assert await app.drain_async() == 1
    assert (await api.get("/v1/queues/default")).json()["counts"] == {"SUCCEEDED": 1}
    nightly = (await api.post("/v1/schedules/nightly:pause")).json()
    assert (nightly["state"], nightly["paused_by"]) == ("paused", "local")
    assert (await api.post("/v1/schedules/nightly:resume")).json()["state"] == "active"
    assert [s["name"] for s in (await api.get("/v1/schedules")).json()["items"]] == ["nightly"]
    assert [w["state"] for w in (await api.get("/v1/workers")).json()["items"]]
    assert (await api.get("/v1/batches")).json()["items"][0]["steps"] == ["write", "send"]


async def test_metrics_count_what_stands_where_and_never_by_what_callers_send(
    app, api, monkeypatch
):
    monkeypatch.setattr("milepost.observe.fresh.MOST_SECONDS", 0.0)  # how it stands right now
    await api.post("/v1/jobs", json=CALL)
    for n in range(5):
        await api.get(f"/v1/jobs/nothing-{n}")
        await api.get(f"/nowhere/{n}")
    text = (await api.get("/metrics")).text
    assert 'milepost_jobs{queue="default",state="QUEUED"} 1.0' in text
    assert 'route="/v1/jobs/{job_id}",status="404"} 5.0' in text
    assert "milepost_journal_partition_full 0.0" in text
    assert "nothing-" not in text
    assert "/nowhere" not in text
    for n in range(205):
        options = {"queue": f"q{n}"}
        await app.client.create_async([app.new_job("convert", ["a"], {}, options)])
    lines = (await api.get("/metrics")).text.splitlines()
    told_of = [line for line in lines if line.startswith("milepost_jobs{")]
    assert len(told_of) == 200
    assert any('queue="(others)"' in line for line in told_of)
