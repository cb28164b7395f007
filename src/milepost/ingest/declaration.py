"""What a pipeline is declared with, and what the jobs of its runs do."""

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from milepost.client import Client, caller, new_id
from milepost.codec import check_text
from milepost.config import Settings
from milepost.context import Context
from milepost.declare import Definition, Registry
from milepost.errors import IllegalMove, Invalid
from milepost.ingest.calls import Calls
from milepost.ingest.consolidate import Consolidator
from milepost.ingest.cut import Cutter, payload_of, text_of
from milepost.ingest.fetch import Lander, Landing, Reader
from milepost.ingest.finalise import Finaliser, counts, is_complete
from milepost.ingest.keys import axis_of, read
from milepost.ingest.mapping import Fingerprint, fields_of, raw_type, record_type
from milepost.ingest.plan import Plan
from milepost.ingest.recent import Recent
from milepost.ingest.source import (
    INTEGERS,
    Field,
    Identity,
    Partition,
    Source,
    Window,
    micros,
)
from milepost.ingest.target import DOCUMENT, Target
from milepost.lifecycle import JobState
from milepost.options import check_seconds
from milepost.outcome import micros as micros_in
from milepost.policy import Fail
from milepost.records import NewJob, NewRun, NewStep, Template
from milepost.store import pages, pipelines, tables, watermarks
from milepost.store.driver import Call, Steps
from milepost.store.pages import Place
from milepost.store.pipelines import REMAP, Planned
from milepost.store.watermarks import STALE, Mark, PipelineRunRow
from milepost.telemetry import Log

log = Log("milepost.pipeline")

S = TypeVar("S", bound=Source[Any, Any, Any])
T = TypeVar("T")

PLAN, FETCH, CONSOLIDATE, FINALISE = range(4)
FILLING = ("full", REMAP)
"""Runs after which the table holds whatever was landed."""
DAY = 86_400.0
PAGE = 500
NO_VERSION = ("version", None)


class Stale(Fail):
    """A pipeline's watermark has grown older than it may."""


class Host(Protocol):
    """What a pipeline needs of its app."""

    client: Client
    registry: Registry
    settings: Settings

    def define(
        self, function: Callable[..., Any], declared: Mapping[str, Any], *, what: str
    ) -> Definition:
        """Turn a function and the options of `@app.job` into a definition."""
        ...


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline is declared with."""

    key: Field
    version: Field | None = None
    partition_by: str
    partitions: int = 30
    overlap: float = 900
    margin: float = 0
    page: int = 30
    batch: int = 2000
    upsert: int = 100
    concurrency: int = 5
    consolidators: int = 4
    rate: str | None = None
    table: str | None = None
    mapping_version: int | str = 1
    max_window: float | None = None
    quarantine_limit: float = 0.05
    removal_limit: float = 0.2
    retries: int = 3
    retry_delay: float = 1.0
    poison_limit: int = 3
    backoff: str = "exponential"
    queue: str = "default"
    channel: str | None = None
    fresh_within: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        for name in ("key", "partition_by", "version"):
            given = getattr(self, name)
            if not (callable(given) and name != "partition_by") and (name, given) != NO_VERSION:
                check_text(given, what=name)
        if isinstance(self.mapping_version, bool) or not isinstance(self.mapping_version, int):
            check_text(self.mapping_version, what="mapping_version")
        check_text(self.queue, what="queue")
        if self.channel is not None:
            check_text(self.channel, what="channel")
        for name in ("partitions", "page", "batch", "upsert", "concurrency", "consolidators"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:  # noqa: PLR2004
                raise Invalid(f"{name}={value!r} must be a whole number from 1")
        for name in ("overlap", "margin", "max_window", "fresh_within"):
            check_seconds(name, getattr(self, name), zero=name in ("overlap", "margin"))
        for name in ("quarantine_limit", "removal_limit"):
            if not 0 <= getattr(self, name) <= 1:
                raise Invalid(f"{name}={getattr(self, name)!r} takes a share between 0 and 1")


class Declared(Generic[S]):
    """What a pipeline is made of: its source, its table, the kinds of its jobs and what they do."""

    def __init__(self, host: Host, name: str, source: S, options: Options) -> None:
        check_text(name, what="name")
        if not isinstance(source, Source):
            raise Invalid(f"pipeline {name!r}: {source!r} is no mp.Source; subclass it")
        self.name = name
        self.source = source
        self.options = options
        self._host = host
        record = record_type(source)
        self.target = Target(
            options.table or name.replace("-", "_"), key=options.key, record=record
        )
        if self.target.is_document:
            log.warning(
                "map() does not say what it returns, and its fields: all goes into one column",
                pipeline=name,
                column=DOCUMENT,
                hint="annotate it: def map(self, raw) -> YourRecord",
            )
        self.fingerprint = Fingerprint(record, version=options.mapping_version)
        self._axis = axis_of(self._key_type(record), source.bounds)
        self._calls = Calls(host.client, name, source, options.rate)
        self._mark = Mark("time")
        self._made()
        self._definitions = [
            self._define(self._plan, "plan"),
            self._define(self._fetch, "fetch", poll_limit=1_000_000),
            self._define(self._consolidate, "consolidate"),
            self._define(self._finalise, "finalise"),
        ]
        self._define(self._stale, STALE.removeprefix("."), retries=0)

    def _made(self) -> None:
        """Put together what the jobs use."""
        options, client = self.options, self._host.client
        self._cutter = Cutter(
            client,
            self.source,
            self._calls,
            self._axis,
            partitions=options.partitions,
            page=options.page,
        )
        lander = Lander(client, self.target, self.fingerprint)
        identity = Identity(options.key, options.version)
        landing = Landing(client, identity)
        self._reader = Reader(client, self.source, self._calls, lander, landing)
        self._consolidator = Consolidator(
            client,
            self.source,
            self._calls,
            self.target,
            identity,
            fingerprint=self.fingerprint,
            batch=options.batch,
            upsert=options.upsert,
            concurrency=options.concurrency,
        )
        recent = Recent(client, self.source, self._calls, self._axis, landing, page=options.page)
        self._finaliser = Finaliser(
            client,
            self.target,
            recent,
            identity,
            fingerprint=self.fingerprint,
            quarantine_limit=options.quarantine_limit,
            removal_limit=options.removal_limit,
        )

    def __repr__(self) -> str:
        return f"<pipeline {self.name}>"

    def _key_type(self, record: Any) -> Any:
        for type_ in (raw_type(self.source), record):
            fields = fields_of(type_)
            if fields is not None and self.options.partition_by in fields:
                return fields[self.options.partition_by]
        return None

    def _define(self, function: Callable[..., Any], step: str, **given: Any) -> Definition:
        options = self.options
        declared = {
            "name": f"{self.name}.{step}",
            "queue": options.queue,
            "retries": options.retries,
            "retry_delay": options.retry_delay,
            "backoff": options.backoff,
            "poison_limit": options.poison_limit,
            "max_delay": 60.0,
            "timeout": DAY,
            **given,
        }
        definition = self._host.define(function, declared, what=f"pipeline {self.name!r}")
        self._host.registry.add(definition)
        return definition

    @property
    def _client(self) -> Client:
        return self._host.client

    # What its runs are made of

    def new_run(self, **given: Any) -> NewRun:
        """Describe a run about to be made."""
        run_id = new_id()
        return NewRun(
            id=run_id,
            trace=_traced(run_id),
            kind=self.name,
            codec=self._client.codec.name,
            actor=caller().actor,
            queue=self.options.queue,
            channel=self.options.channel,
            **given,
        )

    def steps(self, *, first: int = PLAN) -> list[NewStep]:
        """Describe the steps for the store: what fan-in needs, pinned to the run."""
        names = ("plan", "fetch", "consolidate", "finalise")
        roles = ("plan", "partition", "consolidate", "reduce")
        return [
            NewStep(
                number=number,
                name=names[number],
                role=roles[number],
                **kind.pinned(),
                gated=number == CONSOLIDATE,
                # A failed plan ends a run at once; of the rest everything is tried: Collect.
                fail_fast=number == PLAN,
            )
            for number, kind in enumerate(self._definitions)
            if number >= first
        ]

    def job(
        self,
        step: int,
        run_id: str,
        payload: Any,
        ordinal: int,
        *,
        state: JobState = JobState.CREATED,
        rerun_of: str | None = None,
    ) -> NewJob:
        """Describe a job of a run."""
        template = Template(
            **self._definitions[step].pinned(),
            state=state.value,
            codec=self._client.codec.name,
            actor=caller().actor,
            run_id=run_id,
            step=step,
            rerun_of=rerun_of,
            trace=_traced(run_id),
        )
        data = None if payload is None else self._client.codec.encode(payload)
        return NewJob(new_id(), data, template, ordinal=ordinal)

    def consolidating(self, run_id: str) -> list[NewJob]:
        """Describe the jobs that consolidate: they share the work among them."""
        count = min(self.options.consolidators, self.options.partitions)
        return [self.job(CONSOLIDATE, run_id, None, place) for place in range(count)]

    # What its jobs do

    async def _plan(self, ctx: Context) -> int | None:
        """Fix the window and the rules, cut the source, and store every partition."""
        client, run_id = self._client, ctx.claim.run_id or ""
        row = await client.run_async(pipelines.get, run_id)
        if row.is_planned:
            return None
        await self._owned(self._prepare, run_id)
        if row.rules_digest is None:
            row = await self._fix(ctx, row)
        if row.mode == REMAP:
            return await self._list(ctx, row)
        plan = await self.scan(self.window(row), is_full=row.mode == "full")
        jobs = [self.job(FETCH, run_id, payload_of(part), part.ordinal) for part in plan.partitions]
        planned = Planned(
            jobs=[*jobs, *self.consolidating(run_id)],
            bounds=[
                (part.ordinal, text_of(part.low), text_of(part.high)) for part in plan.partitions
            ],
            counted=plan.counted,
            calls=plan.calls,
            text=plan.text(),
        )
        await client.run_async(pipelines.seal, ctx.claim, planned, actor="planner")
        return len(plan.partitions)

    async def _list(self, ctx: Context, row: PipelineRunRow) -> int:
        """Plan a run that makes records anew: list what was landed, for consolidation to take."""
        place: Place | None = await self._client.run_async(pages.listed, row.root_id)
        more = partial(pages.list_landed, root_id=row.root_id, pipeline_id=row.pipeline_id)
        while place is not None:
            ctx.check()
            place = await self._client.run_async(more, ctx.claim, place)
        listed = (await self._client.run_async(counts, row)).fetched
        jobs = self.consolidating(row.run_id)
        planned = Planned(jobs=jobs, bounds=[], counted=listed, calls=0, text="{}")
        await self._client.run_async(pipelines.seal, ctx.claim, planned, actor="planner")
        return listed

    async def _owned(self, operation: Callable[[str], Steps[T]], run_id: str) -> T:
        """Run an operation on the pipeline's own table; that it is not, no retry changes."""
        try:
            return await self._client.run_async(operation, run_id)
        except (IllegalMove, Invalid) as error:
            raise Fail(str(error)) from error

    def _prepare(self, run_id: str) -> Steps[None]:
        """Claim the table, and make it ready for records of this shape, before the first read."""
        row = yield from pipelines.get(run_id)
        table = self.target.name
        exists = bool((yield from self.target.known()))
        held = yield from tables.claim(row.pipeline_id, self.name, table, exists=exists)
        yield from self.target.prepare()
        is_filled = held.is_filled
        if held.is_new:
            if exists:
                yield Call(self.target.statement("vacate"))
            is_filled = yield from tables.begin(row.pipeline_id, table)
        if not is_filled and row.before_mark is not None and row.root_mode not in FILLING:
            raise IllegalMove(
                f"table {table!r} is new to pipeline {self.name!r} and lacks what it has read, "
                "and this run reads what changed since: fill it with start(full=True) or remap()"
            )

    def _hold(self, run_id: str) -> Steps[PipelineRunRow]:
        """Read what a run is about; its table is still the pipeline's, whatever was released."""
        row = yield from pipelines.get(run_id)
        yield from tables.hold(row.pipeline_id, self.name, self.target.name)
        return row

    def _fill(self, row: PipelineRunRow) -> Steps[None]:
        """Note when the table holds all that was landed; whether the run ends well, or not."""
        if row.root_mode in FILLING and (yield from is_complete(row)):
            left = yield from pages.unfinished(row.root_id)
            if not left:
                yield from tables.fill(row.pipeline_id, self.target.name)

    def _hold_ready(self, run_id: str) -> Steps[PipelineRunRow]:
        """Make the table ready for records of this shape: another program may have read them."""
        row = yield from self._hold(run_id)
        yield from self.target.prepare(create=False)
        return row

    async def _fix(self, ctx: Context, row: PipelineRunRow) -> PipelineRunRow:
        # What is made anew was read before, up to wherever that was.
        end = None if row.mode == REMAP else await self._upper_bound(row)
        rules = await self._calls.remote(self.source.rules)
        data = None if rules is None else self._client.codec.encode(rules)
        longest = self.options.max_window
        return await self._client.run_async(
            pipelines.fix,
            ctx.claim,
            end=None if end is None else self._marked(end),
            before=None
            if longest is None
            else micros_in(longest)
            if self._is_time
            else int(longest),
            rules=data,
            digest=hashlib.sha256(data or b"").hexdigest(),
        )

    async def _upper_bound(self, row: PipelineRunRow) -> Any:
        end = await self._calls.remote(self.source.upper_bound)
        # The store's clock says where times have come to; as a number, no sequence would reach it.
        if end is None and not self._is_time and row.end_mark is None:
            raise Fail(
                f"{type(self.source).__name__}.upper_bound() returned None: with measure = "
                '"sequence" it returns the number up to which everything can be read'
            )
        return end

    async def scan(self, window: Window, *, is_full: bool) -> Plan:
        """Cut what changed in a window into partitions."""
        return await self._cutter.cut(window, is_full=is_full)

    def window(self, row: PipelineRunRow) -> Window:
        """Say what a run reads."""
        mark = Mark(row.measure)
        begin, end = (
            None if at is None else mark.shown(at) for at in (row.start_mark, row.end_mark)
        )
        return Window(begin, end)

    async def _fetch(self, ctx: Context, low: Any, high: Any, estimate: int = 0) -> dict[str, int]:
        """Read one partition."""
        row = await self._owned(self._hold, ctx.claim.run_id or "")
        partition = Partition(
            read(low, self._axis),
            read(high, self._axis),
            ctx.claim.ordinal or 0,
            estimate,
            self.options.page,
        )
        window = self.window(row)
        split = partial(self._cutter.split, ctx, partition, window)
        return await self._reader.read(ctx, partition, row, window, split=split)

    async def _consolidate(self, ctx: Context) -> int:
        """Consolidate what nobody else works on."""
        row = await self._owned(self._hold_ready, ctx.claim.run_id or "")
        return await self._consolidator.consolidate(ctx, row)

    async def _finalise(self, ctx: Context) -> dict[str, Any]:
        """Remove what is gone, and report; the watermark moves with the run's last move."""
        row = await self._owned(self._hold, ctx.claim.run_id or "")
        await self._client.run_async(self._fill, row)
        await self._consolidator.note(ctx, "UpdatingRunMetadata")
        report = await self._finaliser.finalise(ctx, row)
        await self._consolidator.note(ctx, "AdvancingWatermark")
        return report

    async def _stale(self, ctx: Context) -> None:  # noqa: ARG002 - every handler has one
        """Say that nothing was read for too long; as every failure, it is told once."""
        row = await self._client.run_async(watermarks.find, self.name)
        raise Stale(
            f"Pipeline {self.name} is not fresh. Watermark {row.document()['lastUpdatedAt']}, "
            f"older than fresh_within={self.options.fresh_within}."
        )

    @property
    def _is_time(self) -> bool:
        """Whether the source is read by times: by a sequence, it says where that has come to."""
        told = getattr(self.source, "measure", "time")
        return str(told) == "time"

    def _marked(self, at: Any) -> int:
        """Turn a time into a mark, or a number of a sequence; neither is taken for the other."""
        if not self._is_time:
            if isinstance(at, bool) or not isinstance(at, int) or at not in INTEGERS:
                raise Invalid(f'{at!r} must be a whole number: the source has measure = "sequence"')
            return at
        if not isinstance(at, datetime):
            raise Invalid(
                f'{at!r} must be a datetime; a source of numbers has measure = "sequence"'
            )
        if at.tzinfo is None:
            raise Invalid(f"{at} needs a time zone: datetime(..., tzinfo=UTC)")
        return micros(at)


def _traced(run_id: str) -> str:
    """Name the trace of a run after it: whoever has one of the two has both."""
    plain = run_id.replace("-", "")
    return f"00-{plain}-{plain[16:]}-01"
