"""What limits cost: drains of jobs with 10,000 keys and of the same jobs without, in turns.

    python -m benchmarks.limits [--jobs 20000] [--rounds 5] [--keys 10000] [--processes 1 4]

Each drain has a fresh database, and each process as many slots as claims gain from: jobs under
limits are not claimed ahead, so that with fewer slots their claims are smaller. The time is that
from the first start of a job to the last end, by the store's clock. Next to it stands the processor
time of workers and server, which depends less on the host's mood. Then how long a claim takes that
finds 100,000 blocked jobs and nothing else.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import milepost as mp
from benchmarks.revisions import pid_of, processor_seconds, server_seconds
from milepost.bench.program import CONCURRENCY
from milepost.store import limits, workers
from milepost.worker.limited import LimitedLine
from tests.support.databases import _create_database
from tests.support.servers import PostgresServer, binaries, running

MOST = 5
BLOCKED = 100_000
CLAIMS = 60
LOOK_SECONDS = 0.5
"""How often the benchmark asks whether all are done: ten times as often took 3 us a job."""
SETTINGS = {"fsync": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}


Drain = tuple[float, float, float]
"""Jobs per second, and microseconds of processor time a job: of workers, and of the server."""


def program(url: str | None = None) -> tuple[mp.App, Any, Any]:
    """Declare the same job without a limit, and with one."""
    made = mp.App(url)

    @made.job()
    async def free(key: str) -> None: ...

    @made.job(limit=mp.Limit(MOST, key="key"))
    async def limited(key: str) -> None: ...

    return made, free, limited


app, _, _ = program()
"""What workers run."""


def drain(
    url: str, postmaster: int | None, *, keyed: bool, jobs_: int, keys: int, processes: int
) -> Drain:
    """Drain so many jobs; answer with jobs per second, and microseconds a job of both sides."""
    made, free, limited = program(url)
    chance = random.Random(1)
    job = limited if keyed else free
    job.submit_many([(f"k{chance.randrange(keys)}",) for _ in range(jobs_)])
    command = [sys.executable, "-m", "milepost.cli", "worker", "benchmarks.limits:app"]
    given = {"MILEPOST_DATABASE_URL": url, "MILEPOST_CONCURRENCY": str(CONCURRENCY)}
    silent = subprocess.DEVNULL
    made.queues.pause("default")
    fleet = [
        subprocess.Popen(command, env={**os.environ, **given}, stdout=silent, stderr=silent)
        for _ in range(processes)
    ]
    while sum(worker.state == "IDLE" for worker in made.workers.list()) < processes:
        time.sleep(0.05)
    before = _processor_seconds(fleet, postmaster)
    made.queues.resume("default")
    while made.counts().get("default", {}).get("SUCCEEDED", 0) < jobs_:
        time.sleep(LOOK_SECONDS)
    after = _processor_seconds(fleet, postmaster)
    for worker in fleet:
        worker.terminate()
    for worker in fleet:
        worker.wait(30)
    begun, ended = _span(made)
    made.close()
    worked, served = ((end - start) * 1e6 / jobs_ for start, end in zip(before, after, strict=True))
    return jobs_ / (ended - begun), worked, served


def _processor_seconds(
    fleet: list[subprocess.Popen[bytes]], postmaster: int | None
) -> tuple[float, float]:
    return sum(processor_seconds(worker.pid) for worker in fleet), server_seconds(postmaster)


def _span(made: mp.App) -> tuple[float, float]:
    url = made.client.url
    query = "SELECT min(started_at), max(finished_at) FROM job"
    if url.can.file:
        import sqlite3

        [(first, last)] = sqlite3.connect(url.target).execute(query).fetchall()
        return first / 1e6, last / 1e6
    import psycopg

    with psycopg.connect(url.target) as connection:
        row = connection.execute(query.replace("job", f"{url.schema}.job")).fetchone()
    assert row is not None
    return row[0].timestamp(), row[1].timestamp()


def blocked(url: str) -> float:
    """Block 100,000 jobs of one key; answer with the median milliseconds of a claim."""
    made, _, limited = program(url)
    for _ in range(10):
        limited.submit_many([("one",)] * (BLOCKED // 10))
    run = made.client.run
    run(workers.register, workers.NewWorker(id="w", lease_us=10**10))
    line, took = LimitedLine(), []
    for _ in range(CLAIMS):
        line.floors.know(["default"])
        places, reach = line.line(time.monotonic()), line.reach(100)
        began = time.perf_counter()
        claims, look = run(limits.claim, worker_id="w", line=places, most=100, reach=reach)
        took.append(time.perf_counter() - began)
        line.looked(claims, look, reach, began=0, ended=0)
    made.close()
    return statistics.median(took[10:]) * 1000


@contextmanager
def server_and_stores() -> Iterator[tuple[int, dict[str, Any]]]:
    """Start a durable server, and make fresh databases on it and in files."""
    with (
        tempfile.TemporaryDirectory(prefix="milepost-limits-") as folder,
        running(max(binaries(), key=int), SETTINGS) as server,
    ):
        numbers = iter(range(1_000_000))
        yield (
            pid_of(server),
            {
                "postgres": lambda: _fresh(server, next(numbers)),
                "sqlite": lambda: f"sqlite:///{folder}/{next(numbers)}.db",
            },
        )


def _fresh(server: PostgresServer, number: int) -> str:
    _create_database(server.url(), f"limits{number}", None)
    return server.url(f"limits{number}")


def compared(plain: list[Drain], keyed: list[Drain]) -> dict[str, Any]:
    """Compare drains without a limit and with one, round by round."""
    ratios = [k[0] / p[0] for p, k in zip(plain, keyed, strict=True)]
    costs = [sum(k[1:]) / sum(p[1:]) for p, k in zip(plain, keyed, strict=True)]
    found: dict[str, Any] = {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "processor time": round(statistics.median(costs), 3),
    }
    for name, drains in (("unlimited", plain), ("limited", keyed)):
        rate, worked, served = (statistics.median(column) for column in zip(*drains, strict=True))
        found[name] = f"{rate:.0f}/s, worker {worked:.1f} us, server {served:.1f} us"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--json")
    asked = parser.parse_args()
    found: dict[str, Any] = {}
    with server_and_stores() as (postmaster, fresh):
        sides = [("postgres", number) for number in asked.processes] + [("sqlite", 1)]
        drains: dict[Any, list[Drain]] = {}
        for _ in range(asked.rounds):
            for store, processes in sides:
                pid = postmaster if store == "postgres" else None
                for keyed in (False, True):
                    size = {"jobs_": asked.jobs, "keys": asked.keys, "processes": processes}
                    one = drain(fresh[store](), pid, keyed=keyed, **size)
                    drains.setdefault((store, processes, keyed), []).append(one)
        for store, processes in sides:
            name = f"{store}, {processes} process{'es' if processes > 1 else ''}"
            found[name] = compared(*(drains[store, processes, keyed] for keyed in (False, True)))
            print(name, found[name], flush=True)
        for store, make in fresh.items():
            found[f"{store}, empty claim behind 100,000, ms"] = round(blocked(make()), 2)
            print(store, "empty claim", found[f"{store}, empty claim behind 100,000, ms"], "ms")
    if asked.json:
        Path(asked.json).write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
