"""Redis and Valkey are brokers: streams, groups, and what each server's settings mean."""

import json
import re
from contextlib import asynccontextmanager, contextmanager
from time import monotonic

import pytest
from conformance import LATE, BrokerSuite, received, sent
from redis import Redis as Owner
from redis.asyncio import Redis as Client

from milepost.relay import redis as adapter
from milepost.relay.broker import Outgoing, Undelivered
from milepost.relay.redis import Redis
from tests.support.brokers import PASSWORD, USER, RedisServer, ValkeyServer

SERVERS = {"redis": RedisServer, "valkey": ValkeyServer}


@pytest.fixture(scope="module", params=SERVERS)
def server(tmp_path_factory, request):
    kind = SERVERS[request.param]
    if missing := kind.missing():
        pytest.skip(missing)
    started = kind(tmp_path_factory.mktemp(request.param) / "data")
    started.start()
    yield started
    started.kill()


@asynccontextmanager
async def asked(server):
    """A client of Redis's own."""
    client = Client.from_url(server.url.replace("valkey", "redis", 1), protocol=2)
    try:
        yield client
    finally:
        await client.aclose()


class TestRedis(BrokerSuite):
    def make(self, url):
        return Redis(url)

    def unrouted(self, url):
        return Redis(url, create=False)

    @asynccontextmanager
    async def full(self, server, subject):
        async with asked(server) as client:
            await client.config_set("maxmemory", "1")
            try:
                yield
            finally:
                await client.config_set("maxmemory", "0")

    async def test_a_message_that_a_dead_consumer_held_comes_to_another(self, server, subject):
        dead, other = Redis(server.url, idle_seconds=0.2), Redis(server.url, idle_seconds=0.2)
        await sent(dead, subject, 3)
        [held, *_] = await received(dead, subject, 3)
        came = await received(other, subject, 3)
        assert {delivery.message.deliveries for delivery in came} == {2}
        for delivery in came:
            await delivery.acknowledge()
        await held.acknowledge()  # too late, and harmless
        await dead.close()
        await other.close()

    async def test_acknowledged_messages_leave_the_stream_once_every_group_has_them(
        self, server, broker, subject
    ):
        await sent(broker, subject, 4)
        async with asked(server) as client:
            await client.xgroup_create(subject, "second", id="0")
            for delivery in await received(broker, subject, 4):
                await delivery.acknowledge()
            assert await client.xlen(subject) == 4
            for delivery in await broker.receive(subject, name="second", most=8, seconds=5):
                await delivery.acknowledge()
            assert await client.xlen(subject) == 0

    async def test_a_consumer_that_leaves_is_forgotten(self, server, broker, subject):
        await sent(broker, subject, 2)
        await received(broker, subject, 2)
        await broker.close()
        async with asked(server) as client:
            left = await client.xinfo_consumers(subject, "name")
        assert [(c["name"], c["pending"]) for c in left] == [(b"returned", 2)]

    async def test_what_was_given_back_waits_and_is_not_in_flight(self, broker, subject):
        await sent(broker, subject, 3)
        [first, second] = await received(broker, subject, 2, most=2)
        await first.again(0)
        await second.again(60)
        lag = await broker.lag(subject, name="name", seconds=5)
        assert (lag.waiting, lag.in_flight) == (2, 1)

    async def test_messages_of_other_programs_need_no_id_and_no_headers(
        self, server, broker, subject
    ):
        async with asked(server) as client:
            for _ in range(2):
                await client.xadd(subject, {"data": "{}", "Content-Type": "application/json"})
        came = await received(broker, subject, 2)
        assert len({delivery.message.id for delivery in came}) == 2
        for delivery in came:
            assert delivery.message.headers == {"content-type": "application/json"}
            await delivery.acknowledge()

    async def test_a_key_that_is_no_stream_is_refused(self, server, broker, subject):
        async with asked(server) as client:
            await client.set(subject, "text")
        with pytest.raises(Undelivered, match="is no stream: another program uses that key"):
            await broker.publish(subject, Outgoing("1", b"{}", {}), seconds=5)

    async def test_a_server_that_keeps_messages_in_memory_is_named(
        self, server, subject, monkeypatch
    ):
        told = []
        monkeypatch.setattr(adapter.log, "warning", lambda event, **more: told.append(more))
        quiet = Redis(server.url)
        await quiet.lag(subject, name="name", seconds=5)
        await quiet.close()
        assert told == []
        async with asked(server) as client:
            await client.config_set("appendonly", "no")
            await client.config_set("maxmemory-policy", "allkeys-lru")
            broker = Redis(server.url)
            await broker.lag(subject, name="name", seconds=5)
            await broker.close()
            await client.config_set("maxmemory-policy", "noeviction")
            await client.config_set("appendonly", "yes")
        assert len(told) == 2
        assert "set appendonly yes and appendfsync always" in told[0]["reason"]
        assert "noeviction" in told[1]["reason"]


# A channel on a server that refuses


@contextmanager
def full(server):
    config(server, "maxmemory", "1")
    yield
    config(server, "maxmemory", "0")


@contextmanager
def hanging(server):
    with server.hanging():
        yield


@contextmanager
def locked(server):
    """Another password than the program's."""
    command(server, "ACL", "SETUSER", USER, "resetpass", ">another-one")
    command(server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield
    command(server, "ACL", "SETUSER", USER, "resetpass", f">{PASSWORD}")


@contextmanager
def taken(server):
    """Another program uses the stream's name."""
    command(server, "SET", "orders", "text")
    yield
    command(server, "DEL", "orders")


def command(server, *words):
    """Say something to the server as its owner, whom it asks for no password."""
    with Owner(port=server.port) as owner:
        owner.execute_command(*words)


def config(server, name, value):
    command(server, "CONFIG", "SET", name, value)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (full, "used its maxmemory"),
        (hanging, "did not answer|does not answer"),
        (locked, "refused the user or the password"),
        (taken, "is no stream: another program uses that key"),
    ],
)
def test_a_channel_says_in_time_what_is_wrong_and_loses_nothing(
    app, server, advance, trouble, told
):
    app.channel("orders", broker=Redis(server.url), timeout=2)

    @app.job
    def convert(document: str) -> str:
        return document

    job = convert.options(channel="orders").submit("report")
    command(server, "DEL", "orders")
    with trouble(server):
        began = monotonic()
        app.drain()
        assert monotonic() - began < 2 + LATE
        [message] = app.channels.messages("orders")
        assert message.stands == "waiting"
        assert re.search(told, message.error)
        assert PASSWORD not in message.error
    advance(60)
    assert app.relay_once() == 1
    with Owner(port=server.port) as owner:
        [(_, fields)] = owner.xrange("orders")
    assert fields[b"id"].decode() == message.id
    assert json.loads(fields[b"data"])["subject"] == job.id
