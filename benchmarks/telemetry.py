"""What telemetry costs a drain: hooks, metrics, logs and OpenTelemetry, alone and together.

    python -m benchmarks.telemetry [--jobs 3000] [--rounds 15] [--only sqlite] [--plain]

Each round drains jobs that do nothing with every kind of telemetry in turn, each time just after a
drain with none or, every other round, just before one, in the same process and store. Spans that
wait to be exported are flushed before the next drain begins, which would else pay for them. Told
are medians of the ratios of each such pair: by the clock, and by the worker's CPU, which a machine
that does other things disturbs less (that of a database server is left out there). Log lines and
spans are written to nowhere: what is measured is their making.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

import milepost as mp
from benchmarks.drain import Store, server
from milepost.cli.logs import logging_as
from milepost.hooks import Hooks
from milepost.observe.metrics import WorkerMetrics
from milepost.observe.otel import instrument

POINTS = ("submit", "attempt", "step", "settle", "sweep")
GOALS = {"off": 0.97, "hooks": 0.95, "metrics": 0.95}
"""Ratios by CPU; the other kinds are measured and published."""
TOGETHER = "all, otel 1 %"


class Nowhere(SpanExporter):
    """Takes spans, and keeps none."""

    def export(self, _spans) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def empty(_event):
    yield


def add_hooks(app: mp.App) -> None:
    for point in POINTS:
        app.hook(point)(empty)


def add_otel(app: mp.App, share: float) -> TracerProvider:
    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(share)))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    instrument(app.client, provider, None)
    return provider


class Bench:
    """One app on one store, and the kinds of telemetry that it is drained with."""

    def __init__(self, url: str, jobs: int, *, plain: bool) -> None:
        self.app = app = mp.App(url)
        self._jobs = jobs

        def work(number: int) -> None: ...

        async def work_async(number: int) -> None: ...

        self._job = app.job(name="work")(work if plain else work_async)
        self.kinds: dict[str, Callable[[], AbstractContextManager[None]]] = {
            "off": nullcontext,
            "hooks": self._hooked(add_hooks),
            "metrics": self._counted,
            "logs": lambda: logging_as(app.settings),
            "otel 1 %": self._hooked(lambda app: add_otel(app, 0.01)),
            "otel": self._hooked(lambda app: add_otel(app, 1)),
            TOGETHER: self._together,
        }

    def _hooked(
        self, add: Callable[[mp.App], TracerProvider | None]
    ) -> Callable[[], AbstractContextManager[None]]:
        client, none = self.app.client, self.app.client.hooks
        client.hooks = some = Hooks()
        provider = add(self.app)
        client.hooks = none

        @contextmanager
        def on() -> Iterator[None]:
            client.hooks = some
            yield
            client.hooks = none
            if provider is not None:
                provider.force_flush()

        return on

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.app.metrics = WorkerMetrics()
        yield
        self.app.metrics = None

    @contextmanager
    def _together(self) -> Iterator[None]:
        def add(app: mp.App) -> TracerProvider:
            add_hooks(app)
            return add_otel(app, 0.01)

        with self._hooked(add)(), self._counted(), self.kinds["logs"]():
            yield

    def drained(self, name: str) -> tuple[float, float]:
        """Drain once; answer with the jobs per second, and per second of CPU."""
        with self.kinds[name]():
            self._job.submit_many([(number,) for number in range(self._jobs)])
            began, used = time.perf_counter(), time.process_time()
            ran = self.app.drain()
            seconds, used = time.perf_counter() - began, time.process_time() - used
        assert ran == self._jobs, ran
        return ran / seconds, ran / used

    def run(self, rounds: int) -> dict[str, tuple[float, float]]:
        self.drained("off")  # everything is loaded, and compiled
        pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in self.kinds}
        for number in range(rounds):
            for name, found in pairs.items():
                order = ("off", name) if number % 2 else (name, "off")
                first, second = map(self.drained, order)
                off, on = (first, second) if number % 2 else (second, first)
                found.append((on[0] / off[0], on[1] / off[1]))
        return {
            name: (statistics.median(r for r, _ in found), statistics.median(c for _, c in found))
            for name, found in pairs.items()
        }


def measured(url: str, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Measure in a process of its own, whose lines are not seen."""
    given = ["--jobs", str(options.jobs), "--rounds", str(options.rounds)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", *given, "--store", url]
        + ["--plain"] * options.plain,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=("postgres", "sqlite"))
    parser.add_argument("--plain", action="store_true", help="plain functions, in threads")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.store is not None:
        bench = Bench(options.store, options.jobs, plain=options.plain)
        print(json.dumps(bench.run(options.rounds)), flush=True)
        os._exit(0)  # exporters need not flush
    report = {}
    with server() as admin, tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        for dialect in ("sqlite", "postgres"):
            if options.only in (None, dialect):
                store = Store(dialect, admin, Path(folder))
                report[dialect] = measured(store.fresh(), options)
    kept = True
    for dialect, found in report.items():
        for name, (rate, cpu) in found.items():
            goal = GOALS.get(name, 0.0)
            kept &= cpu >= goal
            told = f" (goal {goal}) {'ok' if cpu >= goal else 'MISSED'}" if goal else ""
            print(f"{dialect}: {name} / off = {rate:.3f} by the clock, {cpu:.3f} by CPU{told}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
