"""Claims as many jobs as fit, from the front of the line, and starts them in their lanes."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any

from milepost import outcome
from milepost.context import Context
from milepost.declare import Definition
from milepost.errors import LeaseLost, MilepostError
from milepost.maintain.chores import in_batches
from milepost.records import Claim
from milepost.relay.hints import HintQueue
from milepost.store import failures, hints, jobs, limits, queues, unfit
from milepost.store.jobs import Suspect
from milepost.worker import Setup
from milepost.worker.floors import Floors
from milepost.worker.heartbeat import WorkerRow
from milepost.worker.isolate import IsolatedLanes
from milepost.worker.lanes import AsyncLanes
from milepost.worker.limited import LimitedLooks
from milepost.worker.settler import Settler
from milepost.worker.slots import RunningJob, SlotTable
from milepost.worker.suspects import TRIED_MOST, Suspects
from milepost.worker.threads import ThreadLanes

Lanes = AsyncLanes | ThreadLanes
CLAIM_MOST = 1_000
"""Larger claims gain nothing. With slots for three, one is made while another one's jobs run and a
third one's outcomes are settled."""
WORTH_A_CLAIM = 16
"""While a settlement frees more, less than a sixteenth of the slots is not worth a claim."""
FOR_LONG = 4
"""Jobs that may be long are claimed for a fourth of the slots while short ones are held ahead."""
ROOM_SECONDS = 1.0
PLAIN, LIMITED = "plain", "limited"
"""The two lines: jobs without a limit, and jobs under one."""
EMPTY_SECONDS = 0.05
"""For this long a line in which no job was found is looked at after the other one."""
_TOGETHER = attrgetter("limited", "line.queue", "line.priority")
"""Suspects that are tried by one claim."""
ClaimCall = Callable[[list[Claim]], Coroutine[Any, Any, None]]
"""Adds the jobs that it claims, so that those are known of which a later statement fails."""


@dataclass(slots=True)
class LastClaim:
    """What the last claim says of the next jobs."""

    met: set[Lanes]
    """The lanes of its jobs."""
    plenty: bool = False
    """Whether it found at least half of the jobs that it asked for."""
    last_tries: bool = False
    """Whether it met any whose loss would end them."""
    size: float = 0.0
    """The bytes of a job's arguments."""

    @property
    def lets_ahead(self) -> bool:
        """Whether there are plenty of jobs that are short and may be lost."""
        return self.plenty and not self.last_tries and all(lanes.is_short for lanes in self.met)


class Claimer:
    """Claims for one worker, one claim at a time."""

    def __init__(
        self,
        setup: Setup,
        row: WorkerRow,
        slots: SlotTable,
        settler: Settler,
        *,
        tasks: AsyncLanes,
        threads: ThreadLanes,
        isolated: IsolatedLanes,
        hinted: Sequence[HintQueue] = (),
    ) -> None:
        self._client = setup.client
        self._driver = setup.driver
        self._registry = setup.registry
        self._clock = setup.clock
        self._queues = None if setup.queues is None else list(setup.queues)
        self._metrics = setup.metrics
        self._tally = setup.tally
        self._row = row
        self._slots = slots
        self._settler = settler
        self._tasks = tasks
        self._threads = threads
        self._isolated = isolated
        self._settings = setup.settings
        self._hinted = {queue.name: queue for queue in hinted}
        self._claiming = asyncio.Lock()
        """Held while a claim is under way: the jobs it took are not known before it is over."""
        self._floors = Floors()
        self.looks = LimitedLooks(setup, row)
        self._limited = self.looks.line
        self._limited_first = False
        self._was_due = False
        """Whether it was time to look at the bottom when the last claim was made."""
        self._empty_until = {PLAIN: 0.0, LIMITED: 0.0}
        self._rescan_asked = False
        self._last = LastClaim({threads, isolated})
        self._some_wait = False
        """Whether jobs of the claim under way may have to wait for a slot."""
        self.suspects = Suspects(setup.clock)

    # Claiming

    @property
    def has_room(self) -> bool:
        """Whether any job fits now."""
        most, kinds = self._fitting()
        return most > 0 and bool(kinds)

    async def claim_and_start(self) -> int:
        """Claim the jobs that fit, start them, and return their number."""
        if self._row.lost:
            raise LeaseLost(f"worker {self._row.id} was buried: its jobs belong to others now")
        if not self.has_room or not self._row.may_start():
            return 0
        async with self._claiming:
            most, kinds = self._fitting()  # a hint's claim may have come first
            if most <= 0 or not kinds:
                return 0
            self._some_wait = most > self._slots.free and not self._floors.due(self._now)
            claims = await self._fill(most, partial(self._claim_any, most, kinds))
            self._last.plenty = len(claims) * 2 >= most
            self.looks.ended(found=bool(claims))
            return len(claims)

    async def _fill(self, most: int, claim: ClaimCall) -> list[Claim]:
        """Claim for so many slots, and start the jobs."""
        self._slots.take(most)
        claims: list[Claim] = []
        try:
            await claim(claims)
        except Exception:
            # What was claimed before the failure is held by this worker: nobody else may run it.
            self._slots.miss(most - len(claims))
            self._start(claims, {})
            raise
        self._slots.miss(most - len(claims))
        self._start(claims, await self._links(claims) if self._client.hooks.links else {})
        return claims

    async def _links(self, claims: list[Claim]) -> Mapping[str, str]:
        """Read the trace contexts of the failed attempts before these; without them it goes on."""
        again = [claim.id for claim in claims if claim.errors]
        try:
            return await self._driver.run(failures.traces, again) if again else {}
        except MilepostError:
            return {}

    def _fitting(self) -> tuple[int, list[str]]:
        """Say how many jobs fit now, and of which kinds.

        Plain ones are bounded by the threads that are free, isolated ones by their processes;
        where the last claim met none of them, they do not hold the others up.
        """
        if self.suspects.keep_out(busy=bool(self._slots)):
            return 0, []
        ahead, slots = self._ahead(), self._slots
        size = slots.size + ahead
        room = min(max(1, size // 2), size - slots.busy, CLAIM_MOST)  # the others settle meanwhile
        if room < size // WORTH_A_CLAIM and self._settler.writing:
            return 0, []
        looks_at_all = not ahead or self._floors.due(self._now)
        if ahead and looks_at_all:
            room = min(room, max(1, slots.size // FOR_LONG))
        rooms: dict[Lanes, int] = {self._tasks: room}
        for lanes in (self._threads, self._isolated):
            rooms[lanes] = lanes.depth(size) - slots.held_in(lanes)
        found = [(d.word, self._lanes(d)) for d in self._registry.all]
        found = [(word, lanes) for word, lanes in found if looks_at_all or lanes.is_short]
        kinds = [word for word, lanes in found if rooms[lanes] > 0]
        bounding = self._last.met & {lanes for _, lanes in found}
        return min([room, *(rooms[lanes] for lanes in bounding if rooms[lanes] > 0)]), kinds

    def _ahead(self) -> int:
        """Say how many more jobs than slots may be held, where there are plenty of short ones.

        None where jobs run in processes of their own, a broker tells of jobs, or jobs under limits
        wait: while others are held ahead no slot is free for them. Jobs of lanes that are not short
        have their turn when the bottom of the line is looked at; so have those whose loss would end
        them, because nobody could tell whether one that is lost had begun.
        """
        if not self._last.lets_ahead or self._hinted or self.isolates or self._limited.waiting:
            return 0
        return self._slots.ahead(time.monotonic(), size=self._last.size)

    @property
    def isolates(self) -> bool:
        """Whether any job runs in a process of its own, other than suspects."""
        return any(self._lanes(definition) is self._isolated for definition in self._registry.all)

    def _lanes(self, definition: Definition, *, alone: bool = False) -> Lanes:
        """Choose where a job runs; a suspect in a process of its own, where that is possible."""
        wanted = definition.isolate or self._settings.isolate == "all"
        wanted = wanted or (alone and self._isolated.takes_suspects)
        if wanted and self._isolated.is_open and not self._registry.is_own(definition):
            return self._isolated
        return self._tasks if definition.is_async else self._threads

    async def _claim_any(self, most: int, kinds: list[str], claims: list[Claim]) -> None:
        """Claim other jobs, or a suspect if it comes first and nothing else is in this process."""
        alone = self.suspects.waiting and not self._slots and not self._threads.zombies
        if alone and self.suspects.comes_first:
            claims += await self._claim_alone(kinds)
            if claims:
                return
        self._rescan_asked = self.looks.crowded_out = False
        await self._claim(most, kinds, claims)
        if not claims and not self._floors.whole and self._floors.rescan(self._now):
            await self._claim(most, kinds, claims)
        if self._limited.must_ask(self._now, idle=not claims):
            self._limited.known = await self._driver.run(limits.any_rules)
            if self._limited.known and len(claims) < most:
                claims += await self._claim_limited(most - len(claims), kinds)
        if alone and not claims and self.suspects.waiting:
            claims += await self._claim_alone(kinds)

    async def _claim(self, most: int, kinds: list[str], claims: list[Claim]) -> None:
        """Claim jobs under limits and others; a line that was empty a moment ago comes second.

        It is asked for what the other one leaves room for, if that is worth a claim.
        """
        parts = {PLAIN: self._claim_plain, LIMITED: self._claim_limited}
        for line in self._in_turns() if self._limited.known else (PLAIN,):
            room = most - len(claims)
            if room > most // WORTH_A_CLAIM or (room and self._now >= self._empty_until[line]):
                found = await parts[line](room, kinds)
                self._empty_until[line] = 0.0 if found else self._now + EMPTY_SECONDS
                claims += found

    def _in_turns(self) -> tuple[str, str]:
        """Say which of the two lines comes first: in turns, but jobs under limits when it is time.

        That is the time to look at the bottom; where they leave no room for that look, the others
        are next (L-16).
        """
        due, was_due = self._floors.due(self._now), self._was_due
        self._limited_first = not self._limited_first or (due and not was_due)
        self._was_due = due
        first = LIMITED if self._limited_first else PLAIN
        if self._now < self._empty_until[first] and (first == PLAIN or not due):
            first = PLAIN if first == LIMITED else LIMITED
        return (LIMITED, PLAIN) if first == LIMITED else (PLAIN, LIMITED)

    async def _claim_limited(self, most: int, kinds: list[str]) -> list[Claim]:
        """Claim jobs under limits, for slots that are free.

        While others are held ahead there is none: one is claimed when the bottom of the line is
        looked at. If there is one, nothing more is claimed ahead, and the next have slots.
        """
        limited, began = self._limited, self._now
        limited.free(self._slots.take_freed())
        least = 1 if self._floors.due(began) else 0
        most = min(most, max(least, self._slots.size - len(self._slots)))
        if most <= 0:
            return []
        if self._queues is not None:
            limited.floors.know(self._scanned(self._queues, limited=True))
        elif limited.floors.due(began):
            waiting = await self._driver.run(queues.waiting)
            limited.floors.know(self._scanned(waiting, limited=True))
        found = await self.looks.claim(most, kinds)
        self._slots.awaited = limited.blocked
        return found

    async def _claim_plain(self, most: int, kinds: list[str]) -> list[Claim]:
        hinted = False
        if self._queues is not None:
            self._floors.know(self._scanned(self._queues))
        elif self._floors.due(self._now) and not (hinted := self._floors.follow_hint()):
            self._floors.know(self._scanned(await self._driver.run(queues.waiting)))
        claims = await self._claim_in_line(most, kinds)
        if hinted and not claims:
            self._floors.know(self._scanned(await self._driver.run(queues.waiting)))
            claims = await self._claim_in_line(most, kinds)
        return claims

    async def _claim_in_line(self, most: int, kinds: list[str]) -> list[Claim]:
        began = self._now
        line = self._floors.line(began)
        if not line:
            return []
        claims = await self._driver.run(
            jobs.claim,
            worker_id=self._row.id,
            line=line,
            most=most,
            kinds=kinds,
            ahead=self._some_wait,
            timed=True,
        )
        came_to_end = len(claims) < most
        self._floors.learn(claims, came_to_end=came_to_end, began=began, ended=self._now)
        return claims

    async def _claim_alone(self, kinds: list[str]) -> list[Claim]:
        """Claim a job whose loss would end it; the store refuses while this worker has another.

        Those that their limits block are passed over.
        """
        found = await self._find_suspects(kinds, most=TRIED_MOST)
        for (limited, *_), those in groupby(found, key=_TOGETHER):
            claim = limits.claim_alone if limited else jobs.claim_alone
            run, worker_id = self._driver.run, self._row.id
            if claims := await run(claim, list(those), worker_id=worker_id, kinds=kinds):
                self.suspects.began()
                return claims
        self.suspects.pass_over(found)
        return []

    async def _find_suspects(self, kinds: list[str], *, most: int) -> list[Suspect]:
        after, queues = self.suspects.after, self._queues
        return await self._driver.run(
            jobs.suspects, most=most, after=after, queues=queues, kinds=kinds
        )

    def _start(self, claims: list[Claim], links: Mapping[str, str]) -> None:
        self._tally.started(claims)
        if self._metrics is not None:
            self._metrics.started(claims)
        alone = self.suspects.running
        started: dict[Lanes, list[RunningJob]] = {self._tasks: []}
        for claim in claims:
            definition = self._registry.find(claim.kind, claim.kind_version)
            if definition is None:  # it vanished while the claim was under way
                detail = f"no definition of {claim.kind} version {claim.kind_version} here"
                self._slots.start()
                self._settler.add(claim, outcome.released(detail))
                continue
            lanes = self._lanes(definition, alone=alone)
            job = RunningJob(claim, definition, Context(claim, self._client), lanes)
            job.suspect = alone and not (definition.isolate or self._settings.isolate == "all")
            if links:
                job.context.link = links.get(claim.id)
            started.setdefault(lanes, []).append(job)
        self._last.met = {lanes for lanes, found in started.items() if found}
        for found in started.values():
            self._slots.hold(found)
        self._learn(claims)

    def _learn(self, claims: Sequence[Claim]) -> None:
        """Learn whether the next jobs may be claimed ahead."""
        if claims:
            self._last.size = sum(len(claim.payload or b"") for claim in claims) / len(claims)
            self._last.last_tries = any(c.losses >= c.losses_allowed for c in claims)
        if any(claim.losses for claim in claims):
            # If one of them ends this process again, few others should be lost with it.
            self._slots.none_ahead(time.monotonic())

    # Jobs that a broker's hints name

    @property
    def room(self) -> int:
        """How many jobs fit now."""
        most, kinds = self._fitting()
        return most if kinds and self._row.may_start() else 0

    @property
    def free(self) -> int:
        """How many slots are free, if any job may start now; a broker gives no more hints."""
        return self._slots.free if self.room else 0

    @property
    def words(self) -> Sequence[str]:
        """The kinds that fit now; plain ones need a thread that is free."""
        return self._fitting()[1]

    async def wait_for_room(self) -> None:
        """Wait until a slot is free, a second at most."""
        await self._slots.freed_within(ROOM_SECONDS)

    async def claim_hinted(
        self, queue: str, ids: Sequence[str]
    ) -> tuple[Sequence[str], list[Claim]]:
        """Claim those of the first jobs, as many as fit, that can be claimed, and start them.

        Answers with the jobs that were tried, too: others may have filled slots meanwhile, or have
        chosen from the same keys.
        """
        if self._row.lost:
            raise LeaseLost(f"worker {self._row.id} was buried: its jobs belong to others now")
        async with self._claiming:
            most, kinds = self._fitting()
            tried = list(ids[:most]) if kinds and self._row.may_start() else []
            if not tried:
                return [], []
            claim = partial(self._claim_named, tried, queue, kinds)
            return tried, await self._fill(len(tried), claim)

    async def _claim_named(
        self, ids: list[str], queue: str, kinds: list[str], claims: list[Claim]
    ) -> None:
        """Claim these, and leave in `ids` those that were tried: other claims may hold the rest."""
        run, worker_id = self._driver.run, self._row.id
        claims += await run(hints.claim, ids, worker_id=worker_id, queue=queue, kinds=kinds)
        if len(claims) < len(ids) and await self._has_rules():
            left = sorted(set(ids) - {claim.id for claim in claims})
            found, whole = await run(
                limits.claim_named, left, worker_id=worker_id, queue=queue, kinds=kinds
            )
            claims += found
            self._slots.limited.update(one.queue for one in found if one.limit_key is None)
            if not whole:
                ids[:] = [claim.id for claim in claims]

    async def _has_rules(self) -> bool:
        if self._limited.must_ask(self._now, idle=False):
            self._limited.known = await self._driver.run(limits.any_rules)
        return self._limited.known

    def _scanned(self, queues: Iterable[str], *, limited: bool = False) -> list[str]:
        """Leave out the queues whose broker tells what there is; while it is away, none.

        Nor, for jobs under limits, those that have some that it was not told of.
        """
        told = {n for n, q in self._hinted.items() if not q.reach.scanning}
        told -= {n for n, q in self._hinted.items() if limited and q.has_others}
        return [queue for queue in queues if queue not in told]

    # Where to look next

    def expect(self, queues: Iterable[str]) -> None:
        """Look at these queues first, and from the bottom: they are said to have work."""
        self._floors.expect(self._scanned(queues))
        self._floors.rescan(self._now)
        self._limited.floors.rescan(self._now)

    async def must_look_again(self) -> bool:
        """Ask for a look at the bottom if the last was none; False once there was one.

        A look from the floors says nothing of queues that were not met before, one at blocked jobs
        nothing of those behind them, and one while others were choosing nothing of what they held.
        """
        if await self.looks.outlast_others() or self._limited.sweep.must_go_on():
            return True
        known = [self._floors, *([self._limited.floors] if self._limited.known else [])]
        if all(floors.whole for floors in known) or self._rescan_asked:
            return False
        self._rescan_asked = True
        for floors in known:
            floors.whole_next = True
        return True

    @property
    def _now(self) -> float:
        return self._clock.monotonic()

    # Between claims

    async def look_for_suspects(self) -> None:
        """Learn whether a suspect is in line; a stuck thread would be its company to the end."""
        words = [] if self._threads.zombies else self._registry.words
        self.suspects.see(waiting=bool(words and await self._find_suspects(words, most=1)))

    async def reconcile(self) -> None:
        """Give back jobs that the store says we hold and we do not know: a claim's lost reply."""
        async with self._claiming:
            known = self._slots.known
            await self._driver.run(jobs.reconcile, worker_id=self._row.id, known=known)

    async def recall(self) -> int:
        """Send on jobs that waited for other parameters than they were tried with, if ours are."""
        found = await self._driver.run(unfit.kinds)
        known = ((kind, self._registry.find(*kind)) for kind in found)
        codec = self._client.codec
        signatures = {k: d.arguments.signature(codec) for k, d in known if d is not None}
        if not signatures:
            return 0
        actor, queues = self._row.id, self._queues
        return await in_batches(self._driver, unfit.wake, signatures, queues=queues, actor=actor)
