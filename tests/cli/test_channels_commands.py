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
