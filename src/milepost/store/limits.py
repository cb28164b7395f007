"""Limits: how many jobs of a key or a queue run at once, and how many start in a time.

Nothing is stored about a job that a limit keeps waiting. It stays QUEUED, and whether it may start
is derived by the claim: from the live leases under its key, and from the key's bucket (GCRA: one
instant). So there is nothing that could leak, or that would have to be woken or repaired.

A job's `limit_key` is `stripe/rule/key`. On PostgreSQL a claim locks stripes, without waiting, and
takes jobs of those alone: nobody else can add a lease under their keys until it has committed.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from operator import attrgetter, itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from milepost.limit import STRIPES, limit_key, stripe_of
from milepost.records import Claim
from milepost.store.choice import Candidate, Choice, Standing, choose, rule_of, whole_us
from milepost.store.driver import Call, Rows, Steps
from milepost.store.jobs import Line, Suspect, claimed, lines
from milepost.store.rules import Limit, rules

__all__ = ["STRIPES", "Freed", "Look", "Reach", "limit_key", "stripe_of"]

_IN_ORDER = attrgetter("line", "seq", "number")
_READ = 3
"""A job of the front is its rowid, its line and its units; then comes what a claim has of it."""
_PLACES = map(Claim.__struct_fields__.index, ("queued_seq", "queue", "priority", "limit_key"))
_NUMBER = Claim.__struct_fields__.index("queued_seq")
"""Where the row of a look has the number of the leases."""
_AS_CANDIDATE = itemgetter(0, 1, *(_READ + place for place in _PLACES), 2)


Freed = tuple[str, str, int]
"""A key, and the queue and the priority of its job that has ended."""


LeaseFloor = tuple[str, str, int]
"""Of a `job` key or a `queue`: the number below which no lease of it lives."""


class Reach(msgspec.Struct, frozen=True):
    """How far a claim of jobs under limits looks."""

    front: int = 0
    """How many of the first in line are looked at."""
    visits: int = 0
    """How many keys are looked at, in the order of keys."""
    after: str = ""
    """The key that those follow."""
    newest: int = 0
    """The keys of how many of the newest jobs are looked at."""
    quantum: int = 1
    """How many jobs of each of those keys are looked at."""
    freed: Sequence[Freed] = ()
    """Keys that are looked at, too: one of their leases has ended."""
    leases: Sequence[LeaseFloor] | None = None
    """From which number on live leases stand, as far as it is known; None: nobody wants to know."""
    bottoms: Mapping[tuple[str, int], int] = {}
    """From which number on keys of a queue and a priority are looked at: no job waited below."""
    stripe: int = 0
    stripes: int = STRIPES
    """How many stripes are taken, from the first one on."""
    surplus: bool = False
    """Whether most of what is looked at is expected to be blocked."""


class Look(msgspec.Struct, frozen=True, array_like=True):
    """How a look went."""

    locked: int
    """How many stripes it got."""
    front: int
    blocked: int
    """How many of the jobs looked at may not start now."""
    visited: int
    after: str | None
    """The key to go on after; None: there are no more."""
    key_us: float | None
    """In how many microseconds a key's rate lets its next job start."""
    queue_us: float | None
    firsts: tuple[tuple[str, int, int | None], ...] | None = None
    """The number of the first job of a queue and a priority, where the bottom was looked at."""
    took_us: int = 0
    """How many microseconds the choice took; 0: not measured."""
    last: tuple[str, int, int, int] | None = None
    """The queue, the priority and the number of the last job in line that was looked at, and its
    rowid where numbers are shared."""
    others: bool = False
    """Whether another claim was choosing from a queue with a limit of its own."""
    leases: tuple[tuple[str, str, int | None], ...] | None = None
    """From which number on live leases stand, where that was asked for. None: it is not known; 0:
    none lives."""
    drawn: int | None = None
    """The number of the leases that the claim took, if it drew one."""

    @property
    def whole(self) -> bool:
        """Whether it could choose from all: others had no stripe and no queue."""
        return self.locked == STRIPES and not self.others

    @property
    def wait_us(self) -> float | None:
        """Microseconds until a rate lets the next job start; None: no rate keeps it waiting."""
        return min((us for us in (self.key_us, self.queue_us) if us is not None), default=None)


def claim(
    *,
    worker_id: str,
    line: Sequence[Line],
    most: int,
    reach: Reach,
    ids: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    alone: bool = False,
) -> Steps[tuple[list[Claim], Look]]:
    """Take up to `most` jobs that are under a limit; those with these ids, if there are any."""
    asked = {
        "worker_id": worker_id,
        "queue": [place.queue for place in line],
        "priority": [place.priority for place in line],
        "floor": [place.floor for place in line],
        "kinds": None if kinds is None else list(kinds),
        "alone": alone,
    }
    keys = {
        "visits": reach.visits,
        "after": reach.after,
        "newest": reach.newest,
        "quantum": reach.quantum,
        "freed": msgspec.json.encode(reach.freed).decode(),
    }
    leases = None if reach.leases is None else msgspec.json.encode(reach.leases).decode()
    bottoms = [reach.bottoms.get((place.queue, place.priority), 0) for place in line]
    more = {"stripe": reach.stripe, "stripes": reach.stripes, "front": reach.front, "timed": True}
    named = None if ids is None else list(ids)
    placed = {**asked, "place": list(range(len(line))), "past": line[0].past if line else 0}
    rows = yield Call(
        "job_claim_limited",
        {**asked, **keys, **more, "bottom": bottoms, "leases": leases, "id": named, "most": most},
        alone=True,
        steps=partial(_steps, placed, keys, named, reach, most),
    )
    told, *found = rows
    look = msgspec.json.decode(told[0], type=Look)
    if len(told) > _NUMBER:
        look = replace(look, drawn=told[_NUMBER])
    return (yield from claimed(found, worker_id=worker_id)), look


# Where there is one writer


class _Found(msgspec.Struct):
    """The jobs that a look found: the first in line, and of other keys the first."""

    rows: Callable[[], Rows] = list
    """What a claim has of the first in line, still to be decoded."""
    numbers: str = "[]"
    """Their rowids, as JSON."""
    keys: Sequence[str] = ()
    heads: Sequence[Candidate] = ()
    visited: int = 0
    after: str | None = None
    last: tuple[str, int, int, int] | None = None

    def look(self, chosen: Choice) -> Look:
        """Tell how the look went."""
        seen = (STRIPES, len(self.keys), chosen.blocked, self.visited, self.after)
        return Look(*seen, chosen.key_us, chosen.queue_us, last=self.last)


def _steps(
    asked: Mapping[str, Any],
    keys: Mapping[str, Any],
    ids: list[str] | None,
    reach: Reach,
    most: int,
) -> Steps[Callable[[], Rows]]:
    """Claim in a store with one writer: look, choose, move; answer as `job_claim_limited` does."""
    known = yield from rules()
    queues = {name: rule.limit for (scope, name), rule in known.items() if scope == "queue"}
    jobs = {name: rule.limit for (scope, name), rule in known.items() if scope == "job"}
    if ids is not None:
        named = yield from _candidates("limit_named", {**asked, "id": ids, "most": len(ids)})
        found = _Found(heads=named)
    else:
        found = yield from _find(asked, keys, reach.front)
        if queues.keys() & set(asked["queue"]):
            plain = yield from _candidates("limit_plain", {**asked, "most": most})
            found.heads = [*found.heads, *plain]
    # No try where the caller looks at little of the front: it expects most of it to be blocked.
    few = 2 * reach.front >= most >= len(found.keys) + len(found.heads) and not reach.surplus
    if few and ids is None and not queues and (yield from _all_free(found, jobs)):
        others = [one.number for one in found.heads]
        taken = yield from _move(asked, found.numbers, others)
        return _answer(found.look(Choice([], {})), found.rows, taken)
    read = {row[0]: row for row in found.rows()}
    front = [Candidate(*_AS_CANDIDATE(row)) for row in read.values()]
    found.last = _place(front[-1]) if front else None
    found.heads = [*found.heads, *(yield from _firsts(front, jobs, asked))]
    candidates = _merged(front, found.heads)
    standing = yield from _standing(candidates, jobs, queues, most=most)
    visits, floors = keys["visits"], asked["floor"]
    chosen = choose(candidates, standing, most=most, visits=visits, floors=floors)
    those = [number for number in chosen.numbers if number in read]
    others = [number for number in chosen.numbers if number not in read]
    taken = yield from _move(asked, those, others)
    yield from _pay(chosen)
    return _answer(found.look(chosen), lambda: [read[number] for number in those], taken)


def _find(asked: Mapping[str, Any], keys: Mapping[str, Any], front: int) -> Steps[_Found]:
    """Look at the first in line, and at the first of keys, if any are asked for."""
    [(rows, numbers, met)] = yield Call("limit_front", {**asked, "most": front})
    found = _Found(rows, numbers, msgspec.json.decode(met))
    if keys["visits"] or keys["newest"] or keys["freed"] != "[]":
        [(text, found.visited, found.after)] = yield Call("limit_heads", {**asked, **keys})
        in_front = set(msgspec.json.decode(numbers))
        found.heads = [one for one in _decoded(text) if one.number not in in_front]
    return found


def _firsts(
    front: Sequence[Candidate], rules: Mapping[str, Limit], asked: Mapping[str, Any]
) -> Steps[Sequence[Candidate]]:
    """Look at the first jobs of keys that have a rate.

    One may need more units than its bucket has; those that stand behind it must not take them.
    """
    rated = {name for name, rule in rules.items() if rule.rate is not None}
    met = [one for one in front if one.key and rule_of(one.key) in rated] if rated else []
    keys = {(one.key, one.queue, one.priority) for one in met}
    if not keys:
        return []
    freed = msgspec.json.encode(sorted(keys)).decode()
    nearest = {"visits": 0, "after": "", "newest": 0, "quantum": 1, "freed": freed}
    [(text, _, _)] = yield Call("limit_heads", {**asked, **nearest})
    return _decoded(text)


def _answer(look: Look, rows: Callable[[], Rows], more: Rows) -> Callable[[], Rows]:
    """Answer with the look in place of an id, then with jobs of the front, and others."""
    return lambda: [
        [msgspec.json.encode(look).decode()],
        *(row[_READ:] for row in rows()),
        *more,
    ]


def _all_free(found: _Found, rules: Mapping[str, Limit]) -> Steps[bool]:
    """Tell whether all of these may start, where no rule has a rate or an order."""
    keys = [*found.keys, *(one.key for one in found.heads if one.key is not None)]
    others = {name for name, rule in rules.items() if rule.ordered or rule.rate is not None}
    if others and any(rule_of(key) in others for key in keys):
        return False
    bounds = {name: rule.most for name, rule in rules.items() if rule.most is not None}
    if not bounds or not keys:
        return True
    [(leased, _)] = yield Call("limit_leased", {"queues": False})
    live, wanted = Counter(msgspec.json.decode(leased)), Counter(keys)
    least = min(bounds.values())
    doubtful = {key for key, n in wanted.items() if n > least} | (live.keys() & wanted.keys())
    return all(wanted[key] + live[key] <= bounds.get(rule_of(key), inf) for key in doubtful)


def _move(asked: Mapping[str, Any], read: str | list[int], others: list[int]) -> Steps[Rows]:
    """Move jobs that were read, and others; answer with what a claim has of the others."""
    moved = {"worker_id": asked["worker_id"], "alone": asked["alone"]}
    if read and read != "[]":
        yield Call("limit_move", {**moved, "chosen": read})
    if not others:
        return []
    return (
        yield Call("limit_take", {**moved, "most": len(others), "timed": True, "chosen": others})
    )


def _pay(chosen: Choice) -> Steps[None]:
    if chosen.bill:
        scopes, names = zip(*chosen.bill, strict=True)
        costs = [whole_us(us) for us in chosen.bill.values()]
        yield Call("limit_pay", {"scope": list(scopes), "key": list(names), "cost_us": costs})


def _candidates(name: str, asked: Mapping[str, Any]) -> Steps[list[Candidate]]:
    [(text,)] = yield Call(name, asked)
    return _decoded(text)


def _decoded(text: str) -> list[Candidate]:
    return msgspec.json.decode(text, type=list[Candidate])


def _place(one: Candidate) -> tuple[str, int, int, int]:
    return one.queue, one.priority, one.seq, one.number


def _merged(some: Sequence[Candidate], more: Sequence[Candidate]) -> list[Candidate]:
    """Put candidates together, line by line, in order."""
    if not some or not more:
        return sorted(some or more, key=_IN_ORDER)
    return sorted({one.number: one for one in (*some, *more)}.values(), key=_IN_ORDER)


def _standing(
    found: Sequence[Candidate],
    rules: Mapping[str, Limit],
    queues: Mapping[str, Limit],
    *,
    most: int,
) -> Steps[Standing]:
    """Read what decides about these; leases also for turns, where not all of them can be taken."""
    keys = {one.key: one for one in reversed(found) if one.key is not None}
    named = {key: rules.get(rule_of(key)) for key in keys}
    live: Counter[str] = Counter()
    busy: Counter[str] = Counter()
    counted = any(rule and (rule.ordered or rule.most is not None) for rule in named.values())
    if queues or counted or len(found) > most:
        [(leased, served)] = yield Call("limit_leased", {"queues": bool(queues)})
        live.update(msgspec.json.decode(leased))
        busy.update(msgspec.json.decode(served))
    rated = [("job", key) for key, rule in named.items() if rule and rule.rate is not None]
    rated += [("queue", name) for name, rule in queues.items() if rule.rate is not None]
    ahead = {}
    if rated:
        scopes, names = map(list, zip(*rated, strict=True))
        rows = yield Call("limit_left", {"scope": scopes, "key": names})
        ahead = {(scope, key): float(us) for scope, key, us in rows}
    turns = {}
    if ordered := [key for key, rule in named.items() if rule and rule.ordered]:
        lines = {
            "key": ordered,
            "queue": [keys[key].queue for key in ordered],
            "priority": [keys[key].priority for key in ordered],
        }
        turns = dict((yield Call("limit_turns", lines)))
    return Standing(rules, queues, live, busy, ahead, turns)


def claim_alone(
    found: Sequence[Suspect], *, worker_id: str, kinds: Sequence[str] | None = None
) -> Steps[list[Claim]]:
    """Take the first of these suspects of one line that its limits allow.

    The worker must hold nothing meanwhile.
    """
    if (yield Call("job_held", {"worker_id": worker_id}, alone=True)):
        return []
    claims, _ = yield from claim(
        worker_id=worker_id,
        line=[found[0].line],
        most=1,
        reach=Reach(),
        ids=[one.id for one in found],
        kinds=kinds,
        alone=True,
    )
    return claims


def claim_named(
    ids: Sequence[str], *, worker_id: str, queue: str, kinds: Sequence[str]
) -> Steps[tuple[list[Claim], bool]]:
    """Take the jobs that hints name, as far as their limits allow; their hints leave with it.

    Answers also whether it could choose from all, or others held some.
    """
    line, most = lines([queue]), len(ids)
    claims, look = yield from claim(
        worker_id=worker_id, line=line, most=most, reach=Reach(), ids=ids, kinds=kinds
    )
    if claims:
        yield Call("hint_heard", {"id": [claim.id for claim in claims]})
    return claims, look.whole


def any_rules() -> Steps[bool]:
    """Tell whether a job may be under a limit at all."""
    return bool((yield Call("limit_any", alone=True)))
