"""How limits stand: what is in force, who set it, how many leases live and how many jobs wait."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from milepost.limit import limit_key
from milepost.store import hosts, jobs
from milepost.store.driver import Call, Steps
from milepost.store.rules import ANY_HOST, Limit, Named, Rule, rules, the_one

COUNTED = 1_000
"""So many leases, or jobs in line, of a rule are counted; more are told as this many."""


class Terms(msgspec.Struct, frozen=True):
    """What a rule allows, as people write it."""

    most: int | None = None
    rate: str | None = None
    burst: float | None = None
    ordered: bool = False
    units: str | None = None
    words: str = ""
    """The same in a sentence."""

    @classmethod
    def of(cls, limit: Limit, scope: str) -> "Terms":
        """Say it of what is stored."""
        pace = limit.rate_text, limit.burst
        return cls(limit.most, *pace, limit.ordered, limit.units, limit.words(scope))


class LimitStand(msgspec.Struct, frozen=True, kw_only=True):
    """A limit: what is in force, what was declared, who set it, and how it stands."""

    scope: str
    """What it counts: `job` (by their keys), `queue`, `host` or `source`."""
    name: str
    most: int | None = None
    """So many at once, of each key; None: any number."""
    rate: str | None = None
    burst: float | None = None
    ordered: bool = False
    units: str | None = None
    words: str = ""
    """What it allows, in a sentence."""
    declared: Terms | None = None
    """What programs declare; None: it was made by hand, or nobody knows."""
    set_at: datetime | None = None
    set_by: str | None = None
    """Who set something else than what was declared."""
    reason: str | None = None
    running: int | None = None
    """Live leases, over all keys; None: nobody counts them here."""
    waiting: int | None = None
    """Jobs in line, over all keys, whether they may start or not."""
    counted_to: int | None = None
    """Where counting ended: a number that reaches it stands for this many or more."""


Counted = Mapping[str, Mapping[str, int]]


def listing(counted: Counted | None = None) -> Steps[list[LimitStand]]:
    """Read every rule, and how it stands; a caller that has `counted` all jobs saves that."""
    return (yield from _standing((yield from rules()), counted))


def one(name: str, *, scope: str | None = None) -> Steps[LimitStand]:
    """Read one rule, or raise `NotFound` and name those that there are."""
    known = yield from rules()
    named = the_one(known, name, scope=scope)
    [found] = yield from _standing({named: known[named]})
    return found


def _standing(
    known: Mapping[Named, Rule], counted: Counted | None = None
) -> Steps[list[LimitStand]]:
    keyed = [name for scope, name in known if scope == "job"]
    running, waiting = yield from counts(keyed)
    queues: Counted = counted or {}
    if counted is None and any(scope == "queue" for scope, _ in known):
        queues = yield from jobs.counts()
    places = yield from _at_hosts(known)
    stands = []
    for (scope, name), rule in known.items():
        if scope == "job":
            stands.append(stand(rule, running[name], waiting[name], counted_to=COUNTED))
        elif scope == "queue":
            found = queues.get(name, {})
            waits = found.get("QUEUED", 0) + found.get("READY", 0)
            stands.append(stand(rule, found.get("RUNNING", 0), waits))
        else:
            stands.append(stand(rule, *places.get((scope, name), ())))
    return stands


def _at_hosts(known: Mapping[Named, Rule]) -> Steps[dict[Named, tuple[int, int]]]:
    """Count requests by host; those of hosts without a rule of their own are not told apart."""
    named = [name for scope, name in known if scope == hosts.SCOPE and name != ANY_HOST]
    found = (yield from hosts.counts(named)) if named else {}
    return {(hosts.SCOPE, name): found.get(name, (0, 0)) for name in named}


def counts(names: Sequence[str]) -> Steps[tuple[dict[str, int], dict[str, int]]]:
    """Count the live leases and the jobs in line of rules of jobs, up to a bound each."""
    if not names:
        return {}, {}
    asked = {"name": list(names), "prefix": [prefix_of(name) for name in names], "most": COUNTED}
    running = dict(map(tuple, (yield Call("limit_running", asked))))
    return running, dict(map(tuple, (yield Call("limit_waiting", asked))))


def prefix_of(rule: str) -> str:
    """Give what keys of a rule have in common after their stripe: `/rule`."""
    return limit_key(rule, "")[1:-1]


def stand(
    rule: Rule,
    running: int | None = None,
    waiting: int | None = None,
    *,
    counted_to: int | None = None,
) -> LimitStand:
    """Put together what is shown of a rule."""
    return LimitStand(
        **msgspec.structs.asdict(Terms.of(rule.limit, rule.scope)),
        scope=rule.scope,
        name=rule.name,
        declared=None if rule.declared is None else Terms.of(rule.declared, rule.scope),
        set_at=rule.set_at,
        set_by=rule.set_by,
        reason=rule.reason,
        running=running,
        waiting=waiting,
        counted_to=counted_to,
    )
