"""Which worker maintains, and when: elected for economy, on the store's clock."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from milepost.clock import SystemClock
from milepost.config import Settings
from milepost.faces import perform_async
from milepost.hooks import HookEvent, Hooks, one_call
from milepost.maintain.chores import (
    CHORES,
    Chore,
    Tally,
    enqueue_left,
    expire_held,
    maintain,
    undispatch,
    wake,
)
from milepost.maintain.retention import Retention
from milepost.maintain.scheduler import Scheduler
from milepost.maintain.tally import TallyFolder
from milepost.observe.metrics import WorkerMetrics
from milepost.store import timers, workers
from milepost.store.driver import AsyncDriver
from milepost.store.retention import Keep
from milepost.store.schedules import NewSchedule

ELECTION = "maintenance"


class Maintainer:
    """Does a whole pass every sweep where it is elected, and queues sleeping jobs in time.

    With `elected` it does the work without an election: that is safe, only not cheap. Jobs that
    wait for a broker are left to the tellers of workers, unless `dispatching` is another chore.
    """

    def __init__(
        self,
        driver: AsyncDriver,
        settings: Settings,
        *,
        scheduled: Mapping[str, NewSchedule],
        hooks: Hooks | None = None,
        metrics: WorkerMetrics | None = None,
        elected: bool = False,
        dispatching: Chore = enqueue_left,
    ) -> None:
        keep = Keep(
            settings.keep_succeeded,
            settings.keep_failed,
            settings.keep_history,
            # What is archived leaves by itself, after its job or run.
            0.0 if settings.archive and settings.keep_audit is None else settings.keep_audit,
        )
        self._driver = driver
        self._hooks = hooks or Hooks()
        self._metrics = metrics
        self._is_elected = elected
        self._scheduler = Scheduler(scheduled)
        archive = Path(settings.archive).expanduser() if settings.archive else None
        self._retention = Retention(keep, archive=archive)
        self._chores = {
            **CHORES,
            "expire_held": expire_held(settings.hold_limit),
            "undispatch": undispatch(settings.hint_limit),
            "dispatch": dispatching,
            "fold": TallyFolder(),
        }
        self._sweep = settings.sweep
        self._limits = {"hold_limit": settings.hold_limit, "hint_limit": settings.hint_limit}
        self._clock = SystemClock()
        self._next_pass = 0.0
        self._begun = False

    async def __call__(self, holder: str, *, whole: bool = False) -> tuple[int, float]:
        """Do the chores that are due; answer with how much they did, and the seconds to the next.

        Everything is looked at once a sweep, or now if the `whole` is asked for.
        """
        now = self._clock.monotonic()
        tally = Tally()
        if (whole or now >= self._next_pass) and await self._elected(holder):
            self._next_pass = now + self._sweep
            # A program that has just begun has work to do before it lets anything old go.
            tally = await self.whole_pass(retain=whole or self._begun)
            self._begun = True
        else:
            # Elected or not: the elected one may be another program, with schedules of its own.
            await self._scheduler(self._driver, tally)
            await wake(self._driver, tally)
        return tally.total, await self._pause()

    async def whole_pass(self, *, retain: bool = True) -> Tally:
        """Do everything once: schedules first, for they make work, and retention last."""
        last = {"retain": self._retention} if retain else {}
        chores = {"fire": self._scheduler, **self._chores, **last}
        sweep = one_call(maintain, self._driver, chores, **self._limits)
        if self._hooks.at["sweep"]:
            sweep = self._hooks.watch(HookEvent(point="sweep", count=0), sweep, _ended)
        tally: Tally = await perform_async(sweep)
        if self._metrics is not None:
            self._metrics.lost(tally.lost, found="sweep")
        return tally

    async def _pause(self) -> float:
        """Tell how long nothing comes due, up to a sweep."""
        woken = await self._driver.run(timers.next_due)
        waits = (woken, self._scheduler.next_in, self._sweep)
        return max(0.0, min(seconds for seconds in waits if seconds is not None))

    async def _elected(self, holder: str) -> bool:
        return self._is_elected or await self._driver.run(
            workers.hold_election, ELECTION, holder=holder, lease_seconds=self._sweep * 3
        )


def _ended(tally: Tally) -> dict[str, Any]:
    return {"outcome": "done", "count": tally.total}
