"""Where fresh stores can be made: each database at hand."""

import os

import pytest

from milepost.testing.databases import Backends, backend_names


@pytest.fixture(params=backend_names())
def place(request: pytest.FixtureRequest, backends: Backends) -> str:
    """What `fresh_store` is told: "sqlite", or the address of a server."""
    if request.param == "sqlite":
        return "sqlite"
    if request.param == "postgres-url":
        return os.environ["MILEPOST_TEST_POSTGRES_URL"]
    server = backends.fresh(request.param, empty=True).server
    assert server is not None
    return server.url()
