"""Takes jobs from the front of the line, and knows where the line begins."""

import asyncio
from collections.abc import Iterable, Sequence

from milepost.clock import Clock
from milepost.records import Claim
from milepost.store import jobs, workers
from milepost.store.driver import AsyncDriver
from milepost.store.jobs import Line
from milepost.worker.floors import Floors


class Claimer:
    """Claims for one worker, one claim at a time."""

    def __init__(self, driver: AsyncDriver, clock: Clock, queues: Sequence[str] | None) -> None:
        """Make one for these queues, or for whichever have work."""
        self.worker_id = ""
        self.alone = asyncio.Lock()
        """Held while a claim is under way: what it took is not known before it is over."""
        self._driver = driver
        self._clock = clock
        self._queues = None if queues is None else list(queues)
        self._floors = Floors()
        self._asked = False

    def expect(self, hinted: Iterable[str]) -> None:
        """Look at these queues first: somebody said that they have work."""
        self._floors.expect(hinted)

    def rescan(self) -> None:
        """Look from the bottom of every queue the next time."""
        self._floors.rescan(self._now)

    def must_look_again(self) -> bool:
        """Ask for a look at the bottom if the last was none; False once there was one.

        A look from the floors says nothing of queues that were not met before.
        """
        if self._floors.whole or self._asked:
            return False
        self._asked = self._floors.whole_next = True
        return True

    async def claim(self, most: int, kinds: list[str]) -> list[Claim]:
        """Take up to that many jobs of these kinds."""
        self._asked = False
        claims = await self._claim(most, kinds)
        if not claims and not self._floors.whole and self._floors.rescan(self._now):
            claims = await self._claim(most, kinds)
        return claims

    async def suspect(self, kinds: list[str]) -> Line | None:
        """Find the first job in line that must be claimed alone."""
        return await self._driver.run(jobs.suspect, queues=self._queues, kinds=kinds)

    async def claim_alone(self, kinds: list[str]) -> list[Claim]:
        """Take a job whose loss would end it; the store refuses while this worker holds another."""
        found = await self.suspect(kinds)
        if found is None:
            return []
        return await self._driver.run(
            jobs.claim, worker_id=self.worker_id, line=[found], most=1, kinds=kinds, alone=True
        )

    async def _claim(self, most: int, kinds: list[str]) -> list[Claim]:
        hinted = False
        if self._queues is not None:
            self._floors.know(self._queues)
        elif self._floors.due(self._now) and not (hinted := self._floors.follow_hint()):
            self._floors.know(await self._driver.run(workers.waiting_queues))
        claims = await self._claim_in_line(most, kinds)
        if hinted and not claims:
            self._floors.know(await self._driver.run(workers.waiting_queues))
            claims = await self._claim_in_line(most, kinds)
        return claims

    async def _claim_in_line(self, most: int, kinds: list[str]) -> list[Claim]:
        began = self._now
        line = self._floors.line(began)
        if not line:
            return []
        claims = await self._driver.run(
            jobs.claim, worker_id=self.worker_id, line=line, most=most, kinds=kinds
        )
        self._floors.saw(claims, began=began, ended=self._now)
        return claims

    @property
    def _now(self) -> float:
        return self._clock.monotonic()
