"""What a handler says of itself: progress, usage, its log, its keys."""

import asyncio
import math
from fractions import Fraction

import pytest
from attempts import claimed, overtaken

import milepost as mp
from milepost import context as module
from milepost.context import Context
from milepost.store import durable, failpoint
from milepost.store.failpoint import cut

pytestmark = pytest.mark.in_turn


@pytest.fixture
def job(app):
    @app.job(name="work")
    def work() -> None: ...

    return work.submit()


class Watch:
    """A monotonic clock that a test winds."""

    seconds = 100.0

    def monotonic(self):
        return self.seconds


@pytest.fixture
def watch(monkeypatch):
    made = Watch()
    monkeypatch.setattr(module, "time", made)
    return made


def shown(job):
    job.refresh()
    return job.progress, job.progress_text


# Progress


def test_progress_shows_on_the_job(app, job, watch):
    assert shown(job) == (0.0, None)
    context = claimed(app)
    context.progress(0.4, "page 4 of 10")
    assert shown(job) == (0.4, "page 4 of 10")
    watch.seconds += 1
    context.progress(Fraction(1, 5))  # it may go back
    assert shown(job) == (0.2, None)


def test_progress_is_written_at_most_once_a_second_and_the_rest_is_left_to_the_worker(
    app, job, watch
):
    context = claimed(app)
    for page in range(10):
        context.progress(page / 10)
    assert shown(job)[0] == 0.0
    told = context.take_progress()
    assert told is not None
    assert (told.share, context.take_progress()) == (0.9, None)
    app.client.run(durable.write_progress, [told])
    assert shown(job)[0] == 0.9


def test_progress_adds_nothing_to_the_journal(app, job, watch):
    context = claimed(app)
    for _ in range(3):
        context.progress(0.5)
        watch.seconds += 1
    assert [entry.move for entry in job.history] == ["create", "claim"]


@pytest.mark.parametrize("share", [-0.01, 1.01, 50, math.nan, math.inf, True, "0.5", None])
def test_a_share_that_is_none_is_refused(app, job, share):
    with pytest.raises(mp.Invalid, match=r"a share from 0 to 1 is expected, such as 4 / 10"):
        claimed(app).progress(share)


def test_a_text_that_no_database_stores_is_spelled_out_and_cut(app, job):
    claimed(app).progress(1, "a\0b\ud800" + "x" * 5000)
    text = shown(job)[1]
    assert text.startswith("a\\0b\\ud800xxx")
    assert len(text) == module.TEXT_LIMIT


def test_what_an_overtaken_attempt_says_is_not_heard(app, job, advance):
    """I2, H-102."""
    late, holder = overtaken(app, advance)
    holder.progress(0.5, "holder")
    late.progress(0.9, "late")
    assert shown(job) == (0.5, "holder")


def test_a_store_that_is_away_does_not_end_the_handler(app, job, watch):
    context = claimed(app)
    with failpoint.armed("before:progress_tell", cut):
        context.progress(0.3)
    assert shown(job)[0] == 0.0
    assert context.has_progress  # the worker, or the next call, tells it
    context.write_progress()
    assert shown(job)[0] == 0.3


def test_progress_inside_a_transaction_waits_for_its_end(app, job, watch):
    context = claimed(app)
    with context.transaction():
        context.progress(0.3)
    assert context.has_progress
    context.progress(0.4)
    assert shown(job)[0] == 0.4


async def test_progress_in_an_event_loop_waits_for_nobody(app, job, watch):
    context = await asyncio.to_thread(claimed, app)
    context.progress(0.3)
    assert context.has_progress
    await context.progress_async(0.5)
    assert (await job.refresh_async()).progress == 0.5
    await context.progress_async(0.6)  # within the same second
    assert (await job.refresh_async()).progress == 0.5
    await app.close_async()


# Usage, log, keys


def test_usage_is_summed_and_checked(app, job):
    context = claimed(app)
    assert context.usage is None
    context.count("tokens", 120)
    context.count("tokens", 30.5)
    context.count("calls")
    assert context.usage == {"tokens": 150.5, "calls": 1}
    for amount in (math.nan, math.inf, -math.inf, 10**400, "1", True, None):
        with pytest.raises(mp.Invalid, match=r"count\('a', …\): an amount is a number"):
            context.count("a", amount)
    with pytest.raises(mp.Invalid, match="the name of a count"):
        context.count("", 1)


def test_the_log_names_the_job_in_every_line(app, job):
    import structlog

    context = claimed(app)
    with structlog.testing.capture_logs() as lines:
        context.log.info("converted", pages=3)
    structlog.reset_defaults()  # what it captured with counts as configured
    [line] = lines
    assert line == {
        "event": "converted",
        "log_level": "info",
        "pages": 3,
        "job_id": job.id,
        "kind": "work",
        "attempt": 1,
        "fence": 1,
    }


def test_the_idempotency_key_is_the_same_in_every_attempt(app, job, advance):
    """F8."""
    late, holder = overtaken(app, advance)
    assert late.fence != holder.fence
    assert late.idempotency_key == holder.idempotency_key == job.id


def test_a_context_without_a_store_says_so(app, job):
    context = Context(claimed(app).claim)
    with pytest.raises(mp.Invalid, match="made without a store"):
        context.step("a", lambda: 1)


def test_a_context_that_is_not_used_holds_nothing(app, job):
    """A job that does nothing must cost nothing."""
    context = claimed(app)
    assert (context.has_progress, context.usage, context.take_progress()) == (False, None, None)
    assert context._made is None
