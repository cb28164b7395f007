"""Claims of jobs under limits: where a worker looks for them, and how far."""

import asyncio
import random
from math import inf

from msgspec.structs import replace

from milepost.records import Claim
from milepost.store import limits
from milepost.store.jobs import Line
from milepost.store.limits import STRIPES, Freed, Look, Reach
from milepost.worker import Setup
from milepost.worker.floors import Floors, LeaseFloors, Passed, seldom
from milepost.worker.heartbeat import WorkerRow

STRIPE_TRIES = 3
"""How often jobs under limits are looked for at once, while others hold stripes or queues."""
CROWDED_SECONDS = 0.05
"""A worker that found nothing while others were choosing looks again after this."""
CROWDED_TIMES = 100
"""A drain does so as often in a row; what is held for longer is no claim's lock."""
VISITS = 16
"""How many keys each claim looks at in the order of keys, so that no key starves behind others."""
VISITS_MOST = 128
VISITS_EMPTY = 48
"""As many where the last look found all of them blocked: such looks come again and again."""
KEYS_LEAST, KEYS_MOST = 4, 2_000
CHEAP_US, LOOK_US, TAKING_US = 25, 6_000, 25_000
"""A key usually takes 5 microseconds to look at. Behind an old snapshot it takes more, and a look
visits as many keys as fit into `LOOK_US`; into `TAKING_US` where it takes most of the jobs that it
sees, because a smaller look would cost more for each job."""
FADE, PROBE = 0.8, 4
"""The weight of a look after the next one; and how often one is half as large, to compare."""
SWEEP = 256
"""How many jobs a look behind blocked ones examines, each of them."""
SWEEPS, SWEEP_SHARE = 8, 0.05
"""Where nothing else may start, this many follow each other, for this share of the time."""
SWEEP_TURN, SWEEP_MOST_SECONDS = 32, 20.0
"""One look in this many goes there though others find jobs, or at least one in so long where that
takes long; it takes one job, because older jobs of its key may be free by now."""
NEWEST = 8
"""How many of the newest jobs have their keys looked at: a new job is found at once."""
FREED_MOST = 1_000
SHARE_LEAST = 1 / 16
RULES_SECONDS = 1.0
"""How long a store that had no rules is not asked again, while there are other jobs to claim."""


class KeyCost:
    """What a key takes in a look, without what every look takes: the slope of recent looks."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5

    def learn(self, keys: int, us: float) -> float:
        """Take a look into account; answer with the microseconds of a key."""
        one = (1.0, keys, us, keys * keys, keys * us)
        self._sums = [FADE * old + new for old, new in zip(self._sums, one, strict=True)]
        n, x, y, xx, xy = self._sums
        spread = n * xx - x * x
        # Where all were of one size, nobody can tell.
        return (n * xy - x * y) / spread if spread >= n * n else y / max(x, 1.0)


class Sweep:
    """The looks that pass over blocked jobs: where the next one goes on, and when it is worth it.

    Such jobs may be more than a look has, and what stands behind them is not always found by keys:
    jobs whose number is lower than those of their line, or behind others of a kind that is unknown
    here. They have an order of their own, and so begin at its top: what the looks at the first in
    line did not come to, because another queue or priority was first, may stand anywhere in it.
    """

    def __init__(self) -> None:
        self.hides = False
        """Whether more jobs may stand behind those that were blocked."""
        self.beyond: Passed | None = None
        """Behind which job the next one goes on; None: it begins at the top."""
        self.is_on = False
        """Whether the look under way is one of them."""
        self._swept = self._sweeps_all = False
        """Whether they have come to the end since a job was last taken or a lease ended, and
        whether those under way will have."""
        self._due = self._one_due = 0.0

    def free(self, keys: dict[Freed, None]) -> None:
        """Begin anew where leases have ended: jobs that were passed over may start."""
        self._swept = self._swept and not keys
        self._sweeps_all = self._sweeps_all and not keys

    def looks(self, now: float) -> int:
        """Say how many are worth their time now."""
        return SWEEPS if self.hides and now >= self._due else 0

    def must_go_on(self) -> bool:
        """Ask for them at once if they have not come to the end; False once they have."""
        self._due = 0.0
        return self.hides and not self._swept

    def is_due_alone(self, now: float) -> bool:
        """Tell whether it is time for one of them though others find jobs."""
        return self.hides and now >= self._one_due

    def took_alone(self, began: float, ended: float) -> None:
        """Learn how long that one took."""
        self._one_due = seldom(began, ended, most=SWEEP_MOST_SECONDS)

    def took(self, began: float, ended: float) -> None:
        """Learn how long they took."""
        self._due = max(self._due, ended + (ended - began) / SWEEP_SHARE)

    def learn(self, look: Look, reach: Reach, *, taken: int) -> None:
        """Learn where to go on behind the jobs looked at: to the end, where many were blocked."""
        ended = look.front < reach.front or look.last is None
        begins = not (self.hides or ended) and is_crowded(look)
        self._swept = self._swept and not taken
        self._sweeps_all = not taken and (begins or self._sweeps_all)
        self.hides = self.hides or begins
        if self.is_on and ended:
            self.hides, self.beyond, self._swept = False, None, self._sweeps_all
        elif self.is_on and look.last is not None:
            queue, priority, number, rowid = look.last
            self.beyond = (queue, priority), number, rowid


def is_crowded(look: Look) -> bool:
    """Tell whether many of the first in line are blocked."""
    return look.blocked > max(1, look.front) / 4


class LimitedLine:
    """What a worker knows of the jobs under limits.

    As long as the first in line may start, they are taken in the order of their arrival. The more
    of them are blocked, the more goes by keys.
    """

    def __init__(self) -> None:
        self.floors = Floors()
        self.known = False
        """Whether the store has any rules."""
        self.waiting = False
        """Whether one may start in a slot that is free: the last look met some, and not all of them
        blocked, or a lease has ended since."""
        self.blocked = False
        """Whether the last look met any that may not start: the end of a lease may change that."""
        self.wait_seconds: float | None = None
        """In how long a rate lets the next job start; None: nothing is known of one."""
        self._asked_at = -RULES_SECONDS
        """When the store was last asked whether it has rules."""
        self._after = ""
        """Behind which key the next look in the order of keys goes on; empty: it begins anew."""
        self._share = 1.0
        """The share of a look that goes to the first in line; the rest of it goes by keys."""
        self._keys = 1
        """How many keys the last look by keys met."""
        self._empty = False
        """Whether all that the last look met were blocked."""
        self._left = False
        """Whether blocked jobs may stand behind the floors: since the bottom was last looked at."""
        self._short = False
        """Whether the last look met all that stand in the line."""
        self._few = False
        """Whether there are so few keys that a look meets them all."""
        self._asked, self._spare = 0, False
        """How many jobs the last look was for, and whether it found fewer."""
        self._walks = False
        """Whether the last look at the first in line went by keys, too: every other one does."""
        self._stripe = random.randrange(STRIPES)  # noqa: S311 - spreads workers
        self._stripes = STRIPES
        self._freed: dict[Freed, None] = {}
        """Keys of which a lease has ended here, and that were not looked at since."""
        self._cost = KeyCost()
        self._affordable = float(KEYS_MOST)
        """How many keys a look has time for."""
        self._turn = self._probes = 0
        self._bottoms: dict[tuple[str, int], int] = {}
        """The number of the first job in line, by queue and priority: none waits below it."""
        self.leases = LeaseFloors()
        self.sweep = Sweep()
        self.takes_one = False
        """Whether this look is for one job, however many slots are free."""

    def must_ask(self, now: float, *, idle: bool) -> bool:
        """Tell whether to ask for rules: there were none a while ago, or nothing is to do."""
        if self.known or not (idle or now - self._asked_at >= RULES_SECONDS):
            return False
        self._asked_at = now
        return True

    def free(self, keys: dict[Freed, None]) -> None:
        """Remember keys under which a lease has ended: a job that was blocked may start."""
        self.waiting = self.waiting or (self.blocked and bool(keys))
        self.sweep.free(keys)
        if self._share == 1.0:
            return
        self._freed.update(keys)
        while len(self._freed) > FREED_MOST:
            del self._freed[next(iter(self._freed))]

    def line(self, now: float, *, beyond: bool = False) -> list[Line]:
        """Say where to look now: from the floors, or `beyond` jobs that are blocked.

        One look in so many goes there in any case.
        """
        self._turn += 1
        self.leases.begin(now)
        sweep = self.sweep
        its_turn = not beyond and self._turn % SWEEP_TURN == 0
        self.takes_one = its_turn and sweep.is_due_alone(now)
        sweep.is_on = sweep.hides and (beyond or self.takes_one)
        if sweep.is_on:
            # It goes on after a look from the floors or at the bottom; or it is in place of one.
            self.floors.whole = self.floors.whole and beyond
            found = self.floors.beyond(sweep.beyond)
            sweep.hides = bool(found)
            return found
        return self.floors.line(now)

    def reach(self, most: int) -> Reach:
        """Say how far to look for so many jobs, and from where on to count leases."""
        return replace(self._reach(most), leases=self.leases.known)

    def _reach(self, most: int) -> Reach:
        if self.sweep.is_on:
            front = min(SWEEP, int(self._affordable))
            return Reach(front=front, surplus=True, stripe=self._stripe, stripes=self._stripes)
        self._walks = not self._walks
        self._probes += 1
        self._asked = most
        here = Reach(
            after=self._after, bottoms=self._bottoms, stripe=self._stripe, stripes=self._stripes
        )
        # Each key gets the same share; where none could be taken, its first job is enough to see.
        share = 1 if self._empty else max(1, most // self._keys)
        keys = int(self._affordable)
        if keys < most and self._probes % PROBE == 0:
            keys //= 2
        wanted, most = most, min(most, keys)
        visits = min(VISITS, max(1, keys // 8))
        newest = min(NEWEST, max(1, keys // 16))
        if self._few:
            # The first of each key may be for other workers, or old jobs below the bottom.
            front = max(1, int(most * self._share)) if self._spare or self.floors.whole else 0
            return replace(here, front=front, visits=VISITS, newest=newest, quantum=share)
        if self._share < 1.0:
            many = VISITS_EMPTY if self._empty else VISITS_MOST
            return replace(
                here,
                front=max(1, int(most * self._share)),
                visits=min(many, 2 * most, max(1, keys // 4)),
                newest=newest,
                quantum=share,
                freed=list(self._freed)[:most],
            )
        if wanted < VISITS:
            # For a few slots there are always more keys than jobs that fit: each has its turn.
            return replace(here, front=most, visits=visits, newest=newest)
        if not self._walks or (self._short and not self._left):
            return replace(here, front=most)
        visits, newest = min(visits, max(1, most // 8)), min(newest, max(1, most // 16))
        return replace(here, front=max(1, most - visits - newest), visits=visits, newest=newest)

    def looked(
        self, claims: list[Claim], look: Look, reach: Reach, *, began: float, ended: float
    ) -> None:
        """Learn from the claims of a look, from how it went, and from its time."""
        if not self.sweep.is_on:
            # In a queue with a limit of its own, jobs without a key are not among the front.
            front_ended = look.front < reach.front
            ended_all = front_ended and look.whole and len(claims) < self._asked
            last = None if front_ended or look.last is None else look.last[:2]
            self.floors.learn(claims, came_to_end=ended_all, last=last, began=began, ended=ended)
        if self.takes_one:
            self.sweep.took_alone(began, ended)
        self.learn(look, reach, taken=len(claims))

    def learn(self, look: Look, reach: Reach, *, taken: int) -> None:
        """Learn from how a look went."""
        self._learn_cost(look, taken=taken)
        self.leases.learn(look)
        self.sweep.learn(look, reach, taken=taken)
        self._learn_stripes(look, reach, taken=taken)
        if self.sweep.is_on:
            self.waiting = self.waiting or taken > 0
            return
        for key in reach.freed:
            self._freed.pop(key, None)
        self.blocked = look.blocked > 0
        self.waiting = taken > 0 or (look.front + look.visited > 0 and not self.blocked)
        self._left = self.blocked or (self._left and not self.floors.whole)
        self._short = look.whole and look.front < reach.front
        self._empty = self.blocked and not taken
        self._spare = taken < self._asked
        if reach.visits:
            self._few = look.visited > 0 and look.after is None and not reach.after
            self._after = look.after or ""
            self._keys = max(1, look.visited)
        for queue, priority, first in look.firsts or ():
            self._bottoms[queue, priority] = self.floors.top_before if first is None else first
        self.wait_seconds = None if taken or look.wait_us is None else look.wait_us / 1e6
        self._learn_share(look)

    def _learn_cost(self, look: Look, *, taken: int) -> None:
        """Learn how many keys a look has time for, from what each of them took in this one."""
        seen = look.front + look.visited
        walked = self.floors.whole and not self.sweep.is_on
        if walked or not look.took_us or not seen:
            return  # walked from its bottom, or empty: the line says nothing of keys
        each = self._cost.learn(seen, look.took_us)
        most_us = TAKING_US if 2 * taken >= seen else LOOK_US
        wanted = KEYS_MOST if each < CHEAP_US else max(KEYS_LEAST, most_us / each)
        # One look that took long for another reason must not let the next one have thousands.
        self._affordable = min(2 * self._affordable, (self._affordable + wanted) / 2)

    def _learn_share(self, look: Look) -> None:
        seen = max(1, look.front)
        if is_crowded(look):
            self._share = max(SHARE_LEAST, self._share / 2)
        elif look.blocked < seen / 20:
            self._share = min(1.0, self._share * 2)

    def _learn_stripes(self, look: Look, reach: Reach, *, taken: int) -> None:
        """Ask for fewer stripes where others hold some; each worker then keeps to its own."""
        if look.locked < reach.stripes:
            self._stripes = max(2, self._stripes // 2)
            if look.locked == 0:
                self._stripe = random.randrange(STRIPES)  # noqa: S311 - spreads workers
        elif taken:
            self._stripes = min(STRIPES, self._stripes + 1)
        else:
            self._stripes = STRIPES  # jobs may wait in those that it did not see
        self._stripe = (self._stripe + look.locked) % STRIPES


class LimitedLooks:
    """Claims jobs under limits for one worker, as far as its memory of their line says."""

    def __init__(self, setup: Setup, row: WorkerRow) -> None:
        self._driver = setup.driver
        self._metrics = setup.metrics
        self._clock = setup.clock
        self._row = row
        self.line = LimitedLine()
        self._poll_min = setup.settings.poll_min
        self.crowded_out = False
        """Whether others held what a claim looked at in vain; each claim begins without."""
        self._crowded_times = 0
        """In how many claims in a row."""

    async def claim(self, most: int, kinds: list[str]) -> list[Claim]:
        """Look until there are jobs, or none that may start; behind blocked ones, too."""
        for _ in range(STRIPE_TRIES):
            claims, whole = await self._look(most, kinds)
            if claims or whole:
                return claims or await self._sweep(most, kinds)
        self.crowded_out = True
        return []

    async def _sweep(self, most: int, kinds: list[str]) -> list[Claim]:
        """Look behind the jobs that are blocked, where nothing else was found."""
        claims: list[Claim] = []
        began = self._clock.monotonic()
        for _ in range(self.line.sweep.looks(began)):
            claims, _ = await self._look(most, kinds, beyond=True)
            if claims or not self.line.sweep.hides:
                break
        self.line.sweep.took(began, self._clock.monotonic())
        return claims

    async def _look(
        self, most: int, kinds: list[str], *, beyond: bool = False
    ) -> tuple[list[Claim], bool]:
        """Look once; answer also whether it could choose from all, or others hold some."""
        began = self._clock.monotonic()
        line = self.line.line(began, beyond=beyond)
        if not line:
            return [], True
        most = 1 if self.line.takes_one else most
        reach = self.line.reach(most)
        try:
            claims, look = await self._driver.run(
                limits.claim, worker_id=self._row.id, line=line, most=most, reach=reach, kinds=kinds
            )
        except Exception:
            self.line.leases.forget()
            raise
        self.line.looked(claims, look, reach, began=began, ended=self._clock.monotonic())
        if self._metrics is not None:
            self._metrics.looked(look, taken=len(claims))
        return claims, look.whole

    def ended(self, *, found: bool) -> None:
        """Learn whether a claim has found any job, of either line."""
        self._crowded_times = self._crowded_times + 1 if self.crowded_out and not found else 0

    async def outlast_others(self) -> bool:
        """Wait a moment if the last claim found nothing because others were choosing."""
        waits = 0 < self._crowded_times <= CROWDED_TIMES
        if waits:
            await others_chosen()
        return waits

    @property
    def wait_seconds(self) -> float:
        """In how long it is worth a look: a rate lets the next job start, or others have chosen."""
        rate = self.line.wait_seconds
        until_rate = inf if rate is None else max(rate, self._poll_min)
        return min(until_rate, CROWDED_SECONDS if self.crowded_out else inf)


async def others_chosen() -> None:
    """Wait until other claims have probably let go of what they hold."""
    await asyncio.sleep(CROWDED_SECONDS * random.uniform(0.2, 1.0))  # noqa: S311 - spreads workers
