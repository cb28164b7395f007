"""Every option of a job is one of a step: a step's jobs have deadlines of their own (H-64)."""

from collections.abc import Iterable, Iterator

import pytest

import milepost as mp
from milepost.observe.verify import verify


@pytest.fixture(autouse=True)
def clean(database):
    yield
    with database.driver() as driver:
        assert verify(driver).clean


def test_a_job_of_a_step_that_missed_its_deadline_fails_its_run_h64(app, advance):
    batch = app.batch("late")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(2)

    @batch.step(poll=30, deadline=60)
    def ready(number: int) -> None:
        raise mp.Later(30)

    run = batch.start()
    app.drain()
    assert run.refresh().state == mp.RunState.RUNNING
    advance(61)
    app.drain()
    assert run.refresh().state == mp.RunState.FAILED
    assert {error.cause for error in run.errors} == {"deadline"}


def test_a_job_of_a_step_that_did_not_start_in_time_fails(app, advance):
    batch = app.batch("slow", policy=mp.Tolerate(1.0))

    @batch.step(start_within=3600)
    def find() -> Iterator[int]:
        yield 1

    @batch.step(poll=120, start_within=60)
    def load(number: int) -> int:
        return number

    run = batch.start()
    app.drain()
    advance(61)
    app.maintain_once()
    [job] = app.jobs.list(kind="slow.load")
    assert (job.state, job.history[-1].detail) == (mp.JobState.FAILED, "start_within")
    assert run.refresh().state == mp.RunState.SUCCEEDED


@pytest.mark.parametrize("many", [2, 600], ids=["come along", "staged"])
def test_the_limits_reach_every_job_however_its_step_gets_it(app, advance, many):
    batch = app.batch("limits")

    @batch.step(deadline=1000)
    def find() -> Iterator[int]:
        yield from range(many)

    @batch.step(gated=True, deadline=2000)
    def load(number: int) -> int:
        return number

    @batch.reduce(deadline=3000)
    def total(found: Iterable[int]) -> int:
        return sum(found)

    @batch.on_success(deadline=4000)
    def told(run: mp.RunHandle) -> None: ...

    batch.start()
    app.drain()
    given = {
        job.kind: round((job.record.deadline_at - job.created_at).total_seconds())
        for job in app.jobs.list(limit=1000)
    }
    assert given == {
        "limits.find": 1000,
        "limits.load": 2000,
        "limits.total": 3000,
        "limits.told": 4000,
    }


def test_a_resumed_runs_jobs_have_their_time_anew(app, advance):
    batch = app.batch("again")
    broken = [True]

    @batch.step(retries=0, deadline=100)
    def find() -> None:
        if broken:
            raise mp.Fail("not yet")

    run = batch.start()
    app.drain()
    assert run.refresh().state == mp.RunState.FAILED
    advance(1000)
    broken.clear()
    again = run.resume()
    app.drain()
    assert again.refresh().state == mp.RunState.SUCCEEDED


@pytest.mark.parametrize("name", ["deadline", "start_within"])
@pytest.mark.parametrize("value", [-1, "soon", float("nan")])
def test_a_limit_that_cannot_be_meant_is_refused_when_declared(app, name, value):
    batch = app.batch("refused")
    with pytest.raises(mp.Invalid, match=name):
        batch.step(**{name: value})(lambda: None)
    assert batch.steps == []


def test_a_resumed_run_keeps_the_policy_in_words(app):
    batch = app.batch("policy", policy=mp.Tolerate(0.25))

    @batch.step(retries=0)
    def find() -> None:
        raise mp.Fail("broken")

    run = batch.start()
    app.drain()
    assert run.resume().record.policy == run.refresh().record.policy
    assert "0.25" in run.record.policy


def test_a_cancelled_run_stays_where_it_was_h102(app):
    batch = app.batch("stopped")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(8)

    @batch.step
    def load(number: int) -> None:
        if number >= 4:
            raise mp.Later(3600)

    run = batch.start()
    app.drain()
    before = run.refresh().progress
    assert before == 0.75  # one whole step, and half of the other
    assert run.cancel() == mp.RunState.CANCELLED
    assert run.refresh().progress == before
    assert app.runs.get(run.id).progress == before, "and so says whoever looks later"


async def test_a_page_of_runs_is_read_at_once(app):
    batch = app.batch("page")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(3)

    @batch.step(gated=True)
    def load(number: int) -> None: ...

    started = [await batch.start_async() for _ in range(5)]
    await app.drain_async()
    calls = []
    real = app.client.run_async

    async def counted(operation, *args, **kwargs):
        calls.append(operation)
        return await real(operation, *args, **kwargs)

    app.client.run_async = counted
    page = await app.runs.list_async()
    assert len(calls) == 1
    assert [run.id for run in page] == [run.id for run in started][::-1]
    assert {run.progress for run in page} == {1.0}
    assert [step.counts for step in page[0].steps] == [{"SUCCEEDED": 1}, {"SUCCEEDED": 3}]
    assert await app.runs.list_async(kind="nothing") == []
    await app.close_async()


WRONG = [
    ({"priority": 11}, "priority=11 must be between 0 and 9"),
    ({"priority": "high"}, "priority='high' must be a whole number"),
    ({"tags": "urgent"}, "must be a dict of texts"),
    ({"tags": {"user": 42}}, r"tags\['user'\]=42"),
    ({"deadline": -1}, "deadline=-1"),
    ({"channel": ""}, "channel=''"),
]


@pytest.mark.parametrize(("options", "words"), WRONG)
def test_a_start_that_cannot_be_meant_is_refused_and_nothing_is_stored(app, options, words):
    batch = app.batch("wrong")

    @batch.step
    def find() -> None: ...

    with pytest.raises(mp.Invalid, match=words):
        batch.start(**options)
    assert (app.runs.list(), app.jobs.list()) == ([], [])


def test_items_that_do_not_fit_are_refused_all_together(app):
    batch = app.batch("filled", params=int)

    @batch.step
    def find(number: int) -> None: ...

    run = batch.start(1, hold=True)
    for items in (None, "abc", [*range(600), "x"]):
        with pytest.raises(mp.Invalid):
            run.add(items)
    assert app.jobs.list() == []
    assert run.cancel() == mp.RunState.CANCELLED
