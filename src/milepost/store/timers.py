"""What time does to jobs: leases that end, sleeps that are over, deadlines that are missed."""

from milepost.store import runs
from milepost.store.driver import Call, Steps


def lose(*, actor: str, most: int) -> Steps[list[tuple[str, str]]]:
    """Take running jobs from workers that are dead or unknown; answer with (id, state)."""
    rows = yield Call("job_lose", {"actor": actor, "most": most})
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    return [(row[0], row[3]) for row in rows]


def wake(*, actor: str, most: int) -> Steps[int]:
    """Send on what sleeps and whose time has come; answer with how many."""
    rows = yield Call("job_wake", {"actor": actor, "most": most})
    if rows:
        # Who wakes them may serve other queues, or have no slot free.
        yield Call("worker_hint")
    return len(rows)


def next_due() -> Steps[float | None]:
    """Tell in how many seconds something sleeping is due; None when nothing sleeps."""
    [(micros,)] = yield Call("job_next_due")
    return None if micros is None else micros / 1_000_000


def expire(*, actor: str, most: int) -> Steps[int]:
    """End what missed its deadline or its start and is not running; answer with how many."""
    rows = yield Call("job_expire", {"actor": actor, "most": most})
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    return len(rows)


def expire_held(*, actor: str, hold_us: int, most: int) -> Steps[int]:
    """End held jobs that nobody submitted in time (H-108); answer with how many."""
    rows = yield Call("job_expire_held", {"actor": actor, "hold_us": hold_us, "most": most})
    return len(rows)


def reject_spent(*, actor: str, most: int) -> Steps[int]:
    """End what could never be claimed again because its budget is spent (H-21)."""
    rows = yield Call("job_reject_spent", {"actor": actor, "most": most})
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    return len(rows)
