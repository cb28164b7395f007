"""job.explain(): why a job is, or is not, running now."""

import asyncio
import re

import pytest
from attempts import claimed

import milepost as mp
from milepost import outcome
from milepost.client import new_id
from milepost.outcome import Problem
from milepost.records import NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import jobs, outbox, queues, runs, timers, workers
from milepost.store.workers import NewWorker


@pytest.fixture
def work(app):
    @app.job(name="work", retries=1)
    def work() -> None: ...

    return work


@pytest.fixture
def employ(app):
    """Enter a worker, as one that lives somewhere would enter itself."""

    def employ(name="w", *, queues=None, kinds='["work 1"]', slots='{"FREE": 4}'):
        new = NewWorker(id=name, lease_us=30_000_000, queues=queues, kinds=kinds, slots=slots)
        app.client.run(workers.register, new)

    return employ


def reasons(handle):
    return list(handle.explain().reasons)


def test_the_text_names_the_job_and_says_what_to_do(work):
    job = work.submit()
    told = job.explain()
    assert str(told) == told.text
    assert told.text == (
        f"job {job.id} (work) is QUEUED: no worker is alive: start one with `milepost worker APP`"
    )


def test_a_job_in_line(work, employ):
    job = work.submit()
    employ()
    assert job.explain().details == ("it is in line: the only live worker may take it next",)
    assert reasons(job) == ["in_line"]


def test_a_job_whose_workers_are_busy(work, employ):
    job = work.submit()
    employ(slots='{"PROCESSING": 4}')
    assert reasons(job) == ["busy"]


def test_a_job_that_one_more_loss_would_end(work, employ):
    job = work.options(poison_limit=1).submit()
    employ()
    assert reasons(job) == ["alone"]
    assert "with no other job in its process, as soon as its only worker" in job.explain().text


def test_workers_that_do_not_serve_or_do_not_know(work, employ):
    job = work.submit()
    employ("elsewhere", queues='["slow"]')
    assert reasons(job) == ["no_worker_for_queue"]
    employ("older", kinds='["work 0", "other 1"]')
    assert reasons(job) == ["no_worker_for_kind"]
    assert "the only live worker of its queue does not know work version 1" in job.explain().text


def test_a_dead_worker_is_none(work, employ, advance):
    job = work.submit()
    employ()
    advance(31)
    assert reasons(job) == ["no_worker"]


def test_a_live_worker_is_seen_among_any_number_that_stopped_since(app, work, employ, raw):
    """A worker that crashes and is started again each second fills a list in minutes."""
    job = work.submit()
    employ("old")
    second = "interval '1 second'" if raw.dialect == "postgres" else "1000000"
    raw.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " INSERT INTO worker (id, state, move, started_at, heartbeat_at, lease_until)"
        f" SELECT 'gone' || i, 'STARTUP', 'boot', started_at + i * {second}, heartbeat_at,"
        f" heartbeat_at - {second} FROM worker, n"
    )
    app.client.run(workers.bury, most=1000)
    assert reasons(job) == ["in_line"]
    assert [worker.id for worker in app.workers.list(limit=2)] == ["old", "gone1000"]


def test_a_paused_queue(app, work, employ):
    job = work.submit()
    employ()
    app.client.run(queues.pause, "default", paused=True, actor="me")
    assert reasons(job) == ["queue_paused"]
    assert "its queue 'default' is paused" in job.explain().text


def test_a_held_job(work, employ):
    employ()
    job = work.options(hold=True).submit()
    assert reasons(job) == ["held"]
    assert "nobody has called submit() yet" in job.explain().text


def test_a_job_that_is_due_later_and_then_overdue(work, employ, advance):
    job = work.options(start_in=7200).submit()
    employ()
    assert reasons(job) == ["due"]
    assert "it is due in 2 hours, at 20" in job.explain().text
    advance(7300)
    employ("later")
    assert reasons(job) == ["overdue"]


def settle(app, context, result):
    app.client.run(jobs.settle, [Settlement(context.claim, result)], actor="w")


def test_a_job_that_waits_for_a_signal(app, work, employ):
    job = work.submit()
    employ()
    settle(app, claimed(app), outcome.later(None))
    assert reasons(job) == ["signal"]


def test_a_job_that_is_tried_again_does_not_repeat_what_the_error_said(app, work, employ):
    job = work.submit()
    employ()
    problem = Problem(type="ConnectionError", message="password=hunter2")
    settle(app, claimed(app), outcome.retry(problem, after=4000))
    assert reasons(job) == ["retry", "due"]
    text = job.explain().text
    assert "failed with ConnectionError; 1 of 2 attempts are spent" in text
    assert "it is due in 66." in text
    assert "hunter2" not in text


def test_a_running_job(app, work, employ, advance):
    job = work.submit()
    context = claimed(app)
    context.progress(0.4, "page 4 of 10")
    told = job.explain()
    assert told.reasons == ("running",)
    assert re.search(r"attempt 1 of 2 runs on worker-\S+, leased for \d+ s more", told.text)
    assert told.text.endswith(", 40% done (page 4 of 10)")
    job.cancel("not needed")
    assert reasons(job) == ["running", "asked_to_stop"]
    advance(31)
    assert reasons(job) == ["running", "asked_to_stop", "lease_over", "nobody"]
    assert job.explain().next.startswith("nothing, until a worker runs"), "nobody else does it"
    employ()
    assert reasons(job) == ["running", "asked_to_stop", "lease_over"]
    assert job.explain().next.startswith("maintenance takes it from its worker")


def late(app, job, raw):
    deadline = "'2020-01-01'" if raw.dialect == "postgres" else "1"
    raw.execute(f"UPDATE job SET deadline_at = {deadline} WHERE id = '{job.id}'")


def stop(app, job, raw):
    job.cancel("not needed")


def send(app, job, raw):
    raw.execute(
        "UPDATE job SET phase = 'REQUESTING', policy = 'fail_unknown', actor = 'test',"
        f" move = 'move_phase', version = version + 1 WHERE id = '{job.id}'"
    )


@pytest.mark.parametrize(
    ("chosen", "then", "told", "state"),
    [
        ({}, None, "and it runs again", "QUEUED"),
        ({"retries": 0}, None, "and it ends FAILED (attempts_exhausted)", "FAILED"),
        ({"retries": 0, "recoveries": 1}, None, "and it runs again", "QUEUED"),
        ({"poison_limit": 1}, None, "and it ends FAILED (poisoned)", "FAILED"),
        ({}, late, "and it ends FAILED (deadline)", "FAILED"),
        ({}, stop, "and it is CANCELLED", "CANCELLED"),
        ({}, send, "and it ends FAILED (outcome_unknown)", "FAILED"),
    ],
)
def test_what_follows_the_loss_of_a_worker_is_foretold(
    app, work, advance, raw, *, chosen, then, told, state
):
    job = work.options(**chosen).submit()
    claimed(app, alone="poison_limit" in chosen)
    if then is not None:
        raw.disarm()
        then(app, job, raw)
    advance(31)
    assert job.explain().next == f"nothing, until a worker runs: it takes the job away, {told}"
    app.maintain_once()
    app.maintain_once()
    ended = job.refresh()
    assert ended.state == state
    if state == "FAILED":
        assert f"({ended.error.cause})" in told


def test_a_job_whose_worker_was_lost(app, work, advance):
    job = work.submit()
    claimed(app)
    advance(31)
    app.client.run(workers.bury, most=10)
    app.client.run(timers.lose, actor="test", most=10)
    assert reasons(job) == ["retry", "overdue", "no_worker"]
    assert "its worker was lost; 1 of 2 attempts are spent" in job.explain().text


def test_finished_jobs(app, work):
    job = work.submit()
    settle(app, claimed(app), outcome.succeeded(None))
    assert reasons(job) == ["succeeded"]
    job = work.submit()
    settle(app, claimed(app), outcome.failed(Problem(type="Fail", message="x")))
    assert reasons(job) == ["failed", "traceback", "final"]
    assert job.explain().details[:2] == (
        "it failed (error) with Fail",
        f"what it said, and its traceback: `milepost jobs show {job.id}`",
    )
    assert job.explain().next.endswith(f"`milepost jobs rerun {job.id}`")
    again = job.rerun()
    assert reasons(job) == ["failed", "traceback", "rerun"]
    assert f"`milepost explain {again.id}`" in job.explain().next
    again.cancel()
    job = work.submit()
    job.cancel("not needed")
    assert "it was cancelled (not needed)" in job.explain().text


def test_a_job_at_a_gate(app, employ):
    employ()
    run_id = new_id()
    steps = [
        NewStep(number=0, name="load", kind="load"),
        NewStep(number=1, name="index", kind="index", gated=True),
    ]
    first = [NewJob(new_id(), b"{}", Template(kind="load", run_id=run_id, step=0))]
    late = NewJob(
        new_id(), b"{}", Template(kind="work", run_id=run_id, step=1, state="GATED"), ordinal=0
    )
    app.client.run(runs.create, NewRun(id=run_id, kind="batch"), steps, [*first, late])
    told = app.jobs.get(late.id).explain()
    assert told.reasons == ("gate",)
    assert f"it waits at a gate: step load of run {run_id} has 1 open job" in told.text


def test_a_job_of_a_run_is_not_said_to_be_run_again_by_itself(app):
    """It advised a rerun, which is refused: the run is what is resumed."""
    batch = app.batch("pack", params=int)

    @batch.step(retries=0)
    def wrap(_count: int) -> None:
        raise mp.Fail("torn")

    run = batch.start(1)
    app.drain(5)
    [job] = app.jobs.list(where="state:failed")
    assert job.explain().reasons == ("failed", "traceback", "of_run")
    assert job.explain().next.endswith(f"`milepost runs resume {run.id}`")
    run.resume()
    assert job.refresh().explain().reasons[-1] == "rerun"


def test_a_command_that_is_advised_can_be_pasted(app, work):
    job = work.options(queue="a b; rm *").submit()
    app.queues.pause("a b; rm *")
    wanted = "`milepost queues resume 'a b; rm *'`"
    assert wanted in job.explain().next
    assert wanted in app.explain("queue", "a b; rm *").next


def test_a_job_whose_run_is_stopping(app, employ):
    employ(kinds=None)
    run_id = new_id()
    steps = [NewStep(number=0, name="load", kind="load")]
    new = [NewJob(new_id(), b"{}", Template(kind="load", run_id=run_id, step=0)) for _ in "ab"]
    app.client.run(runs.create, NewRun(id=run_id, kind="batch"), steps, new)
    held = claimed(app).id
    app.client.run(runs.cancel, run_id, reason="wrong folder", actor="me")
    [waiting] = {job.id for job in new} - {held}
    assert reasons(app.jobs.get(held)) == ["running", "run_stopping"]
    assert "run_stopping" in reasons(app.jobs.get(waiting))


def test_a_job_that_maintenance_is_about_to_end(work, employ, advance):
    late = work.options(deadline=10, start_in=5).submit()
    advance(11)
    employ()
    assert reasons(late) == ["overdue", "deadline"]


@pytest.mark.parametrize(
    ("chosen", "name"),
    [({"deadline": 600}, "its deadline"), ({"start_within": 600}, "its latest start")],
)
def test_a_deadline_is_part_of_what_follows(app, work, employ, advance, *, chosen, name):
    employ()
    later = work.options(start_in=7200, **chosen).submit()
    assert reasons(later) == ["due", "deadline_first"]
    assert f"{name} comes first, in 10 minutes" in later.explain().text
    assert later.explain().next == "any worker's maintenance ends it then"
    waiting = work.options(**chosen).submit()
    app.client.run(queues.pause, "default", paused=True, actor="me")
    assert waiting.explain().next == (
        "nothing, until its queue is resumed: `milepost queues resume default`;"
        f" if nothing comes of that, it fails at {name}, in 10 minutes"
    )
    advance(601)
    assert f"{name} has passed: maintenance will end it" in waiting.explain().text
    app.maintain_once()
    assert (later.refresh().state, waiting.refresh().state) == ("FAILED", "FAILED")


def test_a_job_that_has_started_has_no_latest_start(app, work, employ):
    job = work.options(start_within=600).submit()
    settle(app, claimed(app), outcome.later(7200))
    assert reasons(job) == ["due"]


def test_a_job_that_is_not_there(app, work):
    with pytest.raises(mp.NotFound):
        mp.JobHandle(app.client, new_id()).explain()


async def test_it_can_be_awaited(app, work):
    job = await work.submit_async()
    assert (await job.explain_async()).reasons == ("no_worker",)
    await app.close_async()
    await asyncio.sleep(0)


def test_a_run_names_the_job_of_a_batch_within_it(app):
    batch = app.request_batch([{"batch": [("GET", "https://partner.example/a")]}])
    told = batch.explain()
    assert told.subject == "run"
    assert told.reasons == ("step", "step")
    [child] = batch.batches()
    assert f"run {child.id}" in told.details[-1]
    assert "no worker is alive" in told.details[-1]


def test_a_pipeline_names_its_run_and_the_job_that_it_waits_for(app):
    stones = app.pipeline("stones", mp.Source(), key="id", partition_by="price")
    run = stones.start()
    told = app.explain("pipeline", "stones")
    assert (told.state, told.reasons) == ("CREATED", ("watermark", "run"))
    assert "nothing was ever read to its end" in told.text
    assert f"run {run.id}" in told.text
    assert "no worker is alive" in told.text
    assert told.next == "a worker plans it"
    run.cancel("enough")
    assert "until a run starts" in app.explain("pipeline", "stones").next


def test_a_pipeline_that_a_schedule_starts_says_when(app):
    """It said that nothing would happen until somebody started it."""
    stones = app.pipeline("stones", mp.Source(), key="id", partition_by="price")
    stones.start().cancel("enough")
    app.schedule(stones, "0 2 * * *", name="nightly stones")
    app.drain()
    assert re.fullmatch(
        r"schedule nightly stones starts a run at \d{4}-\d\d-\d\d 02:00:00 UTC",
        app.explain("pipeline", "stones").next,
    )


def test_queues_and_channels_that_were_stopped_say_by_whom_and_how_they_go_on(app, work, employ):
    work.options(channel="news").submit()
    app.queues.pause("default")
    told = app.explain("queue", "default")
    assert (told.state, told.reasons) == ("paused", ("queue_paused", "no_worker", "in_line"))
    assert "it was paused by client" in told.text
    assert told.next == "nothing, until it is resumed: `milepost queues resume default`"
    app.queues.resume("default")
    employ(kinds='["other 1"]')
    told = app.explain("queue", "default")
    assert "none of its live workers knows work version 1: 1 job waits for one" in told.details
    app.client.run(
        outbox.declare, [{"name": "news", "kind": "webhook", "target": "x", "tenant": ""}]
    )
    app.client.run(outbox.stop, "news", reason="they moved", actor="me")
    told = app.explain("channel", "news")
    assert (told.state, told.reasons) == ("stopped", ("stopped", "empty"))
    assert "it was stopped by me (they moved)" in told.text
    with pytest.raises(mp.Invalid, match="'kettle' cannot be explained"):
        app.explain("kettle", "x")


def test_a_queue_whose_jobs_are_held_by_dead_workers_says_what_becomes_of_them(app, work, advance):
    work.submit()
    claimed(app)
    advance(31)
    told = app.explain("queue", "default")
    assert told.reasons == ("no_worker", "lease_over", "empty")
    assert "1 job is held by workers that are gone" in told.details
    assert told.next == (
        "the first worker that runs takes the jobs away whose workers are gone;"
        " those with attempts left run again"
    )


def test_an_empty_queue_without_workers_waits_for_nothing(app, work):
    work.submit().cancel("not needed")
    assert app.explain("queue", "default").next == "nothing waits"
