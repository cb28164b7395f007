"""/v1/schedules: when each fires, and pausing it."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from milepost.errors import NotFound
from milepost.store import jobs
from milepost.store.driver import Steps
from milepost.store.schedules import Schedule
from milepost.web.call import Call, OperateCall, ReadCall, StoredAnswer, json_response
from milepost.web.documents import JobDocument, ListDocument, Receipt, document
from milepost.web.problems import answers, problems
from milepost.web.route import Route
from milepost.web.subjects import acceptance, accepted, accepts

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


class ScheduleList(ListDocument[ScheduleDocument]):
    """Every schedule, by name."""


RUN = {**accepts(Receipt, JobDocument), **problems(404)}
PAUSED = answers(ScheduleDocument, 404, description="How it stands now.")


def _document(schedule: Schedule) -> dict[str, Any]:
    next_at = schedule.next_at if schedule.state == "active" else None
    last_job = schedule.last_job_id
    return document(ScheduleDocument, schedule, next_at=next_at, last_job=last_job)


async def _all(call: Call) -> dict[str, Schedule]:
    call.principal.check_unbound("a schedule")
    return {schedule.name: schedule for schedule in await call.app.schedules.list_async()}


async def _named(call: Call, name: str) -> Schedule:
    found = (await _all(call)).get(name)
    if found is None:
        raise NotFound(f"there is no schedule {name!r}; GET /v1/schedules lists them")
    return found


async def check_new(call: Call, name: str) -> None:
    """Refuse a schedule to a token that may not create its jobs."""
    made = await call.run(call.app.schedules.template, name)
    call.principal.check_new(made.kind, queue=made.queue, priority=made.priority)


@router.get("/v1/schedules", responses=answers(ScheduleList))
async def listing(*, call: ReadCall) -> Response:
    """List the schedules."""
    return json_response({"items": [_document(one) for one in (await _all(call)).values()]})


@router.get("/v1/schedules/{name}", responses=answers(ScheduleDocument, 404))
async def show(*, name: str, call: ReadCall) -> Response:
    """Show one schedule."""
    return json_response(_document(await _named(call, name)))


@router.post("/v1/schedules/{name}:pause", responses=PAUSED)
async def pause(*, name: str, call: OperateCall) -> Response:
    """Let a schedule rest. Times that pass meanwhile are skipped."""
    return await _pause(call, await _named(call, name), paused=True)


@router.post("/v1/schedules/{name}:resume", responses=PAUSED)
async def resume(*, name: str, call: OperateCall) -> Response:
    """Let a schedule go on with its next time."""
    schedule = await _named(call, name)
    await check_new(call, schedule.name)
    return await _pause(call, schedule, paused=False)


@router.post("/v1/schedules/{name}:run", status_code=202, responses=RUN)
async def run(*, name: str, call: OperateCall) -> Response:
    """Create a schedule's job now, beside its times."""
    schedule = await _named(call, name)
    await check_new(call, schedule.name)

    def operation() -> Steps[StoredAnswer]:
        job_id = yield from call.app.schedules.running(schedule.name, call.principal.actor)
        return acceptance(job_id, (yield from jobs.get(job_id)))

    return await accepted(call, call.app.jobs, await call.answer(operation))


async def _pause(call: Call, schedule: Schedule, *, paused: bool) -> Response:
    schedules, actor = call.app.schedules, call.principal.actor

    def operation() -> Steps[dict[str, Any]]:
        yield from schedules.resting(schedule.name, actor, paused=paused)
        found = {each.name: each for each in (yield from schedules.listing())}
        return _document(found[schedule.name])

    return await call.once(operation)
