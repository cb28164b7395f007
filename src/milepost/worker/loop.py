"""The worker: claims what fits, starts it, settles what came of it, keeps its lease (spec E)."""

import asyncio
import os
import platform
import random
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from milepost.client import Client
from milepost.clock import Clock, SystemClock
from milepost.config import Settings
from milepost.declare import Registry
from milepost.errors import AccessRefused, SchemaMismatch, Unavailable
from milepost.lifecycle import WorkerState
from milepost.store import jobs, workers
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log, Seldom
from milepost.worker.flow import Flow
from milepost.worker.keeper import Lease
from milepost.worker.slots import Slots
from milepost.worker.standing import Standing
from milepost.worker.watch import Watch, open_watch

log = Log("milepost.worker")

FEW = 8
TURN_SECONDS = 0.0005
TICK_SECONDS = 1.0
AWAY = "the store cannot be reached; waiting for it"
SQLITE_SHARED = (3, 51, 3)
SHARED = (
    "several processes share a SQLite file: before SQLite 3.51.3 that can, rarely, damage it. Run "
    "one process, upgrade SQLite, or use PostgreSQL"
)
LETS_END = "the worker stops: what runs may end; a second signal gives it back"
GIVES_BACK = "the worker stops: what runs is given back"


class Maintain(Protocol):
    """What does chores for a worker."""

    def __call__(self, holder: str, *, whole: bool = False) -> Awaitable[tuple[int, float]]:
        """Do what is due; answer with how much there was, and the seconds until more is."""
        ...


class Worker:
    """One worker, on one event loop.

    Handlers keep things by the `client`; the worker itself has a `driver` of its own loop.
    `maintain(holder)` does chores; it tells how much it moved, and when it wants to be called.
    What stands `beside` runs as long as the worker does; `announced` is called when a job that has
    a channel was settled. With `recycle` it stops when it is worn out, for its process to be
    started anew.
    """

    def __init__(
        self,
        client: Client,
        driver: AsyncDriver,
        registry: Registry,
        settings: Settings,
        *,
        maintain: Maintain,
        queues: Sequence[str] | None = None,
        clock: Clock | None = None,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        announced: Callable[[], None] | None = None,
        recycle: bool = False,
    ) -> None:
        self.id = _name()
        self._driver = driver
        self._settings = settings
        self._maintain = maintain
        self._clock = clock or SystemClock()
        self._beside = beside
        self._recycle = recycle
        self._draining = self._impatient = False
        self._drained = asyncio.Event()
        self._drained_at = 0.0
        self._pause = settings.poll_min
        self._watch: Watch = open_watch(client.url, settings.limits)
        slots = Slots(settings.concurrency)
        self._away = Seldom(log)
        self._standing = Standing(
            driver, registry, queues, lease=settings.lease, slots=slots.text, away=self._away
        )
        self._lease = Lease(client.url, settings, slots=slots.text, lost=self._drop_everything)
        self._flow = Flow(
            client,
            driver,
            registry,
            settings,
            slots=slots,
            lease=self._lease,
            clock=self._clock,
            queues=queues,
            poke=self._watch.poke,
            announced=announced,
        )

    @property
    def state(self) -> WorkerState | None:
        """Where it stands."""
        return self._standing.state

    @property
    def worn_out(self) -> bool:
        """Whether as many threads are stuck in handlers past their timeout as may work at once."""
        return self._flow.held.threads.zombies >= self._settings.threads

    # Coming and going

    async def run(self) -> None:
        """Work until drained."""
        with _short_turns():
            await self._run()

    async def _run(self) -> None:
        if not await self._opened():
            return
        async with asyncio.TaskGroup() as tasks:
            others = [work() for work in self._beside]
            beside = [tasks.create_task(w) for w in (*self._flow.writers(), self._tend(), *others)]
            working = asyncio.create_task(self._work())
            try:
                await self._drained.wait()
                # A store that is away must not hold up what runs: it has the grace time to end.
                await asyncio.wait([working], timeout=TICK_SECONDS)
            finally:
                await _ended([working])
                await self._finish()
                await _ended(beside)
                await self.close()

    async def _work(self) -> None:
        while not self._draining:
            await self._turn_safely()

    async def run_until_idle(self, seconds: float) -> int:
        """Work until nothing is open or due within the time; answer with how many jobs ran."""
        with _short_turns():
            return await self._run_until_idle(seconds)

    async def _run_until_idle(self, seconds: float) -> int:
        until = self._now + seconds
        await self.open()
        writing = [asyncio.create_task(work) for work in self._flow.writers()]
        try:
            self._standing.walk_to_polling()
            while not self._draining:
                # What ends during this round may have left something that is due already.
                busy = self._flow.busy
                moved, pause = await self._chores(whole=not busy)
                while await self._flow.claim_and_start():
                    moved += 1
                if self._flow.held:
                    await self._flow.freed_within(min(pause, TICK_SECONDS))
                elif self._flow.busy:
                    await self._flow.flush()
                elif busy or moved or self._flow.claimer.must_look_again():
                    continue
                elif not await self._worth_waiting(until, pause):
                    break
            return self._flow.ran
        finally:
            await self._finish()
            await _ended(writing)
            await self.close()

    async def _worth_waiting(self, until: float, pause: float) -> bool:
        """Wait for what may come due; False when the time is over or nothing is open."""
        left = until - self._now
        if left <= 0 or not await self._driver.run(jobs.any_open):
            return False
        await self._watch.wait(min(pause, left))
        self._flow.claimer.rescan()
        return True

    async def _opened(self) -> bool:
        """Enter the row, when the store is there; False when it is to stop before."""
        while not self._draining:
            try:
                await self.open()
            except (AccessRefused, SchemaMismatch):
                raise  # waiting changes nothing
            except Unavailable as error:
                await self._wait_for_store(error)
            else:
                await self._warn_of_company()
                return True
        return False

    async def _warn_of_company(self) -> None:
        """Say once that other processes write to the same SQLite file, where that is not safe."""
        if not self._driver.can.file or sqlite3.sqlite_version_info >= SQLITE_SHARED:
            return
        own = platform.node(), os.getpid()
        for other in await self._driver.run(workers.listing):
            alive = other.state != WorkerState.STOPPED and other.lease_seconds > 0
            if alive and (other.host, other.pid) != own:
                log.warning(SHARED, sqlite=sqlite3.sqlite_version, other_worker=other.id)
                return

    async def _wait_for_store(self, error: Exception) -> None:
        self._standing.state = WorkerState.ERROR_WAIT
        seconds = self._settings.error_wait * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        self._away.warning(AWAY, error=repr(error), again_in=f"{seconds:.1f} s")
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._drained.wait()

    async def open(self) -> None:
        """Enter the worker's row and keep its lease from a thread of its own."""
        self._flow.begin(self.id)
        await self._standing.begin(self.id)
        await self._lease.begin(self.id)
        await self._flow.recall()

    def drain(self) -> None:
        """Stop claiming; a second call gives back what still runs, at once."""
        if running := len(self._flow.held):
            log.info(GIVES_BACK if self._draining else LETS_END, running=running)
        self._impatient = self._draining
        if not self._draining:
            self._drained_at = self._now
        self._draining = True
        self._drained.set()
        self._look_again()

    async def _finish(self) -> None:
        """Let what runs end until the grace time is over, then give it back (H-38)."""
        if self.state not in (WorkerState.DRAINING, WorkerState.STOPPED):
            self._standing.move("drain")
        until = (self._drained_at or self._now) + self._settings.grace
        while self._flow.held and not self._impatient and self._now < until:
            await self._flow.freed_within(TICK_SECONDS / 20)
        self._flow.held.give_back("the worker is stopping")
        # A store that is away must not keep a process from ending; its jobs are then lost.
        await self._flow.flush_if_possible()

    async def close(self) -> None:
        """Say goodbye and free everything."""
        await self._flow.held.close()
        self._standing.move("stop")
        await self._standing.show_if_possible()
        await self._lease.end()
        await self._watch.close()

    def _drop_everything(self) -> None:
        """Let go of every slot: the lease is lost, and the jobs are others' now."""
        self._flow.held.give_back("the lease was lost")
        self._look_again()

    def _look_again(self) -> None:
        """Wait no longer: neither for a free slot nor for work."""
        self._flow.wake()
        self._watch.poke()

    # The loop of spec E

    async def _turn_safely(self) -> None:
        try:
            await self._turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, wait and begin again (E)
            told = self._away if isinstance(error, Unavailable) else log
            told.warning("worker loop failed, reconnecting", error=repr(error))
            await self._error_wait()

    async def _turn(self) -> None:
        """Poll; then start what was found, wait for a free slot, or rest."""
        self._standing.walk_to_polling()
        if not self._flow.has_room:
            await self._flow.freed_within(TICK_SECONDS)
            return
        started = await self._flow.claim_and_start()
        if self._away.said and self._lease.may_start():
            self._away.over("the store is back")
        if started:
            self._pause = self._settings.poll_min
            if started <= FEW:
                await asyncio.sleep(0)  # they begin before the next claim is prepared
        else:
            await self._rest()

    async def _rest(self) -> None:
        self._standing.back_off(idle=not self._flow.held)
        if not self._standing.shown_resting:
            # Whoever submits from now on sees that we rest, and notifies; what came before that
            # is looked for once more.
            await self._standing.show()
            return
        pause = self._pause * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        self._flow.claimer.expect(await self._watch.wait(pause))
        self._pause = min(self._pause * 2, self._settings.poll_max)
        self._flow.claimer.rescan()

    async def _error_wait(self) -> None:
        """Wait after trouble, then connect again; under a new name if the old one was buried."""
        self._standing.move("error")
        await self._standing.show_if_possible()
        until = self._now + self._settings.error_wait * random.uniform(0.5, 1.0)  # noqa: S311
        while not self._draining and self._now < until:
            await self._flow.freed_within(until - self._now)
        if self._lease.lost and not self._draining:
            await self._begin_again()

    async def _begin_again(self) -> None:
        # What was claimed under the old name is reported under it.
        await self._flow.flush_if_possible()
        await self._lease.end()
        self.id = _name()
        try:
            await self.open()
        except Exception as error:  # noqa: BLE001 - tried again after the next wait
            self._away.warning("worker could not register", error=repr(error))
            self._standing.state = WorkerState.ERROR_WAIT

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    # Beside the loop

    async def _tend(self) -> None:
        """Do chores on timers of their own, busy or idle (H-32)."""
        recovery = self._now + self._settings.recovery
        while True:
            pause = self._settings.sweep
            try:
                _, pause = await self._chores()
                if self._standing.shown != self.state:
                    await self._standing.show()
                if self._now >= recovery:
                    recovery = self._now + self._settings.recovery
                    await self._flow.reconcile()
                    # A worker of before may have tried jobs since that only this one can run.
                    if await self._flow.recall():
                        self._watch.poke()
            except Exception as error:  # noqa: BLE001 - chores are done again
                told = self._away if isinstance(error, Unavailable) else log
                told.warning("maintenance failed, tried again", error=repr(error))
            await self._clock.sleep(max(pause, self._settings.poll_min))

    async def _chores(self, *, whole: bool = False) -> tuple[int, float]:
        """Maintain; answer with how much moved and the seconds until that is due again."""
        await self._flow.tend()
        moved, pause = await self._maintain(self.id, whole=whole)
        if moved:
            self._watch.poke()
        if self._recycle and self.worn_out and not self._draining:
            stuck = self._flow.held.threads.zombies
            log.warning("threads are stuck in handlers past their timeout: starting anew", n=stuck)
            self.drain()
        return moved, max(0.0, min(pause, self._settings.sweep))


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let threads take turns more often: whoever waits for the store's answer is soon heard.

    By default a thread that comes back from the database waits five milliseconds for a loop that
    runs handlers, several times a transaction.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(min(usual, TURN_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Ask tasks to end, once, and wait: asked twice, one could not give back what it holds."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=TICK_SECONDS)


def _name() -> str:
    return f"{platform.node()}-{os.getpid()}-{os.urandom(4).hex()}"
