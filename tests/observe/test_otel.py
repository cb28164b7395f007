"""OpenTelemetry: one tree from a submit to its message, read back over the wire."""

import asyncio

import httpx2
import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

import milepost as mp
from milepost.observe import metrics as counts
from tests.support.collectors import collecting

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def collector():
    with collecting() as made:
        yield made


@pytest.fixture
def app(database):
    made = mp.App(database.url, request_allow="127.0.0.1")
    yield made
    made.close()


@pytest.fixture
def provider(collector):
    made = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")
    made.add_span_processor(BatchSpanProcessor(exporter))
    yield made
    made.shutdown()


def said(span):
    """Read the attributes of a span."""
    values = ((each.key, each.value) for each in span.attributes)
    return {key: getattr(value, value.WhichOneof("value")) for key, value in values}


def declared(app, collector):
    app.channel("orders", webhook=f"{collector.url}/hook", secrets=[SECRET])

    @app.job(retries=1, retry_delay=0, channel="orders")
    def convert(ctx: mp.Context, document: str) -> str:
        ctx.step("count", len, document)
        if ctx.attempt == 1:
            raise ConnectionError("away")
        app.request("GET", f"{collector.url}/partner")
        return document

    return convert


def submitted_over_http(app):
    async def post():
        transport = httpx2.ASGITransport(app.asgi(access="open"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            call = {"kind": "convert", "args": ["report"]}
            answer = await client.post("/v1/jobs", json=call, headers={"traceparent": TRACE})
        await app.close_async()
        return answer.json()["id"]

    return asyncio.run(post())


def test_a_trace_goes_from_an_http_submit_to_the_final_message(app, collector, provider):
    app.opentelemetry(tracer_provider=provider)
    declared(app, collector)
    job_id = submitted_over_http(app)
    app.drain(timeout=10)
    provider.force_flush()

    spans = collector.spans
    assert {span.trace_id.hex() for span in spans} == {TRACE.split("-")[1]}
    named = {}
    for span in spans:
        named.setdefault(span.name, []).append(span)
    [submit], [first, second] = named["submit convert"], named["process convert"]
    steps = named["step count"]
    [asked], [sending], [sent] = named["submit request"], named["process request"], named["GET"]
    [message] = named["deliver orders"]
    assert len(spans) == 9

    # One tree, below the caller's span.
    assert submit.parent_span_id.hex() == TRACE.split("-")[2]
    parents = [(first, submit), (second, submit), (steps[0], first), (steps[1], second)]
    parents += [(asked, second), (sending, asked), (sent, sending), (message, submit)]
    for child, parent in parents:
        assert child.parent_span_id == parent.span_id, (child.name, parent.name)
    assert not first.links
    assert [link.span_id for link in second.links] == [first.span_id]

    # As the conventions have it.
    kinds = [span.kind for span in (submit, first, steps[0], sent, message)]
    assert kinds == [
        Span.SPAN_KIND_PRODUCER,
        Span.SPAN_KIND_CONSUMER,
        Span.SPAN_KIND_INTERNAL,
        Span.SPAN_KIND_CLIENT,
        Span.SPAN_KIND_PRODUCER,
    ]
    told = said(first)
    assert told["messaging.system"] == "milepost"
    assert told["messaging.operation.type"] == "process"
    assert told["messaging.destination.name"] == "default"
    assert told["messaging.message.id"] == said(submit)["messaging.message.id"] == job_id
    assert (told["error.type"], told["milepost.outcome"]) == ("ConnectionError", "retry")
    assert (first.status.code, second.status.code) == (Status.STATUS_CODE_ERROR, 0)
    assert said(sent)["http.response.status_code"] == 200
    assert [said(step)["milepost.outcome"] for step in steps] == ["done", "recalled"]
    # The partner goes on below the span of the request itself.
    [headers] = collector.headers("/partner")
    assert headers["traceparent"].split("-")[2] == sent.span_id.hex()


async def test_an_asynchronous_handler_a_timeout_and_a_run_are_in_their_traces(
    app, collector, provider
):
    app.opentelemetry(tracer_provider=provider)

    @app.job(retries=1, retry_delay=0, timeout=0.2)
    async def slow(ctx: mp.Context) -> None:
        if ctx.attempt == 1:
            await asyncio.sleep(60)

    batch = app.batch("nightly")

    @batch.step
    async def write():
        yield 1
        yield 2

    @batch.step
    async def send(number: int) -> None: ...

    with provider.get_tracer("test").start_as_current_span("caller"):
        await slow.submit_async()
        await batch.start_async()
    await app.drain_async(timeout=10)
    await app.close_async()
    await asyncio.to_thread(provider.force_flush)
    spans = {}
    for span in collector.spans:
        spans.setdefault(span.name, []).append(span)
    assert len({span.trace_id for each in spans.values() for span in each}) == 1
    first, second = spans["process slow"]
    assert [link.span_id for link in second.links] == [first.span_id]
    [start], [gate] = spans["submit nightly"], spans["run advance"]
    assert gate.parent_span_id == start.span_id
    jobs = [*spans["process nightly.write"], *spans["process nightly.send"]]
    assert {span.parent_span_id for span in jobs} == {start.span_id}
    assert len(jobs) == 3


def test_what_is_not_sampled_is_not_sent_and_metrics_have_the_same_names(app, collector):
    provider = TracerProvider(sampler=TraceIdRatioBased(0))
    exporter = OTLPSpanExporter(endpoint=f"{collector.url}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=f"{collector.url}/v1/metrics"), export_interval_millis=1e9
    )
    meters = MeterProvider([reader])
    app.opentelemetry(tracer_provider=provider, meter_provider=meters)

    @app.job
    def convert() -> None: ...

    job = convert.submit()
    app.drain()
    provider.shutdown()
    meters.shutdown()
    assert not int(job.refresh().record.trace[-2:], 16) & 1
    assert collector.spans == []
    assert collector.metrics >= {
        "milepost_jobs_started_total",
        "milepost_jobs_ended_total",
        "milepost_job_duration_seconds",
        "milepost_job_wait_seconds",
        "milepost_settle_seconds",
        "milepost_lease_losses_total",
        "milepost_jobs",
        "milepost_queue_oldest_seconds",
    }


def test_without_a_provider_nothing_is_stored(app):
    app.opentelemetry()

    @app.job
    def convert() -> None: ...

    job = convert.submit()
    app.drain()
    assert job.refresh().record.trace is None
    assert app.metrics is None


def test_it_is_set_up_once_and_with_providers(app):
    with pytest.raises(mp.Invalid, match="tracer_provider=5 has no get_tracer"):
        app.opentelemetry(tracer_provider=5)
    with pytest.raises(mp.Invalid, match="meter_provider='x' has no get_meter"):
        app.opentelemetry(meter_provider="x")
    spans, traces = InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    app.opentelemetry(tracer_provider=traces)
    with pytest.raises(mp.Invalid, match=r"opentelemetry\(\) was called before"):
        app.opentelemetry(tracer_provider=traces)

    @app.job
    def convert() -> None: ...

    convert.submit()
    app.drain()
    assert [span.name for span in spans.get_finished_spans()] == [
        "submit convert",
        "process convert",
    ]


def test_spans_show_no_secrets_and_histograms_have_bounded_labels(app, monkeypatch):
    monkeypatch.setattr(counts, "NAMES_MOST", 3)
    spans, reader, traces = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    app.opentelemetry(tracer_provider=traces, meter_provider=MeterProvider([reader]))

    secret = "hunter2"

    @app.job(retries=0)
    def convert() -> None:
        raise ValueError(f"refused: postgres://me:{secret}@host/db, token={secret}")

    for number in range(6):
        convert.options(queue=f"q{number}").submit()
    app.drain()
    [one, *_] = [span for span in spans.get_finished_spans() if span.name == "process convert"]
    assert one.attributes["error.type"] == "ValueError"
    [event] = one.events
    assert event.name == "exception"
    assert "in convert" in event.attributes["exception.stacktrace"]
    assert "refused: postgres://me:[redacted]@host/db" in one.status.description
    assert "hunter2" not in one.to_json()
    [scope] = [s for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics]
    queues = {
        metric.name: {point.attributes["queue"] for point in metric.data.data_points}
        for metric in scope.metrics
        if metric.name in ("milepost_job_wait_seconds", "milepost_job_duration_seconds")
    }
    assert len(queues) == 2
    assert all(len(found) == 3 and "(others)" in found for found in queues.values())
