"""Claims under limits for minutes, while a transaction is held open: how their times grow.

    python -m benchmarks.limited_soak [--minutes 10] [--rate 300] [--keys 10000] [--queue]

Every claim and every settlement writes a new version of a job, and while somebody holds an old
snapshot vacuum may take none away. A claim under limits looks at the line, at the first jobs of
some keys, and counts the leases of keys: each of them by an index that keeps those dead entries.

Jobs arrive at a fixed rate, spread over keys; one key in ten gets half of them. With 10,000 keys
hardly any is blocked; with 200 some are, and p99 grows beyond the goal. A worker's memory
(`LimitedLine`) says where each claim looks; what it claimed is settled a moment later. The snapshot
is taken before the first job. Told are the claims' times by minute; the program fails if the last
minute's p99 is over 3 times the first's.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from pathlib import Path

import psycopg

from benchmarks.limits import program, server_and_stores
from milepost import outcome
from milepost.records import Claim
from milepost.store import jobs, limits, workers
from milepost.store.jobs import Settlement
from milepost.worker.limited import LimitedLine

WORKER = "soak"
TICK = 0.02
MOST = 100
HELD_TICKS = 10
"""A job is settled so many ticks after its claim."""
GOAL = 3.0
QUEUE_MOST = 100


@contextmanager
def old_snapshot(target: str):
    """Hold a transaction open that has a snapshot."""
    with psycopg.connect(target) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        yield


def submit(job, stopped: threading.Event, rate: float, keys: int) -> None:
    """Submit jobs at a rate until told to stop."""
    chance = random.Random(1)
    due = time.monotonic()
    while not stopped.wait(max(0.0, due - time.monotonic())):
        due += 0.1
        hot = max(1, keys // 10)
        some = [
            chance.randrange(hot if chance.random() < 0.5 else keys) for _ in range(int(rate / 10))
        ]
        job.submit_many([(f"k{key}",) for key in some])


class Claims:
    """Claims as a worker does, settles what it has claimed, and times the claims."""

    def __init__(self, app) -> None:
        self._run = app.client.run
        self._line = LimitedLine()
        self._held: deque[list[Claim]] = deque()
        self.minutes: list[list[float]] = []
        self.taken = 0
        self._run(workers.register, workers.NewWorker(id=WORKER, lease_us=10**10))

    def once(self) -> None:
        """Claim, and settle what was claimed a while ago."""
        line = self._line
        line.floors.know(["default"])
        began = time.monotonic()
        places, reach = line.line(began), line.reach(MOST)
        claims, look = self._run(
            limits.claim, worker_id=WORKER, line=places, most=MOST, reach=reach
        )
        ended = time.monotonic()
        self.minutes[-1].append((ended - began) * 1000)
        line.looked(claims, look, reach, began=began, ended=ended)
        self.taken += len(claims)
        self._held.append(claims)
        if len(self._held) > HELD_TICKS:
            self._settle(self._held.popleft())

    def _settle(self, claims: list[Claim]) -> None:
        good = outcome.succeeded()
        ended = [Settlement(claim, good) for claim in claims]
        self._run(jobs.settle, ended, actor=WORKER)
        self._line.free({(c.limit_key, c.queue, c.priority): None for c in claims if c.limit_key})


def soak(
    url: str, *, minutes: int, rate: float, keys: int, of_queue: bool
) -> list[dict[str, float]]:
    """Run for so many minutes; answer with the times of each."""
    app, free, limited = program(url)
    if of_queue:
        app.queue("default", most=QUEUE_MOST)
        limited = free
    claims, stopped, told = Claims(app), threading.Event(), []
    producer = threading.Thread(target=submit, args=(limited, stopped, rate, keys))
    with old_snapshot(app.client.url.target):
        producer.start()
        for minute in range(minutes):
            claims.minutes.append([])
            until = time.monotonic() + 60
            while (now := time.monotonic()) < until:
                claims.once()
                time.sleep(max(0.0, now + TICK - time.monotonic()))
            times = sorted(claims.minutes[-1])
            waiting = app.counts().get("default", {}).get("QUEUED", 0)
            told.append(
                {
                    "minute": minute + 1,
                    "claims": len(times),
                    "p50 ms": round(statistics.median(times), 2),
                    "p99 ms": round(times[int(len(times) * 0.99)], 2),
                    "taken": claims.taken,
                    "waiting": waiting,
                }
            )
            print(told[-1], flush=True)
        stopped.set()
        producer.join()
    app.close()
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--rate", type=float, default=300)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--queue", action="store_true", help="a limit of the queue, none of keys")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with server_and_stores() as (_, fresh):
        told = soak(
            fresh["postgres"](),
            minutes=asked.minutes,
            rate=asked.rate,
            keys=asked.keys,
            of_queue=asked.queue,
        )
    growth = told[-1]["p99 ms"] / told[0]["p99 ms"]
    print(f"the last minute's p99 is {growth:.2f} of the first's (goal {GOAL})")
    if asked.json:
        asked.json.write_text(json.dumps(told, indent=2))
    sys.exit(0 if growth <= GOAL else 1)


if __name__ == "__main__":
    main()
