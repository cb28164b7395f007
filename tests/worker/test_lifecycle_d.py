"""Spec D's four examples, through the real worker, move by move and in D's own words."""

import re

import pytest

import milepost as mp
from milepost.specs import JOB_VIEWS, Facts
from milepost.store import jobs, workers
from milepost.store.instants import instant

pytestmark = pytest.mark.in_turn

METADATA = [
    *("state", "createdAt", "startedAt", "completedAt"),
    *("retryCount", "maxRetries", "lastError", "errorType"),
]


def told(job):
    """Give D's words for every entry of a job's history, in order."""
    view = JOB_VIEWS["D"]
    return [view.word(Facts(mp.JobState(e.to_state), e.fence)) for e in job.history]


def moves(job):
    return [entry.move for entry in job.history]


@pytest.fixture
def metadata(raw):
    """Read a job's row of D's own view."""

    def read(job):
        columns = METADATA
        listed = ", ".join(f'"{name}"' for name in columns)
        [row] = raw.execute(f"SELECT {listed} FROM job_lifecycle WHERE \"jobId\" = '{job.id}'")
        seen = dict(zip(columns, row, strict=True))
        times = ("createdAt", "startedAt", "completedAt")
        instants = {name: instant(seen[name]) for name in times if seen[name] is not None}
        assert job.lifecycle() == {"jobId": job.id, **seen, **instants}
        return seen

    return read


@pytest.fixture
def process(app):
    """A document that fails as often as it says, by D's policy, with minutes for its seconds.

    A crowded machine may take a second from one call to the next.
    """

    @app.job(retries=3, retry_delay=60.0)
    def process(errors: list[str]) -> str:
        attempt = mp.current().attempt
        if attempt <= len(errors):
            raise {
                "timeout": TimeoutError("timeout"),
                "unavailable": ConnectionError("temporary unavailable"),
                "invalid": mp.Fail("invalid document format"),
            }[errors[attempt - 1]]
        return "processed"

    return process


@pytest.fixture
def held(process):
    """Create it first, as D does, and submit it then."""

    def submit(errors):
        job = process.options(hold=True).submit(errors)
        assert job.as_spec("D") == "CREATED"
        assert job.submit().as_spec("D") == "QUEUED"
        return job

    return submit


def test_successful_processing(app, held, metadata):
    job = held([])
    app.drain()
    assert told(job) == ["CREATED", "QUEUED", "RUNNING", "SUCCEEDED"]
    assert moves(job) == ["create", "submit", "claim", "succeed"]
    seen = metadata(job)
    assert (seen["state"], seen["retryCount"], seen["maxRetries"]) == ("SUCCEEDED", 0, 3)
    assert (seen["lastError"], seen["errorType"]) == (None, None)
    assert seen["createdAt"] <= seen["startedAt"] <= seen["completedAt"]


def test_failure_with_successful_retry(app, held, metadata, advance):
    job = held(["timeout"])
    app.drain()
    assert job.refresh().as_spec("D") == "RETRYING"
    seen = metadata(job)
    assert (seen["state"], seen["retryCount"], seen["errorType"]) == ("RETRYING", 1, "RETRYABLE")
    assert (seen["lastError"], seen["completedAt"]) == ("timeout", None)
    assert app.drain() == 0, "not before the minute is over"
    advance(60)
    assert app.drain() == 1
    assert told(job) == [
        *("CREATED", "QUEUED", "RUNNING", "RETRYING"),
        *("QUEUED", "RUNNING", "SUCCEEDED"),
    ]
    assert moves(job) == ["create", "submit", "claim", "retry", "due", "claim", "succeed"]
    after = metadata(job)
    assert (after["retryCount"], after["lastError"], after["errorType"]) == (1, None, None)
    assert after["startedAt"] == seen["startedAt"], "a retry does not overwrite it (H-26)"
    assert job.refresh().error.message == "timeout", "what went wrong before stays (H-25)"


def test_failure_exhausting_retries(app, held, metadata, advance):
    job = held(["unavailable"] * 4)
    for done in range(1, 4):
        assert app.drain() == 1
        seen = metadata(job)
        assert (seen["state"], seen["retryCount"]) == ("RETRYING", done)
        advance(60)
    assert app.drain() == 1
    again = ["RETRYING", "QUEUED", "RUNNING"]
    assert told(job) == ["CREATED", "QUEUED", "RUNNING", *again * 3, "FAILED"]
    assert moves(job) == [
        *("create", "submit", "claim"),
        *("retry", "due", "claim") * 3,
        "fail",
    ]
    seen = metadata(job)
    assert (seen["state"], seen["retryCount"], seen["errorType"]) == ("FAILED", 3, "TERMINAL")
    assert seen["lastError"] == "temporary unavailable"
    assert seen["completedAt"] is not None
    error = job.refresh().error
    assert (error.cause, error.code) == ("attempts_exhausted", "dependency_unavailable")
    advance(600)
    assert app.drain() == 0, "a terminal state is permanent"


def test_non_retryable_failure(app, held, metadata):
    job = held(["invalid"])
    app.drain()
    assert told(job) == ["CREATED", "QUEUED", "RUNNING", "FAILED"]
    assert moves(job) == ["create", "submit", "claim", "fail"]
    seen = metadata(job)
    assert (seen["state"], seen["retryCount"], seen["errorType"]) == ("FAILED", 0, "TERMINAL")
    assert seen["lastError"] == "invalid document format"
    assert job.refresh().error.code == "invalid_input"


def test_an_attempt_is_counted_by_its_end_and_not_by_its_claim(app, process, advance):
    job = process.submit(["timeout"])
    app.drain()
    advance(60)
    app.drain()
    assert [entry.attempt for entry in job.history] == [0, 1, 1, 1, 2, 2]
    assert (job.refresh().attempt, job.record.fence, job.record.errors) == (2, 2, 1)


def test_cancellation_is_a_failure_in_ds_words(app, held, metadata):
    job = held([])
    job.cancel("withdrawn")
    assert told(job) == ["CREATED", "QUEUED", "FAILED"]
    assert metadata(job)["errorType"] == "TERMINAL"


def test_a_cancelled_job_tells_why(app, process, metadata, advance):
    """D treats a cancellation as a failure; it came after the error, so it is the last (H-12)."""
    job = process.submit(["timeout"])
    app.drain()
    job.cancel(reason="the customer withdrew")
    seen = metadata(job)
    assert (seen["state"], seen["lastError"]) == ("FAILED", "cancelled: the customer withdrew")
    assert (seen["errorType"], seen["retryCount"]) == ("TERMINAL", 1)


def test_an_expired_job_tells_why(app, process, metadata, advance):
    job = process.options(deadline=60).submit(["timeout"])
    app.drain()
    advance(61)
    app.drain()
    seen = metadata(job)
    assert (seen["state"], seen["lastError"]) == ("FAILED", "its deadline has passed")
    assert seen["errorType"] == "TERMINAL"


@pytest.mark.parametrize(
    "given", [{"retries": 0}, {"retries": 1}, {"retries": 1, "recoveries": 0}], ids=str
)
def test_a_job_that_was_lost_tells_why(app, process, metadata, advance, given):
    job = process.options(**given).submit([])
    app.client.run(workers.register, workers.NewWorker(id="w", lease_us=30_000_000))
    app.client.run(jobs.claim, worker_id="w", line=jobs.lines(["default"]), most=1)
    advance(31)
    app.maintain_once()
    error = metadata(job)["lastError"]
    seconds = int(re.search(r"for (\d+) s", error)[1])  # the store's clock goes on meanwhile
    assert 31 <= seconds < 120
    told = f"nothing was heard of its worker for {seconds} s while it ran alone; losses 1"
    bounds = "recoveries 0, poison_limit 3" if "recoveries" in given else "poison_limit 3"
    assert error == f"{told} ({bounds}), errors 0 (retries {given['retries']})"


async def test_the_record_is_read_in_an_event_loop_too(app, process):
    job = await process.submit_async([])
    assert (await job.lifecycle_async())["state"] == "QUEUED"
    await app.close_async()
