"""Channels belong to tenants, and every message names its own (H-116)."""

import json

import httpx2
import pytest
import pytest_asyncio
from receivers import receiving

import milepost as mp
from milepost.client import acting
from milepost.store import outbox, tokens
from milepost.web.api import create_api

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def receiver():
    with receiving() as made:
        yield made


@pytest.fixture
def database(monkeypatch, database):
    monkeypatch.setenv("MILEPOST_REQUEST_ALLOW", "127.0.0.1")
    return database


@pytest.fixture
def app(database, app):
    @app.job
    def convert(document: str) -> str:
        return f"{document}.pdf"

    letters = app.batch("letters", params=int)

    @letters.step
    def write(params: int) -> int:
        return params

    return app


@pytest_asyncio.fixture
async def api(app):
    transport = httpx2.ASGITransport(app=create_api(app, access="tokens"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    await app.client.close_async()


async def bearer(app, tenant):
    token_id, secret, hashed = tokens.new_secret()
    scopes = ["submit", "read", "operate"]
    bounds = {"name": tenant or "free", "hashed": hashed, "scopes": scopes, "tenant": tenant}
    await app.client.run_async(tokens.create, token_id, **bounds)
    return {"Authorization": f"Bearer {secret}"}


def submitted(app, tenant):
    definition = app.registry.newest("convert")
    with acting("somebody", tenant=tenant):
        [job_id] = app.client.create(
            [app.new_job(definition.name, [tenant or "own"], {}, {"channel": "orders"})]
        )
    return job_id


@pytest.mark.parametrize(
    ("owner", "told"),
    [
        ({}, ["own"]),
        ({"tenant": "acme"}, ["acme"]),
        ({"tenant": "*"}, ["own", "acme", "other"]),
    ],
)
def test_a_channel_carries_its_tenants_messages_alone(app, receiver, owner, told):
    app.channel("orders", webhook=receiver.url, secrets=[SECRET], **owner)
    for tenant in ("", "acme", "other"):
        submitted(app, tenant)
    app.drain()
    events = [json.loads(request.body) for request in receiver.got]
    assert sorted(event["data"]["result"] for event in events) == sorted(
        f"{name}.pdf" for name in told
    )
    # What is nobody's business here waits for its own tenant to pull it.
    [channel] = app.channels.list()
    assert (channel.tenant, channel.waiting) == (owner.get("tenant", ""), 3 - len(told))


def test_a_message_names_its_tenant(app, receiver):
    app.channel("orders", webhook=receiver.url, secrets=[SECRET], tenant="*")
    for tenant in ("", "acme"):
        submitted(app, tenant)
    app.drain()
    events = [json.loads(request.body) for request in receiver.got]
    assert {event["data"]["result"]: event.get("tenant") for event in events} == {
        "own.pdf": None,
        "acme.pdf": "acme",
    }
    [message] = [m for m in app.channels.messages("orders") if m.tenant]
    assert app.channels.event(message.id)["tenant"] == "acme"


BODIES = {
    "/v1/jobs": {"kind": "convert", "args": ["a"], "options": {"channel": "orders"}},
    "/v1/requests": {"url": "https://partner.example", "channel": "orders"},
    "/v1/requests:batch": {
        "requests": [{"batch": [{"url": "https://partner.example"}], "channel": "orders"}],
    },
    "/v1/batches/letters/runs": {"params": 1, "options": {"channel": "orders"}},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("owner", "open_to"),
    [("", ["free"]), ("acme", ["acme", "free"]), ("*", ["acme", "other", "free"]), (None, None)],
)
async def test_a_token_uses_the_channels_of_its_tenant(app, api, path, owner, open_to):
    if owner is not None:
        row = {"name": "orders", "kind": "webhook", "target": None, "tenant": owner}
        await app.client.run_async(outbox.declare, [row])
    for tenant in ("acme", "other", None):
        header = await bearer(app, tenant)
        answer = await api.post(path, json=BODIES[path], headers=header)
        allowed = open_to is None or (tenant or "free") in open_to
        assert answer.status_code == (202 if allowed else 403), answer.text


async def test_a_tenant_neither_sees_nor_redelivers_what_is_anothers(app, api, raw):
    for tenant in ("acme", "other"):
        with acting("somebody", tenant=tenant):
            made = app.new_job("convert", [tenant], {}, {"channel": "orders"})
            await app.client.create_async([made])
    await app.drain_async()
    acme = await bearer(app, "acme")
    messages = "/v1/channels/orders/messages"
    [event] = (await api.get(messages, headers=acme)).json()["items"]
    assert (event["tenant"], event["data"]["result"]) == ("acme", "acme.pdf")
    raw.execute(f"UPDATE outbox SET dead_at = {raw.now}")
    assert (await api.post(f"{messages}:retry", headers=acme)).status_code == 403
    assert (await api.get("/v1/channels", headers=acme)).status_code == 403
    free = await bearer(app, None)
    [channel] = (await api.get("/v1/channels", headers=free)).json()["items"]
    assert (channel["tenant"], channel["dead"]) == (None, 2)


@pytest.mark.parametrize("tenant", ["", "a\0b", "x" * 501, 7])
def test_a_tenant_that_cannot_be_meant_is_refused(app, tenant):
    with pytest.raises(mp.Invalid, match="tenant"):
        app.channel("orders", tenant=tenant)
