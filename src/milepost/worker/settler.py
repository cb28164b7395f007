"""Writes outcomes, many at a time, and tries again while the lease lasts (H-39).

Only the store's own judgement of one very row (`Invalid`, `IllegalMove`, a trigger of the user's)
refuses an outcome: its job ends FAILED, with that cause. A lock that was held too long, a right or
a table that is missing say nothing of the outcome: it is written later, and when the lease is lost
before that, the lease decides. An error that nobody knows is tried again for some seconds. Then the
store is asked to take a plain failure of that job: if it does, the outcome is what it refuses.

A transaction that ends jobs of runs goes on to hold the runs and to create other jobs. Meanwhile a
second one ends the next jobs, where the store lets two write; it waits for the runs as any other
worker's would.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from milepost import outcome
from milepost.errors import AccessRefused, IllegalMove, Invalid, Unavailable
from milepost.faces import perform_async
from milepost.hooks import HookEvent, one_call
from milepost.lifecycle import JobState
from milepost.outcome import Outcome, Problem
from milepost.policy import storable
from milepost.records import Claim, Settlement
from milepost.store import jobs, outputs, runs
from milepost.store.driver import StatementFailed, is_away
from milepost.store.watch import Watch
from milepost.telemetry import TRACEBACK, Log, Recently
from milepost.worker import Setup
from milepost.worker.heartbeat import WorkerRow
from milepost.worker.slots import RunningJob, SlotTable

if TYPE_CHECKING:
    from milepost.relay.loop import Relay

log = Log("milepost.worker")

BATCH = 1_000
"""How many outcomes one transaction takes, and how many jobs they may bring along."""
PAUSE = 0.05
LONGEST = 1.0
MANY = 64
"""So many outcomes of runs' jobs are worth a second transaction next to the one under way."""
TRIES = 8
"""So often an outcome is tried, in some five seconds, whose error nobody knows."""
REFUSALS = ("54", "P0")
"""Classes of SQL errors that are about a value: too large for an index, or against a trigger of the
user's own. Those of the standard are `Invalid`."""
LACKING = "42"
"""The class of SQL errors that say that something is missing, whatever the values are."""
_NOT_THERE = "no such "
"""The same, as SQLite says it."""
FLUSH_SECONDS = 2.0
"""How long a store that is away may hold up a worker that stops."""
NONE_HELD = jobs.Settled(set(), set())
LOGGED = 200
"""How many characters of an error are logged; the whole of it is kept with the job."""


class Settler:
    """Collects outcomes, settles them in the background, and frees the slots of their jobs."""

    def __init__(
        self,
        setup: Setup,
        row: WorkerRow,
        slots: SlotTable,
        watch: Watch,
        relay: "Relay | None",
    ) -> None:
        self._driver = setup.driver
        self._hooks = setup.client.hooks
        self._metrics = setup.metrics
        self._clock = setup.clock
        self._row = row
        self._slots = slots
        self._watch = watch
        self._relay = relay
        self._publisher = Publisher(setup, row, watch)
        self._waiting: deque[Settlement] = deque()
        self._postponed: deque[Settlement] = deque()
        self._tries: dict[str, int] = {}
        """How often the postponed outcomes of jobs were tried in vain."""
        self._told = Recently()
        self._tells = log.wants_info
        """Whether the attempts that ended well are logged: a line of each is not for nothing."""
        self._writing = 0
        self._wanted = asyncio.Event()
        self._wanted_second = asyncio.Event()
        self._wanted_again = asyncio.Event()
        self._may_overlap = setup.driver.can.many_writers
        self._quiet = asyncio.Event()
        self._quiet.set()

    def report(self, running: RunningJob, result: Outcome) -> None:
        """Take the outcome of a job that has ended in its lane."""
        self._slots.report(running, result)
        self.add(running.claim, result)
        if result.problem is not None:
            self._log_failure(running, result, result.problem)
        elif self._tells:
            log.tell("an attempt ended", **_named(running), **_measured(running, result))

    def add(self, claim: Claim, result: Outcome) -> None:
        """Have an outcome written."""
        if not self._waiting:
            self._quiet.clear()
            self._wanted.set()
        self._waiting.append(Settlement(claim, result))
        if self._writing and len(self._waiting) == MANY and self._may_overlap:
            self._wanted_second.set()

    async def run(self) -> None:
        """Settle until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._settle_second())
            tasks.create_task(self._settle_again())
            tasks.create_task(self._publisher.run())
            while True:
                await self._wanted.wait()
                while self._waiting:
                    await self._settle_some(self._batch())
                self._wanted.clear()

    async def _settle_second(self) -> None:
        """Settle the outcomes that gathered while a batch is under way."""
        while True:
            await self._wanted_second.wait()
            self._wanted_second.clear()
            if len(self._waiting) >= MANY and self._waiting[0].claim.run_id is not None:
                await self._settle_some(self._batch())

    async def _settle_again(self) -> None:
        """Settle, one by one, the postponed outcomes; the others do not wait for them."""
        pause = PAUSE
        while True:
            await self._wanted_again.wait()
            self._wanted_again.clear()
            await self._clock.sleep(pause)
            for _ in range(len(self._postponed)):
                await self._settle_some([self._postponed.popleft()])
            kept = {settlement.claim.id for settlement in self._postponed}
            self._tries = {job_id: tries for job_id, tries in self._tries.items() if job_id in kept}
            pause = min(pause * 2, LONGEST) if self._postponed else PAUSE

    async def _settle_some(self, batch: list[Settlement]) -> None:
        self._writing += 1
        began = self._clock.monotonic()
        try:
            if self._hooks.at["settle"]:
                event = HookEvent(point="settle", count=len(batch))
                await perform_async(self._hooks.watch(event, one_call(self._settle, batch)))
            else:
                await self._settle(batch)
        finally:
            self._writing -= 1
        if self._metrics is not None:
            self._metrics.wrote(self._clock.monotonic() - began)
        if not (self._waiting or self._writing or self._postponed):
            self._quiet.set()

    def _batch(self) -> list[Settlement]:
        """Take the outcomes that one transaction should write."""
        batch: list[Settlement] = []
        room = BATCH
        while self._waiting and len(batch) < BATCH:
            room -= len(self._waiting[0].outcome.outputs)
            if room < 0 and batch:
                break
            batch.append(self._waiting.popleft())
        return batch

    @property
    def busy(self) -> bool:
        """Whether something is not settled, or not published, yet."""
        return not (self._quiet.is_set() and self._publisher.quiet.is_set())

    @property
    def writing(self) -> bool:
        """Whether something is being settled now, and not postponed."""
        return bool(self._waiting or self._writing)

    async def flush(self) -> None:
        """Wait until everything taken so far is settled and published, or cannot be."""
        await self._quiet.wait()
        await self._publisher.quiet.wait()

    async def flush_if_possible(self) -> None:
        """Wait for the settlements; a store that is away must not keep a worker from ending."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._quiet.wait()

    # One batch

    async def _settle(self, batch: list[Settlement]) -> None:
        """Write outcomes; of a batch that cannot be written, each half for itself."""
        try:
            held = await self._written(batch)
        except Exception as error:  # noqa: BLE001 - one bad outcome must not end the worker
            if len(batch) > 1:
                half = len(batch) // 2
                await self._settle(batch[:half])
                await self._settle(batch[half:])
            elif _is_refusal(error) or self._is_spent(batch[0], error):
                await self._refuse(batch[0], error)
            else:
                self._postpone(batch[0], error)
        else:
            self._settled(batch, held)

    def _settled(self, batch: list[Settlement], settled: jobs.Settled) -> None:
        self._slots.settled(batch, settled.held, cancelled=settled.cancelled)
        # Their runs may have come to the next jobs, or a limit may let others start.
        if self._slots.awaited or any(s.claim.run_id is not None for s in batch):
            self._watch.wake()
        if self._relay is not None and any(settlement.claim.channel for settlement in batch):
            self._relay.wake()

    def _log_failure(self, running: RunningJob, result: Outcome, problem: Problem) -> None:
        """Log a failure; its traceback once a minute, for many jobs may fail alike."""
        first = problem.message.partition("\n")[0][:LOGGED]
        more: dict[str, str | None] = {}
        if result.delay_us is not None:
            more["again_in"] = f"{result.delay_us / 1e6:g} s"
        if problem.place is not None:
            more["at"] = problem.place
        if problem.traceback is not None and self._told.add(problem.fingerprint or problem.type):
            more[TRACEBACK] = problem.traceback
        log.warning(
            "a job failed" if result.state == JobState.FAILED else "an attempt failed",
            **_named(running),
            error=f"{problem.type}: {first}" if first else problem.type,
            **more,
            **_measured(running, result),
        )

    async def _written(self, batch: list[Settlement]) -> jobs.Settled:
        """Write outcomes; answer with those that were held. A store that is away is awaited."""
        pause = PAUSE
        while True:
            try:
                settled = await self._driver.run(jobs.settle_some, batch, actor=self._row.id)
                break
            except Unavailable as error:
                if not is_away(error) or isinstance(error, AccessRefused):
                    raise  # one of them may wait for a lock, or need a right; the others need not
                # A batch that had committed answers as not held when it is tried again: no harm,
                # since the fence lets nothing be written twice.
                if self._row.lost:
                    return NONE_HELD
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST)
        if settled.left:
            self._publisher.want(settled.left)
        if settled.moves and self._hooks.at["gate"]:
            await self._show_gates(batch, settled.moves)
        return settled

    async def _show_gates(
        self, batch: Sequence[Settlement], moves: Mapping[str, Sequence[str]]
    ) -> None:
        """Show hooks the moves that runs made when their jobs ended."""
        traces = {s.claim.run_id: s.claim.trace for s in batch}
        for run_id, made in moves.items():
            for move in made:
                event = HookEvent(point="gate", run_id=run_id, name=move, trace=traces.get(run_id))
                await perform_async(self._hooks.watch(event, one_call(asyncio.sleep, 0)))

    async def _refuse(self, settlement: Settlement, error: Exception) -> None:
        """End a job whose outcome the store refuses: no attempt would change that."""
        claim = settlement.claim
        log.warning("outcome refused by the store", job_id=claim.id, error=repr(error))
        problem = Problem(
            type="Unstorable",
            message=f"its outcome could not be stored: {storable(str(error))[:1000]}",
            kind="permanent",
            code="validation",
            attempt=claim.attempt,
        )
        try:
            held = await self._written([Settlement(claim, outcome.failed(problem))])
        except (Invalid, IllegalMove) as again:
            # Given back by the next reconciliation.
            log.warning("job could not be ended", job_id=claim.id, error=repr(again))
            held = NONE_HELD
        except Exception as again:  # noqa: BLE001 - says nothing of the outcome
            self._postpone(settlement, again)
            return
        self._settled([settlement], held)

    def _is_spent(self, settlement: Settlement, error: Exception) -> bool:
        """Tell whether an outcome was tried often enough with an error that may be about it."""
        if _says_nothing(error):
            return False
        return self._tries.get(settlement.claim.id, 0) >= TRIES

    def _postpone(self, settlement: Settlement, error: Exception) -> None:
        """Try again later, as long as the lease lasts."""
        if self._row.lost:
            self._settled([settlement], NONE_HELD)
            return
        job_id = settlement.claim.id
        self._tries[job_id] = self._tries.get(job_id, 0) + 1
        if self._told.add(f"outcome of {job_id}"):
            log.warning("outcome not written, trying again", job_id=job_id, error=repr(error))
        self._postponed.append(settlement)
        self._wanted_again.set()


def _is_refusal(error: Exception) -> bool:
    """Tell whether the store judged the values of an outcome."""
    return isinstance(error, Invalid | IllegalMove) or _class_of(error) in REFUSALS


def _says_nothing(error: Exception) -> bool:
    """Tell whether an error is known to have nothing to do with an outcome's values."""
    if isinstance(error, StatementFailed):
        return _NOT_THERE in str(error)
    return isinstance(error, Unavailable) or _class_of(error) == LACKING


def _class_of(error: Exception) -> str:
    """Give the class of an SQL error; empty if it has none."""
    return (getattr(error, "sqlstate", None) or "")[:2]


def _named(running: RunningJob) -> dict[str, Any]:
    claim = running.claim
    return {"kind": claim.kind, "job_id": claim.id, "attempt": claim.attempt}


def _measured(running: RunningJob, result: Outcome) -> dict[str, Any]:
    seconds = running.seconds
    if seconds is None:  # it never began, or its handler is still at it
        seconds = 0.0 if running.began is None else time.monotonic() - running.began
    return {"outcome": result.move, "duration": round(seconds, 6)}


class Publisher:
    """Publishes outputs and opens gates for which the settling transaction had no room.

    Maintenance would do it later.
    """

    def __init__(self, setup: Setup, row: WorkerRow, watch: Watch) -> None:
        self._driver = setup.driver
        self._row = row
        self._watch = watch
        self._runs: set[str] = set()
        self._wanted = asyncio.Event()
        self.quiet = asyncio.Event()
        """Set while nothing waits, or all of it is left to maintenance."""
        self.quiet.set()

    def want(self, run_ids: Iterable[str]) -> None:
        """Say that outputs of these runs wait, or jobs at their gates."""
        self._runs.update(run_ids)
        self.quiet.clear()
        self._wanted.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._wanted.wait()
            while self._wanted.is_set():
                self._wanted.clear()
                run_ids, self._runs = sorted(self._runs), set()
                try:
                    while await self._publish(run_ids):
                        pass
                except Exception as error:  # noqa: BLE001 - maintenance does it later
                    log.warning("publishing failed, left to maintenance", error=repr(error))
            self.quiet.set()

    async def _publish(self, run_ids: list[str]) -> bool:
        """Open gates and publish outputs, a batch of each; True when there may be more."""
        run, actor = self._driver.run, self._row.id
        opened = await run(runs.open_gates, run_ids, actor=actor, most=BATCH)
        done = await run(outputs.publish_some, actor=actor, most=BATCH)
        if opened or done.count:
            self._watch.wake()
        if done.left:
            self.want(done.left)
        return BATCH in (opened, done.count)
