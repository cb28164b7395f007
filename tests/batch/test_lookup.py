"""Runs are looked up: by an id or its beginning, page by page, counted, watched to their end."""

from collections.abc import Iterator

import pytest

import milepost as mp


@pytest.fixture
def batch(app):
    declared = app.batch("twice")

    @declared.step
    def find() -> Iterator[int]:
        yield from (1, 2)

    @declared.step(retries=0)
    def load(number: int) -> int:
        return number

    return declared


def test_a_run_is_found_by_the_beginning_of_its_id(app, batch):
    first, second = batch.start(), batch.start()
    assert app.runs.find(first.id).id == first.id
    assert app.runs.find(second.id.replace("-", "")[:30]).state == mp.RunState.QUEUED
    with pytest.raises(mp.Invalid, match="begins several ids"):
        app.runs.find(first.id[:4])
    for nothing in ("ffff", "", "no id", "f" * 33):
        with pytest.raises(mp.NotFound, match="there is no run"):
            app.runs.find(nothing)
    with pytest.raises(mp.NotFound, match="there is no run 'x'"):
        app.runs.get("x")


def test_a_page_is_read_as_it_stood_and_its_steps_when_they_are_asked_for(app, batch):
    first, second = batch.start(), batch.start()
    [newest] = app.runs.list(limit=1)
    [older] = app.runs.list(cursor=newest.id)
    assert (newest.id, older.id) == (second.id, first.id)
    app.drain()
    assert newest.state == mp.RunState.QUEUED  # as it stood
    assert [step.total for step in newest.steps] == [1, 2]
    assert newest.state == mp.RunState.SUCCEEDED  # read again, whole
    assert "SUCCEEDED" in repr(newest)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"state": "DONE"}, "expected one of CREATED"),
        ({"limit": 0}, "must be a whole number between 1"),
        ({"cursor": "x"}, "is not the id of a job or a run"),
    ],
)
async def test_a_wrong_page_says_what_is_expected(app, batch, wrong, told):
    with pytest.raises(mp.Invalid, match=told):
        await app.runs.list_async(**wrong)


def test_runs_are_counted_by_batch_and_state(app, batch):
    assert app.runs.counts() == {}
    batch.start()
    app.drain()
    batch.start()
    app.batch("other").step(lambda: None)
    assert app.runs.counts() == {"twice": {"QUEUED": 1, "SUCCEEDED": 1}}
    assert [declared.name for declared in app.batches] == ["other", "twice"]


async def test_looking_up_has_asynchronous_twins(app, batch):
    run = await batch.start_async()
    assert (await app.runs.find_async(run.id[:-2])).id == run.id
    assert await app.runs.counts_async() == {"twice": {"QUEUED": 1}}
    with pytest.raises(mp.WaitTimeout):
        assert [now.state async for now in run.watch_async(0)] == []
    await app.drain_async()
    assert [now.progress async for now in run.watch_async()] == [1.0]
    await app.close_async()


def test_watching_gives_the_run_as_it_goes_and_ends_with_it(app, batch):
    run, seen = batch.start(), []
    for now in run.watch(60):
        seen.append(now.state)
        app.drain()
    assert seen == [mp.RunState.QUEUED, mp.RunState.SUCCEEDED]


def test_a_wait_for_which_no_worker_is_there_says_so(app, batch, monkeypatch):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", -1.0)
    run = batch.start()
    for attempt in (run.wait, lambda timeout: list(run.watch(timeout))):
        with (
            pytest.warns(RuntimeWarning, match=f"run {run.id} waits and no live worker"),
            pytest.raises(mp.WaitTimeout),
        ):
            attempt(0)


def test_a_run_whose_jobs_only_wait_is_nobodys_fault(app, monkeypatch, recwarn):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", -1.0)
    polling = app.batch("polling")

    @polling.step(poll=60)
    def ask() -> None: ...

    with pytest.raises(mp.WaitTimeout):
        polling.start().wait(0)
    assert not recwarn.list
