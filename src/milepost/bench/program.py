"""The measured processes: python -m milepost.bench.program worker | raw.

`worker` runs no-ops that call the probe, `raw` is the loop by hand; BENCH_MILEPOST_URL names the
store.
"""

import gc
import json
import os
import sys
import time
from typing import Any

from milepost.address import StoreUrl
from milepost.app import App
from milepost.bench import probe, raw
from milepost.job import Job

STORE = "BENCH_MILEPOST_URL"
CONCURRENCY = 3_000
GIVE_UP_SECONDS = 10.0


async def noop(t0: int = 0) -> int:
    """Count the call and give its argument back."""
    probe.hit(t0)
    return t0


def noop_plain(t0: int = 0) -> int:
    """Do the same in a thread."""
    probe.hit(t0)
    return t0


class Program:
    """An app with two no-ops, and the ways to submit one of them."""

    def __init__(self, url: str, *, plain: bool = False) -> None:
        self.app = App(url)
        awaited, threaded = self.app.job()(noop), self.app.job()(noop_plain)
        self.job: Job[..., ..., int, Any] = threaded if plain else awaited

    @classmethod
    def from_environment(cls) -> "Program":
        """Make the program of a measured process."""
        return cls(os.environ[STORE], plain=bool(os.environ.get("BENCH_PLAIN")))

    def single(self, count: int) -> None:
        """Submit one after the other."""
        for _ in range(count):
            self.job.submit(0)

    def batch(self, count: int) -> None:
        """Submit a thousand at a time."""
        for start in range(0, count, raw.BATCH):
            self.job.submit_many([(0,)] * min(raw.BATCH, count - start))

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

    def work(self) -> None:
        """Run a worker until SIGTERM."""
        gc.freeze()  # as `milepost worker` does
        self.app.run_worker(concurrency=int(os.environ.get("BENCH_CONC", str(CONCURRENCY))))


def percentiles(values: list[float]) -> dict[str, float]:
    """Read the 50th, 95th and 99th off sorted values."""
    last = len(values) - 1
    return {f"p{p}": round(values[min(last, len(values) * p // 100)], 2) for p in (50, 95, 99)}


def _drain_by_hand() -> None:
    def ready() -> None:
        print("ready", flush=True)  # noqa: T201 - the process that started us waits for it
        sys.stdin.readline()

    done = raw.drain(StoreUrl.parse(os.environ[STORE]), ready)
    print(json.dumps(done))  # noqa: T201 - our answer


if __name__ == "__main__":
    if sys.argv[1] == "raw":
        _drain_by_hand()
    else:
        Program.from_environment().work()
