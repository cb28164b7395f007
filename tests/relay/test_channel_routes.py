"""Final messages over HTTP: a cursor, an acknowledgement, and whose they are (H-116)."""

import httpx2
import pytest
import pytest_asyncio

from milepost.client import acting
from milepost.store import tokens
from milepost.web.api import create_api


@pytest.fixture
def convert(app):
    @app.job
    def convert(document: str) -> str:
        return f"{document}.pdf"

    return convert.options(channel="orders")


@pytest_asyncio.fixture
async def api(app):
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    await app.client.close_async()


MESSAGES = "/v1/channels/orders/messages"


async def ended(app, convert, *documents):
    for document in documents:
        await convert.submit_async(document)
    await app.drain_async()


async def test_messages_are_read_from_a_cursor_and_acknowledged(app, api, convert):
    await ended(app, convert, "a", "b", "c")
    first = (await api.get(MESSAGES, params={"limit": 2})).json()
    assert [event["specversion"] for event in first["items"]] == ["1.0", "1.0"]
    rest = (await api.get(MESSAGES, params={"cursor": first["next"]})).json()
    assert len(rest["items"]) == 1
    last = (await api.get(MESSAGES, params={"cursor": rest["cursor"]})).json()
    assert (last["items"], last["next"]) == ([], None)

    acked = await api.post(f"{MESSAGES}:ack", json={"cursor": first["cursor"]})
    assert acked.json() == {"count": 2}
    [event] = (await api.get(MESSAGES)).json()["items"]
    assert (await api.post(f"{MESSAGES}:ack", json={"ids": [event["id"]]})).json() == {"count": 1}
    assert (await api.post(f"{MESSAGES}:ack", json={"ids": [event["id"]]})).json() == {"count": 0}
    assert (await api.get(MESSAGES)).json()["items"] == []


async def test_a_channel_without_messages_is_empty(api):
    answer = await api.get("/v1/channels/nothing/messages")
    assert (answer.status_code, answer.json()["items"]) == (200, [])


@pytest.mark.parametrize(
    "body", [{}, {"ids": ["a"], "cursor": "b"}, {"cursor": "b"}, {"ids": "a"}, {"more": 1}, []]
)
async def test_what_cannot_be_acknowledged_is_refused(api, body):
    assert (await api.post(f"{MESSAGES}:ack", json=body)).status_code == 422


async def test_a_cursor_of_another_channel_is_refused(app, api, convert):
    await ended(app, convert, "a")
    cursor = (await api.get(MESSAGES)).json()["cursor"]
    other = await api.get("/v1/channels/other/messages", params={"cursor": cursor})
    assert other.status_code == 422


async def test_dead_messages_are_listed_and_tried_again(app, api, convert, raw):
    await ended(app, convert, "a")
    raw.execute(f"UPDATE outbox SET dead_at = {raw.now}")
    [channel] = (await api.get("/v1/channels")).json()["items"]
    assert (channel["name"], channel["kind"], channel["dead"]) == ("orders", "pull", 1)
    assert (await api.post(f"{MESSAGES}:retry")).json() == {"count": 1}
    assert len((await api.get(MESSAGES)).json()["items"]) == 1
    missing = await api.post("/v1/channels/nothing/messages:retry")
    assert missing.status_code == 404


async def bearer(app, name, *scopes, **bounds):
    token_id, secret, hashed = tokens.new_secret()
    await app.client.run_async(
        tokens.create, token_id, name=name, hashed=hashed, scopes=scopes, **bounds
    )
    return {"Authorization": f"Bearer {secret}"}


async def test_a_tenant_sees_and_acknowledges_its_own_alone(app, api, convert):
    for tenant in ("a", "b"):
        with acting("x", tenant=tenant):
            await ended(app, convert, tenant)
    mine = await bearer(app, "a", "read", "operate", tenant="a")
    [event] = (await api.get(MESSAGES, headers=mine)).json()["items"]
    assert event["data"]["result"] == "a.pdf"
    everything = (await api.get(MESSAGES, headers=await bearer(app, "all", "admin"))).json()
    foreign = [e["id"] for e in everything["items"] if e["id"] != event["id"]]
    refused = await api.post(f"{MESSAGES}:ack", json={"ids": foreign}, headers=mine)
    assert refused.json() == {"count": 0}
    acked = await api.post(f"{MESSAGES}:ack", json={"cursor": everything["cursor"]}, headers=mine)
    assert acked.json() == {"count": 1}
    assert (await api.get("/v1/channels", headers=mine)).status_code == 403


async def test_a_token_bound_to_a_queue_sees_that_queue_alone(app, api, convert):
    await ended(app, convert, "a")
    await ended(app, convert.options(queue="slow"), "b")
    slow = await bearer(app, "slow", "read", queues=("slow",))
    [event] = (await api.get(MESSAGES, headers=slow)).json()["items"]
    assert event["data"]["result"] == "b.pdf"
    assert (await api.post(f"{MESSAGES}:ack", json={"ids": []}, headers=slow)).status_code == 403
