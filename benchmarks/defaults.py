"""Drain no-ops with a worker's default settings and with tuned ones, in turn.

    python -m benchmarks.defaults [--jobs 20000] [--rounds 5] [--only sqlite] [--sizes 100 2500]

Each round drains a backlog once for every number of slots, async and plain, each on a fresh store;
figures are medians, and what counts are the ratios to the last size, the tuned one.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.drain import Store, drain, server
from milepost.bench.program import CONCURRENCY
from milepost.config import Settings

GOAL = 0.8
KINDS = {"async": "", "plain": "1"}


def compare(store: Store, jobs: int, rounds: int, sizes: list[int]) -> bool:
    """Print the rates of every size; tell whether the first keeps up with the last."""
    rates: dict[tuple[str, int], list[float]] = {}
    for number, (kind, plain) in itertools.product(range(rounds), KINDS.items()):
        for size in sizes if number % 2 else reversed(sizes):  # none is always the first
            rate, _ = drain(store.fresh(), jobs, BENCH_PLAIN=plain, BENCH_CONC=str(size))
            rates.setdefault((kind, size), []).append(rate)
            told = f"{store.dialect} {number + 1}/{rounds} {kind} {size}"
            print(f"  {told}: {rate:,.0f}/s", flush=True)
    kept = [_verdict(store.dialect, kind, rates, sizes) for kind in KINDS]
    return all(kept)


def _verdict(
    dialect: str, kind: str, rates: dict[tuple[str, int], list[float]], sizes: list[int]
) -> bool:
    tuned = rates[kind, sizes[-1]]
    for size in sizes:
        pairs = zip(rates[kind, size], tuned, strict=True)
        ratio = statistics.median(rate / other for rate, other in pairs)
        rate = statistics.median(rates[kind, size])
        print(f"{dialect} {kind} {size}: {rate:,.0f}/s, {ratio:.2f} of {sizes[-1]}")
    pairs = zip(rates[kind, sizes[0]], tuned, strict=True)
    return statistics.median(rate / other for rate, other in pairs) >= GOAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("postgres", "sqlite"))
    sizes = [Settings().concurrency, CONCURRENCY]
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes)
    options = parser.parse_args()
    kept = True
    with server() as admin, tempfile.TemporaryDirectory() as folder:
        for dialect in ("postgres", "sqlite"):
            if options.only in (None, dialect):
                store = Store(dialect, admin, Path(folder))
                kept &= compare(store, options.jobs, options.rounds, options.sizes)
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
