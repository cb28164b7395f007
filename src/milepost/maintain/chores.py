"""One pass of maintenance. Several may run at once; one failing run does not stop the others."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from milepost.errors import Unavailable
from milepost.lifecycle import RunState
from milepost.outcome import micros
from milepost.store import fanin, hints, outputs, rules, runs, timers, watermarks, workers
from milepost.store.driver import AsyncDriver, Steps
from milepost.telemetry import Log

ACTOR = "maintenance"
BATCH = 500
ROUNDS = 20
"""How many batches one chore may do in one pass, so that the next chore gets its turn."""
KEEP_WORKERS = 86_400.0
WORKING = (RunState.QUEUED, RunState.RUNNING, RunState.FINALIZING)

log = Log("milepost.maintain")


class Tally(msgspec.Struct):
    """How much one pass of maintenance did, by kind."""

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
    forgotten: int = 0
    alerted: int = 0
    dispatched: int = 0
    undispatched: int = 0
    failed: int = 0
    """Chores that raised; they are no work done."""

    @property
    def total(self) -> int:
        """How much was done in all."""
        done: tuple[int, ...] = msgspec.structs.astuple(self)
        return sum(done) - self.failed


Chore = Callable[[AsyncDriver, Tally], Awaitable[None]]


async def maintain(
    driver: AsyncDriver,
    chores: Mapping[str, Chore] | None = None,
    *,
    hold_limit: float = 0.0,
    hint_limit: float = 0.0,
) -> Tally:
    """Do everything that is due, once; a chore that fails does not stop the others (H-100).

    One look tells which chores have something to do: mostly none has. What one of them did may be
    work for those after it.
    """
    tally = Tally()
    due = await driver.run(timers.due_chores, hold=hold_limit, hint=hint_limit, keep=KEEP_WORKERS)
    for name, chore in (CHORES if chores is None else chores).items():
        if name in due or name not in LOOKED_AT or (tally.total and name not in SELDOM):
            await safely(chore(driver, tally), tally, chore=name)
    return tally


async def safely(work: Awaitable[None], tally: Tally, **named: str) -> None:
    """Do a part of a pass; an error is logged and counted, and the next part has its turn."""
    try:
        await work
    except Unavailable:
        raise  # nothing else would go better
    except Exception as error:  # noqa: BLE001 - whatever it is, the next one gets its turn
        tally.failed += 1
        log.warning("maintenance chore failed", error=repr(error), **named)


async def in_batches(
    driver: AsyncDriver,
    operation: Callable[..., Steps[Any]],
    *args: Any,
    actor: str = ACTOR,
    **parameters: Any,
) -> int:
    """Run an operation while it moves whole batches; answer with how much it moved."""
    done = 0
    for _ in range(ROUNDS):
        moved = await driver.run(operation, *args, actor=actor, most=BATCH, **parameters)
        count: int = moved if isinstance(moved, int) else len(moved)
        done += count
        if count < BATCH:
            break
    return done


async def bury(driver: AsyncDriver, tally: Tally) -> None:
    """Mark workers whose lease is over as dead."""
    tally.buried += len(await driver.run(workers.bury, most=BATCH))


async def lose(driver: AsyncDriver, tally: Tally) -> None:
    """Take running jobs from dead workers."""
    tally.lost += await in_batches(driver, timers.lose)


async def expire(driver: AsyncDriver, tally: Tally) -> None:
    """End jobs that missed their deadline."""
    tally.expired += await in_batches(driver, timers.expire)


async def reject(driver: AsyncDriver, tally: Tally) -> None:
    """End jobs that could never be claimed again (H-21)."""
    tally.rejected += await in_batches(driver, timers.reject_spent)


async def wake(driver: AsyncDriver, tally: Tally) -> None:
    """Queue sleeping jobs whose time has come."""
    tally.woken += await in_batches(driver, timers.wake)


async def forget(driver: AsyncDriver, tally: Tally) -> None:
    """End held runs that nobody sealed in time (H-107)."""

    async def expire_one(run_id: str) -> None:
        tally.expired += await driver.run(runs.expire_held, run_id, actor=ACTOR)

    for run_id in await driver.run(runs.forgotten, most=BATCH):
        await safely(expire_one(run_id), tally, run_id=run_id)


def expire_held(hold_limit: float) -> Chore:
    """Make the chore that ends held jobs which nobody submitted in so many seconds (H-108)."""

    async def chore(driver: AsyncDriver, tally: Tally) -> None:
        hold_us = micros(hold_limit)
        tally.expired += await in_batches(driver, timers.expire_held, hold_us=hold_us)

    return chore


async def enqueue_left(driver: AsyncDriver, tally: Tally) -> None:
    """Queue jobs that wait for a broker in a queue that is on none any more."""
    tally.dispatched += await in_batches(driver, hints.enqueue_left)


def enqueue(queues: Sequence[str] | None) -> Chore:
    """Make the chore that queues jobs of these queues for a worker that scans; None: of all."""

    async def chore(driver: AsyncDriver, tally: Tally) -> None:
        tally.dispatched += await in_batches(driver, hints.enqueue, queues)

    return chore


def dispatch(queues: Sequence[str], most: int) -> Chore:
    """Make the chore that hands the first jobs of these queues to their brokers: they are due."""

    async def chore(driver: AsyncDriver, tally: Tally) -> None:
        for queue in queues:
            found = await driver.run(
                hints.dispatch, queue, most=most, batch=BATCH, lease_seconds=0, actor=ACTOR
            )
            tally.dispatched += len(found)

    return chore


def undispatch(limit_seconds: float) -> Chore:
    """Make the chore that takes back jobs which nobody claimed within so many seconds (H-50)."""

    async def chore(driver: AsyncDriver, tally: Tally) -> None:
        tally.undispatched += await in_batches(
            driver, hints.undispatch, limit_seconds=limit_seconds
        )

    return chore


async def expire_runs(driver: AsyncDriver, tally: Tally) -> None:
    """Stop runs that missed their deadline."""
    tally.expired += await driver.run(runs.expire, actor=ACTOR, most=BATCH)


async def look_at_runs(driver: AsyncDriver, tally: Tally) -> None:
    """Repeat, for every live run, the moves that the ends of its jobs should have made."""
    after: str | None = None
    while page := await driver.run(runs.live, after=after, most=BATCH):
        working = [run_id for run_id, state in page if state in WORKING]
        # Together, which is cheap; where that fails, one by one: no run stops another (H-100).
        try:
            await _tend(driver, working, tally)
        except Unavailable:
            raise
        except Exception:  # noqa: BLE001 - logged for its run
            for run_id in working:
                await safely(_tend(driver, [run_id], tally), tally, run_id=run_id)
        for run_id, state in page:
            if state == RunState.STOPPING:
                await safely(_stop(driver, run_id, tally), tally, run_id=run_id)
        after = page[-1][0]


async def _tend(driver: AsyncDriver, run_ids: list[str], tally: Tally) -> None:
    if not run_ids:
        return
    tally.moved += await in_batches(driver, runs.release_held, run_ids)
    tally.moved += await in_batches(driver, runs.open_gates, run_ids)
    tally.published += await in_batches(driver, outputs.publish, run_ids)
    for run_id in await driver.run(fanin.overdue, run_ids):
        tally.moved += len(await driver.run(fanin.advance_one, run_id, actor=ACTOR))


async def _stop(driver: AsyncDriver, run_id: str, tally: Tally) -> None:
    tally.moved += await in_batches(driver, runs.cancel_rest, run_id)


async def alert(driver: AsyncDriver, tally: Tally) -> None:
    """Send the alerts of pipelines that are not fresh."""
    tally.alerted += await driver.run(watermarks.alert, actor=ACTOR)


async def sweep(driver: AsyncDriver, tally: Tally) -> None:  # noqa: ARG001 - nothing moves
    """Remove outputs of lost attempts, full buckets, and workers that stopped long ago."""
    await driver.run(outputs.sweep_staged, most=BATCH)
    for _ in range(ROUNDS):
        if await driver.run(rules.prune, most=BATCH) < BATCH:
            break
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
"""The chores that any program can do: they need neither code nor settings."""
SELDOM = frozenset({"fold"})
"""Chores whose work may gather: what others did in the same pass is no reason for them."""
LOOKED_AT = frozenset({*CHORES, *SELDOM, "expire_held", "undispatch", "dispatch"})
"""The chores that the look tells of; the others know themselves whether they are due."""
