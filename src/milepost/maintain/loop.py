"""Who does maintenance, and when: elected for economy, on the store's clock."""

from milepost.clock import Clock, SystemClock
from milepost.config import HOLD_LIMIT
from milepost.maintain.chores import CHORES, Passed, expire_held, maintain, wake
from milepost.maintain.retention import Retention
from milepost.maintain.scheduler import Scheduler
from milepost.store import timers, workers
from milepost.store.driver import AsyncDriver

ELECTION = "maintenance"


class Maintainer:
    """Does a whole pass every sweep where it is elected, and wakes what is due when it is due."""

    def __init__(
        self,
        driver: AsyncDriver,
        *,
        sweep: float,
        elected: bool = False,
        hold_limit: float = HOLD_LIMIT,
        scheduler: Scheduler | None = None,
        retention: Retention | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take part in the election, or do the work unasked: it is safe, only not cheap."""
        self._driver = driver
        self._unasked = elected
        self._scheduler = scheduler or Scheduler({})
        self._retention = retention
        self._chores = {**CHORES, "expire_held": expire_held(hold_limit)}
        self._sweep = sweep
        self._clock = clock or SystemClock()
        self._next_pass = 0.0
        self._begun = False
        self.passed = Passed()

    async def __call__(self, holder: str, *, whole: bool = False) -> tuple[int, float]:
        """Do what is due; answer with how much there was, and the seconds until more is.

        Everything is looked at once a sweep, or now if the `whole` is asked for.
        """
        now = self._clock.monotonic()
        passed = Passed()
        if (whole or now >= self._next_pass) and await self._elected(holder):
            self._next_pass = now + self._sweep
            # Who has just begun has work to do before it lets anything old go.
            passed = await self.whole_pass(retain=whole or self._begun)
            self._begun = True
        else:
            # Elected or not: whoever is may be another program, with schedules of its own.
            await self._scheduler(self._driver, passed)
            await wake(self._driver, passed)
        self.passed = passed
        return passed.total, await self._pause()

    async def whole_pass(self, *, retain: bool = True) -> Passed:
        """Do everything once: schedules first, for they make work, and last what may wait."""
        last = {"retain": self._retention} if retain and self._retention is not None else {}
        return await maintain(self._driver, {"fire": self._scheduler, **self._chores, **last})

    async def _pause(self) -> float:
        """Tell how long nothing comes due, up to a sweep."""
        woken = await self._driver.run(timers.next_due)
        waits = (woken, self._scheduler.next_in, self._sweep)
        return max(0.0, min(seconds for seconds in waits if seconds is not None))

    async def _elected(self, holder: str) -> bool:
        return self._unasked or await self._driver.run(
            workers.hold_election, ELECTION, holder=holder, lease_seconds=self._sweep * 3
        )
