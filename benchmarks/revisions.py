"""Processor time per job of this tree and of earlier commits, side by side, on both stores.

    python -m benchmarks.revisions 492b888 [REVISION …] [--jobs 20000] [--rounds 15] [--json FILE]

Every round drains a backlog once with each commit, in turn, each on a fresh store of the same
server. What is counted is processor time, of the worker and of the server's processes, from the
first job's start until every job's end is stored: it depends less on the host's mood than a rate
does. A ratio above 1 means that this tree needs more; its spread is the middle half of the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.drain import PROBE, Store
from milepost.bench import probe
from tests.support.servers import PostgresServer, running

HERE = "this tree"
TICKS = os.sysconf("SC_CLK_TCK")
SETTLED = "SELECT count(*) FROM job WHERE state = 'SUCCEEDED'"
ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def checked_out(revisions: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Lay out each commit in a folder of its own, and this tree as it is."""
    with tempfile.TemporaryDirectory(prefix="milepost-revisions-") as folder:
        trees = {HERE: ROOT}
        for revision in revisions:
            tree = Path(folder) / revision
            tree.mkdir()
            archive = subprocess.run(
                ["git", "-C", str(ROOT), "archive", revision, "src", "benchmarks"],
                check=True,
                capture_output=True,
            )
            subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
            trees[revision] = tree
        for tree in trees.values():
            subprocess.run(
                [sys.executable, "-m", "compileall", "-q", str(tree / "src")], check=True
            )
        yield trees


def start(tree: Path, url: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "BENCH_MILEPOST_URL": url,
        "BENCH_PROBE": str(PROBE),
        "PYTHONPATH": str(tree / "src"),
    }
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.adapter", *arguments]
    return subprocess.Popen(command, env=environment, cwd=tree, stdout=subprocess.DEVNULL)


def finish(process: subprocess.Popen[bytes]) -> None:
    if process.wait(300):
        raise RuntimeError(f"the adapter failed: {process.args}")


def processor_seconds(pid: int, *, children: bool = False) -> float:
    """Read the time that a process has used; with `children`, also the children it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / TICKS


def server_seconds(postmaster: int | None) -> float:
    """Read the time that a server has used: its own, its live children's, its former children's."""
    if postmaster is None:
        return 0.0
    found = processor_seconds(postmaster, children=True)
    tasks = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text()
    for child in map(int, tasks.split()):
        try:
            found += processor_seconds(child)
        except OSError:
            continue
    return found


def settled(url: str) -> int:
    """Count the jobs that ended well; older trees keep their tables elsewhere."""
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            return connection.execute(SETTLED).fetchone()[0]
    import psycopg

    with psycopg.connect(url, options="-c search_path=milepost,public") as link:
        row = link.execute(SETTLED).fetchone()
        return row[0] if row else 0


def drain(tree: Path, url: str, jobs: int, postmaster: int | None) -> tuple[float, float]:
    """Drain a backlog; return the worker's and the server's microseconds per job."""
    finish(start(tree, url, "setup"))
    finish(start(tree, url, "batch", str(jobs)))
    probe.reset()
    worker = start(tree, url, "worker")
    try:
        until = time.monotonic() + 300
        while not (begun := probe.read()[0]) and time.monotonic() < until:
            time.sleep(0.005)
        before = processor_seconds(worker.pid), server_seconds(postmaster)
        while probe.read()[0] <= jobs and time.monotonic() < until:  # one more opens the store
            time.sleep(0.02)
        while settled(url) <= jobs:
            if time.monotonic() > until:
                raise RuntimeError("the backlog was not drained in time")
            time.sleep(0.02)
        after = processor_seconds(worker.pid), server_seconds(postmaster)
    finally:
        worker.terminate()
        worker.wait(60)
    worked, served = (
        (end - start) * 1e6 / (jobs - begun) for start, end in zip(before, after, strict=True)
    )
    return worked, served


def compare(
    trees: dict[str, Path], store: Store, postmaster: int | None, *, jobs: int, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in trees}
    order = list(trees)
    for number in range(rounds):
        for name in order:
            found[name].append(drain(trees[name], store.fresh(), jobs, postmaster))
            worked, served = found[name][-1]
            print(
                f"  {store.dialect} {number + 1}/{rounds} {name}: "
                f"worker {worked:.1f} us, server {served:.1f} us",
                flush=True,
            )
        order.reverse()  # nobody is always second
    return found


def tell(dialect: str, found: dict[str, list[tuple[float, float]]]) -> None:
    ours = [sum(both) for both in found[HERE]]
    for name, rounds in found.items():
        theirs = [sum(both) for both in rounds]
        middle = statistics.median(theirs)
        worked, served = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{dialect}: {name}: {middle:.1f} us ({worked:.1f} worker, {served:.1f} server)")
        if name != HERE:
            ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
            low, _, high = statistics.quantiles(ratios, n=4)
            print(
                f"{dialect}: {HERE} / {name} = {statistics.median(ours) / middle:.3f}, "
                f"middle half of {len(ratios)} rounds {low:.3f} to {high:.3f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("revisions", nargs="+")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=("postgres", "sqlite"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, dict[str, list[tuple[float, float]]]] = {}
    settings = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
    with (
        checked_out(options.revisions) as trees,
        running("18", settings) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        for dialect in ("postgres", "sqlite"):
            if options.only in (None, dialect):
                store = Store(dialect, server.url(), Path(folder))
                postmaster = pid_of(server) if dialect == "postgres" else None
                report[dialect] = compare(
                    trees, store, postmaster, jobs=options.jobs, rounds=options.rounds
                )
    for dialect, found in report.items():
        tell(dialect, found)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


def pid_of(server: PostgresServer) -> int:
    return int((server.folder / "data" / "postmaster.pid").read_text().split()[0])


if __name__ == "__main__":
    main()
