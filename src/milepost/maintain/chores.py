"""One pass of maintenance. Several may run at once; one sick run does not stop the others."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from milepost.errors import Unavailable
from milepost.lifecycle import RunState
from milepost.outcome import micros
from milepost.store import fanin, outputs, runs, timers, watermarks, workers
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log

ACTOR = "maintenance"
BATCH = 500
ROUNDS = 20
"""How many batches one chore may do in one pass, so that the next chore gets its turn."""
KEEP_WORKERS = 86_400.0
WORKING = (RunState.QUEUED, RunState.RUNNING, RunState.FINALIZING)

log = Log("milepost.maintain")


class Passed(msgspec.Struct):
    """What one pass did."""

    fired: int = 0
    woken: int = 0
    buried: int = 0
    lost: int = 0
    expired: int = 0
    rejected: int = 0
    moved: int = 0
    published: int = 0
    retired: int = 0
    summed: int = 0
    alerted: int = 0
    troubled: int = 0

    @property
    def total(self) -> int:
        """How much was done in all."""
        done: int = sum(getattr(self, name) for name in self.__struct_fields__)
        return done - self.troubled


Chore = Callable[[AsyncDriver, Passed], Awaitable[None]]


async def maintain(driver: AsyncDriver, chores: Mapping[str, Chore] | None = None) -> Passed:
    """Do everything that is due, once; a chore in trouble does not stop the others (H-100)."""
    passed = Passed()
    for name, chore in (CHORES if chores is None else chores).items():
        await safely(chore(driver, passed), passed, chore=name)
    return passed


async def safely(work: Awaitable[None], passed: Passed, **named: str) -> None:
    """Do something; whatever goes wrong is told and counted, and the next has its turn."""
    try:
        await work
    except Unavailable:
        raise  # nothing else would go better
    except Exception as error:  # noqa: BLE001 - whatever it is, the next one gets its turn
        passed.troubled += 1
        log.warning("maintenance is in trouble", error=repr(error), **named)


async def bury(driver: AsyncDriver, passed: Passed) -> None:
    """Mark workers whose lease is over as dead."""
    passed.buried += len(await driver.run(workers.bury, most=BATCH))


async def lose(driver: AsyncDriver, passed: Passed) -> None:
    """Take their jobs from the dead."""
    passed.lost += await _repeat(lambda: _lose(driver))


async def _lose(driver: AsyncDriver) -> int:
    return len(await driver.run(timers.lose, actor=ACTOR, most=BATCH))


async def expire(driver: AsyncDriver, passed: Passed) -> None:
    """End what missed its deadline."""
    passed.expired += await _repeat(lambda: driver.run(timers.expire, actor=ACTOR, most=BATCH))


async def reject(driver: AsyncDriver, passed: Passed) -> None:
    """End what could never be claimed again (H-21)."""
    passed.rejected += await _repeat(
        lambda: driver.run(timers.reject_spent, actor=ACTOR, most=BATCH)
    )


async def wake(driver: AsyncDriver, passed: Passed) -> None:
    """Send on what sleeps and whose time has come."""
    passed.woken += await _repeat(lambda: driver.run(timers.wake, actor=ACTOR, most=BATCH))


async def _repeat(chore: Callable[[], Awaitable[int]]) -> int:
    done = 0
    for _ in range(ROUNDS):
        count = await chore()
        done += count
        if count < BATCH:
            break
    return done


async def forget(driver: AsyncDriver, passed: Passed) -> None:
    """End held runs that nobody sealed in time (H-107)."""
    for run_id in await driver.run(runs.forgotten, most=BATCH):
        await safely(_forget(driver, run_id, passed), passed, run_id=run_id)


async def _forget(driver: AsyncDriver, run_id: str, passed: Passed) -> None:
    passed.expired += await driver.run(runs.expire_held, run_id, actor=ACTOR)


def expire_held(hold_limit: float) -> Chore:
    """Make the chore that ends held jobs which nobody submitted in so many seconds (H-108)."""
    hold_us = micros(hold_limit)

    async def chore(driver: AsyncDriver, passed: Passed) -> None:
        passed.expired += await _repeat(
            lambda: driver.run(timers.expire_held, actor=ACTOR, hold_us=hold_us, most=BATCH)
        )

    return chore


async def expire_runs(driver: AsyncDriver, passed: Passed) -> None:
    """Stop runs that missed their deadline."""
    passed.expired += await driver.run(runs.expire, actor=ACTOR, most=BATCH)


async def look_at_runs(driver: AsyncDriver, passed: Passed) -> None:
    """Repeat, for every live run, what the ends of its jobs should have done."""
    after: str | None = None
    while page := await driver.run(runs.live, after=after, most=BATCH):
        working = [run_id for run_id, state in page if state in WORKING]
        # Together, which is cheap; where that fails, one by one: a sick run stops no other (H-100).
        try:
            await _tend(driver, working, passed)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001 - told of the one that it is
            for run_id in working:
                await safely(_tend(driver, [run_id], passed), passed, run_id=run_id)
        for run_id, state in page:
            if state == RunState.STOPPING:
                await safely(_stop(driver, run_id, passed), passed, run_id=run_id)
        after = page[-1][0]


async def _tend(driver: AsyncDriver, run_ids: list[str], passed: Passed) -> None:
    if not run_ids:
        return
    passed.moved += await _repeat(
        lambda: driver.run(runs.release_held, run_ids, actor=ACTOR, most=BATCH)
    )
    passed.moved += await _repeat(
        lambda: driver.run(runs.open_gates, run_ids, actor=ACTOR, most=BATCH)
    )
    passed.published += await _repeat(
        lambda: driver.run(outputs.publish, run_ids, actor=ACTOR, most=BATCH)
    )
    for run_id in await driver.run(fanin.overdue, run_ids):
        passed.moved += len(await driver.run(fanin.advance_one, run_id, actor=ACTOR))


async def _stop(driver: AsyncDriver, run_id: str, passed: Passed) -> None:
    passed.moved += await _repeat(
        lambda: driver.run(runs.cancel_rest, run_id, actor=ACTOR, most=BATCH)
    )


async def alert(driver: AsyncDriver, passed: Passed) -> None:
    """Have it told which pipelines are not fresh."""
    passed.alerted += await driver.run(watermarks.alert, actor=ACTOR)


async def sweep(driver: AsyncDriver, passed: Passed) -> None:  # noqa: ARG001 - nothing moves
    """Throw away what nobody will use: outputs of lost attempts, workers gone long ago."""
    await driver.run(outputs.sweep_staged, most=BATCH)
    await driver.run(workers.prune, keep_seconds=KEEP_WORKERS)


CHORES: Mapping[str, Chore] = {
    "bury": bury,
    "lose": lose,
    "expire": expire,
    "reject": reject,
    "wake": wake,
    "forget": forget,
    "expire_runs": expire_runs,
    "look_at_runs": look_at_runs,
    "alert": alert,
    "sweep": sweep,
}
"""What any program can do: it needs neither code nor settings."""
