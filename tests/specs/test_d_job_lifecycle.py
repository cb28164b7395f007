"""Spec D, the strict job lifecycle, in its own words."""

import pytest

from milepost.lifecycle import JOB
from milepost.specs import JOB_VIEWS, Facts
from tests.support.machines import Diagram, can_tell

VIEW = JOB_VIEWS["D"]

LIFECYCLE = Diagram(
    name="job",
    made=frozenset(VIEW.edges),
    drawn=frozenset(
        {
            ("", "CREATED"),  # initial state
            ("CREATED", "QUEUED"),  # job submission
            ("QUEUED", "RUNNING"),  # processing begins
            ("RUNNING", "SUCCEEDED"),  # processing completed successfully
            ("RUNNING", "FAILED"),  # unrecoverable error or max retries exceeded
            ("RUNNING", "RETRYING"),  # retryable error and retries remaining; H-28: a lost lease
            ("RETRYING", "QUEUED"),  # retry delay elapsed
            ("QUEUED", "FAILED"),  # resource exhaustion or cancellation
        }
    ),
    added={
        ("", "QUEUED"): ("H-108", "create-and-submit is one transaction"),
        ("CREATED", "FAILED"): ("H-10", "a held job can be cancelled and expires"),
        ("RETRYING", "FAILED"): ("H-10", "cancelled or expired while it waits for its retry"),
    },
)

DIAGRAMS = (LIFECYCLE,)

# The design's column D, cell by cell: before a first run, and after one.
WORDS = {
    "CREATED": ("CREATED", "CREATED"),
    "GATED": ("CREATED", "CREATED"),
    "WAITING": ("CREATED", "RETRYING"),
    "READY": ("QUEUED", "QUEUED"),
    "QUEUED": ("QUEUED", "QUEUED"),
    "RUNNING": ("RUNNING", "RUNNING"),
    "RETRYING": ("RETRYING", "RETRYING"),
    "SUCCEEDED": ("SUCCEEDED", "SUCCEEDED"),
    "FAILED": ("FAILED", "FAILED"),
    "CANCELLED": ("FAILED", "FAILED"),
}

# "Invalid Transitions", as listed, each group spelled out.
INVALID = {
    "direct state reversion": [
        ("QUEUED", "CREATED"),
        ("RUNNING", "CREATED"),
        ("RETRYING", "CREATED"),
        ("RETRYING", "RUNNING"),
    ],
    "backward progression, and out of a terminal state": [
        (final, other)
        for final in ("SUCCEEDED", "FAILED")
        for other in ("CREATED", "QUEUED", "RUNNING", "RETRYING", "SUCCEEDED", "FAILED")
        if final != other
    ],
    "H-28 RUNNING to QUEUED without retry": [("RUNNING", "QUEUED")],
    "must go through QUEUED": [("CREATED", "RUNNING"), ("CREATED", "SUCCEEDED")],
    "QUEUED succeeds or retries only by running": [
        ("QUEUED", "SUCCEEDED"),
        ("QUEUED", "RETRYING"),
    ],
}


@pytest.mark.parametrize(
    ("group", "edge"), [(group, edge) for group, edges in INVALID.items() for edge in edges]
)
def test_an_invalid_transition_is_impossible(group, edge):
    assert edge not in LIFECYCLE.made
    assert edge in LIFECYCLE.forbidden


def test_the_engine_makes_what_is_drawn_and_the_named_deviations():
    assert LIFECYCLE.changes == LIFECYCLE.expected


@pytest.mark.parametrize("state", WORDS)
def test_h_1_a_jobs_words(state):
    assert (VIEW.word(Facts(state, fence=0)), VIEW.word(Facts(state, fence=3))) == WORDS[state]
    assert set(VIEW.names(state)) == set(WORDS[state])


def test_the_words_are_the_six_states_that_d_defines():
    assert {word.name for word in VIEW.words} == {
        "CREATED",
        "QUEUED",
        "RUNNING",
        "SUCCEEDED",
        "FAILED",
        "RETRYING",
    }


def test_the_terminal_states_are_succeeded_and_failed():
    assert {VIEW.word(Facts(state)) for state in JOB.terminal} == {"SUCCEEDED", "FAILED"}
    assert {VIEW.word(Facts(state)) for state in JOB.live} == {
        "CREATED",
        "QUEUED",
        "RUNNING",
        "RETRYING",
    }


def test_h_9_system_cleanup_leaves_a_terminal_state_where_it_is():
    after = [(b, a) for b, a in LIFECYCLE.made if b in ("SUCCEEDED", "FAILED")]
    assert sorted(after) == [("FAILED", "FAILED"), ("SUCCEEDED", "SUCCEEDED")]
    assert {VIEW.edges[edge] for edge in after} == {("erase",)}


def test_h_12_cancellation_is_shown_as_failed():
    assert VIEW.word(Facts("CANCELLED")) == "FAILED"
    assert "cancel" in VIEW.edges["QUEUED", "FAILED"]


def test_h_28_a_lost_lease_is_shown_as_retrying():
    assert {"lose", "release", "retry"} <= set(VIEW.edges["RUNNING", "RETRYING"])


EXAMPLES = {
    "Successful Processing": "CREATED QUEUED RUNNING SUCCEEDED",
    "Failure with Successful Retry": "CREATED QUEUED RUNNING RETRYING QUEUED RUNNING SUCCEEDED",
    "Failure Exhausting Retries": "CREATED QUEUED RUNNING RETRYING QUEUED RUNNING RETRYING QUEUED "
    "RUNNING RETRYING QUEUED RUNNING FAILED",
    "Non-Retryable Failure": "CREATED QUEUED RUNNING FAILED",
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example_of_d_can_be_told(example):
    assert can_tell(VIEW, example.split())


@pytest.mark.parametrize(
    "story",
    [
        "CREATED RUNNING",
        "CREATED QUEUED RUNNING QUEUED",
        "CREATED QUEUED RUNNING RETRYING CREATED",
        "CREATED QUEUED RUNNING SUCCEEDED QUEUED",
    ],
)
def test_a_story_that_d_forbids_cannot_be_told(story):
    assert not can_tell(VIEW, story.split())
