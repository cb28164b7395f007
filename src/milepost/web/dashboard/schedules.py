"""Schedules: when each fires in words, what became of its last job, pausing and running it."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.codec import check_text
from milepost.errors import NotFound
from milepost.records import Job
from milepost.store import jobs
from milepost.store.blockers import explain_any
from milepost.store.driver import Steps
from milepost.store.explain import Explanation
from milepost.store.schedules import Schedule
from milepost.web.call import Call, OperateCall, ReadCall
from milepost.web.dashboard import cronwords
from milepost.web.dashboard.page import (
    PageRoute,
    View,
    acted,
    ask_first,
    command,
    confirmation,
    form_of,
    show,
)
from milepost.web.schedules import check_new

router = APIRouter(route_class=PageRoute, include_in_schema=False)
TIMES = 5
"""How many of the next times are shown."""
GLYPHS = {"active": "ready", "paused": "paused", "vanished": "cancelled"}
ACTIONS = {"pause": "Pause", "resume": "Resume", "run": "Run now"}


class Row(msgspec.Struct, frozen=True):
    """A schedule as its line shows it."""

    schedule: Schedule
    last: Job | None
    """Its last job, if that is still there."""

    @property
    def id(self) -> str:
        """The name of its part: a schedule's name may hold anything."""
        return hashlib.sha256(self.schedule.name.encode()).hexdigest()[:12]

    @property
    def words(self) -> str | None:
        """When it fires."""
        return cronwords.told(self.schedule.cron)

    @property
    def glyph(self) -> str:
        """The shape of its state."""
        return GLYPHS[self.schedule.state]


class Found(msgspec.Struct, frozen=True):
    """What the page reads."""

    rows: Sequence[Row]
    explained: Explanation | None


def _read(call: Call, name: str | None) -> Steps[Found]:
    """Read the schedules, their last jobs, and why one of them stands where it does."""
    listed = yield from call.app.schedules.listing()
    last = yield from jobs.find([one.last_job_id for one in listed if one.last_job_id])
    rows = [Row(one, last.get(one.last_job_id or "")) for one in listed]
    explained = None
    if name is not None:
        require(rows, name)
        explained = yield from _explained(name)
    return Found(rows, explained)


def _explained(name: str) -> Steps[Explanation | None]:
    try:
        return (yield from explain_any("schedule", name))
    except NotFound:  # only this program declares it: no worker entered it yet
        return None


def require(rows: Sequence[Row], name: str) -> Row:
    """Find a schedule, or say which there are."""
    found = next((row for row in rows if row.schedule.name == name), None)
    if found is None:
        there = ", ".join(row.schedule.name for row in rows) or "none"
        raise NotFound(f"there is no schedule {name!r}; there are: {there}")
    return found


@router.get("/schedules")
async def listing(*, call: ReadCall, name: str | None = None) -> Response:
    """List schedules; one of them closely."""
    call.principal.check_unbound("a schedule")
    if name is not None:
        check_text(name, what="schedule")

    async def load() -> View:
        return _view(await call.run(_read, call, name), name)

    return await show(call, load)


def _view(found: Found, name: str | None) -> View:
    values: dict[str, Any] = {
        "rows": found.rows,
        "explained": found.explained,
        "chosen": None,
    }
    parts: dict[str, str] = {}
    pieces: dict[str, tuple[str, Mapping[str, Any]]] = {
        f"schedule-{row.id}": ("schedules/row.html", {"row": row}) for row in found.rows
    }
    if name is not None:
        chosen = require(found.rows, name)
        values |= {"chosen": chosen, "times": _times(chosen.schedule)}
        pieces[f"schedule-one-{chosen.id}"] = ("schedules/one.html", {})
    return View(
        template="schedules/page.html",
        title="Schedules",
        section="schedules",
        cli="milepost schedules ls" if name is None else command("explain", "schedule", name),
        values=values,
        parts=parts,
        pieces=pieces,
    )


def _times(schedule: Schedule) -> list[tuple[datetime, str]]:
    """Give the next times, each also as the clocks of its zone show it."""
    line = schedule.line
    return [
        (slot, line.local(slot).strftime("%a %d %b %Y, %H:%M %Z"))
        for slot in islice(line.after(schedule.read_at), TIMES)
    ]


async def _asked(call: Call, name: str, action: str) -> Response:
    row = await _required(call, name)
    return await confirmation(
        call,
        "schedules/confirm.html",
        title=f"{ACTIONS[action]}: schedule {name}",
        section="schedules",
        values={"row": row, "action": action, "label": ACTIONS[action]},
        cli=command("schedules", action, name),
    )


ask_first(router, "/schedules", ACTIONS, _asked)


async def _required(call: Call, name: str) -> Row:
    call.principal.check_unbound("a schedule")
    found = await call.run(_read, call, None)
    return require(found.rows, check_text(name, what="schedule"))


@router.post("/schedules/{name}/pause")
async def pause(*, name: str, call: OperateCall) -> Response:
    """Let a schedule rest; its times that pass are skipped."""
    return await _rest(call, name, paused=True)


@router.post("/schedules/{name}/resume")
async def resume(*, name: str, call: OperateCall) -> Response:
    """Let a schedule go on with its next time."""
    return await _rest(call, name, paused=False)


async def _rest(call: Call, name: str, *, paused: bool) -> Response:
    await form_of(call)
    await _required(call, name)
    if not paused:
        await check_new(call, name)
    actor = call.principal.actor
    await call.run(call.app.schedules.resting, name, actor, paused=paused)
    return acted(
        call, "pause schedule" if paused else "resume schedule", name, "/schedules", name=name
    )


@router.post("/schedules/{name}/run")
async def run(*, name: str, call: OperateCall) -> Response:
    """Create a schedule's job now, and show it."""
    await form_of(call)
    await _required(call, name)
    await check_new(call, name)
    job_id = await call.run(call.app.schedules.running, name, call.principal.actor)
    return acted(call, "run schedule", name, f"/jobs/{job_id}")
