"""Running finished jobs again: as new jobs that point at the old ones, in chains without branches.

A rerun goes on with the steps, the cursor and the idempotency key of the first job of its chain,
which it names as its origin; steps of the jobs in between are read through the chain. A
fresh one has no origin but itself.
"""

from collections.abc import Iterable, Sequence

import msgspec
import uuid_utils

from milepost.errors import IllegalMove, NotFound
from milepost.lifecycle import JOB, JobState
from milepost.store.driver import Call, Steps


class _FinishedJob(msgspec.Struct, frozen=True):
    """A job that is to be run again, its row locked."""

    id: str
    state: str
    run_id: str | None
    erased: bool
    goes_on: bool
    newest: str | None = None

    def refusal(self, *, fresh: bool) -> str | None:
        """Say why it is not run again; None when it may be."""
        if self.state not in JOB.terminal:
            return f"job {self.id} is {self.state}; only a finished one is run again"
        if self.run_id is not None:
            return (
                f"job {self.id} belongs to run {self.run_id}; resume the run instead: it runs all "
                "that failed or was cancelled again"
            )
        if self.newest is not None:
            return f"job {self.id} was run again; the newest of its chain is job {self.newest}"
        if self.erased:
            return f"the payload of job {self.id} was erased; submit it anew"
        if self.state == JobState.SUCCEEDED and not fresh:
            return (
                f"job {self.id} SUCCEEDED; rerun(fresh=True), --fresh or "
                '{"fresh": true} runs it from its start, with an idempotency key of its own'
            )
        return None


def rerun(job_id: str, *, fresh: bool, actor: str | None, trace: str | None) -> Steps[str]:
    """Run a job again; answer with the new job's id, or raise `IllegalMove` and say why not."""
    found = yield from _finished([job_id])
    if not found:
        raise NotFound(f"there is no job {job_id}")
    if refusal := (yield from _refusal(found[0], fresh=fresh)):
        raise IllegalMove(refusal)
    [new] = yield from create([job_id], fresh=fresh, actor=actor, trace=trace)
    return new


def rerun_many(
    job_ids: Iterable[str], *, fresh: bool, actor: str | None, trace: str | None
) -> Steps[list[str]]:
    """Run those of the jobs again that may be; answer with the ids of the new ones."""
    chosen = []
    for job in (yield from _finished(sorted(set(job_ids)))):
        refusal = yield from _refusal(job, fresh=fresh)
        if refusal is None:
            chosen.append(job.id)
    return (yield from create(chosen, fresh=fresh, actor=actor, trace=trace))


def _finished(job_ids: Sequence[str]) -> Steps[list[_FinishedJob]]:
    locked = yield Call("rerun_lock", {"id": list(job_ids)})
    # A new statement: it sees the commit of a rival that the locks waited for.
    newest = dict((yield Call("rerun_newest", {"id": list(job_ids)})))
    return [
        _FinishedJob(job_id, state, run_id, bool(erased), bool(goes_on), newest.get(job_id))
        for job_id, state, run_id, erased, goes_on in locked
    ]


def _refusal(job: _FinishedJob, *, fresh: bool) -> Steps[str | None]:
    """Say why a job is not run again; also if the steps that it goes on with were erased."""
    refusal = job.refusal(fresh=fresh)
    if refusal is not None or fresh or not job.goes_on:
        return refusal
    older = yield Call("rerun_older", {"id": job.id})
    # Held until the rerun is there: an erase of one of them finds it then.
    for found in (yield Call("rerun_lock", {"id": [row[0] for row in older]})):
        if found[3]:
            return (
                f"job {found[0]}, whose steps job {job.id} goes on with, was erased, and its steps "
                "too; rerun(fresh=True) starts over"
            )
    return None


def create(
    job_ids: Sequence[str],
    *,
    actor: str | None,
    fresh: bool = False,
    trace: str | None = None,
    run_id: str | None = None,
) -> Steps[list[str]]:
    """Create the jobs that run these again: queued, or held in a run that resumes theirs."""
    if not job_ids:
        return []
    new = [str(uuid_utils.uuid7()) for _ in job_ids]
    state = JobState.QUEUED if run_id is None else JobState.CREATED
    columns = {"old_id": list(job_ids), "new_id": new, "run_id": run_id, "state": state.value}
    yield Call("job_rerun", {**columns, "fresh": fresh, "actor": actor, "trace": trace})
    return new


def chain(job_id: str) -> Steps[list[str]]:
    """List a job, those it runs again and those that run it again, the oldest first."""
    rows = yield Call("rerun_chain", {"id": job_id})
    return [row[0] for row in rows]


def refuse_needed(job_id: str) -> Steps[None]:
    """Refuse to erase a job whose steps an open one goes on with."""
    needed = yield Call("rerun_needs", {"id": job_id})
    if needed:
        raise IllegalMove(
            f"job {needed[0][0]} goes on with the steps of job {job_id}; erase it once that has "
            "ended, or cancel that one first"
        )
