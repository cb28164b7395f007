"""Replies that nobody expects: each is read or refused, is on the record, and harms nobody else."""

import base64
import json

import httpx2
import pytest
from remote import Says

import milepost as mp
from milepost.cli.subjects import job_summary
from tests.support.serving import served

YEAR = 366 * 86_400
FAR = {"Date": "Fri, 01 Jan 0100 00:00:00 GMT", "Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}


def ended(app, job):
    app.drain()
    return job.refresh()


def notes(job, phase):
    found = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
    return [note for note in found if note["phase"] == phase]


@pytest.mark.parametrize("status", [202, 503])
def test_h92_a_server_cannot_ask_for_more_time_than_can_be_written_down(app, remote, status):
    remote.answers = [Says(status, headers=FAR)]
    job = ended(app, app.request("GET", remote.url))
    assert job.state == ("WAITING" if status == 202 else "RETRYING")
    assert (job.record.due_at - job.record.created_at).days <= 367
    assert job_summary(job)["due_at"] == job.record.due_at
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as client:
        for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/history", "/v1/jobs"):
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "9" * 5_000}, float(YEAR)),
        ({"retry-after": "99999999999"}, float(YEAR)),
        ({name.lower(): value for name, value in FAR.items()}, float(YEAR)),
        ({"retry-after": "²"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 +" + "9" * 30}, None),
    ],
)
def test_nonsense_in_retry_after_is_not_obeyed(headers, seconds):
    from milepost.request.reply import Answer, retry_after

    assert retry_after(Answer(503, headers)) == seconds


JSON = {"content-type": "application/json"}
LATIN = '{"status": "dön"}'.encode("latin-1")
RULES = mp.Reply(state="$.status", complete=["done"])


@pytest.mark.parametrize(
    ("says", "reply"),
    [
        (Says(body=LATIN, headers=JSON), None),
        (Says(body=LATIN, headers=JSON), RULES),
        (Says(body=LATIN, headers=JSON), mp.Reply(result="$.status")),
        (Says(202, body=LATIN, headers=JSON), mp.Reply(poll=mp.Poll(url="$.href"))),
        (Says(202, json={"href": "http://["}), mp.Reply(poll=mp.Poll(url="$.href"))),
        (Says(body=b"[" * 100_000 + b"]" * 100_000, headers=JSON), None),
    ],
)
def test_h91_a_reply_that_cannot_be_read_is_malformed_and_sent_for_once(small, remote, says, reply):
    remote.answers = [says]
    job = small.request("POST", remote.url, crash="fail_unknown", reply=reply, retry_delay=0)
    small.drain(timeout=5)
    assert (job.refresh().state, job.error.code) == ("FAILED", "malformed")
    assert len(remote.asked) == 1
    [heard] = notes(job, "RESPONSE")
    assert heard["status"] == says.status


@pytest.mark.parametrize("charset", ["idna", "punycode", "base64", "undefined", "no-such"])
def test_a_charset_that_is_none_is_read_as_utf_8(small, remote, charset):
    remote.answers = [
        Says(body="a.ä-b".encode(), headers={"content-type": f"text/plain; charset={charset}"})
    ]
    job = ended(small, small.request("GET", remote.url))
    assert (job.state, job.result, len(remote.asked)) == ("SUCCEEDED", "a.ä-b", 1)
    assert len(notes(job, "RESPONSE")) == 1


def test_bytes_without_a_type_that_are_neither_json_nor_text_are_kept_as_they_are(small, remote):
    remote.answers = [Says(body=b'["\xff"]', headers={"content-type": ""})]
    job = ended(small, small.request("POST", remote.url, crash="fail_unknown"))
    assert base64.b64decode(job.result["base64"]) == b'["\xff"]'
    assert len(notes(job, "RESPONSE")) == 1


def test_what_only_the_reading_could_break_is_malformed_too(small, remote, monkeypatch):
    """A guard around the reading: whatever goes wrong in it, the request is not sent again."""

    def broken(*_):
        raise ArithmeticError("never thought of")

    monkeypatch.setattr("milepost.request.reply._by_state", broken)
    job = small.request("POST", remote.url, crash="fail_unknown", reply=RULES, retry_delay=0)
    small.drain(timeout=5)
    assert (job.refresh().error.code, len(remote.asked)) == ("malformed", 1)
    assert "never thought of" in job.error.message
    assert len(notes(job, "RESPONSE")) == 1


def test_a_redirect_to_nowhere_is_refused_and_not_sent_again(small, remote):
    remote.answers = [Says(307, headers={"location": "http://["})]
    job = small.request("POST", remote.url, redirects=1, crash="fail_unknown", retry_delay=0)
    small.drain(timeout=5)
    assert (job.refresh().state, job.error.type, len(remote.asked)) == (
        "FAILED",
        "RequestFailed",
        1,
    )


@pytest.mark.parametrize("value", [b"\0" * 900_000])
def test_a_result_too_large_to_keep_is_on_the_record(small, remote, value):
    """Within the limit as it comes, and beyond it in base64."""
    remote.answers = [Says(body=value, headers={"content-type": "image/png"})]
    job = ended(small, small.request("POST", remote.url))
    assert (job.state, job.error.code, len(remote.asked)) == ("FAILED", "too_large", 1)
    assert "MILEPOST_MAX_PAYLOAD" in job.error.message
    [heard] = notes(job, "RESPONSE")
    assert (heard["status"], heard["bytes"]) == (200, 900_000)


def test_a_head_tells_a_size_and_brings_nothing(small, remote):
    told = {"content-length": "5000000", "content-encoding": "br"}
    remote.answers = [Says(headers=told)]
    job = ended(small, small.request("HEAD", remote.url))
    assert (job.state, job.result) == ("SUCCEEDED", None)
    [heard] = notes(job, "RESPONSE")
    assert heard["headers"]["content-length"] == "5000000"
