"""Spec E, the worker loop, in its own words: the worker, its slots, and the task's status."""

import pytest

from milepost.lifecycle import JOB, WORKER
from milepost.specs import JOB_VIEWS, SLOT_VIEWS, WORKER_VIEWS, Facts
from tests.support.machines import Diagram, can_tell

TASK_VIEW = JOB_VIEWS["E"]
WORKER_VIEW = WORKER_VIEWS["E"]
SLOT_VIEW = SLOT_VIEWS["E"]

LOOP = ("Startup", "Connecting", "Recovery", "Polling", "Backoff", "Idle")
"""The worker-level states of E, but ErrorWait."""

WORKER_LOOP = Diagram(
    name="worker",
    made=frozenset(WORKER_VIEW.edges),
    drawn=frozenset(
        {
            ("", "Startup"),  # the initial state (prose)
            ("", "Connecting"),  # the diagram's entry
            ("Startup", "Connecting"),  # run_worker() entry
            ("Connecting", "Recovery"),  # DB connected
            ("Recovery", "Polling"),  # check complete, or skipped due to timer
            ("Polling", "Backoff"),  # no task found
            ("Backoff", "Idle"),  # interval set
            ("Idle", "Connecting"),  # sleep done
            ("ErrorWait", "Connecting"),  # 5 s
            *((state, "ErrorWait") for state in LOOP),  # connection failed; any, by exception
        }
    ),
    added={
        ("Polling", "Recovery"): ("H-32", "by its timer, idle or not"),
        **{
            (state, "Draining"): ("H-38", "a deploy drains: no new claims, finish or release")
            for state in (*LOOP, "ErrorWait")
        },
        ("Draining", "Stopped"): ("H-38", "slots free, or grace over"),
        **{
            (state, "Stopped"): ("H-27", "buried: its heartbeat is dead, its jobs are lost")
            for state in (*LOOP, "ErrorWait")
        },
    },
    left_out={
        ("", "Connecting"): ("H-13", "Startup is in the prose and the table, not in the diagram"),
    },
)

SLOT_LOOP = Diagram(
    name="slot",
    made=frozenset(SLOT_VIEW.edges),
    drawn=frozenset(
        {
            ("Polling", "Claiming"),  # task found
            ("Claiming", "Processing"),  # lease acquired
            ("Claiming", "Polling"),  # claim failed; not in the table (H-13)
            ("Processing", "ReportingSuccess"),  # execution OK
            ("Processing", "ReportingFailure"),  # execution error
            ("ReportingSuccess", "Polling"),  # update done
            ("ReportingFailure", "Polling"),  # update done
            ("Claiming", "ErrorWait"),  # any, by exception
            ("Processing", "ErrorWait"),
            ("ReportingSuccess", "ErrorWait"),
            ("ReportingFailure", "ErrorWait"),
        }
    ),
    added={
        ("Processing", "Polling"): ("H-30", "the lease was lost or released: stop and discard"),
    },
    left_out={
        (state, "ErrorWait"): ("H-37", "the claim is dropped first; the worker waits, not a slot")
        for state in ("Claiming", "Processing", "ReportingSuccess", "ReportingFailure")
    },
)

TASK = Diagram(
    name="task",
    made=frozenset(TASK_VIEW.edges),
    drawn=frozenset(
        {
            ("", "pending"),
            ("pending", "running"),  # Claiming: status to running, and a lease
            ("running", "done"),  # ReportingSuccess
            ("running", "error"),  # ReportingFailure
            ("running", "pending"),  # Recovery, if try_count < max_tries
        }
    ),
    added={
        ("pending", "error"): ("H-21", "a spent budget is failed, never left; cancel and expiry"),
    },
)

DIAGRAMS = (WORKER_LOOP, SLOT_LOOP, TASK)

# Column E of the design's table, cell by cell.
TASK_WORDS = {
    "CREATED": "pending",
    "GATED": "pending",
    "WAITING": "pending",
    "READY": "pending",
    "QUEUED": "pending",
    "RUNNING": "running",
    "RETRYING": "pending",
    "SUCCEEDED": "done",
    "FAILED": "error",
    "CANCELLED": "error",
}
WORKER_WORDS = {
    "STARTUP": "Startup",
    "CONNECTING": "Connecting",
    "RECOVERY": "Recovery",
    "POLLING": "Polling",
    "BACKOFF": "Backoff",
    "IDLE": "Idle",
    "ERROR_WAIT": "ErrorWait",
    "DRAINING": "Draining",
    "STOPPED": "Stopped",
}
SLOT_WORDS = {
    "FREE": "Polling",
    "CLAIMING": "Claiming",
    "PROCESSING": "Processing",
    "REPORTING_SUCCESS": "ReportingSuccess",
    "REPORTING_FAILURE": "ReportingFailure",
}


@pytest.mark.parametrize(
    ("view", "words"),
    [(TASK_VIEW, TASK_WORDS), (WORKER_VIEW, WORKER_WORDS), (SLOT_VIEW, SLOT_WORDS)],
    ids=["task", "worker", "slot"],
)
def test_h_1_the_words(view, words):
    for fence in (0, 1):
        said = {s.value: view.word(Facts(s.value, fence=fence)) for s in view.machine.states}
        assert said == words


def test_a_tasks_terminal_states_are_done_and_error():
    assert {TASK_VIEW.word(Facts(state)) for state in JOB.terminal} == {"done", "error"}
    assert not {edge for edge in TASK.changes if edge[0] in ("done", "error")}


def test_h_20_an_exception_is_retried_as_a_lost_lease_is():
    assert {"lose", "retry"} <= set(TASK_VIEW.edges["running", "pending"])


def test_h_32_recovery_is_reached_under_constant_load():
    busy = {"Connecting", "Recovery", "Polling"}
    assert ("Polling", "Recovery") in {e for e in WORKER_LOOP.made if set(e) <= busy}


def test_h_38_a_worker_that_drains_never_goes_back():
    assert {after for before, after in WORKER_LOOP.changes if before == "Draining"} == {"Stopped"}
    assert WORKER.terminal == {"STOPPED"}


def test_h_37_an_error_never_waits_with_a_claim():
    assert "ErrorWait" not in {word.name for word in SLOT_VIEW.words}
    for busy in ("Claiming", "Processing", "ReportingSuccess", "ReportingFailure"):
        assert "drop" in SLOT_VIEW.edges[busy, "Polling"]


@pytest.mark.parametrize(
    ("view", "story"),
    [
        (WORKER_VIEW, "Startup Connecting Recovery Polling Backoff Idle Connecting Recovery"),
        (WORKER_VIEW, "Startup Connecting ErrorWait Connecting Recovery Polling"),
        (WORKER_VIEW, "Startup Connecting Recovery Polling Recovery Polling Draining Stopped"),
        (SLOT_VIEW, "Polling Claiming Processing ReportingSuccess Polling Claiming Polling"),
        (SLOT_VIEW, "Polling Claiming Processing ReportingFailure Polling"),
        (TASK_VIEW, "pending running pending running done"),
        (TASK_VIEW, "pending running error"),
    ],
)
def test_a_round_of_the_loop_can_be_told(view, story):
    assert can_tell(view, story.split())


@pytest.mark.parametrize(
    ("view", "story"),
    [
        (WORKER_VIEW, "Startup Polling"),
        (WORKER_VIEW, "Startup Connecting Recovery Polling Idle"),
        (WORKER_VIEW, "Startup Draining Stopped Connecting"),
        (SLOT_VIEW, "Polling Processing"),
        (SLOT_VIEW, "Claiming Processing ReportingSuccess ReportingFailure"),
        (TASK_VIEW, "pending done"),
        (TASK_VIEW, "pending running done pending"),
    ],
)
def test_a_story_that_e_forbids_cannot_be_told(view, story):
    assert not can_tell(view, story.split())
