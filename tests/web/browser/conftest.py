"""A browser for all tests of a process, and contexts in it that forgive nothing."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import iscoroutinefunction

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

import milepost as mp
from tests.support import evening
from tests.support.browser import CHROMIUM, FLAGS, MISSING, SCREENS, Watch
from tests.support.databases import Backends, everyday_names
from tests.support.prove import PROVING
from tests.support.serving import served

Open = Callable[..., Awaitable[Page]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all of them in one loop, which the browser belongs to."""
    for item in items:
        if "/browser/" in item.nodeid and iscoroutinefunction(getattr(item, "obj", None)):
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
        self.url = url
        self.app = mp.App(url)
        evening.declare(self.app)
        self.server = mp.App(url)
        evening.declare(self.server)
        self.address = ""
        self.seen: evening.Evening | None = None
        self.asked: list[str] = []
        self._count_queries()

    def _count_queries(self) -> None:
        """Name each query that the server asks of the store, in order."""
        run = self.server.client.run_async

        async def counted(operation, *args, **kwargs):
            def steps():
                going, answer = operation(*args, **kwargs), None
                while True:
                    try:
                        step = going.send(answer)
                    except StopIteration as stop:
                        return stop.value
                    self.asked.append(str(step.name))
                    answer = yield step

            return await run(steps)

        self.server.client.run_async = counted

    def submit(self, kind: str, *args: object, **options: object) -> str:
        """Submit a job, as another program does."""
        [job_id] = self.app.client.create([self.app.new_job(kind, args, {}, options)])
        return job_id

    def counts(self) -> dict[str, int]:
        """Count the store's jobs by state."""
        added: Counter[str] = Counter()
        for states in self.app.counts().values():
            added.update(states)
        return dict(added)


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
def evenings(backends: Backends) -> Iterator[Callable[[str], Shop]]:
    """Serve the same evening on a database, to all tests that change little of it."""
    made: dict[str, Shop] = {}
    with ExitStack() as stack:

        def served_on(backend: str) -> Shop:
            if backend not in made:
                made[backend] = stack.enter_context(shop_on(backends, backend, filled=True))
            return made[backend]

        yield served_on


@pytest.fixture
def shop(evenings: Callable[[str], Shop]) -> Shop:
    """Serve an evening."""
    return evenings("sqlite")


OTHERS = [pytest.param(n, marks=pytest.mark.prove) for n in everyday_names() if n != "sqlite"]


@pytest.fixture(params=["sqlite", *(OTHERS if PROVING else [])])
def each_shop(request: pytest.FixtureRequest, evenings: Callable[[str], Shop]) -> Shop:
    """Serve an evening, on each database when proving: every process makes its own evenings."""
    return evenings(request.param)


@pytest.fixture(params=everyday_names())
def new_shop(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Shop]:
    """Serve a shop that has no job yet, on each database in turn."""
    with shop_on(backends, request.param, filled=False) as made:
        yield made


@pytest.fixture
def empty_shop(backends: Backends) -> Iterator[Shop]:
    """Serve a shop that has no job yet."""
    with shop_on(backends, "sqlite", filled=False) as made:
        yield made
