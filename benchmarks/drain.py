"""Drain, submit and pickup, side by side in one run: Milepost, raw SQL on its schema, and peers.

    eval "$(../shared/bench/setup.sh FOLDER pgqueuer huey)"
    python -m benchmarks.drain [--jobs 20000] [--rounds 5] [--json FILE] [--harness ../shared/bench]
    python -m benchmarks.drain --depth [--rounds 3]

Every round runs every contender once, in turn, each on a fresh database of the same server; the
figures are medians, and what counts are their ratios. A drain is N / (all N completions visible in
the store - first job's start). Without the peers' harness only Milepost and the raw loops run.
`--depth` compares a backlog of 10,000 jobs with one of 200,000.
"""

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from milepost.address import StoreUrl
from milepost.bench import probe, raw
from tests.support.servers import running

_folder = tempfile.TemporaryDirectory(prefix="milepost-bench-")  # goes with this process
PROBE = Path(os.environ.setdefault("BENCH_PROBE", f"{_folder.name}/probe"))

BATCH = 100
DEPTHS = (10_000, 200_000)
DEPTH_SHARE = 0.2
GOALS = {
    ("postgres", "milepost", "pgqueuer"): 2.0,
    ("postgres", "milepost", "raw"): 0.6,
    ("postgres", "milepost plain", "milepost"): 0.6,
    ("sqlite", "milepost", "huey"): 8.0,
    ("sqlite", "milepost", "raw"): 0.5,
    ("sqlite", "milepost plain", "milepost"): 0.6,
}


def adapter(url: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "benchmarks.adapter", *arguments],
        env={**os.environ, "BENCH_MILEPOST_URL": url, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen[str]) -> dict[str, float]:
    out, _ = process.communicate(timeout=300)
    if process.returncode:
        raise RuntimeError(f"the adapter failed: {process.args}")
    return json.loads(out) if out.strip() else {}


def connect(url: str) -> Callable[[str], int]:
    """Return a function that counts by a query."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        return lambda text: connection.execute(text).fetchone()[0]
    import psycopg

    link = psycopg.connect(url, autocommit=True, options="-c search_path=milepost,public")
    return lambda text: link.execute(text).fetchone()[0]


@contextmanager
def worker(url: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = adapter(url, "worker", **environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(40)


def drain(url: str, jobs: int, **environment: str) -> tuple[float, float]:
    """Drain a backlog with one worker process; return jobs/s and the worker's RSS in MiB."""
    answer(adapter(url, "setup"))
    answer(adapter(url, "batch", str(jobs), **environment))
    count = connect(url)
    probe.reset()
    with worker(url, **environment) as process:
        until = time.monotonic() + 120 + jobs / 1_000
        while probe.read()[0] < jobs and time.monotonic() < until:
            time.sleep(0.01)
        while count("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'") < jobs:
            if time.monotonic() > until:
                raise RuntimeError("the backlog was not drained in time")
            time.sleep(0.005)
        ended = time.monotonic_ns()
        rss = resident(process.pid)
    return jobs / ((ended - probe.read()[1]) / 1e9), rss


def resident(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def raw_drain(url: str, jobs: int) -> float:
    answer(adapter(url, "setup"))
    answer(adapter(url, "batch", str(jobs)))
    done, began, ended = raw.drain(StoreUrl.parse(url), lambda: None, BATCH)
    return done / ((ended - began) / 1e9)


class Peers:
    """The peers' harness, where it is at hand."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        import run_peers

        self._harness = run_peers

    def drain(self, peer: str, jobs: int, **environment: str) -> float:
        harness = self._harness
        harness.wipe()
        os.environ.update(environment)
        harness.call(peer, "setup")
        harness.call(peer, "batch", jobs, timeout=300)
        workers, _, rate = harness.drain(peer, jobs, limit=90)
        for process in workers:
            harness.stop_worker(process)
        return rate


class Store:
    """Hands out fresh stores, on the peers' own server where there is one."""

    def __init__(self, dialect: str, admin: str, folder: Path) -> None:
        self.dialect = dialect
        self._admin = admin
        self._folder = folder
        self._made = 0

    def fresh(self) -> str:
        self._made += 1
        if self.dialect == "sqlite":
            return f"sqlite:///{self._folder}/{os.getpid()}-{self._made}.db"
        import psycopg

        name = f"milepost_bench_{self._made}"
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute("CHECKPOINT")
        return urlsplit(self._admin)._replace(path=f"/{name}").geturl()


def contenders(store: Store, jobs: int, peers: Peers | None) -> dict[str, Callable[[], float]]:
    def milepost(**environment: str) -> float:
        rate, rss = drain(store.fresh(), jobs, **environment)
        print(f"    ({rss:.0f} MiB)", end="", flush=True)
        return rate

    found: dict[str, Callable[[], float]] = {
        "milepost": milepost,
        "milepost plain": lambda: milepost(BENCH_PLAIN="1"),
        "raw": lambda: raw_drain(store.fresh(), jobs),
    }
    if peers is not None and store.dialect == "postgres":
        for size in ("250", "1000"):
            found[f"pgqueuer {size}"] = lambda size=size: peers.drain(
                "pgqueuer", jobs, BENCH_CONC=size
            )
    if peers is not None and store.dialect == "sqlite":
        found["huey"] = lambda: peers.drain("huey-sqlite", min(jobs, 5000))
    return found


def compare(store: Store, jobs: int, rounds: int, peers: Peers | None) -> dict[str, float]:
    rates: dict[str, list[float]] = {}
    for number in range(rounds):
        for name, run in contenders(store, jobs, peers).items():
            os.environ.pop("BENCH_CONC", None)
            rates.setdefault(name, []).append(run())
            print(f"  {store.dialect} {number + 1}/{rounds} {name}: {rates[name][-1]:,.0f}/s")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    sizes = [value for name, value in medians.items() if name.startswith("pgqueuer")]
    return {**medians, **({"pgqueuer": max(sizes)} if sizes else {})}


def verdicts(dialect: str, medians: dict[str, float]) -> bool:
    kept = True
    for (where, ours, theirs), goal in GOALS.items():
        if where == dialect and theirs in medians:
            ratio = medians[ours] / medians[theirs]
            kept &= ratio >= goal
            word = "ok" if ratio >= goal else "MISSED"
            print(f"{dialect}: {ours} / {theirs} = {ratio:.2f} (goal {goal}) {word}")
    return kept


def compare_depths(store: Store, rounds: int) -> bool:
    """Drain a short and a long backlog in turn; tell whether both went at the same rate."""
    rates: dict[int, list[float]] = {depth: [] for depth in DEPTHS}
    for number in range(rounds):
        for depth, found in rates.items():
            found.append(drain(store.fresh(), depth)[0])
            print(f"  {store.dialect} {number + 1}/{rounds} {depth:,}: {found[-1]:,.0f}/s")
    short, long = (statistics.median(found) for found in rates.values())
    kept = abs(long / short - 1) <= DEPTH_SHARE
    word = "ok" if kept else "MISSED"
    print(
        f"{store.dialect}: {long:,.0f}/s of {DEPTHS[1]:,} / {short:,.0f}/s of {DEPTHS[0]:,}", end=""
    )
    print(f" = {long / short:.2f} (goal 1 ± {DEPTH_SHARE}) {word}")
    return kept


@contextmanager
def server() -> Iterator[str]:
    """Use the harness's server if it runs, else one of our own with durable settings."""
    if "BENCH_PG_URL" in os.environ:
        yield os.environ["BENCH_PG_URL"].rsplit("/", 1)[0] + "/postgres"
        return
    with running("18", {"shared_buffers": "512MB", "max_wal_size": "4GB"}) as own:
        yield own.url()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--harness", type=Path, default=Path("../shared/bench"))
    parser.add_argument("--only", choices=("postgres", "sqlite"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--depth", action="store_true")
    options = parser.parse_args()
    peers = Peers(options.harness) if "BENCH_VENVS" in os.environ else None
    report: dict[str, dict[str, float]] = {}
    kept = True
    with server() as admin, tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        for dialect in ("postgres", "sqlite"):
            if options.only in (None, dialect):
                store = Store(dialect, admin, Path(folder))
                if options.depth:
                    kept &= compare_depths(store, options.rounds)
                    continue
                report[dialect] = compare(store, options.jobs, options.rounds, peers)
    for dialect, medians in report.items():
        for name, rate in medians.items():
            print(f"{dialect}: {name}: {rate:,.0f}/s")
        kept &= verdicts(dialect, medians)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
