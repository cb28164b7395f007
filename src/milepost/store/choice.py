"""Which jobs under limits may start, in a store with one writer (SQLite).

On PostgreSQL `job_claim_limited` chooses by the same rules, within its statement.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil, inf
from typing import NamedTuple

import msgspec

from milepost.limit import LONGEST_US, split_key
from milepost.store.rules import Limit

SLACK_US = 0.5
"""A bucket that lacks less than this has enough: the store keeps whole microseconds."""


class Candidate(NamedTuple):
    """A job that may be next: its rowid, its line and its place there, and its key."""

    number: int
    line: int
    seq: int
    queue: str
    priority: int
    key: str | None
    units: float | None


Turn = tuple[int, int, Candidate]
"""A job's line, its turn there, and the job."""


class Standing(msgspec.Struct, frozen=True):
    """The rules, leases, buckets and turns that decide about the candidates of a claim."""

    rules: Mapping[str, Limit]
    """By their names."""
    queues: Mapping[str, Limit]
    live: Counter[str]
    """Live leases by key."""
    busy: Counter[str]
    """Live leases by queue."""
    ahead_us: Mapping[tuple[str, str], float]
    """How far ahead of now a bucket is."""
    turns: Mapping[str, int | None]
    """The job of an ordered key that is next."""

    def room(self, queue: str) -> float:
        """Tell how many more jobs of a queue may run."""
        limit = self.queues.get(queue)
        return inf if limit is None or limit.most is None else limit.most - self.busy[queue]

    def missing_us(self, queue: str, limit: Limit, rank: int) -> float:
        """Tell what a queue's bucket lacks for so many more jobs."""
        ahead = max(0.0, self.ahead_us.get(("queue", queue), 0.0))
        return rank * limit.unit_us - (limit.burst_us - ahead)

    def closed(self) -> set[str]:
        """Name the queues that let no job start now."""
        rated = {name for name, limit in self.queues.items() if limit.rate is not None}
        empty = {name for name in rated if self.missing_us(name, self.queues[name], 1) > SLACK_US}
        return empty | {name for name in self.queues if self.room(name) <= 0}


class Choice(msgspec.Struct):
    """The jobs that may start, what they take from buckets, and how it went."""

    numbers: list[int]
    bill: dict[tuple[str, str], float]
    blocked: int = 0
    key_us: float | None = None
    queue_us: float | None = None


def rule_of(key: str) -> str:
    """Name the rule of a key."""
    return split_key(key)[0]


def choose(
    found: Sequence[Candidate],
    standing: Standing,
    *,
    most: int,
    visits: int = 0,
    floors: Sequence[int] = (),
) -> Choice:
    """Choose up to `most`: those of the keys of which the fewest run come first.

    `found` has the candidates line by line, in order; `visits` is how many keys the look went to,
    and `floors` from which number each line was looked at.
    """
    choice = Choice([], {})
    free: list[Turn] = []
    taken: dict[str, int] = {}
    rooms: dict[str, float] = {}
    keys, closed = _KeyRules(standing), standing.closed()
    for candidate in found:
        key = candidate.key
        if key is None:
            free.append((candidate.line, 0, candidate))
            continue
        if key not in rooms:
            taken[key], rooms[key] = 0, keys.room(key)
        turn = taken[key] + 1
        # Where its queue lets none start, it takes no place of its key from those of other queues.
        counts = candidate.queue not in closed
        taken[key] += counts
        limited = key in keys.limits
        if turn > rooms[key] or (limited and not keys.fits(candidate, turn, choice, counts=counts)):
            choice.blocked += 1
        else:
            free.append((candidate.line, turn + standing.live[key], candidate))
    if len(free) > most or standing.queues:
        ties = _ties(free, floors, shuffled=visits > most) if visits else {}
        free = _in_turn(free, ties)
    _take(free, keys.limits, standing, choice, most=most)
    return choice


def _in_turn(free: Sequence[Turn], ties: Mapping[tuple[int, str | None], float]) -> list[Turn]:
    """Sort by turns; jobs without a key come with the first turn of a key in their line."""
    least: dict[int, int] = {}
    for line, turn, one in free:
        if one.key is not None:
            least[line] = min(turn, least.get(line, turn))

    def place(each: Turn) -> tuple[int, int, float]:
        line, turn, one = each
        return line, turn or least.get(line, 1), ties.get((line, one.key), 0.0)

    return sorted(free, key=place)


def _ties(
    free: Sequence[Turn], floors: Sequence[int], *, shuffled: bool
) -> dict[tuple[int, str | None], float]:
    """Order the keys of a line that have the same turn, for a look that goes by keys.

    The oldest job's key comes last if the last claim took no job that is younger (the line's floor
    tells): it is the turn of another key. Otherwise it comes first once in as many times as there
    are other keys, by chance. The other keys come by the age of their first job; or by chance where
    more keys are visited than can be taken, because the walk then brings only some of them forward.
    """
    firsts: dict[tuple[int, str | None], int] = {}
    oldest: dict[int, Candidate] = {}
    for line, _, one in free:
        oldest.setdefault(line, one)
        firsts.setdefault((line, one.key), one.seq)
    ties = dict.fromkeys(firsts, 0.5)
    if shuffled:
        ties = {key: random.random() for key in ties}  # noqa: S311 - no secret
    for line, one in oldest.items():
        oldest_too = [first == one.seq for (place, _), first in firsts.items() if place == line]
        times = inf if floors[line] <= one.seq else len(oldest_too) - 1
        if floors[line] == one.seq and sum(oldest_too) > 1:
            times = len(oldest_too)  # submitted at one instant: nobody knows whose the last one was
        first = random.random() * times < 1  # noqa: S311 - no secret
        ties[line, one.key] = -1 if first else 2
    return ties


class _KeyRules:
    """What the rules of keys allow; `limits` has the keys whose rule has a rate or an order."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._units: dict[str, float] = {}
        self.limits: dict[str, Limit] = {}

    def room(self, key: str) -> float:
        """Tell how many more of a key may run."""
        limit = self._standing.rules.get(rule_of(key))
        if limit is None:
            return inf
        if limit.ordered or limit.rate is not None:
            self.limits[key] = limit
        if limit.ordered:
            return inf if not self._standing.live.get(key) else 0
        return inf if limit.most is None else limit.most - self._standing.live.get(key, 0)

    def fits(self, candidate: Candidate, turn: int, choice: Choice, *, counts: bool) -> bool:
        """Tell whether it is this job's turn, and the bucket has what it takes.

        What one takes that `counts` is missing for the next ones.
        """
        key = candidate.key or ""
        limit = self.limits[key]
        if limit.ordered and self._standing.turns.get(key) != candidate.number:
            return False
        if limit.rate is None:
            return True
        wanted = self._units.get(key, 0.0) + (candidate.units or 1)
        if counts:
            self._units[key] = wanted
        ahead = self._standing.ahead_us.get(("job", key), 0.0)
        missing = wanted * limit.unit_us - (limit.burst_us - max(0.0, ahead))
        # More than a bucket ever holds goes when it is full; the next ones wait for longer.
        if missing <= SLACK_US or (turn == 1 and ahead <= 0):
            return True
        # Where its queue is full, only the end of a job lets it go.
        if self._standing.room(candidate.queue) > 0:
            choice.key_us = missing if choice.key_us is None else min(choice.key_us, missing)
        return False


def _take(
    free: Sequence[Turn],
    limits: Mapping[str, Limit],
    standing: Standing,
    choice: Choice,
    *,
    most: int,
) -> None:
    if not limits and not standing.queues:
        choice.numbers.extend(candidate.number for _, _, candidate in free[:most])
        return
    ranks: Counter[str] = Counter()
    for _, _, candidate in free:
        if len(choice.numbers) >= most:
            break
        queue = standing.queues.get(candidate.queue)
        if queue is not None:
            rank = ranks[candidate.queue] = ranks[candidate.queue] + 1
            if not _queue_has_room(candidate.queue, queue, rank, standing, choice):
                choice.blocked += 1
                continue
            if queue.rate is not None:
                _charge(choice, ("queue", candidate.queue), queue.unit_us)
        choice.numbers.append(candidate.number)
        key = candidate.key
        if key is not None and (limit := limits.get(key)) is not None and limit.rate is not None:
            _charge(choice, ("job", key), (candidate.units or 1) * limit.unit_us)


def _queue_has_room(name: str, queue: Limit, rank: int, standing: Standing, choice: Choice) -> bool:
    if rank > standing.room(name):
        return False
    if queue.rate is None:
        return True
    missing = standing.missing_us(name, queue, rank)
    if missing > SLACK_US:
        choice.queue_us = missing if choice.queue_us is None else min(choice.queue_us, missing)
    return missing <= SLACK_US


def _charge(choice: Choice, bucket: tuple[str, str], us: float) -> None:
    choice.bill[bucket] = choice.bill.get(bucket, 0.0) + us


def whole_us(us: float) -> int:
    """Round up what is taken: a rate is never exceeded. No more than a store can write down."""
    return min(ceil(us - 1e-6), LONGEST_US)
