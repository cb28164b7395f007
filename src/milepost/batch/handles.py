"""Handles of runs, and their look-up."""

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

import msgspec

from milepost.client import Client, caller, new_id
from milepost.errors import Invalid, JobFailed, NotFinished
from milepost.faces import Flow, Stream, Wait, faces, perform_async, streams
from milepost.lifecycle import RUN, Cause, JobState, RunState
from milepost.records import NewJob, NewRun, Run, RunError
from milepost.specs import RUN_VIEWS, Facts
from milepost.store import chains, failures, fanin, jobs, runs
from milepost.store.driver import Steps
from milepost.subjects import Finder, Subject, check_page, has_worker, page, patience

BATCH = 500
ETA_SHARE = 0.05
"""Below this share of the work a guess of the rest says nothing."""
HOLD_SECONDS = 3600.0
"""A run that resumes another is given up when it was not filled for this long (H-107)."""

Filler = Callable[[Run, Iterable[Any]], list[NewJob]]


class StepState(msgspec.Struct, frozen=True):
    """One step of a run: its jobs by state."""

    name: str
    counts: dict[str, int]
    gated: bool
    opened: bool
    role: str

    @property
    def ended(self) -> int:
        """How many of its jobs are final."""
        return sum(n for state, n in self.counts.items() if state in _FINAL)

    @property
    def total(self) -> int:
        """How many jobs it has so far."""
        return sum(self.counts.values())


_FINAL = {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED}


class RunHandle(Subject[Run]):
    """A run as it stood when it was last read; `refresh()` reads again."""

    what = "run"
    machine = RUN

    def __init__(
        self,
        client: Client,
        run_id: str,
        read: Run | chains.Picture | None = None,
        *,
        type_of: Callable[[str, int], Any] | None = None,
        fill: Filler | None = None,
    ) -> None:
        self._picture = read if isinstance(read, chains.Picture) else None
        super().__init__(client, run_id, read.run if isinstance(read, chains.Picture) else read)
        self._type_of = type_of
        self._fill = fill
        self._highest = 0.0

    # As it stood

    @property
    def picture(self) -> chains.Picture:
        """The run with its steps, read now if they never were."""
        if self._picture is None:
            self.refresh()
        return cast("chains.Picture", self._picture)

    @property
    def state(self) -> RunState:
        """Where it stood."""
        return self.record.state

    @property
    def steps(self) -> list[StepState]:
        """Its steps in order, each with its jobs by state."""
        picture = self.picture
        return [
            StepState(
                step.name,
                dict(sorted(picture.counts.get(step.number, {}).items())),
                step.gated,
                step.opened,
                step.role,
            )
            for step in picture.steps
            if step.role not in fanin.HOOKS.values()
        ]

    @property
    def current_step(self) -> str | None:
        """The step it is at; the reducer while it finalizes, None once it has ended."""
        if self.done:
            return None
        names = {step.number: step.name for step in self.picture.steps}
        if self.state == RunState.FINALIZING:
            return next(step.name for step in self.picture.steps if step.role == "reduce")
        return names.get(self.record.current_step)

    @property
    def progress(self) -> float:
        """How far it is, from 0 to 1; never less than this handle has said before.

        1.0 is said of a run that succeeded; one that failed or was cancelled stays where it was.
        """
        self._highest = max(self._highest, _share(self.picture))
        return self._highest

    @property
    def throughput(self) -> float | None:
        """How many of its jobs ended per second since it began; None before that."""
        seconds = self._seconds
        return sum(step.ended for step in self.steps) / seconds if seconds else None

    @property
    def eta(self) -> timedelta | None:
        """How long it will take at this pace; None while that cannot be known."""
        share, seconds = _share(self.picture), self._seconds
        if self.done or self.state == RunState.STOPPING or not seconds or share < ETA_SHARE:
            return None
        return timedelta(seconds=seconds * (1 - share) / share)

    @property
    def _seconds(self) -> float:
        record = self.record
        if record.started_at is None:
            return 0.0
        return max(
            0.0, ((record.finished_at or self.picture.at) - record.started_at).total_seconds()
        )

    @property
    def report(self) -> Any:
        """The reducer's return value; raises `NotFinished` or `JobFailed` when there is nothing."""
        record = self.record
        if record.state == RunState.SUCCEEDED:
            named = (record.kind, record.kind_version)
            return self._decoded(record.report, self._type_of(*named) if self._type_of else Any)
        if record.state in RUN.terminal:
            raise JobFailed(f"run {self.id} ({record.kind}) ended {record.state}: {self._why()}")
        raise NotFinished(f"run {self.id} ({record.kind}) is {record.state}; wait() for it")

    def _why(self) -> str:
        cause = self.record.cause or "cancelled"
        if cause == Cause.POLICY:
            cause = "; ".join([cause, *failures.breaches(self.picture.steps)])
        return f"{cause}, jobs that failed: {self.failed}; see run.errors"

    @property
    def failed(self) -> int:
        """How many of its jobs ended FAILED."""
        return sum(step.failed for step in self.picture.steps)

    @property
    def error_count(self) -> int:
        """How many of its jobs failed or were lost at least once, and batches in it that failed.

        Jobs that recovered are included.
        """
        return self.picture.errored

    def as_spec(self, spec: str) -> str:
        """Say where it stands in the words of spec A, B or C."""
        if spec not in RUN_VIEWS:
            raise Invalid(f"there is no spec {spec!r} of runs; there are {', '.join(RUN_VIEWS)}")
        record = self.record
        waits = any(found.get(JobState.RETRYING) for found in self.picture.counts.values())
        facts = Facts(record.state, phase=record.phase, retrying=waits)
        return RUN_VIEWS[spec].word(facts)

    # Reading

    def read(self) -> Steps[None]:
        """Read the row with its steps, and keep them."""
        self._picture = yield from chains.picture(self.id)
        self._record = self._picture.run

    def _ended(self) -> Steps[bool]:
        if (yield from runs.get(self.id)).state not in RUN.terminal:
            return False
        yield from self.read()
        return True

    def _served(self) -> Steps[bool]:
        queued = yield from jobs.listing(run_id=self.id, state=JobState.QUEUED.value, most=1)
        return (yield from has_worker(queued[0] if queued else None))

    @property
    def errors(self) -> list[RunError]:
        """Why its jobs failed, read now: the first hundred."""
        return self._client.run(failures.children, self.id, most=100)

    async def errors_async(self, limit: int = 100) -> list[RunError]:
        """Read why its jobs failed."""
        most = check_page(limit)
        return await self._client.run_async(failures.children, self.id, most=most)

    def _watch(self, timeout: float | None = None) -> Stream["RunHandle"]:
        """Yield it, read again, until it is final or `WaitTimeout` is raised."""
        for look in patience(timeout):
            yield (yield from self._refresh())
            if self.done:
                return
            yield from self._rest(look)
        raise self._too_late(timeout)

    watch, watch_async = streams(_watch, blocks=True)

    # Acting

    def _cancel(self, reason: str = "cancelled") -> Flow[RunState]:
        """Cancel it; answers with the state it is in now: STOPPING while a job still runs."""
        run, actor = self._client.flow, caller().actor
        yield from run(runs.cancel, self.id, reason=reason, actor=actor)
        yield from self._cancel_rest(self.id)
        if (yield from self._refresh()).record.depth is None:
            return self.state
        # From the root down: a batch that stops is the first to stop those within it.
        for branch in reversed((yield from run(runs.tree, self.id))):
            yield from self._cancel_rest(branch.id)
        return (yield from self._refresh()).state

    def _cancel_rest(self, run_id: str) -> Flow[None]:
        actor = caller().actor
        while (yield from self._client.flow(runs.cancel_rest, run_id, actor=actor, most=BATCH)):
            pass

    cancel, cancel_async = faces(_cancel)

    def _add(self, items: Iterable[Any]) -> Flow[int]:
        """Put items into a run that was started held, as jobs of its first step."""
        new = self._filled((yield from self._client.flow(runs.get, self.id)), items)
        for begin in range(0, len(new), BATCH):
            yield from self._client.flow(runs.add, self.id, new[begin : begin + BATCH])
        return len(new)

    add, add_async = faces(_add)

    def _filled(self, run: Run, items: Iterable[Any]) -> list[NewJob]:
        if self._fill is None:
            raise Invalid(
                f"run {self.id}: items are added by the handle that start(hold=True) gave, or "
                "that app.runs gives"
            )
        if not isinstance(items, Iterable):
            raise Invalid(f"run.add() takes a list or another iterable of items, not {items!r}")
        return self._fill(run, items)

    def _submit(self) -> Flow["RunHandle"]:
        """Say that everything is in: a run that was started held begins."""
        yield from self._client.flow(runs.submit, self.id, actor=caller().actor)
        return (yield from self._refresh())

    submit, submit_async = faces(_submit)

    def _resume(self) -> Flow["RunHandle"]:
        """Make a new run of the jobs that did not succeed; the others' results are read from here.

        Called again, at the same time or later, it returns the same run.
        """
        new = resuming((yield from self._client.flow(runs.get, self.id)))
        run_id = yield from self._client.flow(chains.resume, self.id, new)
        return (yield from self._refill(run_id))

    resume, resume_async = faces(_resume)

    async def refill_async(self, run_id: str) -> "RunHandle":
        """Put the jobs that did not succeed into a run that resumes this one, and let it begin."""
        return await perform_async(self._refill(run_id))

    def _refill(self, run_id: str) -> Flow["RunHandle"]:
        run, actor = self._client.flow, caller().actor
        for branch in (yield from run(runs.tree, run_id)):
            again = partial(chains.create_again, branch.resumes or self.id, branch.id)
            after: str | None = None
            while after := (yield from run(again, after=after, most=BATCH, actor=actor)):
                pass
        yield from run(chains.go_on, self.id, run_id, actor=actor)
        return RunHandle(self._client, run_id, type_of=self._type_of)


def _share(picture: chains.Picture) -> float:
    """Estimate how much is done: whole steps, and the share of the current one."""
    if picture.run.state == RunState.SUCCEEDED:
        return 1.0
    line = [step for step in picture.steps if step.role not in fanin.HOOKS.values()]
    if not line:
        return 0.0
    reducing = picture.run.state == RunState.FINALIZING
    at = next(
        (
            place
            for place, step in enumerate(line)
            if (step.role == "reduce" if reducing else step.number == picture.run.current_step)
        ),
        0,
    )
    step = line[at]
    done = step.succeeded + step.failed
    # A cancelled job was not done: a run that is stopped does not come nearer to its end by it.
    inside = done / (done + step.cancelled + step.open) if done else 0.0
    # The end itself is only reached with the last move.
    return min((at + inside) / len(line), 0.99)


def resuming(old: Run) -> NewRun:
    """Describe a run that is to go on where an ended one stopped."""
    hold_us = int(HOLD_SECONDS * 1_000_000)
    return chains.again_of(old, new_id=new_id(), actor=caller().actor, hold_us=hold_us)


class Runs(Finder[RunHandle]):
    """Looks runs up."""

    what = "run"

    def __init__(
        self, client: Client, type_of: Callable[[str, int], Any], fill: Filler | None = None
    ) -> None:
        super().__init__(client, type_of)
        self._fill = fill

    def _list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Flow[Sequence[RunHandle]]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = page(RunState, state=state, kind=kind, cursor=cursor, limit=limit)
        plain, awaited = self._client.run, self._client.run_async
        # Awaited, they come with their steps: a handle that reads them later blocks the event loop.
        found = yield Wait(
            partial(plain, runs.listing), partial(awaited, _with_steps), kwargs=where
        )
        return [self._handle(run) for run in found]

    list, list_async = faces(_list)

    def _counts(self) -> Flow[dict[str, dict[str, int]]]:
        """Count the runs of each batch by state."""
        return self._client.flow(chains.kinds)

    counts, counts_async = faces(_counts)

    def _read(self, subject_id: str) -> Steps[RunHandle]:
        return self._handle((yield from chains.picture(subject_id)))

    def _within(self, low: str, high: str, *, most: int) -> Steps[Sequence[str]]:
        return (yield from chains.within(low, high, most=most))

    def _handle(self, read: Run | chains.Picture) -> RunHandle:
        run_id = read.run.id if isinstance(read, chains.Picture) else read.id
        return RunHandle(self._client, run_id, read, type_of=self._type_of, fill=self._fill)


def _with_steps(**where: Any) -> Steps[list[chains.Picture]]:
    """Read a page of runs with their steps, in as many statements as one run takes."""
    return (yield from chains.pictures((yield from runs.listing(**where))))
