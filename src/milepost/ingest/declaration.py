"""The declaration of a pipeline: its options, its table, its runs and their jobs."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

from milepost.client import Client, caller, new_id
from milepost.codec import check_text
from milepost.context import Context
from milepost.declare import Definition, Host
from milepost.errors import IllegalMove, Invalid
from milepost.ingest.calls import Calls
from milepost.ingest.keys import axis_of
from milepost.ingest.landing import Landing
from milepost.ingest.mapping import Fingerprint, fields_of, raw_type, record_type
from milepost.ingest.options import with_defaults
from milepost.ingest.source import INTEGERS, Source, micros
from milepost.ingest.target import DOCUMENT, Target
from milepost.lifecycle import JobState
from milepost.outcome import micros as micros_in
from milepost.policy import Fail
from milepost.records import NewJob, NewRun, NewStep, Template
from milepost.store import jobs, pipelines, tables
from milepost.store.driver import Call, Steps
from milepost.store.pipelines import REMAP
from milepost.store.watermarks import PipelineRunRow
from milepost.telemetry import Log

log = Log("milepost.pipeline")

S = TypeVar("S", bound=Source[Any, Any, Any])
T = TypeVar("T")

STEPS = ("plan", "fetch", "consolidate", "finalize", "watermark")
ROLES = ("plan", "partition", "consolidate", "reduce", "on_success")
PLAN, FETCH, CONSOLIDATE, FINALIZE = range(4)
FILLING = ("full", REMAP)
"""Modes of runs after which the table holds every landed record."""
DAY = 86_400.0
PASSED = {"queue", "retries", "retry_delay", "poison_limit"}
"""Options that its jobs have."""


class Declaration(Generic[S]):
    """A pipeline as it is declared: everything that the jobs of its runs share."""

    def __init__(self, host: Host, name: str, source: S, options: Mapping[str, Any]) -> None:
        check_text(name, what="name")
        if not isinstance(source, Source):
            raise Invalid(f"pipeline {name!r}: {source!r} is no mp.Source; subclass it")
        self.name = name
        self.source = source
        self.options = options = with_defaults(options, what=f"pipeline {name!r}")
        self._host = host
        record = record_type(source)
        self.target = Target(
            options["table"] or name.replace("-", "_"), key=options["key"], record=record
        )
        if self.target.is_document:
            log.warning(
                "map() has no return type with fields: records go into one column",
                pipeline=name,
                column=DOCUMENT,
                hint="annotate it: def map(self, raw) -> YourRecord",
            )
        self.fingerprint = Fingerprint(record, version=options["mapping_version"])
        self.landing = Landing(host.client, options["key"], options["version"])
        self.calls = Calls(host.client, name, source, options["rate"])
        self.axis = axis_of(self._key_type(record), source.bounds)
        self._steps: list[Definition] = []

    def __repr__(self) -> str:
        return f"<pipeline {self.name}>"

    def _key_type(self, record: Any) -> Any:
        for type_ in (raw_type(self.source), record):
            fields = fields_of(type_)
            if fields is not None and self.options["partition_by"] in fields:
                return fields[self.options["partition_by"]]
        return None

    def _define(self, function: Callable[..., Any], step: str, **given: Any) -> Definition:
        declared = {
            "name": f"{self.name}.{step}",
            **{name: value for name, value in self.options.items() if name in PASSED},
            "backoff": "exponential",
            "max_delay": 60.0,
            "timeout": DAY,
            **given,
        }
        definition = self._host.define(function, declared, what=f"pipeline {self.name!r}")
        self._host.registry.add(definition)
        return definition

    @property
    def client(self) -> Client:
        """The way to the store."""
        return self._host.client

    # Its runs and jobs

    def new_run(self, **given: Any) -> NewRun:
        """Describe a run about to be made."""
        run_id = new_id()
        return NewRun(
            id=run_id,
            trace=_trace(run_id),
            kind=self.name,
            codec=self.client.codec.name,
            actor=caller().actor,
            queue=self.options["queue"],
            channel=self.options["channel"] or self.client.channel,
            **given,
        )

    def steps(self, *, first: int = PLAN) -> list[NewStep]:
        """Describe the steps for the store: all that fan-in needs, pinned to the run."""
        return [
            NewStep(
                number=number,
                name=STEPS[number],
                role=ROLES[number],
                **kind.pinned(),
                gated=number == CONSOLIDATE,
                # A failed plan ends a run at once; of the rest everything is tried: Collect.
                fail_fast=number == PLAN,
                channel=self.options["messages"] if number in (FETCH, CONSOLIDATE) else None,
            )
            for number, kind in enumerate(self._steps)
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
            **self._steps[step].pinned(),
            state=state.value,
            codec=self.client.codec.name,
            actor=caller().actor,
            run_id=run_id,
            step=step,
            rerun_of=rerun_of,
            channel=self.options["messages"] if step == FETCH else None,
            trace=_trace(run_id),
        )
        data = None if payload is None else self.client.codec.encode(payload)
        return NewJob(new_id(), data, template, ordinal=ordinal)

    def consolidating(self, run_id: str) -> list[NewJob]:
        """Describe the jobs that consolidate: they share the work among them."""
        count = min(self.options["consolidators"], self.options["partitions"])
        return [self.job(CONSOLIDATE, run_id, None, place) for place in range(count)]

    async def note(self, ctx: Context, phase: str) -> None:
        """Record a phase in B's word; a lease that was lost is noticed here."""
        await self.client.run_async(jobs.note, ctx.claim, phase=phase, alone=True)

    # Its table

    async def owning(self, operation: Callable[[str], Steps[T]], run_id: str | None) -> T:
        """Run an operation on the pipeline's own table; that it is not, no retry changes."""
        try:
            return await self.client.run_async(operation, run_id or "")
        except (IllegalMove, Invalid) as error:
            raise Fail(str(error)) from error

    def prepare(self, run_id: str) -> Steps[None]:
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
                f"table {table!r} is new to pipeline {self.name!r} and lacks its records, "
                "and this run reads changes since then: fill it with start(full=True) or remap()"
            )

    def hold(self, run_id: str) -> Steps[PipelineRunRow]:
        """Read a run; its table is still the pipeline's, even if it was released meanwhile."""
        row = yield from pipelines.get(run_id)
        yield from tables.hold(row.pipeline_id, self.name, self.target.name)
        return row

    # Its marks

    @property
    def is_time(self) -> bool:
        """Whether the source is read by times: by a sequence, it says where that has come to."""
        return str(getattr(self.source, "measure", "time")) == "time"

    def mark(self, at: Any) -> int:
        """Turn a time into a mark, or a number of a sequence; neither is taken for the other."""
        if not self.is_time:
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

    def span(self, length: float) -> int:
        """Turn seconds, or numbers of a sequence, into a distance between marks."""
        return micros_in(length) if self.is_time else int(length)


def _trace(run_id: str) -> str:
    """Name the trace of a run after it: either of the two leads to the other."""
    plain = run_id.replace("-", "")
    return f"00-{plain}-{plain[16:]}-01"
