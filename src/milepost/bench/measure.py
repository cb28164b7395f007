"""The rounds: the engine and the loop by hand in turn, each in a fresh store; medians count."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from milepost.address import StoreUrl
from milepost.bench import probe, raw
from milepost.bench.program import STORE, Program, percentiles
from milepost.bench.scratch import fresh
from milepost.errors import Unavailable
from milepost.store.jobs import any_open

RATES = ("submit", "bulk", "drain", "drain_2", "drain_sync")
ROUNDS = 3
TURNS = 4
"""How often submitting changes sides within a round."""
IMPORTS = 5
STAGES = ROUNDS * 7 + 2
LOOK_SECONDS = 0.005
START_SECONDS = 60.0
IMPORTING = "import time; t = time.perf_counter(); import milepost; print(time.perf_counter() - t)"

Processes = list["subprocess.Popen[str]"]


def bench(
    store: StoreUrl, jobs: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Measure everything; `progress` gets the name of the next stage, STAGES times."""
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in RATES}
    sizes: list[float] = []
    with tempfile.TemporaryDirectory(prefix="milepost-bench-") as folder, _probing(folder):
        for number in range(1, ROUNDS + 1):
            for name, rate, limit in _round(store, jobs, number, sizes, progress):
                rates[name].append((rate, limit))
        progress("pickup")
        pickup = _pickup(store, max(20, min(jobs // 20, 300)))
        progress("import")
        imported = statistics.median(_import_seconds() for _ in range(IMPORTS))
    return {
        "store": str(store),
        "jobs": jobs,
        **{name: _compared(pairs) for name, pairs in rates.items()},
        "pickup_ms": pickup,
        "rss_mib": round(statistics.median(sizes), 1),
        "import_ms": round(imported * 1000, 1),
    }


@contextmanager
def _probing(folder: str) -> Iterator[None]:
    before = os.environ.get(probe.VARIABLE)
    os.environ[probe.VARIABLE] = f"{folder}/probe"
    probe.reset()
    try:
        yield
    finally:
        del os.environ[probe.VARIABLE]
        if before is not None:
            os.environ[probe.VARIABLE] = before


def _round(
    store: StoreUrl, jobs: int, number: int, sizes: list[float], progress: Callable[[str], None]
) -> Iterator[tuple[str, float, float]]:
    """Measure each once: its name, our rate, and that of the loop by hand."""

    def tell(name: str) -> None:
        progress(f"{name}, round {number} of {ROUNDS}")

    tell("submit")
    few = max(100, min(jobs // 10, 2_000))
    yield "submit", *_submits(store, few, Program.single, batch=1)
    tell("bulk")
    yield "bulk", *_submits(store, jobs, Program.batch, batch=raw.BATCH)
    tell("one loop by hand")
    limit = _drain_by_hand(store, jobs, 1)
    tell("drain by one worker")
    rate, size = _drain(store, jobs)
    sizes.append(size)
    yield "drain", rate, limit
    tell("drain by one worker, plain functions")
    yield "drain_sync", _drain(store, jobs, plain=True)[0], limit
    tell("two loops by hand")
    limit = _drain_by_hand(store, jobs, 2)
    tell("drain by two workers")
    yield "drain_2", _drain(store, jobs, workers=2)[0], limit


def _compared(pairs: list[tuple[float, float]]) -> dict[str, float]:
    rate, limit = (statistics.median(values) for values in zip(*pairs, strict=True))
    return {
        "jobs_per_s": round(rate, 1),
        "limit_jobs_per_s": round(limit, 1),
        "ratio": round(rate / limit, 3),
    }


def _submits(
    store: StoreUrl, count: int, submit: Callable[[Program, int], None], *, batch: int
) -> tuple[float, float]:
    share = -(-count // TURNS)
    ours = limit = 0.0
    with fresh(store) as mine, fresh(store) as theirs:
        program = Program(mine.address)
        program.job.submit(0)  # the first one opens the store
        for _ in range(TURNS):
            limit += raw.insert(theirs, share, batch)
            began = time.perf_counter()
            submit(program, share)
            ours += time.perf_counter() - began
        program.app.close()
    return share * TURNS / ours, share * TURNS / limit


# Processes


def _started(store: StoreUrl, command: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-W", "ignore", "-m", "milepost.bench.program", command],
        env={**os.environ, STORE: store.address, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def _workers(store: StoreUrl, count: int, **environment: str) -> Iterator[Processes]:
    with ExitStack() as stack:
        processes = []
        for _ in range(count):
            process = stack.enter_context(_started(store, "worker", **environment))
            stack.callback(process.terminate)
            processes.append(process)
        yield processes


def _drain(
    store: StoreUrl, jobs: int, *, workers: int = 1, plain: bool = False
) -> tuple[float, float]:
    """Let workers drain a backlog; jobs in a second, and a worker's resident memory in MiB.

    The queue rests until every worker is there, so that they begin together.
    """
    environment = {"MILEPOST_POLL_MAX": "0.02", "BENCH_PLAIN": "1" if plain else ""}
    with fresh(store) as made:
        program = Program(made.address, plain=plain)
        app = program.app
        program.batch(jobs)
        app.queues.pause("default")
        probe.reset()
        with _workers(made, workers, **environment) as processes:
            until = time.monotonic() + START_SECONDS + jobs / 100
            _await("workers at rest", workers, lambda: _resting(program), processes, until)
            app.queues.resume("default")
            _await("calls of jobs", jobs, lambda: probe.read()[0], processes, until)
            _await("stores done", 1, lambda: not app.client.run(any_open), processes, until)
            ended = time.monotonic_ns()
            size = statistics.median(_resident_mib(process.pid) for process in processes)
        app.close()
    return jobs / ((ended - probe.read()[1]) / 1e9), size


def _resting(program: Program) -> int:
    return sum(worker.state == "IDLE" for worker in program.app.workers.list())


def _await(
    name: str, wanted: int, look: Callable[[], int], processes: Processes, until: float
) -> None:
    while (seen := look()) < wanted:
        if any(process.poll() is not None for process in processes):
            raise Unavailable("a worker of the benchmark ended early; its messages are above")
        if time.monotonic() > until:
            raise Unavailable(f"the benchmark timed out: {seen} of {wanted} {name}")
        time.sleep(LOOK_SECONDS)


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024
    told = subprocess.run(  # noqa: S603 - the process is ours
        ["ps", "-o", "rss=", "-p", str(pid)],  # noqa: S607 - wherever ps is
        capture_output=True,
        text=True,
        check=True,
    )
    return int(told.stdout) / 1024


def _drain_by_hand(store: StoreUrl, jobs: int, processes: int) -> float:
    with fresh(store) as made, ExitStack() as stack:
        raw.insert(made, jobs)
        loops = [stack.enter_context(_started(made, "raw")) for _ in range(processes)]
        for loop in loops:
            _line(loop)  # it is connected
        for loop in loops:
            print(file=loop.stdin, flush=True)
        answers: list[tuple[int, int, int]] = [json.loads(_line(loop)) for loop in loops]
    if (done := sum(count for count, _, _ in answers)) != jobs:
        raise Unavailable(f"the loops by hand did {done} of {jobs} jobs")
    began, ended = min(first for _, first, _ in answers), max(last for *_, last in answers)
    return jobs / ((ended - began) / 1e9)


def _line(process: "subprocess.Popen[str]") -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise Unavailable("a loop by hand ended early; its messages are above")
    return line


def _pickup(store: StoreUrl, count: int) -> dict[str, float]:
    with fresh(store) as made, fresh(store) as theirs:
        floor = sorted(seconds * 1000 for seconds in raw.floor(theirs, count))
        program = Program(made.address)
        probe.reset()
        with _workers(made, 1) as processes:
            until = time.monotonic() + START_SECONDS
            _await("workers at rest", 1, lambda: _resting(program), processes, until)
            taken = program.latency(count)
        program.app.close()
    return {**percentiles(taken), "floor_p50": percentiles(floor)["p50"]}


def _import_seconds() -> float:
    done = subprocess.run(  # noqa: S603 - ourselves
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True
    )
    return float(done.stdout)
