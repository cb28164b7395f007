"""The figures of the store, kept for a moment by each process that shows them.

Every worker shows them, and reading them takes as long as the store is large. So the older they
may be, the longer reading them took and the more workers there are: all of them together spend a
twentieth of one connection's time on it, until the figures are a minute old.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

from milepost.observe.metrics import StoreMetrics

LEAST_SECONDS = 0.1
MOST_SECONDS = 60.0
SHARE = 0.05
"""How much of the time workers may spend on reading figures, all together."""
STOPPED = "STOPPED"


class FreshMetrics:
    """Gives the figures of the store, and reads them again when they are too old.

    Those who ask at the same moment share one reading. One that fails is not kept: it raises.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: StoreMetrics | None = None
        self._until = 0.0
        self._reading = threading.Lock()
        self._reading_async = asyncio.Lock()

    def get(self, read: Callable[[], StoreMetrics]) -> StoreMetrics:
        """Give the figures, to a thread."""
        with self._reading:
            if (found := self._fresh) is None:
                began = self._clock()
                found = self._keep(read(), began)
        return found

    async def get_async(self, read: Callable[[], Awaitable[StoreMetrics]]) -> StoreMetrics:
        """Give the figures, in an event loop."""
        async with self._reading_async:
            if (found := self._fresh) is None:
                began = self._clock()
                found = self._keep(await read(), began)
        return found

    @property
    def _fresh(self) -> StoreMetrics | None:
        return self._found if self._clock() < self._until else None

    def _keep(self, found: StoreMetrics, began: float) -> StoreMetrics:
        now = self._clock()
        alive = sum(count for state, count in found.workers.items() if state != STOPPED)
        age = (now - began) * max(1, alive) / SHARE
        self._found, self._until = found, now + min(max(LEAST_SECONDS, age), MOST_SECONDS)
        return found
