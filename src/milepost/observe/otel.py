"""OpenTelemetry: spans by hooks, and metrics by the names that Prometheus has.

A submit is a producer's span. Its context is stored with the job, and every attempt is a
consumer's span below it; one that follows on a failed attempt links to that one's. Steps,
requests and jobs that a handler submits are below their attempt; gates and messages are below the
submit. Attributes are those of the semantic conventions for messaging, as far as they go.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from milepost.client import Client, traced
from milepost.errors import Invalid, MilepostError
from milepost.hooks import HookEvent
from milepost.observe.fresh import FreshMetrics
from milepost.observe.metrics import ALL_OTHERS, LABELS, Ended, StoreMetrics, WorkerMetrics, read
from milepost.outcome import Problem
from milepost.policy import message_of
from milepost.records import Claim
from milepost.store.tally import BOUNDS
from milepost.tracebacks import located

SYSTEM = "milepost"
BAD = ("retry", "fail", "expire", "raised", "undelivered")
"""Outcomes that make a span an error."""
FRESH_SECONDS = 1.0
"""How long figures are told before they are read again: all instruments of an export share them."""
Hook = Generator[None, HookEvent, None]


class Tracing:
    """The hooks that make spans."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def submit(self, event: HookEvent) -> Hook:
        """Span a submit, as a producer's."""
        current = trace.get_current_span().get_span_context().is_valid
        parent = None if current else _context(event.trace)
        told = {**_described(event, "submit", "send"), "messaging.batch.message_count": event.count}
        with self._span(f"submit {event.kind}", SpanKind.PRODUCER, told, parent) as span:
            done = yield
            _told(span, done)
            if done.job_id is not None:
                span.set_attribute("messaging.message.id", done.job_id)
            if done.run_id is not None:
                span.set_attribute("milepost.run.id", done.run_id)

    def attempt(self, event: HookEvent) -> Hook:
        """Span an attempt, as a consumer's: below the submit, with a link to the one before."""
        before = _span_context(event.link) if event.link else None
        links = [] if before is None else [Link(before)]
        told = _described(event, "process", "process")
        told["milepost.attempt"] = event.attempt
        name = f"process {event.kind}"
        with self._span(name, SpanKind.CONSUMER, told, _context(event.trace), links) as span:
            done = yield
            _told(span, done)

    def step(self, event: HookEvent) -> Hook:
        """Span a step, below its attempt."""
        told = {"milepost.step": event.name or "", "milepost.attempt": event.attempt}
        with self._span(f"step {event.name}", SpanKind.INTERNAL, told) as span:
            _told(span, (yield))

    def request(self, event: HookEvent) -> Hook:
        """Span a request that is sent, below its attempt."""
        method, _, host = (event.name or "").partition(" ")
        told = {"http.request.method": method, "server.address": host}
        with self._span(method, SpanKind.CLIENT, told) as span:
            done = yield
            _told(span, done)
            if (done.outcome or "").isdecimal():
                span.set_attribute("http.response.status_code", int(done.outcome or 0))

    def message(self, event: HookEvent) -> Hook:
        """Span the delivery of a message, below the submit whose end it tells."""
        told = _described(event, "deliver", "send")
        told["messaging.destination.name"] = event.name or ""
        name = f"deliver {event.name}"
        with self._span(name, SpanKind.PRODUCER, told, _context(event.trace)) as span:
            _told(span, (yield))

    def gate(self, event: HookEvent) -> Hook:
        """Span a move of a run, below the submit of the run."""
        told = {"milepost.run.id": event.run_id or "", "milepost.move": event.name or ""}
        name = f"run {event.name}"
        with self._span(name, SpanKind.INTERNAL, told, _context(event.trace)) as span:
            _told(span, (yield))

    @contextmanager
    def _span(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        parent: Context | None = None,
        links: Iterable[Link] = (),
    ) -> Iterator[Span]:
        """Make a span the current one: what is stored meanwhile belongs to it."""
        span = self._tracer.start_span(name, parent, kind, dict(attributes), list(links))
        found = span.get_span_context()
        token = attach(trace.set_span_in_context(span))
        try:
            if found.is_valid:
                with traced(
                    f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
                ):
                    yield span
            else:  # nobody has set up OpenTelemetry
                yield span
        finally:
            detach(token)
            span.end()


def _described(event: HookEvent, operation: str, kind: str) -> dict[str, Any]:
    told: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
        "messaging.destination.name": event.queue,
        "messaging.message.id": event.job_id,
        "milepost.kind": event.kind,
        "milepost.run.id": event.run_id,
        "milepost.tenant": event.tenant or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def _told(span: Span, done: HookEvent) -> None:
    """Write the outcome on a span."""
    if not span.is_recording():
        return
    span.set_attribute("milepost.outcome", done.outcome or "")
    told = ""
    if (error := done.error) is not None:
        problem = located(Problem(type=type(error).__qualname__, message=message_of(error)), error)
        told = problem.message
        span.set_attribute("error.type", problem.type)
        event = {"exception.type": problem.type, "exception.message": told}
        span.add_event("exception", {**event, "exception.stacktrace": problem.traceback or ""})
    if done.outcome in BAD:
        span.set_status(Status(StatusCode.ERROR, told))


def _context(traceparent: str | None) -> Context:
    """Make the context of a parent; without one, that of a new trace."""
    found = None if traceparent is None else _span_context(traceparent)
    parent = trace.NonRecordingSpan(found or trace.INVALID_SPAN_CONTEXT)
    return trace.set_span_in_context(parent, Context())


def _span_context(traceparent: str) -> trace.SpanContext | None:
    """Read a stored context, which was checked when it was stored."""
    try:
        _, trace_id, span_id, flags = traceparent.split("-")
        ids = int(trace_id, 16), int(span_id, 16)
        return trace.SpanContext(*ids, is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16)))
    except ValueError:
        return None


# Metrics


class OtelMetrics(WorkerMetrics):
    """Counts as for Prometheus; instruments read the counts, and histograms get every duration."""

    def __init__(self, meter: metrics.Meter, client: Client) -> None:
        super().__init__()
        self._client = client
        self._stored = FreshMetrics()
        self._read: dict[str, Any] = {}
        self._until = 0.0
        self._took, self._waited, self._settles = (
            meter.create_histogram(
                f"milepost_{name}_seconds", "s", explicit_bucket_boundaries_advisory=BOUNDS
            )
            for name in ("job_duration", "job_wait", "settle")
        )
        nothing = StoreMetrics({}, {}, {}, False, {}, (), {})
        for family in (*self.collect(), *nothing.collect()):
            if family.type == "counter":
                name = f"{family.name}_total"
                call = self._observed(family.name)
                meter.create_observable_counter(name, [call], description=family.documentation)
            elif family.type == "gauge":
                call = self._observed(family.name)
                meter.create_observable_gauge(family.name, [call], description=family.documentation)

    def started(self, claims: Sequence[Claim]) -> None:
        """Count the jobs of a claim, and how long each of them waited."""
        super().started(claims)
        for claim in claims:
            if claim.waited_us is not None:
                self._waited.record(max(0.0, claim.waited_us / 1e6), self._labels(claim))

    def settled(self, ended: Sequence[Ended]) -> None:
        """Count outcomes that were written: each with the seconds that its attempt took."""
        super().settled(ended)
        for claim, _, seconds in ended:
            if seconds is not None:
                self._took.record(seconds, self._labels(claim))

    def _labels(self, claim: Claim) -> dict[str, str]:
        """Name a queue and a kind that are counted by name; the others share their labels."""
        known = (claim.queue, claim.kind) in self._kinds
        return dict(zip(LABELS, (claim.queue, claim.kind) if known else ALL_OTHERS, strict=True))

    def wrote(self, seconds: float) -> None:
        """Count a settlement of a batch."""
        super().wrote(seconds)
        self._settles.record(seconds)

    def _observed(self, name: str) -> Any:
        def callback(_options: metrics.CallbackOptions) -> list[metrics.Observation]:
            family = self._families().get(name)
            samples = () if family is None else family.samples
            return [
                metrics.Observation(s.value, s.labels) for s in samples if s.name[-8:] != "_created"
            ]

        return callback

    def _families(self) -> dict[str, Any]:
        """Read the worker's counts and the store's, once for all instruments of an export."""
        now = time.monotonic()
        if now >= self._until:
            self._until = now + FRESH_SECONDS
            found = {family.name: family for family in self.collect()}
            try:
                stored = self._stored.get(lambda: self._client.run(read))
                found |= {family.name: family for family in stored.collect()}
            except MilepostError:  # it is away: its figures are left out
                pass
            self._read = found
        return self._read


def instrument(client: Client, tracer_provider: Any, meter_provider: Any) -> OtelMetrics | None:
    """Declare the hooks; give the metrics, if the program has set up any."""
    if client.hooks.links:
        raise Invalid("app.opentelemetry() was called before: every span would be made twice")
    _check_provider("tracer_provider", tracer_provider, "get_tracer")
    _check_provider("meter_provider", meter_provider, "get_meter")
    tracer = trace.get_tracer(SYSTEM, tracer_provider=tracer_provider)
    tracing = Tracing(tracer)
    client.hooks.links = True
    for point in ("submit", "attempt", "step", "request", "message", "gate"):
        client.hooks.add(point, getattr(tracing, point))
    provider = meter_provider or metrics.get_meter_provider()
    if not hasattr(provider, "force_flush"):  # it is the API's own, which keeps nothing
        return None
    return OtelMetrics(provider.get_meter(SYSTEM), client)


def _check_provider(name: str, given: Any, method: str) -> None:
    if given is not None and not hasattr(given, method):
        raise Invalid(f"{name}={given!r} has no {method}(); give one of OpenTelemetry's SDK")
