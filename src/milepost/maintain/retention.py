"""Lets finished jobs and runs leave after their time, and sums up what is too old of histories.

A few at once, so that other chores go on.
"""

from milepost.clock import Clock, SystemClock
from milepost.maintain.chores import Passed
from milepost.store import events, idempotency, inbox, outbox, retention
from milepost.store.driver import AsyncDriver
from milepost.store.retention import FIRST, Keep
from milepost.telemetry import Log

log = Log("milepost.maintain")

BATCH = 500
RUNS = 50
"""How many jobs leave at once, and how many runs are looked at."""
ROUNDS = 4
"""How many batches one pass does. With a pass a second, that is 2,000 jobs a second."""
ANSWERS = 5_000
"""How many answers, or moves in the stream, leave at once."""
REST_SECONDS = 60.0
"""How long to rest after everything old was looked at."""


class Retention:
    """A chore: walks over what is old, goes on where it stopped, and rests at the end.

    What is old and stays (failures, which are kept longer, and the jobs of runs) is walked over
    once in a while, never at every pass.
    """

    def __init__(self, keep: Keep, *, clock: Clock | None = None) -> None:
        self._keep = keep
        self._clock = clock or SystemClock()
        self._jobs: str | None = FIRST
        self._runs: str | None = FIRST
        self._histories: str | None = FIRST
        self._rest_until = 0.0

    async def __call__(self, driver: AsyncDriver, passed: Passed) -> None:
        """Let some leave."""
        if self._clock.monotonic() < self._rest_until:
            return
        await self._forget_messages(driver)
        for _ in range(ROUNDS):
            if self._jobs is not None:
                page = await driver.run(
                    retention.forget_jobs, self._keep, after=self._jobs, most=BATCH
                )
                passed.retired += page.left
                self._jobs = page.after
            if self._runs is not None:
                self._runs = await self._forget_runs(driver, self._runs, passed)
            if self._histories is not None:
                page = await driver.run(
                    retention.sum_up, self._keep, after=self._histories, most=BATCH
                )
                passed.summed += page.left
                self._histories = page.after
        if self._jobs is None and self._runs is None and self._histories is None:
            self._jobs = self._runs = self._histories = FIRST
            # First: a partition in trouble is told of once a minute, and all is walked no oftener.
            self._rest_until = self._clock.monotonic() + REST_SECONDS
            await self._forget_answers(driver)
            await self._turn_weeks(driver)

    async def _forget_messages(self, driver: AsyncDriver) -> None:
        """Give up messages that nobody took: they keep their jobs; forget what came in long ago."""
        keep = self._keep.failed
        await driver.run(outbox.give_up, keep_seconds=keep, most=BATCH)
        await driver.run(inbox.forget, keep_seconds=keep, most=BATCH)

    async def _forget_answers(self, driver: AsyncDriver) -> None:
        """Let go of what is kept for a while for those who ask again: answers, and the stream."""
        for prune in (idempotency.prune, events.prune):
            for _ in range(ROUNDS):
                if await driver.run(prune, most=ANSWERS) < ANSWERS:
                    break

    async def _turn_weeks(self, driver: AsyncDriver) -> None:
        """Make the partitions that are needed next, and drop one that is not needed any more."""
        await driver.run(retention.make_weeks)
        if (size := await driver.run(retention.weeks_full)) is not None:
            log.warning(
                "the journal gets no more weeks: its default partition is too large; see "
                "docs/how-to/retention.md",
                megabytes=size // 1024**2,
            )
        await driver.run(retention.drop_week, self._keep)

    async def _forget_runs(self, driver: AsyncDriver, after: str, passed: Passed) -> str | None:
        """Look at some runs; answer where to go on: at the same place if there was too much."""
        page = await driver.run(retention.old_runs, self._keep, after=after, most=RUNS)
        most = passed.retired + BATCH
        for run_id in page.over:
            while gone := await driver.run(retention.forget_chain, run_id, self._keep, most=BATCH):
                passed.retired += gone
                if passed.retired >= most:
                    return after
        return page.after
