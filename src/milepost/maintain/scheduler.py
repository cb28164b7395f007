"""Fires the schedules that this program declares. Many may: a slot is fired once all the same.

What fires when is read from the store, where the program that started last has put it; who is not
told of a schedule by the code does not fire it. So one that has vanished from every program rests.
"""

from collections.abc import Mapping

from milepost.clock import Clock, SystemClock
from milepost.maintain.chores import Passed, safely
from milepost.store import schedules
from milepost.store.driver import AsyncDriver
from milepost.store.schedules import NewSchedule


class Scheduler:
    """A chore: enters the declarations once, then fires what is due by the store's clock (H-98)."""

    def __init__(self, declared: Mapping[str, NewSchedule], *, clock: Clock | None = None) -> None:
        self._declared = declared
        self._clock = clock or SystemClock()
        self._entered = False
        self._see_at = 0.0
        self.next_in: float | None = None
        """In how many seconds something fires, as far as the last look could tell."""

    async def __call__(self, driver: AsyncDriver, passed: Passed) -> None:
        """Fire what is due."""
        if not self._declared:
            return
        await self._enter(driver)
        before = passed.fired
        coming = await driver.run(schedules.due, list(self._declared))
        for name, seconds in coming:
            if seconds <= 0:
                await safely(_fire(driver, name, passed), passed, schedule=name)
        # What is due and did not fire is sick, or in another's hand: it is not waited for.
        waits = [seconds for _, seconds in coming if seconds > 0]
        self.next_in = 0.0 if passed.fired > before else min(waits, default=None)

    async def _enter(self, driver: AsyncDriver) -> None:
        """Say once what is declared, and then, now and again, only that it still is.

        Programs of two versions run side by side during a deploy: said again and again, their
        words would take turns.
        """
        if self._entered and self._clock.monotonic() < self._see_at:
            return
        if self._entered:
            await driver.run(schedules.see, list(self._declared))
        else:
            await driver.run(schedules.declare, list(self._declared.values()))
            self._entered = True
        self._see_at = self._clock.monotonic() + schedules.SEEN_SECONDS


async def _fire(driver: AsyncDriver, name: str, passed: Passed) -> None:
    passed.fired += len(await driver.run(schedules.fire, name))
