"""What telemetry costs a drain: hooks, metrics, logs and OpenTelemetry, alone and together.

    python -m benchmarks.telemetry [--jobs 10000] [--rounds 5] [--only sqlite] [--plain] [--cpu]

Each round drains a fresh store with every kind of telemetry in turn, and with none before and after
each of them. A ratio is that of the rate to the mean of those two; told is the median of the
rounds. Every drain has a process of its own, and its jobs do nothing. Spans are exported to
nowhere: what is measured is their making, not a network. On a machine that does other things, too,
`--cpu` takes the worker's own CPU for the time: that of a database server is then left out.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import milepost as mp
from benchmarks.drain import Store, server

CHUNK = 1_000
POINTS = ("submit", "attempt", "step", "settle", "sweep")
GOALS = {"off again": 0.97, "hooks": 0.95, "metrics": 0.95}
"""The others are measured and published."""
KINDS = {
    "off again": (),
    "hooks": ("hooks",),
    "metrics": ("metrics",),
    "logs": ("logs",),
    "otel 1 %": ("otel", "0.01"),
    "otel": ("otel", "1"),
    "hooks, metrics, logs, otel 1 %": ("hooks", "metrics", "logs", "otel", "0.01"),
}


def instrument(app: mp.App, words: list[str]) -> None:
    if "hooks" in words:
        for point in POINTS:

            @app.hook(point)
            def nothing(_event):
                yield

    if "metrics" in words:
        from milepost.observe.metrics import WorkerMetrics

        app.metrics = WorkerMetrics()
    if "otel" in words:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

        class Nowhere(SpanExporter):
            def export(self, _spans):
                return SpanExportResult.SUCCESS

        provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(float(words[-1]))))
        provider.add_span_processor(BatchSpanProcessor(Nowhere()))
        app.opentelemetry(tracer_provider=provider)


def measure(url: str, jobs: int, words: list[str]) -> None:
    """Submit, drain, and print jobs per second."""
    app = mp.App(url)
    instrument(app, words)
    # Without an end, each of them is in a trace of its own, as submits of different callers are.
    if "plain" in words:

        @app.job
        def work(number: int) -> None: ...
    else:

        @app.job
        async def work(number: int) -> None: ...

    for first in range(0, jobs, CHUNK):
        work.submit_many([(number,) for number in range(first, min(first + CHUNK, jobs))])
    began, used = time.perf_counter(), time.process_time()
    ran = app.drain()
    seconds, used = time.perf_counter() - began, time.process_time() - used
    app.close()
    assert ran == jobs, ran
    print(json.dumps([jobs / seconds, jobs / used]), flush=True)
    os._exit(0)  # exporters need not flush


def drained(store: Store, jobs: int, words: tuple[str, ...], *, cpu: bool) -> float:
    level = "INFO" if "logs" in words else "WARNING"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.telemetry",
            "--measure",
            store.fresh(),
            str(jobs),
            *words,
        ],
        env={**os.environ, "MILEPOST_LOG_LEVEL": level},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if "logs" in words else None,
        text=True,
        check=True,
    )
    rate, by_cpu = json.loads(done.stdout)
    return by_cpu if cpu else rate


def compare(store: Store, jobs: int, rounds: int, *, plain: bool, cpu: bool) -> dict[str, float]:
    also = ("plain",) if plain else ()
    ratios: dict[str, list[float]] = {name: [] for name in KINDS}
    for number in range(rounds):
        before = drained(store, jobs, also, cpu=cpu)
        for name, words in KINDS.items():
            rate = drained(store, jobs, (*also, *words), cpu=cpu)
            after = drained(store, jobs, also, cpu=cpu)
            ratios[name].append(rate / statistics.mean((before, after)))
            print(
                f"  {store.dialect} {number + 1}/{rounds} {name}: {rate:,.0f}/s, off "
                f"{before:,.0f} and {after:,.0f}/s",
                flush=True,
            )
            before = after
    return {name: statistics.median(found) for name, found in ratios.items()}


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        url, jobs, *words = sys.argv[2:]
        measure(url, int(jobs), words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("postgres", "sqlite"))
    parser.add_argument("--plain", action="store_true", help="plain functions, in threads")
    parser.add_argument("--cpu", action="store_true", help="per second of the worker's CPU")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="these alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for name in set(KINDS) - set(options.kind or KINDS):
        del KINDS[name]
    report: dict[str, dict[str, float]] = {}
    with server() as admin, tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        for dialect in ("sqlite", "postgres"):
            if options.only in (None, dialect):
                store = Store(dialect, admin, Path(folder))
                how = {"plain": options.plain, "cpu": options.cpu}
                report[dialect] = compare(store, options.jobs, options.rounds, **how)
    kept = True
    for dialect, found in report.items():
        for name, ratio in found.items():
            goal = GOALS.get(name, 0.0)
            kept &= ratio >= goal
            told = f" (goal {goal}) {'ok' if ratio >= goal else 'MISSED'}" if goal else ""
            print(f"{dialect}: {name} / off = {ratio:.3f}{told}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
