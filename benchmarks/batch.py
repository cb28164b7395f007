"""Batches beside plain jobs: chunks per second, cost per chunk, and how soon a gate lets go.

    python -m benchmarks.batch [--chunks 100000] [--store URL]

One worker process, warm: it has done a small run and some plain jobs before it is measured. A
batch of N chunks has three steps, the second gated, and a reducer; the plain drain is of N no-ops
that wait in a paused queue until all are there. Of small sizes the middle of several runs counts.
On a server of its own unless a store's address is given.
"""

import argparse
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

import milepost as mp
from milepost.client import new_id
from milepost.lifecycle import RUN
from milepost.records import NewJob, NewRun, NewStep, Template
from milepost.store import fanin, runs
from milepost.testing.servers import running

URL = os.environ.get("BENCH_MILEPOST_URL", "sqlite:///bench-batch.db")
app = mp.App(URL)
chunks = app.batch("chunks", params=int)
small = app.batch("small")


@app.job(retries=0, queue="plain")
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
                       WHERE job.run_id = run.id AND job.step = 1) first
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


def plain_rate(process: subprocess.Popen[bytes], count: int) -> float:
    app.queues.pause("plain")
    first = noop.submit(0)
    for begin_at in range(1, count, 1000):
        noop.submit_many([(0,)] * min(1000, count - begin_at))
    app.queues.resume("plain")
    while not _ended(first.id):
        rest(process)
    return count / seconds(
        "SELECT min(started_at), max(finished_at) FROM job WHERE id >= ", first.id
    )


def rest(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        raise RuntimeError("the worker ended before its work")
    time.sleep(0.05)


def _ended(first: str) -> bool:
    """Look whether anything is open by reading one row: what counts them all would be measured."""
    looked = "SELECT 1 FROM job WHERE state IN ('QUEUED', 'RUNNING') AND id >= {} LIMIT 1"
    return not rows(looked, first)


def batch_rate(process: subprocess.Popen[bytes], count: int) -> float:
    run = chunks.start(count)
    while app.client.run(runs.get, run.id).state not in RUN.terminal:
        rest(process)
    assert run.refresh().report == count // 3, run.report
    return count / seconds("SELECT started_at, finished_at FROM run WHERE id = ", run.id)


def gate_rate(count: int) -> float:
    """Open a gate that so many jobs wait at, with nobody to run them; answer with rows a second."""
    template = Template(kind="nobody", queue="nobody", run_id=new_id(), step=1, state="GATED")
    plan = [NewStep(number=n, name=f"{n}", kind="nobody", gated=n > 0) for n in (0, 1)]
    run_id = template.run_id
    app.client.run(runs.create, NewRun(id=run_id, kind="gate"), plan, [], hold=True)
    for begin_at in range(0, count, 1000):
        born = range(begin_at, min(begin_at + 1000, count))
        app.client.run(runs.add, run_id, [NewJob(new_id(), b"1", template, n) for n in born])
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
            return connection.execute(query.format("?"), given).fetchall()
    import psycopg

    with psycopg.connect(URL) as connection:
        return connection.execute(query.format("%s"), given).fetchall()


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
    with psycopg.connect(URL) as connection:
        found = [float(row[0]) for row in connection.execute(GATES)]
    return found[len(found) // 2], found[len(found) * 99 // 100]


def measure(count: int) -> None:
    app.counts()
    with worker() as process:
        batch_rate(process, 3_000)
        plain_rate(process, 3_000)
        for size, times in ((1_000, 5), (10_000, 3), (count, 1)):
            rate = median(batch_rate(process, size) for _ in range(times))
            plain = median(plain_rate(process, size) for _ in range(times))
            print(
                f"{size:>9,} chunks: {rate:,.0f}/s, {1e6 / rate:.0f} us each; "
                f"plain {plain:,.0f}/s; ratio {rate / plain:.2f}",
                flush=True,
            )
        if not _sqlite():
            middle, late = gates(300)
            print(f"gate to first start, 300 small runs: p50 {middle:.1f} ms, p99 {late:.1f} ms")
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
