"""A worker outlives its PostgreSQL server: it waits, connects again and loses nothing."""

import asyncio

import pytest

import milepost as mp
from tests.support.servers import binaries, running

NEWEST = max(binaries(), key=int, default="")

pytestmark = pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand")


async def test_a_worker_waits_for_its_server_and_goes_on_with_what_it_held(until):
    with running(NEWEST, {"fsync": "off"}) as server:
        quick = {"heartbeat": 0.3, "sweep": 0.1, "error_wait": 0.2, "poll_max": 0.2}
        app = mp.App(server.url(), **quick)
        let_go, begun = asyncio.Event(), []

        @app.job
        async def slow(ctx: mp.Context) -> int:
            begun.append(ctx.fence)
            await let_go.wait()
            return ctx.fence

        @app.job
        async def quick() -> int:
            return 1

        held = await slow.submit_async()
        worker = await app.worker()
        task = asyncio.create_task(worker.run())
        await until(lambda: begun)
        states = set()

        async def watch() -> None:
            while True:
                states.add(str(worker.state))
                await asyncio.sleep(0.005)

        watching = asyncio.create_task(watch())
        await asyncio.to_thread(server.stop, "immediate")
        let_go.set()  # it ends while the server is away: the report is tried until it is back
        await until(lambda: "ERROR_WAIT" in states)
        await asyncio.to_thread(server.start)
        assert (await waited(held)).result == 1
        job = await submitted(quick)
        assert (await waited(job)).result == 1
        watching.cancel()
        worker.drain()
        await asyncio.wait_for(task, 20)
        assert begun == [1], "the lease outlived the restart: nothing was run twice"
        moves = [entry.move for entry in await held.history_async()]
        assert moves == ["create", "claim", "succeed"]
        shown = {found.id: found.state for found in await app.workers.list_async()}
        assert shown == {worker.id: "STOPPED"}
        await app.close_async()


async def waited(job):
    for _ in range(100):
        try:
            return await job.wait_async(20)
        except mp.Unavailable:
            await asyncio.sleep(0.1)
    raise AssertionError


async def submitted(kind):
    for _ in range(100):
        try:
            return await kind.submit_async()
        except mp.Unavailable:
            await asyncio.sleep(0.1)
    raise AssertionError
