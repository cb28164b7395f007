"""Milepost in the peers' harness: python -m benchmarks.adapter setup | single N | batch N | worker.

The same shape as the harness's own adapters: the no-op calls the probe, once a job. The store is
BENCH_MILEPOST_URL, the probe a counter in the file BENCH_PROBE.
"""

import asyncio
import json
import os
import sys
import time

import milepost as mp
from benchmarks.probe import hit

app = mp.App(os.environ["BENCH_MILEPOST_URL"])


@app.job(retries=0)
async def noop(t0: int = 0) -> int:
    hit(t0)
    return t0


@app.job(retries=0)
def noop_plain(t0: int = 0) -> int:
    hit(t0)
    return t0


JOB = noop_plain if os.environ.get("BENCH_PLAIN") else noop


def main() -> None:
    command, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    if command == "setup":
        app.counts()
    elif command == "worker":
        app.run_worker(concurrency=int(os.environ.get("BENCH_CONC", "2000")))
    elif command == "latency":
        print(json.dumps(latency(count)))
    else:
        JOB.submit(0)
        began = time.perf_counter()
        submit(command, count)
        print(json.dumps({"n": count, "rate": count / (time.perf_counter() - began)}))


def submit(command: str, count: int) -> None:
    if command == "single":
        for _ in range(count):
            JOB.submit(0)
    elif command == "batch":
        for start in range(0, count, 1000):
            JOB.submit_many([(0,)] * min(1000, count - start))
    elif command == "gathered":
        asyncio.run(gathered(count))


async def gathered(count: int) -> None:
    """Submit from a hundred tasks at once."""

    async def some() -> None:
        for _ in range(count // 100):
            await JOB.submit_async(0)

    await asyncio.gather(*(some() for _ in range(100)))
    await app.client.close_async()


def latency(count: int) -> dict[str, float]:
    from benchmarks.probe import latencies

    base = len(latencies())
    for done in range(1, count + 1):
        JOB.submit(time.monotonic_ns())
        give_up = time.monotonic() + 10
        while len(latencies()) < base + done and time.monotonic() < give_up:
            time.sleep(0.0005)
        time.sleep(0.01 + 0.02 * (done % 7) / 7)
    seen = sorted(value / 1e6 for value in latencies()[base:])
    return {f"p{p}": round(seen[min(len(seen) - 1, len(seen) * p // 100)], 2) for p in (50, 95, 99)}


if __name__ == "__main__":
    main()
