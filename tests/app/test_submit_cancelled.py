"""A submission whose task was cancelled before anything was sent is not stored; others are."""

import asyncio

import pytest


@pytest.fixture
def convert(app):
    @app.job()
    def convert(document: str) -> str:
        return document

    return convert


async def test_a_submission_cancelled_while_it_waits_for_its_statement_is_dropped(app, convert):
    await convert.submit_async("first")  # the store is open
    tasks = [asyncio.create_task(convert.submit_async(name)) for name in ("a", "b", "c")]
    await asyncio.sleep(0)  # each has queued up; who sends them has its turn after us
    tasks[1].cancel()
    a, b, c = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(b, asyncio.CancelledError)
    kept = {job.id for job in await app.jobs.list_async()}
    assert len(kept) == 3
    assert {a.id, c.id} < kept
    await app.close_async()


@pytest.mark.parametrize("cancelled", [(1,), (0, 1, 2)])
async def test_it_is_dropped_while_the_store_is_being_opened(app, convert, monkeypatch, cancelled):
    opens = asyncio.Event()
    open_driver = app.client.async_driver

    async def waited():
        await opens.wait()
        return await open_driver()

    monkeypatch.setattr(app.client, "async_driver", waited)
    tasks = [asyncio.create_task(convert.submit_async(name)) for name in ("a", "b", "c")]
    for _ in range(3):  # they queue up; who sends them takes them; it waits for the store
        await asyncio.sleep(0)
    for place in cancelled:
        tasks[place].cancel()
    await asyncio.sleep(0)
    opens.set()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    kept = {job.id for job in await app.jobs.list_async()}
    assert kept == {job.id for place, job in enumerate(ended) if place not in cancelled}
    again = await convert.submit_async("again")  # whoever comes later is served as ever
    assert again.id in {job.id for job in await app.jobs.list_async()}
    await app.close_async()
