"""Spec A, batch states, in its own words: the job instance and the work chunk."""

import pytest

from milepost.specs import JOB_VIEWS, RUN_VIEWS, Facts
from tests.support.machines import Diagram, can_tell

CHUNK_VIEW = JOB_VIEWS["A"]
INSTANCE_VIEW = RUN_VIEWS["A"]

INSTANCE = Diagram(
    name="instance",
    made=frozenset(INSTANCE_VIEW.edges),
    # The choices (first_step_finished, in_progress_poll, error_progress_poll, do_reduction) are
    # drawn through: they are questions, not states.
    drawn=frozenset(
        {
            ("", "QUEUED"),  # on db create and first chunk queued
            ("QUEUED", "IN_PROGRESS"),  # on any work-chunk received by worker
            ("IN_PROGRESS", "COMPLETED"),  # no chunks produced; 0 failures, errored or incomplete
            ("IN_PROGRESS", "IN_PROGRESS"),  # chunks produced; still work to do
            ("IN_PROGRESS", "ERRORED"),  # no failed but errored chunks
            ("IN_PROGRESS", "FINALIZE"),  # none failed, gated, last step: queue REDUCER chunk
            ("IN_PROGRESS", "CANCELLED"),  # user requested cancel
            ("IN_PROGRESS", "FAILED"),  # any failed chunks; the stray last line (H-3)
            ("ERRORED", "FAILED"),  # any failed chunks
            ("ERRORED", "ERRORED"),  # no failed but errored chunks
            ("ERRORED", "FINALIZE"),  # none failed, gated, last step
            ("ERRORED", "COMPLETED"),  # 0 failures, errored or incomplete
            ("ERRORED", "CANCELLED"),  # user requested cancel
            ("FINALIZE", "COMPLETED"),  # do_reduction: success
            ("FINALIZE", "FAILED"),  # do_reduction: fail
        }
    ),
    added={
        ("", "BUILDING"): ("H-107", "a run is filled in pieces, and expires if forgotten"),
        ("BUILDING", "QUEUED"): ("H-107", "sealed: all its first jobs are stored"),
        ("BUILDING", "CANCELLED"): ("H-4", "cancel from every state that is not final"),
        ("BUILDING", "FAILED"): ("H-107", "forgotten while it was built"),
        ("BUILDING", "IN_PROGRESS"): ("H-60", "stopping: its open jobs end first"),
        ("QUEUED", "CANCELLED"): ("H-4", "cancel from every state that is not final"),
        ("QUEUED", "FAILED"): ("H-4", "expired or rejected before the first claim"),
        ("QUEUED", "COMPLETED"): ("H-61", "zero chunks is all done"),
        ("QUEUED", "FINALIZE"): ("H-61", "zero chunks, and the reduction of none"),
        ("ERRORED", "IN_PROGRESS"): ("H-2", "the retry wait is over: it does not look broken"),
        ("FINALIZE", "CANCELLED"): ("H-4", "cancel from every state that is not final"),
    },
    left_out={
        ("ERRORED", "FINALIZE"): ("H-2", "the retry ends first, and with it ERRORED"),
        ("ERRORED", "COMPLETED"): ("H-2", "the retry ends first, and with it ERRORED"),
    },
)

CHUNK = Diagram(
    name="chunk",
    made=frozenset(CHUNK_VIEW.edges),
    # The choices on_receive and execute are drawn through.
    drawn=frozenset(
        {
            ("", "READY"),  # on create - normal step
            ("", "GATE_WAITING"),  # on create - gated step
            ("", "POLL_WAITING"),  # on create - polling step (H-5)
            ("GATE_WAITING", "READY"),  # on prior step completion
            ("POLL_WAITING", "READY"),  # on time expired (maint.)
            ("READY", "QUEUED"),  # placed on kafka (maint.)
            ("QUEUED", "IN_PROGRESS"),  # on deque by worker, start execution
            ("IN_PROGRESS", "ERROR"),  # on re-triable error
            ("IN_PROGRESS", "COMPLETED"),  # success
            ("IN_PROGRESS", "FAILED"),  # on unrecoverable or too many errors
            ("IN_PROGRESS", "POLL_WAITING"),  # on poll retry
            ("ERROR", "IN_PROGRESS"),  # exception rollback triggers redelivery
        }
    ),
    added={
        ("READY", "IN_PROGRESS"): ("H-50", "the store is the queue: ready is claimable"),
        ("QUEUED", "READY"): ("H-50", "handed to the broker, never claimed in time"),
        ("ERROR", "READY"): ("H-51", "a retry is a row with a due time"),
        ("READY", "GATE_WAITING"): ("H-108", "a held chunk is submitted to a gated step"),
        ("READY", "POLL_WAITING"): ("H-108", "a held chunk is submitted for later"),
        ("GATE_WAITING", "POLL_WAITING"): ("H-5", "a polling step behind a gate"),
        ("GATE_WAITING", "FAILED"): ("H-4", "cancelled, or the deadline passed at the gate"),
        ("POLL_WAITING", "FAILED"): ("H-23", "poll limit, deadline or cancel"),
        ("READY", "FAILED"): ("H-4", "cancelled, expired or rejected before it ran"),
        ("QUEUED", "FAILED"): ("H-4", "cancelled, expired or rejected before it ran"),
        ("ERROR", "FAILED"): ("H-10", "cancelled or expired while it waits for its retry"),
    },
    left_out={
        ("ERROR", "IN_PROGRESS"): ("H-51", "redelivery by rollback loses the count: by READY"),
    },
)

DIAGRAMS = (INSTANCE, CHUNK)

# Column A of the design's tables, cell by cell.
CHUNK_WORDS = {
    "CREATED": {"READY"},
    "GATED": {"GATE_WAITING"},
    "WAITING": {"POLL_WAITING"},
    "READY": {"READY"},
    "QUEUED": {"QUEUED", "READY"},
    "RUNNING": {"IN_PROGRESS"},
    "RETRYING": {"ERROR"},
    "SUCCEEDED": {"COMPLETED"},
    "FAILED": {"FAILED"},
    "CANCELLED": {"FAILED"},
}
INSTANCE_WORDS = {
    "CREATED": {"BUILDING"},
    "QUEUED": {"QUEUED"},
    "RUNNING": {"IN_PROGRESS", "ERRORED"},
    "STOPPING": {"IN_PROGRESS", "FINALIZE"},
    "FINALIZING": {"FINALIZE"},
    "SUCCEEDED": {"COMPLETED"},
    "FAILED": {"FAILED"},
    "CANCELLED": {"CANCELLED"},
}


@pytest.mark.parametrize("state", CHUNK_WORDS)
def test_h_1_a_chunks_words(state):
    facts = [Facts(state, transport=transport) for transport in ("store", "broker")]
    assert {CHUNK_VIEW.word(fact) for fact in facts} == CHUNK_WORDS[state]
    assert set(CHUNK_VIEW.names(state)) == CHUNK_WORDS[state]


def test_h_50_queued_is_ready_when_the_store_is_the_queue():
    assert CHUNK_VIEW.word(Facts("QUEUED", transport="store")) == "READY"
    assert CHUNK_VIEW.word(Facts("QUEUED", transport="kafka")) == "QUEUED"


@pytest.mark.parametrize("state", INSTANCE_WORDS)
def test_h_1_an_instances_words(state):
    facts = [
        Facts(state, phase=phase, retrying=retrying)
        for phase in (None, "reduce")
        for retrying in (False, True)
    ]
    assert {INSTANCE_VIEW.word(fact) for fact in facts} == INSTANCE_WORDS[state]
    assert set(INSTANCE_VIEW.names(state)) == INSTANCE_WORDS[state]


def test_h_2_an_instance_is_errored_only_while_a_chunk_is_in_error():
    assert INSTANCE_VIEW.word(Facts("RUNNING", retrying=True)) == "ERRORED"
    assert INSTANCE_VIEW.word(Facts("RUNNING", retrying=False)) == "IN_PROGRESS"


def test_h_3_an_instance_fails_from_both():
    assert {("IN_PROGRESS", "FAILED"), ("ERRORED", "FAILED")} <= INSTANCE.made


def test_h_12_a_cancelled_chunk_looks_failed_and_a_cancelled_instance_cancelled():
    assert CHUNK_VIEW.word(Facts("CANCELLED")) == "FAILED"
    assert INSTANCE_VIEW.word(Facts("CANCELLED")) == "CANCELLED"


STORIES = {
    "a normal step": "READY QUEUED IN_PROGRESS COMPLETED",
    "without a broker": "READY IN_PROGRESS COMPLETED",
    "a gated step": "GATE_WAITING READY QUEUED IN_PROGRESS COMPLETED",
    "a polling step": "POLL_WAITING READY QUEUED IN_PROGRESS POLL_WAITING READY QUEUED IN_PROGRESS "
    "COMPLETED",
    "an error, then success": "READY QUEUED IN_PROGRESS ERROR READY QUEUED IN_PROGRESS COMPLETED",
    "too many errors": "READY IN_PROGRESS ERROR READY IN_PROGRESS ERROR READY IN_PROGRESS FAILED",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_chunks_whole_life_can_be_told(story):
    assert can_tell(CHUNK_VIEW, story.split())


@pytest.mark.parametrize(
    "story",
    [
        "QUEUED IN_PROGRESS ERRORED IN_PROGRESS FINALIZE COMPLETED",
        "QUEUED IN_PROGRESS COMPLETED",
        "BUILDING QUEUED IN_PROGRESS ERRORED FAILED",
        "QUEUED IN_PROGRESS CANCELLED",
    ],
)
def test_an_instances_whole_life_can_be_told(story):
    assert can_tell(INSTANCE_VIEW, story.split())


@pytest.mark.parametrize(
    "story",
    [
        "COMPLETED READY",
        "READY COMPLETED",
        "READY IN_PROGRESS ERROR READY QUEUED",  # one queue has a broker or has none
        "GATE_WAITING IN_PROGRESS",
    ],
)
def test_a_story_that_a_forbids_cannot_be_told(story):
    assert not can_tell(CHUNK_VIEW, story.split())
