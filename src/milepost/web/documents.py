"""Jobs as the API shows them: the public words, and exactly one of result and error at the end."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec
from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from milepost.client import Client
from milepost.codec import Codec
from milepost.encrypt import is_sealed
from milepost.errors import Invalid
from milepost.lifecycle import JOB, JobState, RunState
from milepost.records import Entry, Job
from milepost.request.redact import shown
from milepost.web.idempotency import Answer

PublicState = Literal["PENDING", "RUNNING", "COMPLETE", "FAILED", "CANCELLED"]

WORDS: dict[str, tuple[str, ...]] = {
    "PENDING": ("CREATED", "GATED", "WAITING", "READY", "QUEUED", "RETRYING"),
    "RUNNING": ("RUNNING", "STOPPING", "FINALIZING"),
    "COMPLETE": ("SUCCEEDED",),
    "FAILED": ("FAILED",),
    "CANCELLED": ("CANCELLED",),
}
"""The public words for the states of jobs and runs."""

_PUBLIC = {state: word for word, found in WORDS.items() for state in found}
RETRY_SECONDS = 1


def public(state: str) -> str:
    """Say a state in a public word."""
    return _PUBLIC[str(state)]


def states(word: str | None, known: type[JobState | RunState]) -> str | None:
    """Read a filter, in a public word or the engine's own, as a JSON list of states."""
    if word is None:
        return None
    if word in WORDS:
        return msgspec.json.encode(WORDS[word]).decode()
    if word in known.__members__:
        return msgspec.json.encode([word]).decode()
    raise Invalid(f"state={word!r}: expected one of {', '.join([*WORDS, *known.__members__])}")


class ErrorDocument(BaseModel):
    """Why a job failed or was cancelled."""

    type: str
    message: str
    cause: str | None = Field(default=None, examples=["attempts_exhausted"])
    code: str | None = None


class Receipt(BaseModel):
    """A job as it was accepted."""

    model_config = ConfigDict(extra="allow")

    id: str
    kind: str
    queue: str
    state: PublicState
    job_state: JobState
    done: bool


class JobDocument(BaseModel):
    """A job as it stands; once it is `done` there is exactly one of `result` and `error`."""

    id: str
    kind: str
    version: int
    queue: str
    priority: int
    state: PublicState = Field(description="Where it stands, in a public word.")
    job_state: JobState = Field(description="Where it stands, in the engine's own word.")
    done: bool
    result: Any = Field(default=None, description="What it returned; only if it is COMPLETE.")
    error: ErrorDocument | None = Field(
        default=None, description="Why it ended; only if it is FAILED or CANCELLED."
    )
    last_error: ErrorDocument | None = Field(
        default=None, description="Why its last attempt failed, while it goes on."
    )
    progress: float
    progress_text: str | None = None
    attempt: int
    errors: int
    losses: int
    polls: int
    releases: int
    retries: int
    phase: str | None = None
    worker: str | None = None
    tags: dict[str, str]
    unique: str | None = None
    tenant: str | None = None
    channel: str | None = None
    run: str | None = None
    step: int | None = None
    parent: str | None = Field(default=None, description="The job that it came of.")
    rerun_of: str | None = Field(default=None, description="The job that it runs again.")
    rerun_by: str | None = Field(default=None, description="The job that runs it again.")
    cancel_reason: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    due_at: datetime | None = None
    deadline_at: datetime | None = None
    arguments: Any = Field(default=None, description="Only where one job is asked for.")


class EntryDocument(BaseModel):
    """One move, as the journal has it; `snapshot` is none: it sums up what was too old."""

    seq: int
    move: str
    from_state: str | None = None
    to_state: str
    at: datetime
    actor: str | None = None
    attempt: int
    fence: int
    detail: str | None = None


def job_document(job: Job, client: Client, *, whole: bool = False) -> dict[str, Any]:
    """Say how a job stands; the `whole` of it has its arguments too."""
    document: dict[str, Any] = {
        "id": job.id,
        "kind": job.kind,
        "version": job.kind_version,
        "queue": job.queue,
        "priority": job.priority,
        "state": public(job.state),
        "job_state": job.state.value,
        "done": job.state in JOB.terminal,
        "progress": 1.0 if job.state == JobState.SUCCEEDED else job.progress or 0.0,
        "progress_text": job.progress_text,
        "attempt": job.attempt,
        "errors": job.errors,
        "losses": job.losses,
        "polls": job.polls,
        "releases": job.releases,
        "retries": job.retries,
        "phase": job.phase,
        "worker": job.worker_id,
        "tags": msgspec.Raw((job.tags or "{}").encode()),
        "unique": job.unique_key,
        "tenant": job.tenant or None,
        "channel": job.channel,
        "run": job.run_id,
        "step": job.step,
        "parent": job.parent_id,
        "rerun_of": job.rerun_of,
        "rerun_by": job.rerun_by,
        "cancel_reason": job.cancel_reason,
        "created_at": job.created_at,
        "started_at": job.started_at,
        "finished_at": job.finished_at,
        "due_at": job.due_at,
        "deadline_at": job.deadline_at,
    }
    document |= _outcome(job, client.codec)
    if whole:
        given = carried(job.payload, job.codec, client.codec)
        document["arguments"] = shown(job.kind, given, client.settings.redacted)
    return document


def _outcome(job: Job, codec: Codec) -> dict[str, Any]:
    if job.state == JobState.SUCCEEDED:
        return {"result": result_of(job, codec)}
    error = job_error(job)
    return {"error" if job.state in JOB.terminal else "last_error": error} if error else {}


def result_of(job: Job, codec: Codec) -> Any:
    """Give what it returned; None when that was erased."""
    return carried(job.result, job.codec, codec)


def carried(data: bytes | None, name: str, codec: Codec) -> Any:
    """Give stored bytes as JSON; those that the app's codec cannot read only by their size."""
    if data is None:
        return None
    if name == "json":
        return msgspec.Raw(data)
    if name != codec.name or is_sealed(data):
        return f"{len(data)} bytes of {name}"
    return codec.decode(data)


def job_error(job: Job) -> dict[str, Any] | None:
    """Say why it failed or was cancelled; None while nothing went wrong."""
    if job.state == JobState.CANCELLED:
        reason = job.cancel_reason or "cancelled"
        return {"type": "Cancelled", "message": reason, "cause": job.cause}
    if job.error is not None:
        stored = msgspec.json.decode(job.error)
        told = {name: stored.get(name) for name in ("type", "message", "code")}
        return {**told, "cause": job.cause}
    if job.state not in JOB.terminal:
        return None
    return {"type": job.cause or "unknown", "message": f"ended by {job.move}", "cause": job.cause}


def entries(found: list[Entry]) -> list[dict[str, Any]]:
    """Say a history."""
    names = ("seq", "move", "from_state", "to_state", "at", "actor", "attempt", "fence", "detail")
    return [{name: getattr(entry, name) for name in names} for entry in found]


def etag(body: bytes) -> str:
    """Mark a body, so that a caller who has it need not get it again."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def matches(given: str, tag: str) -> bool:
    """Tell whether an If-None-Match names this mark."""
    return any(each.strip().removeprefix("W/") in (tag, "*") for each in given.split(","))


def standing(body: bytes, *, done: bool, known: str | None, more: Mapping[str, str]) -> Response:
    """Say how something stands, or that this is what the caller already knows."""
    headers = {"ETag": etag(body), "Cache-Control": "no-cache", **more}
    if not done:
        headers["Retry-After"] = str(RETRY_SECONDS)
    if known is not None and matches(known, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


def accepted(document: dict[str, Any], location: str, *, status: int = 202) -> Answer:
    """Say that something was accepted, where it is, and when to look."""
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 202 else {}  # noqa: PLR2004
    return Answer(status, msgspec.json.encode(document), location, headers)
