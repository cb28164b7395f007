"""A worker inside another server: the server keeps its signals, and ends the worker."""

import asyncio
import signal

import milepost as mp


async def started(app: mp.App, **options: bool) -> asyncio.Task[None]:
    """Start a worker and wait until it has done something: then it has its signals, or not."""

    @app.job
    async def ping() -> str:
        return "pong"

    task = asyncio.create_task(app.run_worker_async(**options))
    job = await ping.submit_async()
    assert (await job.wait_async(timeout=60)).result == "pong"
    return task


async def ended(app: mp.App, task: asyncio.Task[None]) -> list[str]:
    task.cancel()
    await asyncio.wait([task])
    states = [worker.state for worker in await app.workers.list_async()]
    await app.close_async()
    return states


async def test_a_worker_takes_the_signals(app):
    before = signal.getsignal(signal.SIGTERM)
    task = await started(app)
    assert signal.getsignal(signal.SIGTERM) is not before
    assert await ended(app, task) == ["STOPPED"]
    assert signal.getsignal(signal.SIGTERM) == before


async def test_or_leaves_them_to_the_server_it_is_part_of(app):
    before = signal.getsignal(signal.SIGTERM)
    task = await started(app, signals=False)
    assert signal.getsignal(signal.SIGTERM) is before
    assert await ended(app, task) == ["STOPPED"]
