"""Folds the counts of moves and durations into sums, and lets old ones go."""

from milepost.clock import Clock, SystemClock
from milepost.maintain.chores import Tally
from milepost.store import tally
from milepost.store.driver import AsyncDriver

BATCH = 5_000
ROUNDS = 20
"""How many batches one pass does."""
FORGET_SECONDS = 3_600.0


class TallyFolder:
    """A chore for when counts are `tally.FOLD_SECONDS` old: a short drain leaves them to others."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._forget_at = 0.0

    async def __call__(self, driver: AsyncDriver, done: Tally) -> None:  # noqa: ARG002 - none moves
        """Fold what has gathered."""
        for _ in range(ROUNDS):
            if await driver.run(tally.fold, most=BATCH) < BATCH:
                break
        for _ in range(ROUNDS):
            if not await driver.run(tally.roll):
                break
        if (now := self._clock.monotonic()) >= self._forget_at:
            self._forget_at = now + FORGET_SECONDS
            await driver.run(tally.forget)
