"""Rules of limits: what is in force, what programs declare, and who set something else."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from milepost.codec import PROSE_BYTES, check_text, shorten
from milepost.errors import Invalid, NotFound
from milepost.limit import (
    MOST,
    SCOPES,
    UNITS_MOST,
    Rate,
    check_burst,
    host_name,
    number_text,
    read_rate,
)
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

ANY_HOST = "*"
"""The name of the rule of all hosts that have none."""
_MOST_EXPECTED = f"expected a whole number from 0 on, {MOST:,} at most"
_NO_HOST = re.compile(r"[/@?#*\s]")
LISTED = 20
"""How many names are listed where one is not found."""
PERIODS = {"s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


class Limit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rule allows, as it is stored."""

    most: int | None = None
    rate: float | None = None
    per_us: int | None = None
    burst: float | None = None
    ordered: bool = False
    units: str | None = None

    @property
    def unit_us(self) -> float:
        """How long a bucket takes to earn a unit."""
        return (self.per_us or 0) / (self.rate or 1)

    @property
    def burst_us(self) -> float:
        """How far ahead of now a bucket may be."""
        return (self.burst or 0) * self.unit_us

    @property
    def rate_text(self) -> str | None:
        """The rate as people write it: 25/s."""
        if self.rate is None or self.per_us is None:
            return None
        period = next((name for name, us in PERIODS.items() if us == self.per_us), None)
        return f"{number_text(self.rate)}/{period or f'{self.per_us / 1e6:g}s'}"

    def words(self, scope: str = "job") -> str:
        """Say what it allows, in a sentence."""
        told = ["one at a time, in order"] if self.ordered else []
        if self.most is not None and not self.ordered:
            told.append(f"{self.most:,} at once" if self.most else "none may start")
        if self.rate is not None:
            burst = number_text(round(self.burst or 0, 2))
            told.append(f"{self.rate_text} {self.units or ''}".strip() + f", burst {burst}")
        turns = ", each key in turn" if scope == "job" else ""
        return "; ".join(told) or f"no limit{turns}"

    @property
    def text(self) -> str:
        """The limit as JSON, as the store keeps it."""
        return msgspec.json.encode(self).decode()


class Rule(msgspec.Struct, frozen=True):
    """A rule: what is in force, what programs declare, and who set something else."""

    scope: str
    name: str
    limit: Limit
    declared: Limit | None = None
    declared_before: Limit | None = None
    set_at: datetime | None = None
    set_by: str | None = None
    reason: str | None = None

    @property
    def is_set(self) -> bool:
        """Whether something else is in force than what was declared."""
        return self.set_by is not None


class RuleEdit(msgspec.Struct, frozen=True):
    """What to change of a rule: a field that is left out stays as it is, None removes it."""

    most: int | msgspec.UnsetType | None = msgspec.UNSET
    rate: str | float | msgspec.UnsetType | None = msgspec.UNSET
    burst: float | msgspec.UnsetType | None = msgspec.UNSET


class RuleChange(msgspec.Struct, frozen=True):
    """A change of a rule: who made it, and why."""

    at: datetime
    scope: str
    name: str
    before: Limit | None
    """What was in force; None: it was new."""
    after: Limit | None
    """None: it was removed."""
    actor: str | None
    reason: str | None
    key: str | None = None
    """Whose bucket was cleared: the rule stayed as it was."""
    free_at: datetime | None = None
    """When that bucket would have been full again."""

    @property
    def words(self) -> str:
        """What the change did, in a sentence."""
        if self.key is not None:
            return "cleared" if self.key in ("", self.name) else f"{self.key} cleared"
        return "removed" if self.after is None else self.after.words(self.scope)


def ruled(scope: str, most: int | None = None, *, rate: str | float | None) -> Limit:
    """Make a limit of `most` at once and a rate such as "25/s", with the burst of its scope."""
    return _rated(Limit(most), RuleEdit(rate=rate), scope)


Named = tuple[str, str]
"""The scope and the name of a rule."""


Declared = dict[Named, Limit | None]
"""What a program declares; None: no limit, though another program may have declared one."""


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
        _limit(declared),
        _limit(before),
        None if at is None else instant(at),
        by,
        reason,
    )


def declare(limits: Mapping[Named, Limit | None]) -> Steps[None]:
    """Store rules as a program declares them; what somebody set stays until a program changes it.

    The program that declared something else last has the last word (L-7).
    """
    known = yield from rules()
    for (scope, name), limit in sorted(limits.items(), key=itemgetter(0)):
        was = known.get((scope, name))
        if limit is None:
            yield from _withdraw(was)
        elif was is None or was.declared != limit:
            before = None if was is None or was.declared is None else was.declared.text
            told = {"declared": limit.text, "declared_before": before, "by": None, "reason": None}
            yield Call("limit_rule_put", {**_columns(scope, name, limit), **told})
            yield from record(was, (scope, name), limit, actor=None, reason="declared")


def see(names: Iterable[Named]) -> Steps[None]:
    """Note that a worker's program declares these: `doctor` finds those that none declares."""
    if found := list(names):
        scopes, declared = map(list, zip(*found, strict=True))
        yield Call("limit_rule_seen", {"scope": scopes, "name": declared})


def prune(*, most: int) -> Steps[int]:
    """Remove buckets that are full; answer with how many."""
    return len((yield Call("bucket_prune", {"most": most})))


def _withdraw(was: Rule | None) -> Steps[None]:
    """Remove a rule that programs do not declare any more; one that only people set stays."""
    if was is not None and was.declared is not None:
        yield Call("limit_rule_drop", {"scope": was.scope, "name": was.name})
        named = was.scope, was.name
        yield from record(was, named, None, actor=None, reason="no longer declared")


def change(named: Named, limit: Limit, *, actor: str | None, reason: str | None) -> Steps[Rule]:
    """Set what a rule allows, from the next claim on; the change is recorded with who and why."""
    yield Call("limit_rule_hold", {"scope": named[0], "name": named[1]})
    was = (yield from rules()).get(named)
    declared = None if was is None or was.declared is None else was.declared.text
    before = None if was is None or was.declared_before is None else was.declared_before.text
    told = {"declared": declared, "declared_before": before, "by": actor, "reason": reason}
    yield Call("limit_rule_put", {**_columns(*named, limit), **told})
    yield from record(was, named, limit, actor=actor, reason=reason)
    yield Call("worker_hint")  # a job that waited for this may be claimed at once
    return (yield from rules())[named]


def edit(
    name: str, wanted: RuleEdit, *, scope: str | None, actor: str | None, reason: str | None
) -> Steps[Rule]:
    """Change some of what a rule allows; a queue, a host or a source may get its first rule."""
    check_reason(reason)
    name = own_name(name, scope)
    named = _settable((yield from rules()), name, scope)
    yield Call("limit_rule_hold", {"scope": named[0], "name": named[1]})
    known = yield from rules()  # somebody may have changed or removed it before it was held
    named = _settable(known, name, scope)
    limit = known[named].limit if named in known else Limit()
    return (yield from change(named, edited(limit, wanted, named[0]), actor=actor, reason=reason))


def _settable(known: Mapping[Named, Rule], name: str, scope: str | None) -> Named:
    """Name the rule to set; a queue, a host or a source need not have one yet."""
    if scope in SCOPES[1:] and (scope, name) not in known:
        return scope, check_host(name) if scope == "host" else name
    try:
        return the_one(known, name, scope=scope)
    except NotFound as error:
        raise NotFound(
            f"{error}; one of jobs is made by a declaration, one of a queue, a host or a source "
            "by setting it with its scope"
        ) from None


def read_most(text: str) -> int:
    """Read how many may run at once, as a person writes it."""
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(MOST)):
        raise Invalid(f"most={shorten(text)}: {_MOST_EXPECTED}")
    return int(text)


def read_burst(text: str) -> float:
    """Read how many may start at once after a rest, as a person writes it."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", text, re.ASCII):
        raise Invalid(f"burst={shorten(text)} must be a number from 1 to {UNITS_MOST:,}")
    return float(text)


def edited(limit: Limit, wanted: RuleEdit, scope: str) -> Limit:
    """Give a limit with changes, or raise `Invalid` with what is wrong with them."""
    if wanted == RuleEdit():
        raise Invalid("nothing was set: give most, rate or burst")
    if limit.ordered and wanted.most not in (msgspec.UNSET, None, 1):
        raise Invalid(
            "its jobs run one at a time, in order: only its rate can be set; to start none, pause "
            "their queue"
        )
    if scope == "source" and wanted.most not in (msgspec.UNSET, None):
        raise Invalid(
            "a source has a rate, and no number at once; to stop its calls, pause the queue of its "
            "pipeline"
        )
    if wanted.most is not msgspec.UNSET:
        _check_most(wanted.most)
        limit = msgspec.structs.replace(limit, most=wanted.most)
    return _rated(limit, wanted, scope)


def _check_most(most: object) -> None:
    is_number = isinstance(most, int) and not isinstance(most, bool) and 0 <= most <= MOST
    if not is_number and most is not None:
        raise Invalid(f"most={shorten(most)}: {_MOST_EXPECTED}")


def _rated(limit: Limit, wanted: RuleEdit, scope: str) -> Limit:
    if wanted.rate is None:
        if isinstance(wanted.burst, int | float):
            raise Invalid("a burst belongs to a rate: give both")
        return msgspec.structs.replace(limit, rate=None, per_us=None, burst=None)
    pace = _pace(limit) if wanted.rate is msgspec.UNSET else read_rate(wanted.rate)
    burst = own_burst(limit, scope) if wanted.burst is msgspec.UNSET else wanted.burst
    if pace is None:
        if wanted.burst is not msgspec.UNSET:
            raise Invalid("a burst belongs to a rate: give both")
        return limit
    burst = check_burst(pace.burst(scope) if burst is None else burst, pace)
    return msgspec.structs.replace(limit, rate=pace.amount, per_us=pace.per_us, burst=burst)


def own_burst(limit: Limit, scope: str) -> float | None:
    """Give the burst of a limit; None if it is the default of its rate."""
    pace = _pace(limit)
    return None if pace is None or limit.burst == pace.burst(scope) else limit.burst


def _pace(limit: Limit) -> Rate | None:
    return None if limit.rate is None else Rate(limit.rate, limit.per_us or 1)


def reset(
    name: str, *, scope: str | None, actor: str | None, reason: str | None = None
) -> Steps[Rule | None]:
    """Put back what programs declare; a rule that none declares is removed."""
    check_reason(reason)
    named = the_one((yield from rules()), name, scope=scope)
    yield Call("limit_rule_hold", {"scope": named[0], "name": named[1]})
    was = (yield from rules()).get(named)
    if was is None or (was.declared is not None and not was.is_set):
        return was
    if was.declared is None:
        yield Call("limit_rule_drop", {"scope": named[0], "name": named[1]})
    else:
        before = None if was.declared_before is None else was.declared_before.text
        told = {"declared": was.declared.text, "declared_before": before}
        columns = _columns(*named, was.declared)
        yield Call("limit_rule_put", {**columns, **told, "by": None, "reason": None})
    yield from record(was, named, was.declared, actor=actor, reason=reason or "reset")
    yield Call("worker_hint")
    return (yield from rules()).get(named)


def changes(
    name: str | None = None, *, scope: str | None = None, most: int
) -> Steps[list[RuleChange]]:
    """Read who changed rules, the newest first."""
    check_scope(scope)
    name = None if name is None else own_name(name, scope)
    asked = {"scope": scope, "name": name, "most": most}
    rows = yield Call("limit_changes", asked, alone=True)
    return [_change(*row[1:]) for row in rows]


def _change(
    at: Any, scope: str, name: str, before: str | None, after: str | None, *told: Any
) -> RuleChange:
    actor, reason, key, free_at = told
    return RuleChange(
        instant(at),
        scope,
        name,
        _limit(before),
        _limit(after),
        actor,
        reason,
        key,
        None if free_at is None else instant(free_at),
    )


def the_one(known: Mapping[Named, Rule], name: str, *, scope: str | None = None) -> Named:
    """Find the rule of that name, or raise an error that names those that there are."""
    check_scope(scope)
    names = {of: own_name(name, of) for of in SCOPES}
    called = [named for named in known if named[1] == names[named[0]]]
    found = [named for named in called if scope in (None, named[0])]
    if len(found) > 1:
        scopes = ", ".join(named[0] for named in found)
        raise Invalid(f"there are several limits {name!r}: say which by its scope ({scopes})")
    if not found:
        raise NotFound(_unknown(known, name, scope, elsewhere=[named[0] for named in called]))
    return found[0]


def _unknown(
    known: Mapping[Named, Rule], name: str, scope: str | None, *, elsewhere: Sequence[str]
) -> str:
    there = sorted({rule for of, rule in known if scope in (None, of)})
    listed = ", ".join(there[:LISTED]) or "none"
    more = f" and {len(there) - LISTED:,} more" if len(there) > LISTED else ""
    whose = f" of scope {scope}" if scope else ""
    told = f"there is no limit {shorten(name)}{whose}; there are: {listed}{more}"
    return f"{told}; {name!r} is of scope {', '.join(elsewhere)}" if elsewhere else told


def own_name(name: str, scope: str | None) -> str:
    """Give a name as rules of that scope have it, or raise `Invalid` for what is no name."""
    check_text(name, what="host" if scope == "host" else "limit")
    return host_name(name) if scope == "host" else name


def check_host(host: str) -> str:
    """Give a host as rules name it, or raise `Invalid` for what no request is sent to."""
    name = own_name(host, "host")
    if name != ANY_HOST and (_NO_HOST.search(name) or name.count(":") == 1):
        raise Invalid(
            f"host={shorten(host)} is no name of a host: leave scheme, port and path out; "
            f"{ANY_HOST} alone is every host without a limit of its own"
        )
    return name


def check_scope(scope: str | None) -> None:
    """Refuse a scope that there is not."""
    if scope is not None and scope not in SCOPES:
        raise Invalid(f"scope={scope!r}: expected one of {', '.join(SCOPES)}")


def check_reason(reason: str | None) -> None:
    """Refuse a reason that cannot be written down."""
    if reason is not None:
        check_text(reason, what="reason", most=PROSE_BYTES, blank=True)


def _limit(text: str | None) -> Limit | None:
    return None if text is None else msgspec.json.decode(text, type=Limit)


def _columns(scope: str, name: str, limit: Limit) -> dict[str, Any]:
    return {"scope": scope, "name": name, **msgspec.structs.asdict(limit)}


class Cleared(NamedTuple):
    """A bucket that was cleared: whose, and by how much it was ahead of now."""

    key: str
    ahead_us: int


def record(
    was: Rule | None,
    named: Named,
    limit: Limit | None,
    *,
    actor: str | None,
    reason: str | None,
    cleared: Cleared | None = None,
) -> Steps[None]:
    """Write down who changed a rule, or cleared one of its buckets, and why."""
    scope, name = named
    entry = {
        "scope": scope,
        "name": name,
        "before": None if was is None else was.limit.text,
        "after": None if limit is None else limit.text,
        "key": None if cleared is None else cleared.key,
        "ahead_us": None if cleared is None else cleared.ahead_us,
    }
    yield Call("limit_changed", {**entry, "actor": actor, "reason": reason})
