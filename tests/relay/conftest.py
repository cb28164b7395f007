"""An app on a fresh store, the store's clock in a test's hand, and a real NATS server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost as mp
from milepost.observe.verify import verify
from tests.support.brokers import NatsServer
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
