"""Removes finished jobs and runs after their time, and sums up the old part of long histories.

A few at once, so that other chores go on.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from milepost.clock import Clock, SystemClock
from milepost.errors import Invalid
from milepost.maintain.chores import Tally
from milepost.store import archive, events, hosts, idempotency, inbox, outbox, retention
from milepost.store.archive import WHOLE
from milepost.store.driver import AsyncDriver
from milepost.store.retention import FIRST, Keep, NotArchivedError
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
    """A chore: walks over old jobs, runs and histories, goes on where it stopped, rests at the end.

    Those that are old and stay (failures, which are kept longer, and the jobs of runs) are walked
    over once in a while, never at every pass.
    """

    def __init__(
        self, keep: Keep, *, archive: Path | None = None, clock: Clock | None = None
    ) -> None:
        self._keep = keep
        self._archive = archive
        self._clock = clock or SystemClock()
        self._jobs: str | None = FIRST
        self._runs: str | None = FIRST
        self._histories: str | None = FIRST
        self._entries: str | None = FIRST
        self._rest_until = 0.0

    async def __call__(self, driver: AsyncDriver, tally: Tally) -> None:
        """Let some leave."""
        if self._clock.monotonic() < self._rest_until:
            return
        # Messages that nobody took are given up: they keep their jobs.
        await driver.run(outbox.give_up, keep_seconds=self._keep.failed, most=BATCH)
        await driver.run(inbox.forget, keep_seconds=self._keep.failed, most=BATCH)
        for _ in range(ROUNDS):
            await self._walk(driver, tally)
        walks = (self._jobs, self._runs, self._histories, self._entries)
        if all(walk is None for walk in walks):
            self._jobs = self._runs = self._histories = self._entries = FIRST
            # First: a failing partition is logged once a minute, and all is walked no oftener.
            self._rest_until = self._clock.monotonic() + REST_SECONDS
            await self._forget_answers(driver)
            await self._turn_weeks(driver)

    async def _walk(self, driver: AsyncDriver, tally: Tally) -> None:
        """Go one batch further over jobs, runs and histories, and over those of what has left."""
        keep = self._keep
        if self._jobs is not None:
            page = await driver.run(retention.forget_jobs, keep, after=self._jobs, most=BATCH)
            tally.retired += page.left
            self._jobs = page.after
        if self._runs is not None:
            self._runs = await self._forget_runs(driver, self._runs, tally)
        if self._histories is not None:
            self._histories = await self._sum_up(driver, self._histories, tally)
        if self._entries is not None:
            page = await driver.run(retention.old_entries, keep, after=self._entries, most=BATCH)
            if page.over:
                await self._write(driver, page.over, most=WHOLE)
                tally.forgotten += await driver.run(retention.forget_entries, page.over, keep)
            self._entries = page.after

    async def _sum_up(self, driver: AsyncDriver, after: str, tally: Tally) -> str | None:
        """Sum up some histories, archived before; answer where to go on."""
        keep, archived = self._keep, None
        if self._archive is not None:
            due = await driver.run(retention.old_histories, keep, after=after, most=BATCH)
            archived = await self._write(driver, due.over, most=retention.ENTRIES)
        try:
            page = await driver.run(
                retention.sum_up, keep, after=after, most=BATCH, archived=archived
            )
        except NotArchivedError:  # nothing was summed up: the next walk looks again
            return due.after
        tally.summed += page.left
        return page.after

    async def _write(
        self, driver: AsyncDriver, ids: Sequence[str], *, most: int
    ) -> Mapping[str, int]:
        """Write the oldest entries of these to the archive, if there is one."""
        if self._archive is None or not ids:
            return {}
        entries = await driver.run(archive.leaving, ids, most=most)
        try:
            return await asyncio.to_thread(archive.write, self._archive, entries)
        except Invalid:
            # A disk that is full is told once a minute, not at every pass.
            self._rest_until = self._clock.monotonic() + REST_SECONDS
            raise

    async def _forget_runs(self, driver: AsyncDriver, after: str, tally: Tally) -> str | None:
        """Look at some runs; answer where to go on: at the same place if there was too much."""
        page = await driver.run(retention.old_runs, self._keep, after=after, most=RUNS)
        most = tally.retired + BATCH
        for run_id in page.over:
            while gone := await driver.run(retention.forget_chain, run_id, self._keep, most=BATCH):
                tally.retired += gone
                if tally.retired >= most:
                    return after
        return page.after

    async def _forget_answers(self, driver: AsyncDriver) -> None:
        """Remove what is kept for a while: idempotent answers, the stream's moves, places."""
        for prune in (idempotency.prune, events.prune, hosts.prune):
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
