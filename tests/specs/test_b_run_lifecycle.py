"""Spec B, the run lifecycle, in its own words: run, partition, worker run and watermark."""

import pytest

from milepost.ingest.options import with_defaults
from milepost.lifecycle import RUN, Cause
from milepost.machine import CREATION
from milepost.specs import JOB_VIEWS, RUN_VIEWS, Facts, WatermarkWord, job_view, watermark_word
from tests.support.machines import Diagram, can_tell
from tools.views import WORKER_RUN

RUN_VIEW = RUN_VIEWS["B"]
PARTITION_VIEW = JOB_VIEWS["B"]

LIFECYCLE = Diagram(
    name="run",
    made=frozenset(RUN_VIEW.edges),
    # ConsolidationCheck and WatermarkUpdate are choices and drawn through. So are
    # ConsolidationSkipped and ConsolidationTriggered: see the tests below.
    drawn=frozenset(
        {
            ("", "Created"),  # scheduler creates run_metadata
            ("Created", "WorkersRunning"),  # workers start consuming
            ("WorkersRunning", "Failed"),  # failedWorkers > 0, consolidation skipped
            ("WorkersRunning", "Consolidating"),  # all completed, consolidation triggered
            ("Consolidating", "Consolidating"),  # its inner states
            ("Consolidating", "Completed"),  # watermark saved successfully
            ("Consolidating", "Failed"),  # watermark save error
        }
    ),
    added={
        ("Created", "Failed"): ("H-4", "the plan failed, or it was cancelled or expired"),
        ("Created", "Completed"): ("H-61", "zero records is all done, and on the record"),
        ("Created", "Consolidating"): ("H-61", "zero partitions, and the finalizer of none"),
        ("WorkersRunning", "Completed"): ("H-61", "nothing to consolidate"),
    },
)

PARTITION = Diagram(
    name="partition",
    made=frozenset(PARTITION_VIEW.edges),
    drawn=frozenset(
        {
            ("", "PartitionPending"),
            ("PartitionPending", "PartitionInProgress"),  # worker receives WorkItemMessage
            ("PartitionInProgress", "PartitionFetchingPages"),  # process first page
            ("PartitionFetchingPages", "PartitionFetchingPages"),  # continuation
            ("PartitionFetchingPages", "PartitionCompleted"),  # last page processed
            ("PartitionFetchingPages", "PartitionFailed"),  # error occurred
        }
    ),
    added={
        ("PartitionPending", "PartitionFailed"): ("H-4", "cancelled, expired or rejected"),
        ("PartitionInProgress", "PartitionFailed"): ("H-3", "it may fail before its first page"),
        ("PartitionInProgress", "PartitionCompleted"): ("H-61", "a partition without records"),
        ("PartitionFetchingPages", "PartitionInProgress"): (
            "H-47",
            "retried or lost: it stays, with its cursor, and waits for its next claim",
        ),
        ("PartitionInProgress", "PartitionPending"): ("H-8", "a claim is the only way to run"),
    },
)

STATUS = Diagram(
    name="worker_runs.status",
    made=frozenset(WORKER_RUN.edges),
    drawn=frozenset({("", "running"), ("running", "completed"), ("running", "failed")}),
)

# The worker state machine, each node by the partition's words: what B draws as messages and
# counter updates is one transaction here, so those nodes are inside the word that it ends in.
NODES = {
    "WorkerCreated": {"PartitionPending"},  # H-49: planned in the run's own transaction
    "PartitionInitialized": {"PartitionPending"},
    "CheckIdempotency": {"PartitionInProgress", "PartitionFetchingPages"},
    "ProcessPage": {"PartitionInProgress", "PartitionFetchingPages"},
    "FetchFromNivoda": {"PartitionInProgress", "PartitionFetchingPages"},
    "WriteRaw": {"PartitionInProgress", "PartitionFetchingPages"},
    "UpdateProgress": {"PartitionFetchingPages"},
    "EnqueueNext": {"PartitionFetchingPages"},  # H-47: cursor and continuation are one row
    "CompletePartition": {"PartitionFetchingPages"},
    "WorkerCompleted": {"PartitionCompleted"},
    "WorkerFailed": {"PartitionFailed"},
    "IncrementCompleted": {"PartitionCompleted"},  # H-46: counted where the state changes
    "IncrementFailed": {"PartitionFailed"},  # H-46
    "TriggerConsolidation": {"PartitionCompleted"},  # H-45: the trigger is state
    "WaitForOthers": {"PartitionCompleted", "PartitionFailed"},
    "SkipConsolidation": {"PartitionCompleted", "PartitionFailed"},  # H-16: whatever its outcome
}
WORKER_EDGES = [
    ("WorkerCreated", "PartitionInitialized"),
    ("PartitionInitialized", "CheckIdempotency"),
    ("CheckIdempotency", "ProcessPage"),
    ("ProcessPage", "FetchFromNivoda"),
    ("FetchFromNivoda", "WriteRaw"),
    ("WriteRaw", "UpdateProgress"),
    ("UpdateProgress", "EnqueueNext"),
    ("UpdateProgress", "CompletePartition"),
    ("EnqueueNext", "CheckIdempotency"),
    ("CompletePartition", "WorkerCompleted"),
    ("CheckIdempotency", "WorkerFailed"),
    ("FetchFromNivoda", "WorkerFailed"),
    ("WriteRaw", "WorkerFailed"),
    ("WorkerCompleted", "IncrementCompleted"),
    ("WorkerFailed", "IncrementFailed"),
    ("IncrementCompleted", "TriggerConsolidation"),
    ("IncrementCompleted", "WaitForOthers"),
    ("IncrementCompleted", "SkipConsolidation"),
    ("IncrementFailed", "WaitForOthers"),
    ("IncrementFailed", "SkipConsolidation"),
]


def watermark_steps():
    """Every step of a pipeline's watermark: (run state or none, whether it exists), before, after.

    It comes to be, or moves, in the transaction that ends a run well; a run that ended is
    followed by none, until the scheduler makes the next.
    """
    for exists in (False, True):
        for _, before, after in RUN.triples:
            yield (before or None, exists), (after, exists or after == "SUCCEEDED")
        for final in RUN.terminal:
            if exists or final != "SUCCEEDED":
                yield (final, exists), (None, exists)


def watermark_edges():
    yield CREATION, watermark_word(None, exists=False).value
    for (was, existed), (now, exists) in watermark_steps():
        yield (
            watermark_word(was, exists=existed).value,
            watermark_word(now, exists=exists).value,
        )


WATERMARK = Diagram(
    name="watermark",
    made=frozenset(watermark_edges()),
    drawn=frozenset(
        {
            ("", "NoWatermark"),  # first run ever
            ("NoWatermark", "WatermarkRead"),  # consolidation completes: into WatermarkExists
            ("WatermarkRead", "RunCreated"),  # scheduler uses as watermarkBefore
            ("RunCreated", "Processing"),  # workers + consolidation
            ("Processing", "WatermarkAdvanced"),  # consolidation successful
            ("WatermarkAdvanced", "WatermarkRead"),  # next run
            ("Processing", "WatermarkNotAdvanced"),  # consolidation failed
            ("WatermarkNotAdvanced", "WatermarkRead"),  # next run re-processes same data
        }
    ),
    added={
        ("NoWatermark", "WatermarkAdvanced"): ("H-44", "the run's end and its watermark are one"),
        ("RunCreated", "WatermarkAdvanced"): ("H-61", "nothing to read: the window is closed"),
        ("RunCreated", "WatermarkNotAdvanced"): ("H-4", "failed or cancelled before it began"),
    },
    left_out={
        ("NoWatermark", "WatermarkRead"): ("H-44", "it enters WatermarkExists as advanced"),
    },
)

DIAGRAMS = (LIFECYCLE, PARTITION, STATUS, WATERMARK)

# Column B of the design's tables, cell by cell: before a first run, after one, after a page.
PARTITION_WORDS = {
    "CREATED": ("PartitionPending", "PartitionPending", "PartitionPending"),
    "GATED": ("PartitionPending", "PartitionPending", "PartitionPending"),
    "WAITING": ("PartitionPending", "PartitionInProgress", "PartitionInProgress"),
    "READY": ("PartitionPending", "PartitionPending", "PartitionPending"),
    "QUEUED": ("PartitionPending", "PartitionPending", "PartitionPending"),
    "RUNNING": ("PartitionInProgress", "PartitionInProgress", "PartitionFetchingPages"),
    "RETRYING": ("PartitionInProgress", "PartitionInProgress", "PartitionInProgress"),
    "SUCCEEDED": ("PartitionCompleted", "PartitionCompleted", "PartitionCompleted"),
    "FAILED": ("PartitionFailed", "PartitionFailed", "PartitionFailed"),
    "CANCELLED": ("PartitionFailed", "PartitionFailed", "PartitionFailed"),
}
# Before the consolidation step, and at it.
RUN_WORDS = {
    "CREATED": ("Created", "Created"),
    "QUEUED": ("Created", "Created"),
    "RUNNING": ("WorkersRunning", "Consolidating"),
    "STOPPING": ("WorkersRunning", "Consolidating"),
    "FINALIZING": ("Consolidating", "Consolidating"),
    "SUCCEEDED": ("Completed", "Completed"),
    "FAILED": ("Failed", "Failed"),
    "CANCELLED": ("Failed", "Failed"),
}


@pytest.mark.parametrize(("before", "after"), WORKER_EDGES)
def test_an_edge_of_the_worker_machine_is_a_step_or_inside_one_word(before, after):
    inside = NODES[before] & NODES[after]
    steps = {(b, a) for b in NODES[before] for a in NODES[after]} & PARTITION.made
    assert inside or steps


def test_a_worker_that_ended_leads_nowhere():
    ended = {"PartitionCompleted", "PartitionFailed"}
    assert {node for node, words in NODES.items() if words <= ended} >= {
        "WorkerCompleted",
        "WorkerFailed",
        "SkipConsolidation",
    }
    assert not {(before, after) for before, after in PARTITION.changes if before in ended}


# The two nodes of the run's diagram that are no states here.


def test_h_16_consolidation_skipped_is_a_cause_of_failed():
    assert Cause.INCOMPLETE == "incomplete"
    assert ("WorkersRunning", "Failed") in LIFECYCLE.made
    assert "ConsolidationSkipped" not in {word.name for word in RUN_VIEW.words}


def test_h_45_consolidation_triggered_is_the_same_transaction():
    assert set(RUN_VIEW.edges["WorkersRunning", "Consolidating"]) == {"advance", "finalize"}
    assert "ConsolidationTriggered" not in {word.name for word in RUN_VIEW.words}


@pytest.mark.parametrize("state", PARTITION_WORDS)
def test_h_1_a_partitions_words(state):
    facts = (Facts(state), Facts(state, fence=1), Facts(state, fence=1, phase="page 7"))
    assert tuple(map(PARTITION_VIEW.word, facts)) == PARTITION_WORDS[state]
    assert set(PARTITION_VIEW.names(state)) == set(PARTITION_WORDS[state])


# Before a first run, after one, and in a phase: a job that consolidates is no partition.
CONSOLIDATOR_WORDS = {
    "CREATED": ("WorkersRunning",) * 3,
    "GATED": ("WorkersRunning",) * 3,
    "WAITING": ("ConsolidationTriggered", "Consolidating", "Consolidating"),
    "READY": ("ConsolidationTriggered",) * 3,
    "QUEUED": ("ConsolidationTriggered",) * 3,
    "RUNNING": ("Consolidating", "Consolidating", "UpsertingBatch"),
    "RETRYING": ("Consolidating",) * 3,
    "SUCCEEDED": ("Completed",) * 3,
    "FAILED": ("Failed",) * 3,
    "CANCELLED": ("Failed",) * 3,
}


@pytest.mark.parametrize("role", ["consolidate", "reduce"])
@pytest.mark.parametrize("state", CONSOLIDATOR_WORDS)
def test_h_1_a_consolidators_words(state, role):
    facts = (Facts(state), Facts(state, fence=1), Facts(state, fence=1, phase="UpsertingBatch"))
    assert tuple(map(job_view("B", role=role).word, facts)) == CONSOLIDATOR_WORDS[state]


@pytest.mark.parametrize("role", [None, "work", "plan", "partition"])
def test_other_jobs_keep_bs_words_for_partitions(role):
    assert job_view("B", role=role) is PARTITION_VIEW


@pytest.mark.parametrize("state", RUN_WORDS)
def test_h_1_a_runs_words(state):
    facts = (Facts(state), Facts(state, phase="consolidate"))
    assert tuple(map(RUN_VIEW.word, facts)) == RUN_WORDS[state]
    assert set(RUN_VIEW.names(state)) == set(RUN_WORDS[state])


@pytest.mark.parametrize(
    ("run_state", "word"),
    [
        (None, "WatermarkRead"),
        ("CREATED", "RunCreated"),
        ("QUEUED", "RunCreated"),
        ("RUNNING", "Processing"),
        ("STOPPING", "Processing"),
        ("FINALIZING", "Processing"),
        ("SUCCEEDED", "WatermarkAdvanced"),
        ("FAILED", "WatermarkNotAdvanced"),
        ("CANCELLED", "WatermarkNotAdvanced"),
    ],
)
def test_h_1_a_watermarks_words(run_state, word):
    assert watermark_word(run_state, exists=True) == word
    assert watermark_word(run_state, exists=False) == "NoWatermark"


def test_every_word_for_a_watermark_is_used():
    assert {word for edge in WATERMARK.made for word in edge} - {""} == {
        word.value for word in WatermarkWord
    }


def test_h_69_only_a_run_that_succeeded_advances_the_watermark():
    arrivals = {
        (was, now)
        for (was, existed), (now, exists) in watermark_steps()
        if watermark_word(now, exists=exists) == "WatermarkAdvanced"
    }
    assert {now for _, now in arrivals} == {"SUCCEEDED"}


TIMELINE = "Created WorkersRunning Consolidating Completed"


@pytest.mark.parametrize(
    "story", [TIMELINE, "Created WorkersRunning Failed", "Created Failed", "Created Completed"]
)
def test_a_runs_whole_life_can_be_told(story):
    assert can_tell(RUN_VIEW, story.split())


PAGES = "PartitionPending PartitionInProgress PartitionFetchingPages"


@pytest.mark.parametrize(
    "story",
    [
        f"{PAGES} PartitionFetchingPages PartitionCompleted",
        f"{PAGES} PartitionInProgress {PAGES} PartitionCompleted",
        f"{PAGES} PartitionFailed",
    ],
)
def test_a_partitions_whole_life_can_be_told(story):
    assert can_tell(PARTITION_VIEW, story.split())


@pytest.mark.parametrize(
    "story",
    [
        "PartitionPending PartitionFetchingPages",
        "PartitionPending PartitionCompleted",
        f"{PAGES} PartitionPending",
    ],
)
def test_a_story_that_b_forbids_cannot_be_told(story):
    assert not can_tell(PARTITION_VIEW, story.split())


def test_bs_numbers_are_the_defaults():
    chosen = with_defaults({"key": "id", "partition_by": "price"}, what="a pipeline")
    assert (chosen["page"], chosen["batch"]) == (30, 2000)
    assert (chosen["upsert"], chosen["concurrency"], chosen["retries"]) == (100, 5, 3)
