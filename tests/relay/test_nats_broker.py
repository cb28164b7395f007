"""NATS is a broker."""

from contextlib import asynccontextmanager

import nats as client
import pytest
from conformance import BrokerSuite

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
