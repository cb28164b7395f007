"""Spec C as its reader would try it: a caller, a controller over HTTP, a poller, a remote."""

import json
from collections.abc import Iterator

import httpx2
import pytest

import milepost as mp
from tests.request.remote import Remote, Says
from tests.support.databases import Database
from tests.support.serving import served

RULES = {"state": "$.status", "complete": ["done"], "pending": ["working"], "failed": ["error"]}
REPLY = mp.Reply(**RULES)
MINUTE = 60


@pytest.fixture
def remote() -> Iterator[Remote]:
    with Remote() as made:
        yield made


@pytest.fixture
def app(database: Database, remote: Remote) -> Iterator[mp.App]:
    made = mp.App(database.url, request_allow=f"127.0.0.1:{remote.port}")
    yield made
    made.close()


@pytest.fixture
def caller(app) -> Iterator[httpx2.Client]:
    """Somebody who has nothing but the HTTP API."""
    with served(app) as url, httpx2.Client(base_url=url) as client:
        yield client


def working(app, seen):
    """Answer as a remote that is not done yet, and look at the job meanwhile."""

    def answer(_asked):
        [job] = app.jobs.list()
        seen.append(job.as_spec("C"))
        return Says(json={"status": "working"})

    return answer


def phases(job):
    notes = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
    return [note["phase"] for note in notes]


def told(app, channel="orders"):
    """The messages of a channel: each one's subject and data."""
    return [event["data"] for event in app.channels.pull(channel).messages]


def test_a_caller_asks_three_times_and_gets_the_payload(app, caller, remote):
    """return PENDING / ID … GET ID: return PENDING / ID … GET ID: return COMPLETE / payload."""
    remote.answers = [Says(json={"status": "done", "pages": 12})]
    posted = caller.post("/v1/requests", json={"method": "POST", "url": remote.url, "reply": RULES})
    assert posted.status_code == 202
    assert posted.json()["state"] == "PENDING"

    where = posted.headers["location"]
    assert caller.get(where).json()["state"] == "PENDING", "the poller has not picked it up yet"
    app.drain()

    found = caller.get(where).json()
    assert (found["id"], found["state"], found["done"]) == (posted.json()["id"], "COMPLETE", True)
    assert found["result"] == {"status": "done", "pages": 12}
    assert found.get("error") is None


def test_a_pending_reply_waits_and_is_asked_again_after_a_wakeup(app, remote, advance):
    """RESPONSE → WAITING: state pending; WAITING → REQUEST: get wakeup."""
    seen = []
    remote.answers = [working(app, seen), Says(json={"status": "done"})]
    job = app.request("POST", remote.url, reply=REPLY, poll=MINUTE)
    assert job.as_spec("C") == "IDLE"
    app.drain()
    assert job.refresh().as_spec("C") == "WAITING"
    assert seen == ["REQUESTING"]

    advance(MINUTE)
    app.drain()

    assert job.refresh().as_spec("C") == "COMPLETE"
    assert phases(job) == ["REQUEST", "REQUESTING", "RESPONSE"] * 2
    assert len(remote.asked) == 2
    assert len({asked.headers["idempotency-key"] for asked in remote.asked}) == 1
    assert job.attempt == 1, "nothing failed"


def test_an_external_event_wakes_it_too(app, caller, remote):
    """WAITING: Waiting for external event."""
    remote.answers = [Says(json={"status": "working"})]
    job = app.request("GET", remote.url, reply=REPLY, poll=None)
    app.drain()
    assert job.refresh().as_spec("C") == "WAITING"
    signal = {"status": "done", "pages": 3}
    assert caller.post(f"/v1/jobs/{job.id}:signal", json=signal).is_success
    app.drain()
    assert job.refresh().as_spec("C") == "COMPLETE"
    assert job.result == {"status": "done", "pages": 3}
    assert len(remote.asked) == 1


@pytest.mark.parametrize(
    ("code", "says"),
    {
        "http_404": Says(404, json={"detail": "no more ink"}),
        "malformed": Says(json={"status": "no more ink"}),
        "remote_failure": Says(json={"status": "error", "reason": "no more ink"}),
    }.items(),
)
def test_a_failure_says_the_same_to_the_caller_and_to_the_channel(app, caller, remote, code, says):
    """C{HTTP Code} → FAIL: error; RESPONSE → FAIL: malformed; RESPONSE → FAIL: state failure."""
    remote.answers = [says]
    spec = {"method": "GET", "url": remote.url, "reply": RULES, "channel": "orders"}
    where = caller.post("/v1/requests", json=spec).headers["location"]
    app.drain()
    found = caller.get(where).json()
    [message] = told(app)
    for failure in (found, message):
        assert failure["state"] == "FAIL"
        assert failure["error"]["code"] == code
        assert "no more ink" in failure["error"]["message"]
    assert found.get("result") is None


def test_an_error_of_the_moment_is_not_the_end(app, remote, advance):
    """C{HTTP Code} → FAIL: error, but H-92: 5xx and network errors are tried again."""
    remote.answers = [Says(503), Says(0), Says(json={"status": "done"})]
    fixed = {"retry_delay": MINUTE, "backoff": "fixed", "jitter": False}
    job = app.request("GET", remote.url, reply=REPLY, channel="orders", **fixed)
    for _ in range(2):
        app.drain()
        assert job.refresh().as_spec("C") == "WAITING"
        assert told(app) == []
        advance(MINUTE)
    app.drain()
    assert job.refresh().as_spec("C") == "COMPLETE"


def test_a_message_is_sent_at_the_end_and_only_then(app, remote, advance):
    """IDLE, REQUEST, RESPONSE, WAITING: No; COMPLETE: Yes: sends job result to channel."""
    during = []

    def answer(_asked):
        during.extend(told(app))
        return Says(json={"status": "working"})

    remote.answers = [answer, Says(json={"status": "done"})]
    job = app.request("GET", remote.url, reply=REPLY, poll=MINUTE, channel="orders")
    assert told(app) == []
    app.drain()
    assert phases(job) == ["REQUEST", "REQUESTING", "RESPONSE"]
    assert job.refresh().as_spec("C") == "WAITING"
    assert told(app) == during == []
    advance(MINUTE)
    app.drain()
    app.maintain_once()
    app.drain()
    [message] = told(app)
    assert (message["id"], message["state"]) == (job.id, "COMPLETE")
    assert message["result"] == {"status": "done"}


def test_a_batch_completes_with_its_second_request(app, remote, advance):
    """Revalidate Batch - REQUEST … Revalidate Batch - COMPLETE."""
    states = []

    def answer(asked):
        states.append(batch.refresh().as_spec("C"))
        return Says(json={"status": "done", "page": asked.json()["page"]})

    remote.answers = [answer]
    spec = {"reply": REPLY}
    batch = app.request_batch(
        [
            ("POST", remote.url, {"json": {"page": 1}, **spec}),
            ("POST", remote.url, {"json": {"page": 2}, "start_in": MINUTE, **spec}),
        ],
        channel="orders",
    )
    assert batch.as_spec("C") == "IDLE"
    app.drain()
    assert batch.refresh().as_spec("C") == "REQUEST"
    assert told(app) == []

    advance(MINUTE)
    app.drain()

    assert states == ["REQUEST", "REQUEST"]
    assert batch.refresh().as_spec("C") == "COMPLETE"
    [message] = told(app)
    assert (message["id"], message["state"]) == (batch.id, "COMPLETE")
    pages = [response["result"]["page"] for response in message["jobs"]]
    assert pages == [1, 2], "responses for all child jobs are included, in their order"


def test_a_batch_fails_with_any_request_and_says_which(app, caller, remote):
    """If all are complete or any have failed, updates the batch state."""
    remote.answers = [
        lambda asked: (
            Says(json={"status": "error", "reason": "ink"})
            if asked.path == "/2"
            else Says(json={"status": "done"})
        )
    ]
    requests = [
        {"method": "GET", "url": f"{remote.url}/{number}", "reply": RULES} for number in range(3)
    ]
    posted = caller.post(
        "/v1/requests:batch",
        json={"requests": requests, "policy": "collect", "channel": "orders"},
    )
    assert (posted.status_code, posted.json()["state"]) == (202, "PENDING")
    app.drain()

    found = caller.get(posted.headers["location"]).json()
    [message] = told(app)
    for failure in (found, message):
        assert failure["state"] == "FAIL"
        assert "ink" in failure["error"]["message"]
        assert [(e["ordinal"], e["code"]) for e in failure["errors"]] == [(2, "remote_failure")]
    assert [one["state"] for one in found["responses"]] == ["COMPLETE", "COMPLETE", "FAIL"]


def test_the_first_failure_stops_a_batch_unless_told_otherwise(app, remote, advance):
    """Any failed: the batch is FAIL; H-59: jobs that run may end, the rest is cancelled."""
    remote.answers = [Says(404)]
    batch = app.request_batch(
        [("GET", remote.url, {}), ("GET", remote.url, {"start_in": MINUTE})], channel="orders"
    )
    app.drain()
    advance(MINUTE)
    app.drain()
    assert batch.refresh().as_spec("C") == "FAIL"
    assert len(remote.asked) == 1
    assert [response.state for response in batch.responses()] == ["FAIL", "FAIL"]
    assert len(told(app)) == 1


def test_a_batch_of_none_is_complete(app):
    """If all are complete: of none, all are; H-61."""
    batch = app.request_batch([], channel="orders")
    app.drain()
    assert batch.refresh().as_spec("C") == "COMPLETE"
    [message] = told(app)
    assert (message["state"], message["jobs"]) == ("COMPLETE", [])


def test_a_request_that_is_cancelled_is_told_once_as_a_failure(app, caller, remote):
    """FAIL: Yes: sends job failure to channel."""
    job = app.request("GET", remote.url, channel="orders", start_in=MINUTE)
    for _ in range(2):
        caller.post(f"/v1/jobs/{job.id}:cancel", json={"reason": "ordered twice"})
    app.drain()
    found = caller.get(f"/v1/requests/{job.id}").json()
    [message] = told(app)
    for failure in (found, message):
        assert (failure["state"], failure["error"]["code"]) == ("FAIL", "cancelled")
        assert "ordered twice" in failure["error"]["message"]
    assert remote.asked == []


def test_a_batch_that_is_cancelled_is_told_once_with_the_reason(app, caller, remote):
    """FAIL: Yes: sends job failure to channel; before its first request and between two."""
    waits = {"start_in": 2 * MINUTE}
    idle = app.request_batch([("GET", remote.url, waits)], channel="orders")
    begun = app.request_batch([("GET", remote.url), ("GET", remote.url, waits)], channel="orders")
    app.drain()
    for batch in (idle, begun):
        caller.post(f"/v1/runs/{batch.id}:cancel", json={"reason": "ordered twice"})
    app.drain()
    messages = {message["id"]: message for message in told(app)}
    assert set(messages) == {idle.id, begun.id}
    for batch_id, message in messages.items():
        for failure in (caller.get(f"/v1/requests/{batch_id}").json(), message):
            assert (failure["state"], failure["error"]["code"]) == ("FAIL", "cancelled")
            assert "ordered twice" in failure["error"]["message"]
    assert len(remote.asked) == 1


def test_a_post_that_is_repeated_makes_one_job(app, caller, remote):
    """C to T: POST … T to Q: add job; H-95: the same key is the same job."""
    spec = {"method": "GET", "url": remote.url}
    first, second = (
        caller.post("/v1/requests", json=spec, headers={"Idempotency-Key": "order-7"})
        for _ in range(2)
    )
    assert first.json()["id"] == second.json()["id"]
    assert app.drain() == 1
    assert len(remote.asked) == 1


def test_every_step_is_on_the_record_and_a_replay_sends_nothing(app, remote):
    """we want to be able to track every step in the DB for reconstruction/replay."""
    remote.answers = [Says(json={"status": "done", "pages": 12})]
    job = app.request("POST", remote.url, json={"document": "report"}, reply=REPLY)
    app.drain()
    notes = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
    assert [note["phase"] for note in notes] == ["REQUEST", "REQUESTING", "RESPONSE"]
    assert notes[-1]["json"] == {"status": "done", "pages": 12}

    again = app.replay(job.id)
    app.drain()
    assert again.refresh().result == job.refresh().result
    assert again.id != job.id
    assert len(remote.asked) == 1
