"""NATS is a broker."""

import asyncio
from contextlib import asynccontextmanager

import nats as client
import pytest
from conformance import PATIENCE, BrokerSuite

from milepost.relay import nats
from milepost.relay.broker import Outgoing
from milepost.relay.nats import Nats
from tests.support.brokers import NatsServer


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = NatsServer(tmp_path_factory.mktemp("nats") / "jetstream")
    started.start()
    yield started
    started.stop()


class TestNats(BrokerSuite):
    drops_duplicates = True

    def make(self, url):
        return Nats(url, stream="SUITE")

    def unrouted(self, url):
        return Nats(url)

    @asynccontextmanager
    async def full(self, server, subject):
        connection = await client.connect(server.url)
        manager = connection.jetstream()
        found = await manager.stream_info("SUITE")
        limited = found.config.evolve(max_msgs=found.state.messages, discard="new")
        await manager.update_stream(limited)
        try:
            yield
        finally:
            await manager.update_stream(found.config.evolve(max_msgs=-1))
            await connection.close()


# What a stream keeps


async def in_stream(server, name):
    connection = await client.connect(server.url)
    info = await connection.jetstream().stream_info(name)
    await connection.close()
    return info


async def take(broker, subject, name, number):
    """Take so many messages, and wait until the server knows that they are taken."""
    count = 0
    while count < number:
        for delivery in await broker.receive(subject, name=name, most=8, seconds=0.5):
            await delivery.acknowledge()
            count += 1
    while (await broker.lag(subject, name=name, seconds=PATIENCE)).in_flight:
        pass


async def test_messages_leave_a_stream_that_we_made_once_every_consumer_has_them(server):
    """Acknowledged messages were kept for ever."""
    broker = Nats(server.url, stream="KEPT")
    for number in range(5):
        await broker.publish("kept.in", Outgoing(f"kept-{number}", b"{}", {}), seconds=PATIENCE)
        await broker.publish("kept.out", Outgoing(f"out-{number}", b"{}", {}), seconds=PATIENCE)
    assert await broker.receive("kept.in", name="second", most=1, seconds=0.01) is not None
    await take(broker, "kept.in", "first", 5)
    await broker.close()
    assert (await in_stream(server, "KEPT")).state.messages == 10  # the second has none of them yet
    await take(broker, "kept.in", "second", 5)
    await broker.close()
    info = await in_stream(server, "KEPT")
    assert info.state.messages == 5  # those that others are to read
    assert info.config.max_age == 7 * 86_400  # and they for a week


async def test_a_stream_that_others_made_is_left_as_it_is(server):
    connection = await client.connect(server.url)
    await connection.jetstream().add_stream(name="THEIRS", subjects=["theirs"])
    await connection.close()
    broker = Nats(server.url, stream="THEIRS")
    await broker.publish("theirs", Outgoing("theirs-1", b"{}", {}), seconds=PATIENCE)
    await take(broker, "theirs", "reader", 1)
    await broker.close()
    info = await in_stream(server, "THEIRS")
    assert (info.state.messages, info.config.max_age) == (1, 0)


async def test_a_stream_takes_the_subjects_of_all_who_begin_at_the_same_time(server):
    """The last to write wrote over the others: their inbounds received nothing, for ever."""
    brokers = [Nats(server.url, stream="BEGUN") for _ in range(2)]
    subjects = [f"begun-{number}" for number in range(6)]
    each = [(broker, subject) for broker in brokers for subject in subjects]
    await asyncio.gather(*(b.receive(s, name="n", most=1, seconds=0.01) for b, s in each))
    assert set((await in_stream(server, "BEGUN")).config.subjects) == set(subjects)
    for broker in brokers:
        await broker.close()


async def test_a_subject_that_was_written_over_is_put_back(server, monkeypatch):
    broker = Nats(server.url, stream="OVER")
    await broker.publish("over-1", Outgoing("over-1", b"{}", {}), seconds=PATIENCE)
    await broker.receive("over-2", name="n", most=1, seconds=0.01)
    connection = await client.connect(server.url)
    manager = connection.jetstream()
    stale = (await manager.stream_info("OVER")).config.evolve(subjects=["over-1"])
    await manager.update_stream(stale)
    monkeypatch.setattr(nats, "CHECK_SECONDS", 0.0)
    await broker.receive("over-2", name="n", most=1, seconds=0.01)
    assert set((await in_stream(server, "OVER")).config.subjects) == {"over-1", "over-2"}
    await connection.close()
    await broker.close()


async def test_a_stream_that_was_removed_is_made_anew_by_many_publications_too(server):
    """They said so, and did not: hints were refused until the connection was lost."""
    broker = Nats(server.url, stream="GONE")
    messages = [Outgoing(f"gone-{number}", b"{}", {}) for number in range(3)]
    assert await broker.publish_many("gone", messages, seconds=PATIENCE) == [None] * 3
    connection = await client.connect(server.url)
    await connection.jetstream().delete_stream("GONE")
    await connection.close()
    for error in await broker.publish_many("gone", messages, seconds=PATIENCE):
        assert "made anew" in str(error)
    assert await broker.publish_many("gone", messages, seconds=PATIENCE) == [None] * 3
    await broker.close()
