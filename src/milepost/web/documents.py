"""Jobs and runs as the API shows them: in public words, and with one of result and error at last.

Each model is the contract that OpenAPI shows; `document` fills it from a record by its names.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, create_model

from milepost.batch.handles import RunHandle
from milepost.client import Client
from milepost.codec import Codec
from milepost.encrypt import is_sealed
from milepost.errors import Invalid
from milepost.handles import JobHandle
from milepost.lifecycle import JOB, RUN, JobState, RunState
from milepost.records import Job, ResponseRow, Run, RunError, Template
from milepost.request.redact import show_arguments
from milepost.specs import PUBLIC_WORDS, Lifecycle, answer_word, public
from milepost.store import failures
from milepost.subjects import Subject

T = TypeVar("T")
PublicState = Literal["PENDING", "RUNNING", "COMPLETE", "FAILED", "CANCELLED"]
AnswerState = Literal["PENDING", "COMPLETE", "FAIL"]


class Face(msgspec.Struct, frozen=True):
    """How a part of the API shows jobs and runs: under which path, and in which words."""

    jobs: str
    runs: str
    word: Callable[[str], str]


GENERAL = Face("/v1/jobs", "/v1/runs", public)
REQUESTS = Face("/v1/requests", "/v1/requests", answer_word)
"""The face of requests and of their batches, to a caller of spec C."""


def states(word: str | None, known: type[JobState | RunState]) -> str | None:
    """Read a filter, in a public word or the engine's own, as a JSON list of states."""
    if word is None:
        return None
    named = word.upper()
    if named in PUBLIC_WORDS:
        return msgspec.json.encode(PUBLIC_WORDS[named]).decode()
    if named in known.__members__:
        return msgspec.json.encode([named]).decode()
    either = dict.fromkeys([*PUBLIC_WORDS, *known.__members__])
    raise Invalid(f"state={word!r}: expected one of {', '.join(either)}")


class RequestBody(BaseModel):
    """A body that is read strictly: a name that is not known is a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ListDocument(BaseModel, Generic[T]):
    """All there is."""

    items: list[T]


class PageDocument(ListDocument[T], Generic[T]):
    """A page, and the cursor of the next one."""

    next: str | None


def document(model: type[BaseModel], record: object, **values: Any) -> dict[str, Any]:
    """Show a record as a model describes it: its fields by their names, and these values.

    A field of the model that neither has is left out.
    """
    return {
        name: values[name] if name in values else getattr(record, name)
        for name in model.model_fields
        if name in values or hasattr(record, name)
    }


class ErrorDocument(BaseModel):
    """Why a job failed or was cancelled."""

    type: str
    message: str
    cause: str | None = Field(default=None, examples=["attempts_exhausted"])
    code: str | None = Field(default=None, examples=["http_404"])


class FailureDocument(BaseModel):
    """Why one attempt failed."""

    attempt: int
    at: datetime
    type: str
    message: str
    code: str | None = None
    place: str | None = Field(
        default=None,
        description="The innermost frame of the program's own code.",
        examples=["shop/tasks.py:12 in convert"],
    )
    traceback: str | None = Field(
        default=None, description="Frames of the engine are folded; long ones lack their beginning."
    )
    fingerprint: str | None = Field(default=None, description="The group of its error.")


class PastDocument(BaseModel):
    """A job or a run as it stood at a time; a run counts no attempts."""

    subject: str
    id: str
    at: datetime
    state: str
    move: str = Field(description="The last one until then.")
    version: int
    attempt: int
    fence: int
    errors: int
    losses: int
    polls: int
    releases: int


class Receipt(BaseModel):
    """A job as it was accepted."""

    model_config = ConfigDict(extra="allow")

    id: str
    kind: str
    queue: str
    state: PublicState
    job_state: JobState
    done: bool
    duplicate: Literal["same", "different"] | None = Field(
        default=None, description="Where the unique key was taken: whether arguments are the same."
    )


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
    limit: str | None = Field(default=None, description="The rule that limits it, by its name.")
    limit_key: str | None = Field(default=None, description="What the rule counts it under.")
    units: float | None = Field(default=None, description="What it reserves of the rule's rate.")
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
    usage: dict[str, float] = Field(
        default={}, description="What its attempts counted; only where one job is asked for."
    )
    arguments: Any = Field(default=None, description="Only where one job is asked for.")
    fingerprint: str | None = Field(default=None, description="The group of its last error.")


class EntryDocument(BaseModel):
    """One move, as the journal has it; `snapshot` is none: it sums up older moves."""

    seq: int
    move: str
    from_state: str | None = None
    to_state: str
    at: datetime
    actor: str | None = None
    attempt: int
    fence: int
    detail: str | None = None


class HistoryPage(PageDocument[EntryDocument]):
    """A page of the moves of a job or a run, in order."""


class RunReceipt(BaseModel):
    """A run as it was accepted."""

    model_config = ConfigDict(extra="allow")

    id: str
    batch: str
    state: PublicState
    run_state: RunState
    done: bool


class StepDocument(BaseModel):
    """One step of a run: its jobs by state."""

    name: str
    role: str
    gated: bool
    opened: bool
    counts: dict[str, int]


class RunErrorDocument(BaseModel):
    """Why one job of a run failed."""

    job_id: str
    step: str
    type: str
    message: str
    cause: str | None = None
    code: str | None = Field(default=None, examples=["http_404"])
    ordinal: int | None = Field(default=None, description="Its place among those of its step.")


class RunSummary(BaseModel):
    """A run, without its steps."""

    id: str
    batch: str
    version: int
    queue: str
    priority: int
    state: PublicState = Field(description="Where it stands, in a public word.")
    run_state: RunState = Field(description="Where it stands, in the engine's own word.")
    done: bool
    cause: str | None = None
    tags: dict[str, str]
    tenant: str | None = None
    channel: str | None = None
    resumes: str | None = None
    parent_run: str | None = Field(default=None, description="The batch that it is an item of.")
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    deadline_at: datetime | None = None


class RunDocument(RunSummary):
    """A run as it stands; once it is `done` there is exactly one of `result` and `error`."""

    result: Any = Field(default=None, description="Its report; only if it is COMPLETE.")
    error: ErrorDocument | None = Field(
        default=None, description="Why it ended; only if it is FAILED or CANCELLED."
    )
    progress: float
    current_step: str | None = None
    eta_seconds: float | None = None
    error_count: int = Field(description="Jobs that failed or were lost, recovered ones included.")
    steps: list[StepDocument]
    errors: list[RunErrorDocument] = Field(description="Why jobs of it failed: the first hundred.")
    parameters: Any = None


class RunPage(PageDocument[RunSummary]):
    """A page of runs, newest first."""


class WordDocument(BaseModel):
    """A job or a run in the word of one of the specs."""

    id: str
    state: str = Field(examples=["IN_PROGRESS"])


def _lifecycle() -> type[BaseModel]:
    fields: dict[str, Any] = {name: (kind, ...) for name, kind in get_type_hints(Lifecycle).items()}
    told = "D's record of a job, in D's names."
    return create_model("LifecycleDocument", __doc__=told, **fields)


LifecycleDocument = _lifecycle()


async def in_words(found: JobHandle[Any] | RunHandle, spec: str) -> object:
    """Say where a job or a run stands in the word of a spec; in D's, the whole record of a job."""
    if spec == "D" and isinstance(found, JobHandle):
        return await found.lifecycle_async()
    return {"id": found.id, "state": found.as_spec(spec)}


class RequestReceipt(Receipt):
    """A request as it was accepted."""

    state: AnswerState  # type: ignore[assignment]  # C's words, in this face alone


class RequestDocument(JobDocument):
    """A request as it stands; once it is `done` there is exactly one of `result` and `error`."""

    state: AnswerState = Field(description="Where it stands, in C's word.")  # type: ignore[assignment]


class RequestBatchReceipt(RunReceipt):
    """A batch of requests as it was accepted."""

    state: AnswerState  # type: ignore[assignment]


class ResponseDocument(BaseModel):
    """The response to one request of a batch, or the end of a batch in it.

    Once it ended, `result` or `error` is there.
    """

    id: str = Field(description="Of the request, or of the batch: GET /v1/requests/{id} shows it.")
    ordinal: int | None = Field(description="Its place in the batch, from 0.")
    state: AnswerState
    job_state: JobState | None = Field(default=None, description="Only of a request.")
    run_state: RunState | None = Field(default=None, description="Only of a batch in the batch.")
    result: Any = None
    error: ErrorDocument | None = None


class RequestBatchDocument(RunDocument):
    """A batch of requests as it stands."""

    responses: list[ResponseDocument] = Field(
        default=[], description="A page of them, in the order of the requests; only in a GET."
    )
    next: str | None = Field(default=None, description="The cursor of the next responses.")

    state: AnswerState = Field(description="Where it stands, in C's word.")  # type: ignore[assignment]


def receipt(subject_id: str, record: Job | Run | Template, face: Face = GENERAL) -> dict[str, Any]:
    """Say that a job or a run was accepted, and how it stands."""
    model: type[BaseModel] = RunReceipt if isinstance(record, Run) else Receipt
    return document(model, record, id=subject_id, **_state(record, face))


def _state(record: Job | Run | Template, face: Face = GENERAL) -> dict[str, Any]:
    """Say the state of a job or a run, in a face's word and the engine's."""
    named: dict[str, Any] = {"state": face.word(record.state)}
    if isinstance(record, Run):
        named |= {"batch": record.kind, "run_state": str(record.state)}
        return named | {"done": record.state in RUN.terminal}
    return named | {"job_state": str(record.state), "done": record.state in JOB.terminal}


def _row(record: Job | Run) -> dict[str, Any]:
    """Say the fields that jobs and runs have in common, where their columns have other names."""
    return {
        **_state(record),
        "version": record.kind_version,
        "tags": msgspec.Raw((record.tags or "{}").encode()),
        "tenant": record.tenant or None,
    }


async def whole_document(
    found: Subject[Any], client: Client, face: Face = GENERAL
) -> dict[str, Any]:
    """Say everything of a job or a run, with its arguments or parameters."""
    return {**await _whole(found, client), **_state(found.record, face)}


async def _whole(found: Subject[Any], client: Client) -> dict[str, Any]:
    record = found.record
    given = show_arguments(
        record.kind,
        carried(record.payload, record.codec, client.codec),
        client.settings.redacted,
    )
    if isinstance(found, JobHandle):
        usage = await found.usage_async()
        return {**job_document(record, client), "usage": usage, "arguments": given}
    assert isinstance(found, RunHandle)  # noqa: S101 - there is no third kind
    errors = await found.errors_async()
    return {
        **run_summary(record),
        **_run_outcome(found, client.codec, errors),
        "progress": found.progress,
        "current_step": found.current_step,
        "eta_seconds": None if found.eta is None else found.eta.total_seconds(),
        "error_count": found.error_count,
        "steps": [document(StepDocument, step) for step in found.steps],
        "errors": errors,
        "parameters": given,
    }


def run_summary(run: Run) -> dict[str, Any]:
    """Say how a run stands, without its steps."""
    return document(RunSummary, run, **_row(run), parent_run=run.parent_id)


def _run_outcome(found: RunHandle, codec: Codec, errors: Sequence[RunError]) -> dict[str, Any]:
    run = found.record
    if run.state == RunState.SUCCEEDED:
        return {"result": carried(run.report, run.codec, codec)}
    if run.state not in RUN.terminal:
        return {}
    return {"error": failures.run_failure(run, found.picture.steps, errors)}


def job_document(job: Job, client: Client) -> dict[str, Any]:
    """Say how a job stands, without its arguments."""
    found = document(
        JobDocument,
        job,
        **_row(job),
        worker=job.worker_id,
        unique=job.unique_key,
        limit_key=job.limit_value,
        run=job.run_id,
        parent=job.parent_id,
        progress=1.0 if job.state == JobState.SUCCEEDED else job.progress or 0.0,
    )
    # The columns of these names are encoded: they are shown decoded, and only one of them.
    del found["result"], found["error"]
    if job.state == JobState.SUCCEEDED:
        return {**found, "result": carried(job.result, job.codec, client.codec)}
    if (error := failures.failure(job)) is not None:
        found["error" if job.state in JOB.terminal else "last_error"] = error
    return found


def response_document(row: ResponseRow, found: RunHandle, codec: Codec) -> dict[str, Any]:
    """Say what became of one request of a batch."""
    told: dict[str, Any] = {"id": row.id, "ordinal": row.ordinal}
    told |= {"state": answer_word(row.state), "run_state" if row.batch else "job_state": row.state}
    if row.state == JobState.SUCCEEDED:
        told["result"] = carried(row.result, found.record.codec, codec)
    elif row.state in JOB.terminal:
        told["error"] = failures.failure(row)
    return told


def carried(data: bytes | None, name: str, codec: Codec) -> Any:
    """Give stored bytes as JSON; those that the app's codec cannot read only by their size."""
    if data is None:
        return None
    if name == "json":
        return msgspec.Raw(data)
    if name != codec.name or is_sealed(data):
        return f"{len(data)} bytes of {name}"
    return codec.decode(data)
