"""What an attempt can come to, as a value. A worker returns one; the store alone writes it."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import msgspec

from milepost.lifecycle import Cause, JobState


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One error, recorded alike everywhere (H-115)."""

    type: str
    message: str
    kind: str = "retryable"  # retryable, permanent, throttled, cancelled, lost
    code: str | None = None
    traceback: str | None = None
    attempt: int = 0
    retry_after: float | None = None
    place: str | None = None
    """Where it happened: file, line and function of the innermost frame of the user's."""
    fingerprint: str | None = None
    """The same for the same error, wherever and whenever it comes."""
    trace: str | None = None
    """The trace context of the attempt, if it had one of its own."""

    def text(self) -> str:
        """Render it as it is stored for its attempt."""
        return msgspec.json.encode(self).decode()

    def brief(self) -> str:
        """Render it as it is stored with the job: without its traceback."""
        return (msgspec.structs.replace(self, traceback=None) if self.traceback else self).text()


class LogLine(msgspec.Struct, frozen=True):
    """A line that a handler has logged."""

    n: int
    """Its number among the lines that its job has logged. Until it is stored, how many it counts
    for: itself, and those before it that were not kept."""
    at: datetime
    level: str
    attempt: int
    logger: str
    text: str


class Output(NamedTuple):
    """An item for a later step of a run: what is to be a job, and the key that it is counted by."""

    step: int
    payload: bytes
    limit_key: str | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A move that a worker asks for, with everything that goes into the same transaction.

    Made by the functions below, one per move, so that no wrong combination can be spelled.
    """

    move: str
    state: JobState
    delay_us: int | None = None
    result: bytes | None = None
    problem: Problem | None = None
    cause: Cause | None = None
    detail: str | None = None
    usage: Mapping[str, float] | None = None
    staged: int | None = None
    outputs: tuple[Output, ...] = ()
    kept: tuple[bytes, ...] = ()
    """Results of a job that gave several, few and small enough to come along."""
    signature: str | None = None
    """The signature that the stored arguments do not fit."""
    phase: str | None = None
    lines: tuple[LogLine, ...] = ()
    """Lines that the attempt has logged and that are not written yet."""
    note: str | None = None
    """What is noted of the attempt just before it ends, and the phase that it is noted with."""


def succeeded(
    result: bytes | None = None,
    *,
    usage: Mapping[str, float] | None = None,
    staged: int | None = None,
    outputs: tuple[Output, ...] = (),
    kept: tuple[bytes, ...] = (),
) -> Outcome:
    """Say that it returned a value; `staged` outputs of it become visible.

    A few small `outputs` need not be staged before: they come along. So do
    the few small results that are `kept` where a job has several.
    """
    return Outcome(
        move="succeed",
        state=JobState.SUCCEEDED,
        result=result,
        usage=usage,
        staged=staged or len(outputs) or None,
        outputs=outputs,
        kept=kept,
    )


def failed(problem: Problem, *, cause: Cause = Cause.ERROR) -> Outcome:
    """Say that the job ends here: no retry would help, or none is left."""
    return Outcome(
        move="fail", state=JobState.FAILED, problem=problem, cause=cause, detail=problem.type
    )


def retry(problem: Problem, *, after: float) -> Outcome:
    """Say that it failed, and that another attempt follows after so many seconds."""
    return Outcome(
        move="retry",
        state=JobState.RETRYING,
        delay_us=micros(after),
        problem=problem,
        detail=problem.type,
    )


def later(after: float | None, *, detail: str | None = None) -> Outcome:
    """Say that nothing failed: go on after so many seconds, or at a signal alone."""
    delay = None if after is None else micros(after)
    return Outcome(move="later", state=JobState.WAITING, delay_us=delay, detail=detail)


def released(detail: str | None = None, *, after: float = 0) -> Outcome:
    """Give the job back: due now, or after so many seconds; nothing spent."""
    return Outcome(move="release", state=JobState.RETRYING, delay_us=micros(after), detail=detail)


def unfit(reason: str, *, signature: str) -> Outcome:
    """Give the job back until a function with another signature can take its arguments."""
    return Outcome(
        move="release",
        state=JobState.WAITING,
        detail=reason,
        phase="unfit",
        signature=signature,
    )


def cancelled(reason: str | None = None) -> Outcome:
    """Agree to stop."""
    return Outcome(move="cancel", state=JobState.CANCELLED, detail=reason)


def traced(result: Outcome, trace: str | None) -> Outcome:
    """Record with a failure the trace context of its attempt."""
    if trace is None or result.problem is None:
        return result
    problem = msgspec.structs.replace(result.problem, trace=trace)
    return msgspec.structs.replace(result, problem=problem)


def expired(problem: Problem) -> Outcome:
    """Say that the job's deadline passed while it ran."""
    return Outcome(
        move="expire",
        state=JobState.FAILED,
        problem=problem,
        cause=Cause.DEADLINE,
        detail="deadline",
    )


def micros(seconds: float) -> int:
    """Convert to the store's unit."""
    return round(seconds * 1_000_000)
