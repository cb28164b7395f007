"""A worker's row tells the truth: not idle while jobs run, claiming while a claim is under way."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from milepost import outcome
from milepost.lifecycle import SlotState
from milepost.records import Settlement
from milepost.store import jobs
from milepost.worker.slots import SlotTable

pytestmark = pytest.mark.in_turn


@pytest.fixture
def row(app):
    async def read():
        for found in await app.workers.list_async():
            return found.state, json.loads(found.slots)
        return None

    return read


async def seen(row, expected, seconds=15):
    """Wait until the row says so."""
    end = asyncio.get_running_loop().time() + seconds
    while (shown := await row()) != expected:
        assert asyncio.get_running_loop().time() < end, shown
        await asyncio.sleep(0.02)


async def test_a_worker_is_not_idle_while_jobs_run(app, working, row, until):
    let_go = asyncio.Event()

    @app.job
    async def work() -> None:
        await let_go.wait()

    async with working(concurrency=100) as worker:
        await seen(row, ("IDLE", {"FREE": 100}))
        await work.submit_many_async([()] * 54)
        await seen(row, ("BACKOFF", {"FREE": 46, "PROCESSING": 54}))
        states = set()
        for _ in range(20):
            states.add((await row())[0])
            await asyncio.sleep(0.02)
        assert states <= {"BACKOFF", "POLLING"}
        # It rests as far as those who submit are concerned: they notify it. While it looks, which
        # takes as long as the store does, the row may say so.
        await until(lambda: worker._row.shown_resting)
        let_go.set()
        await seen(row, ("IDLE", {"FREE": 100}))


async def test_rests_grow_to_their_limit_with_jitter_and_work_makes_them_short_again_h110(
    app, working, until, monkeypatch
):
    @app.job
    async def work() -> None: ...

    async with working(concurrency=2) as worker:
        steps, asked, wait = [], [], worker._watch.wait

        async def noted(pause):
            steps.append(worker._pause)
            asked.append(pause)
            return await wait(pause)

        monkeypatch.setattr(worker._watch, "wait", noted)
        await until(lambda: 0.1 in steps)
        await (await work.submit_async()).wait_async(20)
        await until(lambda: 0.1 in steps and 0.02 in steps[steps.index(0.1) :])
    grown = steps[steps.index(0.1) :]
    grown = grown[grown.index(0.02) :][:4]
    assert grown == [0.02, 0.04, 0.08, 0.1][: len(grown)]
    assert all(0.75 <= pause / step <= 1.25 for pause, step in zip(asked, steps, strict=True))


async def test_slots_are_claiming_while_a_claim_is_under_way_and_free_after_a_miss(
    app, working, row, monkeypatch
):
    async with working(concurrency=4) as worker:
        await seen(row, ("IDLE", {"FREE": 4}))
        go_on, run = asyncio.Event(), worker._driver.run

        async def slow(operation, *args, **kwargs):
            if operation is jobs.claim:
                await go_on.wait()
            return await run(operation, *args, **kwargs)

        @app.job
        async def work() -> None: ...

        monkeypatch.setattr(worker._driver, "run", slow)
        job = await work.submit_async()
        await seen(row, ("POLLING", {"CLAIMING": 2, "FREE": 2}))
        go_on.set()
        await job.wait_async(20)
        await seen(row, ("IDLE", {"FREE": 4}))


async def test_a_slot_whose_job_was_given_back_or_lost_is_dropped(app, working, until, monkeypatch):
    dropped = []
    drop = SlotTable.drop

    def noted(self, *, good):
        dropped.append(good)
        drop(self, good=good)

    monkeypatch.setattr(SlotTable, "drop", noted)
    begun, let_go = [], asyncio.Event()

    @app.job
    async def work(number: int) -> None:
        begun.append(number)
        if number:
            await asyncio.Event().wait()
        await let_go.wait()

    lost, kept = await work.submit_many_async([(0,), (1,)])
    async with working(concurrency=2) as worker:
        await until(lambda: len(begun) == 2)
        # As if its claim's reply had been lost: the job is given to somebody else meanwhile.
        await worker._driver.run(jobs.reconcile, worker_id=worker.id, known={kept.id: 1})
        let_go.set()
        assert (await lost.wait_async(20)).state == "SUCCEEDED"
        await until(lambda: dropped == [True])
        worker.drain()
        worker.drain()
    assert dropped == [True, None]
    assert worker._slots.free == 2


def claimed(job_id):
    return SimpleNamespace(id=job_id, fence=1, queue="default", kind="k", limit_key=None)


def test_every_move_of_the_slot_machine_is_made_and_keeps_the_count():
    slots = SlotTable(3)
    slots.take(3)
    assert json.loads(slots.text()) == {SlotState.CLAIMING: 3}
    slots.start(2)
    slots.miss(1)
    assert json.loads(slots.text()) == {SlotState.PROCESSING: 2, SlotState.FREE: 1}
    ends = [
        Settlement(claimed("kept"), outcome.succeeded(None)),
        Settlement(claimed("lost"), outcome.failed(outcome.Problem(type="E", message=""))),
    ]
    for end in ends:
        slots.report(SimpleNamespace(placed=True, lane=None), end.outcome)
    assert json.loads(slots.text()) == {
        SlotState.REPORTING_SUCCESS: 1,
        SlotState.REPORTING_FAILURE: 1,
        SlotState.FREE: 1,
    }
    slots.settled(ends, {"kept"})
    assert json.loads(slots.text()) == {SlotState.FREE: 3}
