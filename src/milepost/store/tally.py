"""Moves and durations of jobs by time, for charts: counted where they are made, folded later.

Counts are appended, a row for each statement or worker's report, so that nobody waits for another.
Maintenance folds them into sums of a minute, and those into longer spans as they age. A reader adds
up the sums and the rows that are not folded yet.

Workers count their claims and the moves by which attempts end, with the durations, and report them
every `REPORT_SECONDS`: one that is killed takes with it what it counted since. All other moves are
counted by triggers, exactly; but new jobs, on SQLite, by maintenance.
"""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeVar

import msgspec

from milepost.errors import Invalid
from milepost.records import Claim
from milepost.store.columns import lists
from milepost.store.driver import Call, Rows, Steps
from milepost.store.instants import EPOCH, instant

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0),
)
"""The upper bounds of the buckets of durations, in seconds; one more bucket holds the rest."""
LABELS_MOST = 200
"""How many pairs of queue and kind, or names, have labels of their own; the others share one."""
OTHERS = "(others)"
ALL = ""
"""The queue or kind of sums over all of them."""
REPORT_SECONDS = 2.0
"""How often a worker reports what it has counted."""
FOLD_SECONDS = 5.0
"""How old a count becomes before it is folded: readers add up what is not folded yet."""
MINUTE, TEN_MINUTES, HOUR = 60, 600, 3_600
SPANS = ((MINUTE, TEN_MINUTES, 3 * HOUR), (TEN_MINUTES, HOUR, 25 * HOUR))
"""Sums of which span become sums of which other one, and at what age in seconds."""
KEEP_SECONDS = 8 * 24 * HOUR
GROUPS = ("move", "queue", "kind")
DURATIONS = ("wait", "run")
_MICROS = 1_000_000
_BOUNDS_US = tuple(round(bound * _MICROS) for bound in BOUNDS)
_COLUMNS = "name bucket count sum_us queue kind"
LABEL_OF = attrgetter("queue", "kind")
_waited = attrgetter("waited_us")

T = TypeVar("T")
L = TypeVar("L")
Label = tuple[str, str, str]
"""A move, or `wait` or `run`; a queue; a kind."""


class MoveCount(msgspec.Struct, frozen=True):
    """How many jobs made a move from a time on; what was not grouped by is None."""

    at: datetime
    queue: str | None
    kind: str | None
    move: str | None
    count: int


class DurationCount(msgspec.Struct, frozen=True):
    """A histogram of durations from a time on, over `BOUNDS`."""

    at: datetime
    buckets: tuple[int, ...]
    sum_seconds: float


class Histogram:
    """Durations in microseconds, by bucket."""

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum_us = 0

    def observe(self, micros: int) -> None:
        """Count one."""
        self.counts[bisect_left(_BOUNDS_US, micros)] += 1
        self.sum_us += micros

    def observe_all(self, micros: list[int]) -> None:
        """Count many: mostly one bucket takes all; to sort is quicker than to look up each."""
        if (least := min(micros)) < 0:  # woken before its time
            micros, least = [max(0, each) for each in micros], 0
        self.sum_us += sum(micros)
        counts, before = self.counts, 0
        first, last = bisect_left(_BOUNDS_US, least), bisect_left(_BOUNDS_US, max(micros))
        if first < last:
            micros = sorted(micros)
        for bucket in range(first, last):
            upto = bisect_right(micros, _BOUNDS_US[bucket])
            counts[bucket] += upto - before
            before = upto
        counts[last] += len(micros) - before


class WorkerTally:
    """What one worker counts between two reports. Batches have one kind mostly: that is quick."""

    def __init__(self) -> None:
        self._moves: Counter[Label] = Counter()
        self._times: dict[Label, Histogram] = {}

    def started(self, claims: Sequence[Claim]) -> None:
        """Count jobs that were claimed, and how long each of them had waited."""
        for label, found in by_label(claims, map(LABEL_OF, claims)):
            self._moves["claim", *label] += len(found)
            if waited := waits(found):
                self._observe(("wait", *label), waited)

    def ended(self, labels: Sequence[Label], begun: Sequence[float], *, now: float) -> None:
        """Count moves that ended attempts, and how long each attempt took since its claim."""
        for label, found in by_label(begun, labels):
            self._moves[label] += len(found)
            if label[0] != "release":
                self._observe(("run", *label[1:]), [int((now - each) * _MICROS) for each in found])

    def _observe(self, label: Label, micros: list[int]) -> None:
        found = self._times.get(label)
        if found is None:
            found = self._times[label] = Histogram()
        found.observe_all(micros)

    def take(self) -> "Report":
        """Give out what was counted since the last call."""
        moves, self._moves = self._moves, Counter()
        times, self._times = self._times, {}
        rows = [(name, 0, count, 0, queue, kind) for (name, queue, kind), count in moves.items()]
        for (name, queue, kind), found in times.items():
            rest = found.sum_us  # with the first bucket that holds any
            for bucket, count in enumerate(found.counts):
                if count:
                    rows.append((name, bucket, count, rest, queue, kind))
                    rest = 0
        return Report(rows)


def by_label(found: Sequence[T], labels: Iterable[L]) -> Iterable[tuple[L, Sequence[T]]]:
    """Sort things by their labels; where all have the same, there is nothing to sort."""
    each = list(labels)
    if each and each.count(each[0]) == len(each):
        return [(each[0], found)]
    sorted_: dict[L, list[T]] = {}
    for label, one in zip(each, found, strict=True):
        sorted_.setdefault(label, []).append(one)
    return sorted_.items()


def waits(claims: Sequence[Claim]) -> list[int]:
    """Say how long these had waited, in microseconds, as far as that is known."""
    waited = list(map(_waited, claims))
    return [each for each in waited if each is not None] if None in waited else waited


class Report(msgspec.Struct, frozen=True):
    """Rows to be added to the tally: name, bucket, count, sum in microseconds, queue, kind."""

    rows: Sequence[tuple[str, int, int, int, str, str]]

    def __bool__(self) -> bool:
        """Tell whether anything was counted."""
        return bool(self.rows)


def add(report: Report) -> Steps[None]:
    """Add what a worker has counted."""
    yield Call("tally_add", lists(_COLUMNS, report.rows), alone=True)


# Maintenance


def _count_created(*, most: int) -> Steps[int]:
    """Count new jobs where no trigger does; answer with how many."""
    if (yield Call("tally_mark_lost")):
        yield from recount()
        return 0
    alike = yield Call("tally_created_alike", {"most": most})
    rows = alike or (yield Call("tally_created", {"most": most}))
    yield Call("tally_mark_move", {"most": most})
    return sum(row[0] for row in rows)


def recount() -> Steps[None]:
    """Count the jobs of every queue anew; it reads all of them."""
    yield Call("queue_total_lock")
    yield Call("queue_total_count")
    yield Call("tally_mark_last")


def fold(*, most: int) -> Steps[int]:
    """Add counts to the sums of their minutes; `most` in the answer says that there may be more."""
    created = yield from _count_created(most=most)
    yield Call("tally_label_add", {"labels": LABELS_MOST - 1})
    yield Call("queue_total_fold", {"most": most})
    asked = {"most": most, "labels": LABELS_MOST - 1, "others": OTHERS}
    rows = yield Call("tally_fold", asked)
    removed = yield Call("tally_delta_remove", {"most": most})
    failures = yield Call("failure_fold", {"most": most})
    folded: list[int] = [row[0] for row in (*rows, *failures)]
    return max(created, len(removed), *folded)


def roll() -> Steps[int]:
    """Move sums that are old enough into longer spans; answer with how many sums that were."""
    moved = 0
    for fine, wide, age in SPANS:
        spans = {"fine": fine, "wide": wide}
        rows = yield Call("tally_roll", {**spans, "age": age})
        if rows and rows[0][0]:
            yield Call("tally_rolled", spans)
            moved += rows[0][0]
    return moved


def forget() -> Steps[None]:
    """Remove sums that nobody looks at any more, those of nothing, and names that no sum has."""
    yield Call("tally_forget", {"span": HOUR, "age": KEEP_SECONDS})
    yield Call("tally_label_forget")
    yield Call("failure_hour_forget")


# Reading


def moves(
    since: datetime,
    until: datetime,
    *,
    by: Sequence[str] = ("move",),
    queue: str | None = None,
    kinds: Sequence[str] | None = None,
    step_seconds: int = MINUTE,
) -> Steps[list[MoveCount]]:
    """Count the moves that jobs made in each step of time; a step in which none was is left out.

    `by` names what is told apart: move, queue, kind. Moves of more than three hours ago are kept by
    ten minutes, those of more than 25 hours ago by the hour, for eight days.
    """
    if unknown := set(by) - set(GROUPS):
        raise Invalid(f"by: expected some of {', '.join(GROUPS)}, not {', '.join(sorted(unknown))}")
    period = _period(since, until, step_seconds)
    rows = yield from _sums(period, queue=queue, kinds=kinds, by=by, durations=False)
    return _moves(rows, by)


def _moves(rows: Rows, by: Sequence[str]) -> list[MoveCount]:
    found: Counter[tuple[datetime, str | None, str | None, str | None]] = Counter()
    for name, at, _, queue, kind, count, _ in rows:
        found[instant(at), queue, kind, name if "move" in by else None] += count
    return [MoveCount(*label, count) for label, count in found.items()]


def durations(
    since: datetime,
    until: datetime,
    *,
    of: Literal["wait", "run"],
    queue: str | None = None,
    kind: str | None = None,
    step_seconds: int = MINUTE,
) -> Steps[list[DurationCount]]:
    """Read how long jobs waited for their claims, or ran until they were settled, step by step."""
    period = _period(since, until, step_seconds)
    kinds = None if kind is None else [kind]
    rows = yield from _sums(period, name=of, queue=queue, kinds=kinds, durations=True)
    return _durations(rows)[of]


def pace(
    since: datetime, until: datetime, *, step_seconds: int = MINUTE
) -> Steps[tuple[list[MoveCount], list[DurationCount], list[DurationCount]]]:
    """Read the moves of all jobs, how long they waited and how long they ran, by one statement."""
    rows = yield from _sums(_period(since, until, step_seconds), durations=None)
    timed = [row for row in rows if row[0] in DURATIONS]
    found = _durations(timed)
    moved = [row for row in rows if row[0] not in DURATIONS]
    return _moves(moved, ("move",)), found["wait"], found["run"]


def _durations(rows: Rows) -> dict[str, list[DurationCount]]:
    found: dict[str, list[DurationCount]] = {name: [] for name in DURATIONS}
    for (of, at), group in groupby(rows, key=lambda row: (row[0], row[1])):
        found[of].append(_histogram(at, [(row[2], row[5], row[6]) for row in group]))
    return found


def _sums(
    period: Mapping[str, object],
    *,
    name: str | None = None,
    queue: str | None = None,
    kinds: Sequence[str] | None = None,
    by: Sequence[str] = (),
    durations: bool | None,
) -> Steps[Rows]:
    """Read sums of the narrowest kind that answers: those of all jobs, of a kind, or of a pair."""
    if queue == ALL or ALL in (kinds or ()):  # no job has such a name
        return []
    in_queue = queue if queue is not None or "queue" in by else ALL
    in_kinds = kinds if kinds is not None or "kind" in by or in_queue != ALL else [ALL]
    asked: dict[str, Any] = {"name": name, "queue": queue, "durations": durations}
    asked |= {"kinds": None if kinds is None else list(kinds), "in_queue": in_queue}
    asked |= {"in_kinds": None if in_kinds is None else list(in_kinds)}
    asked |= {"by_queue": "queue" in by, "by_kind": "kind" in by}
    return (yield Call("tally_sums", {**period, **asked}))


def _histogram(at: object, found: Sequence[tuple[int, int, int]]) -> DurationCount:
    buckets = [0] * (len(BOUNDS) + 1)
    for bucket, count, _ in found:
        buckets[bucket] = count
    total = sum(sum_us for _, _, sum_us in found)
    return DurationCount(instant(at), tuple(buckets), total / _MICROS)


def _period(since: datetime, until: datetime, step_seconds: int) -> dict[str, object]:
    """Begin at a whole step: sums know only when theirs begins."""
    if step_seconds < MINUTE or step_seconds % MINUTE:
        raise Invalid(f"step_seconds: expected whole minutes, not {step_seconds}")
    begin = since - (since - EPOCH) % timedelta(seconds=step_seconds)
    return {"since": begin, "until": until, "step": step_seconds}


def added(counts: Iterable[DurationCount]) -> tuple[int, ...]:
    """Add histograms up."""
    return tuple(map(sum, zip(*(count.buckets for count in counts), strict=True)))


def quantile(buckets: Sequence[int], q: float) -> float | None:
    """Estimate a quantile of a histogram over `BOUNDS`, in seconds; None if it is empty.

    Within a bucket durations are taken to be spread evenly, and beyond the last bound none is told.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, before, low = q * total, 0, 0.0
    for count, high in zip(buckets, BOUNDS, strict=False):
        if count and before + count >= rank:
            return low + (high - low) * max(0.0, rank - before) / count
        before += count
        low = high
    return BOUNDS[-1]
