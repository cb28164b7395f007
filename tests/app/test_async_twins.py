"""Every public call that is awaited is called here: one that nobody calls may have rotted away.

What runs is looked at, not what is written down: a call that is mentioned and never made shows.
"""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import CodeType
from typing import Any

import msgspec
import psycopg
import pytest

import milepost as mp
from tests.support.databases import Database
from tools import api_reference

pytestmark = pytest.mark.in_turn


def twins() -> dict[CodeType, str]:
    """Find every public method that is awaited, by its code: classes share what they inherit."""
    found: dict[CodeType, str] = {}
    for entries in api_reference._sections().values():
        for _, class_ in entries:
            hidden = api_reference.HIDDEN.get(class_, set())
            for name, value in api_reference._declared(class_).items():
                base = name.removesuffix("_async")
                if base == name or name.startswith("_") or {name, base} & hidden:
                    continue
                found[body_of(value)] = f"{class_.__name__}.{name}"
    return found


def body_of(method: Any) -> CodeType:
    """Tell the faces of one operation from those of another: they share their own code."""
    return getattr(method, "__wrapped__", method).__code__


AWAITED = {mp.JobHandle.cancel_async.__code__, mp.JobHandle.outputs_async.__code__}
"""The code of every awaited face that is made: by `faces`, and by `streams`."""


@contextmanager
def watching() -> Iterator[set[CodeType]]:
    """Collect the code of everything that this thread runs."""
    ran: set[CodeType] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code in AWAITED:
            ran.add(frame.f_locals["body"].__code__)
        elif event == "call" and not frame.f_code.co_name.startswith("_"):  # the bodies are
            ran.add(frame.f_code)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(before)


async def test_every_public_call_that_is_awaited_is_called(database: Database, remote: str):
    app = mp.App(database.url, request_allow=remote.removeprefix("http://"))
    expected = twins()
    with watching() as ran:
        try:
            for scene in (jobs, inside, batches, pipelines, requests, operators, channels):
                await asyncio.wait_for(scene(app, database, remote), 120)
        finally:
            await app.close_async()
    assert sorted(expected[code] for code in expected.keys() - ran) == []


def test_what_is_not_called_shows():
    async def idle() -> None: ...

    with watching() as ran:
        asyncio.run(asyncio.sleep(0))
    assert len(twins()) > 60
    assert idle.__code__ not in ran
    assert asyncio.sleep.__code__ in ran


@pytest.fixture
def remote() -> Iterator[str]:
    """A server that answers with an empty object."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


# Jobs


async def jobs(app: mp.App, _database: Database, _remote: str) -> None:
    """Submit, look, act."""

    @app.job(retries=0)
    def convert(name: str) -> str:
        if name == "bad":
            raise mp.Fail("no")
        return f"{name}.pdf"

    @app.job
    def listen(ctx: mp.Context) -> list[object]:
        return ctx.signals() or mp.Later(None)  # type: ignore[return-value]

    good, bad = await convert.submit_many_async([("a",), ("bad",)])
    held = await convert.options(hold=True).submit_async("held")
    assert (await held.submit_async()).state == "QUEUED"
    unwanted = await convert.options(start_in=600).submit_async("unwanted")
    assert await unwanted.cancel_async("no") == "CANCELLED"
    waiting = await listen.submit_async()
    await app.drain_async()
    assert (await good.wait_async(timeout=10)).result == "a.pdf"
    assert [entry.move for entry in await good.history_async()] == ["create", "claim", "succeed"]
    assert [item async for item in good.outputs_async()] == ["a.pdf"]
    again = await bad.rerun_async()
    assert await again.chain_async() == [bad.id, again.id]
    assert "signal" in (await waiting.explain_async()).reasons
    assert (await app.explain_async("queue", "default")).state == "active"
    assert (await good.lifecycle_async())["state"] == "SUCCEEDED"
    assert await good.usage_async() == {}
    assert [one.type for one in await bad.failures_async()] == ["Fail"]
    [group] = await app.errors.list_async()
    assert (await app.errors.get_async(group.fingerprint)).examples[0][0] == bad.id
    assert await good.logs_async() == []
    assert await waiting.signal_async("hello") is True
    with pytest.raises(mp.IllegalMove):
        await waiting.release_async()
    with pytest.raises(mp.IllegalMove):
        await waiting.run_now_async()
    await app.drain_async()
    assert (await waiting.refresh_async()).result == ["hello"]
    assert (await app.jobs.get_async(good.id)).id == (await app.jobs.find_async(good.id)).id
    assert len(await app.jobs.list_async(kind="convert")) == 5
    assert await app.maintain_once_async() == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(app.run_worker_async(), 0.2)


async def inside(app: mp.App, database: Database, _remote: str) -> None:
    """Do in a handler what a handler can do."""

    async def count() -> int:
        return 3

    @app.job(retries=0)
    async def work(ctx: mp.Context) -> list[object]:
        pages = await ctx.step_async("count", count)
        await ctx.save_async({"page": pages})
        async with ctx.transaction_async():
            pass
        await ctx.progress_async(0.5, "half")
        await guarded(ctx, database)
        return [await ctx.cursor_async(), await ctx.signals_async()]

    job = await work.submit_async()
    await app.drain_async()
    assert (await job.refresh_async()).result == [{"page": 3}, []]


async def guarded(ctx: mp.Context, database: Database) -> None:
    """Guard a connection to a database that knows asynchronous ones."""
    if database.dialect == "sqlite":
        with pytest.raises(mp.Invalid):
            await ctx.guard_async(object())
        return
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        await ctx.guard_async(connection)


# Runs


async def batches(app: mp.App, _database: Database, _remote: str) -> None:
    """Start, fill, watch, cancel and resume runs."""
    batch = app.batch("numbers")

    @batch.step(retries=0)
    async def give(number: int) -> AsyncIterator[int]:
        if number == 13 and not mended:
            raise mp.Fail("unlucky")
        yield number

    mended: list[bool] = []
    run = await batch.start_async(hold=True)
    assert await run.add_async([13]) == 1
    await run.submit_async()
    await app.drain_async()
    assert (await run.wait_async(timeout=10)).state == "FAILED"
    assert [error.type for error in await run.errors_async()] == ["Fail"]
    mended.append(True)
    again = await run.resume_async()
    assert (await run.refill_async(again.id)).id == again.id
    await app.drain_async()
    assert [seen.state async for seen in again.watch_async(timeout=10)][-1] == "SUCCEEDED"
    held = await batch.start_async(hold=True)
    assert await held.cancel_async("no") == "CANCELLED"
    assert (await app.runs.get_async(run.id)).id == (await app.runs.find_async(run.id)).id
    assert len(await app.runs.list_async()) == 3
    assert "numbers" in await app.runs.counts_async()


class Record(msgspec.Struct):
    """What the target holds."""

    id: int
    price: int
    updated_at: datetime


class Shop(mp.Source[dict[str, Any], Record, None]):
    """Four records, of which one is odd until that is mended."""

    mended = False
    closed = False

    def count(self, window: Any, low: Any, high: Any) -> int:
        """Count them."""
        return len(self._prices(low, high))

    def fetch(self, window: Any, partition: Any, cursor: None) -> mp.Page:
        """Read them."""
        if self.closed and partition.ordinal == 1:
            raise mp.Fail("closed")
        stamp = datetime(2024, 1, 1, tzinfo=UTC)
        prices = self._prices(partition.low, partition.high)
        return mp.Page([{"id": n, "price": n, "updated_at": stamp} for n in prices], None)

    def map(self, raw: dict[str, Any]) -> Record:
        """Read one."""
        if raw["id"] == 3 and not self.mended:
            raise mp.Reject("odd")
        return msgspec.convert(raw, Record)

    @staticmethod
    def _prices(low: int | None, high: int | None) -> list[int]:
        return [] if low is None or high is None else [n for n in range(4) if low <= n < high]


async def pipelines(app: mp.App, _database: Database, _remote: str) -> None:
    """Run a pipeline, force it, read a part again, replay what it could not use."""
    shop = Shop()
    pipeline = app.pipeline(
        "shop",
        shop,
        key="id",
        version="updated_at",
        partition_by="price",
        partitions=2,
        retries=0,
    )
    assert (await pipeline.plan_async()).partitions
    shop.closed = True
    failed = await pipeline.start_async()
    await app.drain_async(timeout=20)
    assert (await failed.refresh_async()).state == "FAILED"
    forced = await failed.force_async()
    await app.drain_async(timeout=20)
    assert (await forced.refresh_async()).state == "SUCCEEDED"
    shop.closed = False
    retried = await failed.retry_async(1)
    await app.drain_async(timeout=20)
    assert (await retried.refresh_async()).state == "SUCCEEDED"
    assert [kept.key for kept in await pipeline.quarantine.list_async()] == ["3"]
    shop.mended = True
    await pipeline.quarantine.replay_async()
    await app.drain_async(timeout=20)
    assert await pipeline.count_async() == 4
    assert [record.id async for record in pipeline.records_async()] == [0, 1, 2, 3]
    assert (await retried.counts_async()).fetched > 0
    assert await retried.partitions_async()
    assert (await pipeline.run_async(failed.id)).id == failed.id
    shop.closed = True
    other = await pipeline.start_async(full=True)
    await app.drain_async(timeout=20)
    assert (await other.refresh_async()).state == "FAILED"
    shop.closed = False
    await other.resume_async()
    await app.drain_async(timeout=20)
    mark = await pipeline.watermark_async()
    assert await pipeline.watermark_state_async() == "WatermarkAdvanced"
    assert isinstance(mark, datetime)
    await pipeline.override_watermark_async(mark - timedelta(hours=1), reason="read again")
    assert await pipeline.watermark_async() == mark - timedelta(hours=1)
    assert await pipeline.behind_async() == 0
    remapped = await pipeline.remap_async()
    await app.drain_async(timeout=20)
    assert (await remapped.refresh_async()).state == "SUCCEEDED"
    assert await pipeline.release_async(reason="another has it") == "shop"


async def requests(app: mp.App, _database: Database, remote: str) -> None:
    """Send, replay, send many."""
    job = await app.request_async("GET", remote)
    batch = await app.request_batch_async([("GET", remote), {"batch": [("GET", remote)]}])
    await app.drain_async()
    again = await app.replay_async(job.id)
    await app.drain_async()
    assert (await job.refresh_async()).result == (await again.refresh_async()).result == {}
    assert [one.state async for one in batch.responses_async()] == ["COMPLETE", "COMPLETE"]
    assert [len(await one.batches_async()) for one in await batch.batches_async()] == [0]


# Who looks after it


async def operators(app: mp.App, _database: Database, _remote: str) -> None:
    """Pause and resume, list what there is."""

    @app.job
    def nightly() -> None: ...

    app.schedule(nightly, "0 2 * * *")
    await app.drain_async()
    assert "nightly" in [schedule.name for schedule in await app.schedules.list_async()]
    await app.schedules.pause_async("nightly")
    await app.schedules.resume_async("nightly")
    assert await app.schedules.run_async("nightly")
    assert await app.schedules.next_async("nightly") is not None
    await app.queues.pause_async("default")
    assert [queue.paused for queue in await app.queues.list_async()] == [True]
    await app.queues.resume_async("default")
    assert await app.workers.list_async()


async def channels(app: mp.App, _database: Database, _remote: str) -> None:
    """Read final messages, acknowledge them, stop and start."""
    app.channel("news")

    @app.job
    def tell() -> str:
        return "told"

    await tell.options(channel="news").submit_async()
    await app.drain_async()
    assert "news" in [channel.name for channel in await app.channels.list_async()]
    page = await app.channels.pull_async("news")
    [message] = await app.channels.messages_async("news")
    assert (await app.channels.event_async(message.id))["data"]["result"] == "told"
    assert await app.channels.ack_async("news", cursor=page.cursor) == 1
    assert await app.channels.retry_async("news") == 0
    assert await app.channels.redeliver_async("news", []) == 0
    assert await app.channels.stop_async("news") is True
    assert await app.channels.start_async("news") is True
    assert await app.channels.refused_async() == []
    assert await app.relay_once_async() == 0
