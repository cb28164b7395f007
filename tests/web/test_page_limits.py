"""The page of limits: what is in force, who set it and why; changing it under the caller's name."""

import re

import pytest

import milepost as mp
from milepost.limit import limit_key
from milepost.store import buckets, rules
from milepost.store.rules import Limit

HTML = {"Accept": "text/html"}
DIALOG = {**HTML, "X-Dialog": "1"}


def form_token(page: str) -> str:
    return re.findall(r'name="form_token" value="([^"]+)"', page)[-1]


@pytest.fixture
def limited(app):
    """An app with a limit by customer, of which one job waits."""

    @app.job(limit=mp.Limit(5, key="customer", name="customers"))
    def bill(customer: str) -> None: ...

    bill.submit("acme")
    return app


async def test_each_limit_shows_what_it_allows_and_how_it_stands(api, limited):
    limited.limits.set("slow", scope="queue", most=3, reason="a quiet day")
    page = (await api.get("/limits", headers=HTML)).text
    assert 'href="/limits?name=customers&amp;scope=job"' in page
    assert "5 at once" in page
    assert "as declared" in page
    assert "a quiet day" in page
    asked = {"name": "customers", "scope": "job"}
    one = (await api.get("/limits", params=asked, headers=HTML)).text
    assert "0 running, 1 in line, over all keys" in one
    assert "Declared: 5 at once" in one
    assert "milepost limits show customers --scope job" in one
    missing = await api.get("/limits", params={"name": "<b>"}, headers=HTML)
    assert missing.status_code == 404
    assert "&lt;b&gt;" in missing.text


async def test_it_is_changed_and_reset_under_the_callers_name(api, limited, caplog):
    asked = await api.get("/limits/job/customers/set", headers=DIALOG)
    assert 'value="5"' in asked.text
    assert "0 running, 1 in line" in asked.text
    form = {"form_token": form_token(asked.text), "most": "2", "rate": "25/s", "burst": "50"}
    done = await api.post("/limits/job/customers/set", data={**form, "reason": "it is slow"})
    assert done.headers["location"] == "/limits?name=customers&scope=job"
    found = limited.limits.get("customers")
    assert (found.words, found.set_by) == ("2 at once; 25/s, burst 50", "local")
    page = (await api.get(done.headers["location"], headers=HTML)).text
    assert "Set by local" in page
    assert "it is slow" in page
    # What is empty is taken away.
    form |= {"most": "", "rate": "9/m", "burst": ""}
    await api.post("/limits/job/customers/set", data=form)
    assert limited.limits.get("customers").words == "9/m, burst 1"
    back = await api.post("/limits/job/customers/reset", data=form)
    assert back.status_code == 303
    assert limited.limits.get("customers").words == "5 at once"
    assert len(limited.limits.changes("customers")) == 4


async def test_a_queue_gets_its_first_limit_on_the_page(api, limited):
    page = (await api.get("/queues", headers=HTML)).text
    assert 'href="/limits/queue/default/set"' in page
    asked = await api.get("/limits/queue/default/set", headers=DIALOG)
    assert "Now: no limit." in asked.text
    form = {"form_token": form_token(asked.text), "most": "2", "rate": "", "burst": ""}
    done = await api.post("/limits/queue/default/set", data=form)
    assert done.headers["location"] == "/limits?name=default&scope=queue"
    assert limited.limits.get("default", scope="queue").words == "2 at once"
    for place in ("job/default/set", "queue/other/reset", "queue/other/clear"):
        assert (await api.get(f"/limits/{place}", headers=DIALOG)).status_code == 404


async def test_who_changes_only_the_rate_gets_the_burst_of_the_new_one(api, limited):
    limited.limits.set("customers", rate="25/s")
    asked = (await api.get("/limits/job/customers/set", headers=HTML)).text
    assert re.search(r'<input id="burst" [^>]*value=""', asked)
    form = {"form_token": form_token(asked), "most": "5", "rate": "50/s", "burst": ""}
    await api.post("/limits/job/customers/set", data=form)
    assert limited.limits.get("customers").words == "5 at once; 50/s, burst 50"
    limited.limits.set("customers", rate="1000000/d", burst=1234567)
    asked = (await api.get("/limits/job/customers/set", headers=HTML)).text
    assert re.search(r'<input id="rate" [^>]*value="1000000/d"', asked)
    assert re.search(r'<input id="burst" [^>]*value="1234567"', asked)


async def test_a_limit_that_nobody_declares_is_removed_by_a_reset(api, limited):
    limited.limits.set("slow", scope="queue", most=3)
    asked = await api.get("/limits/queue/slow/reset", headers=HTML)
    assert "it is removed" in asked.text
    done = await api.post("/limits/queue/slow/reset", data={"form_token": form_token(asked.text)})
    assert done.headers["location"] == "/limits"
    assert [one.name for one in limited.limits.list()] == ["customers"]


async def test_a_key_that_owes_is_shown_and_cleared_under_the_callers_name(api, app):
    slow = Limit(rate=1, per_us=60_000_000, burst=1)
    app.client.run(rules.declare, {("job", "tokens"): slow, ("queue", "slow"): slow})
    app.client.run(buckets.take, "job", limit_key("tokens", "a & b"), 500, limit=slow)
    page = (await api.get("/limits", params={"name": "tokens"}, headers=HTML)).text
    assert "a &amp; b" in page
    assert "full again in 8 h" in page
    place = "/limits/job/tokens/clear"
    assert f'href="{place}?key=a+%26+b"' in page
    asked = await api.get(place, params={"key": "a & b"}, headers=DIALOG)
    alone = await api.get(place, params={"key": "a & b"}, headers=HTML)
    for shown in (asked.text, alone.text):
        assert 'value="a &amp; b"' in shown
    assert "milepost limits clear tokens &#39;a &amp; b&#39; --scope job" in alone.text
    form = {"form_token": form_token(asked.text), "key": "a & b", "reason": "counted twice"}
    done = await api.post(place, data=form)
    assert done.headers["location"] == "/limits?name=tokens&scope=job"
    page = (await api.get(done.headers["location"], headers=HTML)).text
    assert "a &amp; b cleared" in page
    assert "local: counted twice" in page
    assert (await api.post(place, data=form, headers=HTML)).status_code == 404
    queue = await api.get("/limits/queue/slow/clear", headers=HTML)
    assert 'name="key"' not in queue.text


async def test_mistakes_are_pages_and_forms_of_others_are_refused(api, limited):
    asked = await api.get("/limits/job/customers/set", headers=HTML)
    form = {"form_token": form_token(asked.text)}
    for wrong in (
        {"most": "many"},
        {"most": "-1"},
        {"rate": "fast"},
        {"rate": "1/s", "burst": "x"},
    ):
        said = await api.post("/limits/job/customers/set", data={**form, **wrong}, headers=HTML)
        assert said.status_code == 422
    stale = await api.post("/limits/job/customers/set", data={"most": "1"}, headers=HTML)
    assert stale.status_code == 403
    assert len(limited.limits.changes("customers")) == 1


async def test_tokens_of_a_tenant_or_a_queue_see_no_limits(api, limited, token):
    for name, bound in (("t", {"tenant": "acme"}), ("q", {"queues": ["slow"]})):
        headers = {**HTML, **token(name, "read", "operate", **bound)}
        assert (await api.get("/limits", headers=headers)).status_code == 403


async def test_an_ordered_limit_asks_for_no_number(api, app):
    app.client.run(rules.declare, {("job", "one"): Limit(ordered=True)})
    asked = (await api.get("/limits/job/one/set", headers=HTML)).text
    assert 'name="most"' not in asked
    form = {"form_token": form_token(asked), "rate": "1/s"}
    await api.post("/limits/job/one/set", data=form)
    assert app.limits.get("one").words == "one at a time, in order; 1/s, burst 1"


async def test_the_job_and_its_queue_name_their_limits(api, limited):
    [job] = limited.jobs.list(state="QUEUED", limit=1)
    limited.limits.set("default", scope="queue", most=0, reason="no")
    page = (await api.get(f"/jobs/{job.id}", headers=HTML)).text
    assert 'href="/limits?name=customers&amp;scope=job"' in page
    assert "counted for acme" in page
    assert "queue default lets none start" in page
    queues = (await api.get("/queues", params={"name": "default"}, headers=HTML)).text
    assert 'href="/limits?name=default&amp;scope=queue"' in queues
    assert 'href="/limits/queue/default/set"' not in queues
    assert "its first job under a limit" in queues


async def test_the_form_of_a_source_asks_for_its_rate_alone(api, limited):
    """It has no number at once, and the form offered one."""
    limited.limits.set("shop", scope="source", rate="5/s")
    asked = await api.get("/limits/source/shop/set", headers=DIALOG)
    assert 'name="most"' not in asked.text
    whole = (await api.get("/limits/source/shop/set", headers=HTML)).text
    assert "milepost limits set shop --scope source --rate 5/s" in whole
    form = {"form_token": form_token(asked.text), "rate": "9/s", "burst": ""}
    await api.post("/limits/source/shop/set", data=form)
    assert limited.limits.get("shop").words == "9/s, burst 1"


async def test_a_host_is_the_same_one_however_its_address_spells_it(api, limited):
    """Its page answered 500, and its form said that it has no limit, and took the rate away."""
    limited.limits.set("api.example", scope="host", most=2, rate="5/s")
    asked = {"name": "API.Example", "scope": "host"}
    page = await api.get("/limits", params=asked, headers=HTML)
    assert page.status_code == 200
    assert "2 at once; 5/s, burst 1" in page.text
    form = (await api.get("/limits/host/API.Example/set", headers=DIALOG)).text
    assert "Now: 2 at once; 5/s, burst 1." in form
    assert 'value="5/s"' in form
    assert 'action="/limits/host/api.example/set"' in form
