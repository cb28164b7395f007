"""Whatever rules, keys and leases there are, a choice is legal and leaves out none."""

import random
from collections import Counter, defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from milepost import outcome
from milepost.limit import split_key
from milepost.store import jobs, limits, rules, timers
from milepost.store.limits import STRIPES, Reach
from milepost.store.rules import Limit
from tests.support.databases import Backends, everyday_names
from tests.support.suite import Store, opened
from tests.support.suite.limits import put
from tests.support.suite.store import GOOD, PROBLEM

QUEUES = ("default", "slow")
RULES = ("a", "b/c", "d", "e%")
ALL = Reach(front=1_000, visits=1_000, newest=1_000, quantum=1_000)
HOUR_US = 3_600_000_000


def some_limit(chance: random.Random) -> Limit:
    most = chance.choice([None, 0, 1, 2, 5])
    if chance.random() < 0.2:
        return Limit(ordered=True)
    if chance.random() < 0.25:
        return Limit(
            most=most, rate=chance.choice([2, 60]), per_us=HOUR_US, burst=chance.choice([1, 3])
        )
    return Limit(most=most)


class Model:
    """What the store has, read by plain queries, and what may start by the words of the rules."""

    def __init__(self, store: Store, known: dict[tuple[str, str], Limit]) -> None:
        self.known = known
        self.jobs = store.rows(
            "SELECT id, queue, priority, coalesce(limit_key, ''), state, queued_seq, fence"
            " FROM job WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"
        )
        self.live = Counter(key for _, _, _, key, state, *_ in self.jobs if state == "RUNNING")
        self.busy = Counter(queue for _, queue, _, _, state, *_ in self.jobs if state == "RUNNING")

    def rule(self, key: str) -> Limit:
        return self.known.get(("job", split_key(key)[0]), Limit()) if key else Limit()

    def counts(self) -> dict[str, Counter[str]]:
        """Tell for each queue how many of each key may start, as far as numbers say."""
        waiting: dict[str, Counter[str]] = defaultdict(Counter)
        for _, queue, _, key, state, *_ in self.jobs:
            if state == "QUEUED":
                waiting[queue][key] += 1
        return waiting

    def room(self, key: str) -> float:
        rule = self.rule(key)
        if rule.ordered:
            asleep = any(
                k == key and fence and state in ("WAITING", "RETRYING")
                for _, _, _, k, state, _, fence in self.jobs
            )
            return 0 if asleep or self.live[key] else 1
        return float("inf") if rule.most is None else max(0, rule.most - self.live[key])

    def check(self, taken: list[Any]) -> None:
        """See that nothing was taken that may not start."""
        keys = Counter(claim.limit_key or "" for claim in taken)
        for key, count in keys.items():
            assert count <= self.room(key), (key, count, self.rule(key), self.live[key])
        for queue, count in Counter(claim.queue for claim in taken).items():
            most = self.known.get(("queue", queue), Limit()).most
            assert most is None or count <= max(0, most - self.busy[queue])
        for claim in taken:
            if claim.limit_key and self.rule(claim.limit_key).ordered:
                mine = (claim.queue, claim.priority, claim.limit_key)
                first = min(
                    seq
                    for _, q, p, k, state, seq, _ in self.jobs
                    if (q, p, k) == mine and state == "QUEUED"
                )
                assert claim.queued_seq == first

    def check_all_taken(self, taken: list[Any]) -> None:
        """See that all were taken that numbers allow, where no rate says otherwise."""
        got = Counter((claim.queue, claim.limit_key or "") for claim in taken)
        spread = Counter({key: sum(n for (_, k), n in got.items() if k == key) for _, key in got})
        for queue, waiting in self.counts().items():
            rule = self.known.get(("queue", queue), Limit())
            if rule.rate is not None:
                continue
            full = rule.most is not None and sum(
                n for (q, _), n in got.items() if q == queue
            ) >= max(0, rule.most - self.busy[queue])
            for key, count in waiting.items():
                if (
                    full
                    or self.rule(key).rate is not None
                    or (not key and ("queue", queue) not in self.known)
                ):
                    continue
                left = count - got[queue, key]
                assert not left or spread[key] >= self.room(key), (
                    queue,
                    key,
                    left,
                    spread[key],
                    self.rule(key),
                )

    def check_turns(self, taken: list[Any]) -> None:
        """See that of no key more run now than of another one whose next job might have gone.

        That is told within a line, of keys that nothing but numbers bounds.
        """
        now = self.live + Counter(claim.limit_key for claim in taken)
        for queue, priority in {(claim.queue, claim.priority) for claim in taken}:
            mine = [claim for claim in taken if (claim.queue, claim.priority) == (queue, priority)]
            last = max((now[key] for claim in mine if (key := claim.limit_key)), default=0)
            waiting = Counter(
                key
                for _, q, p, key, state, *_ in self.jobs
                if (q, p, state) == (queue, priority, "QUEUED")
            )
            waiting -= Counter(claim.limit_key or "" for claim in mine)
            for key in waiting.keys() - {""}:
                rule = self.rule(key)
                if rule.ordered or rule.rate is not None or now[key] >= self.end(key):
                    continue
                assert last <= now[key] + 1, (queue, priority, key, now, last)

    def end(self, key: str) -> float:
        """Tell how many of a key may run at once."""
        most = self.rule(key).most
        return float("inf") if most is None else most


@pytest.mark.parametrize("backend", everyday_names())
@pytest.mark.parametrize("seed", range(8))
def test_a_choice_is_legal_and_leaves_out_none_that_may_start(backends: Backends, backend, seed):
    # Of its own: a claim of an earlier test, not over yet, would hold stripes.
    with opened(backends.fresh(backend), "sync") as store:
        Story(store, random.Random(seed)).run()


class Story:
    """Jobs are made, claimed, settled, and rules changed, as chance has it."""

    def __init__(self, store: Store, chance: random.Random) -> None:
        self.store, self.chance = store, chance
        self.known: dict[tuple[str, str], Limit] = {}
        self.held: list[Any] = []
        self.leases: dict[tuple[str, str], int] = {}
        self.drawn = 0
        store.worker(lease=9_999_999)

    def run(self) -> None:
        for _ in range(25):
            if self.chance.random() < 0.4:
                self.change()
            self.put()
            self.claim()
            self.settle()

    def change(self) -> None:
        scope = self.chance.choice(["job", "job", "job", "queue"])
        name = self.chance.choice(RULES if scope == "job" else QUEUES)
        rule = some_limit(self.chance)
        if scope == "queue":
            rule = Limit(most=self.chance.choice([0, 2, 9, 50]))
        self.store.run(rules.declare, {(scope, name): rule})
        self.known = {place: found.limit for place, found in self.store.run(rules.rules).items()}

    def put(self) -> None:
        for _ in range(self.chance.randrange(5)):
            rule = self.chance.choice(RULES)
            keys = self.chance.choices("xyz", k=self.chance.randrange(1, 6))
            place = {
                "queue": QUEUES[rule == "d"],
                "priority": 5 * (rule == "a" and self.chance.random() < 0.3),
            }
            put(self.store, *keys, rule=rule, **place)

    def claim(self) -> None:
        model = Model(self.store, self.known)
        whole = self.chance.random() < 0.5
        pick = self.chance.choice
        some = Reach(
            front=pick([0, 1, 5, 20]),
            visits=pick([0, 2, 16]),
            newest=pick([0, 3]),
            quantum=pick([1, 4]),
        )
        most = pick([1_000, 1_000, 1, 2, 4]) if whole else pick([1, 5, 20])
        line = jobs.lines(QUEUES)
        leases = [(*place, floor) for place, floor in self.leases.items()]
        reach = replace(ALL if whole else some, leases=pick([None, [], leases, leases]))
        taken, look = self.store.run(
            limits.claim, worker_id="w1", line=line, most=most, reach=reach
        )
        for scope, name, floor in look.leases or ():
            self.leases.pop((scope, name), None)  # None: jobs run that were claimed without a limit
            self.leases.update({} if floor is None else {(scope, name): floor or self.drawn})
        self.drawn = look.drawn or self.drawn
        assert look.locked == STRIPES
        assert len(taken) <= most
        model.check(taken)
        if whole:
            model.check_turns(taken)
            if most == 1_000:
                model.check_all_taken(taken)
        self.held += taken

    def settle(self) -> None:
        self.chance.shuffle(self.held)
        ended = [self.held.pop() for _ in range(self.chance.randrange(len(self.held) + 1))]
        outcomes = [
            GOOD,
            outcome.failed(PROBLEM),
            outcome.retry(PROBLEM, after=30),
            outcome.released("no"),
        ]
        if ended:
            self.store.settle(*((claim, self.chance.choice(outcomes)) for claim in ended))
        if self.chance.random() < 0.5:
            self.store.advance(self.chance.choice([1, 31, 2_000]))
            self.store.run(timers.wake, actor="m", most=999)
            self.store.run(timers.reject_spent, actor="m", most=999)
