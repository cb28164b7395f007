"""The slots of a worker: the jobs that it holds, and how many slots stand in each state."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.context import Context
from milepost.declare import Definition
from milepost.lifecycle import SLOT, SlotState
from milepost.observe.metrics import Ended, WorkerMetrics
from milepost.outcome import Outcome
from milepost.records import Claim, Settlement, Worker
from milepost.store.durable import AttemptProgress
from milepost.store.job_facts import takes
from milepost.store.limits import Freed
from milepost.store.logs import AttemptLines
from milepost.store.tally import Label, WorkerTally
from milepost.telemetry import Log
from milepost.worker.ahead import AheadPolicy, Pace

if TYPE_CHECKING:
    from milepost.worker.lanes import Lanes
    from milepost.worker.processes import IsolatedProcess

log = Log("milepost.worker")

GOOD = ("succeed", "later")
RELEASE = "release"
FREE, CLAIMING, PROCESSING = (
    state.value for state in (SlotState.FREE, SlotState.CLAIMING, SlotState.PROCESSING)
)
REPORTING = {True: SlotState.REPORTING_SUCCESS.value, False: SlotState.REPORTING_FAILURE.value}
SHOWN = (PROCESSING, *REPORTING.values(), CLAIMING, FREE)
"""The states, those first that tell more of a slot for which there are several jobs."""
_TARGETS = {(move, str(source)): str(target) for move, source, target in SLOT.triples}
"""Where the declared moves lead: found for every job, and a KeyError for any other."""


@dataclass(slots=True, eq=False)
class RunningJob:
    """One claimed job, in its slot and its lane."""

    claim: Claim
    definition: Definition
    context: Context
    lane: "Lanes"
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    claimed: float = field(default_factory=time.monotonic)
    began: float | None = None
    seconds: float | None = None
    """How long its attempt took."""
    placed: bool = False
    """Whether its lane has it; before that it waits for a slot."""
    active: bool = False
    ended: bool = False
    outcome: Outcome | None = None
    """Its outcome, once it has ended; its handler may still run."""
    stuck: bool = False
    suspect: bool = False
    """Whether it was claimed alone, because one more loss would end it."""
    process: "IsolatedProcess | None" = None
    """The process that it runs in, if it has one of its own, and its number there."""
    number: int = 0

    @property
    def timeout(self) -> float | None:
        """How long one attempt may take: by the job's own row, or by the rest of its time."""
        own = None if self.claim.timeout_us is None else self.claim.timeout_us / 1e6
        left = self.left
        if left is None:
            return own
        return left if own is None else min(own, left)

    @property
    def left(self) -> float | None:
        """How long after its beginning the whole job's time is over; None when it has no end."""
        remaining = self.claim.remaining_us
        if remaining is None:
            return None
        waited = (self.began or time.monotonic()) - self.claimed
        return max(0.0, remaining / 1e6 - waited)

    def ending(self, result: Outcome) -> tuple[str, BaseException | None]:
        """Tell hooks how it ended; one that was ended from outside ended so."""
        context = self.context
        error, context.error = context.error, None  # its frames hold the context
        return (self.outcome or result).move, error

    def told(self, result: Outcome) -> dict[str, Any]:
        """Give the fields of a hook's event that tell how it ended."""
        outcome, error = self.ending(result)
        return {"outcome": outcome, "error": error}

    def overdue(self, now: float) -> bool:
        """Tell whether its time is over."""
        if self.ended or self.began is None:
            return False
        timeout = self.timeout
        return timeout is not None and now >= self.began + timeout


def _takes(worker: Worker, claim: Claim) -> bool:
    return takes(worker, claim.queue, claim.kind, claim.kind_version)


def _taken(waiting: deque[RunningJob], most: int) -> list[RunningJob]:
    """Take the first so many, without those that have ended while they waited."""
    if len(waiting) <= most:
        taken = [running for running in waiting if not running.ended]
        waiting.clear()
        return taken
    taken = []
    while waiting and len(taken) < most:
        running = waiting.popleft()
        if not running.ended:
            taken.append(running)
    return taken


class SlotTable:
    """The jobs that were claimed and are not settled yet; slots change by declared moves only.

    While jobs are short there are more of them than slots. No more than `size` are in lanes at a
    time: those claimed ahead wait here, in the order of their claims, and each slot that waits for
    its job to start is CLAIMING.
    """

    policy = AheadPolicy()

    def __init__(
        self,
        size: int,
        metrics: WorkerMetrics | None = None,
        tally: WorkerTally | None = None,
    ) -> None:
        self.size = size
        self._metrics = metrics
        self._tally = tally or WorkerTally()
        self.ran = 0
        """How many jobs have ended here; those that were given back are none of them."""
        self._counts: dict[str, int] = {state.value: 0 for state in SlotState}
        self._counts[FREE] = size
        self._running: dict[str, RunningJob] = {}
        self._waiting: dict[Lanes, deque[RunningJob]] = {}
        self._placed: Counter[Lanes] = Counter()
        self._unplaced = 0
        self._in_lanes = 0
        self._placing = False
        self._pace = Pace(self.policy)
        self._begun = asyncio.Event()
        self._freed = asyncio.Event()
        self._freed_keys: dict[Freed, None] = {}
        self.key_freed = asyncio.Event()
        """Set when a job under a limit has ended; whoever hands out the next ones clears it."""
        self.limited: set[str] = set()
        """The queues on a broker that have a limit of their own."""
        self.awaited = False
        """Whether a job waits for the end of another: a limit blocks it."""

    def __len__(self) -> int:
        """Count the jobs that are held."""
        return len(self._running)

    @property
    def free(self) -> int:
        """How many may be taken; an outcome that is not settled keeps its slot."""
        return max(0, self._counts[FREE])

    @property
    def busy(self) -> int:
        """How many jobs are held or being claimed: more than slots, if some are ahead."""
        return self.size - self._counts[FREE]

    def ahead(self, now: float, *, size: float) -> int:
        """Say how many more jobs than slots may be held, when one's arguments have such a size."""
        rate = self._pace.rate(now, ended=self.ran)
        return self.policy.ahead(self.size, rate=rate, size=size)

    def none_ahead(self, now: float) -> None:
        """Claim nothing ahead before jobs have ended quickly again."""
        self._pace.forget(now, ended=self.ran)

    def held_in(self, lanes: "Lanes") -> int:
        """Count the jobs in these lanes."""
        return sum(running.lane is lanes for running in self._running.values())

    @property
    def known(self) -> Mapping[str, int]:
        """The jobs, each with its fence."""
        return {job_id: running.claim.fence for job_id, running in self._running.items()}

    def take_progress(self) -> list[AttemptProgress]:
        """Give out the progress that handlers reported since the last call."""
        return [found for r in self._running.values() if (found := r.context.take_progress())]

    def take_lines(self) -> list[AttemptLines]:
        """Give out the lines that handlers logged since the last call."""
        return [
            AttemptLines(r.claim, found)
            for r in self._running.values()
            if (found := r.context.take_lines())
        ]

    def put_back(self, lines: Sequence[AttemptLines]) -> None:
        """Take lines again that could not be written."""
        for one in lines:
            running = self._running.get(one.claim.id)
            if running is not None and running.claim.fence == one.claim.fence:
                running.context.put_back(one.lines)

    def text(self) -> str:
        """Render the counts for the worker's row: of all its slots, not of the jobs ahead."""
        shown: dict[str, int] = {}
        for state in SHOWN:
            if (count := min(self._counts[state], self.size - sum(shown.values()))) > 0:
                shown[state] = count
        return msgspec.json.encode(shown).decode()

    # From a claim to the end of its job

    def take(self, count: int) -> None:
        """Note that so many are to be filled by the claim under way."""
        self._move("take", FREE, count)

    def miss(self, count: int) -> None:
        """Free the slots taken for which no job was found."""
        self._move("miss", CLAIMING, count)

    def start(self, count: int = 1) -> None:
        """Fill slots taken with jobs."""
        self._move("start", CLAIMING, count)

    def hold(self, jobs: Sequence[RunningJob]) -> None:
        """Enter jobs that were claimed, and start as many as there is room for in their lanes."""
        self._running.update((running.claim.id, running) for running in jobs)
        for lane, some in groupby(jobs, attrgetter("lane")):
            self._waiting.setdefault(lane, deque()).extend(some)
        self._unplaced += len(jobs)
        self._begun.set()
        self._place()

    def _place(self) -> None:
        """Give waiting jobs to their lanes; the longest waiter's first."""
        self._placing = False
        waiting = [(found[0].claimed, lane) for lane, found in self._waiting.items() if found]
        for _, lane in sorted(waiting, key=itemgetter(0)):
            room = lane.depth(self.size) - self._placed[lane]
            room = min(room, self.size - self._in_lanes)
            jobs = _taken(self._waiting[lane], room)
            for running in jobs:
                running.placed = True
            self.start(len(jobs))
            self._unplaced -= len(jobs)
            self._placed[lane] += len(jobs)
            self._in_lanes += len(jobs)
            lane.start(jobs)
        if self._in_lanes:
            self._pace.work(time.monotonic())

    def report(self, running: RunningJob, outcome: Outcome) -> None:
        """Note that a job has ended; one that is released keeps its slot's state."""
        if running.placed:
            self._placed[running.lane] -= 1
            self._in_lanes -= 1
        else:
            self._unplaced -= 1
            self.start()
        if outcome.move != RELEASE:
            self.ran += 1
            self._move("success" if outcome.move in GOOD else "failure", PROCESSING)
        if self._unplaced:
            self._place_soon()
        if not self._in_lanes:
            self._pace.rest(time.monotonic())

    def _place_soon(self) -> None:
        """Place jobs at once if there is room for many, else once for all that end in this turn."""
        # A lane whose handlers never wait then goes on, and its outcomes are settled together.
        if self.size - self._in_lanes >= self.size * self.policy.refill:
            self._place()
        elif not self._placing:
            self._placing = True
            asyncio.get_running_loop().call_soon(self._place)

    def settled(
        self,
        batch: Sequence[Settlement],
        held: set[str],
        *,
        cancelled: frozenset[str] = frozenset(),
    ) -> None:
        """Free the slots of jobs whose outcomes were written, or whose lease was lost before."""
        if self._metrics is not None:
            self._metrics.settled(self._ended(batch, held))
            self._metrics.lost(len(batch) - len(held), found="settle")
        freed = {True: 0, False: 0}
        labels: list[Label] = []
        begun: list[float] = []
        now = time.monotonic()
        for settlement in batch:
            claim, move = settlement.claim, settlement.outcome.move
            if claim.limit_key is not None:
                self._freed_keys[claim.limit_key, claim.queue, claim.priority] = None
            if claim.limit_key is not None or claim.queue in self.limited:
                self.key_freed.set()
            # The same job may have come back meanwhile, under its next fence.
            running = self._running.get(claim.id)
            if running is not None and running.claim.fence == claim.fence:
                del self._running[claim.id]
            if claim.id not in held:
                log.warning("result discarded: lease lost", job_id=claim.id)
                self.drop(good=None if move == RELEASE else move in GOOD)
                continue
            if move == RELEASE:
                self.drop(good=None)
            else:
                freed[move in GOOD] += 1
            if claim.id not in cancelled:
                labels.append((move, claim.queue, claim.kind))
                begun.append(now if running is None else running.began or running.claimed)
        for good, count in freed.items():
            self._move("reported", REPORTING[good], count)
        self._tally.ended(labels, begun, now=now)
        self.wake()

    def _ended(self, batch: Sequence[Settlement], held: set[str]) -> list[Ended]:
        found = [(one.claim, one.outcome) for one in batch if one.claim.id in held]
        running = [self._running.get(claim.id) for claim, _ in found]
        return [
            (claim, outcome, None if one is None else one.seconds)
            for (claim, outcome), one in zip(found, running, strict=True)
        ]

    def take_freed(self) -> dict[Freed, None]:
        """Give out the limit keys of jobs that have ended here since the last call."""
        freed, self._freed_keys = self._freed_keys, {}
        return freed

    def drop(self, *, good: bool | None) -> None:
        """Note that a job was released, or that its lease was lost before its outcome was written.

        `good` says which outcome was reported; None that none was.
        """
        self._move("drop", PROCESSING if good is None else REPORTING[good])

    def _move(self, name: str, source: str, count: int = 1) -> None:
        target = _TARGETS[name, source]
        self._counts[source] -= count
        self._counts[target] += count

    # Stopping

    def stop(self, job_id: str, fence: int, reason: str) -> None:
        """Ask a job's handler to stop."""
        running = self._running.get(job_id)
        # Once: a handler that cleans up must not be cancelled again and again.
        if running is not None and running.claim.fence == fence and not running.context.cancelled:
            running.lane.stop_job(running, reason)
            if running.began is None:
                running.lane.refuse(running)

    def give_back(self, detail: str) -> None:
        """Release every job that has not ended."""
        for running in list(self._running.values()):
            running.lane.give_back(running, detail)
        self.wake()

    def end_overdue(self) -> None:
        """End the attempts whose time is over, and jobs that must not begin any more."""
        now = time.monotonic()
        for running in list(self._running.values()):
            if running.overdue(now):
                running.lane.time_out(running)
            elif running.began is None and not running.ended:
                running.lane.refuse(running)

    def give_back_waiting(self, detail: str) -> None:
        """Release the jobs that wait for a slot."""
        for running in list(self._running.values()):
            if not running.placed:
                running.lane.give_back(running, detail)

    # Jobs that do not start

    async def late(self, sleep: Callable[[float], Awaitable[None]]) -> list[RunningJob]:
        """Wait until jobs have not started in time; answer with those, the longest waiters first.

        It looks only while some have not started.
        """
        while True:
            await self._begun.wait()
            await sleep(self.policy.patience)
            unstarted = [r for r in self._running.values() if not r.ended and r.began is None]
            if not unstarted:
                self._begun.clear()
            until = time.monotonic() - self.policy.patience
            if late := [running for running in unstarted if running.claimed <= until]:
                return late

    def release_late(self, late: Sequence[RunningJob], others: Sequence[Worker]) -> int:
        """Release those that have not started yet and another worker takes; say how many.

        One for which there was no slot, or no thread, all the time is released in any case, in the
        end: others may come first by now.
        """
        until = time.monotonic() - self.policy.longest
        released = 0
        for running in late:
            waits = running.began is None and not running.ended
            if waits and any(_takes(other, running.claim) for other in others):
                released += running.lane.withdraw(running, "another worker is free")
                continue
            lined_up = not running.placed or running.lane.has_line
            if waits and lined_up and running.claimed <= until:
                released += running.lane.withdraw(running, "no slot was free in time")
        return released

    # Waiting for a free slot

    def wake(self) -> None:
        """End the wait for a free slot."""
        self._freed.set()

    async def freed_within(self, seconds: float) -> None:
        """Wait until a slot is freed, at most so long."""
        self._freed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._freed.wait()
