"""What a final message says, and how large it may be."""

import base64
import json
from datetime import datetime

import pytest

import milepost as mp
from milepost import outcome
from milepost.client import new_id
from milepost.outcome import Problem
from milepost.records import NewJob, NewRun, NewStep, Settlement, Template
from milepost.relay.message import TEXT_MOST, compose
from milepost.store import chains, creation, jobs, outbox, workers


def claims(app, count):
    app.client.run(workers.register, workers.NewWorker(id="w", lease_us=30_000_000))
    line = jobs.lines(["default"])
    return app.client.run(jobs.claim, worker_id="w", line=line, most=count)


def ended_run(app, ends):
    """Make a run whose children end so, in their order."""
    run = NewRun(id=new_id(), kind="partners", channel="orders")
    template = Template(kind="ask", run_id=run.id, step=0, retries=0)
    made = [NewJob(new_id(), b"{}", template, ordinal=place) for place in range(len(ends))]
    step = NewStep(number=0, name="ask", kind="ask", fail_fast=False, tolerance=1.0)
    app.client.run(chains.start, run, [step], made, hold=False)
    while found := claims(app, 100):
        done = [Settlement(claim, ends[claim.ordinal]) for claim in found]
        app.client.run(jobs.settle, done, actor="w")
    [message] = app.channels.messages("orders")
    return message


def composed(app, message, **limits):
    event = app.client.run(compose, message, **limits)
    return json.loads(event.body), len(event.body)


def test_the_message_of_a_run_holds_every_childs_response(app):
    """C's send_final_message for a batch; H-59: children that failed are told as well."""
    ends = [
        outcome.succeeded(b'{"order": 1}'),
        outcome.failed(Problem("HTTPError", "503")),
        outcome.succeeded(b'{"order": 3}'),
    ]
    event, _ = composed(app, ended_run(app, ends))
    assert event["type"] == "milepost.run.succeeded"
    data = event["data"]
    assert (data["state"], data["run_state"], data["jobs_left_out"]) == ("COMPLETE", "SUCCEEDED", 0)
    assert [child["state"] for child in data["jobs"]] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert [child.get("result") for child in data["jobs"]] == [{"order": 1}, None, {"order": 3}]
    assert data["jobs"][1]["error"]["message"] == "503"
    assert data["steps"] == [{"name": "ask", "succeeded": 2, "failed": 1, "cancelled": 0}]


def test_a_message_keeps_its_size_and_says_what_it_left_out(app):
    """H-105: bounded, however large the batch is; GET has the rest."""
    letter = b'"' + b"x" * 5_000 + b'"'
    message = ended_run(app, [outcome.succeeded(letter)] * 50)
    event, length = composed(app, message, most=100_000)
    assert length <= 100_000
    kept, left = len(event["data"]["jobs"]), event["data"]["jobs_left_out"]
    assert kept + left == 50
    assert kept >= 15
    assert [child["ordinal"] for child in event["data"]["jobs"]] == list(range(kept))


def ended_job(app, result, codec="json"):
    template = Template(kind="k", channel="orders", codec=codec, retries=0)
    app.client.run(creation.create, [NewJob(new_id(), b"{}", template)])
    [claim] = claims(app, 1)
    app.client.run(jobs.settle, [Settlement(claim, result)], actor="w")
    return app.channels.messages("orders")[0]


def test_a_result_that_does_not_fit_is_named_and_left_out(app):
    message = ended_job(app, outcome.succeeded(b'"' + b"x" * 200_000 + b'"'))
    event, length = composed(app, message, most=100_000)
    assert length < 2_000
    assert event["data"]["left_out"] == ["result"]
    assert "result" not in event["data"]
    assert event["data"]["state"] == "COMPLETE"


def test_the_text_of_an_error_is_cut(app):
    message = ended_job(app, outcome.failed(Problem("Boom", "ä" * 200_000)))
    event, _ = composed(app, message)
    assert len(event["data"]["error"]["message"]) == TEXT_MOST


def test_what_the_engine_cannot_read_is_passed_on_sealed(app):
    """An encrypting codec makes the engine blind; who has the key can still read it."""
    message = ended_job(app, outcome.succeeded(b"\x00sealed"), codec="aes")
    event, _ = composed(app, message)
    told = event["data"]["result"]
    assert told["codec"] == "aes"
    assert base64.b64decode(told["base64"]) == b"\x00sealed"


def test_an_event_has_what_cloud_events_asks_for(app):
    event, _ = composed(app, ended_job(app, outcome.succeeded(b"1")))
    assert event["specversion"] == "1.0"
    for name in ("id", "source", "type", "subject", "datacontenttype"):
        assert isinstance(event[name], str)
        assert event[name]
    assert datetime.fromisoformat(event["time"]).tzinfo is not None
    assert "traceparent" not in event
    names = set(event) - {"specversion", "data"}
    assert all(name.isalnum() and name.islower() for name in names)


def test_it_says_the_same_whenever_it_is_told(app, advance):
    message = ended_job(app, outcome.succeeded(b"1"))
    first = app.client.run(compose, message).body
    advance(100)
    again = app.client.run(outbox.get, message.id)
    assert app.client.run(compose, again).body == first


def test_a_trace_that_nobody_could_read_is_not_passed_on(app, raw):
    app.client.run(
        creation.create,
        [NewJob(new_id(), b"{}", Template(kind="k", channel="orders", trace="x\r\nEvil: 1"))],
    )
    raw.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
    event, _ = composed(app, app.channels.messages("orders")[0])
    assert "traceparent" not in event
    assert event["data"]["error"]["type"] == "Cancelled"
    assert (event["data"]["state"], event["data"]["job_state"]) == ("FAIL", "CANCELLED")


def test_a_run_of_a_batch_is_told_on_its_channel(app):
    batch = app.batch("numbers")

    @batch.step
    def count() -> list[int]:
        yield from (1, 2, 3)

    @batch.step
    def double(number: int) -> int:
        return number * 2

    @batch.reduce
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    run = batch.start(channel="orders")
    app.drain()
    [event] = app.channels.pull("orders").messages
    assert (event["subject"], event["data"]["result"]) == (run.id, 12)
    assert [step["name"] for step in event["data"]["steps"]][:2] == ["count", "double"]


def test_an_empty_channel_name_is_refused(app):
    batch = app.batch("numbers")

    @batch.step
    def count() -> int:
        return 1

    with pytest.raises(mp.Invalid, match="channel=''"):
        batch.start(channel="")
