"""Both of A's diagrams, walked edge by edge by real batches, in A's own words.

READY and QUEUED fall together until a broker stands between them.
"""

from collections.abc import Iterable, Iterator

import milepost as mp
from milepost.specs import JOB_VIEWS, Facts

CHUNK_EDGES = {
    ("", "READY"),  # on create - normal step
    ("", "GATE_WAITING"),  # on create - gated step
    ("", "POLL_WAITING"),  # on create - polling step
    ("GATE_WAITING", "READY"),  # on prior step completion
    ("POLL_WAITING", "READY"),  # on time expired
    ("READY", "IN_PROGRESS"),  # start execution
    ("IN_PROGRESS", "ERROR"),  # on re-triable error
    ("IN_PROGRESS", "COMPLETED"),  # success
    ("IN_PROGRESS", "FAILED"),  # on unrecoverable or too many errors
    ("IN_PROGRESS", "POLL_WAITING"),  # on poll retry
    ("ERROR", "READY"),  # redelivery
}


def walked(jobs):
    """Read the journals as A would: every pair of words that followed each other."""
    view = JOB_VIEWS["A"]
    edges = set()
    for job in jobs:
        words = [view.word(Facts(entry.to_state, entry.fence)) for entry in job.history]
        edges |= set(zip(["", *words], words, strict=False))
    return edges


def test_a_chunk_walks_every_edge_of_its_diagram_and_no_other(app, advance):
    batch = app.batch("chunks", policy=mp.Tolerate(0.5))
    tried = []

    @batch.step
    def find() -> Iterator[int]:
        yield from range(4)

    @batch.step(retries=1, retry_delay=5)
    def load(number: int) -> int:
        if number == 1:
            raise mp.Fail("unrecoverable")
        if number == 2 and not tried:
            tried.append(number)
            raise ConnectionError("re-triable")
        return number

    @batch.step(gated=True)
    def index(number: int) -> int:
        return number

    @batch.step(poll=60)
    def indexed(number: int) -> int:
        tried.append(number)
        if tried.count(number) == 1:
            raise mp.Later(60)
        return number

    @batch.reduce
    def report(done: Iterable[int]) -> int:
        return len(list(done))

    run = batch.start()
    app.drain()
    for _ in range(4):
        advance(61)
        app.drain()
    assert run.refresh().report == 3
    jobs = app.jobs.list(limit=100)
    assert walked(jobs) == CHUNK_EDGES
    [waiting] = {job.record.due_at for job in jobs if job.kind == "chunks.find"}
    assert waiting is None


def test_next_poll_timestamp_is_a_minute_ahead_by_default(app, raw):
    batch = app.batch("minute")

    @batch.step(poll=True)
    def ready() -> None: ...

    run = batch.start()
    [job] = app.jobs.list(kind="minute.ready")
    ahead = (job.record.due_at - job.created_at).total_seconds()
    assert (round(ahead), job.as_spec("A")) == (60, "POLL_WAITING")
    assert run.refresh().state == mp.RunState.QUEUED


def test_an_instance_walks_from_queued_to_completed(app):
    batch = app.batch("plain")
    seen = []
    run = None

    @batch.step
    def find() -> Iterator[int]:
        seen.append(run.refresh().as_spec("A"))
        yield from (1, 2)

    @batch.step(gated=True)
    def load(number: int) -> int:
        seen.append(run.refresh().as_spec("A"))
        return number

    @batch.reduce
    def report(done: Iterable[int]) -> int:
        seen.append(run.refresh().as_spec("A"))
        return sum(done)

    run = batch.start()
    assert run.as_spec("A") == "QUEUED"
    app.drain()
    assert seen == ["IN_PROGRESS", "IN_PROGRESS", "IN_PROGRESS", "FINALIZE"]
    assert run.refresh().as_spec("A") == "COMPLETED"


def test_a_first_step_without_chunks_completes(app):
    batch = app.batch("nothing")

    @batch.step
    def find() -> None: ...

    @batch.step(gated=True)
    def load(number: int) -> None: ...

    run = batch.start()
    app.drain()
    assert run.refresh().as_spec("A") == "COMPLETED"


def test_errored_is_shown_while_a_chunk_waits_for_its_retry_h2(app, advance):
    batch = app.batch("errored")
    tried = []

    @batch.step(retries=2, retry_delay=60)
    def find() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ConnectionError("away")

    run = batch.start()
    app.drain()
    assert run.refresh().as_spec("A") == "ERRORED"
    advance(61)
    app.drain()
    assert run.refresh().as_spec("A") == "COMPLETED"


def test_an_errored_instance_fails_or_is_cancelled(app, advance):
    batch = app.batch("doomed")

    @batch.step(retries=1, retry_delay=60)
    def find() -> None:
        raise ConnectionError("away")

    failed, cancelled = batch.start(), batch.start()
    app.drain()
    assert {failed.refresh().as_spec("A"), cancelled.refresh().as_spec("A")} == {"ERRORED"}
    assert cancelled.cancel() == mp.RunState.CANCELLED
    assert cancelled.as_spec("A") == "CANCELLED"
    advance(61)
    app.drain()
    assert failed.refresh().as_spec("A") == "FAILED"


def test_a_reduction_that_fails_fails_the_instance(app):
    batch = app.batch("reduction")

    @batch.step
    def find() -> int:
        return 1

    @batch.reduce(retries=0)
    def report(done: Iterable[int]) -> int:
        raise mp.Fail("no report")

    run = batch.start()
    app.drain()
    assert run.refresh().as_spec("A") == "FAILED"
    assert run.record.cause == "finalizer"


def test_maintenance_repeats_what_the_transactions_did_and_finds_nothing_h101(app):
    batch = app.batch("kept")

    @batch.step
    def find() -> Iterator[int]:
        yield from (1, 2)

    @batch.step(gated=True)
    def load(number: int) -> int:
        return number

    run = batch.start()
    app.drain()
    before = [entry.move for entry in run.history]
    app.maintain_once()
    app.maintain_once()
    assert (
        [entry.move for entry in run.history] == before == ["create", "begin", "advance", "finish"]
    )
