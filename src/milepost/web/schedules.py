"""/v1/schedules: what fires when, and schedules that rest."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from milepost.errors import NotFound
from milepost.store.driver import Steps
from milepost.store.schedules import Schedule
from milepost.web.auth import Who, require
from milepost.web.body import Route
from milepost.web.engine import Engine, Held
from milepost.web.idempotency import Answer, Kept
from milepost.web.problems import problems

router = APIRouter(route_class=Route, tags=["schedules"])


class ScheduleDocument(BaseModel):
    """A schedule: its cron line, and when it fires."""

    name: str
    kind: str
    cron: str
    zone: str
    missed: str
    state: str
    paused_by: str | None = None
    next_at: datetime | None = None
    last_at: datetime | None = None
    last_job: str | None = None
    fired: int


class ScheduleList(BaseModel):
    """Every schedule, by name."""

    items: list[ScheduleDocument]


def _document(schedule: Schedule) -> ScheduleDocument:
    return ScheduleDocument(
        name=schedule.name,
        kind=schedule.kind,
        cron=schedule.cron,
        zone=schedule.zone,
        missed=schedule.missed,
        state=schedule.state,
        paused_by=schedule.paused_by,
        next_at=schedule.next_at if schedule.state == "active" else None,
        last_at=schedule.last_at,
        last_job=schedule.last_job_id,
        fired=schedule.fired,
    )


async def _all(app: Engine, who: Who) -> dict[str, Schedule]:
    who.check_free("a schedule")
    return {schedule.name: schedule for schedule in await app.schedules.list_async()}


async def _named(app: Engine, who: Who, name: str) -> ScheduleDocument:
    found = await _all(app, who)
    if name not in found:
        raise NotFound(f"there is no schedule {name!r}; GET /v1/schedules lists them")
    return _document(found[name])


@router.get("/v1/schedules", responses=problems())
async def listing(*, app: Held, who: Annotated[Who, require("read")]) -> ScheduleList:
    """List the schedules."""
    return ScheduleList(items=[_document(each) for each in (await _all(app, who)).values()])


@router.get("/v1/schedules/{name}", responses=problems(404, 422))
async def show(*, name: str, app: Held, who: Annotated[Who, require("read")]) -> ScheduleDocument:
    """Show one schedule."""
    return await _named(app, who, name)


ACTED: dict[int | str, dict[str, Any]] = {
    200: {"model": ScheduleDocument, "description": "How it stands now."},
    **problems(404, 422),
}


@router.post("/v1/schedules/{name}:pause", responses=ACTED)
async def pause(
    *, name: str, app: Held, who: Annotated[Who, require("operate")], once: Kept
) -> Response:
    """Let a schedule rest. Times that pass meanwhile are skipped."""
    await _named(app, who, name)
    return await once(lambda: _rested(app, name, who, paused=True))


@router.post("/v1/schedules/{name}:resume", responses=ACTED)
async def resume(
    *, name: str, app: Held, who: Annotated[Who, require("operate")], once: Kept
) -> Response:
    """Let a schedule go on with its next time."""
    who.check_new((await _named(app, who, name)).kind)
    return await once(lambda: _rested(app, name, who, paused=False))


def _rested(app: Engine, name: str, who: Who, *, paused: bool) -> Steps[Answer]:
    yield from app.schedules.resting(name, who.actor, paused=paused)
    found = {schedule.name: schedule for schedule in (yield from app.schedules.listing())}
    return Answer(200, _document(found[name]).model_dump_json().encode())
