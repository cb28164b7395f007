"""What the journal's weekly partitions cost and save, on PostgreSQL 18 with durable settings.

One store has the journal in one piece, the default partition; another has it as it is after a
quarter: this week, two ahead, thirteen old ones. A third is a twin of the first: how far those two
are apart is what the machine makes of nothing. The same operations are taken in turn from all, in
an order that changes, and what counts is the processor time of the server's processes: wall time
would tell of the neighbours. Then: how long it takes to let jobs go, to sum up histories, and to
drop a week of which a thousand entries are left, for which every move would have to wait.
"""

import argparse
import asyncio
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.store import SETTINGS, Engine, at_once, new_database, new_store
from milepost import outcome
from milepost.records import Settlement
from milepost.store import jobs, retention, timers, workers
from milepost.store.driver import Driver
from milepost.store.retention import FIRST, Keep
from tests.support.servers import PostgresServer, running

WEEKS = 13
WEEK = 7 * 86_400.0
KEEP = Keep(WEEK, WEEK, WEEK)
BATCH = 500
SIZES = {1: 30, 100: 20, 1000: 6}


def in_one_piece(url: str) -> None:
    """Leave the journal its default partition alone."""
    with psycopg.connect(
        url, autocommit=True, options="-c search_path=milepost,public"
    ) as connection:
        found = connection.execute(
            "SELECT relid::regclass::text FROM pg_partition_tree('journal')"
            " WHERE isleaf AND relid <> 'journal_default'::regclass"
        ).fetchall()
        for (name,) in found:
            connection.execute(f"DROP TABLE {name}")


def with_a_past(store: Driver) -> None:
    """Make the weeks of the quarter that is over, as maintenance did when they were to come."""
    for week in range(WEEKS, 0, -1):
        store.run(workers.advance_clock, -week * WEEK)
        store.run(retention.make_weeks)
        store.run(workers.advance_clock, week * WEEK)


@dataclass
class Lane:
    """A store, and what its server's processes have spent on it."""

    url: str
    side: Engine
    spent: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def processor_seconds(self) -> float:
        """Add up what the connections to this store have used so far."""
        with psycopg.connect(
            self.url, autocommit=True, options="-c search_path=milepost,public"
        ) as monitor:
            pids = monitor.execute(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            ).fetchall()
        told = (Path(f"/proc/{pid}/schedstat").read_text() for (pid,) in pids)
        return sum(int(text.split()[0]) for text in told) / 1e9

    async def take(self, name: str, count: int, batches: int) -> None:
        """Do a few batches, and add what they cost."""
        if name == "claim + settle":
            await self.side.prepare_claim(count * batches)
        work = self.side.create if name == "create" else self.side.claim_and_settle
        before = self.processor_seconds()
        for _ in range(batches):
            await work(count)
        each = (self.processor_seconds() - before) / (count * batches)
        self.spent.setdefault((name, count), []).append(each * 1e6)
        self.side.clear()


async def hot(server: PostgresServer, rounds: int, table: Table) -> None:
    urls = [new_database(server, name) for name in ("plain", "weekly", "twin")]
    stores = [new_store(url) for url in urls]
    in_one_piece(urls[0])
    with_a_past(stores[1])
    in_one_piece(urls[2])
    lanes = [Lane(url, Engine(s, at_once(s))) for url, s in zip(urls, stores, strict=True)]
    chance = random.Random(1)
    for number in range(rounds + 1):
        for name in ("create", "claim + settle"):
            for count, batches in SIZES.items():
                for lane in chance.sample(lanes, len(lanes)):
                    await lane.take(name, count, batches)
        if number == 0:  # caches and plans are made
            for lane in lanes:
                lane.spent.clear()
    for (name, count), one in lanes[0].spent.items():
        spent = [lane.spent[name, count] for lane in lanes]
        cells = [f"{statistics.median(each):.1f}" for each in spent[:2]]
        for each in spent[1:]:
            ratio = statistics.median(b / a for a, b in zip(one, each, strict=True))
            cells.append(f"{ratio:.3f}")
        table.add_row(f"{name} x{count:,}, µs of CPU a job", *cells)
    for store in stores:
        store.close()


def timed(work: "list[float]", begun: float) -> None:
    work.append((time.perf_counter() - begun) * 1000)


async def upkeep(server: PostgresServer, count: int, table: Table) -> None:
    """Time what retention does, on the journal as it is."""
    store = new_store(new_database(server, "upkeep"))
    side = Engine(store, at_once(store))
    await side.create(count)
    await side.claim_and_settle(count)
    store.run(workers.advance_clock, 2 * WEEK)
    forgotten: list[float] = []
    left = BATCH
    while left == BATCH:
        begun = time.perf_counter()
        left = store.run(retention.forget_jobs, KEEP, after=FIRST, most=BATCH).left
        timed(forgotten, begun)
    await side.create(1000)
    for _ in range(3):
        polled(store)
    store.run(workers.advance_clock, 2 * WEEK)
    summed: list[float] = []
    left = retention.SUMMED
    while left == retention.SUMMED:
        begun = time.perf_counter()
        left = store.run(retention.sum_up, KEEP, after=FIRST, most=BATCH).left
        timed(summed, begun)
    begun = time.perf_counter()
    assert store.run(retention.drop_week, KEEP)
    dropped = (time.perf_counter() - begun) * 1000
    table.add_row(f"let {BATCH} jobs go, ms", "", f"{statistics.median(forgotten):.1f}", "")
    what = f"sum up {retention.SUMMED} histories of 10 entries, ms"
    table.add_row(what, "", f"{statistics.median(summed):.1f}", "")
    table.add_row("drop a week, move the 1,000 entries left, ms", "", f"{dropped:.1f}", "")
    store.close()


def polled(store: Driver) -> None:
    """Let every job be claimed and ask to be called later."""
    store.run(workers.register, workers.NewWorker(id="p", lease_us=10**12))
    claims = store.run(jobs.claim, worker_id="p", line=jobs.lines(["bench"]), most=1000)
    store.run(jobs.settle, [Settlement(claim, outcome.later(0)) for claim in claims], actor="p")
    store.run(timers.wake, actor="m", most=1000)


async def run(rounds: int, count: int) -> Table:
    table = Table(title=f"the journal in one piece, and in {WEEKS + 3} weeks")
    for column in ("operation", "one piece", "weeks", "ratio", "its twin"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    with running("18", settings=SETTINGS) as server:
        await hot(server, rounds, table)
        await upkeep(server, count, table)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=5_000, help="how many finished jobs to let go")
    chosen = parser.parse_args()
    Console(width=100).print(asyncio.run(run(chosen.rounds, chosen.jobs)))


if __name__ == "__main__":
    main()
