"""Handles: a job as it stood, and everything that can be asked of it."""

import asyncio
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

import msgspec
import uuid_utils

from milepost.client import Client, caller, new_id, refuse_in_loop
from milepost.errors import Invalid, JobFailed, NotFinished, NotFound, WaitTimeout
from milepost.lifecycle import JOB, JobState
from milepost.records import Entry, Job, NewJob, Template
from milepost.specs import JOB_VIEWS, Facts
from milepost.store import births, jobs, workers
from milepost.store.driver import Steps
from milepost.store.explain import Explanation, can_take, explain

__all__ = [
    "LIKE_NAMED",
    "JobError",
    "JobHandle",
    "Jobs",
    "Pause",
    "again",
    "between",
    "checked_id",
    "has_worker",
    "only",
    "patience",
    "warn_no_worker",
]

R = TypeVar("R")

WAIT_FIRST = 0.005
WAIT_LONGEST = 0.25
WARN_AFTER = 2.0
DIGITS = 32
PAGE_MOST = 1_000_000
LIKE_NAMED = 4
"""How many ids are named when a beginning of one fits several."""


class JobError(msgspec.Struct, frozen=True):
    """Why a job failed."""

    type: str
    message: str
    cause: str | None = None
    code: str | None = None


class JobHandle(Generic[R]):
    """A job as it stood when it was last read; `refresh()` reads again."""

    def __init__(
        self, client: Client, job_id: str, record: Job | None = None, type_: Any = Any
    ) -> None:
        self._client = client
        self._record = record
        self._type = type_
        self.id = job_id

    def __repr__(self) -> str:
        return f"<job {self.id} {self._record.state if self._record else 'not read yet'}>"

    @property
    def record(self) -> Job:
        """The row as it was read, read now if it never was."""
        if self._record is None:
            self.refresh()
        return cast("Job", self._record)

    @property
    def kind(self) -> str:
        """What kind of job it is."""
        return self.record.kind

    @property
    def queue(self) -> str:
        """The queue it stands in."""
        return self.record.queue

    @property
    def state(self) -> JobState:
        """Where it stood."""
        return self.record.state

    @property
    def attempt(self) -> int:
        """How many attempts were begun, releases and polls not counted."""
        return self.record.attempt

    @property
    def progress(self) -> float:
        """How far its handler said it is, from 0 to 1; a job that succeeded is at 1."""
        if self.record.state == JobState.SUCCEEDED:
            return 1.0
        return self.record.progress or 0.0

    @property
    def progress_text(self) -> str | None:
        """What its handler last said it was at."""
        return self.record.progress_text

    @property
    def done(self) -> bool:
        """Whether it is final."""
        return self.record.state in JOB.terminal

    @property
    def result(self) -> R:
        """What the handler returned; raises `NotFinished` or `JobFailed` when there is nothing."""
        record = self.record
        if record.state == JobState.SUCCEEDED:
            return cast("R", self._decoded(record))
        if record.state in JOB.terminal:
            raise JobFailed(f"job {self.id} ({record.kind}) ended {record.state}: {self._why()}")
        raise NotFinished(f"job {self.id} ({record.kind}) is {record.state}; wait() for it")

    def _decoded(self, record: Job) -> Any:
        if record.result is None:
            return None
        try:
            return self._client.codec.decode(record.result, self._type)
        except Invalid:
            return self._client.codec.decode(record.result)

    def _why(self) -> str:
        error = self.error
        if error is not None:
            return f"{error.type}: {error.message}"
        return self.record.cancel_reason or self.record.cause or "no reason was recorded"

    @property
    def error(self) -> JobError | None:
        """The last error, if any attempt failed."""
        record = self.record
        if record.error is None:
            if record.cause is None:
                return None
            return JobError(record.cause, f"it ended by {record.move}", record.cause)
        stored = msgspec.json.decode(record.error)
        return JobError(stored["type"], stored["message"], record.cause, stored.get("code"))

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return self.record.created_at

    @property
    def started_at(self) -> datetime | None:
        """When it was first claimed."""
        return self.record.started_at

    @property
    def finished_at(self) -> datetime | None:
        """When it became final."""
        return self.record.finished_at

    @property
    def history(self) -> list[Entry]:
        """Every move, in order, read now."""
        return self._client.run(jobs.history, self.id)

    async def history_async(self) -> list[Entry]:
        """Read every move, in order."""
        return await self._client.run_async(jobs.history, self.id)

    def refresh(self) -> "JobHandle[R]":
        """Read the job again."""
        self._record = self._client.run(jobs.get, self.id)
        return self

    async def refresh_async(self) -> "JobHandle[R]":
        """Read the job again."""
        self._record = await self._client.run_async(jobs.get, self.id)
        return self

    def wait(self, timeout: float | None = None) -> "JobHandle[R]":
        """Return once it is final, or raise `WaitTimeout`."""
        refuse_in_loop("wait")
        for pause in patience(timeout):
            found = self._client.run(jobs.find, [self.id])
            if self._settled(found):
                return self
            if pause.warn and not self._client.run(has_worker, found.get(self.id)):
                warn_no_worker(f"job {self.id}")
            time.sleep(pause.seconds)
        raise self._too_late(timeout)

    async def wait_async(self, timeout: float | None = None) -> "JobHandle[R]":  # noqa: ASYNC109
        """Return once it is final, or raise `WaitTimeout`."""
        for pause in patience(timeout):
            found = await self._client.run_async(jobs.find, [self.id])
            if self._settled(found):
                return self
            if pause.warn and not await self._client.run_async(has_worker, found.get(self.id)):
                warn_no_worker(f"job {self.id}")
            await asyncio.sleep(pause.seconds)
        raise self._too_late(timeout)

    def _settled(self, found: dict[str, Job]) -> bool:
        # Not visible yet means not committed yet: whoever submitted it may still be at work.
        self._record = found.get(self.id, self._record)
        return self.id in found and found[self.id].state in JOB.terminal

    def _too_late(self, timeout: float | None) -> WaitTimeout:
        state = self._record.state if self._record else "not visible yet"
        return WaitTimeout(f"job {self.id} is {state} after {timeout:g} s")

    def cancel(self, reason: str = "cancelled") -> JobState:
        """Cancel it, or ask the worker that runs it; answers with the state it is in now."""
        state, _ = self._client.run(jobs.cancel, self.id, reason=reason, actor=caller().actor)
        return state

    async def cancel_async(self, reason: str = "cancelled") -> JobState:
        """Cancel it, or ask the worker that runs it; answers with the state it is in now."""
        state, _ = await self._client.run_async(
            jobs.cancel, self.id, reason=reason, actor=caller().actor
        )
        return state

    def submit(self) -> "JobHandle[R]":
        """Release a job that was created held."""
        self._client.run(births.submit, [self.id], actor=caller().actor)
        return self.refresh()

    async def submit_async(self) -> "JobHandle[R]":
        """Release a job that was created held."""
        await self._client.run_async(births.submit, [self.id], actor=caller().actor)
        return await self.refresh_async()

    def signal(self, data: Any = None) -> bool:
        """Wake it if it waits, with data for its next attempt; False when it is final."""
        return self._client.run(jobs.signal, self.id, **self._signal(data))

    async def signal_async(self, data: Any = None) -> bool:
        """Wake it if it waits, with data for its next attempt; False when it is final."""
        return await self._client.run_async(jobs.signal, self.id, **self._signal(data))

    def _signal(self, data: Any) -> dict[str, Any]:
        encoded = None if data is None else self._client.codec.encode(data)
        return {"signal_id": new_id(), "data": encoded, "actor": caller().actor}

    def rerun(self) -> "JobHandle[R]":
        """Run it again as a new job that points at this one (H-9)."""
        [job_id] = self._client.create([again(self.refresh().record)])
        return JobHandle(self._client, job_id, type_=self._type)

    async def rerun_async(self) -> "JobHandle[R]":
        """Run it again as a new job that points at this one (H-9)."""
        await self.refresh_async()
        [job_id] = await self._client.create_async([again(self.record)])
        return JobHandle(self._client, job_id, type_=self._type)

    def explain(self) -> Explanation:
        """Say why it is, or is not, running now; `.text` is for people."""
        return self._client.run(explain, self.id)

    async def explain_async(self) -> Explanation:
        """Say why it is, or is not, running now; `.text` is for people."""
        return await self._client.run_async(explain, self.id)

    def as_spec(self, spec: str) -> str:
        """Say where it stands in the words of spec A, B, C, D or E."""
        if spec not in JOB_VIEWS:
            raise Invalid(f"there is no spec {spec!r}; there are {', '.join(JOB_VIEWS)}")
        record = self.record
        return JOB_VIEWS[spec].word(Facts(record.state, record.fence, record.phase))


def again(record: Job) -> NewJob:
    """Make a new job of a finished one, that points at it."""
    if record.state not in JOB.terminal:
        raise Invalid(f"job {record.id} is {record.state}; only a finished one is run again")
    if record.run_id is not None:
        raise Invalid(f"job {record.id} belongs to run {record.run_id}; resume the run instead")
    if record.payload is None:
        raise Invalid(f"the payload of job {record.id} was erased; submit it anew")
    template = Template(
        kind=record.kind,
        kind_version=record.kind_version,
        queue=record.queue,
        priority=record.priority,
        retries=record.retries,
        poll_limit=record.poll_limit,
        poison_limit=record.poison_limit,
        timeout_us=record.timeout_us,
        deadline_us=_span(record),
        codec=record.codec,
        tags=record.tags,
        tenant=record.tenant,
        channel=record.channel,
        rerun_of=record.id,
        actor=caller().actor,
    )
    return NewJob(new_id(), record.payload, template)


def _span(record: Job) -> int | None:
    """How long the whole job was given."""
    if record.deadline_at is None:
        return None
    return round((record.deadline_at - record.created_at).total_seconds() * 1_000_000)


class Jobs:
    """Looks jobs up."""

    def __init__(self, client: Client, type_of: Callable[[str, int], Any]) -> None:
        self._client = client
        self._type_of = type_of

    def get(self, job_id: str) -> JobHandle[Any]:
        """Return a handle, or raise `NotFound`."""
        return self._handle(self._client.run(jobs.get, checked_id(job_id)))

    async def get_async(self, job_id: str) -> JobHandle[Any]:
        """Return a handle, or raise `NotFound`."""
        return self._handle(await self._client.run_async(jobs.get, checked_id(job_id)))

    def find(self, beginning: str) -> JobHandle[Any]:
        """Return the one job whose id begins so, or raise `NotFound` or `Invalid`."""
        found = self._client.run(jobs.within, *between(beginning), most=LIKE_NAMED)
        return self.get(only(beginning, found))

    async def find_async(self, beginning: str) -> JobHandle[Any]:
        """Return the one job whose id begins so, or raise `NotFound` or `Invalid`."""
        found = await self._client.run_async(jobs.within, *between(beginning), most=LIKE_NAMED)
        return await self.get_async(only(beginning, found))

    def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Sequence[JobHandle[Any]]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = _filter(state=state, kind=kind, queue=queue, cursor=cursor, limit=limit)
        found = self._client.run(jobs.listing, **where)
        return [self._handle(record) for record in found]

    async def list_async(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Sequence[JobHandle[Any]]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = _filter(state=state, kind=kind, queue=queue, cursor=cursor, limit=limit)
        found = await self._client.run_async(jobs.listing, **where)
        return [self._handle(record) for record in found]

    def _handle(self, record: Job) -> JobHandle[Any]:
        type_ = self._type_of(record.kind, record.kind_version)
        return JobHandle(self._client, record.id, record, type_)


def _filter(
    *, state: str | None, kind: str | None, queue: str | None, cursor: str | None, limit: int
) -> dict[str, Any]:
    if state is not None and state not in JobState.__members__:
        raise Invalid(f"state={state!r}: expected one of {', '.join(JobState.__members__)}")
    check_page(limit)
    try:
        before = None if cursor is None else checked_id(cursor)
    except NotFound as error:
        raise Invalid(f"cursor={cursor!r} is not the id of a job") from error
    # A plain text: drivers need not know what a member of an enum is.
    word = None if state is None else str(state)
    return {"state": word, "kind": kind, "queue": queue, "before": before, "most": limit}


def check_page(limit: Any) -> None:
    """Refuse what is no size of a page."""
    if not isinstance(limit, int) or not 1 <= limit <= PAGE_MOST:
        raise Invalid(f"limit={limit!r} must be a whole number between 1 and {PAGE_MOST:,}")


def checked_id(text: str, *, what: str = "job") -> str:
    """Return an id in the store's spelling, or raise `NotFound`: no job has any other."""
    try:
        return str(uuid_utils.UUID(str(text)))
    except ValueError as error:
        raise NotFound(f"there is no {what} {text!r}") from error


def between(beginning: str, *, what: str = "job") -> tuple[str, str]:
    """Return the lowest and the highest id that begin so."""
    digits = str(beginning).replace("-", "").lower()
    if not digits or len(digits) > DIGITS or set(digits) - set("0123456789abcdef"):
        raise NotFound(f"there is no {what} {beginning!r}")
    return checked_id(digits.ljust(DIGITS, "0")), checked_id(digits.ljust(DIGITS, "f"))


def only(beginning: str, found: Sequence[str], *, what: str = "job") -> str:
    """Return the one id that begins so, or raise `NotFound` or `Invalid`."""
    if not found:
        raise NotFound(f"there is no {what} {beginning!r}")
    if len(found) > 1:
        more = ", …" if len(found) == LIKE_NAMED else ""
        raise Invalid(
            f"{beginning!r} begins several ids: {', '.join(found)}{more}; give more of it"
        )
    return found[0]


class Pause(msgspec.Struct, frozen=True):
    """How long to wait before the next look, and whether to warn if nobody is at work."""

    seconds: float
    warn: bool


def patience(timeout: float | None) -> Iterator[Pause]:
    """Yield ever longer pauses until the time is over."""
    if timeout is not None and (not isinstance(timeout, int | float) or math.isnan(timeout)):
        raise Invalid(f"timeout={timeout!r} must be a number of seconds, or None")
    begun = time.monotonic()
    warned = False
    pause = WAIT_FIRST
    while True:
        waited = time.monotonic() - begun
        left = None if timeout is None else timeout - waited
        warn = not warned and waited > WARN_AFTER
        warned |= warn
        yield Pause(pause if left is None else max(0.0, min(pause, left)), warn)
        if left is not None and left <= 0:
            return
        pause = min(pause * 1.5, WAIT_LONGEST)


def has_worker(job: Job | None) -> Steps[bool]:
    """Tell whether a live worker could take the job."""
    if job is None:  # not committed yet: no worker could know
        return True
    live = yield from workers.listing()
    return any(can_take(worker, job) for worker in live)


def warn_no_worker(what: str) -> None:
    """Say to whoever waits that nobody is at work."""
    warnings.warn(
        f"{what} waits and no live worker could take it; start one with "
        "`milepost worker APP` or call app.drain()",
        RuntimeWarning,
        stacklevel=3,
    )
