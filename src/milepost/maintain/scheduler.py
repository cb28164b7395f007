"""Fires the schedules that this program declares. Many may: a slot is fired once all the same.

Their times are read from the store, where the program that started last has put them; a program
fires only schedules that its code declares. So one that has vanished from every program rests.
"""

from collections.abc import Mapping

from milepost.clock import Clock, SystemClock
from milepost.maintain.chores import Tally, safely
from milepost.store import schedules
from milepost.store.driver import AsyncDriver
from milepost.store.schedules import NewSchedule


class Scheduler:
    """A chore: enters the declarations once, then fires by the store's clock (H-98)."""

    def __init__(self, declared: Mapping[str, NewSchedule], *, clock: Clock | None = None) -> None:
        self._declared = declared
        self._clock = clock or SystemClock()
        self._entered = False
        self._see_at = 0.0
        self.next_in: float | None = None
        """In how many seconds the next one fires, as far as the last look could tell."""

    async def __call__(self, driver: AsyncDriver, tally: Tally) -> None:
        """Fire the schedules that are due."""
        if not self._declared:
            return
        await self._enter(driver)
        before = tally.fired
        coming = await driver.run(schedules.due, list(self._declared))
        for name, seconds in coming:
            if seconds <= 0:
                await safely(_fire(driver, name, tally), tally, schedule=name)
        # One that is due and did not fire has failed, or another fires it: it is not waited for.
        waits = [seconds for _, seconds in coming if seconds > 0]
        self.next_in = 0.0 if tally.fired > before else min(waits, default=None)

    async def _enter(self, driver: AsyncDriver) -> None:
        """Write the declarations once, and then, now and again, only that they still stand.

        Programs of two versions run side by side during a deploy: written again and again, their
        declarations would take turns.
        """
        if self._entered and self._clock.monotonic() < self._see_at:
            return
        if self._entered:
            await driver.run(schedules.see, list(self._declared))
        else:
            await driver.run(schedules.declare, list(self._declared.values()))
            self._entered = True
        self._see_at = self._clock.monotonic() + schedules.SEEN_SECONDS


async def _fire(driver: AsyncDriver, name: str, tally: Tally) -> None:
    tally.fired += len(await driver.run(schedules.fire, name))
