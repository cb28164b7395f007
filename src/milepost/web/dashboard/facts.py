"""Facts that many pages ask about and that change slowly: workers, errors, what lags behind.

They are read once for all viewers of a process, and kept for a few seconds.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from milepost.lifecycle import JobState
from milepost.records import ErrorGroup, Worker
from milepost.store import failures, jobs, outbox, rules, watermarks, workers
from milepost.store.driver import Steps
from milepost.store.job_facts import is_live
from milepost.web.call import Engine

FRESH_SECONDS = 3.0
COUNTS_SECONDS, COUNTED_MOST = 1.0, 10_000
"""For how long counts of jobs are kept where they were more than so many, successes left out."""
ERRORS = 50

LATE_SECONDS = 60.0
"""A queue or a channel in which something waits longer is marked, and explained."""
STUCK_SECONDS = 300.0
"""One in which something waits longer is among the troubles of the overview."""

T = TypeVar("T")


class Facts(msgspec.Struct, frozen=True):
    """How workers, errors, pipelines and channels stand, and what queues may do."""

    workers: Sequence[Worker]
    errors: Sequence[ErrorGroup]
    lags: Mapping[str, tuple[float, float | None]]
    """How many seconds each pipeline's watermark is behind, and may be."""
    undelivered: dict[str, tuple[int, float]]
    """How many messages wait in each channel, and for how many seconds the oldest."""
    queue_limits: Mapping[str, str] = {}
    """What the limits of queues allow, in words."""

    @property
    def live(self) -> list[Worker]:
        """The workers that hold a lease."""
        return [worker for worker in self.workers if is_live(worker)]


def _read() -> Steps[Facts]:
    found = yield from workers.listing()
    groups = yield from failures.groups(most=ERRORS)
    lags = yield from watermarks.freshness()
    waiting = yield from outbox.waiting()
    undelivered = {name: (count, age) for name, count, age in waiting}
    known = (yield from rules.rules()).items()
    limited = {name: rule.limit.words(scope) for (scope, name), rule in known if scope == "queue"}
    return Facts(found, groups, lags, undelivered, limited)


class Kept(Generic[T]):
    """Something that many pages ask for: one reads it for all, and it is kept for a moment."""

    def __init__(
        self, engine: Engine, read: Callable[[], Steps[T]], *, seconds: Callable[[T], float]
    ) -> None:
        """Keep it for so many seconds; that may depend on what was found."""
        self._engine = engine
        self._read = read
        self._seconds = seconds
        self._found: T | None = None
        self._until = 0.0
        self._reading = asyncio.Lock()

    async def read(self) -> T:
        """Give it, read anew if it is too old."""
        async with self._reading:
            if self._found is None or time.monotonic() >= self._until:
                self._found = await self._engine.client.run_async(self._read)
                self._until = time.monotonic() + self._seconds(self._found)
            return self._found

    def forget(self) -> None:
        """Read it anew the next time: something of it was changed here."""
        self._until = 0.0


def kept_facts(engine: Engine) -> Kept[Facts]:
    """Keep the facts of a store."""
    return Kept(engine, _read, seconds=lambda _: FRESH_SECONDS)


Counts = Mapping[str, Mapping[str, int]]
"""How many jobs there are, by queue and state."""


def kept_counts(engine: Engine) -> Kept[Counts]:
    """Keep how many jobs stand where: for a moment if they are many, else not at all."""
    return Kept(engine, jobs.counts, seconds=_counts_seconds)


def _counts_seconds(found: Counts) -> float:
    counted = sum(
        count
        for states in found.values()
        for state, count in states.items()
        if state != JobState.SUCCEEDED
    )
    return COUNTS_SECONDS if counted > COUNTED_MOST else 0.0
