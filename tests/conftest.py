"""Fixtures: a fresh store on every database at hand."""

from collections.abc import Iterator

import pytest

# Before anything imports it: a failing assertion of the suite then shows its values.
pytest.register_assert_rewrite("milepost.testing.suite")

from milepost.testing.databases import Backends, Database, Raw, everyday_names  # noqa: E402


@pytest.fixture(scope="session")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backends]:
    """Every database at hand; servers start when first asked for."""
    made = Backends(tmp_path_factory.mktemp("stores"))
    yield made
    made.close()


@pytest.fixture(params=everyday_names())
def database(request: pytest.FixtureRequest, backends: Backends) -> Database:
    """A fresh, migrated store, on each database in turn."""
    return backends.fresh(request.param)


@pytest.fixture
def raw(database: Database) -> Iterator[Raw]:
    """A raw connection to that store: what a person at a SQL prompt has."""
    with database.raw() as connection:
        yield connection
