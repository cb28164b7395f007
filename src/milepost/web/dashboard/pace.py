"""Rates and times of jobs over a range, from the tally: what tiles, charts and queues show."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from milepost.lifecycle import JOB
from milepost.store import tally
from milepost.store.tally import DurationCount, MoveCount

ENDS = frozenset(
    move.name
    for move in JOB.moves
    if move.name != "erase" and set(move.targets) <= set(JOB.terminal)
)
"""Moves that end a job, whatever it was."""


class Range(msgspec.Struct, frozen=True):
    """A span of time that charts show, in steps."""

    name: str
    seconds: int
    step: int

    @property
    def points(self) -> int:
        """How many steps it has."""
        return self.seconds // self.step

    def since(self, now: datetime) -> datetime:
        """Tell when it begins: at a whole step, so that the last one is the current one."""
        last = now.timestamp() // self.step * self.step
        return datetime.fromtimestamp(last - (self.points - 1) * self.step, now.tzinfo)


RANGES = {
    one.name: one
    for one in (
        Range("15 min", 900, 60),
        Range("1 h", 3_600, 60),
        Range("24 h", 86_400, 600),
        Range("7 d", 604_800, 3_600),
    )
}
DEFAULT = "1 h"


class Pace(msgspec.Struct, frozen=True):
    """How jobs moved within a range: a number for each of its steps, the current one last."""

    range: Range
    now: datetime
    moves: dict[str, list[int]]
    waits: list[DurationCount | None]
    runs: list[DurationCount | None]

    @classmethod
    def of(
        cls,
        chosen: Range,
        now: datetime,
        moves: Iterable[MoveCount],
        waits: Iterable[DurationCount] = (),
        runs: Iterable[DurationCount] = (),
    ) -> "Pace":
        """Place counts on the steps of a range."""
        since = chosen.since(now)
        placed: dict[str, list[int]] = defaultdict(lambda: [0] * chosen.points)
        for one in moves:
            if (step := _step(chosen, since, one.at)) is not None:
                placed[one.move or ""][step] += one.count
        return cls(
            chosen, now, dict(placed), _placed(chosen, since, waits), _placed(chosen, since, runs)
        )

    @property
    def elapsed(self) -> list[float]:
        """How many seconds of each step have passed."""
        into = self.now.timestamp() % self.range.step
        return [float(self.range.step)] * (self.range.points - 1) + [max(1.0, into)]

    def per_second(self, *names: str) -> list[float]:
        """How often some moves were made, step by step."""
        return [
            sum(self.moves[name][step] for name in names if name in self.moves) / passed
            for step, passed in enumerate(self.elapsed)
        ]

    def lately(self, *names: str) -> float:
        """How often a second some moves were made in the last whole step and the current one."""
        counts = [sum(self.moves[name][-2:]) for name in names if name in self.moves]
        return sum(counts) / sum(self.elapsed[-2:])

    def total(self, *names: str) -> int:
        """How many of some moves there were."""
        return sum(sum(self.moves[name]) for name in names if name in self.moves)

    @property
    def failure_share(self) -> float | None:
        """Which share of the jobs that ended failed."""
        failed, ended = self.total("fail", "expire", "reject"), self.total(*ENDS)
        return failed / ended if ended else None


def _step(chosen: Range, since: datetime, at: datetime) -> int | None:
    step = (at - since) // timedelta(seconds=chosen.step)
    return step if 0 <= step < chosen.points else None


def _placed(
    chosen: Range, since: datetime, found: Iterable[DurationCount]
) -> list[DurationCount | None]:
    placed: list[DurationCount | None] = [None] * chosen.points
    for one in found:
        if (step := _step(chosen, since, one.at)) is not None:
            placed[step] = one
    return placed


def quantiles(counts: Sequence[DurationCount | None], q: float) -> list[float | None]:
    """Estimate a quantile of each step."""
    return [None if one is None else tally.quantile(one.buckets, q) for one in counts]


def overall(counts: Sequence[DurationCount | None], q: float) -> float | None:
    """Estimate a quantile of all steps together."""
    there = [one for one in counts if one is not None]
    return tally.quantile(tally.added(there), q) if there else None
