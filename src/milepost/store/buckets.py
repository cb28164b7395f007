"""Buckets of rates: when the next unit of a key is free (GCRA: one instant).

A bucket says how far ahead of now it is: by what was taken, and not yet earned. Times here are in
microseconds from now.
"""

import msgspec

from milepost.codec import check_text, shorten
from milepost.errors import Invalid, NotFound
from milepost.limit import MOST, host_name, limit_key, split_key
from milepost.store.driver import Call, Steps
from milepost.store.rules import (
    ANY_HOST,
    Cleared,
    Limit,
    Named,
    Rule,
    check_reason,
    record,
    rules,
    the_one,
)

MICROS = 1_000_000
LOOK, NAMED = 1_000, 5
"""How many buckets are searched for those of a rule, and how many keys are named."""


class Bucket(msgspec.Struct):
    """A bucket under the rule in force."""

    limit: Limit
    ahead_us: float
    added_us: float = 0.0
    """How much was taken since it was opened."""

    def wait_us(self, units: float = 1, *, after_us: float = 0) -> float:
        """Say when units are free, `after_us` at the earliest; more than it holds, when full."""
        holds = min(units, self.limit.burst or 0) - (self.limit.burst or 0)
        return max(0.0, after_us, self.ahead_us + holds * self.limit.unit_us)

    def take(self, units: float = 1, *, after_us: float = 0) -> float:
        """Reserve that many units, and say when they are free."""
        start = self.wait_us(units, after_us=after_us)
        ahead = max(self.ahead_us, start) + units * self.limit.unit_us
        self.added_us += ahead - self.ahead_us
        self.ahead_us = ahead
        return start


def open_bucket(scope: str, key: str, limit: Limit) -> Steps[Bucket]:
    """Lock a bucket, and read it; until the transaction ends nobody else takes from it."""
    [(ahead,)] = yield Call("bucket_open", {"scope": scope, "key": key})
    return Bucket(limit, float(ahead))


def close_bucket(scope: str, key: str, bucket: Bucket) -> Steps[None]:
    """Store what was taken."""
    if bucket.added_us:
        told = {"scope": scope, "key": key, "added_us": round(bucket.added_us)}
        yield Call("bucket_add", told)


def take(
    scope: str,
    key: str,
    units: float = 1,
    *,
    limit: Limit,
    after: float = 0,
    within: float | None = None,
) -> Steps[float]:
    """Reserve units, and say in how many seconds they are free, at the earliest `after`.

    If that is longer than `within`, nothing is reserved: a caller that comes back would pay twice.
    """
    bucket = yield from open_bucket(scope, key, limit)
    after_us = after * MICROS
    wait = bucket.wait_us(units, after_us=after_us)
    if within is None or wait <= within * MICROS:
        bucket.take(units, after_us=after_us)
    yield from close_bucket(scope, key, bucket)
    return wait / MICROS


def clear(
    name: str, key: str | None, *, scope: str | None, actor: str | None, reason: str | None
) -> Steps[Rule]:
    """Refill the bucket of a rule, or of one key of it; this is recorded with who and why.

    A bucket that is full is `NotFound`.
    """
    check_reason(reason)
    known = yield from rules()
    named = the_one(known, name, scope=scope)
    of, rule = _bucket_of(named, key), known[named]
    rows = yield Call("bucket_clear", {"scope": named[0], "key": of})
    if not rows:
        raise NotFound((yield from _nothing(rule, key)))
    counted = split_key(of)[1] if rule.scope == "job" else of
    cleared = Cleared(counted, rows[0][0])
    yield from record(rule, named, rule.limit, actor=actor, reason=reason, cleared=cleared)
    yield Call("worker_hint")  # a job that waited for this may be claimed at once
    return rule


def _bucket_of(named: Named, key: str | None) -> str:
    """Name the bucket of a key as it is stored, or raise `Invalid`."""
    scope, name = named
    if key:
        check_text(key, what="key", most=MOST)
    if scope == "job":
        return limit_key(name, key or "")
    if named == ("host", ANY_HOST):
        if not key:
            raise Invalid("limit * holds for each host by itself: say which host")
        return host_name(key)
    if key is not None:
        raise Invalid(f"a {scope} has no keys: leave {shorten(key)} out")
    return name


def _nothing(rule: Rule, key: str | None) -> Steps[str]:
    """Say that there is nothing to clear, and which keys have the least left."""
    what = f"limit {rule.name}" if rule.scope == "job" else f"{rule.scope} {rule.name}"
    if rule.limit.rate is None:
        return f"{what} has no rate: there is nothing to clear"
    told = f"{what} has nothing to clear" + (f" for {shorten(key)}" if key else "")
    keys = yield from furthest(rule)
    if not keys:
        return told
    return f"{told}; {'' if key else 'name a key, '}least is left of: {', '.join(keys)}"


def furthest(rule: Rule, *, most: int = NAMED) -> Steps[dict[str, float]]:
    """Tell which keys of a rule of jobs are furthest ahead of now, and by how many seconds."""
    if rule.scope != "job":
        return {}
    prefix = limit_key(rule.name, "")[1:]
    asked = {"scope": rule.scope, "prefix": prefix, "look": LOOK, "most": most}
    rows = yield Call("bucket_ahead", asked)
    return {split_key(key)[1]: us / MICROS for key, us in rows}
