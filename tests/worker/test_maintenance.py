"""Maintenance: every chore may be done again, by several at once; one sick run stops nothing."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import milepost as mp
from milepost.client import new_id
from milepost.maintain import chores
from milepost.maintain.loop import Maintainer
from milepost.records import NewJob, NewRun, NewStep, Template
from milepost.store import jobs, runs, timers, workers
from milepost.store.catalog import query


def moves(job):
    return [entry.move for entry in job.history]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_look_tells_of_every_chore_that_is_skipped_without_it(dialect):
    text = query("maintain_due", dialect).text
    assert set(re.findall(r"SELECT '(\w+)' WHERE", text)) == chores.LOOKED_AT


@pytest.fixture
def work(app):
    @app.job
    def work() -> int:
        return 1

    return work


def claimed(app, job, *, worker="w", lease=30.0, alone=False):
    """Have a worker of no process at all hold a job."""
    app.client.run(workers.register, workers.NewWorker(id=worker, lease_us=int(lease * 1_000_000)))
    [claim] = app.client.run(
        jobs.claim,
        worker_id=worker,
        line=jobs.lines([job.queue]),
        most=1,
        kinds=None,
        alone=alone,
    )
    assert claim.id == job.id
    return claim


def several_passes(app, database, count=4):
    """Maintain from several places at once; answer with how much each did."""
    others = [mp.App(database.url) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        done = list(pool.map(lambda other: other.maintain_once(), others))
    for other in others:
        other.close()
    return done


def test_a_pass_with_nothing_to_do_does_nothing_and_says_so(app, work):
    job = work.submit()
    assert app.maintain_once() == 0
    assert moves(job) == ["create"]


async def test_a_pass_has_an_async_twin(app, work):
    await work.options(start_in=0.01).submit_async()
    await asyncio.sleep(0.02)
    assert await app.maintain_once_async() == 1
    await app.close_async()


def test_what_sleeps_is_woken_once_however_many_look(app, database, work, advance):
    sleeping = [work.options(start_in=60).submit() for _ in range(20)]
    advance(61)
    assert sum(several_passes(app, database)) == 20
    assert app.maintain_once() == 0
    assert {tuple(moves(job)) for job in sleeping} == {("create", "wake")}


def test_what_is_due_again_is_sent_on_once(app, database, advance):
    @app.job(retry_delay=60)
    def fail() -> None:
        raise ConnectionError

    job = fail.submit()
    app.drain()
    assert app.maintain_once() == 0
    advance(61)
    assert sum(several_passes(app, database)) == 1
    assert moves(job) == ["create", "claim", "retry", "due"]


def test_the_jobs_of_a_dead_worker_are_lost_once_with_its_name(app, database, work, advance):
    job = work.submit()
    claimed(app, job)
    advance(29)
    assert app.maintain_once() == 0
    advance(2)
    several_passes(app, database)
    app.maintain_once()
    history = job.history
    assert [entry.move for entry in history][:3] == ["create", "claim", "lose"]
    assert [entry.move for entry in history].count("lose") == 1
    assert history[2].detail == "w"
    assert job.refresh().record.losses == 1
    [worker] = app.workers.list()
    assert (worker.state, worker.move) == ("STOPPED", "bury")
    assert app.drain() == 1
    assert job.refresh().result == 1


def test_a_heartbeat_that_came_first_wins(app, work, advance):
    job = work.submit()
    claimed(app, job)
    advance(31)
    app.client.run(workers.renew, "w", lease_seconds=30)
    assert app.maintain_once() == 0
    assert job.refresh().state == mp.JobState.RUNNING


def test_a_job_that_keeps_killing_its_workers_is_poisoned(app, work, advance):
    job = work.options(retries=10, poison_limit=3).submit()
    for number in range(3):
        claimed(app, job, worker=f"w{number}", alone=number == 2)
        advance(31)
        app.maintain_once()
        app.maintain_once()
    assert (job.refresh().state, job.error.cause) == (mp.JobState.FAILED, "poisoned")
    assert moves(job)[-1] == "lose"


def test_a_lost_job_whose_budget_is_spent_fails(app, work, advance):
    job = work.options(retries=0, poison_limit=10).submit()
    claimed(app, job)
    advance(31)
    app.maintain_once()
    assert (job.refresh().state, job.error.cause) == (mp.JobState.FAILED, "attempts_exhausted")


def test_a_job_that_was_asked_to_stop_and_lost_is_cancelled(app, work, advance):
    job = work.submit()
    claimed(app, job)
    assert job.cancel("enough") == mp.JobState.RUNNING
    advance(31)
    app.maintain_once()
    assert job.refresh().state == mp.JobState.CANCELLED


def test_deadlines_are_kept_once(app, database, work, advance):
    late = work.options(deadline=60).submit()
    asleep = work.options(deadline=60, start_in=600).submit()
    held = work.options(deadline=60, hold=True).submit()
    unstarted = work.options(start_within=60).submit()
    fine = work.options(deadline=600).submit()
    advance(61)
    assert sum(several_passes(app, database)) == 4
    for job in (late, asleep, held, unstarted):
        assert (job.refresh().state, job.error.cause) == (mp.JobState.FAILED, "deadline")
        assert moves(job) == ["create", "expire"]
    assert fine.refresh().state == mp.JobState.QUEUED


def test_many_are_done_in_batches(app, work, advance, monkeypatch):
    monkeypatch.setattr(chores, "BATCH", 7)
    work.options(start_in=60).submit_many([()] * 50)
    advance(61)
    assert app.maintain_once() == 50


def test_a_chore_is_bounded_and_goes_on_in_the_next_pass(app, work, advance, monkeypatch):
    monkeypatch.setattr(chores, "BATCH", 5)
    monkeypatch.setattr(chores, "ROUNDS", 2)
    work.options(start_in=60).submit_many([()] * 25)
    advance(61)
    assert [app.maintain_once() for _ in range(4)] == [10, 10, 5, 0]


# Runs


def a_run(app, *, hold=False, **given):
    """Make a run of one step with one job of a kind that nobody runs."""
    run = NewRun(id=new_id(), kind="batch", **given)
    state = "CREATED" if hold else "QUEUED"
    template = Template(kind="nobody", run_id=run.id, step=0, state=state)
    steps = [NewStep(number=0, name="only", kind="nobody")]
    return app.client.run(runs.create, run, steps, [NewJob(new_id(), b"{}", template)], hold=hold)


def test_one_sick_run_does_not_stop_the_others_nor_the_other_chores(
    app, work, advance, monkeypatch
):
    ids = [a_run(app) for _ in range(3)]
    job = work.options(start_in=60).submit()
    advance(61)
    looked, real = [], chores._tend

    async def tend(driver, run_ids, passed):
        if ids[0] in run_ids:
            raise RuntimeError("this run is sick")
        looked.extend(run_ids)
        await real(driver, run_ids, passed)

    monkeypatch.setattr(chores, "_tend", tend)
    app.maintain_once()
    assert looked == ids[1:]
    assert job.refresh().state == mp.JobState.QUEUED


@pytest.mark.parametrize("chore", ["bury", "lose", "expire", "reject_spent", "wake"])
def test_a_chore_in_trouble_does_not_stop_the_others(app, work, advance, monkeypatch, chore):
    asleep = work.options(start_in=60).submit()
    late = work.options(deadline=60).submit()
    advance(61)
    module = workers if chore == "bury" else timers

    def sick(**_kwargs):
        raise mp.IllegalMove("this chore is sick")
        yield

    monkeypatch.setattr(module, chore, sick)
    app.maintain_once()
    monkeypatch.undo()
    assert asleep.refresh().state == ("WAITING" if chore == "wake" else "QUEUED")
    assert late.refresh().state == ("QUEUED" if chore == "expire" else "FAILED")


async def test_a_store_that_is_away_ends_a_pass_at_once(app, work, monkeypatch):
    driver = await app.client.async_driver()
    asked = []

    async def away(operation, *_args, **_kwargs):
        asked.append(operation)
        raise mp.Unavailable("away")

    monkeypatch.setattr(driver, "run", away)
    with pytest.raises(mp.Unavailable):
        await app.maintain_once_async()
    assert len(asked) == 1
    monkeypatch.undo()
    await app.close_async()


def test_a_held_run_that_nobody_seals_expires_in_time_h107(app, advance):
    run_id = a_run(app, hold=True, hold_us=3_600_000_000)
    app.maintain_once()
    assert app.client.run(runs.get, run_id).state == mp.RunState.CREATED
    advance(3601)
    app.maintain_once()
    app.maintain_once()
    run = app.client.run(runs.get, run_id)
    assert (run.state, run.cause) == (mp.RunState.FAILED, "deadline")


def test_a_held_job_that_nobody_submits_expires_in_time_h108(database, advance):
    app = mp.App(database.url, hold_limit=600)

    @app.job
    def work() -> None: ...

    held, sent = work.options(hold=True).submit(), work.options(hold=True).submit()
    advance(599)
    app.maintain_once()
    assert (held.refresh().state, sent.submit().state) == ("CREATED", "QUEUED")
    assert sent.submit().state == "QUEUED"  # once more does no harm
    advance(2)
    app.maintain_once()
    assert (held.refresh().state, held.error.cause) == ("FAILED", "deadline")
    assert held.history[-1].detail == "hold_limit"
    with pytest.raises(mp.IllegalMove, match=f"{held.id} is FAILED"):
        held.submit()
    assert sent.refresh().state == "QUEUED"
    app.close()


def test_a_run_that_missed_its_deadline_is_stopped_and_ends(app, advance):
    run_id = a_run(app, deadline_us=60_000_000)
    app.maintain_once()
    assert app.client.run(runs.get, run_id).state == mp.RunState.QUEUED
    advance(61)
    app.maintain_once()
    app.maintain_once()
    run = app.client.run(runs.get, run_id)
    assert (run.state, run.cause) == (mp.RunState.FAILED, "deadline")


# Who does it


def maintainer_of(app, driver, *, sweep):
    return Maintainer(driver, replace(app.settings, sweep=sweep), scheduled={})


async def test_one_is_elected_and_another_takes_over_when_it_falls_silent(app, advance, work):
    driver = await app.client.async_driver()
    first, second = (maintainer_of(app, driver, sweep=1.0) for _ in range(2))
    late = await work.options(deadline=60).submit_async()
    await first("first")
    await asyncio.to_thread(advance, 2)
    await second("second")
    assert not second._next_pass
    await asyncio.to_thread(advance, 61)
    moved, _ = await second("second")
    assert moved >= 1
    assert (await late.refresh_async()).state == mp.JobState.FAILED
    await app.close_async()


async def test_it_says_when_something_is_due(app, work):
    driver = await app.client.async_driver()
    maintainer = maintainer_of(app, driver, sweep=5.0)
    assert await maintainer("me") == (0, 5.0)
    await work.options(start_in=2).submit_async()
    moved, pause = await maintainer("me")
    assert moved == 0
    assert 0 < pause <= 2
    await app.close_async()
