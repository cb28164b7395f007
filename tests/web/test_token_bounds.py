"""What a token may create, and how often it may call."""

import asyncio

import httpx2
import pytest
from test_access import MATRIX

import milepost as mp
from milepost.store.tokens import Bounds
from milepost.web import events
from milepost.web.access import WrongTokenThrottle, network
from milepost.web.api import create_api

HARMLESS = {
    "/v1/jobs/{job_id}:cancel",
    "/v1/jobs/{job_id}:signal",
    "/v1/jobs/{job_id}:release",
    "/v1/jobs/{job_id}:run-now",
    "/v1/jobs/{job_id}:erase",
    "/v1/runs/{run_id}:cancel",
    "/v1/requests/{job_id}/callback/{token}",
    "/v1/pipelines/{name}/removals:confirm",
    "/v1/pipelines/{name}/removals:dismiss",
    "/v1/pipelines/{name}/table:release",
    "/v1/queues/{name}:pause",
    "/v1/queues/{name}:resume",
    "/v1/limits/{name}:set",
    "/v1/limits/{name}:reset",
    "/v1/limits/{name}:clear",
    "/v1/schedules/{name}:pause",
    "/v1/channels/{name}/messages:ack",
    "/v1/channels/{name}/messages:retry",
    "/v1/channels/{name}/messages:redeliver",
}
"""What acts on what is there, and creates nothing."""

REQUEST = {"url": "https://partner.example"}


async def making(app):
    """Prepare something for each route that creates jobs: its path, what to send, its kind."""
    stones = app.pipeline("stones", mp.Source(), key="id", partition_by="price")
    pipeline = await stones.start_async()
    await pipeline.cancel_async("enough")
    [job_id] = await app.client.create_async([app.new_job("broken", [], {}, {})])
    run = await app.batches[0].start_async({"count": 9})
    await app.drain_async()
    named = f"/v1/pipelines/stones/runs/{pipeline.id}"
    return {
        "/v1/jobs": ("/v1/jobs", {"kind": "convert", "args": ["a"]}),
        "/v1/jobs/{job_id}:rerun": (f"/v1/jobs/{job_id}:rerun", None),
        "/v1/jobs:bulk": ("/v1/jobs:bulk", {"action": "rerun", "ids": [job_id]}),
        "/v1/requests": ("/v1/requests", REQUEST),
        "/v1/requests:batch": ("/v1/requests:batch", {"requests": [REQUEST]}),
        "/v1/batches": ("/v1/batches", {"requests": [REQUEST]}),
        "/v1/batches/{name}/runs": ("/v1/batches/letters/runs", {"params": {"count": 1}}),
        "/v1/pipelines/{name}/runs": ("/v1/pipelines/stones/runs", {}),
        "/v1/pipelines/{name}:remap": ("/v1/pipelines/stones:remap", None),
        "/v1/pipelines/{name}/runs/{run_id}:force": (f"{named}:force", None),
        "/v1/pipelines/{name}/runs/{run_id}:resume": (f"{named}:resume", None),
        "/v1/pipelines/{name}/runs/{run_id}:retry": (f"{named}:retry", {"partition": 0}),
        "/v1/pipelines/{name}/quarantine:replay": (
            "/v1/pipelines/stones/quarantine:replay",
            None,
        ),
        "/v1/runs/{run_id}:resume": (f"/v1/runs/{run.id}:resume", None),
        "/v1/schedules/{name}:resume": ("/v1/schedules/nightly:resume", None),
        "/v1/schedules/{name}:run": ("/v1/schedules/nightly:run", None),
    }


async def test_every_route_that_creates_jobs_asks_which_kinds_a_token_is_for(app, api, token):
    routes = await making(app)
    assert {path for method, path in MATRIX if method == "POST"} == {*routes, *HARMLESS}
    before = len(app.jobs.list(limit=1000))
    other = token("other", "admin", bounds=Bounds(kinds=("nothing",), requests=False))
    for route, (path, body) in routes.items():
        refused = await api.post(path, json=body, headers=other)
        assert refused.status_code == 403, (route, refused.text)
        assert "this token" in refused.json()["detail"]
    assert len(app.jobs.list(limit=1000)) == before


async def test_a_token_creates_the_kinds_that_it_is_for(app, api, token):
    routes = await making(app)
    kinds = ("broken", "convert", "letters", "stones")
    for name, bounds in (
        ("named", Bounds(kinds=kinds)),
        ("any", Bounds()),
    ):
        header = token(name, "admin", bounds=bounds)
        for route, (path, body) in routes.items():
            answer = await api.post(path, json=body, headers=header)
            assert answer.status_code != 403, (route, answer.text)


async def test_requests_are_a_kind_apart(api, token):
    """By whichever route: a request is also a job of the kind `request`."""
    without = token("without", "submit", bounds=Bounds(requests=False))
    job = {"kind": "request", "args": ["GET", "https://partner.example"]}
    for path, body in (("/v1/requests", REQUEST), ("/v1/jobs", job)):
        assert (await api.post(path, json=body, headers=without)).status_code == 403
    plain = {"kind": "convert", "args": ["a"]}
    assert (await api.post("/v1/jobs", json=plain, headers=without)).status_code == 202
    only = token("only", "submit", bounds=Bounds(kinds=(), requests=True))
    assert (await api.post("/v1/requests", json=REQUEST, headers=only)).status_code == 202
    assert (await api.post("/v1/jobs", json=plain, headers=only)).status_code == 403


async def test_priorities_beyond_a_tokens_own_are_refused(app, api, token):
    low = token("low", "submit", "operate", bounds=Bounds(max_priority=3))
    urgent = {"kind": "broken", "options": {"priority": 4}}
    assert (await api.post("/v1/jobs", json=urgent, headers=low)).status_code == 403
    urgent["options"] = {"priority": 3}
    assert (await api.post("/v1/jobs", json=urgent, headers=low)).status_code == 202
    bodies = {
        "/v1/requests": {**REQUEST, "priority": 9},
        "/v1/requests:batch": {"requests": [{**REQUEST, "priority": 9}]},
        "/v1/batches/letters/runs": {"params": {"count": 1}, "options": {"priority": 4}},
    }
    for path, body in bodies.items():
        assert (await api.post(path, json=body, headers=low)).status_code == 403, path
    deep = {"requests": [{"batch": [REQUEST, {"batch": bodies["/v1/requests:batch"]["requests"]}]}]}
    assert (await api.post("/v1/requests:batch", json=deep, headers=low)).status_code == 403
    assert app.runs.list() == []
    [job_id] = await app.client.create_async([app.new_job("broken", [], {}, {"priority": 9})])
    await app.drain_async()
    assert (await api.post(f"/v1/jobs/{job_id}:rerun", headers=low)).status_code == 403
    bulk = {"action": "rerun", "filter": {"kind": "broken"}}
    assert (await api.post("/v1/jobs:bulk", json=bulk, headers=low)).status_code == 403


async def test_a_tokens_own_rate_takes_the_place_of_the_servers(api, token):
    slow, usual = token("slow", "read", bounds=Bounds(rate=1.0)), token("usual", "read")
    told = [(await api.get("/v1/queues", headers=slow)).status_code for _ in range(5)]
    assert told[:2] == [200, 200]
    assert 429 in told
    for _ in range(5):
        assert (await api.get("/v1/queues", headers=usual)).status_code == 200


async def test_a_token_holds_so_many_streams(api, token, monkeypatch):
    monkeypatch.setattr(events, "_open", events.Counter())
    ada, boris = token("ada", "read"), token("boris", "read")
    token_id = ada["Authorization"].split("_")[1]
    events._open[token_id] = events.STREAMS_EACH
    refused = await api.get("/v1/events?seconds=0", headers=ada)
    assert refused.status_code == 429
    assert refused.headers["retry-after"]
    assert (await api.get("/v1/events?seconds=0", headers=boris)).status_code == 200
    assert events._open == {token_id: events.STREAMS_EACH}  # what has ended is not counted


async def test_wrong_tokens_are_slowed_and_a_right_one_is_not(app, token):
    """From one address, as behind a proxy: what is wrong waits, what is right passes."""
    api = create_api(app, access="tokens")
    right = token("right", "read")
    wrong = {"Authorization": "Bearer mp_000000000000_guess"}

    async def asked(client, headers):
        return (await client.get("/v1/queues", headers=headers)).status_code

    there, elsewhere = (
        httpx2.ASGITransport(app=api, client=(host, 1)) for host in ("203.0.113.7", "203.0.113.8")
    )
    async with httpx2.AsyncClient(transport=there, base_url="http://test") as client:
        told = await asyncio.gather(*(asked(client, wrong) for _ in range(20)))
        assert set(told) == {401, 429}
        assert await asked(client, right) == 200
        # Whoever shows nothing is told to show something.
        assert await asked(client, {}) == 401
    async with httpx2.AsyncClient(transport=elsewhere, base_url="http://test") as client:
        assert await asked(client, wrong) == 401
    await app.client.close_async()


async def test_wrong_callbacks_are_slowed_too(app, api):
    path = "/v1/requests/018f0000-0000-7000-8000-000000000000/callback/guess"
    told = await asyncio.gather(*(api.post(path) for _ in range(20)))
    assert {answer.status_code for answer in told} == {404, 429}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("203.0.113.7", "203.0.113.8", False),
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:203.0.113.7", "::ffff:203.0.113.8", False),
        ("unix", "unix", True),
    ],
)
def test_a_caller_with_many_addresses_is_one(one, other, same):
    assert (network({"client": (one, 1)}) == network({"client": (other, 1)})) is same
    assert network({"client": None}) == ""


async def test_few_strangers_are_kept_waiting(monkeypatch):
    monkeypatch.setattr("milepost.web.access.WRONG_TOKENS_WAITING", 0)
    throttle = WrongTokenThrottle(0.5, seconds=3600)
    scope = {"client": ("203.0.113.7", 1)}
    await throttle.count(scope)
    for _ in range(50):
        with pytest.raises(Exception, match="slow down"):
            await throttle.count(scope)
