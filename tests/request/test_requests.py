"""Requests as jobs (spec C), against a real server: what is sent, what a reply comes to."""

import json

import pytest
from remote import Says

import milepost as mp
from milepost.request.attempt import POLL_LEAST

RULES = mp.Reply(
    state="$.status", complete=["done"], pending=["working"], failed=["error"], error="$.why"
)
WORKING, DONE = Says(json={"status": "working"}), Says(json={"status": "done", "value": 7})


def phases(job):
    notes = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
    return [note["phase"] for note in notes]


def notes(job, phase):
    found = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
    return [note for note in found if note["phase"] == phase]


def ended(app, job):
    app.drain()
    return job.refresh()


def test_a_request_is_sent_and_its_reply_is_the_result(app, remote):
    remote.answers = [DONE]
    job = app.request("POST", f"{remote.url}/convert", json={"document": "a"}, reply=RULES)
    assert job.as_spec("C") == "IDLE"

    assert ended(app, job).result == {"status": "done", "value": 7}
    [asked] = remote.asked
    assert (asked.method, asked.path, asked.json()) == ("POST", "/convert", {"document": "a"})
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["idempotency-key"] == job.id
    assert job.as_spec("C") == "COMPLETE"
    assert phases(job) == ["REQUEST", "REQUESTING", "RESPONSE"]
    assert [e.move for e in job.history] == ["create", "claim", "note", "note", "note", "succeed"]


def test_h8_h92_pending_waits_and_the_same_request_is_sent_again(app, remote, advance):
    remote.answers = [WORKING, WORKING, DONE]
    job = app.request("POST", f"{remote.url}/convert", json={"a": 1}, reply=RULES, poll=30)

    for count in (1, 2):
        assert ended(app, job).state == "WAITING"
        assert job.as_spec("C") == "WAITING"
        assert len(remote.asked) == count
        advance(31)
    assert ended(app, job).result["value"] == 7
    assert {asked.headers["idempotency-key"] for asked in remote.asked} == {job.id}
    assert {asked.body for asked in remote.asked} == {b'{"a":1}'}
    assert (job.record.polls, job.record.errors, job.attempt) == (2, 0, 1)


def test_pending_looks_where_the_reply_says_instead(app, remote, advance):
    remote.answers = [
        Says(json={"status": "working", "href": "/jobs/9?key=k-12345"}),
        Says(json={"status": "working"}),
        DONE,
    ]
    rules = mp.Reply(
        state="$.status",
        complete=["done"],
        pending=["working"],
        poll=mp.Poll(url="$.href", every=5),
    )
    job = app.request("POST", f"{remote.url}/convert", json={}, reply=rules)
    for _ in range(2):
        assert ended(app, job).state == "WAITING"
        advance(6)
    assert ended(app, job).result["value"] == 7
    assert [(a.method, a.path) for a in remote.asked] == [
        ("POST", "/convert"),
        ("GET", "/jobs/9?key=k-12345"),
        ("GET", "/jobs/9?key=k-12345"),
    ]
    assert "k-12345" not in notes(job, "REQUEST")[1]["url"]


def test_202_with_a_location_is_looked_up_there(app, remote, advance):
    remote.answers = [Says(202, headers={"location": f"{remote.url}/status"}), DONE]
    job = app.request("POST", remote.url, reply=mp.Reply(poll=mp.Poll(url="Location", every=1)))
    assert ended(app, job).state == "WAITING"
    advance(2)
    assert ended(app, job).result["value"] == 7
    assert remote.asked[1].path == "/status"


def test_a_rerun_is_sent_under_the_key_of_the_first_and_a_fresh_one_under_its_own(app, remote):
    remote.answers = [Says(404), Says(404), DONE]
    job = ended(app, app.request("POST", remote.url, reply=RULES))
    again = ended(app, job.rerun())
    assert again.state == "FAILED"
    fresh = ended(app, again.rerun(fresh=True))
    assert fresh.result["value"] == 7
    keys = [asked.headers["idempotency-key"] for asked in remote.asked]
    assert keys == [job.id, job.id, fresh.id]


def test_a_rerun_looks_where_the_reply_to_the_first_said(app, remote, advance):
    """Sent again, it would be done twice by a partner that heeds no key."""
    remote.answers = [
        Says(json={"status": "working", "href": "/jobs/9"}),
        Says(404),
        Says(json={"status": "working"}),
        DONE,
    ]
    poll = mp.Poll(url="$.href", every=5)
    rules = mp.Reply(state="$.status", complete=["done"], pending=["working"], poll=poll)
    job = app.request("POST", f"{remote.url}/convert", json={}, reply=rules)
    assert ended(app, job).state == "WAITING"
    advance(6)
    assert ended(app, job).state == "FAILED"
    again = job.rerun()
    assert ended(app, again).state == "WAITING"
    advance(6)
    assert ended(app, again).result["value"] == 7
    told = [(asked.method, asked.path) for asked in remote.asked]
    assert told == [("POST", "/convert"), *[("GET", "/jobs/9")] * 3]


def test_pending_without_the_place_to_look_is_malformed(small, remote):
    remote.answers = [WORKING]
    rules = mp.Reply(
        state="$.status", complete=["done"], pending=["working"], poll=mp.Poll(url="$.href")
    )
    job = ended(small, small.request("POST", remote.url, reply=rules))
    assert (job.state, job.error.code) == ("FAILED", "malformed")
    assert "$.href" in job.error.message


@pytest.mark.parametrize(
    ("says", "code", "told"),
    [
        (Says(json={"status": "error", "why": "no such file"}), "remote_failure", "no such file"),
        (Says(json={"status": "dreaming"}), "malformed", "'dreaming'"),
        (Says(json={"state": "done"}), "malformed", "nothing at $.status"),
        (Says(body=b"<html>"), "malformed", "not JSON"),
        (Says(json=[1, 2]), "malformed", "nothing at $.status"),
        (Says(400, json={"detail": "no"}), "http_400", "400 Bad Request"),
        (Says(404), "http_404", "404 Not Found"),
        (Says(302, headers={"location": "/elsewhere"}), "http_302", "redirects"),
    ],
)
def test_h92_what_another_attempt_would_not_change_fails_at_once(small, remote, says, code, told):
    remote.answers = [says]
    job = ended(small, small.request("POST", f"{remote.url}/x?token=t0psecret", reply=RULES))
    assert (job.state, job.error.code, job.attempt) == ("FAILED", code, 1)
    assert told in job.error.message
    assert "t0psecret" not in job.error.message
    assert len(remote.asked) == 1
    # The evidence: what was answered is on the record.
    [response] = notes(job, "RESPONSE")
    assert response["status"] == says.status
    assert response.get("json") == says.json


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
def test_h92_what_may_pass_is_tried_again(small, remote, status):
    remote.answers = [Says(status), DONE]
    job = small.request("POST", remote.url, reply=RULES, retry_delay=0)
    small.drain(timeout=5)
    assert job.refresh().result["value"] == 7
    assert (job.record.errors, len(remote.asked)) == (1, 2)
    assert {asked.headers["idempotency-key"] for asked in remote.asked} == {job.id}


def test_retry_after_is_a_floor(app, remote, advance):
    remote.answers = [Says(429, headers={"retry-after": "120"}), DONE]
    job = app.request("POST", remote.url, reply=RULES, retry_delay=0)
    assert ended(app, job).state == "RETRYING"
    advance(100)
    assert ended(app, job).state == "RETRYING"
    advance(21)
    assert ended(app, job).result["value"] == 7


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
        (
            {
                "date": "Wed, 21 Oct 2015 07:28:00 GMT",
                "retry-after": "Wed, 21 Oct 2015 07:29:30 GMT",
            },
            90.0,
        ),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date_by_the_servers_clock(headers, seconds):
    from milepost.request.reply import Answer, retry_after

    assert retry_after(Answer(429, headers)) == seconds


def test_a_pending_reply_may_ask_for_more_time_than_poll(app, remote, advance):
    remote.answers = [Says(202, headers={"retry-after": "60"}), DONE]
    job = app.request("GET", remote.url, poll=1)
    assert ended(app, job).state == "WAITING"
    advance(30)
    assert ended(app, job).state == "WAITING"
    advance(31)
    assert ended(app, job).result["value"] == 7


def test_attempts_end_when_they_are_spent(small, remote):
    remote.answers = [Says(503)]
    job = small.request("POST", remote.url, retries=2, retry_delay=0)
    small.drain(timeout=5)
    assert (job.refresh().state, job.error.cause) == ("FAILED", "attempts_exhausted")
    assert len(remote.asked) == 3


def test_h93_a_remote_that_is_always_pending_comes_to_an_end(small, remote):
    remote.answers = [WORKING]
    job = small.request("POST", remote.url, reply=RULES, poll=0, poll_limit=2)
    small.drain(timeout=5)
    assert (job.refresh().state, job.error.cause) == ("FAILED", "poll_limit")


def test_a_reply_that_is_nested_too_deeply_is_malformed(small, remote):
    remote.answers = [Says(headers={"content-type": "application/json"}, body=b"[" * 300)]
    job = ended(small, small.request("GET", remote.url))
    assert (job.state, job.error.code, job.attempt) == ("FAILED", "malformed", 1)
    assert "nested more than 200 deep" in job.error.message


def test_a_remote_is_not_polled_in_a_tight_loop(small, remote):
    remote.answers = [Says(202, headers={"location": "/there"})]
    for asked in ({"poll": 0}, {"reply": mp.Reply(poll=mp.Poll(url="Location", every=0))}):
        job = small.request("POST", remote.url, poll_limit=1, **asked)
        small.drain(timeout=5)
        at = {entry.move: entry.at for entry in job.refresh().history}
        assert (at["wake"] - at["later"]).total_seconds() >= POLL_LEAST


def test_status_codes_decide_where_no_state_is_named(small, remote):
    remote.answers = [Says(404), Says(200, json=1)]
    job = small.request("GET", remote.url, reply=mp.Reply(pending=[404]), poll=0)
    small.drain(timeout=5)
    assert job.refresh().result == 1

    remote.answers = [Says(202)]
    job = ended(small, small.request("POST", remote.url, reply=mp.Reply(complete=[202])))
    assert job.state == "SUCCEEDED"

    remote.answers = [Says(200, json={})]
    job = ended(small, small.request("POST", remote.url, reply=mp.Reply(failed=[200])))
    assert job.error.code == "remote_failure"


def test_a_function_reads_the_reply(small, remote):
    @small.reply
    def shop(answer):
        if answer.status == 404:
            return mp.Later(0)
        if answer.json()["ok"] is False:
            raise mp.Fail("the shop says no", code="shop")
        return {"price": answer.json()["price"], "kind": answer.headers["content-type"]}

    rules = mp.Reply(by="shop")
    remote.answers = [Says(404), Says(json={"ok": True, "price": 3})]
    good = small.request("GET", remote.url, reply=rules)
    small.drain(timeout=5)
    assert good.refresh().result == {"price": 3, "kind": "application/json"}

    remote.answers = [Says(json={"ok": False})]
    bad = ended(small, small.request("GET", remote.url, reply=rules))
    assert (bad.error.code, bad.error.message.endswith("the shop says no")) == ("shop", True)

    remote.answers = [Says(json={})]
    odd = ended(small, small.request("GET", remote.url, reply=rules))
    assert (odd.state, odd.error.code) == ("FAILED", "malformed")
    assert "KeyError" in odd.error.message


@pytest.mark.parametrize(
    ("says", "result"),
    [
        (Says(204), None),
        (Says(body=b"hello"), "hello"),
        (Says(json=[1, {"a": None}]), [1, {"a": None}]),
        (
            Says(body=b"\x00\xff", headers={"content-type": "image/png"}),
            {"content_type": "image/png", "base64": "AP8="},
        ),
    ],
)
def test_the_result_is_what_the_reply_says(small, remote, says, result):
    remote.answers = [says]
    assert ended(small, small.request("GET", remote.url)).result == result


def test_a_path_chooses_the_result(small, remote):
    remote.answers = [Says(json={"data": {"items": [{"id": 1}, {"id": 2}]}})]
    job = small.request("GET", remote.url, reply=mp.Reply(result="$.data['items'][-1].id"))
    assert ended(small, job).result == 2


def test_a_signal_wakes_it_and_may_bring_the_reply(app, remote):
    """H-93: the earliest of time and signal; what came before it slept is remembered."""
    remote.answers = [WORKING]
    job = app.request("POST", remote.url, reply=RULES, poll=None)
    assert ended(app, job).state == "WAITING"
    assert job.record.due_at is None

    job.signal()  # only says to look again
    assert ended(app, job).state == "WAITING"
    assert len(remote.asked) == 2

    job.signal({"status": "done", "value": 8})
    assert ended(app, job).result == {"status": "done", "value": 8}
    assert len(remote.asked) == 2, "the signal was the reply"
    assert notes(job, "RESPONSE")[-1]["from"] == "signal"


def test_a_signal_that_comes_before_the_request_is_sent_is_not_lost(app, remote):
    """H-93: it may be the reply once the remote has said pending."""
    remote.answers = [WORKING]
    job = app.request("POST", remote.url, reply=RULES, poll=None)
    job.signal({"status": "done", "value": 8})
    assert ended(app, job).result == {"status": "done", "value": 8}
    assert len(remote.asked) == 1


def test_a_signal_that_comes_while_a_request_waits_to_be_retried_is_its_reply(app, remote, advance):
    """H-93: the remote heard the first attempt and called back; its answer was lost."""
    remote.answers = [Says(status=503)]
    job = app.request("POST", remote.url, reply=RULES, poll=None, retries=3, retry_delay=600)
    assert ended(app, job).state == "RETRYING"
    job.signal({"status": "done", "value": 8})
    advance(900)
    assert ended(app, job).result == {"status": "done", "value": 8}
    assert len(remote.asked) == 1


def test_a_signal_that_says_failed_fails_it(app, remote):
    remote.answers = [WORKING]
    job = app.request("POST", remote.url, reply=RULES, poll=None)
    ended(app, job)
    job.signal({"status": "error", "why": "out of paper"})
    assert ended(app, job).error.message.endswith("out of paper")


async def test_the_asynchronous_twin(small, remote):
    job = await small.request_async("GET", remote.url)
    await small.drain_async()
    assert (await job.refresh_async()).result == {"status": "done"}
    await small.close_async()


def test_options_of_the_job_are_taken(app, remote):
    job = app.request(
        "GET",
        remote.url,
        channel="orders",
        queue="slow",
        priority=3,
        tags={"user": "7"},
        unique="one",
        hold=True,
    )
    record = job.record
    assert (record.channel, record.queue, record.priority) == ("orders", "slow", 3)
    assert (record.tags and json.loads(record.tags)) == {"user": "7"}
    assert job.state == "CREATED"
    assert app.request("GET", remote.url, unique="one").id == job.id
    job.submit()
    assert ended(app, job).state == "SUCCEEDED"


@pytest.mark.parametrize(
    ("method", "url", "asked", "told"),
    [
        ("BREW", "http://a.example", {}, "method"),
        ("GET", "ftp://a.example", {}, "http"),
        ("GET", "http://", {}, "host"),
        ("GET", "http://a.example", {"json": 1, "content": b"x"}, "exclude"),
        ("GET", "http://a.example", {"headers": {"Host": "b"}}, "follows"),
        ("GET", "http://a.example", {"headers": {"X": "a\r\nY: b"}}, "line breaks"),
        ("GET", "http://a.example", {"headers": {"X Y": "a"}}, "no name of a header"),
        ("GET", "http://a.example", {"crash": "hope"}, "fail_unknown"),
        ("GET", "http://a.example", {"redirects": 99}, "redirects"),
        ("GET", "http://a.example", {"timeout": {"conect": 1}}, "conect"),
        ("GET", "http://a.example", {"timeout": -1}, "timeout"),
        ("GET", "http://a.example", {"pol": 1}, "takes no pol"),
        ("GET", "http://a.example", {"reply": {"stat": 1}}, "reply"),
        ("GET", "http://a.example", {"reply": mp.Reply(by="nobody")}, "nobody"),
        ("GET", "http://a.example", {"callback": True}, "MILEPOST_PUBLIC_URL"),
    ],
)
def test_what_could_never_be_sent_is_refused_at_the_door(small, method, url, asked, told):
    with pytest.raises(mp.Invalid, match=told):
        small.request(method, url, **asked)
    assert small.jobs.list() == []


@pytest.mark.parametrize(
    "rules",
    [
        {"state": "$.a"},
        {"state": "$..a", "complete": [1]},
        {"state": "$.a[*]", "complete": [1]},
        {"state": "a", "complete": [1]},
        {"state": "$.a", "complete": ["x"], "pending": ["x"]},
        {"state": "$.a", "complete": [{}]},
        {"complete": ["done"]},
        {"complete": [200], "failed": [200]},
        {"by": "x", "complete": [200]},
        {"complete": "done"},
    ],
)
def test_rules_that_decide_nothing_are_refused(rules):
    with pytest.raises(mp.Invalid):
        mp.Reply(**rules)


def test_without_httpx2_the_call_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("milepost.request.kind.find_spec", lambda name: None)
    app = mp.App(f"sqlite:///{tmp_path}/a.db")
    assert "request 1" not in app.registry.words, "others can send it"
    with pytest.raises(mp.Invalid, match=r"milepost\[http\]"):
        app.request("GET", "http://a.example")


def test_h94_an_address_that_is_not_public_fails_before_anything_is_sent(app, remote):
    job = ended(app, app.request("GET", f"http://127.0.0.2:{remote.port}/"))
    assert (job.state, job.error.code) == ("FAILED", "guarded")
    assert phases(job) == [], "H-94: refused before it was sent"
    assert remote.asked == []
