"""Sentences of explain() that were wrong once, or advised what does not help."""

import pytest

from tests.support.scenes import SCENES, Stage

pytestmark = pytest.mark.in_turn
BY_NAME = {str(scene): scene for scene in SCENES}
RAISE = "nothing, until its limit is raised: `milepost limits set"
SENT_ON = "maintenance, which any worker does, sends it on"
TOLD = {
    # They told of a gate that was about to open, and of a broker that the queue was not on.
    "job-gate_that_is_open": (f"its gate is open: {SENT_ON}", "any worker's maintenance queues it"),
    "job-queue_left_its_broker": (
        f"its queue is on no broker any more: {SENT_ON}",
        "any worker's maintenance queues it",
    ),
    "job-told_and_due_again": ("once, last 10 minutes ago", "else the broker is told again"),
    "job-alone": ("is QUEUED: a loss would end it: it runs with no other job", ""),
    "job-spent": ("is QUEUED: it has no attempt left", "any worker's maintenance ends it"),
    "job-succeeded_and_rerun": ("it was run again as job", "tells of the job that took its place"),
    # Nobody holds a limit of 0: no job that ends lets the next one start.
    "job-limit_that_somebody_set_to_none": ("lets none start", f"{RAISE} exports --most N`"),
    "queue-queue_that_somebody_shut": (
        "queue default lets none start (set by client: the bank is down)",
        f"{RAISE} default --scope queue --most N`",
    ),
    # A request that waits at its host was only said to run.
    "job-place_at_a_host": (
        "(1 at once) (set by client) for 7 seconds: 1 request is under way there; 0 before",
        "it is sent when its turn at the host comes",
    ),
    "job-place_at_any_host": (
        "at host partner.example (limit *: 1/h, burst 1) (set by client) for",
        "its turn",
    ),
    "job-host_that_somebody_shut": (
        "host partner.example lets none start (set by client: their shop is down)",
        f"{RAISE} partner.example --scope host --most N`",
    ),
    "job-turn_among_all": ("all jobs under it run one at a time, in order (limit exports)", ""),
    "job-has_turn_among_all": ("it keeps the turn (limit exports): 2 jobs wait for it", ""),
    "run-overdue_run": ("it has no open job", "any worker's maintenance moves it on"),
    "run-held_and_empty": ("it is still being filled: nobody has submitted it yet", ""),
    "pipeline-pipeline_that_waits_for_a_worker": ("its plan is not stored yet", "a worker plans"),
    # They named a time that had passed.
    "schedule-schedule_overdue": ("it has been due for", "any worker's maintenance fires it"),
    "channel-channel_waiting": ("1 message waits", "a worker delivers the first of them"),
}


@pytest.mark.parametrize("name", TOLD)
def test_it_says_what_is_so_and_what_follows(name, database):
    scene, (said, follows) = BY_NAME[name], TOLD[name]
    stage = Stage(database.url, subject=scene.subject)
    told = stage.app.explain(scene.subject, scene.play(stage))
    stage.close()
    assert said in told.text
    assert follows in told.next


def test_a_deadline_that_comes_first_is_not_said_to_be_no_cause(database):
    stage = Stage(database.url, subject="job")
    told = stage.app.explain("job", BY_NAME["job-deadline_first"].play(stage))
    stage.close()
    assert "deadline_first" in told.reasons
    assert not [one for one in told.ruled_out if "deadline" in one]
