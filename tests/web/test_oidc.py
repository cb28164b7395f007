"""People log in with an OpenID provider, and what cannot be verified opens nothing."""

import re
import time
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
import pytest_asyncio

import milepost as mp
from milepost.config import Settings
from milepost.errors import Invalid
from milepost.web.api import create_api
from milepost.web.dashboard import oidc
from milepost.web.dashboard.oidc import groups_of, provider_of

joserfc = pytest.importorskip("joserfc", reason="the extra oidc is not installed")
pytest.importorskip("authlib", reason="the extra oidc is not installed")

from joserfc.jwk import RSAKey  # noqa: E402

from tests.support.provider import CLIENT, SECRET, provided  # noqa: E402

HTML = {"Accept": "text/html"}
GROUPS = "ops=operate read; dev=read"


@pytest.fixture(scope="module")
def running():
    with provided() as provider:
        yield provider


@pytest.fixture
def provider(running):
    """The provider, honest again."""
    was = {name: value for name, value in vars(running).items() if not name.startswith("_")}
    was = {**was, "claims": {}, "described": {}, "asked": [], "person": dict(was["person"])}
    yield running
    vars(running).update(was)


@pytest_asyncio.fixture
async def browser(app: mp.App, provider, monkeypatch):
    """A browser in front of a server that trusts the provider."""
    changed = {
        "oidc_issuer": provider.address,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": SECRET,
        "oidc_groups": GROUPS,
    }
    monkeypatch.setattr(app, "settings", _with(app.settings, changed))
    transport = httpx2.ASGITransport(app=create_api(app, access="tokens"))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=HTML
    ) as client:
        yield client
    await app.client.close_async()


def _with(settings: Settings, changed: dict[str, str]) -> Settings:
    return replace(settings, **changed)


async def back(browser, wanted="/errors?range=7d"):
    """Go to the provider, and give the address that it sends back to."""
    sent = await browser.get("/login/oidc", params={"next": wanted})
    assert sent.status_code == 303, sent.text
    async with httpx2.AsyncClient() as outside:
        came = await outside.get(sent.headers["location"])
    assert came.status_code == 302
    return came.headers["location"].removeprefix("http://test")


async def test_a_person_logs_in_and_has_the_scopes_of_the_groups(app, browser, provider):
    page = await browser.get("/login")
    assert "Log in with 127.0.0.1" in page.text
    answer = await browser.get(await back(browser))
    assert (answer.status_code, answer.headers["location"]) == (303, "/errors?range=7d")
    cookies = answer.headers.get_list("set-cookie")
    assert any("milepost_session=" in one and "SameSite=Strict" in one for one in cookies)
    assert any(one.startswith("milepost_login=;") and "Max-Age=0" in one for one in cookies)
    page = await browser.get("/queues")
    assert page.status_code == 200
    assert "ana@example.org" in page.text
    assert (await browser.get("/tokens")).status_code == 403
    assert (await browser.get("/v1/jobs")).status_code == 401


async def test_what_a_person_does_is_journalled_under_the_persons_name(app, browser, provider):
    await browser.get(await back(browser))
    asked = await browser.get("/schedules/nightly/run")
    token = re.findall(r'name="form_token" value="([^"]+)"', asked.text)[-1]
    done = await browser.post("/schedules/nightly/run", data={"form_token": token})
    job = await app.jobs.get_async(done.headers["location"].removeprefix("/jobs/"))
    assert job.history[0].actor == "ana@example.org"


async def test_a_reader_of_a_group_operates_nothing(browser, provider):
    provider.person["groups"] = ["dev", "others"]
    await browser.get(await back(browser))
    assert (await browser.get("/schedules")).status_code == 200
    assert (await browser.get("/schedules/nightly/run")).status_code == 403


async def test_somebody_in_no_group_is_refused_in_words(browser, provider):
    for groups in ([], ["others"], None, "others more"):
        provider.person["groups"] = groups
        answer = await browser.get(await back(browser))
        assert answer.status_code == 403
        assert "none of your groups" in answer.text
        assert "milepost_session" not in browser.cookies


async def test_groups_may_come_from_userinfo(browser, provider):
    del provider.person["groups"]
    provider.userinfo = {"sub": "4711", "groups": "ops dev"}
    assert (await browser.get(await back(browser))).status_code == 303
    provider.userinfo = {"sub": "another", "groups": ["ops"]}
    assert (await browser.get(await back(browser))).status_code == 403


LIES = {
    "another audience": {"aud": "another"},
    "no audience": {"aud": None},
    "another issuer": {"iss": "https://evil.example"},
    "another nonce": {"nonce": "guessed"},
    "no nonce": {"nonce": None},
    "an old token": {"exp": 1, "iat": 0},
    "no end": {"exp": None},
    "not valid yet": {"nbf": int(time.time()) + 9999},
    "another party": {"azp": "another"},
    "nobody": {"sub": None},
    "another access token": {"at_hash": "AAAAAAAAAAAAAAAAAAAAAA"},
}


async def test_a_token_with_a_false_claim_opens_nothing(browser, provider):
    for lie, claims in LIES.items():
        provider.claims = claims
        answer = await browser.get(await back(browser))
        assert answer.status_code == 403, lie
        assert "cannot be verified" in answer.text, lie
        assert "milepost_session" not in browser.cookies, lie


async def test_a_token_with_a_false_signature_opens_nothing(browser, provider):
    provider.signs_with = RSAKey.generate_key(2048, {"kid": "one"})
    assert (await browser.get(await back(browser))).status_code == 403
    for algorithm in ("HS256", "none"):
        provider.algorithm = algorithm
        assert (await browser.get(await back(browser))).status_code == 403, algorithm
    assert "milepost_session" not in browser.cookies


async def test_a_new_key_of_the_provider_is_asked_for(browser, provider, monkeypatch):
    await browser.get(await back(browser))
    monkeypatch.setattr(oidc, "REFRESH_SECONDS", 0)
    provider.key = RSAKey.generate_key(2048, {"kid": "two", "use": "sig"})
    assert (await browser.get(await back(browser))).status_code == 303
    assert provider.asked.count("keys") == 2
    assert provider.asked.count("discovery") == 1


async def test_a_login_counts_once_in_its_own_browser_and_for_a_while(app, browser, provider):
    address = await back(browser)
    stolen = await browser.get(address.replace("state=", "state=x"))
    assert stolen.status_code == 403
    assert "begun elsewhere" in stolen.text
    transport = browser._transport
    other = httpx2.AsyncClient(transport=transport, base_url="http://test", headers=HTML)
    assert (await other.get(address)).status_code == 403
    assert (await browser.get(address)).status_code == 303
    assert (await browser.get(address)).status_code == 403
    await other.aclose()


async def test_a_provider_that_refuses_lies_or_is_away_is_said_so(browser, provider):
    address = await back(browser)
    state = dict(parse_qsl(urlsplit(address).query))["state"]
    asked = {"state": state, "error": "access_denied", "error_description": "<b>no</b>"}
    answer = await browser.get("/login/oidc/callback", params=asked)
    assert answer.status_code == 403
    assert "&lt;b&gt;no&lt;/b&gt;" in answer.text
    mixed = await browser.get(f"{address}&iss=https%3A%2F%2Fevil.example")
    assert mixed.status_code == 403
    wrong = await browser.get("/login/oidc/callback", params={"state": state, "code": "guessed"})
    assert wrong.status_code == 502


async def test_a_provider_of_another_name_is_not_used(browser, provider):
    provider.described = {"issuer": "https://evil.example"}
    assert (await browser.get("/login/oidc")).status_code == 502


async def test_somebody_cannot_pose_as_a_part_of_the_engine(browser, provider):
    provider.person |= {"email": "scheduler"}
    answer = await browser.get(await back(browser))
    assert answer.status_code == 403
    assert "engine" in answer.text


async def test_an_email_that_was_not_verified_is_no_name(app, browser, provider):
    provider.person |= {"email_verified": False, "preferred_username": "ana"}
    await browser.get(await back(browser))
    page = (await browser.get("/queues")).text
    assert "ana@example.org" not in page
    assert "ana" in page


async def test_without_a_provider_there_is_none(api):
    assert "Log in with" not in (await api.get("/login", headers=HTML)).text
    assert (await api.get("/login/oidc", headers=HTML)).status_code == 404


def test_groups_are_read_or_refused():
    assert groups_of("ops=operate read;dev=read;") == {"ops": ("read", "operate"), "dev": ("read",)}
    assert groups_of("cn=ops,ou=x=admin") == {"cn=ops,ou=x": ("admin",)}
    for wrong in ("ops", "=read", "ops=", "ops=root"):
        with pytest.raises(Invalid):
            groups_of(wrong)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"oidc_issuer": "http://id.example"}, "https"),
        ({"oidc_client_id": ""}, "oidc_client_id"),
        ({"oidc_groups": ""}, "oidc_groups"),
    ],
)
def test_a_provider_that_is_set_up_by_half_is_refused(changed, told):
    whole = {"oidc_issuer": "https://id.example", "oidc_client_id": "m", "oidc_groups": "a=read"}
    assert provider_of(_with(Settings.load({}), whole)).name == "id.example"
    with pytest.raises(Invalid, match=told):
        provider_of(_with(Settings.load({}), {**whole, **changed}))
    assert provider_of(Settings.load({})) is None
