"""What a handle tells and does."""

import asyncio
import threading
import time
import warnings
from datetime import timedelta

import pytest

import milepost as mp
from milepost.store import workers

pytestmark = pytest.mark.in_turn


@pytest.fixture
def double(app):
    @app.job
    def double(number: int) -> int:
        return number * 2

    return double


@pytest.fixture
def broken(app):
    @app.job(retries=0)
    def broken(text: str) -> None:
        raise ValueError(text)

    return broken


def test_a_result_is_there_only_after_success(app, double, broken):
    job, sick = double.submit(4), broken.submit("no such page")
    with pytest.raises(mp.NotFinished, match=rf"{job.id}.*QUEUED"):
        _ = job.result
    app.drain()
    with pytest.raises(mp.NotFinished):
        _ = job.result  # a handle is a snapshot
    assert job.refresh().result == 8
    with pytest.raises(mp.JobFailed, match=r"FAILED: ValueError: no such page"):
        _ = sick.refresh().result


def test_a_failed_job_says_what_how_and_why(app, broken):
    job = broken.submit("no such page")
    app.drain()
    error = job.refresh().error
    assert (error.type, error.message) == ("ValueError", "no such page")
    assert error.cause == "attempts_exhausted"
    assert job.done


def test_a_cancelled_jobs_result_raises_with_the_reason(app, double):
    job = double.submit(4)
    assert job.cancel("wrong number") == mp.JobState.CANCELLED
    assert job.state == mp.JobState.CANCELLED
    with pytest.raises(mp.JobFailed, match="CANCELLED: wrong number"):
        _ = job.result
    assert job.cancel("again") == mp.JobState.CANCELLED
    assert [(entry.move, entry.detail) for entry in job.history] == [
        ("create", None),
        ("cancel", "wrong number"),
    ]


def test_a_finished_job_cannot_be_cancelled(app, double):
    job = double.submit(4)
    app.drain()
    assert job.cancel("too late") == mp.JobState.SUCCEEDED
    assert job.refresh().result == 8


def test_the_snapshot_tells_when_it_was_created_started_and_finished(app, double):
    job = double.submit(4)
    assert (job.attempt, job.started_at, job.finished_at) == (0, None, None)
    app.drain()
    job.refresh()
    assert job.attempt == 1
    assert job.created_at <= job.started_at <= job.finished_at
    assert job.created_at.utcoffset() == timedelta(0)


def test_history_has_every_move_with_its_fields(app, double):
    job = double.submit(4)
    app.drain()
    entries = job.history
    assert [entry.seq for entry in entries] == [1, 2, 3]
    assert [(e.move, e.from_state, e.to_state, e.attempt) for e in entries] == [
        ("create", None, "QUEUED", 0),
        ("claim", "QUEUED", "RUNNING", 1),
        ("succeed", "RUNNING", "SUCCEEDED", 1),
    ]
    assert entries[0].actor == "client"
    assert entries[1].actor == entries[2].actor
    assert [entry.detail for entry in entries] == [None, None, None]
    assert entries[0].at <= entries[1].at <= entries[2].at


def test_wait_returns_the_final_handle(app, double):
    job = double.submit(4)
    drainer = threading.Timer(0.2, app.drain)
    drainer.start()
    assert job.wait(timeout=20).result == 8
    drainer.join()


def test_wait_times_out_and_says_where_the_job_stands(double):
    job = double.submit(4)
    with pytest.raises(mp.WaitTimeout, match=rf"{job.id} is QUEUED after 0.2 s"):
        job.wait(timeout=0.2)
    with pytest.raises(mp.WaitTimeout):
        job.wait(timeout=0)


async def test_wait_async_is_the_same_without_blocking(app, double):
    job = await double.submit_async(4)
    with pytest.raises(mp.WaitTimeout):
        await job.wait_async(timeout=0.1)
    _, waited = await asyncio.gather(app.drain_async(), job.wait_async(timeout=20))
    assert waited.result == 8
    await app.close_async()


def test_waiting_in_vain_warns_once_that_no_worker_could_take_the_job(double, monkeypatch):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", 0.1)
    with (
        pytest.warns(RuntimeWarning, match="no live worker could take it") as seen,
        pytest.raises(mp.WaitTimeout),
    ):
        double.submit(4).wait(timeout=0.6)
    assert len(seen) == 1


async def test_waiting_in_vain_warns_in_both_colours(app, double, monkeypatch):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", 0.1)
    job = await double.submit_async(4)
    with (
        pytest.warns(RuntimeWarning, match="no live worker could take it"),
        pytest.raises(mp.WaitTimeout),
    ):
        await job.wait_async(timeout=0.6)
    await app.close_async()


def registered(app, *, queues=None, kinds='["double 1"]', lease=30.0):
    app.client.run(
        workers.register,
        workers.NewWorker(id="w", lease_us=int(lease * 1e6), queues=queues, kinds=kinds),
    )


@pytest.mark.parametrize(
    ("worker", "warns"),
    [
        ({}, False),
        ({"queues": '["default"]'}, False),
        ({"queues": '["other"]'}, True),
        ({"kinds": '["double 2", "other 1"]'}, True),
        ({"lease": -1.0}, True),
    ],
)
def test_only_a_live_worker_of_that_queue_and_kind_counts(app, double, monkeypatch, worker, warns):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", 0.01)
    registered(app, **worker)
    job = double.submit(4)
    with (
        warnings.catch_warnings(record=True, action="always") as seen,
        pytest.raises(mp.WaitTimeout),
    ):
        job.wait(timeout=0.1)
    assert bool(seen) == warns


async def test_inside_a_loop_blocking_calls_raise_and_name_their_twin(app, double):
    job = await double.submit_async(4)
    with pytest.raises(mp.Invalid, match="wait_async"):
        job.wait()
    with pytest.raises(mp.Invalid, match="drain_async"):
        app.drain()
    with pytest.raises(mp.Invalid, match="run_worker_async"):
        app.run_worker()
    with pytest.raises(mp.Invalid, match="maintain_once_async"):
        app.maintain_once()
    await app.close_async()


async def test_inside_a_loop_submit_works_and_warns_once(app):
    @app.job(name=f"blocking-{id(app)}")
    def blocking() -> None: ...

    with pytest.warns(RuntimeWarning, match=r"await .*submit_async\(\)"):
        job = blocking.submit()
    assert job.id
    assert blocking.submit().id


def test_cancel_of_a_held_and_of_a_sleeping_job(app, double):
    held = double.options(hold=True).submit(1)
    asleep = double.options(start_in=60).submit(1)
    assert held.cancel() == asleep.cancel() == mp.JobState.CANCELLED
    with pytest.raises(mp.IllegalMove, match="CANCELLED"):
        held.submit()
    assert held.refresh().state == mp.JobState.CANCELLED


def test_rerun_makes_a_new_job_that_points_at_the_old_one(app, double):
    job = double.options(queue="slow", priority=3, tags={"a": "b"}, deadline=60, timeout=7).submit(
        4
    )
    with pytest.raises(mp.IllegalMove, match="only a finished one"):
        job.rerun()
    app.drain()
    again = job.rerun(fresh=True)
    assert again.id != job.id
    assert again.record.rerun_of == job.id
    assert (again.queue, again.record.priority, again.record.tags) == (
        "slow",
        3,
        job.refresh().record.tags,
    )
    app.drain()
    assert again.refresh().result == 8
    assert [entry.move for entry in job.history] == ["create", "claim", "succeed"]


def test_a_rerun_keeps_every_limit_of_the_first(app, double, raw):
    limits = {"retries": 1, "poll_limit": 2, "poison_limit": 4, "timeout": 7}
    job = double.options(**limits, deadline=60, start_within=50, channel="c").submit(4)
    app.drain()
    job.rerun(fresh=True)
    kept = "retries, poll_limit, poison_limit, timeout_us, channel, kind_version, codec"
    first, second = raw.execute(f"SELECT {kept} FROM job ORDER BY created_at")
    assert first == second
    assert raw.value("SELECT count(*) FROM job WHERE deadline_at IS NULL OR start_by IS NULL") == 0


def test_a_signal_wakes_a_sleeping_job_and_a_final_one_hears_nothing(app):
    @app.job
    def approve(ctx: mp.Context) -> str:
        if ctx.claim.polls == 0:
            raise mp.Later(None)
        return "approved"

    job = approve.submit()
    app.drain()
    assert job.refresh().state == mp.JobState.WAITING
    assert job.signal({"by": "me"}) is True
    app.drain()
    assert job.refresh().result == "approved"
    assert job.signal() is False
    assert [entry.move for entry in job.history] == [
        "create",
        "claim",
        "later",
        "wake",
        "claim",
        "succeed",
    ]


def test_as_spec_says_it_in_each_documents_words(app, double):
    job = double.submit(4)
    words = {spec: job.as_spec(spec) for spec in "ABCDE"}
    assert words == {
        "A": "READY",
        "B": "PartitionPending",
        "C": "IDLE",
        "D": "QUEUED",
        "E": "pending",
    }
    app.drain()
    job.refresh()
    assert [job.as_spec(spec) for spec in "ADE"] == ["COMPLETED", "SUCCEEDED", "done"]
    with pytest.raises(mp.Invalid, match="no spec 'F'"):
        job.as_spec("F")


def test_jobs_are_found_by_id_and_nothing_else(app, double):
    job = double.submit(4)
    found = app.jobs.get(job.id)
    assert (found.id, found.kind, found.state) == (job.id, "double", mp.JobState.QUEUED)
    assert app.jobs.get(job.id.upper()).id == job.id
    for unknown in ("00000000-0000-7000-8000-000000000000", "nonsense", "", "'; --"):
        with pytest.raises(mp.NotFound):
            app.jobs.get(unknown)


def test_lists_are_filtered_and_paged_newest_first(app, double, broken):
    ids = [double.submit(n).id for n in range(5)]
    other = broken.options(queue="slow").submit("x").id
    assert [job.id for job in app.jobs.list(kind="double")] == ids[::-1]
    assert [job.id for job in app.jobs.list(queue="slow")] == [other]
    assert [job.id for job in app.jobs.list(state="QUEUED", limit=2)] == [other, ids[4]]
    assert [job.id for job in app.jobs.list(state="queued", limit=2)] == [other, ids[4]]
    assert list(app.jobs.list(state=mp.JobState.RUNNING)) == []
    page, seen = app.jobs.list(kind="double", limit=2), []
    while page:
        seen += [job.id for job in page]
        page = app.jobs.list(kind="double", limit=2, cursor=page[-1].id)
    assert seen == ids[::-1]


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"limit": -1}, {"state": "asleep"}, {"cursor": "nonsense"}]
)
def test_a_list_that_cannot_be_meant_is_refused(app, wrong):
    with pytest.raises(mp.Invalid):
        app.jobs.list(**wrong)


def test_results_come_back_typed_wherever_the_handle_came_from(app):
    from pathlib import Path

    @app.job
    def where(name: str) -> Path:
        return Path("/srv") / name

    job = where.submit("a")
    app.drain()
    assert job.refresh().result == Path("/srv/a")
    assert app.jobs.get(job.id).result == Path("/srv/a")


def test_a_result_whose_annotation_cannot_be_built_comes_back_as_it_is(app):
    @app.job
    def poll() -> mp.Later | str:
        return "done"

    job = poll.submit()
    app.drain()
    assert job.refresh().result == "done"


def test_drain_goes_on_for_a_while_with_what_comes_due_meanwhile(app):
    @app.job(retry_delay=0.3)
    def flaky() -> int:
        if mp.current().attempt == 1:
            raise ConnectionError
        return mp.current().attempt

    job = flaky.submit()
    assert app.drain() == 1
    assert job.refresh().state == mp.JobState.RETRYING
    assert app.drain(timeout=3600) == 1  # it does not wait for the time to be over
    assert job.refresh().result == 2


def test_drain_runs_retries_that_are_due_at_once(app):
    @app.job(retry_delay=0)
    def flaky() -> int:
        if mp.current().attempt < 4:
            raise ConnectionError
        return mp.current().attempt

    job = flaky.submit()
    assert app.drain() == 4
    assert job.refresh().result == 4


@pytest.mark.parametrize("named", [True, False])
def test_drain_leaves_nothing_in_however_many_queues(app, double, named):
    """More of them than jobs run at once: where nothing was met yet it looks before it ends."""
    names = [f"queue-{n:02}" for n in range(40)]
    jobs = [double.options(queue=name).submit(n) for n, name in enumerate(names)]
    app.drain(queues=names if named else None)
    assert {job.refresh().state for job in jobs} == {"SUCCEEDED"}


def test_two_drains_in_a_row_both_maintain(app, double):
    """The first one's election must not keep the second from its chores."""
    double.submit(1)
    app.drain()
    job = double.options(deadline=0.01).submit(2)
    time.sleep(0.02)
    assert app.drain() == 0
    assert job.refresh().error.cause == "deadline"


def test_workers_are_listed(app, double):
    double.submit(4)
    app.drain()
    [worker] = app.workers.list()
    assert (worker.state, worker.move) == ("STOPPED", "stop")
    assert "double 1" in worker.kinds
