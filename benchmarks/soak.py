"""Long runs on the real schema: steady state under autovacuum, and an old transaction held open.

A queue in PostgreSQL leaves dead rows behind: every claim and every settlement writes a new version
of the job, and the index that claims read keeps an entry for each version until vacuum takes it.
A claim that scans from the bottom walks all of them. While some transaction holds an old snapshot,
vacuum may take nothing, so each claim costs more than the last until workers fall behind. Claims
that start at a remembered floor do not walk what they have passed; this program measures by how
much that helps, and whether a backlog builds up.

Two modes run side by side, each in a database of its own (the horizon of a snapshot is per
database) of one durable PostgreSQL 18, so that they share whatever else the machine does:

    plain   every claim scans the queue from the bottom
    floor   claims start, per priority, at the lowest sequence number of the last claim there;
            once a second, and on an empty claim if it is cheap, they rescan from the bottom
    eager   as floor, but rescans on every empty claim, at any price (only if asked for)

The statements are bare SQL: what is measured is the schema with its triggers, not the engine.

Phase 1, steady: a producer keeps a backlog of 2,000 while a claimer and a settler run flat out.
Phase 2, held: jobs arrive at a fixed rate and, for the middle part, a transaction is held open.

Each phase starts with empty tables and ends with proofs: every job succeeded, was claimed once,
first in first out within its priority, and left three journal entries. The program fails if one of
them does not hold, if a plan is not driven by the intended index, or if the held transaction let
more than one second of work pile up in floor mode.

    python -m benchmarks.soak [--minutes 10] [--rate 300] [--hold 5] [--json FILE]
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic

import asyncpg
import uvloop
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from milepost.address import StoreUrl
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate
from tests.support.servers import PostgresServer, running

WORKER = "soak"
BATCH = 100
BACKLOG = 2_000
SUBMIT = 500
TICK = 0.02
WINDOW = 10.0
SAMPLE = 0.1
RESCAN_EVERY = 1.0
RESCAN_SHARE = 0.05
PRIORITIES = tuple(range(9, -1, -1))
DRAIN_SECONDS = 300

SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
}
"""Durable; autovacuum has its defaults (a short trial only looks more often)."""

HOME = {"search_path": "milepost,public"}
PLANNER = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""For the claimer and the settler: a plan made while the table was small must not outlive that."""

STORAGE = {
    "job": {
        "autovacuum_vacuum_scale_factor": "0.01",
        "autovacuum_vacuum_threshold": "1000",
        "autovacuum_vacuum_cost_delay": "0",
    },
    "journal_default": {},
}
"""Set on the tables; the defaults would wait until a fifth of all jobs ever kept is dead."""

INSERT = """
INSERT INTO job (id, kind, state, move, priority, payload)
SELECT uuidv7(), 'noop', 'QUEUED', 'create', CASE WHEN n % 10 = 0 THEN 5 ELSE 0 END, '{}'::bytea
  FROM generate_series(1, $1::integer) AS n
"""

CLAIM = """
UPDATE job
   SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,
       worker_id = $1, started_at = coalesce(started_at, (SELECT milepost_now()))
 WHERE id = ANY (ARRAY({picked}))
RETURNING id, fence, priority, queued_seq
"""
"""An array, not a join: nothing but the primary key can then lead to the rows."""

CLAIM_PLAIN = CLAIM.format(
    picked="""
    SELECT id FROM job
     WHERE state = 'QUEUED' AND queue = 'default'
     ORDER BY priority DESC, queued_seq LIMIT $2 FOR UPDATE SKIP LOCKED"""
)

CLAIM_FLOOR = CLAIM.format(
    picked="""
    SELECT picked.id
      FROM unnest($3::smallint[], $4::bigint[]) AS level (priority, floor)
     CROSS JOIN LATERAL (
       SELECT id FROM job
        WHERE state = 'QUEUED' AND queue = 'default'
          AND priority = level.priority AND queued_seq >= level.floor
        ORDER BY queued_seq LIMIT $2 FOR UPDATE SKIP LOCKED) AS picked
     LIMIT $2"""
)

SETTLE = """
UPDATE job
   SET state = 'SUCCEEDED', move = 'succeed', version = version + 1,
       worker_id = NULL, finished_at = (SELECT milepost_now())
  FROM unnest($1::uuid[], $2::bigint[]) AS done (id, fence)
 WHERE job.id = done.id AND job.fence = done.fence AND job.state || '' = 'RUNNING'
RETURNING job.id
"""
"""The concatenation hides the state from the planner, which would otherwise walk job_held."""

OWNED = "SELECT id FROM job WHERE worker_id = $1 AND state = 'RUNNING'"

BOTTOM = """
EXPLAIN (ANALYZE, TIMING off, FORMAT JSON)
SELECT id FROM job WHERE state = 'QUEUED' AND queue = 'default'
 ORDER BY priority DESC, queued_seq LIMIT 1
"""

STATISTICS = """
SELECT n_dead_tup AS dead, autovacuum_count AS autovacuums,
       pg_relation_size('job_claim') AS claim_bytes, pg_relation_size('job_held') AS held_bytes,
       pg_total_relation_size('job') AS job_bytes,
       (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('journal'))::bigint
         AS journal_bytes
  FROM pg_stat_user_tables WHERE relname = 'job'
"""

PROOFS = {
    "every job succeeded": "SELECT count(*) FROM job WHERE state <> 'SUCCEEDED'",
    "no job was claimed twice": "SELECT count(*) FROM job WHERE fence <> 1 OR version <> 3",
    "three journal entries per job": """
        SELECT abs(count(*) - 3 * (SELECT count(*) FROM job)) + count(*) FILTER (
                 WHERE (seq, move, fence) NOT IN ((1, 'create', 0), (2, 'claim', 1),
                                                  (3, 'succeed', 1)))
          FROM journal""",
    "first in, first out": """
        SELECT count(*) FROM (
          SELECT started_at < lag(started_at) OVER earlier AS late
            FROM job WINDOW earlier AS (PARTITION BY priority ORDER BY queued_seq)) AS claims
         WHERE late""",
}
"""Each counts what contradicts it. One entry per job and move follows from the journal's key."""


class SoakError(Exception):
    """What was measured is not what was meant to be measured, or is wrong."""


@dataclass(frozen=True)
class Mode:
    """How claims look for work; `share` is the part of time that rescans on empty may take."""

    name: str
    floor: bool
    share: float = RESCAN_SHARE


MODES = {
    "floor": Mode("floor", floor=True),
    "plain": Mode("plain", floor=False),
    "eager": Mode("eager", floor=True, share=1.0),
}


@dataclass
class Window:
    """What one mode did in one stretch of time."""

    phase: str
    mode: str
    stage: str
    start: float
    seconds: float = 0.0
    produced: int = 0
    claimed: int = 0
    settled: int = 0
    empty: int = 0
    dead: int = 0
    autovacuums: int = 0
    claim_bytes: int = 0
    held_bytes: int = 0
    job_bytes: int = 0
    journal_bytes: int = 0
    bottom_pages: int = 0
    owned_ms: float = 0.0
    claims_ms: list[float] = field(default_factory=list, repr=False)
    rescans_ms: list[float] = field(default_factory=list, repr=False)
    backlog: list[int] = field(default_factory=list, repr=False)

    def row(self, rate: float | None) -> dict[str, object]:
        """Return it for JSON, lists as figures."""
        row = asdict(self)
        for name in ("claims_ms", "rescans_ms", "backlog"):
            del row[name]
        return row | figures([self], rate)


class Floor:
    """Where claims may start, per priority.

    It is the lowest number of the last claim, not one above the highest: commits do not come in the
    order of their numbers, and passing over one batch of dead entries is cheap. What still falls
    below it (a late commit, a claim rolled back) waits for the next rescan. A rescan that finds
    such a job lowers the floor to it, so that the claims that follow take its neighbours too.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._starts = dict.fromkeys(PRIORITIES, 0)
        self._rescanned = 0.0
        self._price = 0.0

    def starts(self) -> list[int]:
        """Return the number to start at, for each priority."""
        return list(self._starts.values())

    def overdue(self) -> bool:
        """Say whether a rescan is due, whatever it costs."""
        return monotonic() - self._rescanned >= RESCAN_EVERY

    def affordable(self) -> bool:
        """Say whether a rescan now would keep within its share of time."""
        return monotonic() - self._rescanned >= self._price * (1 / self._share - 1)

    def learn(self, rows: Sequence[asyncpg.Record]) -> None:
        """Start at the lowest number of this claim from now on."""
        lowest: dict[int, int] = {}
        for row in rows:
            level, number = row["priority"], row["queued_seq"]
            lowest[level] = min(number, lowest.get(level, number))
        self._starts.update(lowest)

    def rescanned(self, seconds: float) -> None:
        """Remember when, and what it cost."""
        self._rescanned, self._price = monotonic(), seconds


@dataclass(frozen=True)
class Connections:
    """One lane's own: nobody waits for another's statement."""

    producer: asyncpg.Connection
    claimer: asyncpg.Connection
    settler: asyncpg.Connection
    monitor: asyncpg.Connection
    holder: asyncpg.Connection


class Lane:
    """One mode at work in its database: a producer, a claimer and a settler."""

    def __init__(self, mode: Mode, connections: Connections) -> None:
        self.mode = mode
        self.connections = connections
        self.produced = self.claimed = self.settled = self.empty = 0
        self.claims_ms: list[float] = []
        self.rescans_ms: list[float] = []
        self._floor = Floor(mode.share)
        self._producing = True
        self._arrived = asyncio.Event()
        self._running: asyncio.Queue[Sequence[asyncpg.Record]] = asyncio.Queue(2)

    @property
    def backlog(self) -> int:
        """Jobs that are committed and due but not claimed."""
        return self.produced - self.claimed

    async def produce(self, number: int) -> None:
        """Submit jobs in one transaction and wake the claimer, as NOTIFY does."""
        await self.connections.producer.execute(INSERT, number)
        self.produced += number
        self._arrived.set()

    def finish(self) -> None:
        """Say that nothing more will come."""
        self._producing = False
        self._arrived.set()

    async def claim_all(self) -> None:
        """Claim for as long as there is or will be something."""
        while self._producing or self.backlog:
            self._arrived.clear()
            if rows := await self._claim():
                await self._running.put(rows)
            else:
                self.empty += 1
                await self._rest()
        await self._running.put([])

    async def settle_all(self) -> None:
        """Settle what was claimed, a batch at a time."""
        while rows := await self._running.get():
            ids, fences = zip(*sorted((row["id"], row["fence"]) for row in rows), strict=True)
            done = await self.connections.settler.fetch(SETTLE, ids, fences)
            if len(done) != len(rows):
                raise SoakError(f"{self.mode.name}: {len(rows) - len(done)} settlements refused")
            self.settled += len(done)

    async def _claim(self) -> Sequence[asyncpg.Record]:
        if not self.mode.floor:
            return await self._timed(CLAIM_PLAIN)
        if self._floor.overdue():
            return await self._rescan()
        rows = await self._from(self._floor.starts())
        if not rows and self._floor.affordable():
            rows = await self._rescan()
        return rows

    async def _rescan(self) -> Sequence[asyncpg.Record]:
        start = monotonic()
        rows = await self._from([0] * len(PRIORITIES))
        seconds = monotonic() - start
        self._floor.rescanned(seconds)
        self.rescans_ms.append(seconds * 1_000)
        return rows

    async def _from(self, starts: list[int]) -> Sequence[asyncpg.Record]:
        rows = await self._timed(CLAIM_FLOOR, PRIORITIES, starts)
        self._floor.learn(rows)
        return rows

    async def _timed(self, statement: str, *arguments: object) -> Sequence[asyncpg.Record]:
        start = monotonic()
        rows = await self.connections.claimer.fetch(statement, WORKER, BATCH, *arguments)
        if rows:
            self.claims_ms.append((monotonic() - start) * 1_000)
            self.claimed += len(rows)
        return rows

    async def _rest(self) -> None:
        try:
            async with asyncio.timeout(RESCAN_EVERY):
                await self._arrived.wait()
        except TimeoutError:
            pass


Feed = Callable[[Lane, float], Awaitable[None]]


async def feed_steadily(lane: Lane, until: float) -> None:
    """Keep the backlog up."""
    while monotonic() < until:
        if lane.backlog < BACKLOG:
            await lane.produce(SUBMIT)
        else:
            await asyncio.sleep(0.002)


def feed_at(rate: float) -> Feed:
    """Submit at a fixed rate, whether or not anybody keeps up."""

    async def feed(lane: Lane, until: float) -> None:
        start = monotonic()
        while (now := monotonic()) < until:
            if due := int((now - start) * rate) - lane.produced:
                await lane.produce(due)
            await asyncio.sleep(TICK)

    return feed


@asynccontextmanager
async def held_open(lane: Lane) -> AsyncIterator[None]:
    """Hold a transaction with a snapshot and a number of its own."""
    async with lane.connections.holder.transaction(isolation="repeatable_read"):
        await lane.connections.holder.fetch("SELECT pg_current_xact_id(), count(*) FROM clock")
        yield


@dataclass(frozen=True)
class Phase:
    """A stretch of work with named stages; one of them may hold a transaction open."""

    name: str
    seconds: float
    stages: dict[str, float]
    feed: Feed
    rate: float | None = None
    hold: str | None = None

    def stage(self, at: float) -> str:
        """Name the stage at that second."""
        for name, end in self.stages.items():
            if at < end:
                return name
        return list(self.stages)[-1]

    def edges(self) -> list[float]:
        """Cut each stage into windows."""
        edges = [0.0]
        for end in self.stages.values():
            start = edges[-1]
            number = max(1, round((end - start) / min(WINDOW, self.seconds / 12)))
            edges += [start + (end - start) * (n + 1) / number for n in range(number)]
        return edges

    def held(self) -> tuple[float, float] | None:
        """Return from when until when a transaction is held."""
        if self.hold is None:
            return None
        names = list(self.stages)
        before = names[names.index(self.hold) - 1]
        return self.stages[before], self.stages[self.hold]


def steady_phase(seconds: float) -> Phase:
    """Run flat out, in three parts to show a drift."""
    parts = {"first third": seconds / 3, "second third": seconds * 2 / 3, "last third": seconds}
    return Phase("steady", seconds, parts, feed_steadily)


def held_phase(seconds: float, hold: float, rate: float) -> Phase:
    """Run at a rate, a transaction held open in the middle."""
    start = (seconds - hold) / 2
    stages = {"before": start, "held": start + hold, "after": seconds}
    return Phase("held", seconds, stages, feed_at(rate), rate, "held")


@dataclass
class Outcome:
    """What a phase gave for one mode."""

    mode: str
    windows: list[Window]
    jobs: int
    drain_seconds: float
    bytes_per_job: float
    bytes_per_job_vacuumed: float
    job_bytes_per_job: float
    proofs: dict[str, int]


async def watch(
    lane: Lane, phase: Phase, start: float, tick: Callable[[float], None]
) -> list[Window]:
    """Take one window after the other until the phase is over."""
    windows = []
    for opens, closes in pairwise(phase.edges()):
        window = Window(phase.name, lane.mode.name, phase.stage((opens + closes) / 2), opens)
        before = (monotonic(), lane.produced, lane.claimed, lane.settled, lane.empty)
        lane.claims_ms, lane.rescans_ms = window.claims_ms, window.rescans_ms
        while (now := monotonic() - start) < closes:
            window.backlog.append(lane.backlog)
            tick(now)
            await asyncio.sleep(min(SAMPLE, closes - now))
        after = (monotonic(), lane.produced, lane.claimed, lane.settled, lane.empty)
        gone = [new - old for old, new in zip(before, after, strict=True)]
        window.seconds, window.produced, window.claimed, window.settled, window.empty = gone
        await inspect(lane, window)
        windows.append(window)
    return windows


async def inspect(lane: Lane, window: Window) -> None:
    """Ask the database how it fares."""
    monitor = lane.connections.monitor
    for name, value in (await monitor.fetchrow(STATISTICS)).items():
        setattr(window, name, value)
    (plan,) = json.loads(await monitor.fetchval(BOTTOM))
    window.bottom_pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
    start = monotonic()
    await monitor.fetch(OWNED, WORKER)
    window.owned_ms = (monotonic() - start) * 1_000


async def hold_transaction(lane: Lane, phase: Phase, start: float) -> None:
    """Hold a transaction open for its part of the phase."""
    if span := phase.held():
        await asyncio.sleep(start + span[0] - monotonic())
        async with held_open(lane):
            await asyncio.sleep(start + span[1] - monotonic())


async def produce_all(lane: Lane, phase: Phase, start: float) -> None:
    """Feed the lane until the phase is over."""
    await phase.feed(lane, start + phase.seconds)
    lane.finish()


async def work(lane: Lane, phase: Phase, tick: Callable[[float], None]) -> Outcome:
    """Run one lane through a phase, then prove that its jobs are in order."""
    monitor = lane.connections.monitor
    empty = await monitor.fetchrow(STATISTICS)
    start = monotonic()
    async with asyncio.timeout(phase.seconds + DRAIN_SECONDS), asyncio.TaskGroup() as tasks:
        tasks.create_task(produce_all(lane, phase, start))
        tasks.create_task(lane.claim_all())
        tasks.create_task(lane.settle_all())
        tasks.create_task(hold_transaction(lane, phase, start))
        windows = tasks.create_task(watch(lane, phase, start, tick))
    drained = monotonic() - start - phase.seconds
    full = await monitor.fetchrow(STATISTICS)
    await check_plans(lane)
    return Outcome(
        lane.mode.name,
        windows.result(),
        lane.settled,
        drained,
        growth(empty, full, "job_bytes", "journal_bytes") / lane.settled,
        growth(empty, await vacuumed(monitor), "job_bytes", "journal_bytes") / lane.settled,
        growth(empty, full, "job_bytes") / lane.settled,
        {proof: await monitor.fetchval(query) for proof, query in PROOFS.items()},
    )


async def vacuumed(connection: asyncpg.Connection) -> asyncpg.Record:
    """Return the statistics after a vacuum."""
    await connection.execute("VACUUM job")
    await connection.execute("VACUUM journal")
    return await connection.fetchrow(STATISTICS)


def growth(before: asyncpg.Record, after: asyncpg.Record, *names: str) -> int:
    """Return by how many bytes these grew."""
    return sum(after[name] - before[name] for name in names)


async def check_plans(lane: Lane) -> None:
    """Refuse figures of a claim or settlement that is not driven by its index."""
    claim = (
        (CLAIM_FLOOR, WORKER, BATCH, PRIORITIES, [0] * len(PRIORITIES))
        if lane.mode.floor
        else (CLAIM_PLAIN, WORKER, BATCH)
    )
    nobody = "00000000-0000-0000-0000-000000000000"
    await check_plan(lane.connections.claimer, ("job_claim", "job_pkey"), *claim)
    await check_plan(lane.connections.settler, ("job_pkey",), SETTLE, [nobody] * BATCH, [1] * BATCH)


async def check_plan(
    connection: asyncpg.Connection, indexes: Iterable[str], statement: str, *arguments: object
) -> None:
    """Look for exactly these indexes, and no sort, in the plan."""
    lines = await connection.fetch(f"EXPLAIN {statement}", *arguments)
    plan = "\n".join(line[0] for line in lines)
    used = {name for name in ("job_claim", "job_pkey", "job_held") if f" {name} " in plan}
    if used != set(indexes) or "Seq Scan" in plan or "Sort" in plan:
        raise SoakError(f"this plan is not the intended one:\n{plan}")


async def run_phase(
    server: PostgresServer, phase: Phase, modes: Sequence[Mode], tick: Callable[[float], None]
) -> list[Outcome]:
    """Run every mode at the same time, each in a fresh database."""
    async with AsyncExitStack() as stack:
        lanes = [await stack.enter_async_context(opened_lane(server, mode)) for mode in modes]
        async with asyncio.TaskGroup() as tasks:
            running_lanes = [tasks.create_task(work(lane, phase, tick)) for lane in lanes]
        return [lane.result() for lane in running_lanes]


@asynccontextmanager
async def opened_lane(server: PostgresServer, mode: Mode) -> AsyncIterator[Lane]:
    """Make a database for a mode and take it away again."""
    await administer(server, f"CREATE DATABASE {mode.name}")
    prepare(server, mode.name)
    async with AsyncExitStack() as stack:
        opened = [
            await asyncpg.connect(server.url(mode.name), server_settings={**HOME, **settings})
            for settings in ({}, PLANNER, PLANNER, {}, {})
        ]
        for connection in opened:
            stack.push_async_callback(connection.close)
        yield Lane(mode, Connections(*opened))
    await administer(server, f"DROP DATABASE {mode.name}")


async def administer(server: PostgresServer, command: str) -> None:
    """Run one command outside the databases that are measured."""
    connection = await asyncpg.connect(server.url())
    await connection.execute(command)
    await connection.close()


def prepare(server: PostgresServer, database: str) -> None:
    """Lay out the schema and set the tables' storage parameters."""
    driver = open_driver(StoreUrl.parse(server.url(database)))
    migrate(driver)
    for table, parameters in STORAGE.items():
        if parameters:
            settings = ", ".join(f"{name} = {value}" for name, value in parameters.items())
            driver.script(f"ALTER TABLE {table} SET ({settings})")
    driver.close()


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value below which that part of them lies."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else 0.0


def figures(windows: Sequence[Window], rate: float | None) -> dict[str, float]:
    """Condense windows into what the table shows."""
    seconds = sum(window.seconds for window in windows)
    claims = [ms for window in windows for ms in window.claims_ms]
    rescans = [ms for window in windows for ms in window.rescans_ms]
    settled = sum(window.settled for window in windows) / seconds
    sustained = max(quantile(window.backlog, 0.9) for window in windows)
    return {
        "jobs_per_s": settled,
        "claims_per_s": len(claims) / seconds,
        "claim_p50_ms": quantile(claims, 0.5),
        "claim_p99_ms": quantile(claims, 0.99),
        "rescan_p50_ms": quantile(rescans, 0.5),
        "rescan_share": sum(rescans) / 1_000 / seconds,
        "backlog_sustained": sustained,
        "backlog_sustained_s": sustained / (rate or settled or 1),
        "backlog_peak": max(max(window.backlog) for window in windows),
        "bottom_pages_max": max(window.bottom_pages for window in windows),
        "owned_max_ms": max(window.owned_ms for window in windows),
        "dead_max": max(window.dead for window in windows),
        "claim_index_kb": windows[-1].claim_bytes / 1_024,
        "autovacuums_total": windows[-1].autovacuums,
    }


LABELS = {
    "jobs_per_s": ("jobs finished /s", ",.0f"),
    "claims_per_s": ("claims /s", ",.0f"),
    "claim_p50_ms": ("claim p50, ms", ",.1f"),
    "claim_p99_ms": ("claim p99, ms", ",.1f"),
    "rescan_p50_ms": ("rescan p50, ms", ",.1f"),
    "rescan_share": ("time spent on rescans", ".1%"),
    "backlog_sustained": ("backlog, sustained (jobs)", ",.0f"),
    "backlog_sustained_s": ("backlog, sustained (s of work)", ",.2f"),
    "backlog_peak": ("backlog, peak (jobs)", ",.0f"),
    "bottom_pages_max": ("pages read to the first job, max", ",.0f"),
    "owned_max_ms": ("reading a worker's jobs, max ms", ",.1f"),
    "dead_max": ("dead rows of job, max", ",.0f"),
    "claim_index_kb": ("job_claim at the end, KiB", ",.0f"),
    "autovacuums_total": ("autovacuums of job so far", ",.0f"),
}


def summaries(phase: Phase, outcome: Outcome) -> dict[str, dict[str, float]]:
    """Condense each stage."""
    return {
        stage: figures([w for w in outcome.windows if w.stage == stage], phase.rate)
        for stage in phase.stages
    }


def table(phase: Phase, outcomes: Sequence[Outcome]) -> Table:
    """Lay the modes side by side, stage by stage."""
    shown = Table(title=f"Phase: {phase.name}, {phase.seconds / 60:g} minutes")
    shown.add_column("")
    columns = []
    for stage in phase.stages:
        for outcome in outcomes:
            shown.add_column(f"{stage}\n{outcome.mode}", justify="right")
            columns.append(summaries(phase, outcome)[stage])
    for name, (label, form) in LABELS.items():
        shown.add_row(label, *(format(column[name], form) for column in columns))
    return shown


def totals(outcomes: Sequence[Outcome]) -> Table:
    """Show what is measured over a whole phase."""
    shown = Table()
    shown.add_column("whole phase")
    for outcome in outcomes:
        shown.add_column(outcome.mode, justify="right")
    for label, values in {
        "jobs": [f"{o.jobs:,}" for o in outcomes],
        "seconds to drain at the end": [f"{o.drain_seconds:.1f}" for o in outcomes],
        "bytes per job, all": [f"{o.bytes_per_job:,.0f}" for o in outcomes],
        "  of these table job and its indexes": [f"{o.job_bytes_per_job:,.0f}" for o in outcomes],
        "bytes per job, after VACUUM": [f"{o.bytes_per_job_vacuumed:,.0f}" for o in outcomes],
    }.items():
        shown.add_row(label, *values)
    return shown


@dataclass(frozen=True)
class Verdict:
    """One line of judgement; `binding` ones decide the exit code."""

    good: bool
    text: str
    binding: bool = True


def proved(phase: Phase, outcomes: Sequence[Outcome]) -> Iterator[Verdict]:
    """Judge whether the jobs are in order."""
    for outcome in outcomes:
        broken = [f"{name}: {count:,} not" for name, count in outcome.proofs.items() if count]
        text = "; ".join(broken) or f"{', '.join(outcome.proofs)} ({outcome.jobs:,} jobs)"
        yield Verdict(not broken, f"{phase.name}, {outcome.mode}: {text}")


def judged_steady(outcomes: Sequence[Outcome], phase: Phase) -> Iterator[Verdict]:
    """Say whether throughput kept up; what fades depends on the machine, so it binds nothing."""
    for outcome in outcomes:
        first, *_, last = summaries(phase, outcome).values()
        ratio = last["jobs_per_s"] / first["jobs_per_s"]
        text = f"the last third ran at {ratio:.2f} of the first third's rate"
        yield Verdict(ratio >= 0.8, f"steady, {outcome.mode}: {text}", binding=False)


def judged_held(outcomes: Sequence[Outcome], phase: Phase) -> Iterator[Verdict]:
    """Say whether a backlog built up while the transaction was held.

    It did if the backlog was above the line for more than a tenth of some window. A single stalled
    write is no build-up; it shows as the peak.
    """
    line = phase.rate or 0
    for outcome in outcomes:
        stages = summaries(phase, outcome)
        before, held = stages["before"], stages["held"]
        text = (
            f"backlog while held {held['backlog_sustained']:,.0f} jobs "
            f"({held['backlog_sustained_s']:.2f} s of work), peak {held['backlog_peak']:,}; "
            f"claim p50 {before['claim_p50_ms']:.1f} -> {held['claim_p50_ms']:.1f} ms, "
            f"p99 {before['claim_p99_ms']:.1f} -> {held['claim_p99_ms']:.1f} ms"
        )
        good = held["backlog_sustained"] <= line
        yield Verdict(good, f"held, {outcome.mode}: {text}", binding=outcome.mode == "floor")
        offered = sum(w.produced for w in outcome.windows) / sum(w.seconds for w in outcome.windows)
        if offered < line * 0.98:
            yield Verdict(False, f"held, {outcome.mode}: only {offered:,.0f} jobs/s were submitted")


def verdicts(phase: Phase, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Judge a phase."""
    judge = judged_steady if phase.hold is None else judged_held
    return [*proved(phase, outcomes), *judge(outcomes, phase)]


def report(console: Console, phase: Phase, outcomes: Sequence[Outcome]) -> list[Verdict]:
    """Print a phase's tables and verdicts."""
    console.print(table(phase, outcomes))
    console.print(totals(outcomes))
    lines = verdicts(phase, outcomes)
    for line in lines:
        mark = "ok  " if line.good else "FAIL" if line.binding else "note"
        console.print(f"{mark} {line.text}", markup=False, highlight=False)
    return lines


def record(
    phase: Phase, outcomes: Sequence[Outcome], lines: Sequence[Verdict]
) -> dict[str, object]:
    """Return a phase for JSON."""
    return {
        "phase": phase.name,
        "seconds": phase.seconds,
        "rate": phase.rate,
        "outcomes": [
            asdict(outcome)
            | {
                "windows": [window.row(phase.rate) for window in outcome.windows],
                "stages": summaries(phase, outcome),
            }
            for outcome in outcomes
        ],
        "verdicts": [asdict(line) for line in lines],
    }


@contextmanager
def progress(phase: Phase) -> Iterator[Callable[[float], None]]:
    """Show on a terminal how far a phase is."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task: TaskID = bar.add_task(phase.name, total=phase.seconds)
        yield lambda now: bar.update(task, completed=now)


def naptime(phases: Iterable[Phase]) -> int:
    """Let autovacuum look once a minute, its default, or ten times in a short trial."""
    return max(1, min(60, round(min(phase.seconds for phase in phases) / 10)))


async def soak(
    server: PostgresServer, phases: Sequence[Phase], modes: Sequence[Mode], console: Console
) -> tuple[list[dict[str, object]], bool]:
    """Run the phases one after the other; say whether all that binds is good."""
    records, good = [], True
    for phase in phases:
        with progress(phase) as tick:
            outcomes = await run_phase(server, phase, modes, tick)
        lines = report(console, phase, outcomes)
        records.append(record(phase, outcomes, lines))
        good = good and all(line.good for line in lines if line.binding)
    return records, good


def on_server(
    phases: Sequence[Phase], modes: Sequence[Mode], console: Console
) -> tuple[list[dict[str, object]], bool]:
    """Run it all on a server that is stopped whatever happens."""
    settings = SERVER | {"autovacuum_naptime": f"{naptime(phases)}s"}
    console.print(f"server: {settings}\nstorage: {STORAGE}", highlight=False)
    failure: BaseException | None = None
    with running("18", settings) as server:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(soak(server, phases, modes, console))
        except BaseException as error:  # noqa: BLE001 - raised again once the server is stopped
            failure = error
    raise failure


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description="Long runs.")
    parser.add_argument("--minutes", type=float, default=10, help="length of each phase")
    parser.add_argument("--rate", type=float, default=300, help="jobs/s per mode while held")
    parser.add_argument("--hold", type=float, default=5, help="minutes the transaction is open")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every window there")
    parser.add_argument("--phases", nargs="+", choices=("steady", "held"), help="default: both")
    parser.add_argument("--modes", nargs="+", choices=tuple(MODES), default=["floor", "plain"])
    options = parser.parse_args()
    if not 0 < options.hold < options.minutes:
        parser.error("--hold must be shorter than --minutes")
    return options


def main() -> int:
    """Run, report and return the exit code."""
    options = arguments()
    phases = [
        steady_phase(options.minutes * 60),
        held_phase(options.minutes * 60, options.hold * 60, options.rate),
    ]
    chosen = [phase for phase in phases if not options.phases or phase.name in options.phases]
    console = Console(width=None if sys.stdout.isatty() else 140)
    records, good = on_server(chosen, [MODES[name] for name in options.modes], console)
    if options.json:
        options.json.write_text(json.dumps({"storage": STORAGE, "phases": records}, indent=1))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
