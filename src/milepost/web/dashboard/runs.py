"""Runs: the list of them, and one: how far it is, what holds it, its errors, its journal."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.batch.handles import resuming
from milepost.errors import MilepostError
from milepost.lifecycle import RUN, RunState
from milepost.records import Listed, Run
from milepost.store import chains, looks, run_page, runs
from milepost.store.driver import Steps
from milepost.store.looks import StepStand
from milepost.store.reasons import JobReason, LimitReason, RunReason
from milepost.store.run_page import RunPage
from milepost.subjects import checked_id
from milepost.web import documents
from milepost.web.call import Call, OperateCall, ReadCall
from milepost.web.dashboard import burn_up, run_figures, words
from milepost.web.dashboard.page import (
    FormRequest,
    PageRoute,
    View,
    acted,
    command,
    confirmation,
    form_of,
    one,
    show,
)
from milepost.web.subjects import check_visible, visible

router = APIRouter(route_class=PageRoute, include_in_schema=False)
PAGE = 50
LISTED_MOST = 1_000
"""How many open jobs of a step are counted by state for a line of the list."""
OPEN = "open"
ENDED = "ended"
GROUPED = {
    OPEN: [state.value for state in RunState if state not in RUN.terminal],
    ENDED: [state.value for state in RunState if state in RUN.terminal],
}


# The list


class RunLine(msgspec.Struct, frozen=True):
    """A run of a list."""

    run: Run
    progress: run_figures.Progress
    errors: int


def _read_list(where: Mapping[str, Any]) -> Steps[tuple[Listed[Run], dict[str, list[StepStand]]]]:
    found = yield from runs.listing(**where)
    if not found:
        return found, {}
    return found, (yield from looks.stands([run.id for run in found], most=LISTED_MOST))


@router.get("/runs")
async def listing(*, call: ReadCall, state: str = "", kind: str = "", before: str = "") -> Response:
    """List runs, newest first."""
    chosen = _states(state)
    where = {
        "states": None if chosen is None else msgspec.json.encode(chosen).decode(),
        "kind": kind or None,
        "before": checked_id(before, what="run") if before else None,
        "most": PAGE,
        **call.principal.filters,
    }

    codec = call.app.client.codec

    async def load() -> View:
        found, stands = await call.run(_read_list, where)
        lines = [_line(run, stands.get(run.id, [])) for run in found]
        return View(
            template="runs/list.html",
            title="Runs",
            section="runs",
            cli=_list_command(state, kind, before),
            values={
                "lines": lines,
                "state": state,
                "kind": kind,
                "before": before,
                "kinds": _kinds(call, kind),
                "next": found[-1].id if found and found.more else None,
                "bar_of": run_figures.bar_of,
                "told_of": lambda run: words.stored_arguments(codec, run.payload, 80),
            },
            parts={"runs-new": "runs/new_pill.html"},
            pieces={f"run-{line.run.id}": ("runs/row.html", {"line": line}) for line in lines},
        )

    return await show(call, load)


def _states(state: str) -> list[str] | None:
    """Read a filter; an unknown word is refused with those that are known."""
    if not state:
        return None
    if state in GROUPED:
        return GROUPED[state]
    return msgspec.json.decode(documents.states(state, RunState) or "[]", type=list[str])


def _list_command(state: str, kind: str, before: str) -> str:
    given = {"--state": "" if state in GROUPED else state.upper(), "--batch": kind}
    given["--before"] = before
    options = [word for pair in given.items() if pair[1] for word in pair]
    return command("runs", "ls", *options)


def _kinds(call: Call, chosen: str) -> list[str]:
    """Name the kinds of runs that the program declares, as far as the caller sees their queues."""
    sees = call.principal.sees_queue
    names = {
        batch.name
        for batch in call.app.batches
        if all(sees(step.definition.options["queue"]) for step in batch.steps)
    }
    names |= {name for name, one in call.app.pipelines.items() if sees(one.options["queue"])}
    return sorted(names | ({chosen} if chosen else set()))


def _line(run: Run, steps: Sequence[StepStand]) -> RunLine:
    return RunLine(run, run_figures.progress(run, steps), sum(step.failed for step in steps))


# One run


@router.get("/runs/{run_id}")
async def run(*, run_id: str, call: ReadCall) -> Response:
    """Show how a run stands, and what it waits for."""
    known = checked_id(run_id, what="run")

    async def load() -> View:
        page: RunPage = await call.run(run_page.read, known)
        check_visible(call, page.run)
        return _view(call, page)

    return await show(call, load)


GOING = (RunState.QUEUED, RunState.RUNNING, RunState.FINALIZING)
GOES_ON = frozenset(
    {
        *(RunReason.STEP, RunReason.GATE, RunReason.OVERDUE),
        *(JobReason.RUNNING, JobReason.IN_LINE, JobReason.BUSY, JobReason.BROKER, JobReason.TOLD),
    }
)
"""The reasons of a run that nothing hinders; limits do not while some of its jobs run."""
PARTS = {
    "run-subject": "runs/subject.html",
    "run-why": "runs/why.html",
    "run-progress": "runs/progress.html",
    "run-steps": "runs/steps.html",
    "run-chart": "runs/chart.html",
    "run-policy": "runs/policy.html",
    "run-errors": "runs/errors.html",
    "run-stragglers": "runs/stragglers.html",
    "run-journal": "runs/journal.html",
    "run-children": "runs/children.html",
}


def _view(call: Call, page: RunPage) -> View:
    found = page.run
    done = run_figures.progress(found, page.steps)
    pace = run_figures.pace(page, done)
    steps = run_figures.steps_of(page)
    codec = call.app.client.codec
    values = {
        "page": page,
        "run": found,
        "done": done,
        "pace": pace,
        "steps": steps,
        "current": next((figure for figure in steps if figure.is_current), None),
        "policy": run_figures.policy_of(found),
        "budgets": run_figures.budgets(found, page.steps),
        "errors": run_figures.errors_of(page),
        "is_over": found.state in RUN.terminal,
        "tags": msgspec.json.decode(found.tags or "{}"),
        "parameters": words.pretty(codec, found.payload),
        "report": words.pretty(codec, found.report),
        "arguments": words.stored_arguments(codec, found.payload, 100),
        "chart": burn_up.chart(page, done, pace, steps),
        "resume": _resumable(call, page),
        "creator": next((entry for entry in page.told.entries if entry.move == "create"), None),
        "told_of": lambda job: words.stored_arguments(codec, job.payload, 60),
        "bar_of": run_figures.bar_of,
        "held": sum(step.open for step in page.steps if step.number <= found.current_step),
        "next_gate": run_figures.next_gate(steps),
        "gates": run_figures.gates_by_entry(page),
        "hindered": _is_hindered(page),
    }
    return View(
        template="runs/run.html",
        title=found.kind,
        section="runs",
        cli=command("runs", "show", found.id),
        values=values,
        parts=PARTS,
    )


def _is_hindered(page: RunPage) -> bool:
    calm = GOES_ON.union(LimitReason) if page.jobs.slowest else GOES_ON
    return page.run.state not in GOING or not calm.issuperset(page.why.reasons)


def _resumable(call: Call, page: RunPage) -> str:
    """Say why a run cannot be resumed; an empty text if it can."""
    found = page.run
    if found.state not in RUN.terminal:
        return f"it is {found.state}; a run is resumed once it has ended"
    if found.parent_id is not None:
        return "it is a batch within a run; resume that one"
    if found.mode is not None and found.kind not in call.app.pipelines:
        return "its pipeline is not declared by this server"
    if page.head.resumed_by is not None:
        return f"it was resumed by run {page.head.resumed_by}"
    lost = sum(step.lost for step in page.steps)
    if found.state == RunState.SUCCEEDED and (found.mode is not None or not lost):
        return "nothing in it is left to be done again"
    return ""


# Acting


@router.get("/runs/{run_id}/cancel")
async def ask_cancel(*, run_id: str, call: OperateCall) -> Response:
    """Ask whether a run is to be cancelled, and say what becomes of its jobs."""
    page: RunPage = await call.run(run_page.read, checked_id(run_id, what="run"))
    check_visible(call, page.run)
    done = run_figures.progress(page.run, page.steps)
    values = {"run": page.run, "done": done, "action": "cancel"}
    return await confirmation(
        call,
        "runs/confirm.html",
        title="Cancel",
        section="runs",
        values=values,
        cli=command("runs", "cancel", run_id),
    )


@router.post("/runs/{run_id}/cancel")
async def cancel(*, run_id: str, call: OperateCall, request: FormRequest) -> Response:
    """Cancel a run."""
    del request
    fields = await form_of(call)
    handle = await visible(call, call.app.runs, run_id)
    await handle.cancel_async(one(fields, "reason") or "cancelled")
    return acted(call, "cancel", f"run {handle.id}", f"/runs/{handle.id}")


@router.get("/runs/{run_id}/resume")
async def ask_resume(*, run_id: str, call: OperateCall) -> Response:
    """Ask whether a run is to be resumed, and say how many jobs are done again."""
    page: RunPage = await call.run(run_page.read, checked_id(run_id, what="run"))
    check_visible(call, page.run)
    values = {
        "run": page.run,
        "steps": page.steps,
        "action": "resume",
        "refused": _resumable(call, page),
    }
    return await confirmation(
        call,
        "runs/confirm.html",
        title="Resume",
        section="runs",
        values=values,
        cli=command("runs", "resume", run_id),
    )


@router.post("/runs/{run_id}/resume")
async def resume(*, run_id: str, call: OperateCall, request: FormRequest) -> Response:
    """Go on with a run that has ended, as a new one."""
    del request
    await form_of(call)
    old = await visible(call, call.app.runs, run_id)
    call.principal.check_new(old.record.kind, priority=old.record.priority)
    new_id = await _resumed(call, old)
    return acted(call, "resume", f"run {old.id}", f"/runs/{new_id}")


async def _resumed(call: Call, old: Any) -> str:
    if old.record.mode is not None:
        pipeline = call.app.pipelines.get(old.record.kind)
        if pipeline is None:
            raise MilepostError(f"pipeline {old.record.kind!r} is not declared by this server")
        return str(await call.run((await pipeline.run_async(old.id)).resuming()))
    new_id = await call.run(chains.resume, old.id, resuming(old.record))
    return str((await old.refill_async(new_id)).id)
