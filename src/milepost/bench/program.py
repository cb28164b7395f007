"""What the measured processes run: python -m milepost.bench.program COMMAND [COUNT].

`setup` makes the store; `single`, `batch` and `gathered` submit; `worker` works; `latency` submits
to a resting worker; `raw` is the loop by hand. The store is BENCH_MILEPOST_URL, and every no-op
calls the probe.
"""

import asyncio
import gc
import json
import os
import sys
import time
from typing import Any

from milepost.app import App
from milepost.bench import probe, raw
from milepost.bench.probe import hit
from milepost.config import StoreUrl
from milepost.job import Job

STORE = "BENCH_MILEPOST_URL"
CONCURRENCY = 2_500
GIVE_UP_SECONDS = 10.0


async def noop(t0: int = 0) -> int:
    """Count the call and give its argument back."""
    hit(t0)
    return t0


def noop_plain(t0: int = 0) -> int:
    """Do the same in a thread."""
    hit(t0)
    return t0


class Program:
    """An app with two no-ops, and what is done with it."""

    def __init__(self, url: str, *, plain: bool = False) -> None:
        self.app = App(url)
        awaited, threaded = self.app.job(retries=0)(noop), self.app.job(retries=0)(noop_plain)
        self.job: Job[..., ..., int, Any] = threaded if plain else awaited

    def single(self, count: int) -> None:
        """Submit one after the other."""
        for _ in range(count):
            self.job.submit(0)

    def batch(self, count: int) -> None:
        """Submit a thousand at a time."""
        for start in range(0, count, raw.BATCH):
            self.job.submit_many([(0,)] * min(raw.BATCH, count - start))

    def gathered(self, count: int) -> None:
        """Submit from a hundred tasks at once."""

        async def some() -> None:
            for _ in range(count // 100):
                await self.job.submit_async(0)

        async def everybody() -> None:
            await asyncio.gather(*(some() for _ in range(100)))
            await self.app.client.close_async()

        asyncio.run(everybody())

    def latency(self, count: int) -> list[float]:
        """Submit to a worker that rests, again and again; in milliseconds until the handler ran."""
        base = len(probe.latencies())
        for done in range(1, count + 1):
            self.job.submit(time.monotonic_ns())
            give_up = time.monotonic() + GIVE_UP_SECONDS
            while len(probe.latencies()) < base + done and time.monotonic() < give_up:
                time.sleep(0.0005)
            time.sleep(raw.rest(done))
        return sorted(value / 1e6 for value in probe.latencies()[base:])


def percentiles(values: list[float]) -> dict[str, float]:
    """Read the 50th, 95th and 99th off sorted values."""
    last = len(values) - 1
    return {f"p{p}": round(values[min(last, len(values) * p // 100)], 2) for p in (50, 95, 99)}


def main() -> None:
    """Do what the command line asks; figures are JSON on stdout."""
    command, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0  # noqa: PLR2004
    if command == "raw":
        _raw()
        return
    program = Program(os.environ[STORE], plain=bool(os.environ.get("BENCH_PLAIN")))
    if command == "setup":
        program.app.counts()
    elif command == "worker":
        gc.freeze()  # as `milepost worker` does
        program.app.run_worker(concurrency=int(os.environ.get("BENCH_CONC", str(CONCURRENCY))))
    elif command == "latency":
        print(json.dumps(percentiles(program.latency(count))))  # noqa: T201 - our answer
    else:
        _timed(program, command, count)


def _timed(program: Program, command: str, count: int) -> None:
    program.job.submit(0)  # the first one opens the store
    began = time.perf_counter()
    getattr(program, command)(count)
    rate = count / (time.perf_counter() - began)
    print(json.dumps({"n": count, "rate": rate}))  # noqa: T201 - our answer


def _raw() -> None:
    def ready() -> None:
        print("ready", flush=True)  # noqa: T201 - whoever started us waits for it
        sys.stdin.readline()

    batch = int(os.environ.get("BENCH_BATCH", str(raw.BATCH)))
    done = raw.drain(StoreUrl.parse(os.environ[STORE]), ready, batch)
    print(json.dumps(done))  # noqa: T201 - our answer


if __name__ == "__main__":
    main()
