"""The pytest plugin: an app on a fresh store for each test, and the store's clock.

Loaded by pytest wherever Milepost is installed, so it imports nothing of Milepost before a test
asks for a fixture.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from milepost.app import App
    from milepost.testing.fresh import StoreClock

ONLY = "MILEPOST_TEST_STORES"
"""See `milepost.store.allow`, which is not imported before a store is opened."""
ALLOW_HELP = "stores besides fresh ones that tests may open: addresses, with * for any part"
STORE_HELP = "where tests with milepost_app run: sqlite, or the address of a PostgreSQL server"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a user choose the stores and name the app."""
    group = parser.getgroup("milepost")
    group.addoption("--milepost-store", action="append", metavar="STORE", help=STORE_HELP)
    parser.addini("milepost_stores", STORE_HELP, type="args", default=["sqlite"])
    parser.addini("milepost_allow", ALLOW_HELP, type="args", default=[])
    parser.addini("milepost_app", "the app that milepost_app gives, such as shop:app", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Keep tests, and the programs they start, out of every store that was not made for them."""
    patterns: list[str] = list(config.getini("milepost_allow"))
    if folder := config.getoption("basetemp", None):
        patterns.append(f"sqlite:///{os.path.realpath(folder)}/*")
    outer = os.environ.get(ONLY)
    os.environ[ONLY] = "\n".join(patterns)
    config.add_cleanup(lambda: _restore(outer))


def _restore(outer: str | None) -> None:
    if outer is None:
        os.environ.pop(ONLY, None)
    else:
        os.environ[ONLY] = outer


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on every store that was chosen."""
    stores = _stores(metafunc.config)
    if "milepost_store" in metafunc.fixturenames and len(stores) > 1:
        names = [store.partition(":")[0] for store in stores]
        metafunc.parametrize("milepost_store", stores, ids=names, indirect=True)


def _stores(config: pytest.Config) -> list[str]:
    chosen: list[str] = config.getoption("--milepost-store") or config.getini("milepost_stores")
    return chosen


@pytest.fixture
def milepost_store(request: pytest.FixtureRequest) -> str:
    """Say where the test's fresh store is made: "sqlite", or the address of a PostgreSQL server."""
    chosen: str = getattr(request, "param", None) or _stores(request.config)[0]
    return chosen


@pytest.fixture
def milepost_app(request: pytest.FixtureRequest, milepost_store: str) -> "Iterator[App]":
    """Give an app on a fresh store: the one that the setting `milepost_app` names, or a new one.

    Override it in a conftest.py to use an app of your own:

        @pytest.fixture
        def milepost_app(milepost_store):
            with milepost.testing.fresh_store(app, milepost_store):
                yield app
    """
    from milepost.testing.fresh import fresh_store  # noqa: PLC0415 - not before it is asked for

    app = _named(request.config.getini("milepost_app"))
    with fresh_store(app, milepost_store):
        yield app


@pytest.fixture
def milepost_clock(milepost_app: "App") -> "StoreClock":
    """Give the clock of the app's store: `milepost_clock.advance(60)`."""
    from milepost.testing.fresh import StoreClock  # noqa: PLC0415 - not before it is asked for

    return StoreClock(milepost_app)


def _named(name: str) -> Any:
    from importlib import import_module  # noqa: PLC0415 - with what needs it

    from milepost.app import App  # noqa: PLC0415 - not before it is asked for

    if not name:
        return App("sqlite:///milepost.db")
    module, _, attribute = name.partition(":")
    app = getattr(import_module(module), attribute or "app", None)
    if not isinstance(app, App):
        raise pytest.UsageError(f"milepost_app = {name}: {attribute or 'app'} is no milepost.App")
    return app
