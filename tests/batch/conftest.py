"""An app on a fresh store, and the store's clock in a test's hand."""

from collections.abc import Callable, Iterator

import pytest

import milepost as mp
from milepost.store import workers
from milepost.testing.databases import Database


@pytest.fixture
def app(database: Database) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn."""
    made = mp.App(database.url)
    yield made
    made.close()


@pytest.fixture
def advance(app: mp.App) -> Callable[[float], None]:
    """Move the clock that decides."""
    return lambda seconds: app.client.run(workers.advance_clock, seconds)
