"""For monitoring: /metrics for Prometheus, /livez and /readyz for load balancers.

No label of a metric grows with what callers send.
"""

from functools import partial

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from milepost.observe.fresh import FreshMetrics
from milepost.observe.metrics import read
from milepost.store import workers
from milepost.web.call import ReadCall
from milepost.web.problems import problems
from milepost.web.route import Route

router = APIRouter(route_class=Route)

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class HttpMetrics:
    """Counts this process's requests, by route and not by path."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.stored = FreshMetrics()
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
    http: HttpMetrics = call.request.app.state.metrics
    registry = CollectorRegistry()
    registry.register(await http.stored.get_async(partial(call.run, read)))
    if call.app.metrics is not None:  # a worker is in this process too
        registry.register(call.app.metrics)
    own = generate_latest(http.registry)
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
