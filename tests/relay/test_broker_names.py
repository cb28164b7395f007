"""Brokers by their names: MILEPOST_BROKER_URL serves the one of its scheme."""

import asyncio
import traceback
from contextlib import suppress

import pytest
import redis.asyncio

import milepost as mp
from milepost.relay.adapter import DeliveryCounter
from milepost.relay.broker import BROKERS, SCHEMES, Incoming, broker_at, broker_named, kind_at
from milepost.relay.nats import Nats


def test_an_address_says_which_broker_it_is_of():
    assert isinstance(broker_at("nats://user:secret@host:4222"), Nats)
    assert {scheme: kind.name for scheme, kind in SCHEMES.items()} == {
        "nats": "nats",
        "tls": "nats",
        "amqp": "rabbitmq",
        "amqps": "rabbitmq",
        "redis": "redis",
        "rediss": "redis",
        "valkey": "redis",
        "valkeys": "redis",
        "kafka": "kafka",
        "sb": "servicebus",
        "sqs": "sqs",
    }


@pytest.mark.parametrize("url", ["", "host:4222", "http://user:secret@host", "secret"])
def test_another_address_is_refused_and_not_repeated(url):
    with pytest.raises(mp.Invalid, match="amqp://") as caught:
        kind_at(url)
    assert "secret" not in str(caught.value)


def test_a_name_is_served_by_the_address_of_its_scheme():
    with pytest.raises(mp.Invalid, match=r"set MILEPOST_BROKER_URL to its address, amqp://"):
        broker_named("rabbitmq", "")
    with pytest.raises(mp.Invalid, match="is the address of nats, not one that begins with amqp"):
        broker_named("rabbitmq", "nats://user:secret@host")
    with pytest.raises(mp.Invalid, match=f"there are {', '.join(BROKERS)}"):
        broker_named("rabbit", "amqp://host")


def test_channels_and_inbounds_share_the_broker_of_a_name(tmp_path, monkeypatch):
    monkeypatch.setenv("MILEPOST_BROKER_URL", "nats://user:secret@127.0.0.1:1")
    app = mp.App(f"sqlite:///{tmp_path}/a.db")
    app.channel("orders", broker="nats")
    app.inbound("new-orders", "nats")
    assert app._channels["orders"].courier.target == "nats://127.0.0.1:1 orders"
    assert app._channels["orders"].courier._broker is app._inbound["new-orders"].broker
    with pytest.raises(mp.Invalid, match="MILEPOST_BROKER_URL is the address of nats"):
        app.channel("others", broker="redis")


def test_deliveries_are_counted_where_the_broker_does_not_within_a_bound():
    counter = DeliveryCounter(most=2)
    come = [counter.count(Incoming(name, b"", {})) for name in "aabacba"]
    assert come == [1, 2, 1, 3, 1, 1, 1]  # b was forgotten for c, and a for b
    assert counter.count(Incoming("a", b"", {}, 7)) == 7
    counter.forget(Incoming("a", b"", {}))
    assert counter.count(Incoming("a", b"", {})) == 1


def test_without_its_extra_a_broker_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "nats.aio.client", None)
    with pytest.raises(mp.Unavailable, match=r"pip install 'milepost\[nats\]'"):
        asyncio.run(Nats("nats://127.0.0.1:1").receive("a", name="a", most=1, seconds=0.1))


@pytest.mark.parametrize("scheme", ["nats", "amqp", "redis", "kafka", "sb"])
@pytest.mark.parametrize("mark", "/#?")
def test_a_password_that_is_not_quoted_is_refused_in_words_and_not_repeated(scheme, mark):
    with pytest.raises(mp.Invalid, match="percent") as caught:
        broker_at(f"{scheme}://user:se{mark}cret@host:1")
    told = "".join(traceback.format_exception(caught.value))
    assert "'se'" not in told
    assert "'cret" not in told


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_only_the_scheme_of_an_address_is_read_as_redis(scheme, monkeypatch):
    asked = []
    monkeypatch.setattr(redis.asyncio.Redis, "from_url", lambda url, **_: asked.append(url))
    with suppress(Exception):
        asyncio.run(
            broker_at(f"{scheme}://valkey:valkey@valkey:6379").lag("a", name="a", seconds=1)
        )
    assert asked == ["redis://valkey:valkey@valkey:6379"]


@pytest.mark.parametrize("kind", BROKERS)
@pytest.mark.parametrize("address", ["", "host:1", "ftp://user:secret@host", 5, None])
def test_an_address_of_another_kind_is_refused_where_the_broker_is_made(kind, address):
    with pytest.raises(mp.Invalid, match="address") as caught:
        BROKERS[kind].at(address)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("declare", ["queue", "channel", "inbound"])
def test_a_class_is_no_broker(tmp_path, declare):
    app = mp.App(f"sqlite:///{tmp_path / 'a.db'}")
    given = {"queue": {"transport": Nats}, "channel": {"broker": Nats}, "inbound": {"broker": Nats}}
    with pytest.raises(mp.Invalid, match="is no broker: name one, such as 'nats', or make it"):
        getattr(app, declare)("orders", **given[declare])
