"""Fires the schedules that this program declares. Many may: a slot is fired once all the same.

What fires when is read from the store, where the program that started last has put it; who is not
told of a schedule by the code does not fire it. So one that has vanished from every program rests.
"""

from collections.abc import Mapping

from milepost.maintain.chores import Passed, safely
from milepost.store import schedules
from milepost.store.driver import AsyncDriver
from milepost.store.schedules import NewSchedule

__all__ = ["Scheduler"]


class Scheduler:
    """A chore: enters the declarations once, then fires what is due by the store's clock (H-98)."""

    def __init__(self, declared: Mapping[str, NewSchedule]) -> None:
        self._declared = declared
        self._entered = False

    async def __call__(self, driver: AsyncDriver, passed: Passed) -> None:
        """Fire what is due."""
        if self._declared:
            await self._enter(driver)
            for name, seconds in await driver.run(schedules.due, list(self._declared)):
                if seconds <= 0:
                    await safely(_fire(driver, name, passed), passed, schedule=name)

    async def next_due(self, driver: AsyncDriver) -> float | None:
        """Tell in how many seconds something fires; None when nothing will."""
        if not self._declared:
            return None
        coming = await driver.run(schedules.due, list(self._declared))
        return coming[0][1] if coming else None

    async def _enter(self, driver: AsyncDriver) -> None:
        """Say once what is declared, and then only that it still is.

        Programs of two versions run side by side during a deploy: said again and again, their
        words would take turns.
        """
        if self._entered:
            await driver.run(schedules.see, list(self._declared))
        else:
            await driver.run(schedules.declare, list(self._declared.values()))
            self._entered = True


async def _fire(driver: AsyncDriver, name: str, passed: Passed) -> None:
    passed.fired += len(await driver.run(schedules.fire, name))
