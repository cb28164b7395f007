"""Where fresh stores can be made: each database at hand."""

import os

import pytest

from tests.support.databases import Backends, backend_names, everyday_names


def address(backend: str, backends: Backends) -> str:
    if backend == "postgres-url":
        return os.environ["MILEPOST_TEST_POSTGRES_URL"]
    server = backends.fresh(backend, empty=True).server
    assert server is not None
    return server.url()


@pytest.fixture(params=everyday_names())
def place(request: pytest.FixtureRequest, backends: Backends) -> str:
    """What `fresh_store` is told: "sqlite", or the address of a server."""
    return "sqlite" if request.param == "sqlite" else address(request.param, backends)


@pytest.fixture
def server(backends: Backends) -> str:
    """One server: for tests that start a whole pytest on it."""
    return address(next(name for name in backend_names() if name != "sqlite"), backends)
