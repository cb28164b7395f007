"""Handles of jobs, and their look-up."""

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar, cast

from milepost import filters
from milepost.client import Client, caller, new_id
from milepost.codec import limited
from milepost.errors import Invalid, JobFailed, NotFinished, NotFound
from milepost.faces import Flow, Stream, faces, streams
from milepost.lifecycle import JOB, JobState
from milepost.outcome import LogLine
from milepost.records import ErrorDetail, ErrorGroup, FailedAttempt, Job, JobError, Listed
from milepost.specs import JOB_VIEWS, Facts, Lifecycle, job_view
from milepost.store import creation, failures, jobs, logs, outputs, reruns, search, timers, unfit
from milepost.store.driver import Steps
from milepost.store.job_view import lifecycle
from milepost.subjects import LIKE_NAMED, Finder, Subject, check_page, has_worker, only, page

R = TypeVar("R")
PAGE = 16
"""How many results, each of which may be large, are read at once."""


class JobHandle(Subject[Job], Generic[R]):
    """A job as it stood when it was last read; `refresh()` reads again."""

    what = "job"
    machine = JOB

    def __init__(
        self,
        client: Client,
        job_id: str,
        record: Job | None = None,
        type_: Any = Any,
        *,
        asked: bytes | None = None,
    ) -> None:
        super().__init__(client, job_id, record)
        self._type = type_
        self._asked = asked

    @property
    def duplicate(self) -> Literal["same", "different"] | None:
        """None for the job that the submit created; else how it differs from what was asked for.

        "same" or "different" tells of the arguments of the job that has the unique key; those of
        one that was erased, or has left the store, nobody knows.
        """
        if self._asked is None:
            return None
        try:
            found, decode = self.record.payload, self._client.codec.decode
        except NotFound:
            return "different"
        same = found is not None and decode(found) == decode(self._asked)
        return "same" if same else "different"

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
        """The text of the last progress that its handler reported."""
        return self.record.progress_text

    @property
    def result(self) -> R:
        """The handler's return value; raises `NotFinished` or `JobFailed` when there is nothing."""
        record = self.record
        if record.state == JobState.SUCCEEDED:
            return cast("R", self._decoded(record.result, self._type))
        if record.state in JOB.terminal:
            raise JobFailed(f"job {self.id} ({record.kind}) ended {record.state}: {self._why()}")
        raise NotFinished(f"job {self.id} ({record.kind}) is {record.state}; wait() for it")

    def _why(self) -> str:
        error = self.error
        if error is not None:
            return f"{error.type}: {error.message}"
        return self.record.cancel_reason or self.record.cause or "no reason was recorded"

    @property
    def error(self) -> JobError | None:
        """The last error, if any attempt failed."""
        return failures.last_error(self.record.error, self.record.cause)

    @property
    def failures(self) -> list[FailedAttempt]:
        """Why each attempt failed: its error, its place and its traceback, in order; read now.

        Of more than a thousand these are the last.
        """
        return self._client.run(failures.attempts, self.id)

    async def failures_async(self) -> list[FailedAttempt]:
        """Read why each attempt failed, in order."""
        return await self._client.run_async(failures.attempts, self.id)

    @property
    def logs(self) -> list[LogLine]:
        """The last lines that its attempts have logged, in order; read now."""
        return self._client.run(logs.read, self.id)

    async def logs_async(self) -> list[LogLine]:
        """Read the last lines that its attempts have logged, in order."""
        return await self._client.run_async(logs.read, self.id)

    @property
    def limit(self) -> str | None:
        """The name of the rule that limits it, if one does."""
        return self.record.limit

    @property
    def limit_key(self) -> str | None:
        """The key that this rule counts it under; "" if the rule counts all jobs together."""
        return self.record.limit_value

    @property
    def rerun_of(self) -> str | None:
        """The job that this one runs again, if any."""
        return self.record.rerun_of

    @property
    def rerun_by(self) -> str | None:
        """The job that runs this one again, if any: it speaks for this one now."""
        return self.record.rerun_by

    @property
    def chain(self) -> list[str]:
        """The ids of its chain of reruns, before and after it, oldest first; read now."""
        return self._client.run(reruns.chain, self.id)

    async def chain_async(self) -> list[str]:
        """Read the ids of its chain of reruns, before and after it, oldest first."""
        return await self._client.run_async(reruns.chain, self.id)

    @property
    def usage(self) -> dict[str, float]:
        """The amounts that its handler counted, added up over all attempts; read now."""
        return self._client.run(jobs.used, self.id)

    async def usage_async(self) -> dict[str, float]:
        """Read the amounts that its handler counted, added up over all attempts."""
        return await self._client.run_async(jobs.used, self.id)

    # Reading

    def read(self) -> Steps[None]:
        """Read the row, and keep it."""
        self._record = yield from jobs.get(self.id)

    def _ended(self) -> Steps[bool]:
        found = yield from jobs.find([self.id])
        seen, self._record = self._record, found.get(self.id, self._record)
        if self.id in found or (seen is not None and self.done):
            return self.done
        # Not visible yet means not committed yet: its transaction may still be open. A job that was
        # seen before and is gone has ended, and retention has deleted it.
        if seen is not None:
            raise NotFound(
                f"job {self.id} has ended and left the store meanwhile; keep_succeeded and "
                "keep_failed say how long finished jobs stay"
            )
        return False

    def _served(self) -> Steps[bool]:
        return (yield from has_worker(self._record))

    # Acting

    def _cancel(self, reason: str = "cancelled") -> Flow[JobState]:
        """Cancel it, or ask the worker that runs it; answers with the state it is in now."""
        actor = caller().actor
        state, _ = yield from self._client.flow(jobs.cancel, self.id, reason=reason, actor=actor)
        return state

    cancel, cancel_async = faces(_cancel)

    def _submit(self) -> Flow["JobHandle[R]"]:
        """Release a job that was created held, or raise `IllegalMove` if it will never run."""
        yield from self._client.flow(creation.submit, [self.id], actor=caller().actor)
        return (yield from self._refresh())

    submit, submit_async = faces(_submit)

    def _signal(self, data: Any = None) -> Flow[bool]:
        """Wake it if it waits, with data for its next attempt; False when it is final."""
        encoded = None if data is None else self._client.codec.encode(data)
        if encoded is not None:
            limited(encoded, most=self._client.settings.max_payload, what="the signal's data")
        return self._client.flow(
            jobs.signal, self.id, signal_id=new_id(), data=encoded, actor=caller().actor
        )

    signal, signal_async = faces(_signal)

    def _outputs(self) -> Stream[Any]:
        """Read the outputs of a job of a batch's last step, in order; its result, if it has one."""
        if (yield from self._refresh()).record.result is not None:
            yield self._decoded(self.record.result, self._type)
        after = -1
        while page := (yield from self._client.flow(outputs.kept, self.id, after=after, most=PAGE)):
            after = page[-1][0]
            for _, data in page:
                yield self._client.codec.decode(data)

    outputs, outputs_async = streams(_outputs)

    def _release(self) -> Flow["JobHandle[R]"]:
        """Let it be tried again if it waits because its arguments did not fit."""
        yield from self._client.flow(unfit.release, self.id, actor=caller().actor)
        return (yield from self._refresh())

    release, release_async = faces(_release)

    def _run_now(self) -> Flow["JobHandle[R]"]:
        """Let it run before its time if it waits for one: a start, a retry, a poll."""
        yield from self._client.flow(timers.run_now, self.id, actor=caller().actor)
        return (yield from self._refresh())

    run_now, run_now_async = faces(_run_now)

    def _rerun(self, *, fresh: bool = False) -> Flow["JobHandle[R]"]:
        """Run it again as a new job that points at this one, or raise `IllegalMove`.

        The new job goes on from the steps and the cursor that are recorded, under the same
        idempotency key. A `fresh` one starts over with a key of its own; only so is a job run again
        that succeeded. A job is run again once: then its newest rerun is the one to run again.
        """
        by = caller()
        job_id = yield from self._client.flow(
            reruns.rerun, self.id, fresh=fresh, actor=by.actor, trace=by.trace
        )
        return JobHandle(self._client, job_id, type_=self._type)

    rerun, rerun_async = faces(_rerun)

    def _lifecycle(self) -> Flow[Lifecycle]:
        """Read its record in the names of spec D: `jobId`, `retryCount`, `lastError` and so on."""
        return self._client.flow(lifecycle, self.id)

    lifecycle, lifecycle_async = faces(_lifecycle)

    def as_spec(self, spec: str) -> str:
        """Say where it stands in the words of spec A, B, C, D or E."""
        if spec not in JOB_VIEWS:
            raise Invalid(f"there is no spec {spec!r}; there are {', '.join(JOB_VIEWS)}")
        record = self.record
        transport = record.transport or "store"
        facts = Facts(record.state, record.fence, record.phase, transport)
        return job_view(spec, role=record.role).word(facts)


class Errors:
    """Looks errors up: those of one type and code, in one function, are one."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _list(self, *, limit: int = 50) -> Flow[Sequence[ErrorGroup]]:
        """Return the errors that were seen last, with how often and since when."""
        return self._client.flow(failures.groups, most=check_page(limit))

    list, list_async = faces(_list)

    def _get(self, fingerprint: str) -> Flow[ErrorDetail]:
        """Return one error with its last examples, and what its jobs share."""
        return self._client.flow(failures.group, fingerprint)

    get, get_async = faces(_get)

    def _find(self, beginning: str) -> Flow[ErrorDetail]:
        """Return the only error whose fingerprint begins so, or raise `NotFound` or `Invalid`."""
        return self._client.flow(self._only, beginning)

    find, find_async = faces(_find)

    def _only(self, beginning: str) -> Steps[ErrorDetail]:
        found = yield from failures.beginning_with(beginning, most=LIKE_NAMED)
        name = only(beginning, found, names="fingerprints") if found else beginning
        return (yield from failures.group(name))


class Jobs(Finder[JobHandle[Any]]):
    """Looks jobs up."""

    what = "job"

    def _list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        queue: str | None = None,
        superseded: bool | None = None,
        where: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Flow[Listed[JobHandle[Any]]]:
        """Return a page, newest first; the next one starts at the last id as `cursor`.

        With `superseded=False` jobs that were run again are left out: the newest of each chain
        speaks for it. `where` is a filter, `"state:failed tag.customer:42 age:>1h error:Timeout"`;
        a page of it may stop early, and has a `next`, the `cursor` of the next page, or None.
        """
        asked = page(JobState, state=state, kind=kind, cursor=cursor, limit=limit)
        asked |= {"queue": queue, "superseded": superseded}
        if where is None:
            found = yield from self._client.flow(jobs.listing, **asked)
            return found.of_each(self._handle)
        words = {name: asked.pop(name) for name in ("state", "kind", "queue")}
        sought = filters.parse(where) & filters.where(**words)
        found = yield from self._client.flow(search.page, sought, **asked)
        return found.of_each(self._handle)

    list, list_async = faces(_list)

    def _read(self, subject_id: str) -> Steps[JobHandle[Any]]:
        return self._handle((yield from jobs.get(subject_id)))

    def _within(self, low: str, high: str, *, most: int) -> Steps[Sequence[str]]:
        return (yield from jobs.within(low, high, most=most))

    def _handle(self, record: Job) -> JobHandle[Any]:
        type_ = self._type_of(record.kind, record.kind_version)
        return JobHandle(self._client, record.id, record, type_)
