"""The page of a job: why it does not run, what it did, what it said, and what can be done."""

import re
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.client import caller, new_id
from milepost.codec import limited
from milepost.errors import IllegalMove, Invalid
from milepost.store import job_view, jobs, reruns, timers, unfit
from milepost.store.driver import Steps
from milepost.subjects import DIGITS, checked_id
from milepost.web.call import Call, OperateCall, ReadCall, RestartCall
from milepost.web.dashboard.job_values import Actions, values
from milepost.web.dashboard.page import (
    PageRoute,
    View,
    acted,
    command,
    confirmation,
    form_of,
    go_to,
    one,
    show,
)
from milepost.web.subjects import check_visible, visible

router = APIRouter(route_class=PageRoute, include_in_schema=False)
COMMANDS = frozenset({"cancel", "rerun"})
"""Actions with a command of their own."""
PARTS = (
    *("subject", "why", "timeline", "error", "logs", "journal"),
    *("path", "content", "steps", "facts"),
)
_HEX = re.compile(r"[0-9a-fA-F-]{4,36}")


@router.get("/jobs/{job_id}")
async def job_page(*, job_id: str, call: ReadCall, attempt: int | None = None) -> Response:
    """Show everything of one job."""
    principal = call.principal
    unbound = principal.tenant is None and principal.queues is None
    # A beginning that fits several names them: only to those who see all.
    if unbound and len(job_id.replace("-", "")) < DIGITS and _HEX.fullmatch(job_id):
        return go_to(call.request, f"/jobs/{(await call.app.jobs.find_async(job_id)).id}")
    known = checked_id(job_id)

    async def load() -> View:
        found = await call.run(
            job_view.view, known, check=partial(check_visible, call), counts_alike=unbound
        )
        return View(
            template="job/page.html",
            title=found.job.kind,
            section="jobs",
            cli=command("jobs", "show", found.job.id),
            values=values(found, call, attempt),
            parts={f"job-{name}": f"job/{name}.html" for name in PARTS},
        )

    return await show(call, load)


# Asking


@router.get("/jobs/{job_id}/cancel")
async def ask_to_cancel(*, job_id: str, call: OperateCall) -> Response:
    """Ask before a job is cancelled."""
    return await _ask(call, job_id, "cancel")


@router.get("/jobs/{job_id}/rerun")
async def ask_to_rerun(*, job_id: str, call: OperateCall) -> Response:
    """Ask before a job is run again."""
    return await _ask(call, job_id, "rerun")


@router.get("/jobs/{job_id}/signal")
async def ask_to_signal(*, job_id: str, call: OperateCall) -> Response:
    """Ask for the data of a signal."""
    return await _ask(call, job_id, "signal")


async def _ask(call: Call, job_id: str, action: str) -> Response:
    job = (await visible(call, call.app.jobs, job_id)).record
    return await confirmation(
        call,
        "job/ask.html",
        title=f"{action.capitalize()} {job.kind}",
        section="jobs",
        values={"job": job, "action": action, "actions": Actions.of(job)},
        cli=command("jobs", action if action in COMMANDS else "show", job.id),
    )


# Doing


@router.post("/jobs/{job_id}/run-now")
async def run_now(*, job_id: str, call: OperateCall) -> Response:
    """Send a job on before its time."""
    await form_of(call)
    return await _act(call, job_id, "run-now", timers.run_now)


@router.post("/jobs/{job_id}/release")
async def release(*, job_id: str, call: OperateCall) -> Response:
    """Let a job be tried again whose arguments did not fit."""
    await form_of(call)
    return await _act(call, job_id, "release", unfit.release)


@router.post("/jobs/{job_id}/cancel")
async def cancel(*, job_id: str, call: OperateCall) -> Response:
    """Cancel a job, or ask the worker that runs it."""
    reason = one(await form_of(call), "reason") or "cancelled"
    return await _act(call, job_id, "cancel", partial(jobs.cancel, reason=reason))


@router.post("/jobs/{job_id}/signal")
async def signal(*, job_id: str, call: OperateCall) -> Response:
    """Wake a job that waits, with data for its next attempt."""
    text = one(await form_of(call), "data")
    encoded = _encoded(call, text) if text else None
    return await _act(
        call, job_id, "signal", partial(jobs.signal, signal_id=new_id(), data=encoded)
    )


def _encoded(call: Call, text: str) -> bytes:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise Invalid(f"the signal's data is no JSON: {error}") from error
    encoded = call.app.client.codec.encode(value)
    limited(encoded, most=call.app.settings.max_payload, what="the signal's data")
    return encoded


@router.post("/jobs/{job_id}/rerun")
async def rerun(*, job_id: str, call: RestartCall) -> Response:
    """Run a finished job again, as a new one."""
    fields = await form_of(call)
    job = (await visible(call, call.app.jobs, job_id)).record
    call.principal.check_rerun(job)
    by = {"actor": call.principal.actor, "trace": caller().trace}
    new = await call.run(reruns.rerun, job.id, fresh=bool(one(fields, "fresh")), **by)
    return acted(call, "rerun", f"job {job.id}", f"/jobs/{new}")


async def _act(call: Call, job_id: str, action: str, acting: Any) -> Response:
    """Do something to a job in the caller's name, and show it; the form was read before."""
    job = await visible(call, call.app.jobs, job_id)

    def moved() -> Steps[None]:
        if (yield from acting(job.id, actor=call.principal.actor)) is False:
            raise IllegalMove(f"job {job.id} has ended; nothing waits for a signal")

    await call.run(moved)
    return acted(call, action, f"job {job.id}", f"/jobs/{job.id}")
