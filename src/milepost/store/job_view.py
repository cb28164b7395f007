"""Everything that the page of a job shows, read in one transaction of at most six statements.

A job under a limit takes a few more. And the job's record in D's words.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.errors import Invalid
from milepost.history import SNAPSHOT, Entry, Standing
from milepost.lifecycle import Cause, JobState
from milepost.outcome import LogLine
from milepost.records import FailedAttempt, Job
from milepost.specs import CANCELLED, EXPIRED, LOST, Lifecycle
from milepost.store import failures, job_facts, jobs, logs
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.store.job_facts import JobFacts

MOVES = 100
"""How many moves are read; older ones are only counted."""
DETAIL_BYTES = 256 * 1024
STEPS = 100
STEP_BYTES = 4_096
"""How large the result of a step is that is shown."""
LOOK = 1_000
"""How many jobs with the same error are counted."""


class KeptStep(msgspec.Struct, frozen=True):
    """A durable step that is done."""

    name: str
    at: datetime
    fence: int
    size: int
    result: bytes | None
    """None if it returned nothing, or more than is shown."""


class Message(msgspec.Struct, frozen=True):
    """The message of a job's end to its channel."""

    channel: str
    state: str
    """`waiting`, `delivered` or `dead`."""
    attempts: int
    at: datetime


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job, and everything that is kept of it."""

    job: Job
    facts: JobFacts
    moves: Sequence[Entry]
    """The newest moves, in order."""
    earlier: Mapping[tuple[str, str, str], int]
    """How often older moves were made, by name, from and to."""
    failures: Sequence[FailedAttempt] = ()
    lines: Sequence[LogLine] | None = ()
    """None if they are sealed with a key that is not here."""
    steps: Sequence[KeptStep] = ()
    usage: Mapping[str, float] = {}
    message: Message | None = None
    alike: int = 0
    """How many jobs failed last with the same error, this one included, at most `LOOK`."""

    @property
    def now(self) -> datetime:
        """When it was read, by the store's clock."""
        return self.facts.now


def view(job_id: str, *, check: Callable[[Job], None], counts_alike: bool = True) -> Steps[JobView]:
    """Read a job and all that is shown of it; `check` refuses a caller that may not see it."""
    job = yield from jobs.get(job_id)
    check(job)
    moves, earlier = yield from _moves(job)
    tried = job.fence > 0 or job.cause is not None
    failed = (yield from failures.attempts(job.id, most=failures.SHOWN)) if tried else []
    kept = yield from _kept(job, counts_alike=counts_alike)
    facts = yield from job_facts.look(job)
    return JobView(job=job, facts=facts, moves=moves, earlier=earlier, failures=failed, **kept)


def _moves(job: Job) -> Steps[tuple[list[Entry], dict[tuple[str, str, str], int]]]:
    asked = {"id": job.id, "most": MOVES, "most_bytes": DETAIL_BYTES}
    rows = yield Call("job_view_moves", asked)
    earlier = {(row[1], row[2] or "", row[3]): row[-1] for row in rows if not row[0]}
    entries = [
        Entry(seq, move, source, target, fence, instant(at), actor, detail, db_user=db_user)
        for seq, move, source, target, fence, at, actor, detail, db_user, _ in rows
        if seq
    ]
    return _counted(job, entries), earlier


def _counted(job: Job, entries: Sequence[Entry]) -> list[Entry]:
    """Say of each move to which attempt it belongs, counted back from how the job stands now."""
    made = Counter(entry.move for entry in entries)
    errors, losses = job.errors - made["retry"] - made["fail"], job.losses - made["lose"]
    standing = Standing(errors=max(0, errors), losses=max(0, losses))
    if any(entry.move == SNAPSHOT for entry in entries):
        standing = Standing()
    found = []
    for entry in entries:
        standing = standing.taking(entry)
        found.append(entry.with_attempt(standing.attempt))
    return found


def _kept(job: Job, *, counts_alike: bool) -> Steps[dict[str, Any]]:
    asked = {
        "id": job.id,
        "most": STEPS,
        "most_bytes": STEP_BYTES,
        "look": LOOK,
        "fingerprint": job.fingerprint if counts_alike else None,
        # An erased job has one move more than its message tells of.
        "message_id": [f"job_{job.id}_{number}" for number in (job.version, job.version - 1)],
    }
    found: dict[str, Any] = {"steps": [], "usage": {}}
    for what, name, number, at, content, data in (yield Call("job_view_kept", asked)):
        if what == "log":
            found["lines"] = _lines(job.id, content)
        elif what == "step":
            step = KeptStep(name, instant(at), int(content), int(number), data)
            found["steps"].append(step)
        elif what == "used":
            found["usage"][name] = float(number)
        elif what == "message":
            found["message"] = Message(name, content, int(number), instant(at))
        else:
            found["alike"] = int(number)
    return found


def _lines(job_id: str, content: str) -> list[LogLine] | None:
    try:
        return logs.decoded(job_id, content)
    except Invalid:
        return None


# In D's words


def lifecycle(job_id: str) -> Steps[Lifecycle]:
    """Read D's record of a job, as its view has it; content is read through the codec."""
    job = yield from jobs.get(job_id)
    [row] = yield Call("job_lifecycle", {"id": job_id})
    state, created, started, completed, retries, most, kind, cause = row
    return {
        "jobId": job.id,
        "state": state,
        "createdAt": instant(created),
        "startedAt": None if started is None else instant(started),
        "completedAt": None if completed is None else instant(completed),
        "retryCount": retries,
        "maxRetries": most,
        "lastError": _last_error(job, cause),
        "errorType": kind,
    }


def _last_error(job: Job, cause: str | None) -> str | None:
    if job.state == JobState.SUCCEEDED:
        return None
    if job.state == JobState.CANCELLED:
        return CANCELLED + (f": {job.cancel_reason}" if job.cancel_reason is not None else "")
    if cause == Cause.DEADLINE:
        return EXPIRED
    if job.error is None:
        return cause or (LOST if job.losses else None)
    return message_of(job.error)


def message_of(error: str) -> str:
    """Take the message of a stored error; all of it when somebody else wrote it."""
    try:
        message = msgspec.json.decode(error)["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return error
    return error if message is None else str(message)
