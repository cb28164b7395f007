"""What a job costs: bytes of WAL, bytes on disk and seconds of CPU, on a durable PostgreSQL.

    python -m benchmarks.capacity [--jobs 20000] [--bytes 200] [--json FILE]

A server of its own, as durable as PostgreSQL is by default, runs on this machine's disk. Jobs are
submitted one by one or many at a time, drained by one worker in this process, and removed by
retention eight days later (the store's clock is moved). WAL is the distance that
`pg_current_wal_insert_lsn()` went, with a checkpoint before each part: it has the full-page images
of the pages that the part touches first. CPU is what the system counts for the server's processes
and for this one.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import milepost as mp
from tests.support.servers import PostgresServer, running

MANY = 1_000
WEEK_US = 8 * 86_400 * 1_000_000
SIZE = """SELECT sum(pg_total_relation_size(oid)) FROM pg_class
           WHERE relkind = 'r' AND relname ~ %s"""
TICKS = os.sysconf("SC_CLK_TCK")


class Meter:
    """Reads the counters of a server and of this process, before and after."""

    def __init__(self, server: PostgresServer, link: psycopg.Connection) -> None:
        self._link = link
        lines = (server.folder / "data/postmaster.pid").read_text().splitlines()
        self._postmaster = int(lines[0])

    def read(self) -> dict[str, float]:
        [wal] = self._link.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        server = sum(map(seconds, family(self._postmaster)))
        own = sum(os.times()[:2])
        return {"wal_bytes": float(wal), "server_cpu": server, "client_cpu": own}


def family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def seconds(pid: int) -> float:
    """Count a process, and its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


@contextmanager
def measured(
    meter: Meter, name: str, jobs: int, found: dict[str, dict[str, float]]
) -> Iterator[None]:
    before = meter.read()
    yield
    after = meter.read()
    found[name] = {key: round((after[key] - before[key]) / jobs, 7) for key in after}


def measure(server: PostgresServer, jobs: int, size: int) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with psycopg.connect(server.url(), autocommit=True) as link:
        link.execute("CREATE DATABASE capacity")
    url = server.url("capacity")
    app = mp.App(url)

    @app.job(name="capacity")
    def handle(text: str) -> str:
        return text[:10]

    text = os.urandom(size // 2).hex()  # PostgreSQL would compress a text that repeats itself
    with psycopg.connect(url, autocommit=True) as link:
        app.counts()
        meter = Meter(server, link)
        steps: dict[str, Callable[[], object]] = {
            "submit many": lambda: [
                handle.submit_many([(text,)] * MANY) for _ in range(jobs // MANY)
            ],
            "run": app.drain,
            "submit one by one": lambda: [handle.submit(text) for _ in range(jobs)],
            "run again": app.drain,
        }
        for name, step in steps.items():
            link.execute("CHECKPOINT")
            with measured(meter, name, jobs, found):
                step()
        for name, tables in (("job", "^job$"), ("journal", "^journal_")):
            [size_bytes] = link.execute(SIZE, [tables]).fetchone()
            found[f"disk {name}"] = {"bytes": float(size_bytes) / (2 * jobs)}
        link.execute("UPDATE milepost.clock SET offset_us = %s", [WEEK_US])
        link.execute("CHECKPOINT")
        with measured(meter, "remove", 2 * jobs, found):
            while link.execute("SELECT count(*) FROM milepost.job").fetchone() != (0,):
                app.maintain_once()
        app.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with running("18", {"max_wal_size": "4GB"}) as server:
        found = measure(server, asked.jobs, asked.bytes)
    for name, figures in found.items():
        print(name, figures)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
