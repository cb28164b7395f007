"""Moves of jobs that time makes: leases end, sleeps are over, deadlines are missed."""

from milepost.errors import IllegalMove, NotFound
from milepost.lifecycle import JobState
from milepost.outcome import micros
from milepost.specs import EXPIRED
from milepost.store import followups, runs, tally
from milepost.store.driver import Call, Rows, Steps

FAILED = JobState.FAILED


def due_chores(**limits: float) -> Steps[set[str]]:
    """Name the chores of maintenance that have something to do, by the `limits` in seconds."""
    fine, wide, age = tally.SPANS[0]
    asked = {**limits, "fold": tally.FOLD_SECONDS, "roll": age + wide}
    ages = {f"{name}_us": micros(seconds) for name, seconds in asked.items()}
    rows = yield Call("maintain_due", {**ages, "minute": fine}, alone=True)
    return {name for (name,) in rows}


def lose(*, actor: str, most: int) -> Steps[list[tuple[str, str]]]:
    """Take running jobs from workers that are dead or unknown; answer with (id, state)."""
    rows = yield Call("job_lose", {"actor": actor, "most": most})
    yield from _keep(rows, "")
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    yield from followups.create([row[0] for row in rows if row[3] == FAILED], actor=actor)
    return [(row[0], row[3]) for row in rows]


def wake(*, actor: str, most: int) -> Steps[int]:
    """Wake sleeping jobs that are due; answer with how many."""
    rows = yield Call("job_wake", {"actor": actor, "most": most})
    if rows:
        # This worker may serve other queues, or have no slot free.
        yield Call("worker_hint")
    return len(rows)


def run_now(job_id: str, *, actor: str | None) -> Steps[None]:
    """Send a sleeping job on before its time, or raise `IllegalMove`: none else waits for it."""
    if (yield Call("job_run_now", {"id": job_id, "actor": actor})):
        yield Call("worker_hint")
        return
    found = yield Call("job_lock", {"id": job_id})
    if not found:
        raise NotFound(f"there is no job {job_id}")
    raise IllegalMove(
        f"job {job_id} is {found[0][0]}: only one that waits for its time is run now; "
        f"`milepost explain {job_id}` says what this one waits for"
    )


def next_due() -> Steps[float | None]:
    """Tell in how many seconds something sleeping is due; None when nothing sleeps."""
    [(micros,)] = yield Call("job_next_due")
    return None if micros is None else micros / 1_000_000


def expire(*, actor: str, most: int) -> Steps[int]:
    """End jobs that missed their deadline or start and do not run; answer with how many."""
    rows = yield Call("job_expire", {"actor": actor, "most": most})
    yield from _keep(rows, EXPIRED)
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    yield from followups.create([row[0] for row in rows], actor=actor)
    return len(rows)


def expire_held(*, actor: str, hold_us: int, most: int) -> Steps[int]:
    """End held jobs that were not submitted in time (H-108); answer with how many."""
    rows = yield Call("job_expire_held", {"actor": actor, "hold_us": hold_us, "most": most})
    yield from _keep(rows, "it was held, and not submitted within hold_limit")
    yield from followups.create([row[0] for row in rows], actor=actor)
    return len(rows)


def reject_spent(*, actor: str, most: int) -> Steps[int]:
    """End jobs that can never be claimed again because their budget is spent (H-21)."""
    rows = yield Call("job_reject_spent", {"actor": actor, "most": most})
    yield from _keep(rows, "its attempts are spent")
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    yield from followups.create([row[0] for row in rows], actor=actor)
    return len(rows)


def _keep(rows: Rows, text: str) -> Steps[None]:
    """Keep why jobs were lost or ended, with the failures of their attempts."""
    if rows:
        yield Call("failure_ended", {"id": [row[0] for row in rows], "text": text})
