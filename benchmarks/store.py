"""What the engine costs: its operations beside hand-written SQL on the same schema and driver.

Both sides have a store of their own, with the triggers on and durable settings: PostgreSQL 18 by
psycopg (synchronous) and by asyncpg (asynchronous), SQLite with synchronous=FULL. Batches are taken
in turn from both sides, so that a slow second hits both alike; a round's ratio compares the sums of
its batches, and each figure is the median of five rounds. The hand-written side is the leanest that
does the same: it knows one queue, one kind and one outcome, checks no worker and builds no records.
"""

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import uuid_utils
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from milepost import outcome
from milepost.address import StoreUrl
from milepost.records import Claim, NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import creation, jobs, runs, workers
from milepost.store.connect import open_async_driver, open_driver
from milepost.store.driver import Driver
from milepost.store.migrate import migrate
from tests.support.servers import PostgresServer, running

SETTINGS = {"shared_buffers": "256MB"}
ROUNDS = 5
BATCHES = {1: 40, 10: 40, 100: 20, 1000: 4}
QUICK = {1: 10, 10: 10, 100: 10, 1000: 2}
TARGETS = {("claim + settle", 100): 0.8, ("create", 1000): 0.7}
QUEUE, WORKER, KIND = "bench", "w", "k"
LEASE_US = 3_600_000_000


def fresh_id() -> str:
    return str(uuid_utils.uuid7())


def payload(number: int) -> bytes:
    return b'{"address":"someone@example.org","copies":%d}' % number


def result(number: int) -> bytes:
    return b'"copy %d"' % number


# One side of a comparison


class Side:
    """Does each measured thing once, for a batch of n; `prepare_*` is not measured."""

    def __init__(self, store: Driver) -> None:
        self.store = store  # a synchronous way in, for what is not measured
        self.ready: list[Any] = []

    async def prepare_claim(self, count: int) -> None:
        template = Template(kind=KIND, queue=QUEUE)
        for start in range(0, count, 1000):
            few = range(start, min(count, start + 1000))
            self.store.run(
                creation.create, [NewJob(fresh_id(), payload(number), template) for number in few]
            )

    async def prepare_create(self, count: int) -> None:
        """Need nothing."""

    async def prepare_advance(self, count: int) -> None:
        """Make runs whose first step is all running, with one job behind the gate of the next."""
        self.ready = [self._running_step(count) for _ in range(self.batches)]

    batches = 1

    def _running_step(self, count: int) -> list[Claim]:
        run_id = fresh_id()
        steps = [
            NewStep(number=number, name=name, kind=KIND, queue="run", gated=number > 0)
            for number, name in enumerate("ab")
        ]
        children = [
            NewJob(
                fresh_id(),
                payload(ordinal),
                Template(kind=KIND, queue="run", run_id=run_id, step=step, state=state),
                ordinal=ordinal,
            )
            for step, state, few in ((0, "QUEUED", count), (1, "GATED", 1))
            for ordinal in range(few)
        ]
        self.store.run(runs.create, NewRun(id=run_id, kind="b"), steps, children)
        claims = self.store.run(
            jobs.claim, worker_id=WORKER, line=jobs.lines(["run"]), most=count + 1
        )
        assert len(claims) == count
        return claims

    async def claim_and_settle(self, count: int) -> None:
        raise NotImplementedError

    async def create(self, count: int) -> None:
        raise NotImplementedError

    async def advance(self, count: int) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Leave nothing for the next measurement to find."""
        line = jobs.lines([QUEUE, "run"])
        while claims := self.store.run(jobs.claim, worker_id=WORKER, line=line, most=1000):
            done = [
                Settlement(claim, outcome.succeeded(result(number)))
                for number, claim in enumerate(claims)
            ]
            self.store.run(jobs.settle, done, actor=WORKER)


class Engine(Side):
    """The engine's operations, run by one of its drivers."""

    def __init__(self, store: Driver, run: Callable[..., Awaitable[Any]]) -> None:
        super().__init__(store)
        self.run = run
        self.template = Template(kind=KIND, queue=QUEUE)

    async def claim_and_settle(self, count: int) -> None:
        claims = await self.run(
            jobs.claim,
            worker_id=WORKER,
            line=jobs.lines([QUEUE]),
            most=count,
            kinds=[f"{KIND} 1", "other 1"],
        )
        done = [
            Settlement(claim, outcome.succeeded(result(number)))
            for number, claim in enumerate(claims)
        ]
        settled = await self.run(jobs.settle, done, actor=WORKER)
        assert len(settled) == count

    async def create(self, count: int) -> None:
        template = self.template
        await self.run(
            creation.create,
            [NewJob(fresh_id(), payload(number), template) for number in range(count)],
        )

    async def advance(self, count: int) -> None:
        claims = self.ready.pop()
        done = [
            Settlement(claim, outcome.succeeded(result(number)))
            for number, claim in enumerate(claims)
        ]
        settled = await self.run(jobs.settle, done, actor=WORKER)
        assert len(settled) == count


# PostgreSQL by hand

PG_CLAIM = """
WITH picked AS MATERIALIZED (
  SELECT id FROM job WHERE queue = $1 AND state = 'QUEUED'
   ORDER BY priority DESC, queued_seq LIMIT $2 FOR UPDATE SKIP LOCKED)
UPDATE job SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = $3, actor = $3, started_at = (SELECT milepost_now())
  FROM picked WHERE job.id = picked.id
RETURNING job.id, job.kind, job.fence, job.payload"""
PG_SETTLE = """
UPDATE job SET state = 'SUCCEEDED', move = 'succeed', version = version + 1, worker_id = NULL,
       actor = $4, result = i.result, finished_at = (SELECT milepost_now())
  FROM unnest($1::uuid[], $2::bigint[], $3::bytea[]) AS i (id, fence, result)
 WHERE job.id = i.id AND job.fence = i.fence
   AND CASE WHEN job.state = 'RUNNING' THEN true ELSE false END"""
PG_CREATE = """
INSERT INTO job (id, payload, kind, queue, state, move)
SELECT i.id, i.payload, $3, $4, 'QUEUED', 'create'
  FROM unnest($1::uuid[], $2::bytea[]) AS i (id, payload)"""
PG_LOCK = "SELECT version FROM run WHERE id = $1 FOR NO KEY UPDATE"
PG_COUNT = "SELECT sum(open) FROM step_count WHERE run_id = $1 AND step = 0"
PG_ADVANCE = """
UPDATE run SET state = 'RUNNING', move = 'advance', version = version + 1, current_step = 1,
       actor = $2
 WHERE id = $1"""
PG_FLIP = "UPDATE step SET opened = true WHERE run_id = $1 AND number = 1"
PG_OPEN = """
UPDATE job SET state = 'QUEUED', move = 'open', version = version + 1, actor = $2,
       queued_seq = nextval('queued_seq')
 WHERE run_id = $1 AND step = 1 AND state = 'GATED'"""


class RawPostgres(Side):
    """Hand-written statements on one connection; the drivers differ in `fetch` and `together`."""

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        raise NotImplementedError

    async def together(self, word: str) -> None:
        raise NotImplementedError

    async def claim_and_settle(self, count: int) -> None:
        taken = await self.fetch(PG_CLAIM, QUEUE, count, WORKER)
        results = [(row[0], row[2], result(number)) for number, row in enumerate(taken)]
        ids, fences, values = zip(*results, strict=True)
        await self.fetch(PG_SETTLE, list(ids), list(fences), list(values), WORKER)
        assert len(taken) == count

    async def create(self, count: int) -> None:
        ids = [fresh_id() for _ in range(count)]
        payloads = [payload(number) for number in range(count)]
        await self.fetch(PG_CREATE, ids, payloads, KIND, QUEUE)

    async def advance(self, count: int) -> None:
        claims = self.ready.pop()
        run_id = claims[0].run_id
        results = [result(number) for number in range(count)]
        await self.together("BEGIN")
        await self.fetch(
            PG_SETTLE, [c.id for c in claims], [c.fence for c in claims], results, WORKER
        )
        await self.fetch(PG_LOCK, run_id)
        [[still_open]] = await self.fetch(PG_COUNT, run_id)
        assert still_open == 0
        await self.fetch(PG_ADVANCE, run_id, WORKER)
        await self.fetch(PG_FLIP, run_id)
        await self.fetch(PG_OPEN, run_id, WORKER)
        await self.together("COMMIT")


class RawPsycopg(RawPostgres):
    def __init__(self, store: Driver, url: str) -> None:
        super().__init__(store)
        self.connection = psycopg.connect(
            url, autocommit=True, options="-c search_path=milepost,public"
        )
        self.connection.cursor_factory = psycopg.RawCursor

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        cursor = self.connection.execute(statement.encode(), values, prepare=True)
        return cursor.fetchall() if cursor.description else []

    async def together(self, word: str) -> None:
        self.connection.execute(word.encode())


class RawAsyncpg(RawPostgres):
    def __init__(self, store: Driver, connection: Any) -> None:
        super().__init__(store)
        self.connection = connection

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        rows: list[Any] = await self.connection.fetch(statement, *values)
        return rows

    async def together(self, word: str) -> None:
        await self.connection.execute(word)


# SQLite by hand

NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000"
LITE_CLAIM = f"""
UPDATE job SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = ?3, actor = ?3, started_at = {NOW}
 WHERE rowid IN (SELECT rowid FROM job WHERE queue = ?1 AND state = 'QUEUED'
                  ORDER BY priority DESC, queued_seq LIMIT ?2)
RETURNING id, kind, fence, payload"""
LITE_SETTLE = f"""
UPDATE job SET state = 'SUCCEEDED', move = 'succeed', version = version + 1, worker_id = NULL,
       actor = ?4, result = ?3, finished_at = {NOW}
 WHERE id = ?1 AND fence = ?2 AND state = 'RUNNING'"""
LITE_CREATE = f"""
INSERT INTO job (id, payload, kind, queue, state, move, queued_seq, created_at)
VALUES (?1, ?2, ?3, ?4, 'QUEUED', 'create', {NOW}, {NOW})"""
LITE_COUNT = "SELECT sum(open) FROM step_count WHERE run_id = ?1 AND step = 0"
LITE_ADVANCE = """
UPDATE run SET state = 'RUNNING', move = 'advance', version = version + 1, current_step = 1,
       actor = ?2
 WHERE id = ?1"""
LITE_FLIP = "UPDATE step SET opened = true WHERE run_id = ?1 AND number = 1"
LITE_OPEN = f"""
UPDATE job SET state = 'QUEUED', move = 'open', version = version + 1, actor = ?2,
       queued_seq = {NOW}
 WHERE run_id = ?1 AND step = 1 AND state = 'GATED'"""


class RawSqlite(Side):
    def __init__(self, store: Driver, path: Path) -> None:
        super().__init__(store)
        self.connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            self.connection.execute(f"PRAGMA {pragma}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self.connection.execute("BEGIN IMMEDIATE")
        yield self.connection
        self.connection.execute("COMMIT")

    async def claim_and_settle(self, count: int) -> None:
        with self._transaction() as connection:
            taken = connection.execute(LITE_CLAIM, (QUEUE, count, WORKER)).fetchall()
        with self._transaction() as connection:
            connection.executemany(
                LITE_SETTLE,
                [(row[0], row[2], result(number), WORKER) for number, row in enumerate(taken)],
            )
        assert len(taken) == count

    async def create(self, count: int) -> None:
        rows = [(fresh_id(), payload(number), KIND, QUEUE) for number in range(count)]
        with self._transaction() as connection:
            connection.executemany(LITE_CREATE, rows)

    async def advance(self, count: int) -> None:
        claims = self.ready.pop()
        run_id = claims[0].run_id
        assert len(claims) == count
        with self._transaction() as connection:
            connection.executemany(
                LITE_SETTLE,
                [(c.id, c.fence, result(number), WORKER) for number, c in enumerate(claims)],
            )
            [(still_open,)] = connection.execute(LITE_COUNT, (run_id,)).fetchall()
            assert still_open == 0
            connection.execute(LITE_ADVANCE, (run_id, WORKER))
            connection.execute(LITE_FLIP, (run_id,))
            connection.execute(LITE_OPEN, (run_id, WORKER))


# Stores for both sides


@dataclass(frozen=True, slots=True)
class Pair:
    """The two sides on one driver."""

    driver: str
    engine: Side
    raw: Side


def new_store(url: str) -> Driver:
    """Migrate a store and enter the worker that claims."""
    store = open_driver(StoreUrl.parse(url))
    migrate(store)
    store.run(workers.register, workers.NewWorker(id=WORKER, lease_us=LEASE_US))
    return store


def new_database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.url(name)


def at_once(store: Driver) -> Callable[..., Awaitable[Any]]:
    """Call a synchronous driver from the harness, which is asynchronous."""

    async def run(*args: Any, **kwargs: Any) -> Any:
        return store.run(*args, **kwargs)

    return run


@asynccontextmanager
async def pairs(folder: Path, wanted: list[str]) -> AsyncIterator[list[Pair]]:
    """Open both sides on every driver."""
    async with AsyncExitStack() as stack:
        found: list[Pair] = []
        if "sqlite3" in wanted:
            files = [folder / "engine.db", folder / "raw.db"]
            mine, theirs = (new_store(f"sqlite:///{path}") for path in files)
            found.append(Pair("sqlite3", Engine(mine, at_once(mine)), RawSqlite(theirs, files[1])))
        if {"psycopg", "asyncpg"} & set(wanted):
            server = stack.enter_context(running("18", settings=SETTINGS))
            if "psycopg" in wanted:
                found.append(psycopg_pair(server))
            if "asyncpg" in wanted:
                found.append(await asyncpg_pair(server, stack))
        for pair in found:
            stack.callback(pair.engine.store.close)
            stack.callback(pair.raw.store.close)
        yield found


def psycopg_pair(server: PostgresServer) -> Pair:
    mine, theirs = new_database(server, "p_engine"), new_database(server, "p_raw")
    store = new_store(mine)
    return Pair("psycopg", Engine(store, at_once(store)), RawPsycopg(new_store(theirs), theirs))


async def asyncpg_pair(server: PostgresServer, stack: AsyncExitStack) -> Pair:
    mine, theirs = new_database(server, "a_engine"), new_database(server, "a_raw")
    store, raw_store = new_store(mine), new_store(theirs)
    driver = open_async_driver(StoreUrl.parse(mine))
    stack.push_async_callback(driver.close)
    connection = await asyncpg.connect(theirs, server_settings={"search_path": "milepost,public"})
    stack.push_async_callback(connection.close)
    return Pair("asyncpg", Engine(store, driver.run), RawAsyncpg(raw_store, connection))


# Measuring


@dataclass(frozen=True, slots=True)
class Figure:
    """The medians of one measurement, as jobs in a second, and of its rounds' ratios."""

    driver: str
    name: str
    count: int
    engine_per_second: float
    raw_per_second: float
    ratio: float

    @property
    def target(self) -> float | None:
        return TARGETS.get((self.name, self.count))

    @property
    def kept(self) -> bool:
        return self.target is None or self.ratio >= self.target


MEASURED = {
    "claim + settle": ("prepare_claim", "claim_and_settle"),
    "create": ("prepare_create", "create"),
    "advance": ("prepare_advance", "advance"),
}


async def one_round(pair: Pair, name: str, count: int, batches: int) -> tuple[float, float]:
    """Take batches from both sides in turn; return how many seconds each side spent."""
    prepare, work = MEASURED[name]
    for side in (pair.engine, pair.raw):
        side.batches = batches
        await getattr(side, prepare)(count if name == "advance" else count * batches)
    spent = {pair.engine: 0.0, pair.raw: 0.0}
    for turn in range(batches):
        order = (pair.engine, pair.raw) if turn % 2 else (pair.raw, pair.engine)
        for side in order:
            begun = time.perf_counter()
            await getattr(side, work)(count)
            spent[side] += time.perf_counter() - begun
    for side in (pair.engine, pair.raw):
        side.clear()
    return spent[pair.engine], spent[pair.raw]


async def measure(pair: Pair, name: str, count: int, batches: int, rounds: int) -> Figure:
    """Measure in rounds, the first thrown away."""
    taken = [await one_round(pair, name, count, batches) for _ in range(rounds + 1)][1:]
    done = count * batches
    return Figure(
        pair.driver,
        name,
        count,
        engine_per_second=done / statistics.median(mine for mine, _ in taken),
        raw_per_second=done / statistics.median(theirs for _, theirs in taken),
        ratio=statistics.median(theirs / mine for mine, theirs in taken),
    )


async def figures(
    wanted: list[str], names: list[str], sizes: dict[int, int], rounds: int, progress: Progress
) -> list[Figure]:
    """Measure everything that is wanted."""
    task = progress.add_task("", total=len(wanted) * len(names) * len(sizes))
    found: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        async with pairs(Path(folder), wanted) as all_pairs:
            for pair in all_pairs:
                for name in names:
                    for count, batches in sizes.items():
                        progress.update(task, description=f"{pair.driver} {name} x{count}")
                        found.append(await measure(pair, name, count, batches, rounds))
                        progress.advance(task)
    return found


def shown(found: list[Figure]) -> Table:
    """Draw the table."""
    table = Table(title="jobs in a second, beside SQL by hand")
    for column in ("driver", "operation", "n", "engine", "by hand", "ratio", "target"):
        table.add_column(column, justify="left" if column in ("driver", "operation") else "right")
    for figure in found:
        table.add_row(
            figure.driver,
            figure.name,
            f"{figure.count:,}",
            f"{figure.engine_per_second:,.0f}",
            f"{figure.raw_per_second:,.0f}",
            f"{figure.ratio:.2f}",
            "" if figure.target is None else f"{figure.target:.1f}",
        )
    return table


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short rounds, for a first look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--driver", action="append", choices=["sqlite3", "psycopg", "asyncpg"])
    parser.add_argument("--only", action="append", choices=list(MEASURED))
    parser.add_argument("--size", action="append", type=int, choices=list(BATCHES))
    return parser.parse_args()


def main() -> int:
    """Print the table and the verdicts; fail when a target is missed."""
    chosen = options()
    sizes = QUICK if chosen.quick else BATCHES
    sizes = {count: sizes[count] for count in chosen.size or sizes}
    wanted = chosen.driver or ["sqlite3", "psycopg", "asyncpg"]
    progress = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty())
    with progress:
        found = asyncio.run(figures(wanted, chosen.only or list(MEASURED), sizes, ROUNDS, progress))
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(shown(found))
    for figure in found:
        if figure.target is not None:
            verdict = "kept  " if figure.kept else "MISSED"
            promise = f"{figure.driver}: {figure.name} x{figure.count:,} at least {figure.target}"
            console.print(f"{verdict}  {promise} x by hand: {figure.ratio:.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(figure) for figure in found], indent=2) + "\n")
    return 0 if all(figure.kept for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
