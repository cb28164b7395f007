"""What the other tests of batches leave out: A's remaining edges, and what a run says of itself."""

from collections.abc import AsyncIterable, Iterable, Iterator
from datetime import timedelta

import msgspec
import pytest

import milepost as mp
from milepost.store import fanin


class Total(msgspec.Struct):
    sum: int


def told(run):
    """Say where it stands, in the words of A."""
    return run.refresh().as_spec("A")


def reduced(app, load, **options):
    """Declare find -> load -> total, with the load that is given."""
    batch = app.batch("reduced")

    @batch.step
    def find() -> Iterator[int]:
        yield from (1, 2)

    batch.step(name="load", **options)(load)

    @batch.reduce
    def total(found: Iterable[int]) -> int:
        return sum(found)

    return batch


# The edges of an instance


def test_an_instance_is_cancelled_or_fails_before_anything_ran_h4(app, advance):
    batch = app.batch("early")

    @batch.step(deadline=60)
    def find() -> None: ...

    cancelled, failed = batch.start(), batch.start()
    assert (told(cancelled), told(failed)) == ("QUEUED", "QUEUED")
    assert cancelled.cancel("changed my mind") == mp.RunState.CANCELLED
    advance(61)
    app.maintain_once()
    assert (told(cancelled), told(failed)) == ("CANCELLED", "FAILED")
    assert cancelled.history[-1].move == "cancel"


def test_an_instance_in_progress_fails_at_its_first_try_h3(app):
    seen = []

    def load(number: int) -> int:
        seen.append(told(run))
        raise mp.Fail("at once")

    run = reduced(app, load).start()
    app.drain()
    assert (set(seen), told(run)) == ({"IN_PROGRESS"}, "FAILED")
    assert run.record.cause == "policy"


def test_an_instance_in_progress_is_cancelled_and_what_runs_may_end_h106(app):
    answers = []

    def load(number: int) -> int:
        answers.append(run.cancel("enough"))
        return number

    run = reduced(app, load).start()
    app.drain()
    assert answers[0] == mp.RunState.STOPPING
    assert told(run) == "CANCELLED"
    assert run.cancel() == mp.RunState.CANCELLED, "what is over is not cancelled again"
    with pytest.raises(mp.JobFailed):
        _ = run.report


def test_an_errored_instance_is_finalized_and_completes(app, advance):
    tried = []

    def load(number: int) -> int:
        tried.append(number)
        if tried.count(number) == 1:
            raise ConnectionError("away")
        return number

    run = reduced(app, load, retry_delay=60).start()
    app.drain()
    assert told(run) == "ERRORED"
    advance(61)
    app.drain()
    assert (told(run), run.report) == ("COMPLETED", 3)


def test_chunks_that_recovered_are_counted(app, advance):
    """A: "use the error count in the UI"."""
    tried = []

    def load(number: int) -> int:
        tried.append(number)
        if number == 1 and tried.count(1) < 3:
            raise ConnectionError("away")
        return number

    run = reduced(app, load, retries=3, retry_delay=60).start()
    app.drain()
    assert (told(run), run.error_count) == ("ERRORED", 1)
    for _ in range(2):
        advance(61)
        app.drain()
    assert (told(run), run.error_count, run.errors) == ("COMPLETED", 1, [])


def test_an_instance_stays_errored_while_a_chunk_is_in_error_h2(app, advance):
    tried = []

    def load(number: int) -> int:
        tried.append(number)
        if number == 1 and tried.count(1) < 3:
            raise ConnectionError("away")
        return number

    run = reduced(app, load, retries=3, retry_delay=60).start()
    app.drain()
    assert (told(run), tried.count(2)) == ("ERRORED", 1)
    app.maintain_once()
    assert told(run) == "ERRORED"
    advance(61)
    app.drain()
    assert (told(run), tried.count(1)) == ("ERRORED", 2)
    advance(200)
    app.drain()
    assert (told(run), tried.count(1)) == ("COMPLETED", 3)


def test_an_instance_without_a_reducer_completes_with_its_last_chunk(app):
    batch = app.batch("unreduced")
    seen = []

    @batch.step
    def find() -> Iterator[int]:
        yield from (1, 2)

    @batch.step
    def load(number: int) -> None:
        seen.append(told(run))

    run = batch.start()
    app.drain()
    assert (seen, told(run)) == (["IN_PROGRESS"] * 2, "COMPLETED")


def test_an_instance_is_cancelled_while_it_is_finalized_h4(app):
    batch = app.batch("finalized")
    answers = []

    @batch.step
    def find() -> int:
        return 1

    @batch.reduce
    def total(found: Iterable[int]) -> int:
        answers.append((told(run), run.cancel("too late?"), told(run)))
        return sum(found)

    run = batch.start()
    app.drain()
    assert answers == [("FINALIZE", mp.RunState.STOPPING, "FINALIZE")]
    assert told(run) == "CANCELLED"


# What bounds a step


def test_a_chunk_that_polls_too_often_fails_its_run_h23(app, advance):
    batch = app.batch("polls")

    @batch.step(poll=60, poll_limit=2)
    def indexed() -> None:
        raise mp.Later(60)

    run = batch.start()
    for _ in range(4):
        advance(61)
        app.drain()
    [job] = app.jobs.list(kind="polls.indexed")
    assert (job.state, job.error.cause, told(run)) == ("FAILED", "poll_limit", "FAILED")


def test_maintenance_sends_a_chunk_on_at_its_next_poll_and_not_before_h5(app, advance):
    batch = app.batch("polled")
    asked = []

    @batch.step(poll=True)
    def indexed() -> None:
        asked.append(1)
        if len(asked) == 1:
            raise mp.Later

    def words() -> str:
        app.maintain_once()
        [job] = app.jobs.list(kind="polled.indexed")
        return job.as_spec("A")

    batch.start()
    assert words() == "POLL_WAITING"
    advance(61)
    assert words() == "READY"
    app.drain()
    # A minute from now, nothing spent, and nothing but time brings it back.
    [job] = app.jobs.list(kind="polled.indexed")
    ahead = (job.record.due_at - job.history[-1].at).total_seconds()
    assert (round(ahead), job.record.errors, job.record.polls) == (60, 0, 1)
    advance(50)
    assert words() == "POLL_WAITING"
    app.drain()
    assert len(asked) == 1
    advance(11)
    assert words() == "READY"
    app.drain()
    assert (words(), len(asked)) == ("COMPLETED", 2)


# What reaches the reducer


@pytest.mark.parametrize("many", [7, 700], ids=["along", "staged"])
def test_a_reducer_reads_in_the_order_of_publication(app, many):
    batch = app.batch("ordered")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(many)

    @batch.step
    async def load(number: int) -> int:
        return number

    @batch.reduce
    async def total(found: AsyncIterable[int]) -> bool:
        return [number async for number in found] == list(range(many))

    run = batch.start()
    app.drain(timeout=10)
    assert run.refresh().report is True


# What a run says of itself


def test_pace_and_rest_are_told_by_the_stores_clock_h102(app, advance):
    batch = app.batch("paced")
    slow = {5, 6, 7, 8, 9}

    @batch.step
    def find() -> Iterator[int]:
        yield from range(10)

    @batch.step(poll=30)
    def load(number: int) -> None:
        if number in slow:
            raise mp.Later(3600)

    run = batch.start()
    assert (run.throughput, run.eta) == (None, None)
    app.drain()
    advance(60)
    app.drain()
    run.refresh()
    # One found them and five are loaded, in a minute or a little more.
    assert 0.05 < run.throughput <= 0.1
    assert timedelta(seconds=10) < run.eta < timedelta(minutes=10)
    assert (run.current_step, run.steps[1].counts) == ("load", {"SUCCEEDED": 5, "WAITING": 5})
    slow.clear()
    advance(3600)
    app.drain()
    assert (run.refresh().eta, run.progress) == (None, 1.0)


def test_a_hook_is_created_by_the_transaction_that_ends_the_run_h55(app):
    batch = app.batch("hooked")

    @batch.step
    def find() -> None: ...

    @batch.on_success(retries=0)
    def heard(run: mp.RunHandle) -> None:
        raise mp.Fail(f"nobody listens to {run.state}")

    run = batch.start()
    app.drain()
    [hook] = app.jobs.list(kind="hooked.heard")
    assert (hook.state, hook.record.parent_id, hook.record.run_id) == ("FAILED", run.id, None)
    assert "SUCCEEDED" in hook.error.message
    assert run.refresh().state == "SUCCEEDED"
    assert app.client.run(fanin.advance_one, run.id, actor="m") == []


@pytest.mark.parametrize("colour", ["plain", "asynchronous"])
def test_a_hook_reads_the_report_as_the_reducer_gave_it(app, colour):
    batch = app.batch("typed")
    heard = []

    @batch.step
    def find() -> int:
        return 7

    @batch.reduce
    def total(found: Iterable[int]) -> Total:
        return Total(sum(found))

    def told_plainly(run: mp.RunHandle) -> None:
        heard.append((run.state, run.report))

    async def told_in_a_loop(run: mp.RunHandle) -> None:
        await run.refresh_async()
        heard.append((run.state, run.report))

    batch.on_success(told_plainly if colour == "plain" else told_in_a_loop)
    batch.start()
    app.drain()
    assert heard == [("SUCCEEDED", Total(7))]
