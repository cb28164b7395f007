"""Writes outcomes, many at a time, and tries again while the lease lasts (H-39).

Only the store's own judgement of one very row (`Invalid`, `IllegalMove`) refuses an outcome. Any
other error, a lock that was held too long or a driver's mistake, says nothing of the outcome: it is
written later, and when the lease is lost before that, the lease decides.

A transaction that ends jobs of runs goes on to hold the runs and to create other jobs. Meanwhile a
second one ends the next jobs, where the store lets two write; it waits for the runs as any other
worker's would.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from milepost import outcome
from milepost.clock import Clock
from milepost.errors import IllegalMove, Invalid, Unavailable
from milepost.outcome import Problem
from milepost.policy import storable
from milepost.records import Settlement
from milepost.store import jobs
from milepost.store.driver import AsyncDriver, is_away
from milepost.telemetry import Log

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
        lease_lost: Callable[[], bool],
        unfinished_runs: Callable[[set[str]], None],
    ) -> None:
        """Make a settler; `unfinished_runs` hears of runs for which more is to be done."""
        self._driver = driver
        self.worker_id = ""
        self._clock = clock
        self._settled = settled
        self._lease_lost = lease_lost
        self._unfinished_runs = unfinished_runs
        self._waiting: deque[Settlement] = deque()
        self._postponed: deque[Settlement] = deque()
        self._told: set[str] = set()
        self._writing = 0
        self._wanted = asyncio.Event()
        self._wanted_beside = asyncio.Event()
        self._wanted_again = asyncio.Event()
        self._may_overlap = driver.can.many_writers
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
            tasks.create_task(self._settle_again())
            while True:
                await self._wanted.wait()
                while self._waiting:
                    await self._settle_some(self._batch())
                self._wanted.clear()

    async def _settle_beside(self) -> None:
        """Settle what has gathered while a batch is under way."""
        while True:
            await self._wanted_beside.wait()
            self._wanted_beside.clear()
            if len(self._waiting) >= MANY and self._waiting[0].claim.run_id is not None:
                await self._settle_some(self._batch())

    async def _settle_again(self) -> None:
        """Settle, one by one, what could not be written the last time; the others do not wait."""
        pause = PAUSE
        while True:
            await self._wanted_again.wait()
            self._wanted_again.clear()
            await self._clock.sleep(pause)
            for _ in range(len(self._postponed)):
                await self._settle_some([self._postponed.popleft()])
            self._told &= {settlement.claim.id for settlement in self._postponed}
            pause = min(pause * 2, LONGEST) if self._postponed else PAUSE

    async def _settle_some(self, batch: list[Settlement]) -> None:
        self._writing += 1
        try:
            await self._settle(batch)
        finally:
            self._writing -= 1
        if not (self._waiting or self._writing or self._postponed):
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

    @property
    def writing(self) -> bool:
        """Whether something is being settled now, and not put off to a later time."""
        return bool(self._waiting or self._writing)

    async def flush(self) -> None:
        """Wait until everything taken so far is settled, or cannot be."""
        await self._quiet.wait()

    async def _settle(self, batch: list[Settlement]) -> None:
        """Write outcomes; of a batch that cannot be written, each half for itself."""
        try:
            held = await self._written(batch)
        except Exception as error:  # noqa: BLE001 - one bad outcome must not end the worker
            if len(batch) > 1:
                half = len(batch) // 2
                await self._settle(batch[:half])
                await self._settle(batch[half:])
            elif isinstance(error, Invalid | IllegalMove):
                await self._refuse(batch[0], error)
            else:
                self._postpone(batch[0], error)
        else:
            self._settled(batch, held)

    async def _written(self, batch: list[Settlement]) -> set[str]:
        """Write outcomes; answer with the ids that were held. A store that is away is awaited."""
        pause = PAUSE
        while True:
            try:
                settled = await self._driver.run(jobs.settle_some, batch, actor=self.worker_id)
                break
            except Unavailable as error:
                if not is_away(error):
                    raise  # one of them may wait for a lock; the others need not
                # What had committed answers as not held when it is tried again: no harm, since
                # the fence lets nothing be written twice.
                if self._lease_lost():
                    return set()
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST)
        if settled.left:
            self._unfinished_runs(settled.left)
        return settled.held

    async def _refuse(self, settlement: Settlement, error: Exception) -> None:
        """End a job whose outcome the store refuses: no attempt would change that."""
        claim = settlement.claim
        log.warning("outcome refused by the store", job_id=claim.id, error=repr(error))
        problem = Problem(
            type="Unstorable",
            message=f"its outcome could not be stored: {storable(str(error))[:1000]}",
            kind="permanent",
            code="validation",
            attempt=claim.attempt,
        )
        try:
            held = await self._written([Settlement(claim, outcome.failed(problem))])
        except (Invalid, IllegalMove) as again:
            # Given back by the next reconciliation.
            log.warning("job could not be ended", job_id=claim.id, error=repr(again))
            held = set()
        except Exception as again:  # noqa: BLE001 - says nothing of the outcome
            self._postpone(settlement, again)
            return
        self._settled([settlement], held)

    def _postpone(self, settlement: Settlement, error: Exception) -> None:
        """Try again later, as long as the lease lasts."""
        if self._lease_lost():
            self._settled([settlement], set())
            return
        if settlement.claim.id not in self._told:
            self._told.add(settlement.claim.id)
            log.warning("outcome written later", job_id=settlement.claim.id, error=repr(error))
        self._postponed.append(settlement)
        self._wanted_again.set()
