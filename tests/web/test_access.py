"""Who may do what: every route, every scope; and a foreign id is not there (H-116)."""

import re

import httpx2
import pytest

import milepost as mp
from milepost.store import creation, journal, tokens
from milepost.store.tokens import SCOPES
from milepost.web.access import known_host
from milepost.web.api import create_api, describe
from milepost.web.dashboard.routers import ROUTERS as PAGES

NOWHERE = "018f0000-0000-7000-8000-000000000000"

EXPLAIN = "/v1/explain/channel/news"
MATRIX = {
    ("POST", "/v1/jobs"): "submit",
    ("GET", "/v1/jobs"): "read",
    ("GET", "/v1/jobs/{job_id}"): "read",
    ("GET", "/v1/jobs/{job_id}/history"): "read",
    ("GET", "/v1/jobs/{job_id}/failures"): "read",
    ("GET", "/v1/jobs/{job_id}/logs"): "read",
    ("GET", "/v1/jobs/{job_id}/outputs"): "read",
    ("POST", "/v1/jobs/{job_id}:cancel"): "operate",
    ("POST", "/v1/jobs/{job_id}:rerun"): "operate",
    ("POST", "/v1/jobs/{job_id}:signal"): "operate",
    ("POST", "/v1/jobs/{job_id}:release"): "operate",
    ("POST", "/v1/jobs/{job_id}:run-now"): "operate",
    ("POST", "/v1/jobs/{job_id}:erase"): "admin",
    ("POST", "/v1/jobs:bulk"): "operate",
    ("POST", "/v1/requests"): "submit",
    ("POST", "/v1/requests:batch"): "submit",
    ("POST", "/v1/batches"): "submit",
    ("GET", "/v1/requests/{request_id}"): "read",
    ("POST", "/v1/requests/{job_id}/callback/{token}"): "address",
    ("GET", "/v1/batches"): "read",
    ("POST", "/v1/batches/{name}/runs"): "submit",
    ("GET", "/v1/batches/{name}/runs"): "read",
    ("GET", "/v1/pipelines"): "read",
    ("GET", "/v1/pipelines/{name}"): "read",
    ("POST", "/v1/pipelines/{name}/runs"): "submit",
    ("POST", "/v1/pipelines/{name}:remap"): "operate",
    ("GET", "/v1/pipelines/{name}/runs"): "read",
    ("POST", "/v1/pipelines/{name}/runs/{run_id}:force"): "operate",
    ("POST", "/v1/pipelines/{name}/runs/{run_id}:resume"): "operate",
    ("POST", "/v1/pipelines/{name}/runs/{run_id}:retry"): "operate",
    ("GET", "/v1/pipelines/{name}/quarantine"): "read",
    ("POST", "/v1/pipelines/{name}/quarantine:replay"): "operate",
    ("GET", "/v1/pipelines/{name}/removals"): "read",
    ("POST", "/v1/pipelines/{name}/removals:confirm"): "operate",
    ("POST", "/v1/pipelines/{name}/removals:dismiss"): "operate",
    ("POST", "/v1/pipelines/{name}/table:release"): "operate",
    ("GET", "/v1/runs/{run_id}/partitions"): "read",
    ("GET", "/v1/runs"): "read",
    ("GET", "/v1/runs/{run_id}"): "read",
    ("GET", "/v1/runs/{run_id}/history"): "read",
    ("POST", "/v1/runs/{run_id}:cancel"): "operate",
    ("POST", "/v1/runs/{run_id}:resume"): "operate",
    ("GET", "/v1/explain/{subject}/{name}"): "read",
    ("GET", "/v1/errors"): "read",
    ("GET", "/v1/errors/{fingerprint}"): "read",
    ("GET", "/v1/queues"): "read",
    ("GET", "/v1/queues/{name}"): "read",
    ("POST", "/v1/queues/{name}:pause"): "operate",
    ("POST", "/v1/queues/{name}:resume"): "operate",
    ("GET", "/v1/limits"): "read",
    ("GET", "/v1/limits/{name}"): "read",
    ("GET", "/v1/limits/{name}/changes"): "read",
    ("POST", "/v1/limits/{name}:set"): "operate",
    ("POST", "/v1/limits/{name}:reset"): "operate",
    ("POST", "/v1/limits/{name}:clear"): "operate",
    ("GET", "/v1/workers"): "read",
    ("GET", "/v1/schedules"): "read",
    ("GET", "/v1/schedules/{name}"): "read",
    ("POST", "/v1/schedules/{name}:pause"): "operate",
    ("POST", "/v1/schedules/{name}:resume"): "operate",
    ("POST", "/v1/schedules/{name}:run"): "operate",
    ("GET", "/v1/events"): "read",
    ("GET", "/v1/channels"): "read",
    ("GET", "/v1/channels/{name}/messages"): "read",
    ("POST", "/v1/channels/{name}/messages:ack"): "operate",
    ("POST", "/v1/channels/{name}/messages:retry"): "operate",
    ("POST", "/v1/channels/{name}/messages:redeliver"): "operate",
    ("GET", "/metrics"): "read",
    ("GET", "/docs"): None,
    ("GET", "/livez"): None,
    ("GET", "/readyz"): None,
    ("GET", "/openapi.json"): "any",
}
"""What each route needs: None for nothing, "any" for any token, "address" for a right address."""

ENDLESS = {("GET", "/v1/events")}
"""What never ends once it is let in: tests/web/test_events_stream.py asks it over real HTTP."""

BODIES = {
    "/v1/jobs": {"kind": "convert", "args": ["a"]},
    "/v1/batches/{name}/runs": {"params": {"count": 1}},
    "/v1/jobs:bulk": {"action": "cancel", "ids": [NOWHERE]},
    "/v1/requests": {"url": "https://partner.example"},
    "/v1/requests:batch": {"requests": []},
    "/v1/batches": {"requests": []},
    "/v1/pipelines/{name}/runs/{run_id}:retry": {"partition": 0},
}


def routes():
    """Name every route that programs call; tests/web/test_pages_access.py has the pages."""
    pages = {route.path for router in PAGES for route in router.routes}
    return {
        (method, route.path)
        for route in _flat(describe().routes)
        for method in route.methods
        if route.path not in pages and (method != "HEAD" or "GET" not in route.methods)
    }


def _flat(found):
    for route in found:
        if hasattr(route, "methods"):
            yield route
        else:
            # A router that was included: what it matches is what it holds.
            yield from _flat(route.original_router.routes)


def test_every_route_has_its_line():
    assert routes() == set(MATRIX)


def ask(method, path):
    """Make a request of a route that would do something if it were let in."""
    name = "letters" if "batches" in path else "nightly" if "schedules" in path else "default"
    return {
        "method": method,
        "url": path.format(
            job_id=NOWHERE,
            run_id=NOWHERE,
            request_id=NOWHERE,
            name=name,
            token="guess",
            fingerprint="none",
            subject="queue",
        ),
        "json": BODIES.get(path) if method == "POST" else None,
    }


async def test_each_scope_opens_its_routes_and_no_other(app, api, token):
    holders = {scope: token(f"only-{scope}", scope) for scope in SCOPES}
    for (method, path), needed in MATRIX.items():
        nobody = await api.request(**ask(method, path))
        assert nobody.status_code == {None: 200, "address": 404}.get(needed, 401), path
        for scope, header in holders.items():
            allowed = needed in (None, "any", "address", scope) or scope == "admin"
            if allowed and (method, path) in ENDLESS:
                continue
            answer = await api.request(**ask(method, path), headers=header)
            assert (answer.status_code not in (401, 403)) == allowed, (path, scope, answer.text)
            if not allowed:
                assert answer.status_code == 403
                assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.both_stores
async def test_a_foreign_id_is_not_there_on_any_route(app, api, token):
    """H-95, H-116: 404, word for word as for an id that never was."""
    job = app.new_job("slowly", [1], {}, {})
    app.client.run(creation.create, [job])
    batch = app.batches[0]
    run = await batch.start_async({"count": 1})
    bound = [
        token("theirs", "admin", tenant="other"),
        token("elsewhere", "admin", queues=["nowhere"]),
    ]
    app.pipeline("stones", mp.Source(), key="id", partition_by="price")
    sent = await app.request_async("GET", "https://partner.example", start_in=3600)
    ids = {"job_id": job.id, "run_id": run.id, "token": "guess", "name": "stones"}
    ids["request_id"] = sent.id
    nowhere = {**ids, "job_id": NOWHERE, "run_id": NOWHERE, "request_id": NOWHERE}
    named = [route for route in routes() if "_id}" in route[1]]
    assert len(named) == len([route for route in MATRIX if "_id}" in route[1]]) > 9
    for method, path in named:
        for header in bound:
            body = BODIES.get(path)
            found = await api.request(method, path.format(**ids), json=body, headers=header)
            never = await api.request(method, path.format(**nowhere), json=body, headers=header)
            assert found.status_code == never.status_code == 404, path
            told = found.text
            for known in (job.id, run.id, sent.id):
                told = told.replace(known, "ID")
            assert told == never.text.replace(NOWHERE, "ID")
    assert app.jobs.get(job.id).state == "QUEUED"


@pytest.mark.both_stores
async def test_listings_show_a_bound_token_its_own_only(app, api, token):
    mine = token("mine", "read", "submit", tenant="acme")
    slow = token("slow", "read", "submit", "operate", queues=["slow"])
    free = token("free", "admin")
    ids = {}
    for name, header, kind, args in (
        ("mine", mine, "convert", ["a"]),
        ("slow", slow, "slowly", [1]),
        ("free", free, "convert", ["b"]),
    ):
        answer = await api.post("/v1/jobs", json={"kind": kind, "args": args}, headers=header)
        assert answer.status_code == 202, answer.text
        ids[name] = answer.json()["id"]
    for header, seen in ((mine, ["mine"]), (slow, ["slow"]), (free, ["free", "slow", "mine"])):
        page = (await api.get("/v1/jobs", headers=header)).json()
        assert [item["id"] for item in page["items"]] == [ids[name] for name in seen]
    assert app.jobs.get(ids["mine"]).record.tenant == "acme"

    run = (
        await api.post("/v1/batches/letters/runs", json={"params": {"count": 1}}, headers=mine)
    ).json()
    assert app.runs.get(run["id"]).record.tenant == "acme"
    assert [j.record.tenant for j in app.jobs.list() if j.record.run_id] == ["acme"]
    assert (await api.get("/v1/runs", headers=slow)).json()["items"] == []
    assert len((await api.get("/v1/runs", headers=mine)).json()["items"]) == 1

    queues = (await api.get("/v1/queues", headers=slow)).json()["items"]
    assert [queue["name"] for queue in queues] == ["slow"]
    for path in ("/v1/workers", "/v1/errors", "/v1/errors/x", "/v1/schedules", "/metrics", EXPLAIN):
        for header in (mine, slow):
            assert (await api.get(path, headers=header)).status_code == 403, path


async def test_what_a_pipeline_keeps_is_no_tenants(app, api, token):
    """H-116: records in quarantine and those to be removed are the installation's."""
    app.pipeline("stones", mp.Source(), key="id", partition_by="price")
    tenant, free = token("theirs", "admin", tenant="acme"), token("free", "admin")
    kept = [path for _, path in MATRIX if re.search("quarantine|removals|table:", path)]
    assert len(kept) == 6
    for method, path in [route for route in MATRIX if route[1] in kept]:
        url = path.format(name="stones")
        assert (await api.request(method, url, headers=tenant)).status_code == 403, path
        assert (await api.request(method, url, headers=free)).status_code != 403, path


async def test_a_bound_token_submits_within_its_bounds_only(api, token):
    slow = token("slow", "submit", "operate", queues=["slow"])
    refused = await api.post("/v1/jobs", json={"kind": "convert", "args": ["a"]}, headers=slow)
    assert refused.status_code == 403
    moved = {"kind": "convert", "args": ["a"], "options": {"queue": "slow"}}
    assert (await api.post("/v1/jobs", json=moved, headers=slow)).status_code == 202
    start = {"params": {"count": 1}}
    answer = await api.post("/v1/batches/letters/runs", json=start, headers=slow)
    assert answer.status_code == 403
    assert (await api.post("/v1/queues/default:pause", headers=slow)).status_code == 404
    assert (await api.post("/v1/queues/slow:pause", headers=slow)).json()["paused_by"] == "slow"
    tenant = token("acme", "operate", tenant="acme")
    assert (await api.post("/v1/queues/slow:resume", headers=tenant)).status_code == 403


async def test_the_journal_names_the_token(app, api, token):
    ada = token("ada", "submit", "operate")
    body = {"kind": "patient", "options": {"start_in": 60}}
    job_id = (await api.post("/v1/jobs", json=body, headers=ada)).json()["id"]
    boris = token("boris", "operate")
    await api.post(f"/v1/jobs/{job_id}:signal", json={"go": 1}, headers=boris)
    await api.post(f"/v1/jobs/{job_id}:cancel", json={"reason": "enough"}, headers=ada)
    moves = [(entry.move, entry.actor) for entry in app.jobs.get(job_id).history]
    assert moves == [("create", "ada"), ("wake", "boris"), ("cancel", "ada")]
    again = (await api.post(f"/v1/jobs/{job_id}:rerun", headers=boris)).json()["id"]
    assert app.jobs.get(again).history[0].actor == "boris"
    start = {"params": {"count": 1}}
    run = (await api.post("/v1/batches/letters/runs", json=start, headers=ada)).json()["id"]
    await api.post(f"/v1/runs/{run}:cancel", headers=boris)
    assert {(e.move, e.actor) for e in app.runs.get(run).history} >= {
        ("create", "ada"),
        ("cancel", "boris"),
    }


async def test_a_token_works_until_it_is_revoked_or_expires(app, api, token, advance):
    header = token("brief", "read", expires_in=60)
    assert (await api.get("/v1/jobs", headers=header)).status_code == 200
    advance(61)
    assert (await api.get("/v1/jobs", headers=header)).status_code == 401
    header = token("revoked", "read")
    assert (await api.get("/v1/jobs", headers=header)).status_code == 200
    app.client.run(tokens.revoke, "revoked")
    assert (await api.get("/v1/jobs", headers=header)).status_code == 401
    # The door that a token closed stays closed.
    assert (await api.get("/v1/jobs")).status_code == 401


def test_a_secret_is_random_shown_once_and_kept_as_a_hash(app, raw):
    made = [tokens.new_secret() for _ in range(100)]
    assert len({secret for _, secret, _ in made}) == 100
    token_id, secret, hashed = made[0]
    assert len(secret.split("_", 2)[2]) >= 43  # 256 bits
    app.client.run(tokens.create, token_id, name="n", hashed=hashed, scopes=["read"])
    stored = repr(raw.execute("SELECT * FROM token"))
    assert secret.split("_", 2)[2] not in stored
    assert len(hashed) == 32
    assert app.client.run(tokens.find, secret).name == "n"
    for wrong in (secret[:-1], secret + "x", secret.replace("mp_", "xx_"), "mp_", "", "mp__", "ü"):
        assert app.client.run(tokens.find, wrong) is None, wrong


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x", "Basic YTpi", "bearer mp_000000000000_x", "Bearer mp_0_\x00"],
)
async def test_what_is_no_token_opens_nothing(api, token, header):
    token("there-is-one", "read")
    answer = await api.get("/v1/jobs", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"X-Forwarded-For": "203.0.113.7"}, 401),
        ({"Forwarded": "for=203.0.113.7"}, 401),
        ({"Via": "1.1 proxy"}, 401),
    ],
)
async def test_without_a_token_only_this_machine_is_let_in(api, headers, status):
    assert (await api.get("/v1/jobs", headers=headers)).status_code == status


HERE, STRANGER = ("127.0.0.1", 1), ("203.0.113.7", 1)


@pytest.mark.parametrize(
    ("access", "peer", "status"),
    [
        # Whoever stands behind a plain proxy on this machine looks like this machine.
        ("tokens", HERE, 401),
        ("tokens", STRANGER, 401),
        ("open", STRANGER, 200),
        ("local", HERE, 200),
        ("local", STRANGER, 401),
        ("local", None, 401),
        ("local", ("testclient", 1), 401),
    ],
)
async def test_who_needs_a_token_though_none_was_made(app, access, peer, status):
    transport = httpx2.ASGITransport(app=create_api(app, access=access), client=peer)
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for path in ("/v1/jobs", "/metrics"):
            assert (await client.get(path)).status_code == status, path
        for path in ("/livez", "/readyz"):
            assert (await client.get(path)).status_code == 200, path
    await app.client.close_async()


async def test_a_mounted_api_asks_for_tokens_unless_it_is_told_to_be_open(app):
    transport = httpx2.ASGITransport(app=app.asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.get("/v1/jobs")).status_code == 401
    with pytest.raises(mp.Invalid, match="milepost dev"):
        app.asgi(access="local")
    with pytest.raises(mp.Invalid, match="tokens, open"):
        app.asgi(access="nobody")
    await app.client.close_async()


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("localhost:8000", True),
        ("127.0.0.1", True),
        ("[::1]:80", True),
        ("10.1.2.3:8000", True),
        ("milepost", True),
        ("dev.localhost", True),
        ("jobs.example.com", True),
        ("JOBS.example.com:443", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:80", False),
        ("evil.example:80:80", False),
        ("", True),
    ],
)
def test_a_name_that_a_stranger_could_have_made_is_not_answered(host, known):
    """DNS rebinding: a page of evil.example must not speak to a server on this machine."""
    assert known_host(host, frozenset({"jobs.example.com"})) is known


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/livez", {}, 200),
        ("/v1/jobs", {}, 200),
        ("/v1/jobs/none", {}, 404),
        ("/nowhere", {}, 404),
        ("/v1/jobs", {"authorization": "Bearer none"}, 401),
        ("/v1/jobs", {"host": "evil.example"}, 421),
    ],
)
async def test_no_browser_guesses_what_an_answer_is(api, path, headers, status):
    answer = await api.get(path, headers=headers)
    assert (answer.status_code, answer.headers["x-content-type-options"]) == (status, "nosniff")


async def test_another_host_is_refused_before_anything_else(api):
    answer = await api.get("/v1/jobs", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert (await api.get("/livez", headers={"Host": "evil.example"})).status_code == 421
    assert (
        "access-control-allow-origin"
        not in (await api.get("/v1/jobs", headers={"Origin": "http://evil.example"})).headers
    )


async def test_what_was_put_into_a_job_can_be_taken_out_by_an_admin(app, api, token):
    admin = token("root", "admin")
    body = {"kind": "convert", "args": ["secret-paper"]}
    job_id = (await api.post("/v1/jobs", json=body, headers=admin)).json()["id"]
    assert (await api.post(f"/v1/jobs/{job_id}:erase", headers=admin)).status_code == 409
    await app.drain_async()
    assert (await api.post(f"/v1/jobs/{job_id}:erase", headers=admin)).status_code == 200
    shown = await api.get(f"/v1/jobs/{job_id}", headers=admin)
    assert "secret-paper" not in shown.text
    assert shown.json()["result"] is None
    assert (await app.client.run_async(journal.history, job_id))[-1].actor == "root"
