"""Spec C, asynchronous requests, in its own words: the flow chart, the messages, the batch."""

import pytest

from milepost.lifecycle import JOB, RUN
from milepost.specs import JOB_VIEWS, RUN_VIEWS, Facts
from tests.support.machines import Diagram, can_tell

VIEW = JOB_VIEWS["C"]
BATCH_VIEW = RUN_VIEWS["C"]

REQUEST = Diagram(
    name="request",
    made=frozenset(VIEW.edges),
    # The choice C{HTTP Code} is drawn through.
    drawn=frozenset(
        {
            ("", "IDLE"),  # add_job_from_message
            ("IDLE", "REQUEST"),  # get job
            ("REQUEST", "REQUESTING"),
            ("REQUESTING", "FAIL"),  # HTTP code: error
            ("REQUESTING", "RESPONSE"),  # HTTP code: OK
            ("RESPONSE", "FAIL"),  # malformed; state failure
            ("RESPONSE", "COMPLETE"),  # state complete
            ("RESPONSE", "WAITING"),  # state pending
            ("WAITING", "REQUEST"),  # get wakeup
        }
    ),
    added={
        ("WAITING", "IDLE"): ("H-8", "a wake-up makes it ready; a claim is the only way to run"),
        ("IDLE", "FAIL"): ("H-4", "cancelled, expired or rejected before it was sent"),
        ("WAITING", "FAIL"): ("H-93", "a total deadline, a poll limit, or cancel"),
        ("REQUEST", "FAIL"): ("H-94", "refused before it is sent: a guarded address"),
        ("REQUEST", "WAITING"): ("H-91", "lost or released before it was sent: again"),
        ("REQUESTING", "WAITING"): ("H-92", "429, 503, no connection: retried by class"),
        ("REQUEST", "COMPLETE"): ("H-7", "phases are notes of an attempt, not states to pass"),
        ("REQUESTING", "COMPLETE"): ("H-7", "phases are notes of an attempt, not states to pass"),
    },
    left_out={
        ("WAITING", "REQUEST"): ("H-8", "by IDLE: a claim is the only way to run"),
    },
)

BATCH = Diagram(
    name="batch",
    made=frozenset(BATCH_VIEW.edges),
    drawn=frozenset(
        {
            ("", "IDLE"),  # Add Batch Job
            ("IDLE", "REQUEST"),  # its first request is taken
            ("REQUEST", "REQUEST"),  # Revalidate Batch - REQUEST
            ("REQUEST", "COMPLETE"),  # Revalidate Batch - COMPLETE
            ("REQUEST", "FAIL"),  # any have failed
        }
    ),
    added={
        ("IDLE", "COMPLETE"): ("H-61", "an empty batch is all done"),
        ("IDLE", "FAIL"): ("H-4", "cancelled or expired before its first request"),
    },
)

DIAGRAMS = (REQUEST, BATCH)

# "Message Passing by Job State": which words send a message. REQUESTING is not in it (H-7).
MESSAGE_SENT = {
    "IDLE": False,
    "REQUEST": False,
    "RESPONSE": False,
    "WAITING": False,
    "COMPLETE": True,
    "FAIL": True,
}

# Column C of the design's tables, cell by cell: before a first run, and after one.
WORDS = {
    "CREATED": ("IDLE", "IDLE"),
    "GATED": ("IDLE", "IDLE"),
    "WAITING": ("IDLE", "WAITING"),
    "READY": ("IDLE", "IDLE"),
    "QUEUED": ("IDLE", "IDLE"),
    "RETRYING": ("WAITING", "WAITING"),
    "SUCCEEDED": ("COMPLETE", "COMPLETE"),
    "FAILED": ("FAIL", "FAIL"),
    "CANCELLED": ("FAIL", "FAIL"),
}
RUNNING_WORDS = {None: "REQUEST", "REQUESTING": "REQUESTING", "RESPONSE": "RESPONSE"}
BATCH_WORDS = {
    "CREATED": "IDLE",
    "QUEUED": "IDLE",
    "RUNNING": "REQUEST",
    "STOPPING": "REQUEST",
    "FINALIZING": "REQUEST",
    "SUCCEEDED": "COMPLETE",
    "FAILED": "FAIL",
    "CANCELLED": "FAIL",
}


@pytest.mark.parametrize("word", MESSAGE_SENT)
def test_only_complete_and_fail_are_final_and_send_a_message(word):
    for view, machine in ((VIEW, JOB), (BATCH_VIEW, RUN)):
        final = {view.word(Facts(state)) for state in machine.terminal}
        assert (word in final) is MESSAGE_SENT[word]
        live = {name for state in machine.live for name in view.names(state)}
        assert not final & live


def test_h_7_requesting_and_response_are_phases_of_one_claimed_job():
    assert set(VIEW.edges["REQUEST", "REQUESTING"]) == {"note"}
    assert set(VIEW.edges["REQUESTING", "RESPONSE"]) == {"note"}
    claimed = {edge for edge, moves in VIEW.edges.items() if "claim" in moves}
    assert claimed == {("IDLE", "REQUEST")}


@pytest.mark.parametrize("state", WORDS)
def test_h_1_a_requests_words(state):
    assert (VIEW.word(Facts(state)), VIEW.word(Facts(state, fence=2))) == WORDS[state]
    assert set(VIEW.names(state)) == set(WORDS[state])


@pytest.mark.parametrize("phase", RUNNING_WORDS)
def test_h_1_a_running_requests_words(phase):
    assert VIEW.word(Facts("RUNNING", fence=1, phase=phase)) == RUNNING_WORDS[phase]
    assert set(VIEW.names("RUNNING")) == set(RUNNING_WORDS.values())


@pytest.mark.parametrize("state", BATCH_WORDS)
def test_h_1_a_batchs_words(state):
    assert BATCH_VIEW.names(state) == (BATCH_WORDS[state],)
    assert BATCH_VIEW.word(Facts(state)) == BATCH_WORDS[state]


STORIES = {
    "ending complete": "IDLE REQUEST REQUESTING RESPONSE COMPLETE",
    "H-8 pending once": "IDLE REQUEST REQUESTING RESPONSE WAITING IDLE REQUEST REQUESTING RESPONSE "
    "COMPLETE",
    "HTTP error": "IDLE REQUEST REQUESTING FAIL",
    "malformed": "IDLE REQUEST REQUESTING RESPONSE FAIL",
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_requests_whole_life_can_be_told(story):
    assert can_tell(VIEW, story.split())


@pytest.mark.parametrize(
    "story",
    [
        "IDLE REQUESTING",
        "IDLE COMPLETE",
        "IDLE WAITING",  # a request that never ran has nothing to wait for
        "IDLE REQUEST REQUESTING RESPONSE REQUESTING",
        "IDLE REQUEST REQUESTING RESPONSE COMPLETE IDLE",
        "IDLE REQUEST REQUESTING RESPONSE WAITING REQUEST",
    ],
)
def test_a_story_that_c_forbids_cannot_be_told(story):
    assert not can_tell(VIEW, story.split())


def test_a_batch_with_two_requests_can_be_told():
    assert can_tell(BATCH_VIEW, ["IDLE", "REQUEST", "REQUEST", "COMPLETE"])
