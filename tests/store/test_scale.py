"""Costs that must not grow with the store: a claim beside a million jobs, a million outputs."""

import json
import multiprocessing
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
import uuid_utils

from milepost import outcome
from milepost.address import StoreUrl
from milepost.outcome import Output
from milepost.records import NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import creation, fanin, jobs, outputs, runs, workers
from milepost.store.catalog import query
from milepost.store.connect import open_driver
from milepost.store.driver import Driver
from milepost.worker.settler import BATCH
from tests.support.databases import Backends, Database, Raw, everyday_names
from tests.support.prove import PROVING, size

POSTGRES = [name for name in everyday_names() if name.startswith("postgres")]
FINISHED, QUEUED, FEW = size(1_000_000), size(100_000), 1_000
OUTPUTS = 1_000_000 if PROVING else 30_000
CLAIMED = 100
LEASE_US = 24 * 3_600_000_000
TRANSACTION_SECONDS_MAX = 0.2
WATCHED_SECONDS = 30 if PROVING else 0.5

pytestmark = pytest.mark.prove


class Event(Protocol):
    def is_set(self) -> bool: ...


def new_id() -> str:
    return str(uuid_utils.uuid7())


def register(driver: Driver) -> None:
    driver.run(workers.register, workers.NewWorker(id="w", lease_us=LEASE_US))


# Claims beside a large past


@contextmanager
def untriggered(raw: Raw) -> Iterator[None]:
    """Write rows as they would stand after long use, quickly."""
    raw.execute("ALTER TABLE job DISABLE TRIGGER USER")
    yield
    raw.execute("ALTER TABLE job ENABLE TRIGGER USER")


def add(raw: Raw, state: str, count: int, *, first: int) -> None:
    # Ids in the order of time, as the engine makes them.
    raw.execute(
        "INSERT INTO job (id, kind, state, move, queue, payload)"
        " SELECT ('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, 'k', "
        f"'{state}', 'create', 'default', 'payload'"
        f" FROM generate_series({first}, {first + count - 1}) AS i"
    )


def buffers_per_claim(raw: Raw) -> float:
    """Count the pages that one claim touches, on average; nothing stays claimed."""
    text = query("job_claim", "postgres").format.encode()
    given = {
        "worker_id": "w",
        "queue": ["default"] * 10,
        "priority": list(range(9, -1, -1)),
        "floor": [0] * 10,
        "most": CLAIMED,
        "kinds": ["k 1"],
        "alone": False,
        "ahead": False,
        "timed": False,
    }
    connection: psycopg.Connection[Any] = raw.connection
    counted = []
    for _ in range(6):
        with connection.transaction(force_rollback=True):
            cursor = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text, given)
            [[found]] = cursor.fetchall()
        plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
        assert plan["Actual Rows"] == CLAIMED
        counted.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    # The first one also reads what every connection reads once.
    return min(counted[1:])


@pytest.mark.parametrize("backend", POSTGRES)
def test_a_claim_beside_a_large_past_and_a_long_queue_reads_as_little_as_before(
    backends: Backends, backend
):
    with backends.fresh(backend).raw() as raw:
        raw.execute(
            "INSERT INTO worker (id, state, move, lease_until)"
            " VALUES ('w', 'STARTUP', 'boot', now() + interval '1 day')"
        )
        with untriggered(raw):
            add(raw, "QUEUED", FEW, first=1)
        raw.execute("VACUUM ANALYZE job")
        before = buffers_per_claim(raw)

        with untriggered(raw):
            add(raw, "SUCCEEDED", FINISHED, first=FEW + 1)
            add(raw, "QUEUED", QUEUED - FEW, first=FEW + FINISHED + 1)
        never_analysed = buffers_per_claim(raw)
        raw.execute("VACUUM ANALYZE job")
        analysed = buffers_per_claim(raw)

    print(f"buffers of a claim of {CLAIMED}: {before}, then {never_analysed}, {analysed} analysed")
    assert never_analysed <= 1.5 * before
    assert analysed <= 1.5 * before


# Publishing beside other work


def produced(driver: Driver, raw: Raw, count: int) -> str:
    """End a job that has staged so many outputs; answer with its run's id."""
    run_id = new_id()
    steps = [
        NewStep(number=0, name="split", kind="split", queue="run", slots=16),
        NewStep(number=1, name="work", kind="work", queue="run", slots=16),
    ]
    first = NewJob(new_id(), b"", Template(kind="split", queue="run", run_id=run_id, step=0))
    driver.run(runs.create, NewRun(id=run_id, kind="batch"), steps, [first])
    [claim] = driver.run(jobs.claim, worker_id="w", line=jobs.lines(["run"]), most=1)
    driver.run(outputs.stage, claim, [(number, Output(1, b"output")) for number in range(10)])
    raw.execute(_STAGE[raw.dialect], {"id": claim.id, "fence": claim.fence, "count": count})
    settled = Settlement(claim, outcome.succeeded(staged=count))
    assert driver.run(jobs.settle, [settled], actor="w") == {claim.id}
    return run_id


_STAGE = {
    "postgres": (
        "INSERT INTO staged (producer_id, fence, seq, step, job_id, payload)"
        " SELECT :id::uuid, :fence::bigint, i, 1,"
        " ('018f0000-0000-7000-9000-' || lpad(to_hex(i), 12, '0'))::uuid, 'output'"
        " FROM generate_series(10, :count::bigint - 1) AS i"
    ),
    "sqlite": (
        "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count)"
        " INSERT INTO staged (producer_id, fence, seq, step, job_id, payload)"
        " SELECT :id, :fence, i, 1, printf('018f0000-0000-7000-9000-%012x', i), x'00' FROM n"
    ),
}


def claim_on_and_on(driver: Driver, stop: Event, told: Path) -> None:
    """Create, claim and settle single jobs; write down how long each claim took."""
    driver.run(workers.register, workers.NewWorker(id="other", lease_us=LEASE_US))
    template, line = Template(kind="other", queue="other"), [jobs.Line("other")]
    with told.open("w") as out:
        while not stop.is_set():
            driver.run(creation.create, [NewJob(new_id(), b"1", template)])
            begun = time.perf_counter()
            [claim] = driver.run(jobs.claim, worker_id="other", line=line, most=1)
            out.write(f"{time.time()} {time.perf_counter() - begun}\n")
            driver.run(jobs.settle, [Settlement(claim, outcome.succeeded())], actor="other")


def claim_elsewhere(url: str, stop: Event, told: Path) -> None:
    driver = open_driver(StoreUrl.parse(url))
    claim_on_and_on(driver, stop, told)
    driver.close()


@contextmanager
def another_process(database: Database, told: Path) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=claim_elsewhere, args=(database.url, stop, told))
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(30)
    assert process.exitcode == 0


@contextmanager
def another_thread(driver: Driver, told: Path) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=claim_on_and_on, args=(driver, stop, told))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)


def p99(told: Path, since: float, until: float) -> float:
    pairs = (line.split() for line in told.read_text().splitlines())
    taken = sorted(float(took) for at, took in pairs if since <= float(at) <= until)
    assert len(taken) >= 50, "too few claims to speak of a percentile"
    return taken[len(taken) * 99 // 100]


def published_in_batches(driver: Driver, run_id: str) -> tuple[list[float], int, int]:
    """Publish everything; answer with the transactions' seconds, and memory early and late."""
    taken: list[float] = []
    early = 0
    tracemalloc.start()
    try:
        while True:
            begun = time.perf_counter()
            count = driver.run(outputs.publish, [run_id], actor="m", most=BATCH)
            taken.append(time.perf_counter() - begun)
            if len(taken) == 20:
                early = tracemalloc.get_traced_memory()[1]
            if count == 0:
                break
        late = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return taken, early, late


@dataclass(frozen=True)
class Published:
    seconds: list[float]
    early: int
    late: int
    before: tuple[float, float]
    during: tuple[float, float]

    def check(self, driver: Driver, run_id: str, raw: Raw) -> None:
        [_, step] = driver.run(fanin.steps, run_id)
        assert step.open == OUTPUTS
        assert raw.value("SELECT count(*) FROM staged") == 0
        assert self.late <= self.early + 1024**2, "memory grows with what was published"

    def check_times(self, told: Path) -> tuple[float, float]:
        """Assert that transactions are short; answer with the claims' p99 before and during."""
        before, during = p99(told, *self.before), p99(told, *self.during)
        median, longest = self.seconds[len(self.seconds) // 2], self.seconds[-1]
        print(
            f"{OUTPUTS:,} outputs in {self.during[1] - self.during[0]:.1f} s; transactions of "
            f"{BATCH}: median {median * 1000:.0f} ms, longest {longest * 1000:.0f} ms; memory "
            f"{self.early / 1024:.0f} then {self.late / 1024:.0f} KiB; claims' p99 "
            f"{before * 1000:.1f} then {during * 1000:.1f} ms"
        )
        assert longest <= TRANSACTION_SECONDS_MAX
        return before, during


def watched(driver: Driver, run_id: str, told: Path) -> Published:
    """Publish while somebody else claims: first a while without, then with the publishing."""
    while not told.exists():
        time.sleep(0.05)
    since = time.time()
    time.sleep(WATCHED_SECONDS)
    begun = time.time()
    seconds, early, late = published_in_batches(driver, run_id)
    ended = time.time()
    time.sleep(0.2)
    return Published(
        seconds=sorted(seconds),
        early=early,
        late=late,
        before=(since, begun),
        during=(begun, ended),
    )


@pytest.mark.parametrize("backend", POSTGRES)
def test_publishing_a_million_outputs_takes_little_at_a_time_and_slows_no_claim(
    backends: Backends, backend, tmp_path: Path
):
    database = backends.fresh(backend)
    told = tmp_path / "claims"
    with database.driver() as driver, database.raw() as raw:
        register(driver)
        run_id = produced(driver, raw, OUTPUTS)
        with another_process(database, told):
            published = watched(driver, run_id, told)
        published.check(driver, run_id, raw)
    if PROVING:
        before, during = published.check_times(told)
        assert during <= 2 * before


def test_publishing_on_sqlite_makes_a_claim_wait_for_a_short_transaction_at_most(
    backends: Backends, tmp_path: Path
):
    # One writer at a time: a claim waits for the batch that is being written, and no longer.
    database = backends.fresh("sqlite")
    told = tmp_path / "claims"
    with database.driver() as driver, database.raw() as raw:
        register(driver)
        run_id = produced(driver, raw, OUTPUTS)
        with another_thread(driver, told):
            published = watched(driver, run_id, told)
        published.check(driver, run_id, raw)
    if PROVING:
        _, during = published.check_times(told)
        assert during <= TRANSACTION_SECONDS_MAX
