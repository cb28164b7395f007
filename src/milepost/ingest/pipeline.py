"""A declared pipeline: starting runs of it, and asking where it has come to."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from milepost.client import caller
from milepost.codec import PROSE_BYTES, check_text
from milepost.context import Context
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.faces import refuse_in_loop
from milepost.ingest.declaration import PLAN, Declared, Host, Options
from milepost.ingest.handles import PipelineRun, Quarantine, Removals
from milepost.ingest.plan import Plan
from milepost.ingest.source import Source, Window
from milepost.lifecycle import RUN, Cause, JobState, RunState
from milepost.outcome import micros as micros_in
from milepost.policy import Later
from milepost.records import NewJob, NewRun
from milepost.store import pipelines, removals, tables, watermarks
from milepost.store.driver import Steps
from milepost.store.pipelines import REMAP, Asked, Gap
from milepost.store.watermarks import Mark, PipelineRow

S = TypeVar("S", bound=Source[Any, Any, Any])
PAGE = 500
BUSY_SECONDS = 60.0
"""How often a schedule looks whether the run that is in its way has ended."""
RESUMED = (Cause.INCOMPLETE, Cause.FINALISER, Cause.POLICY)
"""Causes after which a run can go on: what it has read is there."""


class Pipeline(Declared[S]):
    """A declared pipeline: start runs of it, and ask where it has come to."""

    def __init__(self, host: Host, name: str, source: S, options: Options) -> None:
        super().__init__(host, name, source, options)
        self.opening = self._define(self._open, "start")
        """What a schedule submits: a job that starts a run."""

    # Starting

    def start(
        self,
        *,
        full: bool = False,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        force: bool = False,
    ) -> PipelineRun:
        """Start a run: full the first time, incremental after; durable once this returns.

        With `since` and `until` it is a backfill, which leaves the watermark alone. With `force`
        what a run that failed has read is published, and its gap stays open. While a run is under
        way that does what was asked for, it is the one that is returned; beside another one this is
        refused.
        """
        if force:
            return self._handle(
                self._client.run(self._forcing(full=full, since=since, until=until))
            )
        asked, new, jobs = self._asked(full=full, since=since, until=until)
        started = self._client.run(pipelines.start, asked, new, self.steps(), jobs)
        return self._handle(started.run_id)

    async def start_async(
        self,
        *,
        full: bool = False,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        force: bool = False,
    ) -> PipelineRun:
        """Start a run: full the first time, incremental after; durable once this returns."""
        if force:
            forced = self._forcing(full=full, since=since, until=until)
            return self._handle(await self._client.run_async(forced))
        asked, new, jobs = self._asked(full=full, since=since, until=until)
        started = await self._client.run_async(pipelines.start, asked, new, self.steps(), jobs)
        return self._handle(started.run_id)

    def remap(self) -> PipelineRun:
        """Make the target anew from what was landed, without reading the source, as a run.

        Every landed record is mapped again and enriched with the rules of now, also those in
        quarantine; what was removed stays removed. While a remap is under way, it is the one that
        is returned; beside another run this is refused.
        """
        return self._handle(self._client.run(self.remapping()))

    async def remap_async(self) -> PipelineRun:
        """Make the target anew from what was landed, without reading the source, as a run."""
        return self._handle(await self._client.run_async(self.remapping()))

    def remapping(self) -> Callable[[], Steps[str]]:
        """Answer with the operation that makes the run which maps everything landed again."""
        return self._started(*self._asked(remap=True))

    def starting(
        self, *, full: bool = False, since: Any = None, until: Any = None, force: bool = False
    ) -> Callable[[], Steps[str]]:
        """Check what a start asks for; answer with the operation that makes it, once or again."""
        if force:
            return self._forcing(full=full, since=since, until=until)
        return self._started(*self._asked(full=full, since=since, until=until))

    def _started(self, asked: Asked, new: NewRun, work: list[NewJob]) -> Callable[[], Steps[str]]:
        def started() -> Steps[str]:
            found = yield from pipelines.start(asked, new, self.steps(), work)
            return found.run_id

        return started

    def _asked(
        self, *, full: bool = False, since: Any = None, until: Any = None, remap: bool = False
    ) -> tuple[Asked, NewRun, list[NewJob]]:
        if full and not (since is None and until is None):
            raise Invalid("full=True reads everything; leave out since= and until=, or full=")
        begin, end = (None if at is None else self._marked(at) for at in (since, until))
        if begin is not None and end is not None and begin >= end:
            raise Invalid(f"since={since} must be before until={until}")
        measure = "time" if self._is_time else "sequence"
        overlap, margin = (
            micros_in(value) if measure == "time" else int(value)
            for value in (self.options.overlap, self.options.margin)
        )
        within = self.options.fresh_within
        asked = Asked(
            name=self.name,
            target=self.target.name,
            measure=measure,
            full=full,
            remap=remap,
            since=begin,
            until=end,
            overlap=overlap,
            margin=margin,
            queue=self.options.queue,
            channel=self.options.channel,
            fresh_us=None if within is None else micros_in(within),
        )
        new = self.new_run()
        return asked, new, [self.job(PLAN, new.id, None, 0, state=JobState.QUEUED)]

    async def _open(self, ctx: Context, *, full: bool = False) -> str:  # noqa: ARG002 - the schedule's
        """Start a run at its time; one that did not end well is resumed first.

        Its window is closed before the next one opens: windows do not grow (H-76).
        """
        row = await self.row_async()
        last = None if row is None else await self._client.run_async(pipelines.latest, row.id)
        # A remap that failed has no window to be closed: what comes next is not its business.
        if last is not None and last.cause in RESUMED and last.mode != REMAP and not full:
            with suppress(Invalid, IllegalMove):
                return (await self._handle(last.run_id).resume_async()).id
        try:
            return (await self.start_async(full=full)).id
        except IllegalMove as error:
            if not await self._is_busy():
                raise
            raise Later(BUSY_SECONDS, detail=str(error)) from error

    async def _is_busy(self) -> bool:
        """Tell whether a run is under way: a schedule waits for its end."""
        row = await self.row_async()
        last = None if row is None else await self._client.run_async(pipelines.latest, row.id)
        return last is not None and last.state not in RUN.terminal

    def _forcing(self, *, full: bool, since: Any, until: Any) -> Callable[[], Steps[str]]:
        if full or since is not None or until is not None:
            raise Invalid("force=True publishes what a failed run has read; it reads nothing new")

        def forced() -> Steps[str]:
            row = yield from watermarks.find(self.name)
            last = yield from pipelines.latest(row.id)
            if last is None or last.state == RunState.SUCCEEDED:
                raise IllegalMove(f"pipeline {self.name!r} has no failed run to force")
            return (yield from self._handle(last.run_id).forcing()())

        return forced

    def run(self, run_id: str) -> PipelineRun:
        """Return a run of this pipeline, or raise `NotFound`."""
        handle = self._handle(run_id)
        if handle.about.pipeline != self.name:
            raise NotFound(f"run {run_id} is one of pipeline {handle.about.pipeline!r}")
        return handle

    async def run_async(self, run_id: str) -> PipelineRun:
        """Return a run of this pipeline, or raise `NotFound`."""
        about = await self._client.run_async(pipelines.get, run_id)
        if about.pipeline != self.name:
            raise NotFound(f"run {run_id} is one of pipeline {about.pipeline!r}")
        return self._handle(run_id)

    def _handle(self, run_id: str) -> PipelineRun:
        return PipelineRun(self._client, run_id, pipeline=self)

    # Where it has come to

    @property
    def watermark(self) -> datetime | int | None:
        """Up to where everything was read, read now; None before a first run has ended well."""
        row = self.row
        return None if row is None else row.watermark

    async def watermark_async(self) -> datetime | int | None:
        """Read up to where everything was read."""
        row = await self.row_async()
        return None if row is None else row.watermark

    @property
    def row(self) -> PipelineRow | None:
        """What the store knows of it, read now; None before its first start."""
        try:
            return self._client.run(watermarks.find, self.name)
        except NotFound:
            return None

    async def row_async(self) -> PipelineRow | None:
        """Read what the store knows of it."""
        try:
            return await self._client.run_async(watermarks.find, self.name)
        except NotFound:
            return None

    @property
    def dataset_version(self) -> int:
        """A number that grows with every run that ended well, read now (H-85)."""
        row = self.row
        return 0 if row is None else row.dataset_version

    @property
    def gaps(self) -> Sequence[Gap]:
        """What runs that ended left unread, read now; the watermark does not pass it (H-74)."""
        row = self.row
        return [] if row is None else self._client.run(pipelines.gaps, row.id)

    @property
    def behind(self) -> int:
        """How many records were made with another mapping or older rules, counted now.

        The rules are those of the last run that ended well. A full run or a remap makes them anew.
        """
        return self._client.run(self._behind)

    async def behind_async(self) -> int:
        """Count the records that were made with another mapping or older rules."""
        return await self._client.run_async(self._behind)

    def _behind(self) -> Steps[int]:
        found = [row for row in (yield from watermarks.listing()) if row.name == self.name]
        if not found or found[0].made_with is None:
            return 0
        row, made_with = found[0], self.fingerprint.made_with(found[0].rules_digest)
        return (yield from self.target.behind(row.id, made_with))

    @property
    def quarantine(self) -> Quarantine:
        """The records that could not be used."""
        return Quarantine(self._client, self.name, pipeline=self)

    @property
    def removals(self) -> Removals:
        """Records that a full run did not see and that wait for an operator's decision."""
        return Removals(self._client, self.name)

    def override_watermark(self, to: datetime | int | None, *, reason: str) -> None:
        """Set the watermark by hand, back or forth; who did it and why stays on the record."""
        check_text(reason, what="reason", most=PROSE_BYTES, blank=True)
        mark = None if to is None else self._marked(to)
        self._client.run(watermarks.override, self.name, mark, actor=caller().actor, reason=reason)

    async def override_watermark_async(self, to: datetime | int | None, *, reason: str) -> None:
        """Set the watermark by hand, back or forth; who did it and why stays on the record."""
        check_text(reason, what="reason", most=PROSE_BYTES, blank=True)
        mark = None if to is None else self._marked(to)
        await self._client.run_async(
            watermarks.override, self.name, mark, actor=caller().actor, reason=reason
        )

    def plan(self, *, full: bool = False) -> Plan:
        """Count the source as the next run would, and show how it would be cut; nothing is kept."""
        refuse_in_loop("plan")
        return asyncio.run(self._plan_and_close(full=full))

    async def _plan_and_close(self, *, full: bool) -> Plan:
        try:
            return await self.plan_async(full=full)
        finally:
            await self._client.close_async()

    async def plan_async(self, *, full: bool = False) -> Plan:
        """Count the source as the next run would, and show how it would be cut; nothing is kept."""
        row = await self.row_async()
        start = None
        if row is not None and row.mark is not None and not full:
            start = Mark(row.measure).shown(row.mark - self._overlap)
        end = await self._calls.remote(self.source.upper_bound)
        window = Window(start, datetime.now(UTC) if end is None else end)
        return await self.scan(window, is_full=start is None)

    @property
    def _overlap(self) -> int:
        return micros_in(self.options.overlap) if self._is_time else int(self.options.overlap)

    def restore(self, run: PipelineRun) -> int:
        """Bring back what a run has removed; answer with how many records that were."""
        done = 0
        while some := self._client.run(self._restore, run.id):
            done += some
        return done

    def _restore(self, run_id: str) -> Steps[int]:
        row = yield from self._hold(run_id)
        return (
            yield from removals.restore(
                root_id=row.root_id,
                pipeline_id=row.pipeline_id,
                statement=self.target.statement("restore"),
                most=PAGE,
            )
        )

    # Its table

    def release(self, *, reason: str) -> str | None:
        """Let another pipeline have the table, whichever has it now; answer which that was.

        Who did it and why stays on the record. While a run writes to it this is refused.
        """
        return self._client.run(self.releasing(reason=reason))

    async def release_async(self, *, reason: str) -> str | None:
        """Let another pipeline have the table, whichever has it now; answer which that was."""
        return await self._client.run_async(self.releasing(reason=reason))

    def releasing(self, *, reason: str) -> Callable[[], Steps[str | None]]:
        """Answer with the operation that releases the table."""
        check_text(reason, what="reason", most=PROSE_BYTES)
        return partial(tables.release, self.target.name, actor=caller().actor, reason=reason)

    # What it keeps

    def records(self) -> Iterator[Any]:
        """Read the target: every record that is not removed, in the order of the keys."""
        after: Any = None
        while rows := self._client.run(self.target.read, after=after, most=PAGE):
            after = rows[-1][0]
            yield from (self.target.shown(row) for row in rows)

    async def records_async(self) -> AsyncIterator[Any]:
        """Read the target: every record that is not removed, in the order of the keys."""
        after: Any = None
        while rows := await self._client.run_async(self.target.read, after=after, most=PAGE):
            after = rows[-1][0]
            for row in rows:
                yield self.target.shown(row)

    def count(self) -> int:
        """Count the records of the target that are not removed."""
        return self._client.run(self.target.count)

    async def count_async(self) -> int:
        """Count the records of the target that are not removed."""
        return await self._client.run_async(self.target.count)
