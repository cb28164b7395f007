"""/metrics: how much stands where, for Prometheus. No label grows with what callers send."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.responses import PlainTextResponse, Response

from milepost.store import chains, jobs, retention, workers
from milepost.store.driver import Steps
from milepost.web.auth import Who, require
from milepost.web.body import Route
from milepost.web.engine import Held
from milepost.web.problems import problems

router = APIRouter(route_class=Route, tags=["metrics"])

NAMES_MOST = 200
"""How many queues or batches have a label of their own; the rest are told as one."""

OTHERS = "(others)"
MEDIA = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Counts = Mapping[str, Mapping[str, int]]


class Traffic:
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


class Standing:
    """What the store says, as metrics."""

    def __init__(
        self, by_queue: Counts, by_batch: Counts, by_state: Mapping[str, int], *, weeks_full: bool
    ) -> None:
        self._queues = bounded(by_queue)
        self._batches = bounded(by_batch)
        self._workers = by_state
        self._weeks_full = weeks_full

    def collect(self) -> Iterator[Metric]:
        """Give each family; what Prometheus' library calls."""
        yield _family("milepost_jobs", "Jobs by queue and state.", "queue", self._queues)
        yield _family("milepost_runs", "Runs by batch and state.", "batch", self._batches)
        told = GaugeMetricFamily("milepost_workers", "Workers by state.", labels=["state"])
        for state, count in self._workers.items():
            told.add_metric([state], count)
        yield told
        yield GaugeMetricFamily(
            "milepost_journal_weeks_full",
            "1 while the journal gets no more weeks, its default partition being too large.",
            value=int(self._weeks_full),
        )


def bounded(counts: Counts) -> Counts:
    """Keep the names that hold the most, and tell the rest as one."""
    if len(counts) <= NAMES_MOST:
        return counts
    ranked = sorted(counts, key=lambda name: (-sum(counts[name].values()), name))
    kept = {name: counts[name] for name in ranked[: NAMES_MOST - 1]}
    rest: dict[str, int] = {}
    for name in ranked[NAMES_MOST - 1 :]:
        for state, count in counts[name].items():
            rest[state] = rest.get(state, 0) + count
    return {**kept, OTHERS: rest}


def _family(name: str, told: str, label: str, counts: Counts) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, told, labels=[label, "state"])
    for each, by_state in counts.items():
        for state, count in by_state.items():
            family.add_metric([each, state], count)
    return family


def _standing() -> Steps[Standing]:
    by_queue = yield from jobs.counts()
    by_batch = yield from chains.kinds()
    by_state = yield from workers.counts()
    full = yield from retention.weeks_full()
    return Standing(by_queue, by_batch, by_state, weeks_full=full is not None)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses={
        200: {"description": "Prometheus' text format.", "content": {"text/plain": {}}},
        **problems(),
    },
)
async def metrics(*, request: Request, app: Held, who: Annotated[Who, require("read")]) -> Response:
    """Tell how much stands where, in Prometheus' text format."""
    who.check_free("/metrics")
    registry = CollectorRegistry()
    registry.register(await app.client.run_async(_standing))
    own = generate_latest(request.app.state.traffic.registry)
    return Response(generate_latest(registry) + own, media_type=MEDIA)
