"""The worker: polls for jobs, rests where there are none, maintains, and drains (spec E)."""

import asyncio
import os
import platform
import random
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from milepost.address import SQLITE_SHARED
from milepost.errors import AccessRefused, SchemaMismatch, Unavailable
from milepost.lifecycle import WorkerState
from milepost.maintain.chores import in_batches
from milepost.maintain.loop import Maintainer
from milepost.store import durable, jobs, logs, tally, timers, workers
from milepost.store.watch import open_watch
from milepost.telemetry import Log
from milepost.worker import Setup
from milepost.worker.claimer import Claimer
from milepost.worker.execute import Executor
from milepost.worker.heartbeat import WorkerRow, new_id
from milepost.worker.hints import HintParts
from milepost.worker.isolate import IsolatedLanes
from milepost.worker.lanes import AsyncLanes
from milepost.worker.settler import Settler
from milepost.worker.slots import SlotTable
from milepost.worker.threads import ThreadLanes

if TYPE_CHECKING:
    from milepost.relay.hints import HintQueue
    from milepost.relay.inbound import Receiver
    from milepost.relay.loop import Relay
    from milepost.relay.report import Reporter

log = Log("milepost.worker")

FEW = 8
SWITCH_SECONDS = 0.0005
TICK_SECONDS = 1.0
KILL_LOOK_SECONDS = 0.4
"""How often cancelled jobs are looked for while some can be killed: that takes under a second."""
SHARED = (
    "several processes share a SQLite file: before SQLite 3.51.3 that can, rarely, damage it. Run "
    "one process, upgrade SQLite, or use PostgreSQL"
)


class Worker:
    """One worker, on one event loop.

    Its `relay` and `receivers` run as long as it does. With `recycle` it stops when it is worn
    out, for its process to be replaced.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        maintainer: Maintainer,
        relay: "Relay | None" = None,
        receivers: "Sequence[Receiver | Reporter]" = (),
        hinted: "Sequence[HintQueue]" = (),
        recycle: bool = False,
    ) -> None:
        self._driver = setup.driver
        self._settings = settings = setup.settings
        self._clock = setup.clock
        self._tally = setup.tally
        self._report_at = 0.0
        self._maintainer = maintainer
        self._others = [other for other in (*receivers, relay) if other is not None]
        self._recycle = recycle
        self._draining = self._impatient = False
        self._drained = asyncio.Event()
        self._drained_at = 0.0
        self._refusal: SchemaMismatch | None = None
        self._pause = settings.poll_min
        self._watch = open_watch(setup.client.url, settings.limits)
        self._slots = SlotTable(settings.concurrency, setup.metrics, setup.tally)
        self._row = row = WorkerRow(setup, self._slots, self._watch)
        self._settler = Settler(setup, row, self._slots, self._watch, relay)
        client = setup.client
        executor = Executor(client.codec, client.hooks, max_result=settings.max_payload)
        self._tasks = AsyncLanes(executor, self._settler, row)
        self._threads = ThreadLanes(executor, self._settler, row, threads=settings.threads)
        self._isolated = IsolatedLanes(
            executor, self._settler, row, processes=settings.isolated, begin=setup.begin
        )
        self._claimer = Claimer(
            setup,
            row,
            self._slots,
            self._settler,
            tasks=self._tasks,
            threads=self._threads,
            isolated=self._isolated,
            hinted=hinted,
        )
        self._hints = HintParts(setup, hinted, self._claimer, self._slots)

    @property
    def id(self) -> str:
        """Its name in the store."""
        return self._row.id

    @property
    def state(self) -> WorkerState | None:
        """Its state in spec E's machine."""
        return self._row.state

    @property
    def worn_out(self) -> bool:
        """Whether as many threads are stuck in handlers past their timeout as may work at once."""
        return self._threads.worn_out

    # Coming and going

    async def run(self) -> None:
        """Work until drained."""
        with _short_switches():
            if await self._opened():
                await self._run()
        if self._refusal is not None:
            raise self._refusal

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            others = [*self._others, *([self._hints] if self._hints else [])]
            tended = (self._tend(), self._kill_cancelled(), self._release_late())
            parts = (self._settler.run(), *tended, *(other.run() for other in others))
            running = [tasks.create_task(part) for part in parts]
            working = asyncio.create_task(self._work())
            try:
                await self._drained.wait()
                # A store that is away must not hold up running jobs: they have the grace time.
                await asyncio.wait([working], timeout=TICK_SECONDS)
            finally:
                await _cancel([working])
                await self._hints.stop()
                await self._finish()
                await _cancel(running)
                await self._hints.close()
                await self.close()

    async def _work(self) -> None:
        while not self._draining:
            try:
                if self._row.lost and self.state == WorkerState.ERROR_WAIT:
                    await self._begin_again()
                await self._turn()
            except Exception as error:  # noqa: BLE001 - whatever it is, wait and begin again (E)
                await self._error_wait("worker loop failed, reconnecting", error)

    async def run_until_idle(self, seconds: float) -> int:
        """Work until nothing is open or due within the time; answer with how many jobs ran."""
        until = self._now + seconds
        with _short_switches():
            await self.open(briefly=True)
            parts = (self._settler.run(), self._kill_cancelled(), self._release_late())
            running = [asyncio.create_task(part) for part in parts]
            try:
                self._row.walk_to_polling()
                while not self._draining and await self._round(until):
                    pass
            finally:
                await self._finish()
                await _cancel(running)
                await self.close()
        return self._slots.ran

    async def _round(self, until: float) -> bool:
        """Do all that is due now; False when nothing more is to be expected."""
        # A job that ends during this round may have left something that is due already.
        busy = self._busy
        moved, pause = await self._maintain(whole=not busy)
        while await self._claimer.claim_and_start():
            moved += 1
        if self._slots:
            await self._slots.freed_within(min(pause, TICK_SECONDS))
        elif self._busy:
            await self._settler.flush()
        elif not (busy or moved or await self._claimer.must_look_again()):
            left = until - self._now
            if left <= 0 or not await self._driver.run(jobs.any_open):
                return False
            pause = min(pause, left, self._claimer.looks.wait_seconds)
            self._claimer.expect(await self._watch.wait(pause))
        return True

    @property
    def _busy(self) -> bool:
        return bool(self._slots) or self._settler.busy

    async def _opened(self) -> bool:
        """Enter the row, when the store is there; False when it is to stop before."""
        while not self._draining:
            try:
                await self.open()
            except (AccessRefused, SchemaMismatch):
                raise  # waiting changes nothing
            except Unavailable as error:
                await self._error_wait("the store cannot be reached; waiting for it", error)
            else:
                await self._warn_of_shared_file()
                return True
        return False

    async def _warn_of_shared_file(self) -> None:
        """Log once that other processes write to the same SQLite file, where that is not safe."""
        if not self._driver.can.file or sqlite3.sqlite_version_info >= SQLITE_SHARED:
            return
        if self._claimer.isolates:
            log.warning(SHARED, sqlite=sqlite3.sqlite_version, by="isolated jobs")
            return
        own = platform.node(), os.getpid()
        for other in await self._driver.run(workers.listing):
            alive = other.state != WorkerState.STOPPED and other.lease_seconds > 0
            if alive and (other.host, other.pid) != own:
                log.warning(SHARED, sqlite=sqlite3.sqlite_version, other_worker=other.id)
                return

    async def open(self, *, briefly: bool = False) -> None:
        """Enter the worker's row and keep its lease from a thread of its own."""
        await self._row.register(briefly=briefly)
        await self._claimer.recall()

    def drain(self) -> None:
        """Stop claiming; a second call gives back the jobs that still run, at once."""
        if self._slots and self._draining:
            log.info("worker stops: running jobs are given back", running=len(self._slots))
        elif self._slots:
            log.info(
                "worker stops: running jobs may end; a second signal gives them back",
                running=len(self._slots),
            )
        self._impatient = self._draining
        if not self._draining:
            self._drained_at = self._now
        self._draining = True
        self._drained.set()
        self._hints.halt()
        self._slots.wake()
        self._watch.wake()

    async def _finish(self) -> None:
        """Let running jobs end until the grace time is over, then give them back (H-38)."""
        if self.state not in (WorkerState.DRAINING, WorkerState.STOPPED):
            self._row.move("drain")
        self._slots.give_back_waiting("the worker is stopping")
        until = (self._drained_at or self._now) + self._settings.grace
        while self._slots and not self._impatient and self._now < until:
            await self._slots.freed_within(TICK_SECONDS / 20)
        self._slots.give_back("the worker is stopping")
        # A store that is away must not keep a process from ending; its jobs are then lost.
        await self._settler.flush_if_possible()
        await self._report()

    async def close(self) -> None:
        """Show that it has stopped, and free everything."""
        await self._tasks.close()
        self._threads.close()
        await self._isolated.close_all()
        self._row.move("stop")
        await self._row.show_if_possible()
        await self._row.end_lease()
        await self._watch.close()

    # The loop of spec E

    async def _turn(self) -> None:
        """Poll; then start the jobs found, wait for a free slot, or rest."""
        self._row.walk_to_polling()
        if not self._claimer.has_room:
            await self._slots.freed_within(TICK_SECONDS)
            return
        started = await self._claimer.claim_and_start()
        if self._row.away.active and self._row.may_start():
            self._row.away.over("the store is back")
        if started:
            self._pause = self._settings.poll_min
            if started <= FEW:
                await asyncio.sleep(0)  # they begin before the next claim is prepared
        else:
            await self._rest()

    async def _rest(self) -> None:
        self._row.back_off()
        if not self._row.shown_resting:
            # Those who submit from now on see that we rest, and notify; jobs that came before
            # that are looked for once more.
            await self._row.show()
            return
        pause = self._pause * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        self._claimer.expect(await self._watch.wait(min(pause, self._claimer.looks.wait_seconds)))
        self._hints.wake()
        self._pause = min(self._pause * 2, self._settings.poll_max)

    async def _error_wait(self, event: str, error: Exception) -> None:
        """Log an error, and wait before the next connection."""
        seconds = self._settings.error_wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        self._log_error(event, error, again_in=f"{seconds:.1f} s")
        if self.state != WorkerState.ERROR_WAIT:
            self._row.move("error")
        await self._row.show_if_possible()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()

    async def _begin_again(self) -> None:
        """Register under a new id: the old one was buried."""
        # Jobs claimed under the old id are reported under it.
        await self._settler.flush_if_possible()
        self._row.id = new_id()
        await self.open()

    def _log_error(self, event: str, error: Exception, **fields: str) -> None:
        if isinstance(error, SchemaMismatch):
            self._refusal = error  # waiting changes nothing: the store was moved away
            if not self._draining:
                self.drain()
        chosen = self._row.away if isinstance(error, Unavailable) else log
        chosen.warning(event, error=repr(error), **fields)

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    # Next to the loop

    async def _tend(self) -> None:
        """Maintain on timers of its own, busy or idle (H-32)."""
        recovery = self._now + self._settings.recovery
        while True:
            pause = self._settings.sweep
            try:
                _, pause = await self._maintain()
                if self._row.shown != self.state:
                    await self._row.show()
                if self._now >= recovery:
                    recovery = self._now + self._settings.recovery
                    await self._claimer.reconcile()
                    # An older worker may have tried jobs since that only this one can run.
                    if await self._claimer.recall():
                        self._watch.wake()
            except Exception as error:  # noqa: BLE001 - chores are done again
                self._log_error("maintenance failed, trying again", error)
            await self._clock.sleep(max(pause, self._settings.poll_min))

    async def _kill_cancelled(self) -> None:
        """Look often for cancelled jobs while some can be killed."""
        while True:
            await self._isolated.filled.wait()
            await self._clock.sleep(KILL_LOOK_SECONDS)
            if not self._slots.held_in(self._isolated):
                self._isolated.filled.clear()
                continue
            try:
                await self._stop_cancelled()
            except Exception as error:  # noqa: BLE001 - they are looked for again
                self._log_error("cancelled jobs could not be looked for", error)

    async def _release_late(self) -> None:
        """Release jobs that have not started soon after their claim, for workers that are free."""
        while True:
            try:
                late = await self._slots.late(self._clock.sleep)
                others = await self._driver.run(workers.listing, free_beside=self.id)
                if self._slots.release_late(late, others):
                    await self._settler.flush_if_possible()
                    await in_batches(self._driver, timers.wake)
            except Exception as error:  # noqa: BLE001 - they are looked at again
                self._log_error("jobs that do not start could not be released", error)

    async def _maintain(self, *, whole: bool = False) -> tuple[int, float]:
        """Maintain; answer with how much moved and the seconds until that is due again."""
        await self._tend_jobs()
        moved, pause = await self._maintainer(self.id, whole=whole)
        if moved:
            self._watch.wake()
        if self._recycle and self.worn_out and not self._draining:
            stuck = self._threads.zombies
            log.warning("threads stuck in handlers past their timeout, restarting", n=stuck)
            self.drain()
        return moved, max(0.0, min(pause, self._settings.sweep))

    async def _tend_jobs(self) -> None:
        """End overdue attempts, stop cancelled ones, write the progress that handlers reported."""
        self._slots.end_overdue()
        if self._slots:
            await self._stop_cancelled()
        if progress := self._slots.take_progress():
            await self._driver.run(durable.write_progress, progress)
        if lines := self._slots.take_lines():
            try:
                await self._driver.run(logs.write, lines)
            except BaseException:
                self._slots.put_back(lines)
                raise
        await self._claimer.look_for_suspects()
        if self._now >= self._report_at:
            self._report_at = self._now + tally.REPORT_SECONDS
            await self._report()

    async def _stop_cancelled(self) -> None:
        for stopped in await self._driver.run(jobs.ask_to_stop, worker_id=self.id):
            self._slots.stop(*stopped)

    async def _report(self) -> None:
        """Add what was counted to the store's tally; lost if that fails, since it is for charts."""
        if report := self._tally.take():
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._driver.run(tally.add, report)
            except Exception as error:  # noqa: BLE001 - whatever it is
                self._log_error("counts of moves and durations were not written", error)


@contextmanager
def _short_switches() -> Iterator[None]:
    """Let threads take turns more often: the store's answer is then heard sooner.

    By default a thread that comes back from the database waits five milliseconds for a loop that
    runs handlers, several times a transaction.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Ask tasks to end, once, and wait: asked twice, one could not give back its resources."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=TICK_SECONDS)
