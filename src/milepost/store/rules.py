"""Rules of limits: what is in force, what programs declared, and who set it otherwise."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.store.driver import Call, Steps
from milepost.store.instants import instant


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
