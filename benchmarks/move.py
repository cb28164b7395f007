"""How long `milepost move` takes, and how much memory.

    python -m benchmarks.move [--jobs 100000] [--rounds 3]

Nine tenths of the jobs have run, with three entries each in the journal; the rest wait. Files are
on the disk, and the server syncs.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import milepost as mp
from tests.support.databases import _create_database
from tests.support.servers import PostgresServer, binaries, running

ARGUMENT = "x" * 200
CHUNK = 10_000
DURABLE = {"fsync": "on", "synchronous_commit": "on"}
MEASURED = """
import resource, sys
from milepost.cli import main
try:
    main(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def fill(url: str, jobs: int) -> None:
    """Make a store of so many jobs; each has an argument and a tag."""
    app = mp.App(url)
    work = app.job(name="work")(_work).options(tags={"customer": "42"})
    for begin in range(0, jobs, CHUNK):
        work.submit_many([(ARGUMENT, n) for n in range(begin, min(jobs, begin + CHUNK))])
        if begin + CHUNK <= jobs * 0.9:
            app.drain()
    app.close()


async def _work(text: str, number: int) -> int:
    return number + len(text)


def moved(file: Path, server: PostgresServer, place: int) -> tuple[float, int, int]:
    """Move a copy of a store; answer with the seconds, the rows and the mebibytes of memory."""
    copy = file.with_name(f"copy{place}.db")
    shutil.copy(file, copy)
    _create_database(server.url(), f"moved{place}", None)
    command = [sys.executable, "-c", MEASURED, "move", "--json", "--from", f"sqlite:///{copy}"]
    command += ["--to", server.url(f"moved{place}")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    copy.unlink()
    told, memory = map(json.loads, done.stdout.splitlines())
    return told["seconds"], told["rows"], memory // 1024


def main() -> None:
    """Measure on every server at hand, and print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milepost-move-") as folder:
        file = Path(folder) / "store.db"
        fill(f"sqlite:///{file}", asked.jobs)
        print(f"{asked.jobs:,} jobs, {file.stat().st_size / 2**20:.0f} MiB")
        for version in sorted(binaries(), key=int, reverse=True):
            with running(version, DURABLE) as server:
                found = [moved(file, server, place) for place in range(asked.rounds)]
            seconds = statistics.median(each[0] for each in found)
            rows, memory = found[0][1], max(each[2] for each in found)
            print(
                f"PostgreSQL {version}: {seconds:.1f} s, {rows:,} rows,"
                f" {rows / seconds:,.0f} rows/s, {memory} MiB"
            )


if __name__ == "__main__":
    main()
