"""Writes outcomes, many at a time, and tries again while the lease lasts (H-39)."""

import asyncio
from collections import deque
from collections.abc import Callable

from milepost.clock import Clock
from milepost.errors import Unavailable
from milepost.records import Settlement
from milepost.store import jobs, runs
from milepost.store.driver import AsyncDriver

__all__ = ["Settler"]

BATCH = 500
PAUSE = 0.05
LONGEST = 1.0


class Settler:
    """Collects outcomes and settles them in the background, one batch at a time."""

    def __init__(
        self,
        driver: AsyncDriver,
        *,
        clock: Clock,
        settled: Callable[[list[Settlement], set[str]], None],
        hopeless: Callable[[], bool],
    ) -> None:
        self._driver = driver
        self.worker_id = ""
        self._clock = clock
        self._settled = settled
        self._hopeless = hopeless
        self._waiting: deque[Settlement] = deque()
        self._wanted = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def add(self, settlement: Settlement) -> None:
        """Take an outcome."""
        self._waiting.append(settlement)
        self._quiet.clear()
        self._wanted.set()

    async def run(self) -> None:
        """Settle until cancelled."""
        while True:
            await self._wanted.wait()
            while self._waiting:
                count = min(len(self._waiting), BATCH)
                await self._settle([self._waiting.popleft() for _ in range(count)])
            self._wanted.clear()
            self._quiet.set()

    async def flush(self) -> None:
        """Wait until everything taken so far is settled, or cannot be."""
        await self._quiet.wait()

    async def _settle(self, batch: list[Settlement]) -> None:
        pause = PAUSE
        while True:
            try:
                held = await self._driver.run(jobs.settle, batch, actor=self.worker_id)
                await self._publish(batch)
            except Unavailable:
                # What had committed answers as not held when it is tried again: no harm, since
                # the fence lets nothing be written twice.
                if self._hopeless():
                    held = set()
                else:
                    await self._clock.sleep(pause)
                    pause = min(pause * 2, LONGEST)
                    continue
            self._settled(batch, held)
            return

    async def _publish(self, batch: list[Settlement]) -> None:
        """Turn the outputs of these jobs into jobs at once; maintenance would do it later."""
        producers = {s.claim.run_id for s in batch if s.outcome.staged}
        for run_id in sorted(filter(None, producers)):
            while await self._driver.run(
                runs.publish, actor=self.worker_id, most=BATCH, run_id=run_id
            ):
                pass
