"""The meaning of an error for a job: pure decisions over data."""

import random
import socket
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from milepost import outcome
from milepost.errors import Invalid, QueueFull, Unavailable
from milepost.lifecycle import Cause
from milepost.options import SECONDS_MOST, default
from milepost.outcome import Outcome, Problem
from milepost.records import Claim

CODE_LIMIT = 100
MESSAGE_LIMIT = 4_000
BACKOFFS = ("fixed", "exponential")


class Fail(Exception):  # noqa: N818 - a handler says it in one word
    """Raised by a handler: FAILED at once, no retry."""

    def __init__(self, message: str = "", *, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.code = code


POLL_SECONDS = 60.0


class Later(BaseException):
    """Raised or returned by a handler: WAITING, nothing spent.

    A BaseException, so that a handler's own `except Exception` does not swallow it.
    """

    def __init__(self, seconds: float | None = POLL_SECONDS, *, detail: str | None = None) -> None:
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 <= seconds <= SECONDS_MOST):
            raise Invalid(
                f"Later({seconds!r}): it takes a number of seconds between zero and a century, as "
                "in Later(60); None waits for a signal"
            )
        super().__init__(seconds)
        self.seconds = seconds
        self.detail = detail


class Cancelled(BaseException):
    """Raised where a handler notices that it was asked to stop."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """When an attempt that failed is followed by another (H-24)."""

    delay: float = default("retry_delay")
    backoff: str = default("backoff")
    max_delay: float = default("max_delay")
    jitter: bool = default("jitter")

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.backoff not in BACKOFFS:
            raise Invalid(f"backoff={self.backoff!r}: expected one of {', '.join(BACKOFFS)}")
        for name, seconds in (("retry_delay", self.delay), ("max_delay", self.max_delay)):
            if not isinstance(seconds, int | float) or not 0 <= seconds <= SECONDS_MOST:
                raise Invalid(f"{name}={seconds!r} must be a number of seconds, zero or more")

    def delay_after(
        self,
        attempt: int,
        *,
        floor: float | None = None,
        chance: Callable[[], float] = random.random,
    ) -> float:
        """Return the seconds to wait after the attempt of that number failed."""
        # Past the cap the power would only grow into an overflow.
        growth = 1.0 if self.backoff == "fixed" else 2.0 ** min(attempt - 1, 64)
        bounded = min(self.delay * growth, self.max_delay)
        spread = bounded * chance() if self.jitter else bounded
        return max(spread, floor or 0.0)


def retry_policy(asked: Mapping[str, Any], **otherwise: Any) -> RetryPolicy:
    """Make it of the options that were given, or else of those."""
    given = {**otherwise, **asked}
    fields = {"delay": "retry_delay"}
    options = {field: fields.get(field, field) for field in RetryPolicy.__struct_fields__}
    return RetryPolicy(**{field: given[name] for field, name in options.items() if name in given})


class Policy(msgspec.Struct, frozen=True):
    """Everything that decides the outcome of a failed attempt."""

    retry: RetryPolicy = RetryPolicy()
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    fail_on: tuple[type[BaseException], ...] = ()


TRANSIENT: tuple[type[BaseException], ...] = (
    TimeoutError,
    ConnectionError,
    InterruptedError,
    BlockingIOError,
    socket.gaierror,
    Unavailable,
    QueueFull,
)
"""Errors that may not come again: `retry_on=mp.TRANSIENT` retries these alone.

A deadline, a peer that is away or closed the connection, an interrupted or momentarily refused
call, a name that cannot be looked up now, a store that cannot be reached,
a queue that is full.
"""

# D's named causes, by the exceptions that Python and its libraries raise for them.
_CODES: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (ConnectionError, "dependency_unavailable"),
    (socket.gaierror, "dependency_unavailable"),
    (Unavailable, "dependency_unavailable"),
    (QueueFull, "overload"),
    (InterruptedError, "transient"),
    (BlockingIOError, "overload"),
    (MemoryError, "limits"),
    (msgspec.ValidationError, "validation"),
    (Invalid, "validation"),
    (ImportError, "configuration"),
    (NotImplementedError, "configuration"),
    (OSError, "transient"),
)


def problem_of(error: BaseException, policy: Policy, *, attempt: int) -> Problem:
    """Record an error: its class, its code, its message (H-105, H-115)."""
    floor = _floor(error)
    text = storable(message_of(error))
    return Problem(
        type=storable(type(error).__qualname__),
        message=text if len(text) <= MESSAGE_LIMIT else text[:MESSAGE_LIMIT] + "…",
        kind=_kind(error, policy, throttled=floor is not None),
        code=_code(error),
        attempt=attempt,
        retry_after=floor,
    )


def message_of(error: BaseException) -> str:
    """Read what an error says, whatever its own code does then."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an error that cannot say what it is fails its job, not us
        return f"({type(error).__qualname__} could not say what happened)"


def storable(text: str) -> str:
    """Spell out characters that no database stores: NUL, surrogates of undecodable file names."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _floor(error: BaseException) -> float | None:
    """Read the delay that a throttling answer asks for; nonsense is not obeyed."""
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, bool) or not isinstance(asked, int | float) or not asked >= 0:
        return None
    return float(min(asked, SECONDS_MOST))


def _kind(error: BaseException, policy: Policy, *, throttled: bool) -> str:
    if isinstance(error, (Fail, *policy.fail_on)):
        return "permanent"
    if not isinstance(error, policy.retry_on):
        return "permanent"
    return "throttled" if throttled else "retryable"


def _code(error: BaseException) -> str:
    named = getattr(error, "code", None)
    if isinstance(named, str) and not isinstance(error, SystemExit):
        return storable(named[:CODE_LIMIT])
    return next((code for kind, code in _CODES if isinstance(error, kind)), "error")


def after_error(claim: Claim, problem: Problem, policy: RetryPolicy) -> Outcome:
    """Decide the outcome of a failed attempt: another one, or the end."""
    if problem.kind == "permanent":
        return outcome.failed(problem)
    counted = claim.errors + (claim.losses if claim.recoveries is None else 0)
    if counted + 1 > claim.retries:
        return outcome.failed(problem, cause=Cause.ATTEMPTS_EXHAUSTED)
    delay = policy.delay_after(claim.attempt, floor=problem.retry_after)
    return outcome.retry(problem, after=delay)


def after_later(claim: Claim, wish: Later) -> Outcome:
    """Let a job sleep, within its limit (H-23)."""
    if claim.polls + 1 > claim.poll_limit:
        message = f"it asked to be run later {claim.poll_limit} times, which is its poll limit"
        problem = Problem(type="PollLimit", message=message, kind="permanent", code="poll_limit")
        return outcome.failed(problem, cause=Cause.POLL_LIMIT)
    detail = None if wish.detail is None else storable(str(wish.detail)[:MESSAGE_LIMIT])
    return outcome.later(wish.seconds, detail=detail)
