"""What partitions of the journal would cost and save, on PostgreSQL 18 with durable settings.

One store has the journal as it is, in one piece; another has it in partitions of a day each, the
past month and tomorrow. The same operations are taken in turn from both. Then finished jobs are let
go in both ways: with their entries (retention as it is), and without, as if a partition of them
were dropped later.
"""

import argparse
import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.store import (
    SETTINGS,
    Engine,
    Pair,
    at_once,
    measure,
    new_database,
    new_store,
)
from milepost.store import retention, workers
from milepost.store.driver import Call, Driver, Steps
from milepost.store.retention import FIRST, Keep, _first_id
from milepost.testing.servers import PostgresServer, running

DAYS = 30
WEEK = 7 * 86_400.0
BATCH = 500
SIZES = {1: 200, 100: 20, 1000: 5}


def partition(url: str, days: int) -> None:
    """Give the journal a partition for each day, as retention by dropping would."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with psycopg.connect(url, autocommit=True) as connection:
        for day in range(-days, 2):
            first, last = (_first_id(today + timedelta(days=day + n)) for n in (0, 1))
            name = f"journal_{day + days}"
            connection.execute(
                f"CREATE TABLE {name} PARTITION OF journal"
                f" FOR VALUES FROM ('{first}') TO ('{last}')"
            )


def left_alone(ids: tuple[str, ...]) -> Steps[int]:
    """Let jobs go and leave their entries where they are."""
    return len((yield Call("retention_forget_job", {"id": list(ids)})))


async def fill(side: Engine, count: int) -> None:
    for _ in range(count // 1000):
        await side.create(1000)
        await side.claim_and_settle(1000)


def timed(store: Driver, *, whole: bool) -> float:
    """Let every finished job go, in batches; return the median milliseconds of one batch."""
    store.run(workers.advance_clock, 8 * 86_400)
    keep, spent = Keep(WEEK, WEEK), []
    while True:
        begun = time.perf_counter()
        if whole:
            left = store.run(retention.forget_jobs, keep, after=FIRST, most=BATCH).left
        else:
            page = store.run(retention._old, "retention_jobs", keep, after=FIRST, most=BATCH)  # noqa: SLF001
            left = store.run(left_alone, page.over) if page.over else 0
        if left < BATCH:
            return statistics.median(spent) * 1000
        spent.append(time.perf_counter() - begun)


async def hot(server: PostgresServer, rounds: int, table: Table) -> None:
    plain, daily = (new_database(server, name) for name in ("plain", "daily"))
    stores = [new_store(plain), new_store(daily)]
    partition(daily, DAYS)
    sides: list[Any] = [Engine(store, at_once(store)) for store in stores]
    for name in ("create", "claim + settle"):
        for count, batches in SIZES.items():
            pair = Pair("psycopg", sides[1], sides[0])
            figure = await measure(pair, name, count, batches, rounds)
            table.add_row(
                f"{name} x{count:,}",
                f"{figure.raw_per_second:,.0f}",
                f"{figure.engine_per_second:,.0f}",
                f"{figure.ratio:.3f}",
            )
    for store in stores:
        store.close()


async def leaving(server: PostgresServer, count: int, table: Table) -> None:
    spent = {}
    for whole in (True, False):
        store = new_store(new_database(server, f"leaving_{whole}".lower()))
        await fill(Engine(store, at_once(store)), count)
        spent[whole] = timed(store, whole=whole)
        store.close()
    table.add_row(
        f"let {BATCH} jobs go, ms",
        f"{spent[True]:.1f}",
        f"{spent[False]:.1f}",
        f"{spent[True] / spent[False]:.2f}",
    )


async def run(rounds: int, count: int) -> Table:
    table = Table(title=f"the journal in one piece, and in {DAYS + 2} partitions")
    for column in ("operation", "one piece", "partitions", "ratio"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    with running("18", settings=SETTINGS) as server:
        await hot(server, rounds, table)
        await leaving(server, count, table)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=50_000, help="how many finished jobs to let go")
    chosen = parser.parse_args()
    Console(width=100).print(asyncio.run(run(chosen.rounds, chosen.jobs)))


if __name__ == "__main__":
    main()
