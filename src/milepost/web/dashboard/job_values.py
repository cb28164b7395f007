"""The values that the page of a job is made of."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import msgspec

from milepost.encrypt import is_sealed
from milepost.errors import Invalid
from milepost.filters import TAG, Term, Value, Where, where
from milepost.history import SNAPSHOT, Entry
from milepost.lifecycle import JOB, JobState
from milepost.records import FailedAttempt, Job
from milepost.request.redact import REQUEST_KINDS, show_arguments
from milepost.store import explain, failures
from milepost.store.job_view import JobView
from milepost.store.reasons import JobReason, Reason
from milepost.web.call import Call, Engine
from milepost.web.dashboard import frames, machine, timeline, words

CONTENT_MOST = 12_000
"""How many characters of arguments, a result or a body are shown."""
LINE_MOST = 8_000
"""How many characters of a line of a log are shown."""
DETAIL_MOST = 300
STEP_MOST = 80
PARSED_MOST = 256 * 1024
"""Larger content is shown as it is stored, in part."""
CALM = frozenset(
    {
        *(JobReason.RUNNING, JobReason.SUCCEEDED, JobReason.CANCELLED, JobReason.DUE),
        *(JobReason.IN_LINE, JobReason.BUSY, JobReason.GATE, JobReason.SIGNAL),
        *(JobReason.BROKER, JobReason.TOLD),
        *(JobReason.FINAL, JobReason.OF_RUN, JobReason.RERUN),
    }
)
"""Reasons that are how it should be."""


class Actions(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done to a job now."""

    run_now: bool
    rerun: bool
    only_fresh: bool
    """Whether a rerun begins anew: there is nothing to go on with."""
    cancel: bool
    signal: bool
    release: bool

    @classmethod
    def of(cls, job: Job) -> "Actions":
        """Tell what can be done."""
        waits, is_unfit = job.state == JobState.WAITING, job.phase == "unfit"
        sleeps = waits or job.state == JobState.RETRYING
        final = job.state in JOB.terminal
        again = final and job.run_id is None and job.rerun_by is None and job.payload is not None
        return cls(
            run_now=sleeps and job.due_at is not None and not is_unfit,
            rerun=again,
            only_fresh=job.state == JobState.SUCCEEDED,
            cancel=not final,
            signal=waits and not is_unfit,
            release=waits and is_unfit,
        )


class Content(msgspec.Struct, frozen=True):
    """Arguments or a result as they are shown, or why they are not."""

    text: str = ""
    note: str = ""
    value: Any = None


def content(data: bytes | None, job: Job, engine: Engine, *, arguments: bool = False) -> Content:
    """Show stored bytes as JSON, bounded; say why there are none."""
    if data is None:
        return Content(note="erased" if job.move == "erase" else "none")
    codec = engine.client.codec
    if job.codec != "json" and (job.codec != codec.name or is_sealed(data)):
        return Content(note=f"{words.size(len(data))} of {job.codec}; the key is not here")
    if len(data) > PARSED_MOST:
        text = data[: CONTENT_MOST * 4].decode(errors="replace")[:CONTENT_MOST]
        return Content(text, f"the beginning of {words.size(len(data))}")
    try:
        value = msgspec.json.decode(data) if job.codec == "json" else codec.decode(data)
        if arguments:
            value = show_arguments(job.kind, value, engine.client.settings.redacted)
        return pretty(value)
    except (Invalid, msgspec.MsgspecError, ValueError):
        return Content(note=f"{words.size(len(data))} that cannot be parsed as JSON")


def pretty(value: Any) -> Content:
    """Write a value as JSON that people read, bounded."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if len(text) <= CONTENT_MOST:
        return Content(text, value=value)
    note = f"the first {CONTENT_MOST:,} of {len(text):,} characters"
    return Content(text[:CONTENT_MOST], note, value)


def values(view: JobView, call: Call, attempt: int | None) -> dict[str, Any]:
    """Give everything that the templates take."""
    job = view.job
    told = explain.explained(view.facts)
    given = content(job.payload, job, call.app, arguments=True)
    line = timeline.Timeline.of(view)
    return {
        "job": job,
        "now": view.now,
        "told": told,
        "css": _css(job, told.reasons),
        "alike": max(0, view.alike - 1),
        "actions": Actions.of(job),
        "arguments": given,
        "in_line": _in_line(job, given),
        "result": content(job.result, job, call.app) if job.state == JobState.SUCCEEDED else None,
        "tags": _tags(job),
        "queue_query": str(where(queue=job.queue)),
        "timeline": line,
        "line": timeline.draw(line),
        "walk": walk(view),
        "machine": machine,
        "entries": [(entry, _said(entry)) for entry in reversed(view.moves)],
        "older": sum(view.earlier.values()),
        "lines": view.lines,
        "line_most": LINE_MOST,
        "unkept": view.lines[0].n - 1 if view.lines else 0,
        "steps": [(step, _step_result(step.result, job, call.app)) for step in view.steps],
        "usage": view.usage,
        "message": view.message,
        # Limits count everybody's jobs: their page is for those who may see all.
        "unbound": call.principal.tenant is None and call.principal.queues is None,
        "exchange": _exchange(view),
        "link": str(call.request.url.replace(query="")),
        "trace_id": _trace_id(job.trace),
        **_error(view, attempt),
    }


def _css(job: Job, reasons: Sequence[Reason]) -> str:
    if job.state == JobState.FAILED:
        return "bad"
    return "calm" if CALM.issuperset(reasons) else ""


def _in_line(job: Job, given: Content) -> str:
    request = given.value.get("request") if isinstance(given.value, dict) else None
    if job.kind in REQUEST_KINDS and isinstance(request, dict):
        return words.cut(f"{request.get('method', 'GET')} {request.get('url', '')}", 120)
    if isinstance(given.value, dict):
        return words.arguments((), given.value)
    return words.cut(given.text, 120) if given.text else ""


def _tags(job: Job) -> list[tuple[str, str, str]]:
    """Give tags as name, value and the filter that finds jobs with it, and the tenant."""
    tags = msgspec.json.decode(job.tags) if job.tags else {}
    found = [
        (name, value, str(Where((Term(TAG, (Value(value),), name=name),))))
        for name, value in tags.items()
    ]
    if job.tenant:
        found.append(("tenant", job.tenant, str(where(tenant=job.tenant))))
    return found


def _step_result(result: bytes | None, job: Job, engine: Engine) -> str:
    if result is None:
        return ""
    shown = content(result, job, engine)
    return words.cut(shown.text or shown.note, STEP_MOST)


def _trace_id(trace: str | None) -> str | None:
    parts = (trace or "").split("-")
    return parts[1] if len(parts) > 1 else None


# Errors


def _error(view: JobView, attempt: int | None) -> dict[str, Any]:
    found = view.failures
    chosen = [one for one in found if one.attempt == attempt] or list(found)
    failed = chosen[-1] if chosen else None
    return {
        "failures": found,
        "failed": failed,
        "same": [
            str(one.attempt)
            for one in found
            if failed is not None and one is not failed and one.fingerprint == failed.fingerprint
        ],
        "blocks": _blocks(failed),
        "last_words": None if failed else failures.failure(view.job),
        "sealed": failed is not None and failed.message.startswith("sealed:"),
    }


def _blocks(failed: FailedAttempt | None) -> list[frames.Block]:
    if failed is None or not failed.traceback:
        return []
    return frames.blocks(failed.traceback, failed.place)


# The path


def walk(view: JobView) -> machine.Walk:
    """Tell the path of a job, from its history."""
    moves: dict[machine.Pair, dict[str, int]] = {}
    for (name, source, target), number in view.earlier.items():
        if name != SNAPSHOT:
            moves.setdefault((source, target), {})[name] = number
    for entry in view.moves:
        if entry.move != SNAPSHOT:
            made = moves.setdefault((entry.from_state or "", entry.to_state), {})
            made[entry.move] = made.get(entry.move, 0) + 1
    whole = not view.earlier and not any(entry.move == SNAPSHOT for entry in view.moves)
    spent = _spent(view.moves) if whole else {}
    return machine.Walk(moves, view.job.state, {**spent, **_since(view)})


def _spent(moves: Sequence[Entry]) -> Mapping[str, str]:
    seconds: dict[str, float] = {}
    for entry, after in pairwise(moves):
        if entry.at is not None and after.at is not None:
            passed = (after.at - entry.at).total_seconds()
            seconds[entry.to_state] = seconds.get(entry.to_state, 0.0) + passed
    return {state: words.duration(passed) for state, passed in seconds.items()}


def _since(view: JobView) -> Mapping[str, str]:
    entered: datetime | None = None
    for entry in view.moves:
        if entry.from_state != entry.to_state:
            entered = entry.at
    final = view.job.state in JOB.terminal
    if entered is None:
        return {}
    # A box has room for no more.
    told = f"{'at' if final else 'since'} {words.clock(entered, seconds=final)}"
    return {view.job.state: told}


# Requests


def _exchange(view: JobView) -> dict[str, Any] | None:
    """Read the last request and reply of a job that sends one, as they were noted."""
    if view.job.kind not in REQUEST_KINDS:
        return None
    found: dict[str, Any] = {}
    for entry in view.moves:
        noted = _noted(entry)
        if noted.get("phase") in ("REQUEST", "RESPONSE"):
            found[noted["phase"].lower()] = {**noted, "at": entry.at}
    return found or None


def _noted(entry: Entry) -> dict[str, Any]:
    """Read the note of a request or its reply; empty if it is none."""
    if entry.move != "note" or not (entry.detail or "").startswith('{"phase":"RE'):
        return {}
    try:
        found = msgspec.json.decode(entry.detail or "")
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _said(entry: Entry) -> str:
    """Say the detail of a move in a line."""
    if entry.summary is not None:
        return str(entry.summary)
    if noted := _noted(entry):
        parts = (noted.get(name) for name in ("phase", "method", "status", "url"))
        return words.cut(" ".join(str(part) for part in parts if part), DETAIL_MOST)
    fence = f"fence {entry.fence}" if entry.move == "claim" else ""
    return words.cut(entry.detail or fence, DETAIL_MOST)
