"""What can be done with a pipeline: start a run, read a partition again, replay, decide, set."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from milepost.errors import Invalid
from milepost.ingest.handles import PipelineRun
from milepost.ingest.pipeline import Pipeline
from milepost.store import pipeline_page, removals, runs
from milepost.store.driver import Steps
from milepost.subjects import checked_id
from milepost.web.call import Call, OperateCall, StoredAnswer, SubmitCall
from milepost.web.dashboard.page import (
    Fields,
    FormRequest,
    PageRoute,
    audit,
    command,
    confirmation,
    form_of,
    go_to,
    one,
)
from milepost.web.dashboard.pipelines import declared, path_of, whole
from milepost.web.problems import HttpProblem
from milepost.web.subjects import check_visible

router = APIRouter(route_class=PageRoute, include_in_schema=False)


async def _asked(
    call: Call, action: str, title: str, *, words: Sequence[str], **values: Any
) -> Response:
    """Ask before an action, whose command has these words."""
    return await confirmation(
        call,
        "pipelines/confirm.html",
        title=title,
        section="pipelines",
        values={"action": action, **values},
        cli=command("pipelines", *words),
    )


async def _made(call: Call, name: str, making: Callable[[], Steps[str]]) -> str:
    """Make a run as hooks see it; answer with its id."""

    async def stored() -> StoredAnswer:
        return StoredAnswer(202, b"", f"/runs/{await call.run(making)}")

    answer = await call.submitting(name, "run_id", stored)
    return (answer.location or "").rpartition("/")[2]


# Starting


@router.get("/pipelines/{name}/start")
async def ask_start(*, name: str, call: SubmitCall) -> Response:
    """Ask what a run is to read."""
    pipeline = declared(call, name)
    return await _start_form(call, pipeline, {}, {})


async def _start_form(
    call: Call, pipeline: Pipeline[Any], typed: dict[str, str], problems: dict[str, str]
) -> Response:
    given: dict[str, Any] = {"name": pipeline.name, "typed": typed, "problems": problems}
    given |= {"is_time": pipeline.is_time, "words": ("start", "APP", pipeline.name)}
    response = await _asked(call, "start", "Start a run", **given)
    response.status_code = 422 if problems else 200
    return response


@router.post("/pipelines/{name}/start")
async def start(*, name: str, call: SubmitCall, request: FormRequest) -> Response:
    """Start a run; the one that is under way answers instead, if it does the same."""
    del request
    fields = await form_of(call)
    pipeline = declared(call, name)
    call.principal.check_new(name)
    typed = {key: one(fields, key) for key in ("what", "since", "until")}
    problems: dict[str, str] = {}
    asked = _bounds(typed, problems)
    if typed["what"] == "force" and not call.principal.may("operate"):
        raise HttpProblem(403, "publishing a failed run needs a token with the scope 'operate'")
    try:
        if problems:
            return await _start_form(call, pipeline, typed, problems)
        run_id = await _made(call, name, pipeline.starting(**asked))
    except Invalid as error:
        return await _start_form(call, pipeline, typed, {"": str(error)})
    audit(call, f"start {typed['what']}", f"run {run_id} of pipeline {name}")
    return go_to(call.request, path_of(name))


def _bounds(typed: dict[str, str], problems: dict[str, str]) -> dict[str, Any]:
    if typed["what"] in ("full", "force"):
        return {typed["what"]: True}
    if typed["what"] != "backfill":
        return {}
    found = {key: _moment(typed[key], key, problems) for key in ("since", "until")}
    if not problems and found["since"] is None and found["until"] is None:
        problems["since"] = "a backfill has a beginning or an end"
    return found


def _moment(text: str, key: str, problems: dict[str, str]) -> datetime | int | None:
    """Read a time, or a number of a source's sequence."""
    if not text:
        return None
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        problems[key] = "expected a time, such as 2026-11-16T04:00:00Z, or a number"
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# Runs


async def _run_of(call: Call, name: str, run_id: str) -> PipelineRun:
    """Read a run that the caller may see and go on with, or raise `NotFound`."""
    pipeline = declared(call, name)
    found = await call.run(runs.get, checked_id(run_id, what="run"))
    check_visible(call, found)
    run = await pipeline.run_async(found.id)
    call.principal.check_new(name)
    return run


def _partition(fields: Fields) -> int:
    text = one(fields, "partition")
    if not (text.isascii() and text.isdecimal()):
        raise Invalid("partition: expected a number")
    return int(text)


@router.get("/pipelines/{name}/runs/{run_id}/retry")
async def ask_retry(*, name: str, run_id: str, call: OperateCall, partition: str = "0") -> Response:
    """Ask whether a partition is to be read again."""
    run = await _run_of(call, name, run_id)
    told = {"name": name, "run_id": run.id, "partition": partition}
    return await _asked(
        call,
        "retry",
        "Read a partition again",
        words=("retry", "APP", run.id, partition),
        **told,
    )


@router.post("/pipelines/{name}/runs/{run_id}/retry")
async def retry(*, name: str, run_id: str, call: OperateCall, request: FormRequest) -> Response:
    """Read one failed partition again, from its cursor, as a linked run."""
    del request
    fields = await form_of(call)
    run = await _run_of(call, name, run_id)
    partition = _partition(fields)
    made = await _made(call, name, run.retrying(partition))
    audit(call, "retry", f"partition {partition} of run {run.id}")
    return go_to(call.request, path_of(name), run=made, partition=partition)


# Quarantine and removals


@router.get("/pipelines/{name}/replay")
async def ask_replay(*, name: str, call: OperateCall) -> Response:
    """Ask whether the records in quarantine are to be mapped again."""
    whole(call, name)
    page = await call.run(pipeline_page.read, name)
    told = {"name": name, "count": page.quarantined, "reasons": page.reasons}
    return await _asked(
        call,
        "replay",
        "Replay the quarantine",
        words=("quarantine", "replay", "APP", name),
        **told,
    )


@router.post("/pipelines/{name}/replay")
async def replay(*, name: str, call: OperateCall, request: FormRequest) -> Response:
    """Map all records in quarantine again, as a run of their own."""
    del request
    await form_of(call)
    pipeline = whole(call, name)
    call.principal.check_new(name)
    run_id = await _made(call, name, pipeline.quarantine.replaying(None))
    audit(call, "replay", f"quarantine of pipeline {name}")
    return go_to(call.request, f"/runs/{run_id}")


@router.get("/pipelines/{name}/removals")
async def ask_removals(*, name: str, call: OperateCall, decision: str = "confirm") -> Response:
    """Ask whether records that a full run did not see are to be removed, or kept."""
    whole(call, name)
    page = await call.run(pipeline_page.read, name)
    keys = await call.run(removals.pending, page.row.id, most=10)
    told = {"name": name, "count": page.waiting_removals, "keys": keys, "decision": decision}
    return await _asked(call, "removals", "Removals", words=("removals", "ls", name), **told)


@router.post("/pipelines/{name}/removals")
async def decide(*, name: str, call: OperateCall, request: FormRequest) -> Response:
    """Decide on the records that a full run did not see."""
    del request
    fields = await form_of(call)
    words = {"confirm": removals.CONFIRMED, "dismiss": removals.DISMISSED}
    decision = words.get(one(fields, "decision"))
    if decision is None:
        raise Invalid("decision: expected confirm or dismiss")
    reason = one(fields, "reason") or "decided by hand"
    count = await call.run(whole(call, name).removals.deciding(decision, reason=reason))
    audit(call, decision, f"{count} removals of pipeline {name}")
    return go_to(call.request, path_of(name))


# The watermark


@router.get("/pipelines/{name}/watermark")
async def ask_watermark(*, name: str, call: OperateCall) -> Response:
    """Ask for the time that the watermark is to be set to."""
    return await _watermark_form(call, whole(call, name), {}, "")


async def _watermark_form(
    call: Call, pipeline: Pipeline[Any], typed: dict[str, str], problem: str
) -> Response:
    given: dict[str, Any] = {"name": pipeline.name, "is_time": pipeline.is_time, "typed": typed}
    given |= {"mark": await pipeline.watermark_async(), "problem": problem}
    given["words"] = ("watermark", pipeline.name)
    response = await _asked(call, "watermark", "Set the watermark", **given)
    response.status_code = 422 if problem else 200
    return response


@router.post("/pipelines/{name}/watermark")
async def set_watermark(*, name: str, call: OperateCall, request: FormRequest) -> Response:
    """Set the watermark by hand, with a reason."""
    del request
    fields = await form_of(call)
    pipeline = whole(call, name)
    typed = {key: one(fields, key) for key in ("to", "reason")}
    problems: dict[str, str] = {}
    moment = _moment(typed["to"], "to", problems)
    if moment is None and not problems:
        problems["to"] = "it is missing"
    if not typed["reason"]:
        problems["reason"] = "a reason is recorded with the change"
    if problems:
        return await _watermark_form(call, pipeline, typed, "; ".join(problems.values()))
    await pipeline.override_watermark_async(moment, reason=typed["reason"])
    audit(call, "set the watermark", f"pipeline {name}")
    return go_to(call.request, path_of(name))
