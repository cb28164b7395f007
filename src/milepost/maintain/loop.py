"""Who does maintenance, and when: elected for economy, on the store's clock."""

from milepost.clock import Clock, SystemClock
from milepost.maintain.chores import Passed, maintain, wake
from milepost.store import jobs, workers
from milepost.store.driver import AsyncDriver

__all__ = ["Maintainer"]

ELECTION = "maintenance"


class Maintainer:
    """Does a whole pass every sweep where it is elected, and wakes what is due when it is due."""

    def __init__(
        self,
        driver: AsyncDriver,
        *,
        sweep: float,
        elected: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Take part in the election, or do the work unasked: it is safe, only not cheap."""
        self._driver = driver
        self._unasked = elected
        self._sweep = sweep
        self._clock = clock or SystemClock()
        self._next_pass = 0.0
        self.passed = Passed()

    async def __call__(self, holder: str) -> tuple[int, float]:
        """Do what is due; answer with how much there was, and the seconds until more is."""
        now = self._clock.monotonic()
        passed = Passed()
        if now >= self._next_pass and await self._elected(holder):
            self._next_pass = now + self._sweep
            passed = await maintain(self._driver)
        else:
            await wake(self._driver, passed)
        due = await self._driver.run(jobs.next_due)
        self.passed = passed
        return passed.total, self._sweep if due is None else max(0.0, min(due, self._sweep))

    async def _elected(self, holder: str) -> bool:
        return self._unasked or await self._driver.run(
            workers.hold_election, ELECTION, holder=holder, lease_seconds=self._sweep * 3
        )
