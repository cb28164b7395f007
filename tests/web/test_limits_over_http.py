"""/v1/limits: who may see and set them, and what is written down."""

import pytest

from milepost.limit import limit_key
from milepost.store import buckets, rules
from milepost.store.rules import Limit


@pytest.fixture
def limited(app):
    app.client.run(rules.declare, {("job", "customer"): Limit(most=5)})
    return app


async def test_limits_are_listed_set_and_reset(limited, api):
    [one] = (await api.get("/v1/limits")).json()["items"]
    assert (one["scope"], one["name"], one["most"], one["running"]) == ("job", "customer", 5, 0)
    body = {"most": 9, "rate": "25/s", "burst": 50, "reason": "a quiet day"}
    said = (await api.post("/v1/limits/customer:set", json=body)).json()
    assert (said["most"], said["rate"], said["declared"]["most"]) == (9, "25/s", 5)
    assert (said["reason"], said["set_by"]) == ("a quiet day", "local")
    # Left out: it stays. null: it is taken away.
    said = (await api.post("/v1/limits/customer:set", json={"rate": None})).json()
    assert (said["most"], said.get("rate")) == (9, None)
    assert (await api.get("/v1/limits/customer")).json()["most"] == 9
    back = (await api.post("/v1/limits/customer:reset", json={"reason": "over"})).json()
    assert (back["most"], back.get("set_by")) == (5, None)
    items = (await api.get("/v1/limits/customer/changes")).json()["items"]
    assert [item.get("reason") for item in items] == ["over", None, "a quiet day", "declared"]
    assert items[0]["before"]["most"] == 9


async def test_a_change_with_a_key_is_made_once(limited, api):
    for _ in range(2):
        headers = {"Idempotency-Key": "one"}
        said = await api.post("/v1/limits/customer:set", json={"most": 2}, headers=headers)
        assert said.json()["most"] == 2
    assert len(limited.limits.changes("customer")) == 2


async def test_a_key_is_cleared_once_and_on_record(limited, api, token):
    slow = Limit(rate=1, per_us=86_400_000_000, burst=1)
    limited.client.run(rules.declare, {("job", "tokens"): slow})
    limited.client.run(buckets.take, "job", limit_key("tokens", "acme"), 500, limit=slow)
    reader, ours = token("reader", "read"), token("ours", "read", "operate")
    clear = "/v1/limits/tokens:clear"
    body = {"key": "acme", "reason": "counted twice"}
    assert (await api.post(clear, json=body, headers=reader)).status_code == 403
    bound = token("bound", "operate", tenant="acme")
    assert (await api.post(clear, json=body, headers=bound)).status_code == 403
    for _ in range(2):  # a repeated call is answered as the first was
        said = await api.post(clear, json=body, headers={**ours, "Idempotency-Key": "one"})
        assert (said.status_code, said.json()["name"]) == (200, "tokens")
    assert (await api.post(clear, json=body, headers=ours)).status_code == 404
    assert (await api.post("/v1/limits/nothing:clear", headers=ours)).status_code == 404
    assert (await api.post(clear, json={"kye": "acme"}, headers=ours)).status_code == 422
    assert (await api.post("/v1/limits/customer:clear", headers=ours)).status_code == 404
    newest = (await api.get("/v1/limits/tokens/changes", headers=ours)).json()["items"][0]
    assert (newest["key"], newest["reason"]) == ("acme", "counted twice")
    assert newest["free_at"] > newest["at"]


async def test_mistakes_are_told(limited, api):
    set_ = "/v1/limits/customer:set"
    for body in ({"most": -1}, {"most": "5"}, {"rate": "fast"}, {}, {"speed": 1}, {"burst": 3}):
        assert (await api.post(set_, json=body)).status_code == 422
    assert (await api.get("/v1/limits/nothing")).status_code == 404
    assert (await api.post("/v1/limits/nothing:reset")).status_code == 404
    assert (await api.get("/v1/limits/customer", params={"scope": "x"})).status_code == 422
    made = await api.post("/v1/limits/slow:set", json={"most": 1, "scope": "queue"})
    assert made.json()["scope"] == "queue"


async def test_tokens_of_a_tenant_or_a_queue_see_no_limits(limited, api, token):
    for bound in ({"tenant": "acme"}, {"queues": ["slow"]}):
        headers = token(f"bound{len(bound)}{next(iter(bound))}", "read", "operate", **bound)
        assert (await api.get("/v1/limits", headers=headers)).status_code == 403
        said = await api.post("/v1/limits/customer:set", json={"most": 1}, headers=headers)
        assert said.status_code == 403
    reader = token("reader", "read")
    assert (await api.get("/v1/limits", headers=reader)).status_code == 200
    said = await api.post("/v1/limits/customer:set", json={"most": 1}, headers=reader)
    assert said.status_code == 403
    assert len(limited.limits.changes()) == 1


async def test_a_burst_may_be_as_large_as_anywhere_else(limited, api):
    """A burst of bytes was refused that a program declares and a command sets."""
    body = {"rate": "10000000000/s", "burst": 5_000_000_000}
    said = await api.post("/v1/limits/customer:set", json=body)
    assert (said.status_code, said.json()["burst"]) == (200, 5_000_000_000)
    body["burst"] = 10**16
    assert (await api.post("/v1/limits/customer:set", json=body)).status_code == 422
