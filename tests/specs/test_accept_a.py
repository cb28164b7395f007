"""Spec A as its reader would try it: an instance, its chunks, a gate, a poll and a reduction."""

from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

import milepost as mp

MINUTE = 60


def chunks(app, step):
    """Count the chunks of a step by A's words."""
    jobs = [job for job in app.jobs.list(limit=1000) if job.kind.endswith(step)]
    return dict(Counter(job.as_spec("A") for job in jobs))


@pytest.fixture
def patients(app):
    """An import: files are found, each is loaded, then every row is indexed, then reported.

    `broken` says what a call raises: by its step and item, the next error first.
    """
    batch = app.batch("import", params=list[str])
    batch.broken, batch.seen, batch.run = {}, [], None

    def meet(step, item):
        if batch.run is not None:
            run = app.runs.get(batch.run.id)
            batch.seen.append((step, run.as_spec("A"), run.current_step))
        if errors := batch.broken.get((step, item)):
            raise errors.pop(0)

    @batch.step
    def find(files: list[str]) -> Iterator[str]:
        meet("find", None)
        yield from files

    @batch.step(retries=1, retry_delay=MINUTE)
    def load(file: str) -> str:
        meet("load", file)
        return file.upper()

    @batch.step(gated=True)
    def index(row: str) -> str:
        meet("index", row)
        return row

    @batch.reduce(retries=1, retry_delay=MINUTE)
    def report(rows: Iterable[str]) -> list[str]:
        meet("report", None)
        return sorted(rows)

    return batch


def test_an_instance_walks_from_queued_over_in_progress_and_finalize_to_completed(app, patients):
    """QUEUED → IN_PROGRESS: on any work-chunk received; FINALIZE; do_reduction → COMPLETED."""
    patients.run = run = patients.start(["a", "b"])
    assert run.as_spec("A") == "QUEUED"

    app.drain()

    seen = {step: word for step, word, _ in patients.seen}
    assert [seen[step] for step in ("find", "load", "index")] == ["IN_PROGRESS"] * 3
    assert seen["report"] == "FINALIZE"
    assert run.refresh().as_spec("A") == "COMPLETED"
    assert run.report == ["A", "B"]


@pytest.mark.parametrize("files", [[], ["only"]])
def test_an_instance_completes_whether_its_first_step_gives_none_or_one(app, patients, files):
    """first_step_finished → COMPLETED: if no chunks produced."""
    run = patients.start(files)
    app.drain()
    assert run.refresh().as_spec("A") == "COMPLETED"
    assert run.report == [file.upper() for file in files]
    assert run.progress == 1.0


def test_a_gate_waits_for_a_chunk_in_error_and_the_instance_is_errored_meanwhile(
    app, patients, advance
):
    """GATE_WAITING → READY: on prior step completion; ERRORED: no failed but errored chunks."""
    patients.broken["load", "b"] = [ConnectionError("away")]
    run = patients.start(["a", "b"])
    app.drain()

    assert run.refresh().as_spec("A") == "ERRORED"
    assert chunks(app, "load") == {"COMPLETED": 1, "ERROR": 1}
    assert chunks(app, "index") == {"GATE_WAITING": 1}

    advance(MINUTE)
    app.drain()

    assert run.refresh().as_spec("A") == "COMPLETED"
    assert (run.report, run.error_count, run.failed) == (["A", "B"], 1, 0)


def test_a_gate_and_the_step_of_its_instance_move_as_one(app, patients):
    """transactionally update the gated chunks GATE_WAITING->READY in the same tx."""
    patients.run = run = patients.start(["a", "b"])
    app.drain()
    assert {step: at for step, _, at in patients.seen}["index"] == "index"
    moves = Counter(entry.move for job in app.jobs.list() for entry in job.history)
    assert moves["open"] == 2
    assert [entry.move for entry in run.history].count("advance") == 2


def test_a_chunk_with_too_many_errors_fails_its_errored_instance(app, patients, advance):
    """execute → FAILED: on unrecoverable or too many errors; error_progress_poll → FAILED."""
    patients.broken["load", "b"] = [ConnectionError("away"), ConnectionError("still away")]
    run = patients.start(["a", "b"])
    app.drain()
    assert run.refresh().as_spec("A") == "ERRORED"
    advance(MINUTE)
    app.drain()
    assert run.refresh().as_spec("A") == "FAILED"
    assert chunks(app, "load") == {"COMPLETED": 1, "FAILED": 1}
    assert [(error.step, error.message) for error in run.errors] == [("load", "still away")]


def test_a_chunk_that_cannot_recover_fails_its_instance_at_once(app, patients):
    """in_progress_poll → FAILED: any failed chunks."""
    patients.broken["load", "b"] = [mp.Fail("not a patient")]
    run = patients.start(["a", "b"])
    app.drain()
    assert run.refresh().as_spec("A") == "FAILED"
    assert set(chunks(app, "index")) <= {"FAILED"}, "what waited at the gate is not left behind"


def test_a_reduction_is_tried_again_and_fails_its_instance_when_it_cannot(app, patients, advance):
    """do_reduction → FAILED: fail."""
    patients.broken["report", None] = [ConnectionError("away"), ConnectionError("still away")]
    run = patients.start(["a"])
    app.drain()
    assert run.refresh().as_spec("A") == "FINALIZE"
    advance(MINUTE)
    app.drain()
    assert run.refresh().as_spec("A") == "FAILED"
    with pytest.raises(mp.JobFailed):
        _ = run.report


@pytest.mark.parametrize(
    ("broken", "word"),
    [
        (None, "QUEUED"),
        (("load", "b"), "ERRORED"),
        (("report", None), "FINALIZE"),
    ],
)
def test_a_user_cancels_an_instance_wherever_it_is(app, patients, broken, word):
    """in_progress_poll, error_progress_poll → CANCELLED: user requested cancel; H-4."""
    run = patients.start(["a", "b"])
    if broken:
        patients.broken[broken] = [ConnectionError("away")]
        app.drain()
    assert run.refresh().as_spec("A") == word

    run.cancel("wrong folder")
    app.drain()

    assert run.refresh().as_spec("A") == "CANCELLED"
    assert all(job.done for job in app.jobs.list())


def test_an_instance_that_is_cancelled_while_it_reduces_reads_finalize_until_the_end(app):
    """FINALIZE is not left for IN_PROGRESS: no edge of the diagram leads there."""
    batch = app.batch("short")
    seen = []

    @batch.step
    def one() -> int:
        return 1

    @batch.reduce
    def total(numbers: Iterable[int]) -> int:
        run.cancel("never mind")
        seen.append(app.runs.get(run.id).as_spec("A"))
        return sum(numbers)

    run = batch.start()
    app.drain()
    assert seen == ["FINALIZE"]
    assert run.refresh().as_spec("A") in ("COMPLETED", "CANCELLED")


@pytest.fixture
def scans(app):
    """A polling step that asks to be called again `pending` times."""
    batch = app.batch("scans", params=int)
    batch.pending = 0

    @batch.step
    def send(count: int) -> Iterator[int]:
        yield from range(count)

    @batch.step(poll=MINUTE, retries=0)
    def ask(number: int) -> int:
        if batch.pending:
            batch.pending -= 1
            raise mp.Later
        return number

    return batch


def test_a_polling_chunk_is_created_waiting_and_polls_each_minute_at_no_cost(app, scans, advance):
    """[*] → POLL_WAITING on create; IN_PROGRESS->POLL_WAITING, nextPollTimestamp now()+1 min."""
    scans.pending = 2
    run = scans.start(1)
    app.drain()
    for _ in range(3):
        assert chunks(app, "ask") == {"POLL_WAITING": 1}
        advance(MINUTE - 20)
        assert app.drain() == 0, "it must not be queued again before its time"
        advance(20)
        assert app.drain() == 1
    assert chunks(app, "ask") == {"COMPLETED": 1}
    assert run.refresh().as_spec("A") == "COMPLETED"
    assert run.error_count == 0


def test_maintenance_makes_ready_what_is_due_and_nothing_twice(app, scans, advance):
    """update all chunks in POLL_WAITING->READY where nextPollTimestamp<=now()."""
    scans.start(3)
    app.drain()
    advance(MINUTE)
    app.maintain_once()
    assert chunks(app, "ask") == {"READY": 3}
    app.maintain_once()
    assert app.drain() == 3
    moves = Counter(entry.move for job in app.jobs.list() for entry in job.history)
    assert moves["wake"] == 3


@pytest.mark.parametrize("word", ["COMPLETED", "FAILED", "CANCELLED"])
def test_an_instance_that_has_ended_stays_as_it_is(app, patients, raw, word):
    """COMPLETED → [*], FAILED → [*], CANCELLED → [*]."""
    if word == "FAILED":
        patients.broken["load", "a"] = [mp.Fail("no")]
    run = patients.start(["a"])
    if word == "CANCELLED":
        run.cancel()
    app.drain()
    assert run.refresh().as_spec("A") == word

    run.cancel("too late")
    app.maintain_once()
    with pytest.raises(Exception, match="this move is not declared"):
        raw.execute(
            "UPDATE run SET state = 'RUNNING', move = 'begin', version = version + 1"
            f" WHERE id = '{run.id}'"
        )
    assert run.refresh().as_spec("A") == word
