"""A worker inside another server: the server keeps its signals, and ends the worker."""

import asyncio
import signal

import pytest

import milepost as mp
from milepost.ending import Ending
from milepost.worker.loop import Worker

pytestmark = pytest.mark.in_turn


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


@pytest.mark.parametrize("at", ["connecting", "declaring", "opening"])
async def test_a_signal_while_a_worker_starts_stops_it(app, monkeypatch, at):
    """It was unheard while the store was connected to, and killed the process just after."""
    owner, name = {
        "connecting": (app.client, "async_driver"),
        "declaring": (app, "_declare"),
        "opening": (Worker, "open"),
    }[at]
    usual, raised = getattr(owner, name), []

    async def interrupted(*arguments):
        if not raised:
            raised.append(signal.raise_signal(signal.SIGTERM))
        return await usual(*arguments)

    # A process that was told to stop ends in time, and this one has other tests to run.
    monkeypatch.setattr(Ending, "begin", lambda _: None)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody hears it"))
    monkeypatch.setattr(owner, name, interrupted)
    try:
        async with asyncio.timeout(10):
            assert not await app.run_worker_async()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert {worker.state for worker in await app.workers.list_async()} <= {"STOPPED"}
    await app.close_async()
