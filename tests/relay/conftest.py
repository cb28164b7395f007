"""An app on a fresh store, the store's clock in a test's hand, and a real NATS server."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nats_servers import NatsServer

import milepost as mp
from milepost.observe.verify import verify
from milepost.store import workers
from milepost.testing.databases import Database


@pytest.fixture
def app(database: Database) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn; afterwards `verify` must be clean."""
    made = mp.App(database.url)
    yield made
    made.close()
    with database.driver() as driver:
        assert [str(problem) for problem in verify(driver).problems] == []


@pytest.fixture
def advance(app: mp.App) -> Callable[[float], None]:
    """Move the clock that decides."""
    return lambda seconds: app.client.run(workers.advance_clock, seconds)


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A NATS server with JetStream, of its own."""
    server = NatsServer(tmp_path / "jetstream")
    server.start()
    yield server
    server.stop()
