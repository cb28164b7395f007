"""A declared pipeline: starting runs of it, and asking where it has come to."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from milepost.client import caller
from milepost.codec import PROSE_BYTES, check_text
from milepost.context import Context
from milepost.declare import Host
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.faces import Flow, Stream, faces, refuse_in_loop, streams
from milepost.ingest.consolidate import Consolidator
from milepost.ingest.declaration import PLAN, Declaration
from milepost.ingest.fetch import Fetcher
from milepost.ingest.finalize import Finalizer
from milepost.ingest.handles import PipelineRun, Quarantine, Removals
from milepost.ingest.plan import Planner
from milepost.ingest.scan import Plan
from milepost.ingest.source import Source, Window
from milepost.ingest.watermark_file import check_place, holding, write_file
from milepost.lifecycle import RUN, Cause, JobState, RunState
from milepost.outcome import micros
from milepost.policy import Fail, Later
from milepost.specs import WatermarkWord
from milepost.store import pipelines, removals, tables, watermarks
from milepost.store.driver import Steps
from milepost.store.pipelines import REMAP, Gap, PipelineRunSummary, StartRequest
from milepost.store.watermarks import STALE, Mark, PipelineRow

S = TypeVar("S", bound=Source[Any, Any, Any])
PAGE = 500
BUSY_SECONDS = 60.0
"""How often a schedule looks whether the run that is in its way has ended."""
BUSY_FILE_SECONDS = 1.0
RESUMED = (Cause.INCOMPLETE, Cause.FINALIZER, Cause.POLICY)
"""Causes after which a run can go on: the records that it has read are there."""


class Stale(Fail):
    """A pipeline's watermark has grown older than it may."""


class Pipeline(Declaration[S]):
    """A declared pipeline: start runs of it, and ask where it has come to."""

    def __init__(self, host: Host, name: str, source: S, options: Mapping[str, Any]) -> None:
        super().__init__(host, name, source, options)
        self._planner = planner = Planner(self)
        self._finalizer = Finalizer(self)
        self._steps = [
            self._define(planner.plan, "plan"),
            self._define(Fetcher(self, planner).fetch, "fetch", poll_limit=1_000_000),
            self._define(Consolidator(self).consolidate, "consolidate"),
            self._define(self._finalizer.finalize, "finalize"),
        ]
        if self.options["watermark_file"]:
            check_place(self.options["watermark_file"])
            self._steps.append(self._define(self._write_watermark, "watermark", retries=100))
        self._define(self._stale, STALE.removeprefix("."), retries=0)
        self.opening = self._define(self._open, "start")
        """The job that a schedule submits: it starts a run."""

    # Starting

    def _start(
        self,
        *,
        full: bool = False,
        since: datetime | int | None = None,
        until: datetime | int | None = None,
        force: bool = False,
    ) -> Flow[PipelineRun]:
        """Start a run: full the first time, incremental after; durable once this returns.

        With `since` and `until` it is a backfill, which leaves the watermark alone. With `force`
        the records that a failed run has read are published, and its gap stays open. While a run is
        under way that does the same, it is the one that is returned; next to another one this is
        refused.
        """
        starting = self.starting(full=full, since=since, until=until, force=force)
        body = self.client.flow(starting)
        made = yield from self.client.submitting(self.name, body, lambda made: {"run_id": made})
        return self._handle(made)

    start, start_async = faces(_start)

    def _remap(self) -> Flow[PipelineRun]:
        """Make the target anew from landed records, without reading the source, as a run.

        Every landed record is mapped again and enriched with the rules of now, also those in
        quarantine; removed ones stay removed. While a remap is under way, it is the one that is
        returned; next to another run this is refused.
        """
        return self._handle((yield from self.client.flow(self.remapping())))

    remap, remap_async = faces(_remap)

    def remapping(self) -> Callable[[], Steps[str]]:
        """Answer with the operation that makes the run which maps every landed record again."""
        return self._starting(remap=True)

    def starting(
        self, *, full: bool = False, since: Any = None, until: Any = None, force: bool = False
    ) -> Callable[[], Steps[str]]:
        """Check the arguments of a start; answer with the operation that makes it."""
        if force:
            return self._forcing(full=full, since=since, until=until)
        if full and not (since is None and until is None):
            raise Invalid("full=True reads everything; leave out since= and until=, or full=")
        begin, end = (None if at is None else self.mark(at) for at in (since, until))
        if begin is not None and end is not None and begin >= end:
            raise Invalid(f"since={since} must be before until={until}")
        return self._starting(full=full, since=begin, until=end)

    def _starting(self, **asked: Any) -> Callable[[], Steps[str]]:
        options, new = self.options, self.new_run()
        within = options["fresh_within"]
        request = StartRequest(
            name=self.name,
            target=self.target.name,
            measure="time" if self.is_time else "sequence",
            overlap=self.span(options["overlap"]),
            margin=self.span(options["margin"]),
            queue=options["queue"],
            channel=options["channel"] or self.client.channel,
            fresh_us=None if within is None else micros(within),
            **asked,
        )
        work = [self.job(PLAN, new.id, None, 0, state=JobState.QUEUED)]
        return partial(pipelines.start, request, new, self.steps(), work)

    async def _open(self, ctx: Context, *, full: bool = False) -> str:  # noqa: ARG002 - the schedule's
        """Start a run at its time; one that did not end well is resumed first.

        Its window is closed before the next one opens: windows do not grow.
        """
        last = await self.client.run_async(self._latest)
        # A remap that failed has no window to be closed: the next run does not concern it.
        if last is not None and last.cause in RESUMED and last.mode != REMAP and not full:
            with suppress(Invalid, IllegalMove):
                return (await self._handle(last.run_id).resume_async()).id
        try:
            return (await self.start_async(full=full)).id
        except IllegalMove as error:
            last = await self.client.run_async(self._latest)
            # While a run is under way, the schedule waits for its end.
            if last is None or last.state in RUN.terminal:
                raise
            raise Later(BUSY_SECONDS, detail=str(error)) from error

    async def _stale(self, ctx: Context) -> None:  # noqa: ARG002 - every handler has one
        """Fail because the watermark is too old: as every failure, it is reported once."""
        row = await self.client.run_async(watermarks.find, self.name)
        raise Stale(
            f"Pipeline {self.name} is not fresh. Watermark {row.document()['lastUpdatedAt']}, "
            f"older than fresh_within={self.options['fresh_within']}."
        )

    async def _write_watermark(self, ctx: Context, *, run: str) -> None:  # noqa: ARG002 - a hook's
        """Write the watermark of now, again if it moved meanwhile: no older one stays."""
        place = self.options["watermark_file"] or ""
        with holding(place) as held:
            if not held:
                raise Later(BUSY_FILE_SECONDS, detail=f"another process writes to {place}")
            written = None
            while written != (row := await self.client.run_async(watermarks.find, self.name)):
                ctx.check()
                await self.client.call_async(partial(write_file, place, row.document()))
                written = row

    def _latest(self) -> Steps[PipelineRunSummary | None]:
        row = yield from self._find()
        return None if row is None else (yield from pipelines.latest(row.id))

    def _forcing(self, *, full: bool, since: Any, until: Any) -> Callable[[], Steps[str]]:
        if full or since is not None or until is not None:
            raise Invalid("force=True publishes the records of a failed run; it reads nothing new")

        def forced() -> Steps[str]:
            row = yield from watermarks.find(self.name)
            last = yield from pipelines.latest(row.id)
            if last is None or last.state == RunState.SUCCEEDED:
                raise IllegalMove(f"pipeline {self.name!r} has no failed run to force")
            return (yield from self._handle(last.run_id).forcing()())

        return forced

    def _run(self, run_id: str) -> Flow[PipelineRun]:
        """Return a run of this pipeline, or raise `NotFound`."""
        row = yield from self.client.flow(pipelines.get, run_id)
        if row.pipeline != self.name:
            raise NotFound(f"run {run_id} is one of pipeline {row.pipeline!r}")
        return self._handle(run_id)

    run, run_async = faces(_run)

    def _handle(self, run_id: str) -> PipelineRun:
        return PipelineRun(self.client, run_id, pipeline=self)

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
    def watermark_state(self) -> WatermarkWord:
        """Where the watermark stands in B's words, `NoWatermark` to `WatermarkAdvanced`; read now.

        A string. Runs that leave the watermark alone (backfills, replays, remaps) do not change it.
        """
        return self.client.run(self._watermark_state)

    async def watermark_state_async(self) -> WatermarkWord:
        """Read where the watermark stands, in B's words."""
        return await self.client.run_async(self._watermark_state)

    def _watermark_state(self) -> Steps[WatermarkWord]:
        row = yield from self._find()
        return (yield from watermarks.state(row))

    @property
    def row(self) -> PipelineRow | None:
        """The pipeline as the store knows it, read now; None before its first start."""
        return self.client.run(self._find)

    async def row_async(self) -> PipelineRow | None:
        """Read the pipeline as the store knows it."""
        return await self.client.run_async(self._find)

    def _find(self) -> Steps[PipelineRow | None]:
        try:
            return (yield from watermarks.find(self.name))
        except NotFound:
            return None

    @property
    def dataset_version(self) -> int:
        """A number that grows with every run that ended well, read now."""
        row = self.row
        return 0 if row is None else row.dataset_version

    @property
    def gaps(self) -> Sequence[Gap]:
        """Ranges that ended runs left unread, read now; the watermark stops before them."""
        row = self.row
        return [] if row is None else self.client.run(pipelines.gaps, row.id)

    @property
    def behind(self) -> int:
        """How many records were made with another mapping or older rules, counted now.

        The rules are those of the last run that ended well. A full run or a remap makes them anew.
        """
        return self.client.run(self._behind)

    async def behind_async(self) -> int:
        """Count the records that were made with another mapping or older rules."""
        return await self.client.run_async(self._behind)

    def _behind(self) -> Steps[int]:
        row = yield from self._find()
        if row is None or row.made_with is None:
            return 0
        made_with = self.fingerprint.made_with(row.rules_digest)
        return (yield from self.target.behind(row.id, made_with))

    @property
    def quarantine(self) -> Quarantine:
        """The records that could not be used."""
        return Quarantine(self.client, self.name, pipeline=self)

    @property
    def removals(self) -> Removals:
        """Records that a full run did not see and that wait for an operator's decision."""
        return Removals(self.client, self.name)

    def _override_watermark(self, to: datetime | int | None, *, reason: str) -> Flow[None]:
        """Set the watermark by hand, back or forth; the actor and the reason stay on the record."""
        check_text(reason, what="reason", most=PROSE_BYTES, blank=True)
        mark, actor = None if to is None else self.mark(to), caller().actor
        yield from self.client.flow(
            watermarks.override, self.name, mark, actor=actor, reason=reason
        )

    override_watermark, override_watermark_async = faces(_override_watermark)

    def plan(self, *, full: bool = False) -> Plan:
        """Count the source as the next run would, and show how it would be cut; nothing is kept."""
        refuse_in_loop("plan")
        return self.client.run_in_loop(self.plan_async(full=full))

    async def plan_async(self, *, full: bool = False) -> Plan:
        """Count the source as the next run would, and show how it would be cut; nothing is kept."""
        row = await self.row_async()
        start = None
        if row is not None and row.mark is not None and not full:
            start = Mark(row.measure).shown(row.mark - self.span(self.options["overlap"]))
        end = await self.calls.remote(self.source.upper_bound)
        window = Window(start, datetime.now(UTC) if end is None else end)
        return await self._planner.cut(window, is_full=start is None)

    def restore(self, run: PipelineRun) -> int:
        """Bring back the records that a run has removed; answer how many."""
        done = 0
        while some := self.client.run(self._restore, run.id):
            done += some
        return done

    def _restore(self, run_id: str) -> Steps[int]:
        row = yield from self.hold(run_id)
        statement = self.target.statement("restore")
        return (yield from removals.restore(row, statement=statement, most=PAGE))

    # Its table

    def _release(self, *, reason: str) -> Flow[str | None]:
        """Let another pipeline have the table, whichever has it now; answer which that was.

        The actor and the reason stay on the record. While a run writes to it this is refused.
        """
        return self.client.flow(self.releasing(reason=reason))

    release, release_async = faces(_release)

    def releasing(self, *, reason: str) -> Callable[[], Steps[str | None]]:
        """Answer with the operation that releases the table."""
        check_text(reason, what="reason", most=PROSE_BYTES)
        return partial(tables.release, self.target.name, actor=caller().actor, reason=reason)

    # Its records

    def _records(self) -> Stream[Any]:
        """Read the target: every record that is not removed, in the order of the keys."""
        after: Any = None
        while rows := (yield from self.client.flow(self.target.read, after=after, most=PAGE)):
            after = rows[-1][0]
            for row in rows:
                yield self.target.shown(row)

    records, records_async = streams(_records)

    def _count(self) -> Flow[int]:
        """Count the records of the target that are not removed."""
        return self.client.flow(self.target.count)

    count, count_async = faces(_count)
