"""Milepost in the peers' harness: python -m benchmarks.adapter setup | single N | batch N | worker.

The same shape as the harness's own adapters: the no-op calls the probe, once a job. The store is
BENCH_MILEPOST_URL, the probe a counter in the file BENCH_PROBE.
"""

from milepost.bench.program import main

if __name__ == "__main__":
    main()
