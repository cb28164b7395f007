"""For monitoring: /metrics for Prometheus, /livez and /readyz for load balancers.

No label of a metric grows with what callers send.
"""

from collections.abc import Iterator, Mapping

import msgspec
from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from milepost.store import chains, jobs, retention, workers
from milepost.store.driver import Steps
from milepost.web.call import ReadCall
from milepost.web.problems import problems
from milepost.web.route import Route

router = APIRouter(route_class=Route)

NAMES_MOST = 200
"""How many queues or batches have a label of their own; the rest share one."""

OTHERS = "(others)"
MEDIA = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Counts = Mapping[str, Mapping[str, int]]


class HttpMetrics:
    """Counts this process's requests, by route and not by path."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter(
            "milepost_http_requests", "Requests answered.", labels, registry=self.registry
        )
        self._seconds = Histogram(
            "milepost_http_request_seconds",
            "How long until the answer began.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        known = method if method in ("GET", "POST", "PUT", "DELETE", "HEAD") else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)


class StoreMetrics(msgspec.Struct, frozen=True, eq=False):
    """Counts of the store by queue, batch and state; a registry knows it by its identity."""

    jobs: Counts
    runs: Counts
    workers: Mapping[str, int]
    weeks_full: bool

    def collect(self) -> Iterator[Metric]:
        """Give each family; Prometheus' library calls this."""
        yield _family("milepost_jobs", "Jobs by queue and state.", "queue", bounded(self.jobs))
        yield _family("milepost_runs", "Runs by batch and state.", "batch", bounded(self.runs))
        family = GaugeMetricFamily("milepost_workers", "Workers by state.", labels=["state"])
        for state, count in self.workers.items():
            family.add_metric([state], count)
        yield family
        yield GaugeMetricFamily(
            "milepost_journal_weeks_full",
            "1 while the journal gets no more weeks, its default partition being too large.",
            value=int(self.weeks_full),
        )


def bounded(counts: Counts) -> Counts:
    """Keep the names that hold the most, and count the rest as one."""
    if len(counts) <= NAMES_MOST:
        return counts
    ranked = sorted(counts, key=lambda name: (-sum(counts[name].values()), name))
    kept = {name: counts[name] for name in ranked[: NAMES_MOST - 1]}
    rest: dict[str, int] = {}
    for name in ranked[NAMES_MOST - 1 :]:
        for state, count in counts[name].items():
            rest[state] = rest.get(state, 0) + count
    return {**kept, OTHERS: rest}


def _family(name: str, help_: str, label: str, counts: Counts) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_, labels=[label, "state"])
    for each, by_state in counts.items():
        for state, count in by_state.items():
            family.add_metric([each, state], count)
    return family


def _counted() -> Steps[StoreMetrics]:
    by_queue = yield from jobs.counts()
    by_batch = yield from chains.kinds()
    by_state = yield from workers.counts()
    full = yield from retention.weeks_full()
    return StoreMetrics(by_queue, by_batch, by_state, full is not None)


@router.get(
    "/metrics",
    tags=["metrics"],
    response_class=PlainTextResponse,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}},
        **problems(),
    },
)
async def metrics(*, call: ReadCall) -> Response:
    """Tell how much stands where, in Prometheus' text format."""
    call.principal.check_unbound("/metrics")
    registry = CollectorRegistry()
    registry.register(await call.run(_counted))
    own = generate_latest(call.request.app.state.metrics.registry)
    return Response(generate_latest(registry) + own, media_type=MEDIA)


class Health(BaseModel):
    """It is well."""

    status: str


@router.get(
    "/livez", tags=["health"], responses={status: problems()[status] for status in (421, 422)}
)
async def livez() -> Health:
    """Tell that the process answers."""
    return Health(status="alive")


@router.get(
    "/readyz", tags=["health"], responses={status: problems()[status] for status in (421, 422, 503)}
)
async def readyz(request: Request) -> Health:
    """Tell that the store can be reached."""
    await request.app.state.engine.client.run_async(workers.now)
    return Health(status="ready")
