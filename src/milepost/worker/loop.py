"""The worker: claims what fits, starts it, settles what came of it, keeps its lease (spec E)."""

import asyncio
import os
import platform
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from milepost.client import Client
from milepost.clock import Clock, SystemClock
from milepost.codec import Codec
from milepost.config import Settings, StoreUrl
from milepost.context import Context
from milepost.declare import Registry
from milepost.errors import LeaseLost
from milepost.lifecycle import JobState, WorkerState
from milepost.outcome import Outcome, micros
from milepost.records import Claim, Settlement
from milepost.store import durable, jobs, workers
from milepost.store.connect import open_driver
from milepost.store.driver import AsyncDriver, Call, Steps
from milepost.telemetry import Log
from milepost.worker.claimer import Claimer
from milepost.worker.execute import Executor, unknown_kind
from milepost.worker.held import Held
from milepost.worker.keeper import Keeper
from milepost.worker.lanes import Running
from milepost.worker.publisher import Publisher
from milepost.worker.settler import Settler
from milepost.worker.slots import Slots
from milepost.worker.standing import Standing
from milepost.worker.watch import Watch, open_watch

__all__ = ["Worker"]

log = Log("milepost.worker")

FEW = 8
CRUMB = 16
TURN_SECONDS = 0.0005
TICK_SECONDS = 1.0
FLUSH_SECONDS = 5.0
"""How long a store that is away may hold up a worker that stops."""
GOOD = ("succeed", "later")
LETS_END = "the worker stops: what runs may end; a second signal gives it back"
GIVES_BACK = "the worker stops: what runs is given back"
SAID = 200
"""How much of an error is logged: its beginning."""


class Maintain(Protocol):
    """What does chores for a worker."""

    def __call__(self, holder: str, *, whole: bool = False) -> Awaitable[tuple[int, float]]:
        """Do what is due; answer with how much there was, and the seconds until more is."""
        ...


class Worker:
    """One worker, on one event loop.

    `maintain(holder)` does chores; it tells how much it moved, and when it wants to be called.
    `client` is the way to the store that handlers keep things by. What stands `beside` runs as
    long as the worker does; `announced` is called when a job that has a channel was settled.
    With `recycle` it stops when it is worn out, for its process to be started anew.
    """

    def __init__(
        self,
        url: StoreUrl,
        driver: AsyncDriver,
        registry: Registry,
        codec: Codec,
        settings: Settings,
        *,
        maintain: "Maintain",
        queues: Sequence[str] | None = None,
        clock: Clock | None = None,
        client: Client | None = None,
        beside: Sequence[Callable[[], Coroutine[Any, Any, None]]] = (),
        announced: Callable[[], None] | None = None,
        recycle: bool = False,
    ) -> None:
        self.id = _name()
        self.ran = 0
        self._url = url
        self._driver = driver
        self._registry = registry
        self._settings = settings
        self._maintain = maintain
        self._queues = queues
        self._clock = clock or SystemClock()
        self._client = client
        self._beside = beside
        self._announced = announced
        self._recycle = recycle
        self._slots = Slots(settings.concurrency)
        self._standing = Standing(driver, slots=self._slots.text)
        self._claimer = Claimer(driver, self._clock, queues)
        self._draining = False
        self._impatient = False
        self._freed = asyncio.Event()
        self._pause = settings.poll_min
        self._keeper: Keeper | None = None
        self._watch: Watch = open_watch(url)
        self._held = Held(
            Executor(codec, max_result=settings.max_payload),
            self._report,
            threads=settings.threads,
            may_start=self._may_start,
        )
        self._publisher = Publisher(driver, published=self._watch.poke)
        self._settler = self._new_settler()

    def _new_settler(self) -> Settler:
        return Settler(
            self._driver,
            clock=self._clock,
            settled=self._settled,
            hopeless=lambda: self._lost,
            left=self._publisher.want,
        )

    @property
    def state(self) -> WorkerState | None:
        """Where it stands."""
        return self._standing.state

    @property
    def worn_out(self) -> bool:
        """Whether as many threads are stuck in handlers past their timeout as may work at once."""
        return self._held.threads.zombies >= self._settings.threads

    # Coming and going

    async def run(self) -> None:
        """Work until drained."""
        with _short_turns():
            await self._run()

    async def _run(self) -> None:
        await self.open()
        async with asyncio.TaskGroup() as tasks:
            others = [work() for work in self._beside]
            beside = [tasks.create_task(w) for w in (*self._writers(), self._tend(), *others)]
            try:
                while not self._draining:
                    await self._turn_safely()
            finally:
                await self._finish()
                await _ended(beside)
                await self.close()

    async def run_until_idle(self, seconds: float) -> int:
        """Work until nothing is open or due within the time; answer with how many jobs ran."""
        with _short_turns():
            return await self._run_until_idle(seconds)

    async def _run_until_idle(self, seconds: float) -> int:
        until = self._now + seconds
        await self.open()
        writing = [asyncio.create_task(work) for work in self._writers()]
        try:
            self._standing.walk_to_polling()
            while not self._draining:
                # What ends during this round may have left something that is due already.
                busy = self._busy
                moved, pause = await self._chores(whole=not busy)
                while await self.claim_and_start():
                    moved += 1
                if self._held:
                    await self._freed_within(min(pause, TICK_SECONDS))
                elif self._busy:
                    await self._settler.flush()
                    await self._publisher.flush()
                elif not (busy or moved) and not await self._worth_waiting(until, pause):
                    break
            return self.ran
        finally:
            await self._finish()
            await _ended(writing)
            await self.close()

    def _writers(self) -> list[Coroutine[Any, Any, None]]:
        """Name what writes to the store beside the claims."""
        return [self._settler.run(), self._publisher.run()]

    @property
    def _busy(self) -> bool:
        return bool(self._held) or self._settler.busy or self._publisher.busy

    async def _worth_waiting(self, until: float, pause: float) -> bool:
        """Wait for what may come due; False when the time is over or nothing is open."""
        left = until - self._now
        if left <= 0 or not await self._driver.run(_anything_open):
            return False
        await self._watch.wait(min(pause, left))
        self._claimer.rescan()
        return True

    async def open(self) -> None:
        """Enter the worker's row and keep its lease from a thread of its own."""
        self._standing.begin(self.id)
        self._claimer.worker_id = self.id
        self._settler.worker_id = self._publisher.worker_id = self.id
        await self._driver.run(workers.register, self._described())
        self._standing.entered()
        loop = asyncio.get_running_loop()
        self._keeper = Keeper(
            await asyncio.to_thread(open_driver, self._url),
            self.id,
            lease=self._settings.lease,
            heartbeat=self._settings.heartbeat,
            slots=self._slots.text,
            lost=partial(loop.call_soon_threadsafe, self._drop_everything),
        )
        self._keeper.start()

    def _described(self) -> workers.NewWorker:
        queues = None if self._queues is None else msgspec.json.encode(list(self._queues)).decode()
        return workers.NewWorker(
            id=self.id,
            lease_us=micros(self._settings.lease),
            host=platform.node(),
            pid=os.getpid(),
            program="milepost",
            queues=queues,
            kinds=msgspec.json.encode(self._registry.words).decode(),
            slots=self._slots.text(),
        )

    def drain(self) -> None:
        """Stop claiming; a second call gives back what still runs, at once."""
        if self._held:
            log.info(GIVES_BACK if self._draining else LETS_END, running=len(self._held))
        self._impatient = self._draining
        self._draining = True
        self._freed.set()
        self._watch.poke()

    async def _finish(self) -> None:
        """Let what runs end until the grace time is over, then give it back (H-38)."""
        if self.state not in (WorkerState.DRAINING, WorkerState.STOPPED):
            self._standing.move("drain")
        until = self._now + self._settings.grace
        while self._held and not self._impatient and self._now < until:
            await self._freed_within(TICK_SECONDS / 20)
        self._held.give_back("the worker is stopping")
        # A store that is away must not keep a process from ending; its jobs are then lost.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settler.flush(), FLUSH_SECONDS)

    async def close(self) -> None:
        """Say goodbye and free everything."""
        await self._held.close()
        self._standing.move("stop")
        await self._standing.show_if_possible()
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.close)
        await self._watch.close()

    # The loop of spec E

    async def _turn_safely(self) -> None:
        try:
            await self._turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, wait and begin again (E)
            log.warning("the worker is in trouble", error=repr(error), state=str(self.state))
            await self._error_wait()

    async def _turn(self) -> None:
        """Poll; then start what was found, wait for a free slot, or rest."""
        self._standing.walk_to_polling()
        most, kinds = self._fitting()
        if most <= 0 or not kinds:
            await self._freed_within(TICK_SECONDS)
        elif started := await self.claim_and_start():
            self._pause = self._settings.poll_min
            if started <= FEW:
                await asyncio.sleep(0)  # they begin before the next claim is prepared
        else:
            await self._rest()

    async def _rest(self) -> None:
        self._standing.move("back_off")
        self._standing.move("rest")
        if self._standing.shown != WorkerState.IDLE:
            # Whoever submits from now on sees that we rest, and notifies; what came before that
            # is looked for once more.
            await self._standing.show()
            return
        pause = self._pause * random.uniform(0.75, 1.25)  # noqa: S311 - jitter
        self._claimer.expect(await self._watch.wait(pause))
        self._pause = min(self._pause * 2, self._settings.poll_max)
        self._claimer.rescan()

    async def _error_wait(self) -> None:
        """Wait after trouble, then connect again; under a new name if the old one was buried."""
        self._standing.move("error")
        await self._standing.show_if_possible()
        until = self._now + self._settings.error_wait * random.uniform(0.5, 1.0)  # noqa: S311
        while not self._draining and self._now < until:
            await self._freed_within(until - self._now)
        if self._lost and not self._draining:
            await self._begin_again()

    async def _begin_again(self) -> None:
        # What was claimed under the old name is reported under it.
        with suppress(TimeoutError):
            await asyncio.wait_for(self._settler.flush(), FLUSH_SECONDS)
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.close)
        self.id = _name()
        try:
            await self.open()
        except Exception as error:  # noqa: BLE001 - tried again after the next wait
            log.warning("the worker could not register", error=repr(error))
            self._standing.state = WorkerState.ERROR_WAIT

    async def _freed_within(self, seconds: float) -> None:
        self._freed.clear()
        try:
            await asyncio.wait_for(self._freed.wait(), seconds)
        except TimeoutError:
            return

    # Claiming

    async def claim_and_start(self) -> int:
        """Claim what fits, start it, and return how many jobs were started."""
        if self._lost:
            raise LeaseLost(f"worker {self.id} was buried: its jobs belong to others now")
        most, kinds = self._fitting()
        if most <= 0 or not kinds or not self._may_start():
            return 0
        async with self._claimer.alone:
            claims = await self._claimer.claim(most, kinds)
            self._start(claims)
        return len(claims)

    def _fitting(self) -> tuple[int, list[str]]:
        """Say how many jobs fit now, and of which kinds.

        A crumb is not worth a commit of its own while the settlement under way makes room for more.
        """
        slots = self._settings.concurrency
        room = min(max(1, slots // 2), self._slots.free)  # the other half settles meanwhile
        if room < slots // CRUMB and self._settler.busy:
            return 0, []
        most, plain = self._held.room(room, slots)
        return most, [d.word for d in self._registry.all if d.is_async or plain]

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    def _start(self, claims: list[Claim]) -> None:
        self._slots.take(len(claims))
        started: list[Running] = []
        for claim in claims:
            definition = self._registry.find(claim.kind, claim.kind_version)
            if definition is None:
                self._slots.report(good=False)
                self._settler.add(Settlement(claim, unknown_kind(claim)))
                continue
            started.append(Running(definition, Context(claim, self._client)))
        self._held.start(started)

    # Outcomes

    @property
    def _lost(self) -> bool:
        return self._keeper is not None and self._keeper.lost

    def _may_start(self) -> bool:
        return self._keeper is None or self._keeper.may_start

    def _report(self, running: Running, result: Outcome) -> None:
        self.ran += 1
        self._slots.report(good=result.move in GOOD)
        self._settler.add(Settlement(running.context.claim, result))
        if result.problem is not None:
            _tell_of(running.context.claim, result)

    def _settled(self, batch: list[Settlement], held: set[str]) -> None:
        for settlement in batch:
            self._held.forget(settlement.claim)
            if settlement.claim.id not in held:
                log.warning("an outcome came too late", job_id=settlement.claim.id)
        good = sum(settlement.outcome.move in GOOD for settlement in batch)
        self._slots.reported(good, good=True)
        self._slots.reported(len(batch) - good, good=False)
        if any(settlement.claim.run_id is not None for settlement in batch):
            self._watch.poke()  # its run may have come to the next jobs
        if self._announced and any(settlement.claim.channel for settlement in batch):
            self._announced()
        self._freed.set()

    def _drop_everything(self) -> None:
        """Let go of every slot: the lease is lost, and the jobs are others' now."""
        self._held.give_back("the lease was lost")
        self._freed.set()
        self._watch.poke()

    # Beside the loop

    async def _tend(self) -> None:
        """Do chores on timers of their own, busy or idle (H-32)."""
        recovery = self._now + self._settings.recovery
        while True:
            pause = self._settings.sweep
            try:
                _, pause = await self._chores()
                if self._now >= recovery:
                    recovery = self._now + self._settings.recovery
                    await self._reconcile()
                if self._standing.shown != self.state:
                    await self._standing.show()
            except Exception as error:  # noqa: BLE001 - chores are done again
                log.warning("maintenance is in trouble", error=repr(error))
            await self._clock.sleep(max(pause, self._settings.poll_min))

    async def _chores(self, *, whole: bool = False) -> tuple[int, float]:
        """Maintain; answer with how much moved and the seconds until that is due again."""
        self._held.sweep_overdue()
        await self._pass_on_requests_to_stop()
        await self._tell_progress()
        moved, pause = await self._maintain(self.id, whole=whole)
        if moved:
            self._watch.poke()
        if self._recycle and self.worn_out and not self._draining:
            stuck = self._held.threads.zombies
            log.warning("threads are stuck in handlers past their timeout: starting anew", n=stuck)
            self.drain()
        return moved, max(0.0, min(pause, self._settings.sweep))

    async def _pass_on_requests_to_stop(self) -> None:
        if self._held:
            for asked in await self._driver.run(jobs.ask_to_stop, worker_id=self.id):
                self._held.stop(*asked)

    async def _tell_progress(self) -> None:
        """Write what handlers said of themselves, all at once."""
        if told := self._held.news:
            await self._driver.run(durable.tell, told)

    async def _reconcile(self) -> None:
        """Give back what the store says we hold and we do not know: a claim's lost reply."""
        async with self._claimer.alone:
            await self._driver.run(jobs.reconcile, worker_id=self.id, known=self._held.known)


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
    await asyncio.gather(*tasks, return_exceptions=True)


def _tell_of(claim: Claim, result: Outcome) -> None:
    """Say what went wrong, and what follows; the whole of it is kept with the job."""
    problem = result.problem
    if problem is None:
        return
    first = problem.message.partition("\n")[0][:SAID]
    log.warning(
        "a job failed" if result.state == JobState.FAILED else "an attempt failed",
        kind=claim.kind,
        job_id=claim.id,
        attempt=claim.attempt,
        error=f"{problem.type}: {first}" if first else problem.type,
        **({"again_in": f"{result.delay_us / 1e6:g} s"} if result.delay_us is not None else {}),
    )


def _name() -> str:
    return f"{platform.node()}-{os.getpid()}-{os.urandom(4).hex()}"


def _anything_open() -> Steps[bool]:
    [(count,)] = yield Call("job_open_count", alone=True)
    return bool(count)
