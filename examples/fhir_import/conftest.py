"""The example's tests run on an embedded store and on a PostgreSQL server of their own."""

from collections.abc import Iterator

import pytest

from tests.support.databases import everyday_names
from tests.support.servers import running

STORES = [name for name in everyday_names() if name != "postgres-url"]


@pytest.fixture(params=STORES, scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where fresh stores are made."""
    if request.param == "sqlite":
        yield "sqlite"
        return
    with running(request.param.removeprefix("postgres")) as server:
        yield server.url()


@pytest.fixture
def milepost_store(place: str) -> str:
    """What `pytest --milepost-store` chooses elsewhere."""
    return place
