"""Going on with a run: once, whoever asks, and from what its jobs have recorded."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

import milepost as mp

pytestmark = pytest.mark.both_stores

THREADS = 4


@pytest.fixture
def broken():
    return {1, 3}


@pytest.fixture
def seen():
    return []


@pytest.fixture
def loads(app, broken, seen):
    """Load five numbers, a few of which may fail, and add them up."""
    batch = app.batch("loads", policy=mp.Tolerate(0.5))

    @batch.step
    def find() -> Iterator[int]:
        yield from range(5)

    @batch.step(retries=0)
    def load(ctx: mp.Context, number: int) -> int:
        ctx.step("charge", lambda: seen.append((number, ctx.idempotency_key)))
        if number in broken:
            raise mp.Fail("broken")
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> list[int]:
        return sorted(found)

    return batch


def test_a_run_that_ended_well_with_failures_resumes_as_a_run_of_what_failed(app, loads, broken):
    first = loads.start()
    app.drain()
    assert (first.refresh().state, first.report) == ("SUCCEEDED", [0, 2, 4])
    child, _ = app.jobs.list(state="FAILED", kind="loads.load")
    with pytest.raises(mp.IllegalMove, match=rf"run {first.id}; resume the run"):
        child.rerun()
    broken.remove(1)
    second = app.runs.get(child.record.run_id).resume()
    app.drain()
    assert (second.refresh().state, second.report) == ("SUCCEEDED", [0, 1, 2, 4])
    assert second.record.resumes == first.id
    broken.clear()
    third = second.resume()
    app.drain()
    assert third.refresh().report == [0, 1, 2, 3, 4]
    with pytest.raises(mp.IllegalMove, match="SUCCEEDED, and nothing"):
        third.resume()


def test_jobs_of_a_resumed_run_keep_their_keys_and_steps(app, loads, broken, seen):
    run = loads.start()
    app.drain()
    failed = {job.id for job in app.jobs.list(state="FAILED")}
    run = run.resume()
    app.drain()
    broken.clear()
    run = run.resume()
    app.drain()
    assert run.refresh().report == [0, 1, 2, 3, 4]
    assert sorted(number for number, _ in seen) == [0, 1, 2, 3, 4], "each was charged once"
    assert {key for number, key in seen if number in (1, 3)} == failed
    newest = app.jobs.list(kind="loads.load", superseded=False)
    assert len(newest) == 5
    assert all(len(job.chain) == (3 if job.rerun_of else 1) for job in newest)


@pytest.mark.parametrize("ends", ["FAILED", "SUCCEEDED"])
def test_all_who_resume_a_run_at_once_get_the_same_run(app, database, loads, broken, ends):
    if ends == "FAILED":
        broken.update(range(5))
    run = loads.start()
    app.drain()
    assert run.refresh().state == ends
    apps = [mp.App(database.url) for _ in range(THREADS)]
    together = Barrier(THREADS)

    def resumed(own):
        handle = own.runs.get(run.id)
        together.wait()
        return handle.resume().id

    broken.clear()
    with ThreadPoolExecutor(THREADS) as pool:
        [again] = set(pool.map(resumed, apps))
    assert run.resume().id == again
    app.drain()
    assert app.runs.get(again).report == [0, 1, 2, 3, 4]
    assert len(app.runs.list()) == 2
    for own in apps:
        own.close()


async def test_all_who_resume_without_blocking_get_the_same_run(app, loads, broken):
    import asyncio

    run = await loads.start_async()
    await app.drain_async()
    told = await asyncio.gather(*(run.resume_async() for _ in range(THREADS)))
    assert len({handle.id for handle in told}) == 1
    await app.close_async()


def test_the_database_refuses_a_second_run_that_resumes_by_hand(app, loads, raw):
    run = loads.start()
    app.drain()
    run.resume()
    with pytest.raises(Exception, match=r"resumes"):
        raw.execute(
            "INSERT INTO run (id, kind, state, move, resumes)"
            " VALUES ('018f0000-0000-7000-8000-000000000000', 'loads', 'QUEUED', 'create',"
            f" '{run.id}')"
        )


def test_a_hook_that_failed_is_not_part_of_what_is_resumed(app, broken):
    batch = app.batch("hooked", policy=mp.Collect())
    told = []

    @batch.step(retries=0)
    def work() -> int:
        if broken:
            raise mp.Fail("broken")
        return 1

    @batch.on_failure(retries=0)
    def tell(run: mp.RunHandle) -> None:
        told.append(run.id)
        raise mp.Fail("nobody listens")

    run = batch.start()
    app.drain()
    assert run.refresh().state == "FAILED"
    broken.clear()
    again = run.resume()
    app.drain()
    assert (again.refresh().state, told) == ("SUCCEEDED", [run.id])
