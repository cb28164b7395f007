"""What an error means for a job: decisions over data, with nothing to start or wait for."""

import random
import socket

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milepost as mp
from milepost.errors import Invalid, Unavailable
from milepost.options import SECONDS_MOST
from milepost.policy import (
    Fail,
    Later,
    Policy,
    RetryPolicy,
    after_error,
    after_later,
    problem_of,
    storable,
)
from milepost.records import Claim
from milepost.worker.execute import TimedOut

CLAIM = Claim(
    *(
        "01890000-0000-7000-8000-000000000000",
        "k",
        1,
        1,
        b"{}",
        "json",
        0,
        0,
        0,
        0,
        3,
        None,
        1000,
        3,
    ),
    *(None, None, None, None, None, None, "default", 0, 1, "", None, None),
)


def claim(**changed):
    return msgspec.structs.replace(CLAIM, **changed)


def judged(error, *, policy=None, **changed):
    policy = policy or Policy()
    problem = problem_of(error, policy, attempt=1)
    return after_error(claim(**changed), problem, policy.retry)


# Delays


@given(st.integers(1, 500))
def test_a_fixed_delay_is_always_the_same(attempt):
    assert RetryPolicy(delay=1.0).delay_after(attempt) == 1.0


def test_an_exponential_delay_doubles_up_to_its_cap():
    policy = RetryPolicy(delay=1.0, backoff="exponential", max_delay=60)
    assert [policy.delay_after(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert policy.delay_after(10_000) == 60


seconds = st.floats(0, 1e6, allow_nan=False)


@given(
    seconds, seconds, st.integers(1, 2000), st.booleans(), st.sampled_from(["fixed", "exponential"])
)
def test_no_delay_is_negative_or_beyond_its_cap(delay, cap, attempt, jitter, backoff):
    policy = RetryPolicy(delay=delay, backoff=backoff, max_delay=cap, jitter=jitter)
    assert 0 <= policy.delay_after(attempt) <= cap


@given(st.integers(1, 30), st.integers())
def test_full_jitter_spreads_between_nothing_and_the_whole_delay(attempt, seed):
    plain = RetryPolicy(delay=1.0, backoff="exponential", max_delay=60)
    spread = RetryPolicy(delay=1.0, backoff="exponential", max_delay=60, jitter=True)
    chance = random.Random(seed).random
    delays = [spread.delay_after(attempt, chance=chance) for _ in range(200)]
    most = plain.delay_after(attempt)
    assert all(0 <= delay <= most for delay in delays)
    assert min(delays) < 0.2 * most
    assert max(delays) > 0.8 * most


@given(seconds, seconds, st.booleans())
def test_what_the_other_side_asks_for_is_a_floor(delay, floor, jitter):
    policy = RetryPolicy(delay=delay, jitter=jitter)
    assert policy.delay_after(1, floor=floor) >= floor
    assert policy.delay_after(1, floor=floor) <= max(floor, policy.max_delay)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": "1"},
        {"max_delay": -1},
        {"backoff": "linear"},
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(wrong):
    with pytest.raises(Invalid):
        RetryPolicy(**wrong)


# Classes of errors, and D's named causes


class ThrottledError(Exception):
    retry_after = 30


class NamedError(Exception):
    code = "overload"


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (TimeoutError(), "retryable", "timeout"),
        (TimedOut("too long"), "retryable", "timeout"),
        (ConnectionRefusedError(), "retryable", "dependency_unavailable"),
        (ConnectionResetError(), "retryable", "dependency_unavailable"),
        (socket.gaierror(), "retryable", "dependency_unavailable"),
        (Unavailable("the store"), "retryable", "dependency_unavailable"),
        (InterruptedError(), "retryable", "transient"),
        (OSError("disk"), "retryable", "transient"),
        (BlockingIOError(), "retryable", "overload"),
        (NamedError(), "retryable", "overload"),
        (MemoryError(), "retryable", "limits"),
        (ModuleNotFoundError(), "retryable", "configuration"),
        (NotImplementedError(), "retryable", "configuration"),
        (msgspec.ValidationError("x"), "retryable", "validation"),
        (RuntimeError(), "retryable", "error"),
        (ThrottledError(), "throttled", "error"),
        (Fail("bad"), "permanent", "invalid_input"),
        (Fail("bad", code="limits"), "permanent", "limits"),
        (SystemExit("text"), "permanent", "error"),
        (KeyboardInterrupt(), "permanent", "error"),
    ],
)
def test_an_error_has_a_class_and_one_of_ds_named_causes(error, kind, code):
    problem = problem_of(error, Policy(), attempt=2)
    assert (problem.kind, problem.code, problem.attempt) == (kind, code, 2)
    assert problem.type == type(error).__qualname__


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((error, "retryable") for error in (TimeoutError(), TimedOut("slow"), BrokenPipeError())),
        *((error, "retryable") for error in (BlockingIOError(), socket.gaierror())),
        *((error, "permanent") for error in (ValueError(), FileNotFoundError(), MemoryError())),
        *((error, "permanent") for error in (PermissionError(), ImportError(), Fail("no"))),
    ],
)
def test_ds_retryable_failures_have_a_name(error, kind):
    """D: timeouts, overload and dependencies that are away are retried; the rest is not."""
    assert problem_of(error, Policy(retry_on=mp.TRANSIENT), attempt=1).kind == kind


def test_what_is_failed_on_wins_over_what_is_retried_on():
    policy = Policy(retry_on=(OSError,), fail_on=(FileNotFoundError,))
    assert problem_of(OSError(), policy, attempt=1).kind == "retryable"
    assert problem_of(FileNotFoundError(), policy, attempt=1).kind == "permanent"
    assert problem_of(ValueError(), policy, attempt=1).kind == "permanent"


@pytest.mark.parametrize(
    ("asked", "floor"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (0, 0.0),
        (-1, None),
        (float("nan"), None),
        ("30", None),
        (True, None),
    ],
)
def test_only_a_sensible_retry_after_is_obeyed(asked, floor):
    error = ThrottledError()
    error.retry_after = asked
    assert problem_of(error, Policy(), attempt=1).retry_after == floor


def test_an_endless_retry_after_is_bounded():
    error = ThrottledError()
    for asked in (float("inf"), 10**400, 1e300):
        error.retry_after = asked
        assert problem_of(error, Policy(), attempt=1).retry_after == SECONDS_MOST


def test_a_throttled_attempt_waits_at_least_as_long_as_it_was_told():
    outcome = judged(ThrottledError(), policy=Policy(retry=RetryPolicy(delay=1.0)))
    assert (outcome.move, outcome.delay_us) == ("retry", 30_000_000)


@given(st.text())
def test_every_text_can_be_stored(text):
    spelled = storable(text + "\ud800\0")
    assert "\0" not in spelled
    assert spelled.encode()


@given(st.text(max_size=20_000))
def test_a_message_is_bounded_and_storable(text):
    problem = problem_of(RuntimeError(text), Policy(), attempt=1)
    assert len(problem.message) <= 4_001
    assert msgspec.json.decode(problem.text())["message"] == problem.message


# The budget


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_errors_and_losses_together_are_the_budget(errors, losses, retries):
    outcome = judged(RuntimeError("x"), errors=errors, losses=losses, retries=retries)
    left = errors + losses + 1 <= retries
    assert outcome.move == ("retry" if left else "fail")
    assert outcome.cause == (None if left else "attempts_exhausted")


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_errors_alone_are_the_budget_where_losses_have_their_own(errors, losses, retries, recover):
    budget = {"errors": errors, "losses": losses, "retries": retries, "recoveries": recover}
    assert judged(RuntimeError("x"), **budget).move == ("retry" if errors < retries else "fail")


def test_three_retries_are_four_attempts():
    moves = [judged(RuntimeError(), errors=done, retries=3).move for done in range(4)]
    assert moves == ["retry", "retry", "retry", "fail"]


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_polls_and_releases_spend_nothing(polls, releases):
    assert judged(RuntimeError(), polls=polls, releases=releases, retries=1).move == "retry"


@given(st.integers(0, 10))
def test_a_permanent_error_ends_it_whatever_is_left(errors):
    outcome = judged(Fail("no"), errors=errors, retries=100)
    assert (outcome.move, outcome.cause) == ("fail", "error")


# Polls


@given(st.integers(0, 20), st.integers(0, 20))
def test_the_poll_limit_is_how_often_it_may_sleep(polls, limit):
    outcome = after_later(claim(polls=polls, poll_limit=limit), Later(5))
    assert outcome.move == ("later" if polls < limit else "fail")
    assert outcome.cause == (None if polls < limit else "poll_limit")


def test_later_keeps_its_delay_and_detail_or_waits_for_a_signal():
    outcome = after_later(CLAIM, Later(2.5, detail="a\0b"))
    assert (outcome.delay_us, outcome.detail) == (2_500_000, "a\\0b")
    assert after_later(CLAIM, Later(None)).delay_us is None
    assert Later().seconds == 60


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e30, "x", True, [5]])
def test_a_later_that_cannot_be_meant_is_refused(seconds):
    with pytest.raises(Invalid, match=r"takes a number of seconds .* as in Later\(60\)"):
        Later(seconds)


def test_later_and_cancelled_are_not_swallowed_by_except_exception():
    assert not issubclass(Later, Exception)
