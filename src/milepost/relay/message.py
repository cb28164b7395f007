"""The content of a message: a CloudEvent 1.0, built from the rows whenever it is delivered.

Nothing of it is stored, so erased values are not told afterwards, and a batch of a thousand
responses takes no room in the outbox. Its id and its time are the outbox row's: they stay the same.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from milepost.lifecycle import RUN, Cause, JobState, RunState
from milepost.records import Job, JobError, Run, RunError, StepCount
from milepost.specs import answer_word, public
from milepost.store import failures, fanin, jobs, outbox, runs
from milepost.store.driver import Steps
from milepost.store.outbox import Message
from milepost.store.seal import as_stored
from milepost.store.watermarks import STALE

MOST_BYTES = 1_000_000
"""How large an event may be: a NATS server's default limit, less its headers."""

CONTENT_TYPE = "application/cloudevents+json"
ENVELOPE = 4_000
"""Room for the members around the children of a run."""
PORTION = 1_000_000
TEXT_MOST = 10_000
"""How much of an error's text is told (H-105); the whole of it is in the store."""

ERRORS_MOST, ERROR_TEXT = 20, 1_000
"""How many failed jobs of a run are told apart from its children, and how much of each text."""

COPIED = ("channel", "kind", "machine", "queue", "tenant")
NAMES = tuple(
    sorted((*COPIED, "error", "id", "message_id", "severity", "state", "subject", "time"))
)
"""The names that a template for people may use."""
COUNTED = ("name", "succeeded", "failed", "cancelled")

_Error = TypeVar("_Error", JobError, RunError, JobError | None)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class CloudEvent(msgspec.Struct, frozen=True):
    """An event, ready to be sent: `body` is its structured JSON, `told` the names of templates.

    Events of one `key` are of one line: a job and its reruns.
    """

    id: str
    traceparent: str | None
    body: bytes
    told: Mapping[str, str]
    key: str | None = None


def read_traceparent(trace: str | None) -> str | None:
    """Give a trace context if it is one that others can read."""
    return trace if trace is not None and _TRACEPARENT.fullmatch(trace) else None


def compose(message: Message, *, most: int = MOST_BYTES) -> Steps[CloudEvent]:
    """Build the event of a message: members that would make it larger than so much are left out.

    Values that a codec has sealed are passed on sealed, but for errors, which people read.
    """
    return (yield from as_stored(_compose(message, most=most)))


def _compose(message: Message, *, most: int) -> Steps[CloudEvent]:
    if message.machine == "run" and message.state not in RUN.terminal:
        return _signal(message, {"type": "CONSOLIDATE", "runId": message.subject_id})
    if message.machine == "job":
        job = yield from jobs.get(message.subject_id)
        if job.role == "partition":
            return _signal(message, (yield from _work_done(job)))
        data = _job(job)
        told = _digest(message, job.error, job.cancel_reason or job.cause)
        if alert := _stale(job):
            data["alert"] = alert
            told |= _headline(alert, f"{alert['title']}: {alert['text']}")
    else:
        run = yield from runs.get(message.subject_id)
        data = yield from _run(run, room=most)
        told = _digest(message, run.error, run.cause)
        if alert := _alert(run):
            data["alert"] = alert
            why = f"{alert['title']}: {alert['text']} ({run.cause or 'cancelled'})"
            told |= _headline(alert, why)
    trace, body = read_traceparent(message.trace), _fit(message, data, most)
    return CloudEvent(message.id, trace, body, told, message.line)


def _fit(message: Message, data: dict[str, Any], most: int) -> bytes:
    """Write the envelope; members that do not fit stay where GET finds them, and are named."""
    body, kept, left = _body(message, data), dict(data), []
    for name in ("result", "jobs", "tags"):
        if len(body) <= most:
            break
        if kept.pop(name, None) is not None:
            left.append(name)
            body = _body(message, {**kept, "left_out": left})
    return body


def _work_done(job: Job) -> Steps[dict[str, Any]]:
    """Tell of a partition that ended in the words of B's `worker_runs`."""
    worker, records = yield from outbox.worker_run(job.id)
    error = None if job.state == JobState.SUCCEEDED else _cut(failures.failure(job))
    return {
        "type": "WORK_DONE",
        "runId": job.run_id,
        "partitionId": f"partition-{job.ordinal}",
        "workerId": worker,
        "status": "completed" if error is None else "failed",
        "recordsProcessed": records,
        "errorMessage": error and error.message,
        "startedAt": job.started_at,
        "completedAt": job.finished_at,
    }


def _signal(message: Message, data: dict[str, Any]) -> CloudEvent:
    """Build one of B's two messages of a pipeline's run, with B's fields; people read its type."""
    word, trace = data["type"], read_traceparent(message.trace)
    data["traceId"] = trace and trace.split("-")[1]
    body = _body(message, data, type_=f"milepost.pipeline.{word.lower()}")
    told = _digest(message, None, data.get("errorMessage"))
    told["subject"] = f"{message.kind} {word}"
    if word == "CONSOLIDATE":
        told["severity"] = "info"
    return CloudEvent(message.id, trace, body, told, message.line)


def _body(message: Message, data: Mapping[str, Any], *, type_: str | None = None) -> bytes:
    traceparent = read_traceparent(message.trace)
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": message.id,
            "source": f"/v1/{message.machine}s",
            "type": type_ or f"milepost.{message.machine}.{message.state.lower()}",
            "subject": message.subject_id,
            "time": message.created_at,
            "datacontenttype": "application/json",
            **({"tenant": message.tenant} if message.tenant else {}),
            **({} if traceparent is None else {"traceparent": traceparent}),
            "data": data,
        }
    )


def _digest(message: Message, error: str | None, why: str | None) -> dict[str, str]:
    reason = _read_error(error).get("message") or why or ""
    state = public(message.state)
    return {
        **{name: getattr(message, name) for name in COPIED},
        "subject": f"{message.kind} {state}",
        "severity": "info" if message.state == JobState.SUCCEEDED else "error",
        "error": "" if message.state == JobState.SUCCEEDED else str(reason)[:TEXT_MOST],
        "id": message.subject_id,
        "message_id": message.id,
        "state": state,
        "time": message.created_at.isoformat(timespec="seconds"),
    }


def _headline(alert: Mapping[str, str], error: str) -> dict[str, str]:
    """Give a template the words of an alert: B's "Consolidation Failed", not "diamonds FAIL"."""
    return {"subject": alert["title"], "severity": alert["severity"], "error": error}


def _common(record: Job | Run) -> dict[str, Any]:
    """Give the members that jobs and runs share, but for their states."""
    return {
        "id": record.id,
        "kind": record.kind,
        "state": answer_word(record.state),
        "done": True,
        **({"tags": msgspec.Raw(record.tags.encode())} if record.tags else {}),
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
    }


def _job(job: Job) -> dict[str, Any]:
    return {
        **_common(job),
        "queue": job.queue,
        "job_state": job.state.value,
        "attempt": job.attempt,
        **_end(job),
        **({"run": job.run_id, "step": job.step} if job.run_id else {}),
        **({"rerun_of": job.rerun_of} if job.rerun_of else {}),
    }


def _end(job: Job) -> dict[str, Any]:
    """Tell exactly one of the result and the error."""
    if job.state == JobState.SUCCEEDED:
        return {"result": _pass_on(job.result, job.codec)}
    return {"error": _cut(failures.failure(job))}


def _read_error(error: str | None) -> dict[str, Any]:
    return {} if error is None else msgspec.json.decode(error)


def _cut(error: _Error, most: int = TEXT_MOST) -> _Error:
    """Cut the text of an error to so much."""
    return error and msgspec.structs.replace(error, message=error.message[:most])


def _pass_on(data: bytes | None, codec: str) -> Any:
    """Give stored bytes: JSON as it stands; anything else sealed, for a receiver with the key."""
    if data is None:
        return None
    return msgspec.Raw(data) if codec == "json" else {"codec": codec, "base64": data}


def _run(run: Run, *, room: int) -> Steps[dict[str, Any]]:
    counted = yield from fanin.steps(run.id)
    failed = yield from failures.children(run.id, most=ERRORS_MOST)
    data: dict[str, Any] = {
        **_common(run),
        "run_state": run.state.value,
        **_outcome(run, counted, failed),
        **({"resumes": run.resumes} if run.resumes else {}),
        **({"parent_run": run.parent_id} if run.parent_id else {}),
        "steps": [{name: getattr(step, name) for name in COUNTED} for step in counted],
    }
    there = sum(step.succeeded + step.lost for step in counted)
    children = yield from _children(run.id, room - len(msgspec.json.encode(data)) - ENVELOPE)
    return {**data, "jobs": children, "jobs_left_out": max(0, there - len(children))}


def _alert(run: Run) -> dict[str, str] | None:
    """Say in B's two texts that a run of a pipeline did not end well."""
    if run.mode is None or run.state == RunState.SUCCEEDED:
        return None
    if run.state == RunState.CANCELLED:
        return {
            "title": "Run Cancelled",
            "text": f"Run {run.id} was cancelled. Watermark NOT advanced.",
            "severity": "warning",
        }
    return {
        "title": "Consolidation Failed",
        "text": f"Run {run.id} failed. Watermark NOT advanced.",
        "severity": "critical" if run.cause == Cause.WATERMARK_CONFLICT else "error",
    }


def _stale(job: Job) -> dict[str, str] | None:
    """Say that a pipeline is not fresh, if the job is one that tells it."""
    stored = _read_error(job.error)
    if not job.kind.endswith(STALE) or stored.get("type") != "Stale":
        return None
    return {"title": "Pipeline Stale", "text": stored["message"], "severity": "warning"}


def _outcome(run: Run, counted: Sequence[StepCount], failed: Sequence[RunError]) -> dict[str, Any]:
    """Tell the report, or why it failed; either way the first jobs that did not succeed."""
    errors = {"errors": [_cut(one, ERROR_TEXT) for one in failed]} if failed else {}
    if run.state == RunState.SUCCEEDED:
        return {"result": _pass_on(run.report, run.codec), **errors}
    return {"error": _cut(failures.run_failure(run, counted, failed)), **errors}


def _children(run_id: str, room: int) -> Steps[list[dict[str, Any]]]:
    """Read the children that fit, in their order: never more bytes at once than may be told."""
    told: list[dict[str, Any]] = []
    sized = yield from outbox.children(run_id)
    batches = {item_id for item_id, _, batch in sized if batch}
    for ids in _portions(sized, room):
        found = yield from jobs.find([item_id for item_id in ids if item_id not in batches])
        for item_id in ids:
            if item_id in batches:
                told.append((yield from _batch(item_id)))
            elif item_id in found:
                told.append(_child(found[item_id]))
    return told


def _batch(run_id: str) -> Steps[dict[str, Any]]:
    """Tell how a batch within the batch ended; its own children are in a message of its own."""
    run = yield from runs.get(run_id)
    told = {"id": run.id, "kind": run.kind, "step": 0, "ordinal": run.ordinal}
    told |= {"state": answer_word(run.state), "run_state": run.state.value}
    if run.state == RunState.SUCCEEDED:
        return {**told, "result": _pass_on(run.report, run.codec)}
    return {**told, "error": _cut((yield from failures.batch_failure(run_id)))}


def _portions(sized: list[tuple[str, int, bool]], room: int) -> list[list[str]]:
    portions: list[list[str]] = [[]]
    taken = 0
    for job_id, size, _ in sized:
        room -= size
        if room < 0:
            break
        if taken + size > PORTION:
            portions.append([])
            taken = 0
        taken += size
        portions[-1].append(job_id)
    return [portion for portion in portions if portion]


def _child(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "step": job.step,
        "ordinal": job.ordinal,
        "state": answer_word(job.state),
        "job_state": job.state.value,
        **_end(job),
    }
