"""The factory of the API: an ASGI app that needs no startup and may be mounted anywhere."""

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from milepost.errors import Invalid
from milepost.web import (
    batches,
    bulk,
    channels,
    events,
    health,
    jobs,
    metrics,
    pipelines,
    queues,
    requests,
    runs,
    schedules,
    workers,
)
from milepost.web.auth import ACCESS
from milepost.web.door import Door
from milepost.web.engine import Engine
from milepost.web.limits import Rates, Strangers
from milepost.web.metrics import Traffic
from milepost.web.problems import install

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
    queues.router,
    workers.router,
    schedules.router,
    channels.router,
    events.router,
    metrics.router,
    health.router,
)
"""Every resource's routes."""


def create_api(engine: Engine, *, access: str, hosts: Sequence[str] = ()) -> ASGIApp:
    """Make the API of an app.

    `access` says who needs no token: nobody ("tokens"), everybody ("open": whoever mounts it guards
    it), or callers on this machine as long as there never was a token ("local", for `milepost dev`
    alone: what a proxy passes on comes from this machine too). `hosts` are names that it answers to
    in addition to addresses and names without a dot.
    """
    if access not in ACCESS:
        raise Invalid(f"access={access!r}: expected one of {', '.join(ACCESS)}")
    api = describe()
    api.state.engine = engine
    named = [host.strip() for host in engine.settings.hosts.split(",") if host.strip()]
    api.state.traffic = Traffic()
    api.state.callbacks = Rates(CALLBACK_RATE)
    api.state.strangers = Strangers()
    return Door(
        api,
        engine=engine,
        access=access,
        hosts=[*named, *hosts],
        rates=Rates(engine.settings.api_rate),
        strangers=api.state.strangers,
        traffic=api.state.traffic,
    )


def describe() -> FastAPI:
    """Make the routes, with no engine behind them: what OpenAPI is written from."""
    api = FastAPI(
        title="Milepost",
        version="1",
        summary="Durable jobs over HTTP.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    install(api)
    for router in ROUTERS:
        api.include_router(router)
    return api
