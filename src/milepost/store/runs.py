"""Operations on runs: filling, what the ends of their jobs set in motion, stopping, reading.

Triggers keep the counters of the steps, and lock them in the order of their key: ends and new jobs
have rows of their own. A transaction ends jobs, then holds the runs, then creates jobs, so nobody
waits in a circle; what else a decision sets in motion (opening a gate, cancelling the rest) touches
no counter or follows in transactions of its own. (Only a batch with soft outcomes of a stopping run
ends jobs twice; the driver repeats it if that collides.)
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import IllegalMove, Invalid, LeaseLost, NotFound
from milepost.lifecycle import Cause, RunState
from milepost.records import Listed, NewJob, NewRun, NewStep, Run, Settlement
from milepost.store import creation, fanin, outputs
from milepost.store.columns import reader
from milepost.store.driver import Call, Rows, Steps

STOPPED = "the run is stopping"
"""The reason of batches that end with the one they are in."""

# Filling


class NewBatch(msgspec.Struct, frozen=True):
    """A batch about to be created as an item of another: its run, its steps, its items."""

    run: NewRun
    plan: Sequence[NewStep]
    jobs: Sequence[NewJob]
    batches: Sequence["NewBatch"] = ()


class Branch(msgspec.Struct, frozen=True):
    """Where a run stands in its tree of batches."""

    id: str
    parent_id: str | None
    state: str
    resumes: str | None


def create(
    run: NewRun,
    plan: Sequence[NewStep],
    jobs: Sequence[NewJob],
    batches: Sequence[NewBatch] = (),
    *,
    hold: bool = False,
) -> Steps[str]:
    """Store a run, its steps and its items, all or nothing (H-49); answer with its id.

    A taken unique key answers with the live run's id, and stores nothing.
    """
    if (rival := (yield from _create_run(run, hold=hold))) is not None:
        return rival
    yield from _create_steps(run.id, plan)
    yield from creation.create(jobs)
    yield from _create_batches(run.id, batches)
    if not hold:
        yield from fanin.advance_one(run.id, actor=run.actor)
    return run.id


def _create_batches(parent_id: str, batches: Sequence[NewBatch]) -> Steps[None]:
    """Store the batches within a batch; each has an item, so nothing is due for it yet."""
    if batches:
        yield Call("step_count_children", {"run_id": parent_id})
    for one in batches:
        yield from _create_run(one.run, hold=False)
        yield from _create_steps(one.run.id, one.plan)
        yield from creation.create(one.jobs)
        yield from _create_batches(one.run.id, one.batches)


def _create_steps(run_id: str, plan: Sequence[NewStep]) -> Steps[None]:
    first = min((step.number for step in plan), default=0)
    if plan:
        columns = {
            name: [getattr(step, name) for step in plan] for name in NewStep.__struct_fields__
        }
        opened = [not step.gated or step.number == first for step in plan]
        yield Call("step_create", {**columns, "run_id": run_id, "opened": opened})
        yield Call("step_count_create", {**columns, "run_id": run_id})


def _create_run(run: NewRun, *, hold: bool) -> Steps[str | None]:
    """Store the run's row; answer with the live run that has its unique key instead, if any."""
    state = RunState.CREATED if hold else RunState.QUEUED
    row = {**msgspec.structs.asdict(run), "state": state.value}
    for _ in range(creation.UNIQUE_TRIES):
        rival = (yield Call("run_live_by_key", row)) if run.unique_key is not None else []
        if rival:
            return str(rival[0][0])
        if (yield Call("run_create", row)):
            return None
    raise LeaseLost(f"unique key {run.unique_key!r} changed hands too often; submit again")


def add(run_id: str, jobs: Sequence[NewJob]) -> Steps[None]:
    """Put more jobs into a run that is still being filled, or raise and put none."""
    state = (yield from _locked(run_id)).state
    if state != RunState.CREATED:
        raise Invalid(f"run {run_id} is {state}; jobs are added before it is submitted")
    yield from creation.create(jobs)
    for number in sorted({job.template.step for job in jobs if job.template.step is not None}):
        yield Call("step_filled", {"run_id": run_id, "number": number})


def seal(run_id: str, *, actor: str | None) -> Steps[bool]:
    """Say that all its first jobs are stored; False when it was sealed before, or has ended."""
    run = yield from _locked(run_id)
    if run.state != RunState.CREATED:
        return False
    sealed = fanin.Decision("seal", RunState.QUEUED)
    yield from fanin.move({run_id: (run, sealed)}, actor=actor)
    yield from release_held([run_id], actor=actor, most=fanin.AT_ONCE)
    yield from fanin.advance_one(run_id, actor=actor)
    return True


def seal_tree(run_id: str, *, actor: str | None) -> Steps[None]:
    """Let a held batch begin with those within it, all of them or none (H-68)."""
    ids = [branch.id for branch in (yield from tree(run_id))]
    held = yield from fanin.lock_level(ids)
    if held[run_id].state != RunState.CREATED:
        return
    sealed = fanin.Decision("seal", RunState.QUEUED)
    going = {i: (run, sealed) for i, run in held.items() if run.state == RunState.CREATED}
    yield from fanin.move(going, actor=actor)
    yield from release_held(sorted(going), actor=actor, most=fanin.AT_ONCE)
    yield from fanin.ascend({}, actor=actor, touched=list(going))


def submit(run_id: str, *, actor: str | None) -> Steps[None]:
    """Let a held run begin; raise `IllegalMove` if it never will."""
    if (yield from seal(run_id, actor=actor)):
        return
    state = (yield from _locked(run_id)).state
    if state in (RunState.STOPPING, RunState.FAILED, RunState.CANCELLED):
        raise IllegalMove(
            f"run {run_id} is {state} and cannot be submitted: a held run ends hold_limit after "
            "the last add(), or when it is cancelled; start a new one"
        )


def release_held(run_ids: Sequence[str], *, actor: str | None, most: int) -> Steps[int]:
    """Submit more jobs of sealed runs: what did not fit into the sealing transaction."""
    rows = yield Call("job_release_held", {"run_id": list(run_ids), "most": most, "actor": actor})
    return len(rows)


# Fan-in


def touched(rows: Rows) -> set[str]:
    """Name the runs whose jobs a statement has moved: it answers with (id, run, ...)."""
    return {row[1] for row in rows if row[1] is not None}


def after_ends(
    touched: Collection[str], *, actor: str | None, ended: Sequence[Settlement] = ()
) -> Steps[fanin.Progress]:
    """Look at the runs whose jobs just ended in this transaction.

    What those of `ended` gave is published first. Answers with their moves, and the runs that have
    more to publish, or to let through a gate, than fits into a transaction.
    """
    if not touched:
        return fanin.Progress()
    left = yield from outputs.announce(ended)
    locked = yield from fanin.lock_plain(touched)
    left |= yield from outputs.put(ended, locked, actor=actor)
    progress = yield from fanin.advance(locked, actor=actor)
    if len(locked) < len(touched):
        yield from fanin.ascend({}, actor=actor, touched=set(touched) - locked.keys())
    progress.unfinished |= left
    return progress


def open_gates(run_ids: Sequence[str], *, actor: str, most: int) -> Steps[int]:
    """Let more jobs through opened gates: what did not fit into the advancing transaction."""
    rows = yield Call("job_open", {"run_id": list(run_ids), "most": most, "actor": actor})
    if rows:
        yield Call("worker_hint")
    return len(rows)


# Stopping


def cancel(run_id: str, *, reason: str, actor: str | None) -> Steps[RunState]:
    """Cancel: at once when nothing is open, else stop first; answer with the state now."""
    check_text(reason, what="reason", most=PROSE_BYTES, blank=True)
    ended = fanin.Decision("cancel", RunState.CANCELLED)
    return (yield from _halt(run_id, ended, reason=reason, actor=actor))


def expire(*, actor: str, most: int) -> Steps[int]:
    """Fail runs that missed their deadline, as `cancel` cancels; answer with how many."""
    late = yield Call("run_late", {"most": most})
    ended = fanin.Decision("fail", RunState.FAILED, cause=Cause.DEADLINE)
    # In the order in which everybody holds runs: those in trees last.
    for run_id, _ in sorted(late, key=lambda row: (row[1] is not None, row[0])):
        yield from _halt(run_id, ended, reason="deadline", actor=actor)
    return len(late)


def _halt(run_id: str, ended: fanin.Decision, *, reason: str, actor: str | None) -> Steps[RunState]:
    run = yield from _locked(run_id)
    if not run.live:
        return run.state
    [state] = yield from _halt_all({run_id: run}, ended, reason=reason, actor=actor)
    return state


def _halt_all(
    held: Mapping[str, fanin.LockedRun], ended: fanin.Decision, *, reason: str, actor: str | None
) -> Steps[list[RunState]]:
    """End live runs that are held, all of one level, or stop those that have open items."""
    counted, _ = yield from fanin.counted_steps(sorted(held))
    if ended.state == RunState.CANCELLED:
        # Not made in SQL: there the reason is sealed.
        why = msgspec.json.encode({"message": reason}).decode()
        ended = msgspec.structs.replace(ended, error=why)
    stop = fanin.Decision(
        "stop", RunState.STOPPING, cause=ended.cause, ending=ended.state, error=ended.error
    )
    moves = {
        run_id: stop if any(step.open for step in counted.get(run_id, ())) else ended
        for run_id in held
    }
    chosen = {run_id: (run, moves[run_id]) for run_id, run in held.items()}
    yield from fanin.move(chosen, actor=actor, detail=reason)
    yield from fanin.follow(moves, counted, actor=actor)
    after = {run_id: run.after(moves[run_id]) for run_id, run in held.items()}
    yield from fanin.ascend(fanin.parents_of(after), actor=actor)
    return [run.state for run in after.values()]


def _locked(run_id: str) -> Steps[fanin.LockedRun]:
    found = yield from fanin.lock([run_id])
    if not found:
        raise NotFound(f"there is no run {run_id}")
    return found[run_id]


def cancel_rest(run_id: str, *, actor: str, most: int) -> Steps[int]:
    """Cancel more of what has not begun in a stopping run, and end the run with the last of it."""
    run = yield from get(run_id)
    if run.state != RunState.STOPPING:
        return 0
    rows = yield Call("job_cancel_stopped", {"run_id": run_id, "most": most, "actor": actor})
    stopped = 0 if run.depth is None else (yield from _stop_children(run_id, actor, most))
    yield from fanin.advance_one(run_id, actor=actor)
    return len(rows) + stopped


def _stop_children(run_id: str, actor: str, most: int) -> Steps[int]:
    """Cancel batches within a stopping one, as far as that is one move of each (H-68)."""
    rows = yield Call("run_children_active", {"id": run_id, "most": most})
    held = yield from fanin.lock_level(row[0] for row in rows)
    live = {child_id: child for child_id, child in held.items() if child.live}
    if live:
        cancelled = fanin.Decision("cancel", RunState.CANCELLED)
        yield from _halt_all(live, cancelled, reason=STOPPED, actor=actor)
    return len(live)


def tree(run_id: str) -> Steps[list[Branch]]:
    """Read a run and the batches within it, the deepest first."""
    return [Branch(*row) for row in (yield Call("run_tree", {"id": run_id}))]


def forgotten(*, most: int) -> Steps[list[str]]:
    """List held runs that were neither sealed nor added to in time (H-107)."""
    rows = yield Call("run_forgotten", {"most": most})
    return [row[0] for row in rows]


def expire_held(run_id: str, *, actor: str) -> Steps[bool]:
    """Fail a held run that is forgotten still; False when it was sealed or added to meanwhile."""
    yield from _locked(run_id)
    if not (yield Call("run_is_forgotten", {"id": run_id})):
        return False
    ended = fanin.Decision("fail", RunState.FAILED, cause=Cause.DEADLINE)
    yield from _halt(run_id, ended, reason="hold_limit", actor=actor)
    return True


# Reading


def get(run_id: str) -> Steps[Run]:
    """Read one run, or raise `NotFound`."""
    rows = yield Call("run_get", {"id": run_id})
    if not rows:
        raise NotFound(f"there is no run {run_id}")
    return from_row(rows[0])


def standing(run_ids: Sequence[str]) -> Steps[list[tuple[str, str]]]:
    """Tell where those of the runs stand that are there, and nothing else of them."""
    rows = yield Call("run_standing", {"id": list(run_ids)}, alone=True)
    return [(row[0], row[1]) for row in rows]


def listing(
    *,
    state: str | None = None,
    kind: str | None = None,
    tenant: str | None = None,
    states: str | None = None,
    queues: str | None = None,
    before: str | None = None,
    most: int = 100,
    most_bytes: int | None = None,
) -> Steps[Listed[Run]]:
    """Read a page, newest first; the next page is what stands `before` its last id.

    `states` and `queues` are JSON lists: any of them will do. A page ends early once its content
    has reached `most_bytes`; it holds one row at least.
    """
    rows = yield Call(
        "run_list",
        {
            "state": state,
            "kind": kind,
            "tenant": tenant,
            "states": states,
            "queues": queues,
            "before": before,
            "most": most,
            "most_bytes": most_bytes,
        },
    )
    return Listed.of([from_row(row[:-1]) for row in rows], rows, most=most)


def live(*, after: str | None, most: int) -> Steps[list[tuple[str, RunState]]]:
    """Read a page of the runs that are not final, in the order of their ids."""
    rows = yield Call("run_live", {"after": after, "most": most})
    return [(run_id, RunState(state)) for run_id, state in rows]


from_row = reader(Run)
