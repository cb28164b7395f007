"""An app on a fresh store, and a pipeline that reads a shop."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
import uuid_utils
from diamond_shop import OPTIONS, Shop

import milepost as mp
from milepost.observe.verify import verify
from tests.support.databases import Database


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


@pytest.fixture
def ahead(monkeypatch):
    """Make ids as a host does whose clock is ahead of the database's."""

    @contextmanager
    def shifted(*, hours):
        def new_id():
            # The upper 48 bits of such an id are the milliseconds since 1970.
            return str(UUID(int=uuid_utils.uuid7().int + (hours * 3_600_000 << 80)))

        with monkeypatch.context() as patched:
            patched.setattr("milepost.ingest.declaration.new_id", new_id)
            yield

    return shifted
