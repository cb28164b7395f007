"""How a source is cut into partitions: few counts, of the places that matter (H-82).

A scan knows positions, and how many records lie before each. It first finds where records begin and
end, then looks for the places that cut them into equal parts, guessing each from the positions
around it. Partitions are made of known positions only: their sizes are counted, not guessed. They
are contiguous and disjoint; the first begins and the last ends beyond everything, so that records
that were miscounted, or came later, are read all the same (H-80).
"""

import asyncio
import bisect
import math
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from milepost.ingest.keys import HIGHEST, LOWEST, Axis, is_open, written
from milepost.ingest.source import Partition

REACH = 32.0
"""How much farther each look for the end of the records goes than the one before it."""
NEAR = 0.12
"""A cut this close to where it should be, in shares of a partition, is not looked for again."""
EVEN = 1.2
"""A largest partition of so many times the mean is even enough to stop early."""
AT_ONCE = 4
CALLS_LEAST = 24

Count = Callable[[Any, Any], Awaitable[int]]


class Plan(msgspec.Struct, frozen=True):
    """Partitions, and the counts they were made from."""

    partitions: Sequence[Partition]
    counted: int
    calls: int
    histogram: Sequence[tuple[Any, Any, int]] = ()
    """(low, high, records) of each range between two counted positions."""

    @property
    def largest(self) -> float:
        """How many times the mean the largest partition is."""
        sizes = [part.estimate for part in self.partitions if not part.is_null]
        return max(sizes) * len(sizes) / sum(sizes) if sum(sizes) else 0.0

    def text(self) -> str:
        """Write it down as it is kept with the run."""
        cells = [(written(low), written(high), count) for low, high, count in self.histogram]
        return msgspec.json.encode({"histogram": cells, "calls": self.calls}).decode()


class Scan:
    """Looks for the cuts: it says which ranges to count, takes in the counts, and does no I/O."""

    def __init__(self, axis: Axis, total: int, parts: int, *, origin: float, calls: int) -> None:
        self._axis = axis
        self._total = total
        self._parts = max(1, min(parts, total))
        self._origin = origin
        self._places: list[float] = [LOWEST, HIGHEST]
        self._before: list[int] = [0, total]
        self._left = calls
        if axis.bounds is not None:
            low, high = (axis.place(bound) for bound in axis.bounds)
            self._add(low, 0)
            self._add(high, total)

    # Counting

    def wanted(self) -> list[tuple[float, float]]:
        """Name the ranges to count next, from a known position up to a new one; none when done."""
        if self._parts < 2 or self._left <= 0:  # noqa: PLR2004 - nothing to cut
            return []
        # With few calls left, the worst partition comes first.
        late = self._left <= self._parts // 3
        then = (self._uneven, self._cuts) if late else (self._cuts, self._uneven)
        places = self._ends() or then[0]() or then[1]()
        places = places[: min(AT_ONCE, self._left)]
        self._left -= len(places)
        return [(self._places[bisect.bisect_left(self._places, at) - 1], at) for at in places]

    def add(self, low: float, place: float, count: int) -> None:
        """Take in a count; a source that changes meanwhile may contradict itself."""
        at = bisect.bisect_left(self._places, low)
        self._add(place, self._before[at] + max(0, count))

    def _add(self, place: float, before: int) -> None:
        at = bisect.bisect_left(self._places, place)
        if self._places[at] != place:
            self._places.insert(at, place)
            self._before.insert(at, min(max(before, self._before[at - 1]), self._before[at]))

    def _ends(self) -> list[float]:
        """Look for the first and the last record, in growing steps from the origin."""
        if len(self._places) == 2:  # noqa: PLR2004 - nothing is known yet
            return [self._origin, self._step(self._origin, 1)]
        found: list[float] = []
        if self._before[-2] < self._total:
            found.append(self._step(self._places[-2], 1))
        if self._before[1] > 0:
            found.append(self._step(self._places[1], -1))
        low, high = self._axis.reach
        return [place for place in found if math.isfinite(place) and low < place < high]

    def _step(self, place: float, sign: int) -> float:
        unit = {"time": 86_400.0, "date": 1.0}.get(self._axis.kind, 1.0)
        gone = abs(place - self._origin)
        return self._origin + sign * max(unit * REACH, gone * REACH)

    def _cuts(self) -> list[float]:
        """Guess where the cuts are that are not known closely enough, one for each range."""
        mean = self._total / self._parts
        asked: dict[int, list[float]] = {}
        for number in range(1, self._parts):
            goal = number * mean
            at = bisect.bisect_left(self._before, goal)
            off = min(abs(self._before[at] - goal), abs(goal - self._before[at - 1]))
            if off > NEAR * mean:
                asked.setdefault(at, []).append(goal)
        # The fullest first: it tells most.
        order = sorted(asked, key=lambda at: self._before[at - 1] - self._before[at])
        guesses = (self._guess(at, asked[at][len(asked[at]) // 2]) for at in order)
        return [place for place in guesses if place is not None]

    def _uneven(self) -> list[float]:
        """Halve the fullest range of the largest partition."""
        edges = self.edges()
        sizes = [self._before[b] - self._before[a] for a, b in pairwise(edges)]
        worst = max(range(len(sizes)), key=sizes.__getitem__)
        if sizes[worst] * self._parts <= EVEN * self._total:
            return []
        inside = range(edges[worst] + 1, edges[worst + 1] + 1)
        for at in sorted(inside, key=lambda at: self._before[at - 1] - self._before[at]):
            goal = (self._before[at] + self._before[at - 1]) / 2
            if (place := self._guess(at, goal)) is not None:
                return [place]
        return []

    def _guess(self, at: int, goal: float) -> float | None:
        """Guess the position before which so many records lie, within one range."""
        low, high = self._places[at - 1], self._places[at]
        below, above = self._before[at - 1], self._before[at]
        if above == below or not (math.isfinite(low) and math.isfinite(high)):
            return None
        share = (goal - below) / (above - below)
        # Not too near an end: a wrong guess must still halve the rest.
        share = min(max(share, 0.04), 0.96)
        place = self._between(low, high, share)
        if self._axis.whole or (self._axis.kind == "number" and high - low > 2):  # noqa: PLR2004 - may be whole
            place = float(round(place))
        narrow = place <= low or place >= high or math.nextafter(low, high) >= high
        return None if narrow else place

    def _between(self, low: float, high: float, share: float) -> float:
        """Interpolate: by ratios where a range spans many, as prices and sizes do."""
        near, far = low - self._origin, high - self._origin
        if near > 0 and far / near > 2:  # noqa: PLR2004 - less is nearly straight
            return float(self._origin + near * (far / near) ** share)
        if near < 0 and far < 0 and near / far > 2:  # noqa: PLR2004 - likewise
            return float(self._origin - (-near) * (far / near) ** share)
        return low + (high - low) * share

    # Cutting

    def edges(self) -> list[int]:
        """Choose known positions as edges, so that the largest partition is as small as can be."""
        inner = [
            at
            for at in range(1, len(self._places) - 1)
            if self._before[at - 1] < self._before[at] or self._before[at] < self._before[at + 1]
        ]
        points = [0, *inner, len(self._places) - 1]
        low = max((self._before[b] - self._before[a] for a, b in pairwise(points)), default=0)
        high = self._total
        while low < high:
            middle = (low + high) // 2
            if len(self._packed(points, middle)) - 1 <= self._parts:
                high = middle
            else:
                low = middle + 1
        return self._spread(self._packed(points, high), points)

    def _packed(self, points: Sequence[int], most: int) -> list[int]:
        """Cut from the left, each partition as full as it may be."""
        chosen = [points[0]]
        for place, point in enumerate(points[1:], start=1):
            if self._before[point] - self._before[chosen[-1]] > most:
                chosen.append(points[place - 1])
        return [*chosen, points[-1]]

    def _spread(self, chosen: list[int], points: Sequence[int]) -> list[int]:
        """Halve the largest partitions that can be, until there are as many as were asked for."""
        while len(chosen) - 1 < self._parts:
            best: tuple[int, int] | None = None
            for a, b in pairwise(chosen):
                inside = [p for p in points if a < p < b]
                inside = [p for p in inside if self._before[a] < self._before[p] < self._before[b]]
                if inside and (best is None or self._before[b] - self._before[a] > best[0]):
                    half = (self._before[a] + self._before[b]) / 2
                    middle = min(inside, key=lambda p: abs(self._before[p] - half))
                    best = (self._before[b] - self._before[a], middle)
            if best is None:
                return chosen
            bisect.insort(chosen, best[1])
        return chosen

    def partitions(self, *, page: int) -> list[Partition]:
        """Make the partitions."""
        found = enumerate(self.ranges(self.edges()))
        return [Partition(low, high, number, count, page) for number, (low, high, count) in found]

    def ranges(self, places: Sequence[int] | None = None) -> list[tuple[Any, Any, int]]:
        """List (low, high, records) between known positions: these, or all of them."""
        chosen = range(len(self._places)) if places is None else places
        keys = [self._axis.key(self._places[at]) for at in chosen]
        counts = [self._before[b] - self._before[a] for a, b in pairwise(chosen)]
        return [
            (low, high, count) for (low, high), count in zip(pairwise(keys), counts, strict=True)
        ]


async def scanned(
    count: Count, axis: Axis, *, parts: int, page: int, origin: float, spread: bool = False
) -> Plan:
    """Cut a source into partitions; few counts at once, twice as many as parts in all.

    With `spread` a partition is not cut smaller than a page: recent changes are often few.
    """
    total = max(0, int(await count(axis.key(LOWEST), axis.key(HIGHEST))))
    if spread:
        parts = min(parts, math.ceil(total / page))
    calls = max(2 * parts, CALLS_LEAST) - 2
    scan = Scan(axis, total, parts, origin=origin, calls=calls)
    made = 1
    while asked := scan.wanted():
        made += len(asked)
        answers = await asyncio.gather(
            *(count(axis.key(low), axis.key(place)) for low, place in asked)
        )
        for (low, place), answer in zip(asked, answers, strict=True):
            scan.add(low, place, int(answer))
    return Plan(scan.partitions(page=page), total, made, scan.ranges())


async def divided(
    count: Count, axis: Axis, partition: Partition, *, parts: int, origin: float
) -> list[Partition]:
    """Cut a partition that turned out larger than it was thought (H-80); one back: it cannot be."""
    low, high = partition.low, partition.high
    if not (is_open(low) or is_open(high)):
        axis = Axis(axis.kind, (low, high))

    async def within(begin: Any, end: Any) -> int:
        begin, end = max(begin, low), min(end, high)
        return await count(begin, end) if begin < end else 0

    plan = await scanned(within, axis, parts=parts, page=partition.page, origin=origin)
    found = [
        msgspec.structs.replace(part, low=max(part.low, low), high=min(part.high, high))
        for part in plan.partitions
    ]
    return [part for part in found if part.low < part.high]
