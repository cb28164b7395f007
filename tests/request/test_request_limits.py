"""Requests under limits of their own, in addition to those of their hosts."""

import time
from enum import Enum

import pytest
from remote import Asked, Says
from test_host_limits import Counted

import milepost as mp
from milepost.client import acting
from milepost.request import batch
from milepost.store import rules
from milepost.store.rules import Limit as Stored

pytestmark = pytest.mark.both_stores


def test_no_more_requests_run_at_once_than_their_limit_allows(app, remote):
    remote.answers = [counted := Counted(seconds=0.05)]
    jobs = [app.request("GET", remote.url, limit=mp.Limit(2)) for _ in range(8)]
    stand = app.limits.get("request")
    assert (stand.most, stand.waiting) == (2, 8)
    app.drain(20)
    assert counted.most == 2
    assert {job.refresh().state for job in jobs} == {"SUCCEEDED"}
    assert {(job.limit, job.limit_key) for job in jobs} == {("request", "")}


def test_a_limit_is_shared_with_jobs_of_other_kinds(app, remote):
    erp = mp.Limit(1, key="customer", name="erp")
    now, most = [], []

    def seen(_asked: Asked | None) -> Says:
        now.append(1)
        most.append(len(now))
        time.sleep(0.02)
        now.pop()
        return Says(json=1)

    remote.answers = [seen]

    @app.job(limit=erp)
    def book(customer: str) -> None:
        seen(None)

    for _ in range(4):
        book.submit("acme")
        app.request("GET", remote.url, limit=erp, limit_key="acme")
    assert app.drain(20) == 8
    assert set(most) == {1}


class Customer(Enum):
    """Keys as a program has them."""

    ACME = "acme"


KEYS = {
    "whole": ({"limit": mp.Limit(5, name="r")}, ""),
    "given": ({"limit": mp.Limit(5, name="r"), "limit_key": "a b"}, "a b"),
    "given-before-its-own": ({"limit": mp.Limit(5, key="host", name="r"), "limit_key": "x"}, "x"),
    "left-out": ({"limit": mp.Limit(5, key="host", name="r"), "limit_key": None}, "127.0.0.1"),
    "tenant": ({"limit": mp.Limit(5, key="tenant", name="r")}, "shop"),
    "host": ({"limit": mp.Limit(5, key="host", name="r")}, "127.0.0.1"),
    "method": ({"limit": mp.Limit(5, key="method", name="r")}, "POST"),
    "function": ({"limit": mp.Limit(5, key=lambda asked: asked.json["who"], name="r")}, "acme"),
    "member": ({"limit": mp.Limit(5, key=lambda _: Customer.ACME, name="r")}, "acme"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("asked", "key"), KEYS.values(), ids=KEYS)
def test_the_key_is_a_part_of_the_request_the_tenant_a_function_or_given(small, remote, asked, key):
    with acting("ann", tenant="shop"):
        job = small.request("POST", remote.url, json={"who": "acme"}, **asked)
    assert (job.refresh().limit, job.limit_key) == ("r", key)


def test_the_url_as_a_key_shows_neither_credentials_nor_query(small, remote):
    url = f"http://ann:secret@127.0.0.1:{remote.port}/convert?token=abc"
    job = small.request("GET", url, limit=mp.Limit(5, key="url"))
    assert job.refresh().limit_key == f"{remote.url}/convert"


WRONG = {
    "no-limit": ({"limit": 5}, "must be an mp.Limit"),
    "key-alone": ({"limit_key": "acme"}, "limit_key of a request without limit="),
    "units-alone": ({"units": 5}, "units of a request without limit="),
    "both-alone": ({"units": 5, "limit_key": "a"}, "limit_key and units of a request without"),
    "no-part": (
        {"limit": mp.Limit(5, key="customer")},
        r"'customer' is no part of a request \(there are: host, method, url\): give the key by",
    ),
    "no-key": ({"limit": mp.Limit(5, key=lambda _: None)}, "is None: every job under a limit"),
    "fails": ({"limit": mp.Limit(5, key=lambda asked: asked.json["x"])}, "key function, called"),
    "no-rate": ({"limit": mp.Limit(5), "units": 3}, "units= is for limits with a rate="),
    "too-many": ({"limit": mp.Limit(rate="1/s", burst=5), "units": 6}, "may ever take at once, 5"),
    "unknown": ({"limit": "erp"}, "there is no limit of that name; there are: none"),
    "blank": ({"limit": mp.Limit(5), "limit_key": " "}, "must be a text that is not blank"),
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("asked", "told"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused_and_nothing_is_stored(small, remote, asked, told):
    with pytest.raises(mp.Invalid, match=told):
        small.request("GET", remote.url, json={}, **asked)
    with pytest.raises(mp.Invalid, match=rf"items\[0\]: .*{told}"):
        small.request_batch([{"url": remote.url, "json": {}, **asked}])
    assert small.jobs.list() == []


def test_two_limits_of_one_name_are_refused(small, remote):
    small.request("GET", remote.url, limit=mp.Limit(5))
    small.request("GET", remote.url, limit=mp.Limit(5))
    with pytest.raises(mp.Invalid, match="declared as 6 at once by request 1 and as 5 at once by"):
        small.request("GET", remote.url, limit=mp.Limit(6))
    small.request("GET", remote.url, limit=mp.Limit(6, name="six"))
    with pytest.raises(
        mp.Invalid, match="'six' is declared as 7 at once by job 1 and as 6 at once by"
    ):
        small.job(name="job", limit=mp.Limit(7, name="six"))(lambda: None)


def test_ordered_requests_are_sent_one_after_the_other_in_one_line(app, remote):
    bodies = []

    def note(asked: Asked) -> Says:
        bodies.append(asked.json())
        return Says(503 if len(bodies) == 1 else 200, json=1)

    remote.answers = [note]
    order = mp.Limit(key="host", ordered=True)
    for number in range(4):
        app.request(
            "POST", remote.url, json=number, limit=order, queue="a", retry_delay=0, jitter=False
        )
    with pytest.raises(mp.Invalid, match="order holds within one queue and one priority"):
        app.request("POST", remote.url, limit=order, queue="b")
    app.drain(20)
    assert bodies == [0, 0, 1, 2, 3]


def test_units_are_reserved_when_a_request_starts(app, remote):
    remote.answers = [Says(json=1)]
    limit = mp.Limit(rate="60/h", burst=100, units="tokens", name="tokens")
    jobs = [app.request("GET", remote.url, limit=limit, units=60) for _ in range(2)]
    app.drain()
    assert sorted(job.refresh().state for job in jobs) == ["QUEUED", "SUCCEEDED"]


def test_a_limit_is_called_by_its_name_where_the_program_declares_it(small, remote):
    small.job(name="k", limit=mp.Limit(rate="9/m", burst=3, name="erp"))(lambda: None)
    job = small.request("GET", remote.url, limit="erp", limit_key="acme", units=2)
    assert (job.refresh().limit, job.limit_key) == ("erp", "acme")
    with pytest.raises(mp.Invalid, match="there are: erp"):
        small.request("GET", remote.url, limit="epr")
    # As a message, or a call of the API for any kind, brings it.
    options = {"limit_key": "tiny"}
    made = small.new_job("request", ["GET", remote.url], {"limit": "erp"}, options)
    assert made.template.limit_key.endswith("/erp/tiny")


def test_a_rerun_is_under_the_same_limit(app, remote):
    remote.answers = [Says(400, json=1)]
    limit = mp.Limit(rate="9/m", burst=9, name="erp")
    job = app.request("GET", remote.url, limit=limit, limit_key="acme", units=3)
    app.drain()
    again = job.refresh().rerun().refresh()
    assert (job.state, again.limit, again.limit_key) == ("FAILED", "erp", "acme")


@pytest.mark.parametrize("chunk", [batch.CHUNK, 4])
def test_requests_of_a_batch_are_under_the_limit_of_all_and_keys_of_their_own(
    app, remote, chunk, monkeypatch
):
    monkeypatch.setattr(batch, "CHUNK", chunk)
    count = 18
    remote.answers = [counted := Counted(seconds=0)]
    items = [{"url": remote.url, "limit_key": f"k{number % 3}"} for number in range(count)]
    items[-1] |= {"limit": mp.Limit(1, name="other")}
    limit = mp.Limit(1, name="erp")
    run = app.request_batch(items, common={"limit": limit})
    assert {one.name: one.waiting for one in app.limits.list()} == {"erp": count - 1, "other": 1}
    app.drain(60)
    assert run.refresh().state == "SUCCEEDED"
    assert len(counted.arrived) == count
    assert counted.most <= 4


def test_a_batch_within_a_batch_takes_limits_and_its_final_call_none(app, remote):
    remote.answers = [Says(json=1)]
    limit = mp.Limit(1, key="host", name="erp")
    inner = {"batch": [{"url": remote.url, "limit": limit}]}
    batch = app.request_batch([inner], final=("POST", remote.url))
    app.drain(20)
    assert batch.refresh().state == "SUCCEEDED"
    assert [job.limit for job in app.jobs.list(kind="request")] == ["erp"]
    with pytest.raises(mp.Invalid, match="the final call takes no limit"):
        app.request_batch([inner], final=("POST", remote.url, {"limit": limit}))


def test_a_limit_that_only_requests_are_under_is_seen_by_the_worker_that_sends_them(
    database, remote, raw
):
    """Whoever asks for them may be a program without a worker: `doctor` would tell of it."""
    allow = f"127.0.0.1:{remote.port}"
    asking, sending = [mp.App(database.url, request_allow=allow) for _ in range(2)]
    remote.answers = [Says(json=1)]
    asking.request("GET", remote.url, limit=mp.Limit(5, name="erp"))
    asking.client.run(rules.declare, {("job", "idle"): Stored(most=1)})
    told = "SELECT name, declared_at FROM limit_rule ORDER BY name"
    before = dict(map(tuple, raw.execute(told)))
    sending.drain()
    after = dict(map(tuple, raw.execute(told)))
    assert after["erp"] > before["erp"]
    assert after["idle"] == before["idle"]
    asking.close()
    sending.close()
