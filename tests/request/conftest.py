"""A real HTTP server on this machine, and an app that may reach it."""

from collections.abc import Iterator

import pytest
from remote import Remote

import milepost as mp
from tests.support.databases import Database


@pytest.fixture
def remote() -> Iterator[Remote]:
    """A server that answers as a test says."""
    with Remote() as made:
        yield made


@pytest.fixture
def app(database: Database, remote: Remote) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn."""
    made = mp.App(database.url, request_allow=f"127.0.0.1:{remote.port}")
    yield made
    made.close()


@pytest.fixture
def small(tmp_path, remote: Remote) -> Iterator[mp.App]:
    """An app on SQLite, where the store is not what is tested."""
    made = mp.App(f"sqlite:///{tmp_path}/small.db", request_allow=f"127.0.0.1:{remote.port}")
    yield made
    made.close()
