"""Who may see and do what on the pages: every route, every scope, and sessions."""

import re
import time
from html import unescape
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio

import milepost as mp
from milepost.store import tokens
from milepost.store.tokens import SCOPES
from milepost.web.access import authenticate
from milepost.web.api import create_api
from milepost.web.dashboard.routers import ROUTERS
from milepost.web.problems import MEDIA, HttpProblem
from milepost.web.session import Session

HTML = {"Accept": "text/html"}
NOWHERE = "018f0000-0000-7000-8000-000000000000"
SCOPE_OF = {
    ("GET", "/static/{name}"): None,
    ("GET", "/login"): None,
    ("POST", "/login"): None,
    ("GET", "/login/oidc"): None,
    ("GET", "/login/oidc/callback"): None,
    ("POST", "/logout"): "any",
    ("GET", "/go"): "read",
    ("GET", "/"): "read",
    ("GET", "/jobs"): "read",
    ("GET", "/jobs/suggest"): "read",
    ("GET", "/jobs/bulk"): "operate",
    ("POST", "/jobs/bulk"): "operate",
    ("POST", "/views"): "operate",
    ("POST", "/views/drop"): "operate",
    ("GET", "/errors"): "read",
    ("GET", "/errors/{fingerprint}"): "read",
    ("GET", "/limits"): "read",
    ("GET", "/limits/{scope}/{name}/set"): "operate",
    ("POST", "/limits/{scope}/{name}/set"): "operate",
    ("GET", "/limits/{scope}/{name}/reset"): "operate",
    ("POST", "/limits/{scope}/{name}/reset"): "operate",
    ("GET", "/limits/{scope}/{name}/clear"): "operate",
    ("POST", "/limits/{scope}/{name}/clear"): "operate",
    ("GET", "/schedules"): "read",
    ("GET", "/schedules/{name}/pause"): "operate",
    ("POST", "/schedules/{name}/pause"): "operate",
    ("GET", "/schedules/{name}/resume"): "operate",
    ("POST", "/schedules/{name}/resume"): "operate",
    ("GET", "/schedules/{name}/run"): "operate",
    ("POST", "/schedules/{name}/run"): "operate",
    ("GET", "/channels"): "read",
    ("GET", "/channels/{name}/stop"): "operate",
    ("POST", "/channels/{name}/stop"): "operate",
    ("GET", "/channels/{name}/start"): "operate",
    ("POST", "/channels/{name}/start"): "operate",
    ("GET", "/channels/{name}/retry"): "operate",
    ("POST", "/channels/{name}/retry"): "operate",
    ("POST", "/channels/{name}/redeliver"): "operate",
    ("GET", "/tokens"): "admin",
    ("POST", "/tokens"): "admin",
    ("GET", "/tokens/{token_id}/revoke"): "admin",
    ("POST", "/tokens/{token_id}/revoke"): "admin",
    ("GET", "/queues"): "read",
    ("GET", "/queues/{name}/pause"): "operate",
    ("GET", "/queues/{name}/resume"): "operate",
    ("POST", "/queues/{name}/pause"): "operate",
    ("POST", "/queues/{name}/resume"): "operate",
    ("GET", "/jobs/{job_id}"): "read",
    ("GET", "/jobs/{job_id}/cancel"): "operate",
    ("GET", "/jobs/{job_id}/rerun"): "operate",
    ("GET", "/jobs/{job_id}/signal"): "operate",
    ("POST", "/jobs/{job_id}/cancel"): "operate",
    ("POST", "/jobs/{job_id}/release"): "operate",
    ("POST", "/jobs/{job_id}/rerun"): "operate",
    ("POST", "/jobs/{job_id}/run-now"): "operate",
    ("POST", "/jobs/{job_id}/signal"): "operate",
    ("GET", "/runs"): "read",
    ("GET", "/runs/new"): "submit",
    ("POST", "/runs/new"): "submit",
    ("GET", "/runs/{run_id}"): "read",
    ("GET", "/runs/{run_id}/cancel"): "operate",
    ("POST", "/runs/{run_id}/cancel"): "operate",
    ("GET", "/runs/{run_id}/resume"): "operate",
    ("POST", "/runs/{run_id}/resume"): "operate",
    ("GET", "/pipelines"): "read",
    ("GET", "/pipelines/{name}"): "read",
    ("GET", "/pipelines/{name}/start"): "submit",
    ("POST", "/pipelines/{name}/start"): "submit",
    ("GET", "/pipelines/{name}/runs/{run_id}/retry"): "operate",
    ("POST", "/pipelines/{name}/runs/{run_id}/retry"): "operate",
    ("GET", "/pipelines/{name}/replay"): "operate",
    ("POST", "/pipelines/{name}/replay"): "operate",
    ("GET", "/pipelines/{name}/removals"): "operate",
    ("POST", "/pipelines/{name}/removals"): "operate",
    ("GET", "/pipelines/{name}/watermark"): "operate",
    ("POST", "/pipelines/{name}/watermark"): "operate",
}
"""What each page needs: None for nothing, "any" for any session, else a scope."""


def page_routes() -> set[tuple[str, str]]:
    return {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        for method in route.methods
        if method != "HEAD"
    }


def test_every_page_has_its_line():
    assert page_routes() == set(SCOPE_OF)


@pytest_asyncio.fixture
async def client(app: mp.App):
    """Call the pages as a browser would, from nowhere near."""
    made = []

    def opened(**cookies: str) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(app=create_api(app, access="tokens"))
        made.append(
            httpx2.AsyncClient(
                transport=transport, base_url="http://test", headers=HTML, cookies=cookies
            )
        )
        return made[-1]

    yield opened
    for browser in made:
        await browser.aclose()
    await app.client.close_async()


def new_token(app: mp.App, name: str, *scopes: str, **bounds: object) -> str:
    token_id, secret, hashed = tokens.new_secret()
    app.client.run(tokens.create, token_id, name=name, hashed=hashed, scopes=scopes, **bounds)
    return secret


async def log_in(browser: httpx2.AsyncClient, secret: str, wanted: str = "/") -> httpx2.Response:
    return await browser.post("/login", data={"token": secret, "next": wanted})


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: NOWHERE if "id" in found[1] else "default", path)


async def test_each_scope_opens_its_pages_and_no_other(app, client):
    for scope in SCOPES:
        browser = client()
        assert (await log_in(browser, new_token(app, f"{scope}-token", scope))).status_code == 303
        for (method, path), needed in SCOPE_OF.items():
            if needed is None or path == "/logout":
                continue
            answer = await browser.request(
                method, filled(path), data={} if method == "POST" else None
            )
            allowed = needed in ("any", scope) or scope == "admin"
            if allowed:
                # What is missing is missing; a form without its token is refused by another name.
                assert answer.status_code != 403 or "another session" in answer.text, path
            else:
                assert answer.status_code == 403, (scope, path)
                assert "scope" in answer.text


async def test_a_person_without_a_session_is_sent_to_the_login_and_back(app, client):
    browser = client()
    asked = await browser.get("/?range=1h")
    assert asked.status_code == 303
    assert asked.headers["location"] == "/login?next=%2F%3Frange%3D1h"
    answer = await log_in(browser, new_token(app, "ana", "read"), "/?range=1h")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?range=1h")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert (await browser.get("/")).status_code == 200


async def test_a_wrong_token_is_refused_in_words_and_a_program_gets_a_problem(app, client):
    browser = client()
    answer = await log_in(browser, "mp_000000000000_guess")
    assert answer.status_code == 401
    assert "wrong, expired or revoked" in answer.text
    problem = await browser.get("/v1/jobs")
    assert problem.headers["content-type"] == "application/problem+json"


async def test_a_session_ends_with_its_token(app, client):
    browser = client()
    await log_in(browser, new_token(app, "ana", "read"))
    assert (await browser.get("/")).status_code == 200
    await app.client.run_async(tokens.revoke, "ana")
    assert (await browser.get("/")).headers["location"].startswith("/login")


async def test_a_session_opens_no_path_for_programs(app, client):
    browser = client()
    await log_in(browser, new_token(app, "ana", "admin"))
    assert (await browser.get("/v1/jobs")).status_code == 401
    assert (await browser.get("/metrics")).status_code == 401


async def test_a_cookie_that_was_changed_or_made_elsewhere_opens_nothing(app, client):
    browser = client()
    await log_in(browser, new_token(app, "ana", "read"))
    real = browser.cookies["milepost_session"]
    for forged in (real[:-1] + ("0" if real[-1] != "0" else "1"), "e30." + "0" * 64, "", "a.b.c"):
        answer = await client(milepost_session=forged).get("/")
        assert answer.headers["location"].startswith("/login"), forged


async def test_a_form_of_another_session_or_site_does_nothing(app, client):
    ana, eve = client(), client()
    await log_in(ana, new_token(app, "ana", "admin"))
    await log_in(eve, new_token(app, "eve", "admin"))
    page = await eve.get("/")
    [*_, theirs] = re.findall(r'name="form_token" value="([^"]+)"', page.text)
    refused = await ana.post("/logout", data={"form_token": theirs})
    assert refused.status_code == 403
    own = re.findall(r'name="form_token" value="([^"]+)"', (await ana.get("/")).text)[-1]
    foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    crossed = await ana.post("/logout", data={"form_token": own}, headers=foreign)
    assert crossed.status_code == 403
    assert (await ana.post("/logout", data={"form_token": own})).status_code == 303


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil.example"])
async def test_a_login_leads_to_no_other_site(app, client, wanted):
    answer = await log_in(client(), new_token(app, "ana", "read"), wanted)
    assert answer.headers["location"] == "/"


async def test_a_link_from_another_site_finds_the_session(app, client):
    """The cookie is left out then: the page is loaded once more, from here."""
    answer = await client().get("/", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/"' in answer.text


async def test_the_login_leads_back_to_a_page_whatever_its_name_holds(app, client):
    browser, place = client(), "/errors/deadline%40a%3Fb%23c%2Fd%25?q=x"
    asked = await browser.get(place)
    wanted = parse_qs(urlsplit(asked.headers["location"]).query)["next"]
    assert wanted == [place]
    answer = await log_in(browser, new_token(app, "ana", "read"), *wanted)
    assert answer.headers["location"] == place


async def test_two_servers_of_a_store_take_each_others_sessions(app, client):
    first, second = client(), client()
    await log_in(first, new_token(app, "ana", "read"))
    second.cookies.update(first.cookies)
    assert (await second.get("/")).status_code == 200


async def test_a_link_from_another_site_leads_to_no_other_site(client):
    """A path may look like an address without its scheme: //evil.example."""
    foreign = {"Sec-Fetch-Site": "cross-site"}
    for path in ("//evil.example/", "/%5Cevil.example/", "/%2Fevil.example/"):
        answer = await client().get(f"http://test{path}", headers=foreign)
        assert answer.status_code == 200
        assert 'content="0;url=/"' in answer.text, path
    answer = await client().get("/errors/a%3Fb%23c%22%20d?q=x%22y", headers=foreign)
    assert 'content="0;url=/errors/a%3Fb%23c%22%20d?q=x%22y"' in answer.text


async def test_a_session_ends_at_its_time_for_a_stream_too(app, monkeypatch):
    session = Session(until=int(time.time()) + 60, person="ana", scopes=("read",))
    asked = ({"type": "http", "headers": []}, "tokens", session)
    assert (await authenticate(app.client, *asked)).actor == "ana"
    monkeypatch.setattr(time, "time", lambda: session.until + 1.0)
    with pytest.raises(HttpProblem, match="ended"):
        await authenticate(app.client, *asked)


async def test_a_browser_that_goes_astray_is_shown_a_page_and_a_program_a_problem(api):
    for path, status in (("/nowhere", 404), ("/jobs?end=perhaps", 422), ("/v1", 404)):
        page = await api.get(path, headers=HTML)
        assert (page.status_code, page.headers["content-type"]) == (
            status,
            "text/html; charset=utf-8",
        )
        assert "Content-Security-Policy" in page.headers
    for path, accepted in (("/nowhere", "*/*"), ("/v1/nowhere", "text/html")):
        answer = await api.get(path, headers={"Accept": accepted})
        assert (answer.status_code, answer.headers["content-type"]) == (404, MEDIA)


async def test_a_tenants_token_is_not_told_which_queues_and_pipelines_there_are(api, app, token):
    mine = {**HTML, **token("acme", "read", tenant="acme")}
    every = {**HTML, **token("every", "read")}
    await app.client.create_async([app.new_job("convert", ["a"], {}, {"queue": "secret"})])
    asked = {"secret": "queue", "secrets": "kind"}
    for word, key in asked.items():
        found = await api.get("/go", params={"to": word}, headers=every)
        assert found.headers["location"] == f"/jobs?q={key}%3A{word}"
        found = await api.get("/go", params={"to": word}, headers=mine)
        assert found.headers["location"] == f"/jobs?q=kind%3A{word}"
    for path in ("/pipelines", "/pipelines/stones", "/v1/pipelines", "/v1/pipelines/stones"):
        assert (await api.get(path, headers=mine)).status_code == 403, path


async def test_what_is_typed_leads_to_the_page_of_what_it_names(api, app, token):
    mine = {**HTML, **token("every", "read")}
    [failed, _] = await app.client.create_async(
        [app.new_job("broken", [], {}, {}), app.new_job("convert", ["a"], {}, {"channel": "news"})]
    )
    run = await app.batches[0].start_async({"count": 1})
    await app.drain_async()
    await app.limits.set_async("narrow", scope="queue", most=1)
    [group] = await app.errors.list_async()
    places = {
        "": "/",
        failed: f"/jobs/{failed}",
        run.id: f"/runs/{run.id}",
        "slow": "/jobs?q=kind%3Aslow",
        "default": "/jobs?q=queue%3Adefault",
        "state:failed": "/jobs?q=state%3Afailed",
        "convert": "/jobs?q=kind%3Aconvert",
        "letters": "/runs?kind=letters",
        "nightly": "/schedules?name=nightly",
        "news": "/channels?name=news",
        group.fingerprint: f"/errors/{group.fingerprint}",
        "Errors": "/errors",
        "narrow": "/limits?name=narrow&scope=queue",
        "no such": "/jobs?q=kind%3A%22no+such%22",
        "//evil.example": "/jobs?q=kind%3A%2F%2Fevil.example",
    }
    for word, place in places.items():
        found = await api.get("/go", params={"to": word}, headers=mine)
        assert found.headers["location"] == place, word
    bound = {**HTML, **token("bound", "read", queues=["slow"])}
    for word in ("letters", "nightly", "news", group.fingerprint, "default"):
        found = await api.get("/go", params={"to": word}, headers=bound)
        assert found.headers["location"] == f"/jobs?q=kind%3A{word}", word


async def test_every_question_before_an_action_is_a_command_too(api, app, token):
    mine = {**HTML, **token("every", "admin")}
    [job_id, _] = await app.client.create_async(
        [app.new_job("patient", [], {}, {}), app.new_job("convert", ["a"], {}, {"channel": "a b"})]
    )
    run = await app.batches[0].start_async({"count": 1})
    await app.drain_async()
    [made] = await app.client.run_async(tokens.listing)
    await app.limits.set_async("a b", scope="queue", most=1)
    commands = {
        "/limits/queue/a%20b/set": "limits set 'a b' --scope queue --most 1",
        "/limits/queue/a%20b/reset": "limits reset 'a b' --scope queue",
        "/queues/default/pause": "queues pause default",
        "/queues/default/resume": "queues resume default",
        "/schedules/nightly/run": "schedules run nightly",
        "/channels/a%20b/stop": "channels stop 'a b'",
        f"/jobs/{job_id}/cancel": f"jobs cancel {job_id}",
        f"/jobs/{job_id}/rerun": f"jobs rerun {job_id}",
        f"/jobs/{job_id}/signal": f"jobs show {job_id}",
        f"/runs/{run.id}/cancel": f"runs cancel {run.id}",
        f"/tokens/{made.id}/revoke": "tokens revoke every",
    }
    for path, told in commands.items():
        page = await api.get(path, headers=mine)
        assert page.status_code == 200, path
        found = re.search(r'id="cli-line">([^<]*)<', page.text)
        assert found, path
        assert unescape(found[1]) == f"milepost {told}"
