"""What a type checker must see: read by mypy and pyright in test_typing, never run.

A line that ends in `# wrong` must be reported; no other line may be.
"""

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

import milepost as mp

app = mp.App()


@dataclass
class Stone:
    id: int


@app.job
def plain(document: str, *, dpi: int = 300) -> bytes:
    return f"{document}{dpi}".encode()


@app.job(retries=5, backoff="exponential", jitter=True)
def with_context(ctx: mp.Context, document: str, pages: int = 1) -> int:
    return ctx.attempt + pages + len(document)


@app.job
async def awaited(document: str) -> list[str]:
    return [document]


@app.job(queue="slow", timeout=60)
async def awaited_with_context(ctx: mp.Context, number: int) -> dict[str, int]:
    return {ctx.id: number}


def shelf(document: str) -> str:
    return document[:1]


@app.job(limit=mp.Limit(5, key=shelf, rate=2.5, burst=9, units="pages"))
def limited(document: str) -> int:
    return len(document)


app.queue("slow", most=50, rate="100/m", max_waiting=100_000)
assert_type(limited.options(limit_key="acme", units=1.5).submit("a").limit_key, str | None)
mp.Limit(key="tenant")
mp.Limit(ordered=True, name="row")


# Submitting: the handler's own parameters without ctx; the handle knows the result.
assert_type(plain.submit("a", dpi=72), mp.JobHandle[bytes])
assert_type(with_context.submit("a", pages=2), mp.JobHandle[int])
assert_type(awaited.submit("a"), mp.JobHandle[list[str]])
assert_type(awaited_with_context.submit(3), mp.JobHandle[dict[str, int]])
assert_type(plain.submit("a").result, bytes)
assert_type(awaited.submit("a").wait(5).result, list[str])
assert_type(plain.options(priority=3, tags={"a": "b"}).within(object()).submit("a").result, bytes)
assert_type(plain.submit_many([("a",), {"document": "b"}]), list[mp.JobHandle[bytes]])


async def asynchronously() -> None:
    assert_type(await with_context.submit_async("a"), mp.JobHandle[int])
    assert_type((await (await awaited.submit_async("a")).wait_async()).result, list[str])
    assert_type(await awaited("a"), list[str])


# Both faces of an operation have its parameters, its result, and the handle's own type.
def on_handles(job: mp.JobHandle[int], run: mp.RunHandle) -> None:
    assert_type(job.cancel("not needed"), mp.JobState)
    assert_type(job.refresh().wait(timeout=5), mp.JobHandle[int])
    assert_type(job.rerun(fresh=True).result, int)
    assert_type(run.wait().resume(), mp.RunHandle)
    assert_type([seen.eta for seen in run.watch(timeout=5)], list[timedelta | None])
    assert_type(app.jobs.list(state="FAILED", limit=5)[0], mp.JobHandle[Any])
    job.cancel(7)  # wrong
    job.rerun(True)  # wrong
    app.jobs.list(state="FAILED", limt=5)  # wrong


async def on_handles_awaited(job: mp.JobHandle[int], run: mp.RunHandle) -> None:
    assert_type(await job.cancel_async("not needed"), mp.JobState)
    assert_type(await job.wait_async(timeout=5), mp.JobHandle[int])
    assert_type((await job.rerun_async(fresh=True)).result, int)
    assert_type([seen.state async for seen in run.watch_async(5)], list[mp.RunState])
    await job.cancel_async(7)  # wrong


# The function stays callable, as it was declared.
assert_type(plain("a"), bytes)


def in_a_handler(ctx: mp.Context) -> None:
    assert_type(with_context(ctx, "a"), int)
    begun: Coroutine[Any, Any, dict[str, int]] = awaited_with_context(ctx, 3)
    begun.close()


# Steps: the function's own parameters, and its result.
def count(document: str, *, dpi: int = 300) -> list[int]:
    return [len(document), dpi]


async def fetch(url: str) -> bytes:
    return url.encode()


def load(connection: Any, rows: list[int]) -> int:
    return len(rows)


def in_steps(ctx: mp.Context) -> None:
    assert_type(ctx.step("count", count, "a", dpi=72), list[int])
    assert_type(ctx.step("load", load, [1], transaction=True), int)
    ctx.step("count", count, 7)  # wrong
    ctx.step("count", count, "a", dpj=72)  # wrong
    ctx.step("count")  # wrong


async def in_awaited_steps(ctx: mp.Context) -> None:
    assert_type(await ctx.step_async("fetch", fetch, "a"), bytes)
    assert_type(await ctx.step_async("count", count, "a"), list[int])
    assert_type(await ctx.step_async("load", load, [1], transaction=True), int)
    await ctx.step_async("fetch", fetch, 7)  # wrong


# Batches: a decorated function stays what it was.
batch = app.batch("typed")


@batch.step
def find(folder: str) -> list[str]:
    return [folder]


@batch.step(gated=True, poll=60, retries=5, timeout=None, limit=mp.Limit(5, key="item"))
def parse(ctx: mp.Context, path: str) -> int:
    return len(path)


@batch.reduce(retries=1)
def total(sizes: Iterable[int]) -> int:
    return sum(sizes)


assert_type(find("a"), list[str])
assert_type(total([1]), int)

find(7)  # wrong
batch.step(gatd=True)  # wrong
batch.step(retries="5")  # wrong
batch.reduce(gated=True)  # wrong
plain.submit()  # wrong
plain.submit(7)  # wrong
plain.submit("a", 300)  # wrong
plain.submit("a", dpj=300)  # wrong
with_context.submit(pages=2)  # wrong
with_context.submit("a", pages="2")  # wrong
awaited.submit(b"a")  # wrong
awaited_with_context.submit("3")  # wrong
plain.options(priorty=3)  # wrong
app.job(retrys=3)  # wrong
app.job(limit=5)  # wrong
mp.Limit(5, "customer")  # wrong
mp.Limit(mst=5)  # wrong
plain.options(limit_key=7)  # wrong
app.queue("slow", most="5")  # wrong
plain.submit("a").result.nope()  # wrong


class Supplier(mp.Source[dict[str, Any], Stone, list[int]]):
    def count(self, window: mp.Window, low: float, high: float) -> int:
        return 0 if window.start is None else round(high - low)

    def fetch(
        self, window: mp.Window, partition: mp.Partition, cursor: list[int] | None
    ) -> mp.Page[dict[str, Any], list[int]]:
        return mp.Page([{"id": 1}], None if partition.is_last else [*(cursor or []), 1])

    def map(self, raw: dict[str, Any]) -> Stone:
        if raw.get("deleted"):
            raise mp.Gone(raw["id"])
        return Stone(raw["id"])


stones = app.pipeline("stones", Supplier(), key=lambda raw: raw["id"], partition_by="price")
stones.start(full=True).counts.new + 1
app.pipeline("stones", Stone(1), key="id", partition_by="price")  # wrong
