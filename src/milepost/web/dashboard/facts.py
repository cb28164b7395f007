"""Facts that many pages ask about and that change slowly: workers, errors, what lags behind.

They are read once for all viewers of a process, and kept for a few seconds.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec

from milepost.records import ErrorGroup, Worker
from milepost.store import failures, outbox, watermarks, workers
from milepost.store.driver import Steps
from milepost.store.explain import is_live
from milepost.web.call import Engine

FRESH_SECONDS = 3.0
ERRORS = 50


class Facts(msgspec.Struct, frozen=True):
    """How workers, errors, pipelines and channels stand."""

    workers: Sequence[Worker]
    errors: Sequence[ErrorGroup]
    lags: dict[str, float]
    """How many seconds each pipeline's watermark is behind."""
    undelivered: dict[str, tuple[int, float]]
    """How many messages wait in each channel, and for how many seconds the oldest."""

    @property
    def live(self) -> list[Worker]:
        """The workers that hold a lease."""
        return [worker for worker in self.workers if is_live(worker)]


def _read() -> Steps[Facts]:
    found = yield from workers.listing()
    groups = yield from failures.groups(most=ERRORS)
    lags = yield from watermarks.lags()
    waiting = yield from outbox.waiting()
    return Facts(found, groups, lags, {name: (count, age) for name, count, age in waiting})


class FactsReader:
    """Reads them when somebody asks, and no more often than every few seconds."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found: Facts | None = None
        self._until = 0.0
        self._reading = asyncio.Lock()

    async def read(self) -> Facts:
        """Give the facts, at most a few seconds old."""
        async with self._reading:
            if self._found is None or time.monotonic() > self._until:
                self._found = await self._engine.client.run_async(_read)
                self._until = time.monotonic() + FRESH_SECONDS
            return self._found
