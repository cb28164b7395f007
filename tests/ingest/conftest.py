"""An app on a fresh store, and a pipeline that reads a shop."""

from collections.abc import Iterator

import pytest
from diamond_shop import OPTIONS, Shop

import milepost as mp
from milepost.observe.verify import verify
from milepost.testing.databases import Database


@pytest.fixture
def app(app: mp.App, database: Database) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn; its journal is whole afterwards."""
    yield app
    app.close()
    with database.driver() as driver:
        assert [str(problem) for problem in verify(driver).problems] == []


@pytest.fixture
def shop() -> Shop:
    return Shop(30)


@pytest.fixture
def pipeline(app, shop):
    return app.pipeline("diamonds", shop, **OPTIONS, retries=0)
