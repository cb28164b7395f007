"""A browser for all tests of a process, and contexts in it that forgive nothing."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

import milepost as mp
from tests.support import evening
from tests.support.browser import CHROMIUM, FLAGS, MISSING, SCREENS, Watch
from tests.support.databases import Backends, everyday_names
from tests.support.serving import served

Open = Callable[..., Awaitable[Page]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all of them in one loop, which the browser belongs to."""
    for item in items:
        if "/browser/" in item.nodeid:
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Start Debian's chromium, once a process."""
    if not CHROMIUM.exists():
        pytest.skip(MISSING)
    async with async_playwright() as playwright:
        made = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def opened(browser: Browser) -> AsyncIterator[Open]:
    """Open pages; at the end none may have had an error, a CSP report or a foreign request."""
    contexts = []

    async def opening(
        address: str, *, screen: str = "desktop", theme: str = "light", **options: object
    ) -> Page:
        width, height = SCREENS[screen]
        context = await browser.new_context(
            base_url=address,
            viewport={"width": width, "height": height},
            color_scheme=theme,
            **options,
        )
        watch = Watch(address)
        await watch.over(context)
        contexts.append((context, watch))
        page = await context.new_page()
        page.watch = watch
        return page

    yield opening
    for context, _ in contexts:
        await context.close()
    assert [problem for _, watch in contexts for problem in watch.problems] == []


class Shop:
    """A shop whose pages are served: an app to act with, and the server's own."""

    def __init__(self, url: str) -> None:
        self.app = mp.App(url)
        evening.declare(self.app)
        self.server = mp.App(url)
        evening.declare(self.server)
        self.address = ""
        self.seen: evening.Evening | None = None


@contextmanager
def shop_on(backends: Backends, backend: str, *, filled: bool) -> Iterator[Shop]:
    """Serve a shop on a fresh store."""
    database = backends.take(backend)
    shop = Shop(database.url)
    if filled:
        shop.seen = evening.fill(shop.app)
    with served(shop.server) as shop.address:
        yield shop
    shop.server.close()
    shop.app.close()
    backends.give_back(database)


@pytest.fixture(scope="session")
def shop(backends: Backends) -> Iterator[Shop]:
    """Serve an evening that nobody changes."""
    with shop_on(backends, "sqlite", filled=True) as made:
        yield made


@pytest.fixture
def empty_shop(backends: Backends) -> Iterator[Shop]:
    """Serve a shop that has no job yet."""
    with shop_on(backends, "sqlite", filled=False) as made:
        yield made


@pytest.fixture(params=everyday_names())
def any_shop(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Shop]:
    """Serve an evening that a test may change, on each database in turn."""
    with shop_on(backends, request.param, filled=True) as made:
        yield made
