"""Every page's routes."""

from fastapi import APIRouter

from milepost.web.dashboard import errors, job, login, overview, queues, runs, start_run, static

ROUTERS: tuple[APIRouter, ...] = (
    static.router,
    login.router,
    overview.router,
    queues.router,
    job.router,
    errors.router,
    start_run.router,
    runs.router,
)
