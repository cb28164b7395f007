"""An app with quick timers on a fresh store, and a worker beside the test."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

import milepost as mp
from tests.support.databases import Database

QUICK = {
    "heartbeat": 0.2,
    "sweep": 0.05,
    "poll_max": 0.1,
    "recovery": 0.1,
    "error_wait": 0.1,
    "grace": 10.0,
}


@pytest.fixture
def app(database: Database) -> Iterator[mp.App]:
    """An app with quick timers on a fresh store, on each database in turn."""
    made = mp.App(database.url, **QUICK)
    yield made
    made.close()


@pytest_asyncio.fixture
async def working(app: mp.App) -> AsyncIterator[Any]:
    """Start a worker beside the test; it is drained at the end of the block."""

    @asynccontextmanager
    async def start(queues: Any = None, concurrency: int | None = None) -> AsyncIterator[Any]:
        worker = await app.worker(queues, concurrency)
        running = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            await asyncio.wait_for(running, 30)

    yield start
    await app.client.close_async()


async def until(condition: Callable[[], Any], seconds: float = 15) -> Any:
    """Wait until something holds, for a bounded time."""
    end = asyncio.get_running_loop().time() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture(name="until")
def _until() -> Any:
    return until
