"""Places at the hosts that requests go to, over all processes (docs/decisions/0028-host-limits.md).

A request has a place while its job is RUNNING with the fence that it was written with: what a
killed worker held is free when its lease is over, and nothing can leak. Times are in microseconds.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import msgspec

from milepost.records import Claim
from milepost.store.buckets import MICROS, Bucket, close_bucket, open_bucket
from milepost.store.driver import Call, Steps
from milepost.store.rules import ANY_HOST, Limit

SCOPE = "host"
LOOK = 1000
"""How many of the requests that wait at a host are looked at."""
SOON_US = 250_000
"""A request that waits in a process asks again after this."""
AGAIN_US = 2_000_000
"""It asks after this at the latest: the rule may have changed, or its rate been cleared."""
FAIR_US = 1_000_000
"""A request that has waited this much longer goes first, if it asks soon."""
GRACE_US = 2_000_000
"""A request that is later than this is not waited for any more."""
PATIENCE_US = 1_000_000
"""The next start of a rate is waited for in the place itself, if it comes so soon."""
LEAST_US, LONGEST_US = 50_000, 30_000_000
"""The bounds of the time after which a request without a place comes back."""


class Asking(msgspec.Struct, frozen=True):
    """A request that is about to be sent."""

    claim: Claim
    host: str
    stays: bool = True
    """Whether it waits where it is, if it has to."""


class Place(msgspec.Struct, frozen=True):
    """How a request stands at its host."""

    is_free: bool = True
    """Whether it may be sent."""
    is_limited: bool = False
    """Whether its host has a rule."""
    seconds: float = 0.0
    """In how many seconds it may be sent, or is to ask again if it waits where it is."""
    back: float = 0.0
    """In how many seconds its turn comes, probably."""


UNLIMITED = Place()


class _Waiting(NamedTuple):
    id: str
    age_us: float
    due_us: float


class _HostState(msgspec.Struct):
    """A host's limit, the requests under way there, and those that wait."""

    limit: Limit
    sending: int = 0
    age_us: float = 0.0
    """For how long the requests under way have been, on average."""
    waiting: list[_Waiting] = []
    """The longest first."""
    bucket: Bucket | None = None

    @property
    def gap_us(self) -> float:
        """How long it takes, probably, until one more may be sent."""
        if self.limit.most == 0:
            return LONGEST_US  # nobody knows when it is opened
        pace = self.limit.unit_us if self.limit.rate else 0.0
        # Those under way are at half of their time, on average.
        return max(pace, 2 * self.age_us / self.limit.most if self.limit.most else 0.0)


def enter(
    asked: Sequence[Asking], *, ended: Sequence[tuple[str, int]] = ()
) -> Steps[dict[str, Place]]:
    """Give places to those that may be sent; the places of `ended`, (id, fence), are freed first.

    Answers by the job's id. A host without a rule costs one read of the rules, and nothing else.
    """
    hosts = sorted({one.host for one in asked})
    rows = yield Call("host_rules", {"host": hosts})
    rules = {name: Limit(most, rate, per_us, burst) for name, most, rate, per_us, burst in rows}
    limits = {host: rules.get(host) or rules.get(ANY_HOST) for host in hosts}
    ids = [one.claim.id for one in asked]
    standing = yield from _standing({h: limit for h, limit in limits.items() if limit}, ids, ended)
    places = dict.fromkeys(ids, UNLIMITED)
    for host, found in standing.items():
        here = [one for one in asked if one.host == host]
        places.update(_places(found, here))
        if found.bucket is not None:
            yield from close_bucket(SCOPE, host, found.bucket)
    if limited := [one for one in asked if one.host in standing]:
        yield from _put(limited, places)
    return places


def _standing(
    limits: dict[str, Limit], ids: Sequence[str], ended: Sequence[tuple[str, int]]
) -> Steps[dict[str, _HostState]]:
    """Lock hosts, and read how they stand."""
    if not limits:
        return {}
    standing = {host: _HostState(limit, waiting=[]) for host, limit in limits.items()}
    named = {"host": list(limits)}
    yield Call("host_lock", named)
    told = {"id": [job_id for job_id, _ in ended], "fence": [fence for _, fence in ended]}
    yield Call("host_sweep", {**named, **told})
    for host, sending, age in (yield Call("host_sending", named)):
        standing[host].sending, standing[host].age_us = sending, float(age)
    some = {"id": ids, "grace_us": GRACE_US, "most": LOOK}
    for host, *one in (yield Call("host_waiting", {**named, **some})):
        standing[host].waiting.append(_Waiting(*one))
    for host, limit in limits.items():
        if limit.rate is not None:
            standing[host].bucket = yield from open_bucket(SCOPE, host, limit)
    return standing


def _places(found: _HostState, asked: Sequence[Asking]) -> dict[str, Place]:
    """Say who may be sent, and when the others come back: those that wait longest go first."""
    mine = {one.claim.id for one in asked}
    ages = {one.id: one.age_us for one in found.waiting}
    others = [one for one in found.waiting if one.id not in mine]
    line = [-one.age_us for one in others]
    pressing = [-one.age_us for one in others if one.due_us <= SOON_US]
    room = inf if found.limit.most is None else found.limit.most - found.sending
    unit = found.limit.unit_us if found.bucket else 0.0
    places: dict[str, Place] = {}
    refused = 0
    # One that is new comes after those that began to wait in this very moment.
    for one in sorted(asked, key=lambda one: -ages.get(one.claim.id, -1.0)):
        age = ages.get(one.claim.id, -1.0)
        before = bisect_left(pressing, -age - FAIR_US)
        start = found.bucket.wait_us() if found.bucket else 0.0
        if room > before and start + before * unit <= PATIENCE_US:
            room -= 1
            if found.bucket is not None:
                found.bucket.take()
            places[one.claim.id] = Place(is_limited=True, seconds=start / MICROS)
        else:
            ahead = bisect_left(line, -age) + refused
            places[one.claim.id] = _refusal(start, (ahead + 1) * found.gap_us)
            refused += 1
    return places


def _refusal(start: float, turn: float) -> Place:
    again = min(max(SOON_US, start - PATIENCE_US), AGAIN_US)
    back = min(max(start, turn, LEAST_US), LONGEST_US)
    return Place(is_free=False, is_limited=True, seconds=again / MICROS, back=back / MICROS)


def _put(asked: Sequence[Asking], places: dict[str, Place]) -> Steps[None]:
    found = [places[one.claim.id] for one in asked]
    waits = [p.seconds if one.stays else p.back for one, p in zip(asked, found, strict=True)]
    columns = {
        "id": [one.claim.id for one in asked],
        "host": [one.host for one in asked],
        "fence": [one.claim.fence for one in asked],
        "sends": [place.is_free for place in found],
        "due_us": [round(seconds * MICROS) for seconds in waits],
    }
    yield Call("host_put", columns)


def counts(hosts: Sequence[str]) -> Steps[dict[str, tuple[int, int]]]:
    """Count the requests that each host is sent, and those that wait for a place there."""
    rows = yield Call("host_counts", {"host": list(hosts)})
    return {host: (sending, waiting) for host, sending, waiting in rows}


def prune(*, most: int) -> Steps[int]:
    """Remove places that nobody will ask for again."""
    return len((yield Call("host_prune", {"most": most}, alone=True)))
