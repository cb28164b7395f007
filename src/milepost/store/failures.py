"""Why jobs and runs ended badly: one account for handles, for the API and for final messages."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from milepost.errors import NotFound
from milepost.lifecycle import Cause, JobState, RunState
from milepost.records import (
    ErrorDetail,
    ErrorGroup,
    FailedAttempt,
    Job,
    JobError,
    ResponseRow,
    Run,
    RunError,
    Settlement,
    StepCount,
)
from milepost.specs import CANCELLED, EXPIRED
from milepost.store import fanin, runs
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.tracebacks import fingerprint

ERROR_WORDS = ("error_type", "error_code", "fingerprint")
"""The columns by which a job is found by its last error."""
_CODE = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

NAMED = 3
"""How many of its children the text of a failed run names; `errors` has more."""
NAMED_TEXT = 300
ATTEMPTS = 1_000
"""How many failed attempts of a job are read at once, and how many are shown with it."""
SHOWN = 20
GROUPS = 10_000
"""How many errors are told apart in a list: any beyond that may be the one that was seen last."""
LOOK = 1_000
"""How many jobs of each error of a list are asked how they stand now."""
LOOK_CLOSELY = 10_000
"""The same, where one error is asked for."""
HOURS = 24
EXAMPLES = 10
UNKNOWN = "no reason was recorded"

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        Cause.DEADLINE: EXPIRED,
        Cause.POISONED: "it was lost too often: each time its worker died or its lease expired",
        Cause.ATTEMPTS_EXHAUSTED: "its attempts are spent, and the last one was lost",
        Cause.POLL_LIMIT: "it was still pending at its poll limit",
        Cause.REJECTED: "no worker could take it; its history says why",
        Cause.OUTCOME_UNKNOWN: "it was lost after it may have taken effect: look there, then "
        "rerun the job or leave it",
        Cause.WATERMARK_CONFLICT: "another run moved the watermark meanwhile",
    }
)
"""What happened, where a job or a run ended without an error of its own."""


def failure(job: Job | ResponseRow) -> JobError | None:
    """Say why a job failed or was cancelled, or why its last attempt failed; None if none did."""
    if job.state == JobState.CANCELLED:
        return JobError("Cancelled", job.cancel_reason or CANCELLED, job.cause, CANCELLED)
    found = last_error(job.error, job.cause)
    if found is None and job.state == JobState.FAILED:
        return JobError("unknown", UNKNOWN)
    return found


def last_error(error: str | None, cause: str | None) -> JobError | None:
    """Read the last error of a job, or make one of the cause that ended it without any."""
    if error is not None:
        stored = _read(error)
        kind, text = stored.get("type") or cause or "unknown", stored.get("message") or UNKNOWN
        return JobError(kind, str(text), cause, stored.get("code"))
    return None if cause is None else JobError(cause, TEXTS.get(cause, UNKNOWN), cause, cause)


def attempts(job_id: str, *, most: int = ATTEMPTS) -> Steps[list[FailedAttempt]]:
    """Read why attempts of a job failed, in order; of very many the last ones."""
    rows = yield Call("failure_list", {"id": job_id, "most": most})
    return [attempt_of(*row) for row in reversed(rows)]


def attempt_of(fence: int, at: Any, error: str, fingerprint: str) -> FailedAttempt:
    """Read a stored failure."""
    stored = _read(error)
    return FailedAttempt(
        attempt=int(stored.get("attempt") or fence),
        at=instant(at),
        type=str(stored.get("type") or "unknown"),
        message=str(stored.get("message") or ""),
        code=stored.get("code"),
        place=stored.get("place"),
        traceback=stored.get("traceback"),
        fingerprint=fingerprint,
        fence=fence,
    )


def traces(job_ids: Sequence[str]) -> Steps[dict[str, str]]:
    """Read the trace context of the last failed attempt of each job that had one."""
    rows = yield Call("failure_last", {"id": list(job_ids)})
    found = {job_id: _read(error).get("trace") for job_id, error in rows}
    return {job_id: str(trace) for job_id, trace in found.items() if trace}


def groups(*, most: int = 50, fingerprint: str | None = None) -> Steps[list[ErrorGroup]]:
    """Read the errors that were seen last, each once, with how often and since when."""
    look = LOOK if fingerprint is None else LOOK_CLOSELY
    asked = {"most": most, "groups": GROUPS, "fingerprint": fingerprint}
    rows = yield Call("error_groups", asked)
    if not rows:
        return []
    # Of two jobs that failed at the same instant one is enough.
    told = {row[0]: row for row in reversed(rows)}
    named = [row[0] for row in rows if told[row[0]] is row]
    hours: dict[str, list[int]] = {name: [0] * HOURS for name in named}
    counts = Counter[str]()
    now: dict[str, tuple[int, int, bool]] = {}
    for row in (yield Call("error_counts", {"fingerprint": named, "look": look})):
        name, back, count, failed, going_on, looked = row
        if count is None:
            now[name] = failed, going_on, looked >= look
            continue
        counts[name] += count
        if back is not None:
            hours[name][HOURS - 1 - back] = count
    return [_group(told[name], counts[name], now[name], hours=hours[name]) for name in named]


def _group(
    row: Sequence[Any], count: int, now: tuple[int, int, bool], *, hours: Sequence[int]
) -> ErrorGroup:
    fingerprint, first_at, last_at, job_id, fence, error, kind = row
    failed, going_on, more = now
    last = attempt_of(fence, last_at, error, fingerprint)
    return ErrorGroup(
        fingerprint=fingerprint,
        type=last.type,
        message=last.message,
        code=last.code,
        place=last.place,
        kind=kind,
        count=count,
        more=more,
        failed=failed,
        open=going_on,
        first_at=instant(first_at),
        last_at=last.at,
        job_id=job_id,
        hours=tuple(hours),
    )


def group(fingerprint: str) -> Steps[ErrorDetail]:
    """Read one error: its last examples, and what its jobs share; or raise `NotFound`."""
    found = yield from groups(most=1, fingerprint=fingerprint)
    if not found:
        raise NotFound(f"there is no error {fingerprint!r}; `milepost errors ls` lists them")
    rows = yield Call("error_examples", {"fingerprint": fingerprint, "most": EXAMPLES})
    jobs = yield Call("error_jobs", {"fingerprint": fingerprint, "look": LOOK})
    shared = {
        name: dict(Counter(str(row[place]) for row in jobs).most_common(EXAMPLES))
        for place, name in enumerate(("kind", "version", "queue", "tenant"))
    }
    examples = tuple((job_id, attempt_of(*row)) for job_id, *row in rows)
    return ErrorDetail(found[0], examples, shared)


def beginning_with(beginning: str, *, most: int) -> Steps[list[str]]:
    """Name the fingerprints that begin so; a whole one is meant, whatever else begins so."""
    asked = {"beginning": beginning, "groups": GROUPS, "most": most}
    found = [row[0] for row in (yield Call("error_begins", asked))] if beginning else []
    return found[:1] if beginning in found else found


def _read(error: str) -> dict[str, Any]:
    try:
        stored = msgspec.json.decode(error)
    except msgspec.DecodeError:  # somebody else wrote it
        stored = None
    return stored if isinstance(stored, dict) else {"message": error}


def children(run_id: str, *, most: int) -> Steps[list[RunError]]:
    """Read why jobs of a run failed, and then why batches within it did, in the order of ids."""
    rows = yield Call("run_errors", {"id": run_id, "most": most})
    told = []
    for child_id, step, ordinal, cause, error, batch in rows[:most]:
        found = (yield from batch_failure(child_id)) if batch else last_error(error, cause)
        found = found or JobError("unknown", UNKNOWN)
        told.append(RunError(child_id, step, found.type, found.message, cause, found.code, ordinal))
    return told or (yield from _cancelled(run_id, most=most))


def _cancelled(run_id: str, *, most: int) -> Steps[list[RunError]]:
    """Read why items were cancelled that a run failed for: none of them failed."""
    told = []
    for child_id, step, ordinal, reason, batch in (
        yield Call("run_cancelled", {"id": run_id, "most": most})
    ):
        text = (yield from batch_failure(child_id)).message if batch else reason
        if not text.endswith(runs.STOPPED):
            told.append(RunError(child_id, step, "Cancelled", text, None, CANCELLED, ordinal))
    return told[:most]


def batch_failure(run_id: str) -> Steps[JobError]:
    """Say why a batch within another did not succeed, and name the first of its own that failed."""
    run, counted = (yield from runs.get(run_id)), (yield from fanin.steps(run_id))
    return run_failure(run, counted, (yield from children(run_id, most=1)))


def run_failure(run: Run, steps: Sequence[StepCount], failed: Sequence[RunError]) -> JobError:
    """Say why a run failed or was cancelled: which of its jobs failed, and why."""
    stored = {} if run.error is None else _read(run.error)
    told = [TEXTS[run.cause]] if run.cause and run.cause in TEXTS else []
    if run.cause == Cause.POLICY:
        told = breaches(steps)
    if stored.get("message"):
        told = [str(stored["message"])]
    if failed or any(step.failed for step in steps):
        told.append(_named(steps, failed))
    if run.state == RunState.CANCELLED:
        text = "; ".join(dict.fromkeys([CANCELLED, *told]))
        return JobError("Cancelled", text, run.cause, CANCELLED)
    kind = stored.get("type") or run.cause or "unknown"
    code = stored.get("code") or run.cause
    return JobError(kind, "; ".join(told) or UNKNOWN, run.cause, code)


def breaches(steps: Sequence[StepCount]) -> list[str]:
    """Say in numbers which step broke the policy of its run: the first that did."""
    return [step.breach for step in steps if step.breach][:1]


def _named(steps: Sequence[StepCount], failed: Sequence[RunError]) -> str:
    total = sum(step.open + step.succeeded + step.lost for step in steps)
    ended, count = "failed", sum(step.failed for step in steps)
    if not count:
        ended, count = "were cancelled", sum(step.lost for step in steps)
    shown = [_label(one) for one in failed[:NAMED]]
    more = [f"and {count - len(shown)} more"] if shown and count > len(shown) else []
    text = f"{count} of {total} jobs {ended}"
    return f"{text}: {'; '.join([*shown, *more])}" if shown else text


def _label(one: RunError) -> str:
    name = f"{one.step} {one.job_id if one.ordinal is None else one.ordinal}"
    return f"{name} ({one.code or one.type}): {one.message[:NAMED_TEXT]}"


def error_words(settlements: Sequence[Settlement]) -> dict[str, list[str | None]]:
    """Give what errors are searched by; where nothing failed, lists of nothing, which are NULLs."""
    if all(s.outcome.problem is None for s in settlements):
        return {name: [] for name in ERROR_WORDS}
    words = [
        (problem.type, _searched(problem.code), fingerprint(problem, kind=s.claim.kind))
        if (problem := s.outcome.problem)
        else (None, None, None)
        for s in settlements
    ]
    return dict(zip(ERROR_WORDS, map(list, zip(*words, strict=True)), strict=True))


def _searched(code: str | None) -> str | None:
    """Give a code that is a word; a text, which may say anything, is not stored in the clear."""
    return code if code is not None and _CODE.fullmatch(code) else None
