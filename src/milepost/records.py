"""What the store hands out: frozen rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec

from milepost.history import attempt_of
from milepost.lifecycle import JobState, RunState
from milepost.limit import split_key
from milepost.options import default
from milepost.outcome import Outcome
from milepost.specs import STEP_ROLE

T = TypeVar("T")
U = TypeVar("U")


class Sql(msgspec.Struct, frozen=True):
    """What gives a record's field where that is not the plain column of its name."""

    text: str
    """As files in `sql/` say it; `$` stands for the field's name."""


_AS_TEXT: Final = Sql("{text:$}")
Id = Annotated[str, _AS_TEXT]
Json = Annotated[str | None, _AS_TEXT]


class Listed(list[T]):
    """A page of what was asked for; `more` may follow where it ended at its number or its size."""

    more: bool = False
    next: str | None = None
    """Of a search: the id that the next page begins after; None if all was looked at."""
    looked_to: datetime | None = None
    """Of a search whose page is not full, though more may follow: when the last job that it looked
    at was created."""

    @classmethod
    def of(cls, found: Iterable[T], rows: Sequence[Sequence[Any]], *, most: int) -> "Listed[T]":
        """Make a page; the last column of its rows says how many there were before its size."""
        page = cls(found)
        total = rows[-1][-1] if rows else 0
        page.more = total > len(page) or total >= most
        return page

    def after(self, before: "Listed[T]") -> "Listed[T]":
        """Put the page before this one in front of it."""
        self[:0] = before
        return self

    def of_each(self, made: Callable[[T], U]) -> "Listed[U]":
        """Make something of each; the page stays as it is."""
        page = Listed(map(made, self))
        page.more, page.next, page.looked_to = self.more, self.next, self.looked_to
        return page


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a job's options allow it; none of it ever changes."""

    retries: int = default("retries")
    recoveries: int | None = default("recoveries")
    poll_limit: int = default("poll_limit")
    poison_limit: int = default("poison_limit")
    timeout_us: int | None = None


class Pinned(Limits, frozen=True, kw_only=True):
    """What a job's row has from its kind and its options; a step's row has it for its jobs."""

    kind: str
    kind_version: int = 1
    queue: str = default("queue")
    priority: int = default("priority")
    policy: str | None = None


class Template(Pinned, frozen=True, kw_only=True):
    """What jobs created together have in common."""

    state: str = JobState.QUEUED
    actor: str | None = None
    due_at: datetime | None = None
    delay_us: int | None = None
    deadline_us: int | None = None
    start_within_us: int | None = None
    codec: str = "json"
    tags: str | None = None
    tenant: str = ""
    limit_key: str | None = None
    units: float | None = None
    trace: str | None = None
    channel: str | None = None
    parent_id: str | None = None
    rerun_of: str | None = None
    run_id: str | None = None
    step: int | None = None


class NewJob(msgspec.Struct, frozen=True):
    """A job about to be created."""

    id: str
    payload: bytes | None
    template: Template
    ordinal: int | None = None
    unique_key: str | None = None
    on_conflict: str = "keep"
    unique_us: int | None = None
    key: str | None = None
    """Its limit key, where that is not its template's."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A job that a worker holds: what it needs to run it, and the fence it must show."""

    id: Id
    kind: str
    kind_version: int
    fence: int
    payload: bytes | None
    codec: str
    errors: int
    losses: int
    polls: int
    releases: int
    retries: int
    recoveries: int | None
    poll_limit: int
    poison_limit: int
    timeout_us: int | None
    policy: str | None
    run_id: Id | None
    step: int | None
    ordinal: int | None
    trace: str | None
    queue: str
    priority: int
    queued_seq: int
    tenant: str
    channel: str | None
    remaining_us: int | None
    origin_id: Id | None = None
    """The job whose idempotency key and steps it goes on with; None: its own."""
    waited_us: int | None = None
    """How long it was due; None unless that was asked for, and while a gate kept it."""
    limit_key: str | None = None
    """The key that it is counted under; None: it is under no limit of its own."""

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1 (H-18)."""
        return self.errors + self.losses + 1

    @property
    def losses_allowed(self) -> int:
        """How many losses are followed by another attempt, given its errors so far."""
        return self.retries - self.errors if self.recoveries is None else self.recoveries


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """An outcome for a claim."""

    claim: Claim
    outcome: Outcome


class Job(msgspec.Struct, frozen=True):
    """A job as it stood when it was read."""

    id: Id
    kind: str
    kind_version: int
    queue: str
    priority: int
    state: JobState
    version: int
    fence: int
    worker_id: str | None
    phase: str | None
    cause: str | None
    errors: int
    losses: int
    polls: int
    releases: int
    retries: int
    recoveries: int | None
    poll_limit: int
    poison_limit: int
    timeout_us: int | None
    codec: str
    payload: bytes | None
    result: bytes | None
    error: str | None
    fingerprint: str | None
    tags: Json
    tenant: str
    unique_key: str | None
    limit_key: str | None
    """What it is counted under, as it is stored: see `limit` and `limit_value`."""
    units: float | None
    """How many units of its limit's rate it reserves; None: one."""
    channel: str | None
    trace: str | None
    run_id: Id | None
    step: int | None
    ordinal: int | None
    parent_id: Id | None
    rerun_of: Id | None
    origin_id: Id | None
    rerun_by: Annotated[
        str | None,
        Sql("(SELECT max({text:newer.id}) FROM job AS newer WHERE newer.rerun_of = job.id)"),
    ]
    cancel_reason: str | None
    move: str
    policy: str | None
    progress: Annotated[float | None, Sql("(SELECT fraction FROM progress WHERE job_id = job.id)")]
    progress_text: Annotated[
        str | None, Sql("(SELECT message FROM progress WHERE job_id = job.id)")
    ]
    transport: Annotated[
        str | None, Sql("(SELECT transport FROM queue WHERE queue.name = job.queue)")
    ]
    """How its queue hands jobs out; None where nobody has said anything of the queue."""
    role: Annotated[str | None, Sql(STEP_ROLE)]
    """The role of its step in its run; None outside the steps of a run."""
    due_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None

    @property
    def attempt(self) -> int:
        """Which attempt this is: 0 before the first claim (H-18, H-19)."""
        return attempt_of(self.state, self.errors, self.losses)

    @property
    def limit(self) -> str | None:
        """The name of the rule that limits it."""
        return None if self.limit_key is None else split_key(self.limit_key)[0]

    @property
    def limit_value(self) -> str | None:
        """The key that it is counted under by that rule; "" where the rule has none."""
        return None if self.limit_key is None else split_key(self.limit_key)[1]

    @property
    def is_suspect(self) -> bool:
        """Whether it runs with no other job in its process, because one more loss would end it."""
        last = self.losses > 0 and self.losses >= self.losses_allowed
        return last or self.losses + 1 >= self.poison_limit

    @property
    def losses_allowed(self) -> int:
        """How many losses are followed by another attempt, given its errors so far."""
        return self.retries - self.errors if self.recoveries is None else self.recoveries

    @property
    def attempts_allowed(self) -> int:
        """How many attempts there can be at most, polls and releases not counted."""
        return self.retries + (self.recoveries or 0) + 1

    @property
    def is_spent(self) -> bool:
        """Whether its errors or losses are more than it may have."""
        return self.errors > self.retries or self.losses > self.losses_allowed


class Situation(msgspec.Struct, frozen=True):
    """What decides on a job besides its row, the workers, and whoever holds its limits."""

    now: Annotated[datetime, Sql("{now}")]
    """When it was read, by the store's clock."""
    paused: Annotated[bool | None, Sql("(SELECT paused FROM queue WHERE queue.name = job.queue)")]
    run_state: Annotated[str | None, Sql("(SELECT state FROM run WHERE run.id = job.run_id)")]
    start_by: Annotated[datetime | None, Sql("CASE WHEN job.fence = 0 THEN job.start_by END")]
    """When a job that was never claimed fails (`start_within`)."""
    queue_limited: Annotated[
        bool,
        Sql("EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'queue' AND name = job.queue)"),
    ]
    detail: Annotated[str | None, Sql("CASE WHEN job.phase = 'unfit' THEN job.detail END")]
    """Why its arguments do not fit, if that is what it waits for."""


LINE_BYTES: Final = 16_384
"""Content that is larger is not read for a list: only its size is told."""


class JobLine(msgspec.Struct, frozen=True):
    """What a list shows of a job."""

    id: Annotated[str, Sql("{text:job.id}")]
    kind: str
    queue: str
    state: JobState
    tenant: str
    cause: str | None
    errors: int
    losses: int
    retries: int
    recoveries: int | None
    codec: str
    payload: Annotated[
        bytes | None, Sql(f"CASE WHEN length(payload) <= {LINE_BYTES} THEN payload END")
    ]
    size: Annotated[int | None, Sql("length(payload)")]
    error: Annotated[str | None, Sql(f"CASE WHEN length(error) <= {LINE_BYTES} THEN error END")]
    error_type: str | None
    cancel_reason: str | None
    again: Annotated[bool, Sql("EXISTS (SELECT 1 FROM job AS newer WHERE newer.rerun_of = job.id)")]
    """Whether it was run again."""
    due_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def attempts_allowed(self) -> int:
        """How many attempts there can be at most, polls and releases not counted."""
        return self.retries + (self.recoveries or 0) + 1


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed."""

    type: str
    message: str
    cause: str | None = None
    code: str | None = None


class FailedAttempt(msgspec.Struct, frozen=True):
    """Why one attempt of a job failed, and where."""

    attempt: int
    at: datetime
    type: str
    message: str
    code: str | None = None
    place: str | None = None
    """File, line and function of the innermost frame of the user's own code."""
    traceback: str | None = None
    fingerprint: str | None = None
    fence: int = 0


class ErrorGroup(msgspec.Struct, frozen=True):
    """Attempts that failed with the same error: of one type and code, in one function."""

    fingerprint: str
    type: str
    message: str
    """As it was said last."""
    code: str | None
    place: str | None
    kind: str | None
    """The kind of the job that failed so last."""
    count: int
    """How many attempts failed so, of those that are kept."""
    more: bool
    """Whether only the newest of its jobs were asked how they stand."""
    failed: int
    """How many jobs it ended, of those that were asked."""
    open: int
    """How many jobs failed so last and go on, of those that were asked."""
    first_at: datetime
    last_at: datetime
    job_id: str
    """The job that failed so last."""
    hours: tuple[int, ...] = ()
    """How often it came in each of the last 24 hours by the clock, the current one last."""


class ErrorDetail(msgspec.Struct, frozen=True):
    """One group of errors, looked at closely."""

    group: ErrorGroup
    examples: tuple[tuple[str, FailedAttempt], ...]
    """Jobs and the attempts of them that failed so last, the newest first."""
    shared: Mapping[str, Mapping[str, int]]
    """How many of its newest jobs are of each kind, version, queue and tenant."""


class RunError(msgspec.Struct, frozen=True):
    """Why one job of a run failed, or a batch within it."""

    job_id: str
    """The job's id; of a batch within a batch, whose `step` is "batch", the id of its run."""
    step: str
    type: str
    message: str
    cause: str | None = None
    code: str | None = None
    ordinal: int | None = None


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run about to be created."""

    id: str
    kind: str
    kind_version: int = 1
    payload: bytes | None = None
    codec: str = "json"
    actor: str | None = None
    policy: str | None = None
    queue: str = "default"
    priority: int = 0
    tenant: str = ""
    unique_key: str | None = None
    params_key: str | None = None
    params_keys_before: tuple[str, ...] = ()
    """What older keys of its codec made of the parameters: a live run may have one of those."""
    tags: str | None = None
    trace: str | None = None
    channel: str | None = None
    mode: str | None = None
    parent_id: str | None = None
    rerun_of: str | None = None
    resumes: str | None = None
    ordinal: int | None = None
    depth: int | None = None
    watermark_before: datetime | None = None
    deadline_us: int | None = None
    hold_us: int | None = None


class NewStep(Pinned, frozen=True, kw_only=True):
    """A step about to be created: everything that fan-in and publishing need to know of it."""

    number: int
    name: str
    role: str = "work"
    gated: bool = False
    poll_us: int | None = None
    slots: int = 1
    deadline_us: int | None = None
    start_within_us: int | None = None
    tolerance: float = 0.0
    fail_fast: bool = True
    channel: str | None = None


class StepCount(msgspec.Struct, frozen=True):
    """How a step stands."""

    number: int
    name: str
    role: str
    gated: bool
    opened: bool
    fail_fast: bool
    tolerance: float
    open: int
    succeeded: int
    failed: int
    cancelled: int
    succeeded_before: int = 0
    """In the runs that this one resumes; only read where its policy asks for it."""

    @property
    def lost(self) -> int:
        """How many of its jobs ended without success."""
        return self.failed + self.cancelled

    @property
    def within_tolerance(self) -> bool:
        """Whether its policy holds, given what has ended so far."""
        ended = self.succeeded_before + self.succeeded + self.lost
        # A share like 0.29 has no exact float: 29 of 100 must still be tolerated.
        return self.lost <= self.tolerance * ended * (1 + 1e-9)

    @property
    def breach(self) -> str | None:
        """Say in numbers how its policy is broken; None while it holds."""
        ended = self.succeeded_before + self.succeeded + self.lost
        if self.fail_fast and self.failed:
            return f"{self.failed:,} of {ended:,} jobs of {self.name} failed, none may"
        if self.within_tolerance:
            return None
        share = 100 * self.lost / ended
        allowed = f"{100 * self.tolerance:g} % allowed"
        return f"{share:.1f} % of {ended:,} jobs of {self.name} failed, {allowed}"


class Run(msgspec.Struct, frozen=True):
    """A run as it stood when it was read."""

    id: Id
    kind: str
    kind_version: int
    queue: str
    priority: int
    state: RunState
    version: int
    current_step: int
    ending: str | None
    phase: str | None
    cause: str | None
    mode: str | None
    codec: str
    payload: bytes | None
    report: bytes | None
    error: str | None
    tags: Json
    tenant: str
    unique_key: str | None
    params_key: str | None
    channel: str | None
    trace: str | None
    parent_id: Id | None
    rerun_of: Id | None
    resumes: Id | None
    ordinal: int | None
    """The place of a batch among the items of its parent."""
    depth: int | None
    """How deep it stands in a tree of batches, 0 at the root; None: it is in none."""
    policy: str | None
    move: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deadline_at: datetime | None


class ResponseRow(msgspec.Struct, frozen=True):
    """The end of one request of a batch, or of a batch within it, as it is stored."""

    id: str
    ordinal: int | None
    state: str
    fence: int
    phase: str | None
    result: bytes | None
    error: str | None
    cause: str | None
    cancel_reason: str | None
    batch: bool = False


class Queue(msgspec.Struct, frozen=True):
    """A queue as it stood: its jobs by state, who paused it if it is paused, and its bound."""

    name: str
    counts: Mapping[str, int]
    paused: bool = False
    paused_at: datetime | None = None
    paused_by: str | None = None
    reason: str | None = None
    """Why it is paused, if they said so."""
    max_waiting: int | None = None
    transport: str = "store"
    """Where its jobs wait: in the store, or also on a broker of that kind."""


class Worker(msgspec.Struct, frozen=True):
    """A worker as its row shows it."""

    id: str
    state: str
    move: str
    host: str | None
    pid: int | None
    program: str | None
    queues: str | None
    kinds: str | None
    slots: str | None
    started_at: datetime
    heartbeat_at: datetime
    lease_until: datetime
    lease_seconds: float
