"""One pass of maintenance. Several may run at once; one sick run does not stop the others."""

from collections.abc import Awaitable, Callable

import msgspec

from milepost.errors import MilepostError
from milepost.lifecycle import RunState
from milepost.store import jobs, runs, workers
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log

__all__ = ["Passed", "maintain", "recover", "wake"]

ACTOR = "maintenance"
BATCH = 500
ROUNDS = 20
"""How many batches one chore may do in one pass, so that the next chore gets its turn."""
KEEP_WORKERS = 86_400.0

log = Log("milepost.maintain")


class Passed(msgspec.Struct):
    """What one pass did."""

    woken: int = 0
    buried: int = 0
    lost: int = 0
    expired: int = 0
    rejected: int = 0
    moved: int = 0
    published: int = 0
    troubled: int = 0

    @property
    def total(self) -> int:
        """How much was done in all."""
        return sum(getattr(self, name) for name in self.__struct_fields__)


async def maintain(driver: AsyncDriver) -> Passed:
    """Do everything that is due, once."""
    passed = Passed()
    await recover(driver, passed)
    passed.expired = await _repeat(lambda: driver.run(jobs.expire, actor=ACTOR, most=BATCH))
    passed.rejected = await _repeat(lambda: driver.run(jobs.reject_spent, actor=ACTOR, most=BATCH))
    await wake(driver, passed)
    await _look_at_runs(driver, passed)
    await driver.run(runs.sweep_staged, most=BATCH)
    await driver.run(workers.prune, keep_seconds=KEEP_WORKERS)
    return passed


async def recover(driver: AsyncDriver, passed: Passed) -> None:
    """Bury workers whose lease is over and take their jobs from them."""
    passed.buried += len(await driver.run(workers.bury, most=BATCH))
    passed.lost += await _repeat(lambda: _lose(driver))


async def _lose(driver: AsyncDriver) -> int:
    return len(await driver.run(jobs.lose, actor=ACTOR, most=BATCH))


async def wake(driver: AsyncDriver, passed: Passed) -> None:
    """Send on what sleeps and whose time has come."""
    passed.woken += await _repeat(lambda: driver.run(jobs.wake, actor=ACTOR, most=BATCH))


async def _repeat(chore: Callable[[], Awaitable[int]]) -> int:
    done = 0
    for _ in range(ROUNDS):
        count = await chore()
        done += count
        if count < BATCH:
            break
    return done


async def _look_at_runs(driver: AsyncDriver, passed: Passed) -> None:
    """Repeat, for every live run, what the ends of its jobs should have done."""
    await _forget(driver, passed)
    passed.expired += await driver.run(runs.expire, actor=ACTOR, most=BATCH)
    after: str | None = None
    while page := await driver.run(runs.live, after=after, most=BATCH):
        for run_id, state in page:
            try:
                await _tend(driver, run_id, state, passed)
            except MilepostError as error:
                passed.troubled += 1
                log.warning("a run could not be tended", run_id=run_id, error=str(error))
        after = page[-1][0]


async def _tend(driver: AsyncDriver, run_id: str, state: RunState, passed: Passed) -> None:
    if state == RunState.STOPPING:
        passed.moved += await _repeat(
            lambda: driver.run(runs.cancel_rest, run_id, actor=ACTOR, most=BATCH)
        )
        return
    if state == RunState.CREATED:
        return
    passed.moved += await _repeat(
        lambda: driver.run(runs.release_held, run_id, actor=ACTOR, most=BATCH)
    )
    passed.moved += await _repeat(
        lambda: driver.run(runs.open_gates, run_id, actor=ACTOR, most=BATCH)
    )
    passed.published += await _repeat(
        lambda: driver.run(runs.publish, actor=ACTOR, most=BATCH, run_id=run_id)
    )
    passed.moved += len(await driver.run(runs.look_at, run_id, actor=ACTOR))


async def _forget(driver: AsyncDriver, passed: Passed) -> None:
    """Cancel held runs that nobody sealed in time (H-107)."""
    for run_id in await driver.run(runs.forgotten, most=BATCH):
        await driver.run(runs.cancel, run_id, reason="never submitted", actor=ACTOR)
        passed.moved += 1
