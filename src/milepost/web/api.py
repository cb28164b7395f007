"""The factory of the API: an ASGI app that needs no startup and may be mounted anywhere."""

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from milepost.errors import Invalid
from milepost.web import (
    batches,
    bulk,
    channels,
    errors,
    events,
    jobs,
    limits,
    looks,
    metrics,
    pages,
    pipelines,
    queues,
    requests,
    runs,
    schedules,
    workers,
)
from milepost.web.access import ACCESS, AccessMiddleware, RateLimiter, WrongTokenThrottle
from milepost.web.call import Engine
from milepost.web.dashboard.facts import kept_counts, kept_facts
from milepost.web.dashboard.live import Live
from milepost.web.dashboard.oidc import provider_of
from milepost.web.dashboard.page import failure, wants_page
from milepost.web.dashboard.rail import RailReader
from milepost.web.dashboard.routers import ROUTERS as PAGES
from milepost.web.metrics import HttpMetrics
from milepost.web.problems import install, problem_of, problem_response
from milepost.web.session import Keys

CALLBACK_RATE = 5.0
"""How often a second a remote may call back about one job; twice as often at once."""

ROUTERS: tuple[APIRouter, ...] = (
    jobs.router,
    bulk.router,
    requests.router,
    requests.pushed,
    batches.router,
    runs.router,
    pipelines.router,
    errors.router,
    looks.router,
    queues.router,
    limits.router,
    workers.router,
    schedules.router,
    channels.router,
    events.router,
    metrics.router,
    pages.router,
    *PAGES,
)
"""Every resource's routes."""


def create_api(engine: Engine, *, access: str, hosts: Sequence[str] = ()) -> ASGIApp:
    """Make the API of an app.

    `access` says who needs no token: nobody ("tokens"), everybody ("open": the program that mounts
    it guards it), or callers on this machine as long as there never was a token ("local", for
    `milepost dev` alone: a proxy's requests come from this machine too). `hosts` are names that it
    answers to in addition to addresses and names without a dot.
    """
    if access not in ACCESS:
        raise Invalid(f"access={access!r}: expected one of {', '.join(ACCESS)}")
    api = describe()
    api.state.engine = engine
    api.state.metrics = HttpMetrics()
    api.state.callbacks = RateLimiter(CALLBACK_RATE)
    api.state.throttle = WrongTokenThrottle()
    api.state.keys = Keys(engine.client, engine.settings.secret_key)
    api.state.rail = RailReader(engine, api.state.keys)
    api.state.facts = kept_facts(engine)
    api.state.counts = kept_counts(engine)
    api.state.live = Live()
    api.state.provider = provider_of(engine.settings)
    api.state.provider_name = "" if api.state.provider is None else api.state.provider.name
    named = [host.strip() for host in engine.settings.hosts.split(",") if host.strip()]
    return AccessMiddleware(api, access=access, hosts=[*named, *hosts])


def describe() -> FastAPI:
    """Make the routes, with no engine behind them; OpenAPI is written from them."""
    api = FastAPI(
        title="Milepost",
        version="1",
        summary="Durable jobs over HTTP.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    install(api)
    api.add_exception_handler(HTTPException, _astray)
    for router in ROUTERS:
        # Including a router analyses each of its routes again, for every API that is made.
        api.router.routes.extend(router.routes)
    return api


async def _astray(request: Request, error: Exception) -> Response:
    """Answer a path that nothing is at: with a page to who looks for one."""
    problem = problem_of(error)
    if wants_page(request):
        return await failure(request, problem)
    return problem_response(problem)
