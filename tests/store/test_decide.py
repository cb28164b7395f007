"""The decision that fan-in makes, tried on every kind of run: pure, so it can be tried often."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from milepost.lifecycle import RUN, RunState
from milepost.records import StepCount
from milepost.store import fanin
from milepost.store.fanin import Decision, decide
from tests.support.prove import PROVING

pytestmark = pytest.mark.prove

EXAMPLES = 1_000 if PROVING else 100
LIVE = [RunState(state) for state in sorted(RUN.live)]
MOVING = (RunState.QUEUED, RunState.RUNNING)


@st.composite
def steps(draw: st.DrawFn) -> list[StepCount]:
    count = draw(st.integers(0, 4))
    few, rare = st.integers(0, 2), st.sampled_from([0, 0, 0, 0, 1, 2])
    found = [
        StepCount(
            number,
            f"s{number}",
            "work",
            draw(st.booleans()),
            draw(st.booleans()),
            draw(st.booleans()),
            draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])),
            draw(few),
            draw(few),
            draw(rare),
            draw(rare),
        )
        for number in range(count)
    ]
    if draw(st.booleans()):
        ends = draw(st.sampled_from([(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0)]))
        found.append(StepCount(count, "r", "reduce", False, True, True, 0.0, *ends))
    return found


states = st.sampled_from(LIVE)
coming = st.one_of(st.none(), st.integers(0, 3))
endings = st.sampled_from([None, RunState.FAILED, RunState.CANCELLED])


def open_jobs(counted: list[StepCount]) -> int:
    return sum(step.open for step in counted)


@given(states, st.integers(0, 3), steps(), endings, coming)
@settings(max_examples=EXAMPLES, deadline=None)
def test_every_decision_is_a_declared_move(state, current, counted, ending, coming_to):
    decision = decide(state, current, counted, ending=ending, coming_to=coming_to)
    if decision is not None:
        RUN.check(decision.move, state, decision.state)


@given(states, st.integers(0, 3), steps(), endings, coming)
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_run_ends_with_an_open_job(state, current, counted, ending, coming_to):
    decision = decide(state, current, counted, ending=ending, coming_to=coming_to)
    if decision is not None and decision.state in RUN.terminal:
        assert open_jobs(counted) == 0
    if decision is not None and decision.state == RunState.FINALIZING:
        assert open_jobs(counted) == 0


calm = st.lists(st.integers(0, 1), min_size=2, max_size=4).map(
    lambda opens: [
        StepCount(number, "s", "work", True, False, False, 0.0, count, 1, 0, 0)
        for number, count in enumerate(opens)
    ]
)


@given(st.sampled_from(MOVING), st.integers(0, 3), st.one_of(calm, steps()), coming)
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_run_goes_on_past_an_open_step_or_outputs_on_their_way(
    state, current, counted, coming_to
):
    decision = decide(state, current, counted, coming_to=coming_to)
    if decision is None or decision.move not in ("advance", "begin", "finalize", "finish"):
        return
    assert not any(s.open for s in counted if s.number <= current and s.role != "reduce")
    assert coming_to is None or coming_to > current
    if decision.move == "advance":
        assert decision.current_step is not None
        assert decision.current_step > current
        between = [s.number for s in counted if current < s.number < decision.current_step]
        assert between == [], "no step is skipped"


@given(states, st.integers(0, 3), steps(), coming)
@settings(max_examples=EXAMPLES, deadline=None)
def test_no_run_succeeds_against_its_policy(state, current, counted, coming_to):
    decision = decide(state, current, counted, coming_to=coming_to)
    if decision is not None and decision.move in ("finish", "finalize", "advance"):
        assert not any(step.fail_fast and step.lost for step in counted)
        assert not any(step.role == "reduce" and step.lost for step in counted)
    if decision is not None and decision.move in ("finish", "finalize") and state in MOVING:
        assert all(
            s.within_tolerance for s in counted if s.number <= current and s.role != "reduce"
        )


@given(states, st.integers(0, 3), steps(), endings)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_run_with_nothing_open_and_nothing_coming_always_has_a_move(
    state, current, counted, ending
):
    decision = decide(state, current, counted, ending=ending)
    if state != RunState.CREATED and open_jobs(counted) == 0:
        assert decision is not None


@given(st.integers(0, 3), steps())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_stopping_run_ends_as_it_said(current, counted):
    for ending in (RunState.FAILED, RunState.CANCELLED):
        decision = decide(RunState.STOPPING, current, counted, ending=ending)
        assert (decision is None) == (open_jobs(counted) > 0)
        assert decision is None or decision.state == ending


def ended(step: StepCount, lost: int) -> StepCount:
    """Every open job of the step ends, so many of them without success."""
    lost = min(lost, step.open)
    good = step.succeeded + step.open - lost
    return replace(step, open=0, succeeded=good, failed=step.failed + lost)


@given(steps(), st.lists(st.integers(0, 3), min_size=5, max_size=5), st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_run_whose_jobs_end_ends_itself(counted, losses, reducer_fails):
    """Play a run: decide until nothing is due, end a step's jobs, and so on; it is soon final."""
    state, current, ending = RunState.QUEUED, 0, None
    for _ in range(40):
        decision: Decision | None = decide(state, current, counted, ending=ending)
        if decision is not None:
            state, current = decision.state, decision.current_step or current
            ending = decision.ending or ending
            if decision.move == "finalize":
                reducer = replace(counted[-1], open=1)
                counted = [*counted[:-1], ended(reducer, int(reducer_fails))]
            if state in RUN.terminal:
                return
            continue
        worked = next(i for i, step in enumerate(counted) if step.open)
        counted = [
            *counted[:worked],
            ended(counted[worked], losses[worked]),
            *counted[worked + 1 :],
        ]
    raise AssertionError(f"still {state}")


def test_fan_in_knows_no_pipelines_and_finds_their_rule_wherever_it_is_used():
    """A program that moves runs and never mentions watermarks must still move them (H-44)."""
    source = Path(fanin.__file__).read_text(encoding="utf-8")
    assert not re.search(r"import.*watermarks|\"partition\"|pipeline", source)
    look = "from milepost.store.fanin import RULES; print(*RULES)"
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["partition"]
