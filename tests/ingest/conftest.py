"""An app on a fresh store, and a pipeline that reads a shop."""

from collections.abc import Callable, Iterator

import pytest
from diamond_shop import OPTIONS, Shop

import milepost as mp
from milepost.observe.verify import verify
from milepost.store import workers
from milepost.testing.databases import Database


@pytest.fixture
def app(database: Database) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn; its journal is whole afterwards."""
    made = mp.App(database.url)
    yield made
    made.close()
    with database.driver() as driver:
        assert verify(driver).clean


@pytest.fixture
def advance(app: mp.App) -> Callable[[float], None]:
    """Move the clock that decides."""
    return lambda seconds: app.client.run(workers.advance_clock, seconds)


@pytest.fixture
def shop() -> Shop:
    return Shop(30)


@pytest.fixture
def pipeline(app, shop):
    return app.pipeline("diamonds", shop, **OPTIONS, retries=0)
