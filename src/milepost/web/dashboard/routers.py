"""Every page's routes."""

from fastapi import APIRouter

from milepost.web.dashboard import errors, job, login, overview, queues, static

ROUTERS: tuple[APIRouter, ...] = (
    static.router,
    login.router,
    overview.router,
    queues.router,
    job.router,
    errors.router,
)
