"""A source in memory that behaves as real ones do."""

import bisect
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

import milepost as mp
from milepost.client import new_id
from milepost.records import Claim, NewJob, Template
from milepost.store import creation, jobs, workers

T0 = datetime(2024, 1, 1, tzinfo=UTC)


class Diamond(msgspec.Struct):
    """What the target holds."""

    id: int
    price: int | None
    updated_at: datetime
    note: str | None = None


class Shop(mp.Source):
    """Records in memory, read by keyset pages in the order (price, id)."""

    size = 5

    def __init__(self, count: int = 0) -> None:
        self.data: dict[int, dict] = {}
        self.calls: list[tuple] = []
        self.fetched: list[tuple] = []
        self.before_fetch: Callable[[object, object], None] = lambda _partition, _cursor: None
        for number in range(count):
            self.put(number, price=number * 10, at=T0 + timedelta(minutes=number))

    def put(self, number: int, *, price: int | None = 100, at: datetime | None = None, **more):
        stamp = (at or datetime.now(UTC)).isoformat()
        self.data[number] = {"id": number, "price": price, "updated_at": stamp, **more}

    def matching(self, window, low, high) -> list[tuple]:
        def fits(record) -> bool:
            at = datetime.fromisoformat(record["updated_at"])
            price = record["price"]
            inside = price is None if low is None else price is not None and low <= price < high
            return inside and window.covers(at)

        return sorted((r["price"] or 0, r["id"]) for r in list(self.data.values()) if fits(r))

    def count(self, window, low, high) -> int:
        self.calls.append((window, low, high))
        return len(self.matching(window, low, high))

    def fetch(self, window, partition, cursor) -> mp.Page:
        self.before_fetch(partition, cursor)
        self.fetched.append((window, partition, cursor))
        rows = self.matching(window, partition.low, partition.high)
        at = bisect.bisect_right(rows, tuple(cursor)) if cursor else 0
        page = rows[at : at + self.size]
        more = at + self.size < len(rows)
        return mp.Page([dict(self.data[key]) for _, key in page], list(page[-1]) if more else None)

    def map(self, raw: dict) -> Diamond:
        return msgspec.convert(raw, Diamond)


OPTIONS = {"key": "id", "version": "updated_at", "partition_by": "price", "partitions": 3}


def go(app, run):
    """Run what is due, and read the run again."""
    app.drain(timeout=20)
    return run.refresh()


def by_hand(app) -> Claim:
    """Hold a job, as whoever writes into a target does."""
    run = app.client.run
    run(workers.register, workers.NewWorker(id="hand", lease_us=10**9))
    run(creation.create, [NewJob(new_id(), b"{}", Template(kind="write", queue="by hand"))])
    [claim] = run(jobs.claim, worker_id="hand", line=jobs.lines(["by hand"]), most=1)
    return claim


def ended(run, seconds=100):
    """Wait for a run that workers of their own are at: they may take a while to be there."""
    late = time.monotonic() + seconds
    while not run.refresh().done:
        assert time.monotonic() < late, (run.state, run.partitions)
        time.sleep(0.05)
    return run


def held(pipeline) -> dict:
    """What the target holds, as the source would give it."""
    return {record.id: record.price for record in pipeline.records()}


def offered(shop) -> dict:
    return {record["id"]: record["price"] for record in shop.data.values()}
