"""The page of tokens: creating one shows its secret once; revoking one ends it at once."""

import re

import pytest

from milepost.errors import Invalid
from milepost.store import tokens
from milepost.web.dashboard.tokens import read

HTML = {"Accept": "text/html"}
SECRET = re.compile(r"mp_[0-9a-f]{12}_[\w-]{43}")


def form_token(page: str) -> str:
    return re.findall(r'name="form_token" value="([^"]+)"', page)[-1]


async def test_a_new_token_is_shown_once_and_works(api, app, token, caplog, capfd):
    admin = {**HTML, **token("ana", "admin")}
    page = await api.get("/tokens", headers=admin)
    form = {
        "form_token": form_token(page.text),
        "name": "<b>billing</b>",
        "scope": ["read", "submit"],
        "tenant": "acme",
        "queues": "mail, reports",
        "expires": "30d",
    }
    made = await api.post("/tokens", data=form, headers=admin)
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    [secret] = set(SECRET.findall(made.text))
    assert 'id="stream"' not in made.text
    assert "&lt;b&gt;billing&lt;/b&gt;" in made.text
    found = await app.client.run_async(tokens.find, secret)
    assert (found.scopes, found.tenant, found.queues) == (
        ("submit", "read"),
        "acme",
        ("mail", "reports"),
    )
    assert 29 < (found.expires_at - found.created_at).days < 31
    # It is shown in that answer and nowhere else.
    again = await api.get("/tokens", headers=admin)
    assert "billing" in again.text
    told = capfd.readouterr()
    for text in (again.text, caplog.text, told.out, told.err):
        assert secret not in text
    twice = await api.post("/tokens", data=form, headers=admin)
    assert twice.status_code == 422
    assert "already" in twice.text
    assert 'value="mail, reports"' in twice.text


async def test_a_token_is_revoked_at_once(api, app, token):
    admin, eve = {**HTML, **token("ana", "admin")}, {**HTML, **token("eve", "read")}
    assert (await api.get("/", headers=eve)).status_code == 200
    [one] = [each for each in await app.client.run_async(tokens.listing) if each.name == "eve"]
    asked = await api.get(f"/tokens/{one.id}/revoke", headers={**admin, "X-Dialog": "1"})
    assert "Revoke token eve?" in asked.text
    form = {"form_token": form_token(asked.text)}
    done = await api.post(f"/tokens/{one.id}/revoke", data=form, headers=admin)
    assert done.headers["location"] == "/tokens"
    assert (await api.get("/", headers=eve)).status_code == 401
    again = await api.post(f"/tokens/{one.id}/revoke", data=form, headers=admin)
    assert again.status_code == 404
    assert "Revoked" in (await api.get("/tokens", headers=admin)).text


async def test_only_an_unbound_admin_sees_tokens(api, token):
    for scopes, bounds, status in (
        (("admin",), {}, 200),
        (("admin",), {"tenant": "acme"}, 403),
        (("admin",), {"queues": ["slow"]}, 403),
        (("admin",), {"bounds": tokens.Bounds(kinds=("convert",))}, 403),
        (("admin",), {"bounds": tokens.Bounds(max_priority=3)}, 403),
        (("read", "operate", "submit"), {}, 403),
    ):
        caller = {**HTML, **token(f"{scopes} {bounds}", *scopes, **bounds)}
        assert (await api.get("/tokens", headers=caller)).status_code == status
        assert (await api.post("/tokens", headers=caller)).status_code in (403, 415)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": [""]}, "name"),
        ({"name": ["scheduler"]}, "engine"),
        ({"name": ["a"], "scope": []}, "scope"),
        ({"name": ["a"], "scope": ["root"]}, "root"),
        ({"name": ["a"], "scope": ["read"], "expires": ["0"]}, "never work"),
        ({"name": ["a"], "scope": ["read"], "expires": ["soon"]}, "expires"),
        ({"name": ["a"], "scope": ["read"], "queues": [" , "]}, "blank"),
        ({"name": ["a"], "scope": ["read"], "max_priority": ["10"]}, "0 to 9"),
        ({"name": ["a"], "scope": ["read"], "rate": ["fast"]}, "rate"),
    ],
)
def test_a_form_that_cannot_be_meant_is_refused_in_words(fields, told):
    with pytest.raises(Invalid, match=told):
        read(fields)


def test_more_bounds_are_read():
    wanted = read(
        {
            "name": ["a"],
            "scope": ["submit"],
            "kinds": ["convert"],
            "max_priority": ["3"],
            "rate": ["60/m"],
        }
    )
    assert wanted.bounds == tokens.Bounds(
        max_priority=3, kinds=("convert",), requests=False, rate=1.0
    )
