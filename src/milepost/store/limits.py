"""Limits: how many jobs of a key or a queue run at once, and how many start in a time.

Nothing is stored about a job that a limit keeps waiting. It stays QUEUED, and whether it may start
is derived by the claim: from the live leases under its key, and from the key's bucket (GCRA: one
instant). So there is nothing that could leak, or that would have to be woken or repaired.

A job's `limit_key` is `stripe/rule/key`. On PostgreSQL a claim locks stripes, without waiting, and
takes jobs of those alone: nobody else can add a lease under their keys until it has committed.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from zlib import crc32

import msgspec

from milepost.records import Claim
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.store.jobs import Line, claimed

STRIPES = 16
KEY_BYTES = 200
"""A longer key is stored by its hash."""


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule allows, as it is stored."""

    most: int | None = None
    rate: float | None = None
    per_us: int | None = None
    burst: float | None = None
    ordered: bool = False
    units: str | None = None

    @property
    def text(self) -> str:
        """As it is written down."""
        return msgspec.json.encode(self).decode()


class Rule(msgspec.Struct, frozen=True):
    """A rule: what is in force, what programs declared, and who set it otherwise."""

    scope: str
    name: str
    limit: Limit
    declared: Limit | None = None
    declared_before: Limit | None = None
    set_at: datetime | None = None
    set_by: str | None = None
    reason: str | None = None


Named = tuple[str, str]
"""The scope and the name of a rule."""


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
    freed: Sequence[str] = ()
    """Keys that are looked at first: one of their leases has ended."""
    stripe: int = 0
    stripes: int = STRIPES
    """How many stripes are taken, from the first one on."""


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

    @property
    def wait_us(self) -> float | None:
        """In how many microseconds a rate lets the next job start; None: that is not it."""
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
        "most": most,
        "kinds": None if kinds is None else list(kinds),
        "alone": alone,
        "front": reach.front,
        "visits": reach.visits,
        "after": reach.after,
        "newest": reach.newest,
        "quantum": reach.quantum,
        "freed": list(reach.freed),
        "id": None if ids is None else list(ids),
    }
    stripes = {"stripe": reach.stripe, "stripes": reach.stripes, "timed": True}
    rows = yield Call("job_claim_limited", {**asked, **stripes}, whole=True)
    if rows:
        look = msgspec.json.decode(rows[0][-1], type=Look)
        found = [row[:-1] for row in rows if row[0] is not None]
    else:
        places = list(range(len(line)))
        [(chosen, bill, told)] = yield Call("limit_look", {**asked, "place": places})
        look, found = msgspec.json.decode(told, type=Look), []
        if numbers := msgspec.json.decode(chosen):
            moved = {"worker_id": worker_id, "alone": alone, "most": most, "timed": True}
            found = yield Call("limit_take", {**moved, "chosen": numbers})
        if bill != "[]":
            scopes, keys, costs = zip(*msgspec.json.decode(bill), strict=True)
            spent = {"scope": list(scopes), "key": list(keys), "cost_us": list(costs)}
            yield Call("limit_pay", spent)
    return (yield from claimed(found, worker_id=worker_id)), look


def stripe_of(rule: str, key: str) -> str:
    """Spread keys: the same key has the same stripe everywhere."""
    return f"{crc32(f'{rule}/{key}'.encode()) % STRIPES:x}"


def limit_key(rule: str, key: str) -> str:
    """Name a key of a rule, as jobs store it."""
    rule = rule.replace("%", "%25").replace("/", "%2F")
    return f"{stripe_of(rule, key)}/{rule}/{key}"


def any_rules() -> Steps[bool]:
    """Tell whether a job may be under a limit at all."""
    return bool((yield Call("limit_any", alone=True)))


# Rules


def rules() -> Steps[dict[Named, Rule]]:
    """Read every rule."""
    rows = yield Call("limit_rules", alone=True)
    return {(row[0], row[1]): _rule(row) for row in rows}


def _rule(row: Sequence[Any]) -> Rule:
    scope, name, most, rate, per_us, burst, ordered, units, declared, before, at, by, reason = row
    return Rule(
        scope,
        name,
        Limit(most, rate, per_us, burst, bool(ordered), units),
        None if declared is None else msgspec.json.decode(declared, type=Limit),
        None if before is None else msgspec.json.decode(before, type=Limit),
        None if at is None else instant(at),
        by,
        reason,
    )


def declare(limits: Mapping[Named, Limit], *, actor: str | None = None) -> Steps[None]:
    """Store rules as a program declares them; what somebody set stays until a program changes it.

    The program that declared something else last has the last word (L-7).
    """
    known = yield from rules()
    for (scope, name), limit in sorted(limits.items()):
        was = known.get((scope, name))
        if was is None or was.declared != limit:
            before = None if was is None or was.declared is None else was.declared.text
            told = {"declared": limit.text, "declared_before": before, "by": None, "reason": None}
            yield Call("limit_rule_put", {**_columns(scope, name, limit), **told})
            yield from _changed(was, (scope, name), limit, actor=actor, reason="declared")


def change(named: Named, limit: Limit, *, actor: str | None, reason: str | None) -> Steps[Rule]:
    """Set what a rule allows, from the next claim on; it is written down who did, and why."""
    was = (yield from rules()).get(named)
    declared = None if was is None or was.declared is None else was.declared.text
    before = None if was is None or was.declared_before is None else was.declared_before.text
    told = {"declared": declared, "declared_before": before, "by": actor, "reason": reason}
    yield Call("limit_rule_put", {**_columns(*named, limit), **told})
    yield from _changed(was, named, limit, actor=actor, reason=reason)
    return (yield from rules())[named]


def _columns(scope: str, name: str, limit: Limit) -> dict[str, Any]:
    return {"scope": scope, "name": name, **msgspec.structs.asdict(limit)}


def _changed(
    was: Rule | None, named: Named, limit: Limit | None, *, actor: str | None, reason: str | None
) -> Steps[None]:
    scope, name = named
    entry = {
        "scope": scope,
        "name": name,
        "before": None if was is None else was.limit.text,
        "after": None if limit is None else limit.text,
    }
    yield Call("limit_changed", {**entry, "actor": actor, "reason": reason})
