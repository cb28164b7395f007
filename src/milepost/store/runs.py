"""Operations on runs: filling, fan-in, gates, outputs, stopping.

Fan-in is one function, `look_at`: it locks the run, counts its steps in a new statement, decides
(purely) and makes the move. The transaction that ends a job calls it; so does maintenance. It reads
only what is pinned on the steps' rows, so it needs no user code.

A transaction passes over the step counters at most once, in the order of their key, because the
trigger that keeps them locks them: settling only ends jobs, publishing only creates them, and what
a decision sets in motion (opening a gate, cancelling the rest) follows in transactions of its own
or touches no counter. (Only a batch with soft outcomes of a stopping run passes twice; the driver
repeats it if that collides.) Nobody waits for a publication's row: publishers skip what others
hold, look at the run once they hold it too, and withdraw instead when it is not live any more.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import uuid_utils

from milepost.errors import Invalid, LeaseLost, NotFound
from milepost.lifecycle import RUN, Cause, RunState
from milepost.records import (
    Claim,
    NewJob,
    NewRun,
    NewStep,
    Run,
    Settlement,
    StepCount,
    Template,
)
from milepost.store import births
from milepost.store.driver import Call, Rows, Steps
from milepost.store.instants import instant

__all__ = [
    "Decision",
    "add",
    "after_ends",
    "cancel",
    "cancel_rest",
    "create",
    "decide",
    "expire",
    "forgotten",
    "get",
    "listing",
    "live",
    "look_at",
    "open_gates",
    "publish",
    "publish_outputs",
    "release_held",
    "seal",
    "stage",
    "standing",
    "steps",
    "sweep_staged",
]

AT_ONCE = 1_000
"""How many jobs a gate or a seal moves in the transaction that decides; the rest follow."""


HOOKS = {
    RunState.SUCCEEDED: "on_success",
    RunState.FAILED: "on_failure",
    RunState.CANCELLED: "on_failure",
}
"""What is called once a run has ended so: a job of its own, whose failure changes no run (H-55)."""
APART = {"reduce", *HOOKS.values()}
"""Roles that are no part of the line of steps."""


class Decision(msgspec.Struct, frozen=True):
    """The next move of a run."""

    move: str
    state: RunState
    current_step: int | None = None
    cause: str | None = None
    ending: str | None = None
    phase: str | None = None


# Filling


def create(
    run: NewRun, plan: Sequence[NewStep], jobs: Sequence[NewJob], *, hold: bool = False
) -> Steps[str]:
    """Store a run, its steps and its first jobs, all or nothing (H-49); answer with its id.

    A taken unique key answers with the live run's id, and stores nothing.
    """
    if (rival := (yield from _create_run(run, hold=hold))) is not None:
        return rival
    first = min((step.number for step in plan), default=0)
    for step in plan:
        row = {
            **msgspec.structs.asdict(step),
            "run_id": run.id,
            "opened": not step.gated or step.number == first,
        }
        yield Call("step_create", row)
        yield Call("step_count_create", row)
    yield from births.create(jobs)
    if not hold:
        yield from look_at(run.id, actor=run.actor)
    return run.id


def _create_run(run: NewRun, *, hold: bool) -> Steps[str | None]:
    """Store the run's row; answer with the live run that has its unique key instead, if any."""
    state = RunState.CREATED if hold else RunState.QUEUED
    row = {**msgspec.structs.asdict(run), "state": state.value}
    for _ in range(births.UNIQUE_TRIES):
        rival = (yield Call("run_live_by_key", row)) if run.unique_key is not None else []
        if rival:
            return str(rival[0][0])
        if (yield Call("run_create", row)):
            return None
    raise LeaseLost(f"unique key {run.unique_key!r} changed hands too often; submit again")


def add(run_id: str, jobs: Sequence[NewJob]) -> Steps[None]:
    """Put more jobs into a run that is still being filled, or raise and put none."""
    # Counters before the run, as everywhere; what a sealed run refuses is rolled back. The look
    # opens the transaction: a birth may commit by itself when nothing came before it.
    yield from _peek(run_id)
    yield from births.create(jobs)
    state, *_ = yield from _locked(run_id)
    if state != RunState.CREATED:
        raise Invalid(f"run {run_id} is {state}; jobs are added before it is submitted")


def seal(run_id: str, *, actor: str | None) -> Steps[bool]:
    """Say that all its first jobs are stored; False when it was sealed before."""
    state, version, *_ = yield from _locked(run_id)
    if state != RunState.CREATED:
        return False
    yield from _move(run_id, version, Decision("seal", RunState.QUEUED), actor=actor)
    yield Call("job_release_held", {"run_id": run_id, "most": AT_ONCE, "actor": actor})
    yield from look_at(run_id, actor=actor)
    return True


def release_held(run_id: str, *, actor: str, most: int) -> Steps[int]:
    """Submit more jobs of a sealed run: what did not fit into the sealing transaction."""
    rows = yield Call("job_release_held", {"run_id": run_id, "most": most, "actor": actor})
    return len(rows)


# Fan-in


def after_ends(touched: Sequence[tuple[str, int]], *, actor: str | None) -> Steps[None]:
    """Look at the runs whose jobs just ended in this transaction, given (run, step)s."""
    if not touched:
        return
    parameters = {
        "run_id": [run_id for run_id, _ in touched],
        "step": [step for _, step in touched],
    }
    rows = yield Call("run_worth_a_look", parameters)
    for run_id in sorted({row[0] for row in rows}):
        yield from look_at(run_id, actor=actor)


def look_at(run_id: str, *, actor: str | None) -> Steps[list[str]]:
    """Make every move that is due for a run; answer with their names."""
    made: list[str] = []
    while True:
        state, version, current, ending, _ = yield from _locked(run_id)
        if state in RUN.terminal:
            return made
        counted = yield from _borne(run_id, (yield from steps(run_id)))
        [(coming, first)] = yield Call("run_coming", {"id": run_id})
        pending = None if not coming else first
        decision = decide(state, current, counted, ending=ending, coming_to=pending)
        if decision is None:
            return made
        yield from _move(run_id, version, decision, actor=actor)
        yield from _follow(run_id, decision, counted, actor=actor)
        made.append(decision.move)


def _borne(run_id: str, counted: list[StepCount]) -> Steps[list[StepCount]]:
    """Look at what succeeded before a resumed run, where its policy does not hold without."""
    if all(step.bearable or not step.tolerance for step in counted):
        return counted
    rows = yield Call("run_succeeded_before", {"id": run_id})
    before = {step: int(count) for step, count in rows}
    return [
        msgspec.structs.replace(step, succeeded_before=before.get(step.number, 0))
        for step in counted
    ]


def decide(
    state: RunState,
    current: int,
    counted: Sequence[StepCount],
    *,
    ending: str | None = None,
    coming_to: int | None = None,
) -> Decision | None:
    """Decide a run's next move from how its steps stand; None when there is nothing to do.

    `coming_to` is the first step that unpublished outputs are for.
    """
    open_jobs = sum(step.open for step in counted)
    if state == RunState.STOPPING:
        return None if open_jobs else _ended(ending)
    if broken := _broken(state, counted):
        return _failing(broken, busy=open_jobs > 0)
    if state == RunState.CREATED:
        return None
    if state == RunState.FINALIZING:
        return None if open_jobs else Decision("finish", RunState.SUCCEEDED)
    return _onward(state, current, counted, coming_to)


def _ended(ending: str | None) -> Decision:
    if ending == RunState.CANCELLED:
        return Decision("cancel", RunState.CANCELLED)
    return Decision("fail", RunState.FAILED)


def _broken(state: RunState, counted: Sequence[StepCount]) -> Cause | None:
    """Say why the run cannot succeed any more, if so."""
    for step in counted:
        if step.role == "reduce" and step.lost:
            return Cause.FINALISER
        if step.fail_fast and step.lost:
            return Cause.PLAN if state == RunState.CREATED else Cause.POLICY
    return None


def _failing(cause: Cause, *, busy: bool) -> Decision:
    if busy:
        return Decision("stop", RunState.STOPPING, cause=cause, ending=RunState.FAILED)
    return Decision("fail", RunState.FAILED, cause=cause)


def _onward(
    state: RunState, current: int, counted: Sequence[StepCount], coming_to: int | None
) -> Decision | None:
    work = [step for step in counted if step.role not in APART]
    reached = [step for step in work if step.number <= current]
    if (coming_to is not None and coming_to <= current) or any(step.open for step in reached):
        return None
    later = [step for step in work if step.number > current]
    if not all(step.bearable for step in reached):
        # What succeeded and is not held by a gate may end first (H-59).
        moves = any(s.opened and (s.open or s.number == coming_to) for s in later)
        busy = any(step.open for step in counted)
        return None if moves else _failing(Cause.POLICY, busy=busy)
    expected = coming_to is not None or any(step.open for step in later)
    if later and (expected or state == RunState.RUNNING):
        return _advanced(state, later[0])
    if any(step.open for step in counted):
        return None
    if any(step.role == "reduce" for step in counted):
        return Decision("finalize", RunState.FINALIZING)
    return Decision("finish", RunState.SUCCEEDED)


def _advanced(state: RunState, step: StepCount) -> Decision:
    if state == RunState.QUEUED:
        return Decision("begin", RunState.RUNNING)
    return Decision("advance", RunState.RUNNING, current_step=step.number, phase=step.role)


def _follow(
    run_id: str, decision: Decision, counted: Sequence[StepCount], *, actor: str | None
) -> Steps[None]:
    """Set in motion what a decision means, as far as it fits into this transaction."""
    if decision.move == "advance":
        yield Call("step_open", {"run_id": run_id, "number": decision.current_step})
        yield Call("job_open", {"run_id": run_id, "most": AT_ONCE, "actor": actor})
        yield Call("worker_hint")
    elif decision.move == "finalize":
        [reducer] = [step for step in counted if step.role == "reduce"]
        template = yield from _pinned(run_id, reducer.number, actor=actor)
        inside = msgspec.structs.replace(template, run_id=run_id, step=reducer.number)
        # A leased job of its own (H-34).
        yield from births.create([NewJob(str(uuid_utils.uuid7()), None, inside, ordinal=0)])
    elif decision.move in ("stop", "fail", "cancel"):
        yield Call("publication_withdraw", {"run_id": run_id})
    yield from _call_hooks(run_id, decision.state, counted, actor=actor)


def _call_hooks(
    run_id: str, state: RunState, counted: Sequence[StepCount], *, actor: str | None
) -> Steps[None]:
    """Create the job that is to hear of a run's end, in the transaction that ends it."""
    for step in counted:
        if step.role == HOOKS.get(state):
            template = yield from _pinned(run_id, step.number, actor=actor)
            payload = msgspec.json.encode({"run": run_id})
            outside = msgspec.structs.replace(template, parent_id=run_id)
            yield from births.create([NewJob(str(uuid_utils.uuid7()), payload, outside)])


def _pinned(run_id: str, number: int, *, actor: str | None) -> Steps[Template]:
    """Read what a job of a step is made from: no user code is needed for it."""
    [row] = yield Call("step_get", {"run_id": run_id, "number": number})
    names = ("kind", "kind_version", "queue", "priority", "retries", "poll_limit", "poison_limit")
    pinned = dict(zip((*names, "timeout_us", "policy", "tenant", "trace"), row, strict=True))
    return Template(**pinned, actor=actor)


def _locked(run_id: str) -> Steps[tuple[RunState, int, int, str | None, str | None]]:
    rows = yield Call("run_lock", {"id": run_id})
    if not rows:
        raise NotFound(f"there is no run {run_id}")
    state, version, current, ending, cause = rows[0]
    return RunState(state), version, current, ending, cause


def _move(
    run_id: str, version: int, decision: Decision, *, actor: str | None, detail: str | None = None
) -> Steps[None]:
    moved = yield Call(
        "run_move",
        {
            **msgspec.structs.asdict(decision),
            "state": decision.state.value,
            "id": run_id,
            "version": version,
            "actor": actor,
            "detail": detail,
        },
    )
    if not moved:
        raise LeaseLost(f"run {run_id} was moved by somebody else; look again")


def open_gates(run_id: str, *, actor: str, most: int) -> Steps[int]:
    """Let more jobs through an opened gate: what did not fit into the advancing transaction."""
    rows = yield Call("job_open", {"run_id": run_id, "most": most, "actor": actor})
    return len(rows)


# Outputs


def stage(claim: Claim, outputs: Sequence[tuple[int, int, bytes | None]]) -> Steps[None]:
    """Store outputs (seq, step, payload) of a running attempt, or raise `LeaseLost`."""
    rows = yield Call(
        "staged_add",
        {
            "producer_id": claim.id,
            "fence": claim.fence,
            "codec": claim.codec,
            "seq": [seq for seq, _, _ in outputs],
            "step": [step for _, step, _ in outputs],
            "job_id": [str(uuid_utils.uuid7()) for _ in outputs],
            "payload": [payload for _, _, payload in outputs],
        },
    )
    if len(rows) != len(outputs):
        raise LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}")


def publish_outputs(settled: Sequence[Settlement]) -> Steps[None]:
    """Say, with the producer's end, that its staged outputs count; stage those that come along."""
    along = [
        (s.claim, seq, step, payload)
        for s in settled
        for seq, (step, payload) in enumerate(s.outcome.outputs)
    ]
    if along:
        yield Call(
            "staged_put",
            {
                "producer_id": [claim.id for claim, *_ in along],
                "fence": [claim.fence for claim, *_ in along],
                "codec": [claim.codec for claim, *_ in along],
                "seq": [seq for _, seq, _, _ in along],
                "step": [step for _, _, step, _ in along],
                "job_id": [str(uuid_utils.uuid7()) for _ in along],
                "payload": [payload for *_, payload in along],
            },
        )
    yield Call(
        "publication_add",
        {
            "id": [s.claim.id for s in settled],
            "fence": [s.claim.fence for s in settled],
            "run_id": [s.claim.run_id for s in settled],
            "total": [s.outcome.staged for s in settled],
        },
    )


def publish(*, actor: str, most: int, run_id: str | None = None) -> Steps[int]:
    """Turn up to `most` published outputs into jobs; answer with how many."""
    taken = yield Call("publication_take", {"run_id": run_id, "most": most})
    wanted = yield from _still_wanted(taken)
    slices = list(_slices([row for row in taken if row[2] in wanted], most))
    if not slices:
        return 0
    columns = {
        name: [piece[index] for piece in slices]
        for index, name in enumerate(("producer_id", "fence", "run_id", "low", "high"))
    }
    yield Call("publication_publish", {**columns, "actor": actor})
    yield Call("publication_done", columns)
    yield Call("staged_remove", columns)
    for touched in sorted({piece[2] for piece in slices}):
        yield from look_at(touched, actor=actor)
    yield Call("worker_hint")
    return sum(high - low for *_, low, high in slices)


def _still_wanted(taken: Rows) -> Steps[set[str]]:
    """Lock the runs of these publications; withdraw for those that take no more jobs."""
    first: dict[str, int] = {}
    for row in taken:
        first[row[2]] = min(row[5] or 0, first.get(row[2], row[5] or 0))
    run_ids = sorted(first)
    steps_from = [first[run_id] for run_id in run_ids]
    yield Call("step_count_lock", {"run_id": run_ids, "step": steps_from})
    wanted: set[str] = set()
    for run_id in run_ids:
        state, *_ = yield from _locked(run_id)
        if state in RUN.terminal or state == RunState.STOPPING:
            yield Call("publication_withdraw", {"run_id": run_id})
        else:
            wanted.add(run_id)
    return wanted


def _slices(taken: Rows, most: int) -> Iterator[tuple[str, int, str, int, int]]:
    left = most
    for producer_id, fence, run_id, total, published, _ in taken:
        if left == 0:
            return
        high = min(total, published + left)
        left -= high - published
        yield producer_id, fence, run_id, published, high


def sweep_staged(*, most: int) -> Steps[None]:
    """Throw away outputs that no attempt will publish."""
    yield Call("staged_sweep", {"most": most})


# Stopping


def cancel(run_id: str, *, reason: str, actor: str | None) -> Steps[RunState]:
    """Cancel: at once when nothing is open, else stop first; answer with the state now."""
    ended = Decision("cancel", RunState.CANCELLED)
    return (yield from _halt(run_id, ended, reason=reason, actor=actor))


def expire(*, actor: str, most: int) -> Steps[int]:
    """Fail runs that missed their deadline, as `cancel` cancels; answer with how many."""
    late = yield Call("run_late", {"most": most})
    ended = Decision("fail", RunState.FAILED, cause=Cause.DEADLINE)
    for run_id in sorted(row[0] for row in late):
        yield from _halt(run_id, ended, reason="deadline", actor=actor)
    return len(late)


def _halt(run_id: str, ended: Decision, *, reason: str, actor: str | None) -> Steps[RunState]:
    state, version, *_ = yield from _locked(run_id)
    if state in RUN.terminal or state == RunState.STOPPING:
        return state
    counted = yield from steps(run_id)
    if any(step.open for step in counted):
        ended = Decision("stop", RunState.STOPPING, cause=ended.cause, ending=ended.state)
    yield from _move(run_id, version, ended, actor=actor, detail=reason)
    yield from _follow(run_id, ended, counted, actor=actor)
    return ended.state


def cancel_rest(run_id: str, *, actor: str, most: int) -> Steps[int]:
    """Cancel more of what has not begun in a stopping run, and end the run with the last of it."""
    state, *_ = yield from _peek(run_id)
    if state != RunState.STOPPING:
        return 0
    rows = yield Call("job_cancel_stopped", {"run_id": run_id, "most": most, "actor": actor})
    yield from look_at(run_id, actor=actor)
    return len(rows)


def _peek(run_id: str) -> Steps[tuple[RunState]]:
    rows = yield Call("run_get", {"id": run_id})
    if not rows:
        raise NotFound(f"there is no run {run_id}")
    return (RunState(rows[0][5]),)


def forgotten(*, most: int) -> Steps[list[str]]:
    """List held runs that nobody sealed in time (H-107)."""
    rows = yield Call("run_forgotten", {"most": most})
    return [row[0] for row in rows]


# Reading


def steps(run_id: str) -> Steps[list[StepCount]]:
    """Count a run's steps now."""
    rows = yield Call("run_steps", {"id": run_id})
    return [
        StepCount(
            number,
            name,
            role,
            bool(gated),
            bool(opened),
            bool(fail_fast),
            tolerance,
            *(int(count) for count in counted),
        )
        for number, name, role, gated, opened, fail_fast, tolerance, *counted in rows
    ]


def get(run_id: str) -> Steps[Run]:
    """Read one run, or raise `NotFound`."""
    rows = yield Call("run_get", {"id": run_id})
    if not rows:
        raise NotFound(f"there is no run {run_id}")
    return _run(rows[0])


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
) -> Steps[list[Run]]:
    """Read a page, newest first; the next page is what stands `before` its last id.

    `states` and `queues` are JSON lists: any of them will do.
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
        },
    )
    return [_run(row) for row in rows]


def live(*, after: str | None, most: int) -> Steps[list[tuple[str, RunState]]]:
    """Read a page of the runs that are not final, in the order of their ids."""
    rows = yield Call("run_live", {"after": after, "most": most})
    return [(run_id, RunState(state)) for run_id, state in rows]


_STATE = Run.__struct_fields__.index("state")
_TIMES = Run.__struct_fields__.index("created_at")


def _run(row: Sequence[Any]) -> Run:
    columns = list(row)
    columns[_STATE] = RunState(columns[_STATE])
    columns[_TIMES:] = [None if at is None else instant(at) for at in columns[_TIMES:]]
    return Run(*columns)
