"""An app on a fresh store, the store's clock in a test's hand, and real brokers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost as mp
from milepost.observe.verify import verify
from tests.support.brokers import BrokerServer, NatsServer, RedisServer, ValkeyServer
from tests.support.databases import Database


@pytest.fixture
def app(app: mp.App, database: Database) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn; its journal is whole afterwards."""
    yield app
    app.close()
    with database.driver() as driver:
        assert [str(problem) for problem in verify(driver).problems] == []


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server with JetStream, of its own."""
    server = NatsServer(tmp_path / "jetstream")
    server.start()
    yield server
    server.stop()


SERVERS: dict[str, type[BrokerServer]] = {
    "nats": NatsServer,
    "redis": RedisServer,
    "valkey": ValkeyServer,
}


@pytest.fixture(scope="session")
def broker_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerServer]]:
    """The servers that tests of this runner have started, by their names."""
    started: dict[str, BrokerServer] = {}
    yield started
    for server in started.values():
        server.kill()


@pytest.fixture(params=[*SERVERS, "rabbitmq"])
def broker_server(
    request: pytest.FixtureRequest,
    broker_servers: dict[str, BrokerServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BrokerServer]:
    """A server of each broker in turn, which tests of one runner share: nobody kills it."""
    name = request.param
    if name == "rabbitmq":
        with request.getfixturevalue("rabbitmq_servers").lent(alone=False) as server:
            yield server
        return
    if missing := SERVERS[name].missing():
        pytest.skip(missing)
    if name not in broker_servers:
        broker_servers[name] = SERVERS[name](tmp_path_factory.mktemp(name) / "data")
        broker_servers[name].start()
    yield broker_servers[name]
