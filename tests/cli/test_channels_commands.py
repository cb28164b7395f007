"""Channels at a prompt: what looks changes nothing, what acts is allowed to."""

import json

import pytest


@pytest.fixture
def ended(app):
    """A job that ended and left a final message in the channel `orders`."""
    from milepost.job import Job

    Job(app, app.registry.newest("convert")).options(channel="orders").submit("a")
    app.drain()
    return app


def test_a_channel_is_stopped_and_started_again(prompt, ended):
    [channel] = json.loads(prompt("channels", "ls", "--json").out)
    assert channel["name"] == "orders"
    stopped = prompt("channels", "stop", "orders", "--reason", "away")
    assert (stopped.code, stopped.err) == (0, "channel orders is stopped\n")
    assert prompt("channels", "start", "orders").err == "channel orders is active\n"


def test_a_message_is_acknowledged(prompt, ended):
    [message] = json.loads(prompt("channels", "messages", "orders", "--json").out)
    done = prompt("channels", "ack", "orders", message["id"])
    assert (done.code, done.err) == (0, "1 of 1 acknowledged\n")
    assert prompt("channels", "retry", "orders", "--all").code == 0


def test_a_message_that_arrived_is_delivered_once_more(prompt, ended):
    [message] = json.loads(prompt("channels", "messages", "orders", "--json").out)
    waits = prompt("channels", "redeliver", "orders", message["id"])
    assert (
        waits.err
        == "0 of 1 will be delivered once more; 1 are not in this channel, or still wait\n"
    )
    ended.channels.pull("orders", None)
    prompt("channels", "ack", "orders", message["id"])
    again = prompt("channels", "redeliver", "orders", message["id"])
    assert (again.code, again.err) == (0, "1 of 1 will be delivered once more\n")
    [waiting] = json.loads(prompt("channels", "messages", "orders", "--json").out)
    assert (waiting["id"], waiting["stands"]) == (message["id"], "waiting")
    assert prompt("channels", "redeliver", "nowhere", message["id"]).code == 4


def test_messages_are_listed_shown_and_acknowledged(prompt, ended):
    [message] = json.loads(prompt("channels", "messages", "orders", "--json").out)
    assert (message["stands"], message["kind"], message["state"]) == (
        "waiting",
        "convert",
        "SUCCEEDED",
    )
    event = json.loads(prompt("channels", "show", message["id"]).out)
    assert event["data"]["result"] == "a.pdf"
    assert message["id"] in prompt("channels", "messages", "orders", "--state", "waiting").out
    assert (
        "1 of 2 acknowledged; 1 are not"
        in prompt("channels", "ack", "orders", message["id"], "job_nothing_1").err
    )
    assert "no such message" in prompt("channels", "messages", "orders", "--state", "dead").err
    assert json.loads(prompt("channels", "show", "orders", "--json").out)["waiting"] == 0


def test_dead_messages_and_refused_ones_are_shown_and_tried_again(prompt, ended, database):
    from milepost.store import inbox

    assert "nothing is dead" in prompt("channels", "dead").err
    with database.raw() as raw:
        raw.execute(f"UPDATE outbox SET dead_at = {raw.now}, error = 'no answer'")
    ended.client.run(inbox.refuse, "new-orders", "7", error="no job", content=b'{"a": 1}')
    told = json.loads(prompt("channels", "dead", "--json").out)
    assert [message["error"] for message in told["dead"]] == ["no answer"]
    assert [message["content"] for message in told["refused"]] == ['{"a": 1}']
    assert "no answer" in prompt("channels", "dead").out
    assert prompt("channels", "retry", "orders").code == 2
    assert "1 messages of channel orders" in prompt("channels", "retry", "orders", "--all").err


def test_a_channel_that_is_not_there_is_not_found(prompt, ended):
    for command in (("show", "x"), ("stop", "x"), ("start", "x"), ("retry", "x", "--all")):
        answer = prompt("channels", *command)
        assert answer.code == 4
        assert "there are: orders" in answer.err


def test_a_secret_is_made_and_fits_a_webhook(prompt):
    from milepost.relay.webhook import key_of

    secret = prompt("channels", "secret").out.strip()
    assert len(key_of(secret)) == 32
    assert secret != prompt("channels", "secret").out.strip()
