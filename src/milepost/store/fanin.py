"""Fan-in: whether the ends of a run's jobs bring it to its next step, to its reducer, to its end.

One function moves runs, `advance`: it takes runs that are locked, counts their steps in a new
statement, decides (purely) and makes the moves. The transaction that ends a job calls it; so does
maintenance. It reads only the columns that are pinned on the steps' rows, so it needs no user code.
However many runs are advanced, the statements are as many as for one.

A batch within a batch is an item of its parent: the transaction that ends it advances the parent
too, and so on up (H-68). Locks are taken in one order: runs in no tree by id, then those in trees
from the deepest level up, each level by id.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec
import uuid_utils

from milepost.errors import LeaseLost, NotFound
from milepost.lifecycle import RUN, Cause, RunState
from milepost.records import NewJob, Pinned, StepCount, Template
from milepost.store import creation
from milepost.store.driver import Call, Rows, Steps
from milepost.telemetry import Log

log = Log("milepost.run")

AT_ONCE = 1_000
"""How many jobs a transaction that ends others moves or creates; the rest follow."""
HOOKS = {
    RunState.SUCCEEDED: "on_success",
    RunState.FAILED: "on_failure",
    RunState.CANCELLED: "on_failure",
}
"""The role called once a run has ended so: a job apart, whose failure changes no run (H-55)."""
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
    watermark: int | None = None
    detail: str | None = None
    error: str | None = None


class RunEnd(msgspec.Struct, frozen=True):
    """The part of a step's role in the end of its run: a cause to fail it, or the watermark."""

    cause: Cause | None = None
    watermark: int | None = None


class RoleRule(msgspec.Struct, frozen=True):
    """How a run ends that has a step of some role."""

    at_end: Callable[..., Steps[RunEnd]]
    """Called with the run's id and the actor, in the transaction in which the run succeeds."""
    incomplete: Cause
    """Why a run fails where the step did not keep within its tolerance."""
    skipped: str
    """The word of the record and the log for the steps that are then left out."""


RULES: dict[str, RoleRule] = {}
"""By role; modules that give a role its meaning enter it here (see store/__init__.py)."""


class LockedRun(msgspec.Struct, frozen=True):
    """A run's row as this transaction holds it."""

    state: RunState
    version: int
    current_step: int
    ending: str | None
    parent_id: str | None = None
    depth: int | None = None

    @property
    def live(self) -> bool:
        """Whether it takes more jobs."""
        return self.state not in RUN.terminal and self.state != RunState.STOPPING

    def after(self, decision: Decision) -> "LockedRun":
        """Tell how it stands after a move."""
        current = self.current_step if decision.current_step is None else decision.current_step
        return msgspec.structs.replace(
            self,
            state=decision.state,
            version=self.version + 1,
            current_step=current,
            ending=decision.ending or self.ending,
        )


class Progress(msgspec.Struct):
    """The moves that each run made, the runs that have more jobs to let through, and the parents.

    A parent is one of a run that ended, with its depth.
    """

    moves: dict[str, list[str]] = {}
    unfinished: set[str] = set()
    parents: dict[str, int] = {}


# Advancing


def advance_one(run_id: str, *, actor: str | None) -> Steps[list[str]]:
    """Make every move that is due for a run; answer with their names."""
    locked = yield from lock([run_id])
    if not locked:
        raise NotFound(f"there is no run {run_id}")
    progress = yield from advance(locked, actor=actor)
    return progress.moves.get(run_id, [])


def lock(run_ids: Iterable[str]) -> Steps[dict[str, LockedRun]]:
    """Hold those of the runs that are there: of a tree of batches, one at most."""
    wanted = set(run_ids)
    found = yield from lock_plain(wanted)
    if len(found) < len(wanted):
        found |= yield from lock_level(wanted - found.keys())
    return found


def lock_plain(run_ids: Iterable[str]) -> Steps[dict[str, LockedRun]]:
    """Hold those of the runs that are in no tree of batches, in the order of their ids."""
    wanted = sorted(set(run_ids))
    return _by_id((yield Call("run_lock", {"id": wanted}))) if wanted else {}


def lock_level(run_ids: Iterable[str]) -> Steps[dict[str, LockedRun]]:
    """Hold runs that stand in trees of batches, the deepest first."""
    return _by_id((yield Call("run_lock_tree", {"id": sorted(run_ids)})))


def parents_of(runs: Mapping[str, LockedRun]) -> dict[str, int]:
    """Name the parents of the batches among these that have ended, with their depths."""
    return {
        run.parent_id: run.depth - 1
        for run in runs.values()
        if run.parent_id is not None and run.depth is not None and run.state in RUN.terminal
    }


def _by_id(rows: Rows) -> dict[str, LockedRun]:
    return {run_id: LockedRun(RunState(state), *rest) for run_id, state, *rest in rows}


def advance(locked: Mapping[str, LockedRun], *, actor: str | None) -> Steps[Progress]:
    """Make every move that is due for runs that this transaction holds, and then for parents."""
    progress = yield from _advance(locked, actor=actor)
    yield from ascend(progress.parents, actor=actor)
    return progress


def ascend(
    parents: Mapping[str, int], *, actor: str | None, touched: Collection[str] = ()
) -> Steps[None]:
    """Advance the parents of batches that ended, and those `touched`, from the deepest up (H-68).

    They come with their depths. A level is held once nothing below it is left to be held, so two
    transactions that go up one tree do not wait for each other.
    """
    waiting = {**parents, **(yield from _depths(touched))}
    ended_in = set(parents)
    while waiting:
        depth = max(waiting.values())
        level = yield from lock_level(i for i, at in waiting.items() if at == depth)
        level |= yield from _begin({i: run for i, run in level.items() if i in ended_in}, actor)
        above = (yield from _advance(level, actor=actor)).parents
        ended_in |= above.keys()
        waiting = {i: at for i, at in waiting.items() if at != depth} | above


def _depths(run_ids: Collection[str]) -> Steps[dict[str, int]]:
    return dict((yield Call("run_depths", {"id": sorted(run_ids)}))) if run_ids else {}


def _begin(parents: Mapping[str, LockedRun], actor: str | None) -> Steps[dict[str, LockedRun]]:
    """Begin batches of which nothing but batches within them has begun."""
    begun = Decision("begin", RunState.RUNNING)
    fresh = {i: run for i, run in parents.items() if run.state == RunState.QUEUED}
    if fresh:
        yield from move({i: (run, begun) for i, run in fresh.items()}, actor=actor)
    return {i: run.after(begun) for i, run in fresh.items()}


def _advance(locked: Mapping[str, LockedRun], *, actor: str | None) -> Steps[Progress]:
    planned, counted = yield from _plan(locked)
    progress = Progress({}, set(), {})
    held = dict(locked)
    while planned:
        # The first move that is due for each; then, where there is one, the second.
        now = {run_id: decisions[0] for run_id, decisions in planned.items()}
        now |= yield from _end(now, counted, actor=actor)
        yield from move({run_id: (held[run_id], now[run_id]) for run_id in now}, actor=actor)
        _log_skipped(now, counted)
        progress.unfinished |= yield from follow(now, counted, actor=actor)
        for run_id, decision in now.items():
            progress.moves.setdefault(run_id, []).append(decision.move)
            held[run_id] = held[run_id].after(decision)
        progress.parents |= parents_of({run_id: held[run_id] for run_id in now})
        planned = {run_id: rest[1:] for run_id, rest in planned.items() if rest[1:]}
    return progress


def _log_skipped(moves: Mapping[str, Decision], counted: Mapping[str, Sequence[StepCount]]) -> None:
    """Log which runs leave out steps; a transaction that is made again may log it again."""
    for run_id, decision in moves.items():
        for step in counted[run_id] if decision.detail else ():
            if rule := RULES.get(step.role):
                log.warning(
                    rule.skipped,
                    run_id=run_id,
                    completed_workers=step.succeeded,
                    failed_workers=step.lost,
                    expected_workers=step.open + step.succeeded + step.lost,
                )


def _end(
    moves: Mapping[str, Decision], counted: Mapping[str, Sequence[StepCount]], *, actor: str | None
) -> Steps[dict[str, Decision]]:
    """Apply the rules of roles to runs that succeed now; a rule may fail its run."""
    changed: dict[str, Decision] = {}
    for run_id, decision in sorted(moves.items()):
        if decision.move != "finish":
            continue
        for role in sorted({step.role for step in counted[run_id]} & RULES.keys()):
            end = yield from RULES[role].at_end(run_id, actor=actor)
            changed[run_id] = (
                msgspec.structs.replace(decision, watermark=end.watermark)
                if end.cause is None
                else _failure(end.cause, busy=False)
            )
    return changed


def overdue(run_ids: Sequence[str]) -> Steps[list[str]]:
    """Name those of the runs for which a move seems to be due, without holding any."""
    rows = yield Call("run_peek", {"id": sorted(run_ids)})
    planned, _ = yield from _plan(_by_id(rows))
    return sorted(planned)


def _plan(
    runs: Mapping[str, LockedRun],
) -> Steps[tuple[dict[str, list[Decision]], dict[str, list[StepCount]]]]:
    """Count the steps of runs, and decide."""
    ids = sorted(run_id for run_id, run in runs.items() if run.state not in RUN.terminal)
    if not ids:
        return {}, {}
    counted, coming = yield from counted_steps(ids)
    planned: dict[str, list[Decision]] = {}
    for run_id in ids:
        found = counted[run_id] = yield from _with_earlier(run_id, counted.get(run_id, []))
        if decisions := due(runs[run_id], found, coming_to=coming.get(run_id)):
            planned[run_id] = decisions
    return planned, counted


def steps(run_id: str) -> Steps[list[StepCount]]:
    """Count a run's steps now."""
    found, _ = yield from counted_steps([run_id])
    return found.get(run_id, [])


def counted_steps(
    run_ids: Sequence[str],
) -> Steps[tuple[dict[str, list[StepCount]], dict[str, int | None]]]:
    """Count the steps of runs, and tell the first step that unpublished outputs are for."""
    rows = yield Call("run_steps", {"id": list(run_ids)})
    found: dict[str, list[StepCount]] = {}
    coming: dict[str, int | None] = {}
    for run_id, number, name, role, gated, opened, fail_fast, tolerance, first, *counts in rows:
        flags = (bool(gated), bool(opened), bool(fail_fast))
        step = StepCount(number, name, role, *flags, tolerance, *map(int, counts))
        found.setdefault(run_id, []).append(step)
        coming[run_id] = first
    return found, coming


def _with_earlier(run_id: str, counted: list[StepCount]) -> Steps[list[StepCount]]:
    """Count jobs that succeeded before a resumed run, where its policy does not hold without."""
    if all(step.within_tolerance or not step.tolerance for step in counted):
        return counted
    rows = yield Call("run_succeeded_before", {"id": run_id})
    before = {step: int(count) for step, count in rows}
    return [
        msgspec.structs.replace(step, succeeded_before=before.get(step.number, 0))
        for step in counted
    ]


# Deciding


def due(run: LockedRun, counted: Sequence[StepCount], *, coming_to: int | None) -> list[Decision]:
    """Decide every move that is due, in order.

    Others that commit meanwhile advance it themselves, once they hold the run.
    """
    made: list[Decision] = []
    while decision := decide(
        run.state, run.current_step, counted, ending=run.ending, coming_to=coming_to
    ):
        made.append(decision)
        if decision.state in RUN.terminal or decision.move in ("finalize", "stop"):
            break  # the next to advance it counts the jobs that these create
        run = run.after(decision)
        counted = [
            msgspec.structs.replace(step, opened=True)
            if step.number == decision.current_step
            else step
            for step in counted
        ]
    return made


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
        return None if open_jobs else _ending(ending)
    if cause := _fatal_cause(state, counted):
        told = next((step.breach for step in counted if step.breach), None)
        ended = _failure(cause, busy=open_jobs > 0)
        return msgspec.structs.replace(ended, detail=told) if cause == Cause.POLICY else ended
    if state == RunState.CREATED:
        return None
    if state == RunState.FINALIZING:
        return None if open_jobs else Decision("finish", RunState.SUCCEEDED)
    return _next_move(state, current, counted, coming_to)


def _ending(ending: str | None) -> Decision:
    if ending == RunState.CANCELLED:
        return Decision("cancel", RunState.CANCELLED)
    return Decision("fail", RunState.FAILED)


def _fatal_cause(state: RunState, counted: Sequence[StepCount]) -> Cause | None:
    """Say why the run cannot succeed any more, if so."""
    for step in counted:
        if step.role == "reduce" and step.lost:
            return Cause.FINALIZER
        if step.fail_fast and step.lost:
            return Cause.PLAN if state == RunState.CREATED else Cause.POLICY
    return None


def _failure(cause: Cause, *, busy: bool) -> Decision:
    if busy:
        return Decision("stop", RunState.STOPPING, cause=cause, ending=RunState.FAILED)
    return Decision("fail", RunState.FAILED, cause=cause)


def _next_move(
    state: RunState, current: int, counted: Sequence[StepCount], coming_to: int | None
) -> Decision | None:
    work = [step for step in counted if step.role not in APART]
    reached = [step for step in work if step.number <= current]
    if (coming_to is not None and coming_to <= current) or any(step.open for step in reached):
        return None
    later = [step for step in work if step.number > current]
    if not all(step.within_tolerance for step in reached):
        # Jobs that succeeded and are not held by a gate may end first (H-59).
        moves = any(s.opened and (s.open or s.number == coming_to) for s in later)
        busy = any(step.open for step in counted)
        return None if moves else _incomplete(reached, busy=busy)
    expected = coming_to is not None or any(step.open for step in later)
    if later and (expected or state == RunState.RUNNING):
        return _next_step(state, later[0])
    if any(step.open for step in counted):
        return None
    if any(step.role == "reduce" for step in counted):
        return Decision("finalize", RunState.FINALIZING, phase="reduce")
    return Decision("finish", RunState.SUCCEEDED)


def _incomplete(reached: Sequence[StepCount], *, busy: bool) -> Decision:
    """Fail a run whose policy does not hold; a role may have a cause and a word of its own."""
    for step in reached:
        rule = RULES.get(step.role)
        if rule is not None and not step.within_tolerance:
            ended = step.succeeded + step.lost
            skipped = f"{rule.skipped}: {step.lost} of {ended} {step.role}s did not succeed"
            return msgspec.structs.replace(_failure(rule.incomplete, busy=busy), detail=skipped)
    told = next((step.breach for step in reached if step.breach), None)
    return msgspec.structs.replace(_failure(Cause.POLICY, busy=busy), detail=told)


def _next_step(state: RunState, step: StepCount) -> Decision:
    if state == RunState.QUEUED:
        return Decision("begin", RunState.RUNNING)
    return Decision("advance", RunState.RUNNING, current_step=step.number, phase=step.role)


# Moving

_MOVED = ("move", "current_step", "cause", "ending", "phase", "watermark", "error")


def move(
    moves: Mapping[str, tuple[LockedRun, Decision]], *, actor: str | None, detail: str | None = None
) -> Steps[None]:
    """Move runs that this transaction holds."""
    chosen = [(run_id, run, decision) for run_id, (run, decision) in sorted(moves.items())]
    moved = yield Call(
        "run_move",
        {
            "id": [run_id for run_id, _, _ in chosen],
            "version": [run.version for _, run, _ in chosen],
            "state": [decision.state.value for *_, decision in chosen],
            **{name: [getattr(decision, name) for *_, decision in chosen] for name in _MOVED},
            "actor": actor,
            "detail": [decision.detail or detail for *_, decision in chosen],
        },
    )
    if len(moved) != len(chosen):
        missed = {run_id for run_id, _, _ in chosen} - {row[0] for row in moved}
        raise LeaseLost(f"run {min(missed)} was moved by another transaction; try again")


def follow(
    moves: Mapping[str, Decision], counted: Mapping[str, Sequence[StepCount]], *, actor: str | None
) -> Steps[set[str]]:
    """Create, open and withdraw jobs as decisions mean, as far as one transaction takes them.

    Answers with the runs that have more jobs to let through a gate.
    """
    unfinished: set[str] = set()
    advanced = {i: d.current_step for i, d in moves.items() if d.move == "advance"}
    # Jobs that come to a step without a gate were never held.
    opened = {(i, step.number) for i in advanced for step in counted.get(i, ()) if step.opened}
    if gates := {i: number for i, number in advanced.items() if (i, number) not in opened}:
        unfinished = yield from _open(gates, actor=actor)
    if reduced := [run_id for run_id, d in moves.items() if d.move == "finalize"]:
        # A run's last job is a leased one of its own (H-34).
        numbers = {i: next(s.number for s in counted[i] if s.role == "reduce") for i in reduced}
        children = [creation.Child(run_id, numbers[run_id]) for run_id in sorted(reduced)]
        yield from creation.in_steps(children, actor=actor)
    if ended := [i for i, d in moves.items() if d.move in ("stop", "fail", "cancel")]:
        yield Call("publication_withdraw", {"run_id": sorted(ended)})
    for run_id, decision in moves.items():
        yield from _call_hooks(run_id, decision.state, counted.get(run_id, ()), actor=actor)
    return unfinished


def _open(steps_of: Mapping[str, int | None], *, actor: str | None) -> Steps[set[str]]:
    run_ids = sorted(steps_of)
    yield Call("step_open", {"run_id": run_ids, "number": [steps_of[i] for i in run_ids]})
    rows = yield Call("job_open", {"run_id": run_ids, "most": AT_ONCE, "actor": actor})
    yield Call("worker_hint")
    return set(run_ids) if len(rows) == AT_ONCE else set()


def _call_hooks(
    run_id: str, state: RunState, counted: Sequence[StepCount], *, actor: str | None
) -> Steps[None]:
    """Create the job that is called at a run's end, in the transaction that ends it."""
    for step in counted:
        if step.role == HOOKS.get(state):
            template = yield from _hook_template(run_id, step.number, actor=actor)
            payload = msgspec.json.encode({"run": run_id})
            yield from creation.create([NewJob(str(uuid_utils.uuid7()), payload, template)])


_PINNED = (*Pinned.__struct_fields__, "deadline_us", "start_within_us", "tenant", "trace")


def _hook_template(run_id: str, number: int, *, actor: str | None) -> Steps[Template]:
    """Read the columns that a job outside the steps is made from: it needs no user code."""
    [row] = yield Call("step_get", {"run_id": run_id, "number": number})
    return Template(**dict(zip(_PINNED, row, strict=True)), parent_id=run_id, actor=actor)
