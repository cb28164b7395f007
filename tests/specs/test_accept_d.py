"""Spec D as its reader would try it: one job, its record, its retries, and what is forbidden."""

from datetime import timedelta

import httpx2
import pytest

import milepost as mp
from tests.support.serving import served

NAMES = {
    "jobId",
    "state",
    "createdAt",
    "startedAt",
    "completedAt",
    "retryCount",
    "maxRetries",
    "lastError",
    "errorType",
}
MINUTE = 60
REFUSED = r"^milepost: job"
"""How the database itself answers."""


@pytest.fixture
def convert(app):
    """D's job: it raises `convert.errors` first, and keeps its record in each attempt as `ran`.

    It rests for longer than D's second, so that a slow machine does not try it by itself.
    """

    @app.job(retry_delay=MINUTE)
    def convert(document: str) -> str:
        declared.ran.append(app.jobs.get(mp.current().id).lifecycle())
        if declared.errors:
            raise declared.errors.pop(0)
        return f"{document}.pdf"

    declared = convert
    declared.errors, declared.ran = [], []
    return declared


def states(job):
    """D's words that the job has passed, by its history."""
    words = {"WAITING": "RETRYING", "CANCELLED": "FAILED"}
    return [words.get(entry.to_state, entry.to_state) for entry in job.history]


def test_a_job_is_created_queued_running_and_succeeded(app, convert):
    """CREATED → QUEUED → RUNNING → SUCCEEDED (no errors)."""
    job = convert.options(hold=True).submit("report")
    created = job.lifecycle()
    assert set(created) == NAMES
    assert (created["jobId"], created["state"]) == (job.id, "CREATED")
    assert app.drain() == 0, "it was not submitted"

    job.submit()
    assert job.lifecycle()["state"] == "QUEUED"
    assert job.lifecycle()["startedAt"] is None
    app.drain()

    [running], ended = convert.ran, job.lifecycle()
    assert running["state"] == "RUNNING"
    assert running["startedAt"] is not None
    assert running["completedAt"] is None
    assert ended["state"] == "SUCCEEDED"
    assert ended["completedAt"] >= ended["startedAt"] >= ended["createdAt"]
    assert (ended["retryCount"], ended["maxRetries"]) == (0, 3)
    assert (ended["lastError"], ended["errorType"]) == (None, None)
    assert states(job) == ["CREATED", "QUEUED", "RUNNING", "SUCCEEDED"]


def test_a_transient_error_is_tried_again_after_one_second(app, convert, advance):
    """RUNNING → RETRYING (retryCount = 1) → QUEUED (after 1 second) → RUNNING → SUCCEEDED."""
    convert.errors = [TimeoutError("no answer")]
    job = convert.submit("report")
    app.drain()
    waiting = job.lifecycle()
    assert (waiting["state"], waiting["retryCount"]) == ("RETRYING", 1)
    assert (waiting["lastError"], waiting["errorType"]) == ("no answer", "RETRYABLE")
    assert waiting["completedAt"] is None

    advance(MINUTE)
    app.drain()

    ended = job.lifecycle()
    assert (ended["state"], ended["retryCount"]) == ("SUCCEEDED", 1)
    assert (ended["lastError"], ended["errorType"]) == (None, None), "null on success"
    assert ended["startedAt"] == waiting["startedAt"]
    assert states(job) == ["QUEUED", "RUNNING", "RETRYING", "QUEUED", "RUNNING", "SUCCEEDED"]


def test_the_delay_is_a_fixed_second(app, advance):
    """Backoff Strategy: Fixed 1-second delay; it prevents an immediate re-queue storm."""

    @app.job
    def away(ctx: mp.Context) -> None:
        raise TimeoutError

    job = away.submit()
    for _ in range(4):
        app.drain()
        advance(1)
    assert job.refresh().done
    entries = [entry for entry in job.history if entry.move in ("retry", "due")]
    assert [entry.move for entry in entries] == ["retry", "due"] * 3
    for failed, due in zip(entries[::2], entries[1::2], strict=True):
        assert due.at - failed.at >= timedelta(seconds=1)


def test_retries_are_exhausted_after_three(app, convert, advance):
    """RUNNING (transient error, but retryCount >= maxRetries) → FAILED."""
    convert.errors = [TimeoutError(f"away {number}") for number in range(9)]
    job = convert.submit("report")
    for _ in range(6):
        app.drain()
        advance(MINUTE)
    ended = job.lifecycle()
    assert len(convert.ran) == 4, "one run and three retries"
    assert (ended["state"], ended["retryCount"], ended["maxRetries"]) == ("FAILED", 3, 3)
    assert ended["lastError"] == "away 3"
    assert ended["completedAt"] is not None
    assert [record["retryCount"] for record in convert.ran] == [0, 1, 2, 3]


def test_an_error_that_no_retry_helps_fails_at_once(app, convert, advance):
    """RUNNING (invalid document format) → FAILED (non-retryable, no retry attempt)."""
    convert.errors = [mp.Fail("invalid document format")]
    job = convert.submit("report")
    app.drain()
    advance(MINUTE)
    assert app.drain() == 0
    ended = job.lifecycle()
    assert (ended["state"], ended["retryCount"]) == ("FAILED", 0)
    assert (ended["lastError"], ended["errorType"]) == ("invalid document format", "TERMINAL")


def test_errors_can_be_classified_as_d_does(app):
    """Retry Condition: Error is classified as retryable AND retry count < max."""

    @app.job(retry_on=mp.TRANSIENT)
    def classified(name: str) -> None:
        raise {"timeout": TimeoutError, "invalid": ValueError, "away": ConnectionError}[name](name)

    jobs = {name: classified.submit(name) for name in ("timeout", "invalid", "away")}
    app.drain()
    told = {
        name: (job.lifecycle()["state"], job.lifecycle()["errorType"]) for name, job in jobs.items()
    }
    assert told == {
        "timeout": ("RETRYING", "RETRYABLE"),
        "invalid": ("FAILED", "TERMINAL"),
        "away": ("RETRYING", "RETRYABLE"),
    }


@pytest.mark.parametrize("word", ["CREATED", "QUEUED", "RETRYING"])
def test_a_job_is_cancelled_before_it_runs_and_says_why(app, convert, word):
    """QUEUED → FAILED: cancellation; treat as out-of-band operation transitioning to FAILED."""
    job = convert.options(hold=word == "CREATED").submit("report")
    if word == "RETRYING":
        convert.errors = [TimeoutError("no answer")]
        app.drain()
    assert job.refresh().as_spec("D") == word

    job.cancel("not needed any more")

    ended = job.lifecycle()
    assert (ended["state"], ended["errorType"]) == ("FAILED", "TERMINAL")
    assert "not needed any more" in ended["lastError"]
    assert ended["completedAt"] is not None
    assert app.drain() == 0


def test_a_queue_that_is_full_refuses_before_a_job_exists(app):
    """QUEUED → FAILED: Resource exhaustion; H-11: refusal happens before the job exists."""
    app.queue("small", max_waiting=1)

    @app.job(queue="small")
    def shrink(number: int) -> int:
        return number

    first = shrink.submit(1)
    with pytest.raises(mp.QueueFull):
        shrink.submit(2)
    with served(app) as url:
        answer = httpx2.post(f"{url}/v1/jobs", json={"kind": "shrink", "args": [2]})
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1
    app.drain()
    assert [job.id for job in app.jobs.list()] == [first.id]
    assert shrink.submit(2).state == "QUEUED"


FORBIDDEN = {
    "QUEUED": ["CREATED"],
    "SUCCEEDED": ["QUEUED", "RUNNING", "RETRYING", "FAILED"],
    "FAILED": ["QUEUED", "RUNNING", "RETRYING", "SUCCEEDED"],
    "CREATED": ["RUNNING", "SUCCEEDED", "RETRYING"],
    "RETRYING": ["CREATED", "RUNNING", "SUCCEEDED"],
}


@pytest.mark.parametrize("word", FORBIDDEN)
def test_a_transition_that_d_forbids_is_refused_even_at_a_prompt(app, convert, raw, word):
    """Invalid: reversions, backward progression, from terminal states, CREATED → RUNNING."""
    convert.errors = {"FAILED": [mp.Fail("no")], "RETRYING": [TimeoutError()]}.get(word, [])
    job = convert.options(hold=word == "CREATED").submit("report")
    if word != "QUEUED":
        app.drain()
    assert job.refresh().as_spec("D") == word

    for target in FORBIDDEN[word]:
        for move in ("submit", "claim", "succeed", "retry", "due", "release"):
            with pytest.raises(Exception, match=REFUSED):
                raw.execute(
                    f"UPDATE job SET state = '{target}', move = '{move}', version = version + 1"
                    f" WHERE id = '{job.id}'"
                )
    assert job.refresh().as_spec("D") == word


def test_a_running_job_does_not_return_to_the_queue_without_a_retry(app, database):
    """RUNNING → QUEUED (without retry) is not allowed."""
    refused = []

    @app.job
    def run(ctx: mp.Context) -> None:
        with database.raw() as raw:
            for move in ("submit", "due", "release", "undispatch"):
                with pytest.raises(Exception, match=REFUSED) as error:
                    raw.execute(
                        f"UPDATE job SET state = 'QUEUED', move = '{move}', version = version + 1,"
                        f" worker_id = NULL WHERE id = '{ctx.id}'"
                    )
                refused.append(error)

    job = run.submit()
    app.drain()
    assert len(refused) == 4
    assert job.refresh().as_spec("D") == "SUCCEEDED"


def test_what_d_calls_immutable_cannot_be_changed(app, convert, raw):
    """jobId, createdAt, maxRetries: Mutable: No."""
    job = convert.submit("report")
    before = job.lifecycle()
    for change in (
        "id = '018f0000-0000-7000-8000-000000000000'",
        "retries = 9",
        f"created_at = {raw.now}",
    ):
        with pytest.raises(Exception, match=REFUSED):
            raw.execute(f"UPDATE job SET {change} WHERE id = '{job.id}'")
    assert job.lifecycle() == before


def test_a_finished_job_is_run_again_as_another_one(app, convert):
    """Terminal finality: SUCCEEDED and FAILED states are permanent."""
    convert.errors = [mp.Fail("no")]
    job = convert.submit("report")
    app.drain()
    before = job.lifecycle()
    again = job.rerun()
    app.drain()
    assert again.lifecycle()["state"] == "SUCCEEDED"
    assert again.id != job.id
    assert job.lifecycle() == before
    job.cancel("too late")
    assert job.lifecycle() == before


def test_a_running_job_is_given_to_nobody_else(app, database):
    """No duplicate processing: once RUNNING, not assigned to another worker."""
    taken = []
    other = mp.App(database.url)
    other.job(name="slow")(lambda: "another's")

    @app.job(name="slow")
    def slow() -> str:
        taken.append(other.drain())
        return "mine"

    job = slow.submit()
    assert app.drain() == 1
    other.close()
    assert taken == [0]
    assert job.refresh().result == "mine"


def test_the_record_is_served_in_ds_names(app, convert):
    """Every job carries: jobId, state, createdAt, … errorType."""
    job = convert.submit("report")
    app.drain()
    with served(app) as url:
        told = httpx2.get(f"{url}/v1/jobs/{job.id}", params={"as": "D"}).json()
    assert set(told) == NAMES
    assert (told["jobId"], told["state"], told["maxRetries"]) == (job.id, "SUCCEEDED", 3)


def test_a_job_that_nobody_runs_ends_at_its_deadline(app, convert, advance):
    """No orphaned jobs: Every job reaches a terminal state or is explicitly cancelled."""
    held = convert.options(hold=True).submit("held")
    queued = convert.options(deadline=60).submit("queued")
    advance(3 * 3600)
    app.maintain_once()
    for job in (held, queued):
        ended = job.lifecycle()
        assert (ended["state"], ended["errorType"]) == ("FAILED", "TERMINAL")
        assert "deadline" in ended["lastError"]
    assert convert.ran == []
