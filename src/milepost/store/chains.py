"""Operations on runs that belong together: one that is used again, one that resumes another.

A resumed run creates again every job that did not succeed; the others stay where they are and are
read through the chain. Outputs that were staged but not yet published when the old run stopped go
over to the new one: their producers succeeded, and will not run again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec
import uuid_utils

from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.lifecycle import RUN, RunState
from milepost.records import NewJob, NewRun, NewStep, Run, StepCount
from milepost.store import fanin, reruns, runs
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

LONGEST = 1_000
"""How many runs that are being cancelled may stand in the way of one that asks for reuse."""


def start(
    new: NewRun,
    plan: Sequence[NewStep],
    jobs: Sequence[NewJob],
    batches: Sequence[runs.NewBatch] = (),
    *,
    hold: bool = False,
    reuse: bool = False,
    admit: Callable[[Sequence[NewJob]], Steps[None]] | None = None,
) -> Steps[str]:
    """Create a run; to `reuse`, answer with a live one that has its parameters, if there is one.

    Of several concurrent starts one creates it, under the parameters' key as a unique one. `admit`
    is asked about the jobs that it begins with, those of batches within it included.
    """
    if reuse:
        for params_key in (new.params_key, *new.params_keys_before):
            asked = {"tenant": new.tenant, "kind": new.kind, "params_key": params_key}
            if live := (yield Call("run_reusable", asked)):
                return str(live[0][0])
        new = msgspec.structs.replace(new, unique_key=new.params_key)
    if admit is not None:
        yield from admit([*jobs, *_jobs_within(batches)])
    for _ in range(LONGEST):
        run_id = yield from runs.create(new, plan, jobs, batches, hold=hold)
        if run_id == new.id:
            return run_id
        found = yield from runs.get(run_id)
        if found.state not in (RunState.STOPPING, *RUN.terminal):
            return run_id
        # One that is being cancelled is never used again (H-106): take the key after its.
        new = msgspec.structs.replace(new, unique_key=f"{found.unique_key}+{found.id}"[-500:])
    raise Invalid("too many runs with these parameters are being cancelled; start again later")


def _jobs_within(batches: Sequence[runs.NewBatch]) -> Iterator[NewJob]:
    for one in batches:
        yield from one.jobs
        yield from _jobs_within(one.batches)


def resume(old_id: str, new: NewRun) -> Steps[str]:
    """Create a run that goes on where an ended one stopped, held until its jobs are there.

    Answers with its id: of several callers, at once or one after the other, one creates it.
    """
    # Held, so that the statements after this see the run of the first caller.
    if not (yield from fanin.lock([old_id])):
        raise NotFound(f"there is no run {old_id}")
    old = yield from runs.get(old_id)
    if old.state not in RUN.terminal:
        raise IllegalMove(f"run {old_id} is {old.state}; only one that has ended resumes")
    if old.mode != new.mode:
        raise IllegalMove(
            f"run {old_id} is one of pipeline {old.kind!r}: `milepost pipelines resume {old_id}`, "
            "pipeline.run(id).resume() or POST /v1/pipelines/{name}/runs/{id}:resume does it"
        )
    if old.parent_id is not None:
        raise IllegalMove(
            f"run {old_id} is a batch within run {old.parent_id}; resume that one: it resumes all "
            "within it that did not succeed"
        )
    if (newer := (yield from _resumed(old))) is not None:
        return newer
    yield from _refuse_whole(old)
    yield from _create_held(old, msgspec.structs.replace(new, depth=old.depth))
    return new.id


def _create_held(old: Run, new: NewRun) -> Steps[None]:
    """Create a run that resumes another, without jobs, and one for each lost batch within that."""
    yield from runs.create(new, [], [], hold=True)
    ids = {"old_id": old.id, "new_id": new.id}
    yield Call("step_copy", ids)
    yield Call("step_count_copy", ids)
    if old.depth is None:
        return
    for row in (yield Call("run_lost_children", {"id": old.id})):
        child = runs.from_row(row)
        # It is held as long as its parent is: that one is given up for both.
        again = again_of(child, new_id=str(uuid_utils.uuid7()), actor=new.actor)
        yield from _create_held(child, msgspec.structs.replace(again, parent_id=new.id))


def again_of(old: Run, *, new_id: str, actor: str | None, hold_us: int | None = None) -> NewRun:
    """Describe a run that is to go on where an ended one stopped."""
    same = (
        "kind kind_version payload codec policy queue priority tenant tags trace channel"
        " params_key ordinal depth"
    )
    pinned = {name: getattr(old, name) for name in same.split()}
    return NewRun(id=new_id, actor=actor, resumes=old.id, hold_us=hold_us, **pinned)


def _resumed(old: Run) -> Steps[str | None]:
    """Find the run that goes on with this one; refuse if that did not end well either."""
    for newer, state in (yield Call("run_resumed_by", {"id": old.id})):
        if state in (RunState.FAILED, RunState.CANCELLED):
            raise IllegalMove(
                f"run {old.id} was resumed by run {newer}, which ended {state}; resume that one"
            )
        return str(newer)
    return None


def _refuse_whole(old: Run) -> Steps[None]:
    """Refuse to go on with a run in which nothing failed, or that does not hold all there is to do.

    A run is filled in several transactions. Where that was interrupted for good, half of the work
    would pass for the whole: the run that it resumes is the one to go on with.
    """
    counted = yield from fanin.steps(old.id)
    lost = sum(step.lost for step in counted if step.role not in fanin.APART)
    if old.state == RunState.SUCCEEDED and (old.mode is not None or not lost):
        raise IllegalMove(f"run {old.id} SUCCEEDED, and nothing in it is left to be done again")
    [(given_up,)] = yield Call("run_given_up", {"id": old.id})
    # A pipeline's run is filled by a job of its own, which runs again.
    if given_up and old.mode is None:
        instead = "start it anew" if old.resumes is None else f"resume run {old.resumes}"
        raise IllegalMove(
            f"run {old.id} was given up before it began, and may lack jobs; {instead}"
        )


def create_again(
    old_id: str, new_id: str, *, after: str | None, most: int, actor: str
) -> Steps[str | None]:
    """Create more of the old run's unfinished jobs in the new one; None when all are there.

    Several may do so at once, and go on where one that is gone has stopped.
    """
    found = yield from fanin.lock([new_id])
    if new_id not in found or found[new_id].state != RunState.CREATED:
        return None
    ids = {"run_id": old_id, "new_id": new_id}
    rows = yield Call("run_unfinished", {**ids, "after": after, "most": most})
    if not rows:
        return None
    yield from reruns.create([row[0] for row in rows], actor=actor, run_id=new_id)
    return str(rows[-1][0])


def go_on(old_id: str, new_id: str, *, actor: str) -> Steps[None]:
    """Take over the outputs that the old run did not publish, and let the new one begin."""
    yield Call("publication_move", {"old_id": old_id, "new_id": new_id})
    if (yield from runs.get(new_id)).depth is None:
        yield from runs.seal(new_id, actor=actor)
    else:
        yield from runs.seal_tree(new_id, actor=actor)


def chain(run_id: str) -> Steps[list[str]]:
    """List a run and the ones it resumes, the oldest first."""
    rows = yield Call("run_chain", {"id": run_id})
    return [row[0] for row in rows]


def results(
    run_id: str, step: int, *, after: str | None, most: int
) -> Steps[list[tuple[str, bytes | None, bool]]]:
    """Read a page of the results of a step's jobs, in the order they were published.

    Each with its id, its result, and whether it has several: those are read by `outputs.kept`.
    """
    rows = yield Call("run_results", {"run_id": run_id, "step": step, "after": after, "most": most})
    return [(job_id, data, bool(several)) for job_id, data, several in rows]


class Picture(msgspec.Struct, frozen=True):
    """A run, its steps and their jobs by state, as they stood at one time of the store's clock."""

    run: Run
    steps: Sequence[StepCount]
    counts: Mapping[int, Mapping[str, int]]
    errored: int
    """How many of its items failed or were lost at least once, those that recovered included."""
    at: datetime


def picture(run_id: str) -> Steps[Picture]:
    """Read how a run stands."""
    [one] = yield from pictures([(yield from runs.get(run_id))])
    return one


def pictures(found: Sequence[Run]) -> Steps[list[Picture]]:
    """Read how runs stand, in as many statements as one run takes."""
    if not found:
        return []
    ids = [run.id for run in found]
    counted, _ = yield from fanin.counted_steps(ids)
    by_state: dict[str, dict[int, dict[str, int]]] = {}
    errored: dict[str, int] = {}
    for run_id, step, state, count in (yield Call("run_counts", {"id": ids})):
        if step is None:
            errored[run_id] = errored.get(run_id, 0) + count
        else:
            by_state.setdefault(run_id, {}).setdefault(step, {})[state] = count
    [[now]] = yield Call("clock_now")
    return [
        Picture(
            run,
            counted.get(run.id, []),
            by_state.get(run.id, {}),
            errored.get(run.id, 0),
            instant(now),
        )
        for run in found
    ]


def within(low: str, high: str, *, most: int) -> Steps[list[str]]:
    """Name the first runs whose ids stand between these two."""
    rows = yield Call("run_within", {"low": low, "high": high, "most": most})
    return [row[0] for row in rows]


def kinds() -> Steps[dict[str, dict[str, int]]]:
    """Count the runs of each kind by state."""
    rows = yield Call("run_kinds")
    found: dict[str, dict[str, int]] = {}
    for kind, state, count in rows:
        found.setdefault(kind, {})[state] = count
    return found
