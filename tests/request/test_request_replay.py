"""Replay (H-96): recorded replies read again, offline, as a new job; the old one never changes."""

import json
import os
import subprocess
import sys

import pytest
from remote import Says

import milepost as mp
from milepost.store import retention, workers

RULES = mp.Reply(state="$.status", complete=["done"], pending=["working"], failed=["error"])
DONE = Says(json={"status": "done", "value": 7})


@pytest.fixture
def judged(app, remote):
    """A request that was read by a rule with a mistake in it."""
    rule = {"then": "wrong"}

    @app.reply
    def shop(answer):
        if answer.status == 404:
            return mp.Later(0)
        if rule["then"] == "wrong":
            raise mp.Fail("read wrongly")
        return answer.json()["value"]

    remote.answers = [Says(404), DONE]
    job = app.request("POST", remote.url, json={"a": 1}, reply=mp.Reply(by="shop"))
    app.drain(timeout=5)
    assert job.refresh().state == "FAILED"
    return job, rule


def test_h96_recorded_replies_are_read_again_and_nothing_is_sent(app, remote, judged):
    job, rule = judged
    before = (job.history, len(remote.asked))
    rule["then"] = "right"

    again = app.replay(job.id)
    app.drain()

    assert again.refresh().result == 7
    assert (again.record.parent_id, job.refresh().rerun_by) == (job.id, None)
    assert (job.refresh().history, len(remote.asked)) == before
    [note] = [json.loads(entry.detail) for entry in again.history if entry.move == "note"]
    assert (note["phase"], note["from"], note["status"]) == ("RESPONSE", "record", 200)


def test_a_replay_by_the_same_rules_comes_to_the_same(app, judged):
    job, _ = judged
    again = app.replay(job.id)
    app.drain()
    assert (again.refresh().state, again.error.message) == ("FAILED", job.error.message)


@pytest.mark.parametrize(
    "says",
    [
        Says(body=b"plain text"),
        Says(body=b"\x00\xff", headers={"content-type": "image/png"}),
        Says(json=[1, None, {"a": "ä"}]),
        Says(204),
    ],
)
def test_every_kind_of_body_is_recorded_well_enough(small, remote, says):
    remote.answers = [says]
    job = small.request("GET", remote.url)
    small.drain()
    again = small.replay(job.id)
    small.drain()
    assert again.refresh().state == "SUCCEEDED"
    assert again.result == job.refresh().result


def test_h105_a_replay_never_passes_off_a_mark_as_what_the_remote_sent(small, remote):
    remote.answers = [Says(json={"token": "t0psecret", "value": 7})]
    whole, part = (
        small.request("GET", remote.url, reply=mp.Reply(result=path)) for path in ("$", "$.value")
    )
    small.drain()
    assert whole.refresh().result == {"token": "t0psecret", "value": 7}
    again, fine = small.replay(whole.id), small.replay(part.id)
    small.drain()
    assert (again.refresh().state, again.error.code) == ("FAILED", "redacted")
    assert "rerun the request" in again.error.message
    assert fine.refresh().result == 7
    for job in (again, fine):
        [note] = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
        assert note["redacted"] is True


def test_a_reply_by_signal_is_replayed_too(small, remote):
    remote.answers = [Says(json={"status": "working"})]
    job = small.request("POST", remote.url, reply=RULES, poll=None)
    small.drain()
    job.signal({"status": "done", "value": 8})
    small.drain()
    again = small.replay(job.id)
    small.drain()
    assert again.refresh().result == {"status": "done", "value": 8}


def test_what_cannot_be_replayed_says_why(tmp_path, remote):
    app = mp.App(f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1", request_record="10B")

    @app.job
    def plain() -> None: ...

    remote.answers = [Says(body=b"x" * 100)]
    cut, silent = app.request("GET", remote.url), app.request("GET", remote.url, record=False)
    other, open_ = plain.submit(), app.request("GET", remote.url, start_in=3600)
    refused = app.request("GET", f"http://127.0.0.1:{remote.port}/", retries=0, redirects=0)
    app.drain()

    for job, told in ((cut, "only the beginning"), (silent, "record=False")):
        again = app.replay(job.id)
        app.drain()
        assert again.refresh().state == "FAILED"
        assert told in again.error.message
    for job, told in ((other, "only requests"), (open_, "finished")):
        with pytest.raises(mp.Invalid, match=told):
            app.replay(job.id)
    with pytest.raises(mp.NotFound):
        app.replay("nonsense")
    assert refused.refresh().state == "SUCCEEDED"
    app.close()


def test_a_request_that_heard_nothing_has_nothing_to_replay(small, remote):
    job = small.request("GET", "http://127.0.0.2/")
    small.drain()
    again = small.replay(job.id)
    small.drain()
    assert "no reply was recorded" in again.refresh().error.message


def test_a_request_whose_history_was_summed_up_says_so(small, remote):
    remote.answers = [DONE]
    job = small.request("GET", remote.url)
    small.drain()
    small.client.run(workers.advance_clock, 7200)
    keep = retention.Keep(1, 1, history=3600)
    assert small.client.run(retention.sum_up, keep, after=retention.FIRST, most=9).left == 1
    assert [entry.move for entry in job.history] == ["snapshot"]
    again = small.replay(job.id)
    small.drain()
    assert "summed up (keep_history)" in again.refresh().error.message


def command(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "milepost.cli", "replay", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_runs_it_here_and_leaves_other_work_alone(database, tmp_path, remote):
    app = mp.App(database.url, request_allow="127.0.0.1")
    remote.answers = [DONE]
    job = app.request("POST", remote.url, reply=RULES)
    app.drain()
    waiting = app.request("POST", remote.url)
    asked = len(remote.asked)

    done = command("--store", database.url, "--json", job.id, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["result"] == {"status": "done", "value": 7}
    assert told["parent"] == job.id
    assert len(remote.asked) == asked
    assert waiting.refresh().state == "QUEUED"
    app.close()


def test_the_command_finds_the_functions_of_an_app(tmp_path, remote):
    (tmp_path / "shop.py").write_text(
        "import milepost as mp\n"
        f"app = mp.App('sqlite:///{tmp_path}/shop.db', request_allow='127.0.0.1')\n"
        "@app.reply\n"
        "def price(answer):\n"
        "    raise mp.Fail('out of stock')\n"
    )
    app = mp.App(f"sqlite:///{tmp_path}/shop.db", request_allow="127.0.0.1")
    app.requests.judge(lambda answer: answer.json(), "price")
    job = app.request("GET", remote.url, reply=mp.Reply(by="price"))
    app.drain()
    app.close()

    done = command("--app", "shop.py", job.id[:13], cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "out of stock" in done.stdout + done.stderr
    assert command("--store", f"sqlite:///{tmp_path}/shop.db", "00", cwd=tmp_path).returncode == 4
