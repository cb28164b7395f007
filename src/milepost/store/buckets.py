"""Buckets of rates: when the next unit of a key is free (GCRA: one instant).

A bucket says how far ahead of now it is: by what was taken, and not yet earned. Times here are in
microseconds from now.
"""

import msgspec

from milepost.store.driver import Call, Steps
from milepost.store.rules import Limit

MICROS = 1_000_000


class Bucket(msgspec.Struct):
    """A bucket under the rule in force."""

    limit: Limit
    ahead_us: float
    added_us: float = 0.0
    """How much was taken here."""

    def wait_us(self, units: float = 1, *, after_us: float = 0) -> float:
        """Tell when so many units are free, not before a time; more than it holds, when full."""
        holds = min(units, self.limit.burst or 0) - (self.limit.burst or 0)
        return max(0.0, after_us, self.ahead_us + holds * self.limit.unit_us)

    def take(self, units: float = 1, *, after_us: float = 0) -> float:
        """Reserve so many units, and tell when they are free."""
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
    """Reserve so many units, and tell in how many seconds they are free.

    They are not free before `after`. If they are not free `within` so many seconds, nothing is
    reserved: whoever comes back later would have to pay twice.
    """
    bucket = yield from open_bucket(scope, key, limit)
    after_us = after * MICROS
    wait = bucket.wait_us(units, after_us=after_us)
    if within is None or wait <= within * MICROS:
        bucket.take(units, after_us=after_us)
    yield from close_bucket(scope, key, bucket)
    return wait / MICROS
