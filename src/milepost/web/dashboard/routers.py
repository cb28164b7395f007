"""Every page's routes."""

from fastapi import APIRouter

from milepost.web.dashboard import (
    bulk,
    channels,
    errors,
    goto,
    job,
    jobs,
    limits,
    login,
    oidc,
    overview,
    pipeline_actions,
    pipelines,
    queues,
    runs,
    schedules,
    start_run,
    static,
    suggest,
    tokens,
    views,
)

ROUTERS: tuple[APIRouter, ...] = (
    static.router,
    login.router,
    oidc.router,
    goto.router,
    overview.router,
    bulk.router,
    suggest.router,
    views.router,
    jobs.router,
    queues.router,
    limits.router,
    job.router,
    errors.router,
    start_run.router,
    runs.router,
    pipeline_actions.router,  # before the pages: a name may hold a slash
    pipelines.router,
    schedules.router,
    channels.router,
    tokens.router,
)
