"""Operations on workers, their leases, elections and the store's clock."""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from milepost.errors import LeaseLost
from milepost.lifecycle import WORKER, WorkerState
from milepost.outcome import micros
from milepost.records import Worker
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant


class NewWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker about to be registered."""

    id: str
    lease_us: int
    host: str | None = None
    pid: int | None = None
    program: str | None = None
    queues: str | None = None
    kinds: str | None = None
    slots: str | None = None


def register(worker: NewWorker) -> Steps[None]:
    """Enter a worker, in STARTUP, with a lease."""
    if not (yield Call("worker_register", msgspec.structs.asdict(worker))):
        # It was entered before, and the reply was lost.
        yield from renew(worker.id, lease_seconds=worker.lease_us / 1_000_000)


def move(
    worker_id: str, name: str, *, source: WorkerState, slots: str | None = None
) -> Steps[WorkerState]:
    """Show a move on the worker's row, or raise `LeaseLost` when it was buried."""
    target = next(iter(WORKER.targets(name, source)), source)
    WORKER.check(name, source, target)
    parameters = {"id": worker_id, "move": name, "state": target, "slots": slots}
    rows = yield Call("worker_move", parameters)
    if not rows:
        raise LeaseLost(f"worker {worker_id} was buried: its jobs belong to others now")
    return WorkerState(target)


def walk(
    worker_id: str, source: WorkerState | None, target: WorkerState, *, slots: str | None = None
) -> Steps[None]:
    """Show the moves that lead from one state to another: only the last one stands."""
    stops = target == WorkerState.STOPPED  # by `drain` and `stop`: only maintenance buries
    path = WORKER.path(source, WorkerState.DRAINING if stops else target)
    for name, state in [*path, *([("stop", WorkerState.DRAINING)] if stops else [])]:
        yield from move(worker_id, name, source=WorkerState(state), slots=slots)


def note_exit(*, host: str, pid: int, exit_code: int) -> Steps[None]:
    """Keep how a worker's process ended: less than zero is a signal."""
    yield Call("worker_exit", {"host": host, "pid": pid, "exit_code": exit_code})


def renew(worker_id: str, *, lease_seconds: float, slots: str | None = None) -> Steps[None]:
    """Renew the lease on everything the worker holds, or raise `LeaseLost`."""
    parameters = {"id": worker_id, "lease_us": micros(lease_seconds), "slots": slots}
    rows = yield Call("worker_renew", parameters)
    if not rows:
        raise LeaseLost(f"worker {worker_id} was buried: its jobs belong to others now")


def bury(*, most: int) -> Steps[list[str]]:
    """Mark workers whose lease is over as dead; answer with their ids."""
    yield Call("worker_cut")
    rows = yield Call("worker_bury", {"most": most})
    return [row[0] for row in rows]


def prune(*, keep_seconds: float) -> Steps[None]:
    """Forget workers that stopped long ago."""
    yield Call("worker_prune", {"keep_us": micros(keep_seconds)})


def listing(*, most: int = 1_000, free_beside: str | None = None) -> Steps[list[Worker]]:
    """Read the workers, newest first, stopped ones last; or live ones that rest, apart from one."""
    rows = yield Call("worker_list", {"most": most, "free_beside": free_beside})
    return [_worker(row) for row in rows]


_worker = reader(Worker)


def counts() -> Steps[Mapping[str, int]]:
    """Count workers by state; one whose lease is over counts as STOPPED."""
    rows = yield Call("worker_counts")
    return dict(map(tuple, rows))


def hold_election(name: str, *, holder: str, lease_seconds: float) -> Steps[bool]:
    """Take or keep a chore that one worker should do at a time; for economy, not for safety."""
    rows = yield Call(
        "election_hold", {"name": name, "holder": holder, "lease_us": micros(lease_seconds)}
    )
    return bool(rows) and rows[0][0] == holder


def now() -> Steps[datetime]:
    """Read the clock that decides."""
    [(value,)] = yield Call("clock_now")
    return instant(value)


def advance_clock(seconds: float) -> Steps[None]:
    """Move the store's clock; for tests."""
    yield Call("clock_advance", {"by_us": micros(seconds)})
