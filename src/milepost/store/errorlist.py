"""Errors as a page lists them: by when they were seen last, and one of them closely.

Each of these is one statement; whatever is counted is counted up to a number, so that an outage
does not make its own page slow.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Any

import msgspec

from milepost.outcome import micros
from milepost.records import FailedAttempt
from milepost.store.driver import Call, Steps
from milepost.store.failures import GROUPS, attempt_of
from milepost.store.instants import instant

LOOK = 1_000
"""How many jobs of an error, and failures in a bar of a short time, are counted."""
SLOTS = 48
"""How many bars the chart of an error has at most."""
HOURS = (1, 2, 4, 8, 24)
"""How many hours a bar may stand for."""
HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
WEEK_SECONDS = 7 * DAY_SECONDS
EXAMPLES = 5
EXAMPLE_BYTES = 4_096
"""Larger arguments are not shown, only how large they are."""
_WIDE = 10**6


class ErrorLine(msgspec.Struct, frozen=True):
    """An error as a list shows it."""

    last: FailedAttempt
    job_id: str
    """The job that failed so last."""
    kind: str | None
    first_at: datetime
    failed: int
    """How many of its newest jobs it ended."""
    open: int
    """How many of its newest jobs go on."""
    listed: bool = True
    """False for one that was chosen, and not seen in the time that is asked for."""

    @property
    def fingerprint(self) -> str:
        """Its name."""
        return self.last.fingerprint or ""


class ErrorLines(msgspec.Struct, frozen=True):
    """Errors of a time, the one that was seen last first."""

    now: datetime
    lines: Sequence[ErrorLine]
    since: int
    """How many there are in that time, and in a week; of very many, `GROUPS`."""
    week: int


class Example(msgspec.Struct, frozen=True):
    """One attempt that failed so, and the arguments of its job."""

    attempt: FailedAttempt
    job_id: str
    kind: str | None
    state: str | None
    codec: str | None
    payload: bytes | None
    size: int | None


class Closer(msgspec.Struct, frozen=True):
    """One error: its last attempts, and what its newest jobs share."""

    examples: Sequence[Example]
    shared: Mapping[str, Mapping[str, int]]
    """How many jobs are of each kind, version, queue and tenant."""
    states: Mapping[str, int]
    """How many jobs stand in each state now."""
    again: int
    """How many of those that failed were run again."""

    @property
    def jobs(self) -> int:
        """How many jobs were looked at."""
        return sum(self.states.values())


def lines(*, seconds: float, most: int, chosen: str | None = None) -> Steps[ErrorLines]:
    """Read the errors that were seen within so many seconds, and a chosen one whenever it was."""
    asked = {
        "span_us": micros(seconds),
        "week_us": micros(WEEK_SECONDS),
        "most": most,
        "groups": GROUPS,
        "look": LOOK,
        "wide": _WIDE,
        "chosen": chosen,
    }
    rows = yield Call("error_list", asked, alone=True)
    now, since, week = rows[0][:3]
    found: dict[str, ErrorLine] = {}
    for row in rows:
        if row[8] is not None:  # of two jobs that failed at the same instant one is enough
            found.setdefault(row[4], _line(row[3:]))
    return ErrorLines(instant(now), list(found.values()), since, week)


def _line(row: Sequence[Any]) -> ErrorLine:
    listed, fingerprint, first_at, last_at, jobs, job_id, fence, error, kind = row
    going_on, failed = divmod(int(jobs or 0), _WIDE)
    last = attempt_of(fence, last_at, error, fingerprint)
    return ErrorLine(last, job_id, kind, instant(first_at), failed, going_on, bool(listed))


def slots(fingerprints: Sequence[str], *, seconds: float) -> Steps[dict[str, list[int]]]:
    """Count failures of each error in equal parts of the time up to now, the oldest part first.

    From a day on the parts are whole hours, which are counted as failures come; of a shorter time
    the failures themselves are, each part up to `LOOK`.
    """
    if not fingerprints:
        return {}
    if seconds >= DAY_SECONDS:
        return (yield from _hours(fingerprints, round(seconds / HOUR_SECONDS)))
    asked = {
        "fingerprint": list(fingerprints),
        "slots": SLOTS,
        "slot_us": micros(seconds / SLOTS),
        "look": LOOK,
    }
    found = {name: [0] * SLOTS for name in fingerprints}
    for name, back, count in (yield Call("error_slots", asked, alone=True)):
        found[name][SLOTS - 1 - back] = count
    return found


def _hours(fingerprints: Sequence[str], hours: int) -> Steps[dict[str, list[int]]]:
    """Count by the hour, the current one included; a bar of a longer time has several."""
    each = next(each for each in HOURS if hours / each < SLOTS or each == HOURS[-1])
    bars = ceil(hours / each)
    found = {name: [0] * bars for name in fingerprints}
    asked = {"fingerprint": list(fingerprints), "hours": hours}
    for name, back, count in (yield Call("error_hours", asked, alone=True)):
        found[name][bars - 1 - max(0, back) // each] += count
    return found


def closer(fingerprint: str) -> Steps[Closer]:
    """Read the last attempts that failed so, and what its newest jobs share."""
    asked = {
        "fingerprint": fingerprint,
        "most": EXAMPLES,
        "bytes": EXAMPLE_BYTES,
        "look": LOOK,
    }
    rows = yield Call("error_closer", asked, alone=True)
    examples = [_example(row, fingerprint) for row in rows if row[0] is not None]
    jobs = [(*row[4:6], *row[9:]) for row in rows if row[0] is None]
    counts = {name: Counter[str]() for name in ("kind", "version", "queue", "tenant", "state")}
    again = 0
    for kind, state, version, queue, tenant, rerun, number in jobs:
        told = {"kind": kind, "version": version, "queue": queue, "tenant": tenant, "state": state}
        for name, word in told.items():
            counts[name][str(word)] += number
        again += number if rerun and state == "FAILED" else 0
    states = counts.pop("state")
    shared = {name: dict(counted.most_common()) for name, counted in counts.items()}
    examples.sort(key=lambda one: (one.attempt.at, one.attempt.fence), reverse=True)
    return Closer(examples, shared, dict(states), again)


def _example(row: Sequence[Any], fingerprint: str) -> Example:
    job_id, fence, at, error, kind, state, codec, payload, size = row[:9]
    data = None if payload is None else bytes(payload)
    attempt = attempt_of(fence, at, error, fingerprint)
    return Example(attempt, job_id, kind, state, codec, data, size)
