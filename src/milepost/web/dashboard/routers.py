"""Every page's routes."""

from fastapi import APIRouter

from milepost.web.dashboard import (
    bulk,
    errors,
    job,
    jobs,
    login,
    overview,
    queues,
    runs,
    start_run,
    static,
    suggest,
    views,
)

ROUTERS: tuple[APIRouter, ...] = (
    static.router,
    login.router,
    overview.router,
    bulk.router,
    suggest.router,
    views.router,
    jobs.router,
    queues.router,
    job.router,
    errors.router,
    start_run.router,
    runs.router,
)
