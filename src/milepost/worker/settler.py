"""Writes outcomes, many at a time, and tries again while the lease lasts (H-39).

A transaction that ends jobs of runs goes on to hold the runs and to create other jobs. Meanwhile a
second one ends the next jobs, where the store lets two write; it waits for the runs as any other
worker's would.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from milepost import outcome
from milepost.clock import Clock
from milepost.errors import Unavailable
from milepost.outcome import Problem
from milepost.policy import storable
from milepost.records import Settlement
from milepost.store import jobs
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log

__all__ = ["Settler"]

log = Log("milepost.worker")

BATCH = 1_000
"""How many outcomes one transaction takes, and how many jobs they may bring along."""
PAUSE = 0.05
LONGEST = 1.0
MANY = 64
"""So many outcomes of runs' jobs are worth a transaction beside the one under way."""


class Settler:
    """Collects outcomes and settles them in the background, a batch or two at a time."""

    def __init__(
        self,
        driver: AsyncDriver,
        *,
        clock: Clock,
        settled: Callable[[list[Settlement], set[str]], None],
        hopeless: Callable[[], bool],
        left: Callable[[set[str]], None],
    ) -> None:
        """Make a settler; `left` hears of runs for which more is to be done."""
        self._driver = driver
        self.worker_id = ""
        self._clock = clock
        self._settled = settled
        self._hopeless = hopeless
        self._left = left
        self._waiting: deque[Settlement] = deque()
        self._writing = 0
        self._wanted = asyncio.Event()
        self._wanted_beside = asyncio.Event()
        self._may_overlap = driver.dialect != "sqlite"  # which has one writer
        self._quiet = asyncio.Event()
        self._quiet.set()

    def add(self, settlement: Settlement) -> None:
        """Take an outcome."""
        if not self._waiting:
            self._quiet.clear()
            self._wanted.set()
        self._waiting.append(settlement)
        if self._writing and len(self._waiting) == MANY and self._may_overlap:
            self._wanted_beside.set()

    async def run(self) -> None:
        """Settle until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._settle_beside())
            while True:
                await self._wanted.wait()
                while self._waiting:
                    await self._settle_some()
                self._wanted.clear()

    async def _settle_beside(self) -> None:
        """Settle what has gathered while a batch is under way."""
        while True:
            await self._wanted_beside.wait()
            self._wanted_beside.clear()
            if len(self._waiting) >= MANY and self._waiting[0].claim.run_id is not None:
                await self._settle_some()

    async def _settle_some(self) -> None:
        self._writing += 1
        try:
            await self._settle(self._batch())
        finally:
            self._writing -= 1
        if not (self._waiting or self._writing):
            self._quiet.set()

    def _batch(self) -> list[Settlement]:
        """Take what one transaction should write."""
        batch: list[Settlement] = []
        room = BATCH
        while self._waiting and len(batch) < BATCH:
            room -= len(self._waiting[0].outcome.outputs)
            if room < 0 and batch:
                break
            batch.append(self._waiting.popleft())
        return batch

    @property
    def busy(self) -> bool:
        """Whether something is not settled yet."""
        return not self._quiet.is_set()

    async def flush(self) -> None:
        """Wait until everything taken so far is settled, or cannot be."""
        await self._quiet.wait()

    async def _settle(self, batch: list[Settlement]) -> None:
        try:
            held = await self._written(batch)
        except Exception as error:  # noqa: BLE001 - one bad outcome must not end the worker
            if len(batch) > 1:
                for settlement in batch:
                    await self._settle([settlement])
                return
            held = await self._failed(batch[0], error)
        self._settled(batch, held)

    async def _written(self, batch: list[Settlement]) -> set[str]:
        """Write outcomes; answer with the ids that were held. A store that is away is awaited."""
        pause = PAUSE
        while True:
            try:
                settled = await self._driver.run(jobs.settle_some, batch, actor=self.worker_id)
                break
            except Unavailable:
                # What had committed answers as not held when it is tried again: no harm, since
                # the fence lets nothing be written twice.
                if self._hopeless():
                    return set()
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST)
        if settled.left:
            self._left(settled.left)
        return settled.held

    async def _failed(self, settlement: Settlement, error: Exception) -> set[str]:
        """End a job whose outcome the store refuses: no attempt would change that."""
        claim = settlement.claim
        log.warning("an outcome was refused", job_id=claim.id, error=repr(error))
        problem = Problem(
            type="Unstorable",
            message=f"its outcome could not be stored: {storable(str(error))[:1000]}",
            kind="permanent",
            code="validation",
            attempt=claim.attempt,
        )
        try:
            return await self._written([Settlement(claim, outcome.failed(problem))])
        except Exception as again:  # noqa: BLE001 - given back by the next reconciliation
            log.warning("a job could not be ended", job_id=claim.id, error=repr(again))
            return set()
