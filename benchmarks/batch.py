"""Batches beside plain jobs: chunks per second, cost per chunk, and how soon a gate lets go.

    python -m benchmarks.batch [--chunks 100000] [--store URL]

One worker process, warm: it has done a small run and some plain jobs before it is measured. A
batch of N chunks has three steps, the second gated, and a reducer; the plain drain is of N no-ops
that wait in a paused queue until all are there. Of small sizes the middle of several runs counts.
What a chunk costs is told twice: as time, which for a small run is mostly waiting for one commit
after the other, and as processor time of the worker and of PostgreSQL. Many small runs started
together wait for nothing but the processor, like a large one. On a server of its own unless a
store's address is given.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import milepost as mp
from milepost.client import new_id
from milepost.lifecycle import RUN
from milepost.records import NewJob, NewRun, NewStep, Template
from milepost.store import fanin, runs
from tests.support.servers import running

URL = os.environ.get("BENCH_MILEPOST_URL", "sqlite:///bench-batch.db")
app = mp.App(URL)
chunks = app.batch("chunks", params=int)
small = app.batch("small")


@app.job(queue="plain")
async def noop(number: int) -> int:
    return number


@chunks.step
def find(params: int) -> Iterator[int]:
    yield from range(params // 3)


@chunks.step
async def load(number: int) -> int:
    return number


@chunks.step(gated=True)
async def index(number: int) -> int:
    return number


@chunks.step
async def check(number: int) -> int:
    return number


@chunks.reduce
def total(numbers: Iterable[int]) -> int:
    return sum(1 for _ in numbers)


@small.step
async def begin() -> int:
    return 1


@small.step(gated=True)
async def end(number: int) -> None:
    del number


GATES = """
SELECT extract(epoch FROM first.at - gate.at) * 1000
  FROM journal gate
  JOIN run ON run.id = gate.subject_id AND run.kind = 'small'
  CROSS JOIN LATERAL (SELECT min(claim.at) AS at FROM job
                        JOIN journal claim ON claim.subject_id = job.id AND claim.machine = 'job'
                                          AND claim.move = 'claim'
                       WHERE job.run_id = run.id AND job.step = 1
                         AND job.state <> 'RUNNING') first
 WHERE gate.machine = 'run' AND gate.move = 'advance'
 ORDER BY 1"""


@contextmanager
def worker() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.batch", "--worker"],
        env={**os.environ, "BENCH_MILEPOST_URL": URL},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


class Measured(NamedTuple):
    """What one of many took, in microseconds: of time, of the worker's CPU, of the server's."""

    time: float
    worker: float = 0.0
    server: float = 0.0

    @property
    def rate(self) -> float:
        return 1e6 / self.time

    def __str__(self) -> str:
        return f"{self.rate:>7,.0f} {self.time:>7.1f} {self.worker:>8.1f} {self.server:>8.1f}"


def middle(found: Iterable[Measured]) -> Measured:
    return Measured(*map(median, zip(*found, strict=True)))


def cpu_of(pid: int) -> float:
    """Read how many microseconds a process has computed, in all its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e3


def server_cpu() -> float:
    """Add up what the server's processes have computed, if it runs here; SQLite has none."""
    if _sqlite():
        return 0.0
    with suppress(OSError):
        parent = _postmaster()
        ended = sum(map(int, _stat(Path(f"/proc/{parent}"))[13:15]))
        total = ended * 1e6 / os.sysconf("SC_CLK_TCK")
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if _stat(process)[1] == parent:
                    total += cpu_of(int(process.name))
        return total
    return 0.0


@cache
def _postmaster() -> str:
    import psycopg

    with psycopg.connect(URL, options="-c search_path=milepost,public") as connection:
        return _stat(Path(f"/proc/{connection.info.backend_pid}"))[1]


def _stat(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()


@contextmanager
def computing(process: subprocess.Popen[bytes], count: int) -> Iterator[list[float]]:
    """Fill a list with the CPU of worker and server meanwhile, for each of so many."""
    worker_before, server_before = cpu_of(process.pid), server_cpu()
    spent: list[float] = []
    yield spent
    spent.append((cpu_of(process.pid) - worker_before) / count)
    spent.append((server_cpu() - server_before) / count)


def plain(process: subprocess.Popen[bytes], count: int) -> Measured:
    app.queues.pause("plain")
    first = noop.submit(0)
    last = first
    for begin_at in range(1, count, 1000):
        [*_, last] = noop.submit_many([(0,)] * min(1000, count - begin_at))
    with computing(process, count) as spent:
        app.queues.resume("plain")
        while not _ended(last.id, last.id) or not _ended(first.id, last.id):
            rest(process)
    took = seconds("SELECT min(started_at), max(finished_at) FROM job WHERE id >= ", first.id)
    return Measured(took * 1e6 / count, *spent)


def rest(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError("the worker ended before its work")
    time.sleep(0.05)


def _ended(first: str, last: str) -> bool:
    """Tell whether none of these is open.

    All of them are looked at after the last one in line has ended: the look itself is measured, and
    walks over everything that was done.
    """
    looked = "SELECT 1 FROM job WHERE state IN ('QUEUED', 'RUNNING') AND id BETWEEN {} AND {}"
    return not rows(f"{looked} LIMIT 1", first, last)


def batch(process: subprocess.Popen[bytes], count: int, *, runs_of: int | None = None) -> Measured:
    """Run so many chunks: in one run, or in many that are started together."""
    size = runs_of or count
    with computing(process, count) as spent:
        started = [chunks.start(size) for _ in range(count // size)]
        for run in started:
            while app.client.run(runs.get, run.id).state not in RUN.terminal:
                rest(process)
    assert {run.refresh().report for run in started} == {size // 3}
    took = seconds("SELECT min(started_at), max(finished_at) FROM run WHERE id >= ", started[0].id)
    return Measured(took * 1e6 / count, *spent)


def gate_rate(count: int) -> float:
    """Open a gate that so many jobs wait at, with nobody to run them; answer with rows a second."""
    template = Template(kind="nobody", queue="nobody", run_id=new_id(), step=1, state="GATED")
    plan = [NewStep(number=n, name=f"{n}", kind="nobody", gated=n > 0) for n in (0, 1)]
    run_id = template.run_id
    app.client.run(runs.create, NewRun(id=run_id, kind="gate"), plan, [], hold=True)
    for begin_at in range(0, count, 1000):
        numbers = range(begin_at, min(begin_at + 1000, count))
        app.client.run(runs.add, run_id, [NewJob(new_id(), b"1", template, n) for n in numbers])
    began = time.perf_counter()
    app.client.run(runs.seal, run_id, actor="bench")
    opened = fanin.AT_ONCE
    while more := app.client.run(runs.open_gates, [run_id], actor="bench", most=1000):
        opened += more
    took = time.perf_counter() - began
    assert opened >= count, opened
    return count / took


def seconds(query: str, subject: str) -> float:
    """Measure by the store's own clock, from the first start to the last end."""
    [[began, ended]] = rows(f"{query}{{}}", subject)
    return (ended - began) / 1e6 if _sqlite() else (ended - began).total_seconds()


def rows(query: str, *given: str) -> list[tuple[Any, ...]]:
    """Ask the store itself; `{}` stands for what is given."""
    if _sqlite():
        with closing(sqlite3.connect(app.client.url.target)) as connection:
            return connection.execute(query.format(*"?" * len(given)), given).fetchall()
    return _connection().execute(query.format(*["%s"] * len(given)), given).fetchall()


@cache
def _connection() -> Any:
    """Keep a connection: the server's start of one takes as long as some hundred jobs."""
    import psycopg

    return psycopg.connect(URL, autocommit=True, options="-c search_path=milepost,public")


def _sqlite() -> bool:
    return app.client.url.dialect == "sqlite"


def gates(count: int) -> tuple[float, float]:
    """Start small gated runs one by one; answer with p50 and p99 from gate to first start."""
    import psycopg

    started = []
    for _ in range(count):
        started.append(small.start())
        time.sleep(0.01)
    for run in started:
        run.wait(60)
    with psycopg.connect(URL, options="-c search_path=milepost,public") as connection:
        found = [float(row[0]) for row in connection.execute(GATES)]
    return found[len(found) // 2], found[len(found) * 99 // 100]


HEAD = "                          a second      us  worker   server   (us of CPU)"


def measure(count: int) -> None:
    app.counts()
    with worker() as process:
        batch(process, 3_000)
        plain(process, 3_000)
        print(HEAD)
        for size, times in ((1_000, 5), (10_000, 3), (count, 1)):
            chunk = middle(batch(process, size) for _ in range(times))
            job = middle(plain(process, size) for _ in range(times))
            print(f"chunks of {size:>9,}      {chunk}")
            print(
                f"plain jobs, {size:>9,}    {job}   ratio {chunk.rate / job.rate:.2f}", flush=True
            )
        many = batch(process, count, runs_of=1_000)
        print(f"chunks of {count // 1_000:>4} x 1,000    {many}", flush=True)
        if not _sqlite():
            usual, late = gates(300)
            print(f"gate to first start, 300 small runs: p50 {usual:.1f} ms, p99 {late:.1f} ms")
    size = max(1_000, count // 3)
    print(f"a gate with {size:,} jobs behind it: {gate_rate(size):,.0f} rows/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--store")
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        app.run_worker(concurrency=1000)
    elif options.store or "BENCH_MILEPOST_URL" in os.environ:
        if options.store and options.store != URL:
            os.environ["BENCH_MILEPOST_URL"] = options.store
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.batch", *sys.argv[1:]])
        measure(options.chunks)
    else:
        with running("18", {"shared_buffers": "512MB", "max_wal_size": "4GB"}) as server:
            environment = {**os.environ, "BENCH_MILEPOST_URL": server.url()}
            command = [sys.executable, "-m", "benchmarks.batch", *sys.argv[1:]]
            sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
