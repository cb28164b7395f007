"""Milepost in the peers' harness: python -m benchmarks.adapter COMMAND [COUNT].

The same shape as the harness's own adapters: the no-op calls the probe, once a job. `setup` makes
the store; `single`, `batch` and `gathered` submit; `worker` works; `latency` submits to a resting
worker. The store is BENCH_MILEPOST_URL, the probe a counter in the file BENCH_PROBE. Figures are
JSON on stdout.
"""

import asyncio
import json
import sys
import time

from milepost.bench.program import Program, percentiles


def gathered(program: Program, count: int) -> None:
    """Submit from a hundred tasks at once."""

    async def some() -> None:
        for _ in range(count // 100):
            await program.job.submit_async(0)

    async def everybody() -> None:
        await asyncio.gather(*(some() for _ in range(100)))
        await program.app.client.close_async()

    asyncio.run(everybody())


SUBMITS = {"single": Program.single, "batch": Program.batch, "gathered": gathered}


def main() -> None:
    command, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    program = Program.from_environment()
    if command == "setup":
        program.app.counts()
    elif command == "worker":
        program.work()
    elif command == "latency":
        print(json.dumps(percentiles(program.latency(count))))
    else:
        program.job.submit(0)  # the first one opens the store
        began = time.perf_counter()
        SUBMITS[command](program, count)
        rate = count / (time.perf_counter() - began)
        print(json.dumps({"n": count, "rate": rate}))


if __name__ == "__main__":
    main()
