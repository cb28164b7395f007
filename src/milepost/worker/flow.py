"""The way of jobs through a worker: claimed, started, looked after, reported, settled."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from milepost.client import Client
from milepost.clock import Clock
from milepost.config import Settings
from milepost.context import Context
from milepost.declare import Registry
from milepost.errors import LeaseLost
from milepost.lifecycle import JobState
from milepost.outcome import Outcome, Problem
from milepost.records import Claim, Settlement
from milepost.store import durable, jobs, unfit
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log
from milepost.worker.claimer import Claimer
from milepost.worker.execute import Executor, unknown_kind
from milepost.worker.held import Held
from milepost.worker.keeper import Lease
from milepost.worker.lanes import Running
from milepost.worker.publisher import Publisher
from milepost.worker.settler import Settler
from milepost.worker.slots import Slots
from milepost.worker.suspects import Suspects

log = Log("milepost.worker")

CRUMB = 16
FLUSH_SECONDS = 2.0
"""How long a store that is away may hold up a worker that stops."""
RECALLED = 500
RECALLS = 20
"""How many jobs are sent on at once when another signature may fit them, and how many times."""
GOOD = ("succeed", "later")
RELEASE = "release"
SAID = 200
"""How much of an error is logged: its beginning."""


class Flow:
    """The jobs of one worker, from their claims to their settlements.

    Handlers keep things by the `client`. `poke` is called when there may be more to claim,
    `announced` when a job that has a channel was settled.
    """

    def __init__(
        self,
        client: Client,
        driver: AsyncDriver,
        registry: Registry,
        settings: Settings,
        *,
        slots: Slots,
        lease: Lease,
        clock: Clock,
        queues: Sequence[str] | None,
        poke: Callable[[], None],
        announced: Callable[[], None] | None,
    ) -> None:
        self.ran = 0
        self.held = Held(
            Executor(client.codec, max_result=settings.max_payload),
            self._report,
            threads=settings.threads,
            may_start=lease.may_start,
        )
        self.claimer = Claimer(driver, clock, queues)
        self._queues = queues
        self._codec = client.codec
        self._suspects = Suspects(clock.monotonic)
        self._driver = driver
        self._registry = registry
        self._slots = slots
        self._lease = lease
        self._client = client
        self._poke = poke
        self._announced = announced
        self._worker_id = ""
        self._most = settings.concurrency
        self._freed = asyncio.Event()
        self._publisher = Publisher(driver, published=poke)
        self._settler = Settler(
            driver,
            clock=clock,
            settled=self._settled,
            lease_lost=lambda: lease.lost,
            unfinished_runs=self._publisher.want,
        )

    def begin(self, worker_id: str) -> None:
        """Go on under a name."""
        self._worker_id = worker_id
        self.claimer.worker_id = self._settler.worker_id = self._publisher.worker_id = worker_id

    def writers(self) -> list[Coroutine[Any, Any, None]]:
        """Name what writes to the store beside the claims."""
        return [self._settler.run(), self._publisher.run()]

    # Claiming

    @property
    def has_room(self) -> bool:
        """Whether anything fits now."""
        most, kinds = self._fitting()
        return most > 0 and bool(kinds)

    async def claim_and_start(self) -> int:
        """Claim what fits, start it, and return how many jobs were started."""
        if self._lease.lost:
            raise LeaseLost(f"worker {self._worker_id} was buried: its jobs belong to others now")
        most, kinds = self._fitting()
        if most <= 0 or not kinds or not self._lease.may_start():
            return 0
        async with self.claimer.alone:
            self._slots.take(most)
            claims: list[Claim] = []
            try:
                claims = await self._claimed(most, kinds)
            finally:
                self._slots.start(len(claims), taken=most)
            self._start(claims)
        return len(claims)

    async def _claimed(self, most: int, kinds: list[str]) -> list[Claim]:
        """Claim what comes first: other jobs, or a suspect if nothing else is in this process."""
        alone = self._suspects.waiting and not self.held and not self._has_company
        if alone and self._suspects.comes_first and (claims := await self._claim_alone(kinds)):
            return claims
        claims = await self.claimer.claim(most, kinds)
        if alone and not claims:
            claims = await self._claim_alone(kinds)
        return claims

    async def _claim_alone(self, kinds: list[str]) -> list[Claim]:
        claims = await self.claimer.claim_alone(kinds)
        if claims:
            self._suspects.began()
        else:
            self._suspects.see(waiting=False)
        return claims

    def _fitting(self) -> tuple[int, list[str]]:
        """Say how many jobs fit now, and of which kinds.

        A crumb is not worth a commit of its own while the settlement under way makes room for more.
        """
        if self._suspects.keep_out(busy=bool(self.held)):
            return 0, []
        room = min(max(1, self._most // 2), self._slots.free)  # the other half settles meanwhile
        if room < self._most // CRUMB and self._settler.writing:
            return 0, []
        most, plain = self.held.room(room, self._most)
        return most, [d.word for d in self._registry.all if d.is_async or plain]

    def _start(self, claims: list[Claim]) -> None:
        started: list[Running] = []
        for claim in claims:
            definition = self._registry.find(claim.kind, claim.kind_version)
            if definition is None:
                self._settler.add(Settlement(claim, unknown_kind(claim)))
                continue
            started.append(Running(definition, Context(claim, self._client)))
        self.held.start(started)

    # Looking after what runs

    async def tend(self) -> None:
        """End what has run for too long, pass on who is to stop, write what handlers say."""
        self.held.sweep_overdue()
        if self.held:
            for asked in await self._driver.run(jobs.ask_to_stop, worker_id=self._worker_id):
                self.held.stop(*asked)
        if told := self.held.news:
            await self._driver.run(durable.tell, told)
        await self._look_for_suspects()

    async def _look_for_suspects(self) -> None:
        # A worker that cannot take one makes no room for it either.
        found = None if self._has_company else await self.claimer.suspect(self._registry.words)
        self._suspects.see(waiting=found is not None)

    @property
    def _has_company(self) -> bool:
        """Whether a thread is stuck in a handler: whatever runs here, runs beside it."""
        return self.held.threads.zombies > 0

    async def reconcile(self) -> None:
        """Give back what the store says we hold and we do not know: a claim's lost reply."""
        async with self.claimer.alone:
            known = self.held.known
            await self._driver.run(jobs.reconcile, worker_id=self._worker_id, known=known)

    async def recall(self) -> int:
        """Send on jobs that waited for other parameters than they were tried with, if ours are."""
        found = await self._driver.run(unfit.kinds)
        known = ((kind, self._registry.find(*kind)) for kind in found)
        signatures = {k: d.arguments.signature(self._codec) for k, d in known if d is not None}
        sent = 0
        for _ in range(RECALLS if signatures else 0):
            count = await self._driver.run(
                unfit.wake,
                signatures,
                queues=self._queues,
                actor=self._worker_id,
                most=RECALLED,
            )
            sent += count
            if count < RECALLED:
                break
        return sent

    # Outcomes

    def _report(self, running: Running, result: Outcome) -> None:
        self.ran += 1
        if result.move != RELEASE:
            self._slots.report(good=result.move in GOOD)
        self._settler.add(Settlement(running.context.claim, result))
        if result.problem is not None:
            _tell_of(running.context.claim, result, result.problem)

    def _settled(self, batch: list[Settlement], held: set[str]) -> None:
        for settlement in batch:
            self.held.forget(settlement.claim)
            if settlement.claim.id not in held:
                log.warning("result discarded: lease lost", job_id=settlement.claim.id)
        self._free_slots(batch, held)
        if any(settlement.claim.run_id is not None for settlement in batch):
            self._poke()  # its run may have come to the next jobs
        if self._announced and any(settlement.claim.channel for settlement in batch):
            self._announced()
        self._freed.set()

    def _free_slots(self, batch: list[Settlement], held: set[str]) -> None:
        moves = [s.outcome.move for s in batch if s.claim.id in held and s.outcome.move != RELEASE]
        good = sum(move in GOOD for move in moves)
        self._slots.reported(good, good=True)
        self._slots.reported(len(moves) - good, good=False)
        if len(moves) == len(batch):
            return
        for settlement in batch:
            move = settlement.outcome.move
            if move == RELEASE:
                self._slots.drop(good=None)
            elif settlement.claim.id not in held:
                self._slots.drop(good=move in GOOD)

    # Waiting

    @property
    def busy(self) -> bool:
        """Whether something runs, or is not written yet."""
        return bool(self.held) or self._settler.busy or self._publisher.busy

    def wake(self) -> None:
        """Let whoever waits for a free slot look again."""
        self._freed.set()

    async def freed_within(self, seconds: float) -> None:
        """Wait until a slot is freed, at most so long."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._freed.wait()

    async def flush(self) -> None:
        """Wait until all that has ended is written."""
        await self._settler.flush()
        await self._publisher.flush()

    async def flush_if_possible(self) -> None:
        """Wait for the settlements; a store that is away must not keep a worker from ending."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._settler.flush()


def _tell_of(claim: Claim, result: Outcome, problem: Problem) -> None:
    """Say what went wrong, and what follows; the whole of it is kept with the job."""
    first = problem.message.partition("\n")[0][:SAID]
    log.warning(
        "a job failed" if result.state == JobState.FAILED else "an attempt failed",
        kind=claim.kind,
        job_id=claim.id,
        attempt=claim.attempt,
        error=f"{problem.type}: {first}" if first else problem.type,
        **({"again_in": f"{result.delay_us / 1e6:g} s"} if result.delay_us is not None else {}),
    )
