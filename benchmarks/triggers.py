"""What enforcement costs: the same statements with the triggers on and off, side by side.

Two stores on one server with durable settings; in one of them the triggers of `job` are disabled.
Each figure is the median of five, taken in turn from both, so that a slow minute hits both alike.
"""

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from milepost.address import StoreUrl
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate
from tests.support.servers import PostgresServer, running

SETTINGS = {"shared_buffers": "256MB"}
ROWS = 100_000
BATCH = 1_000
SINGLES = 200
ROUNDS = 5
BULK_SECONDS_MAX = 3.0
SINGLE_MS_MORE_MAX = 0.3


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement: the medians with and without triggers, in milliseconds."""

    name: str
    enforced_ms: float
    plain_ms: float

    @property
    def more_ms(self) -> float:
        return self.enforced_ms - self.plain_ms


def store(server: PostgresServer, name: str, *, enforced: bool) -> psycopg.Connection[Any]:
    """Make a migrated database with its rows in it, and connect."""
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    driver = open_driver(StoreUrl.parse(server.url(name)))
    migrate(driver)
    driver.close()
    connection = psycopg.connect(
        server.url(name), autocommit=True, options="-c search_path=milepost,public"
    )
    if not enforced:
        connection.execute("ALTER TABLE job DISABLE TRIGGER USER")
    connection.execute(
        "INSERT INTO job (id, kind, state, move, queue)"
        " SELECT gen_random_uuid(), 'bulk', 'QUEUED', 'create', 'bulk'"
        f" FROM generate_series(1, {ROWS})"
    )
    connection.execute("VACUUM ANALYZE job")
    return connection


def timed(work: Callable[[], object]) -> float:
    """Return how many milliseconds it took."""
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000


def bulk(connection: psycopg.Connection[Any], turn: int) -> float:
    """Move every row in one statement: there in even turns, back in odd ones."""
    move, state = (("undispatch", "READY"), ("dispatch", "QUEUED"))[turn % 2]
    taken = timed(
        lambda: connection.execute(
            "UPDATE job SET state = %s, move = %s, version = version + 1 WHERE queue = 'bulk'",
            (state, move),
        )
    )
    connection.execute("VACUUM job")
    return taken


def single(connection: psycopg.Connection[Any], _turn: int) -> float:
    """Move one row per transaction, to and fro; return the median move."""
    [(job,)] = connection.execute(
        "INSERT INTO job (id, kind, state, move) VALUES"
        " (gen_random_uuid(), 'one', 'QUEUED', 'create') RETURNING id"
    ).fetchall()
    moves = [("undispatch", "READY"), ("dispatch", "QUEUED")] * (SINGLES // 2)
    return statistics.median(
        timed(
            lambda move=move, state=state: connection.execute(
                "UPDATE job SET state = %s, move = %s, version = version + 1 WHERE id = %s",
                (state, move, job),
            )
        )
        for move, state in moves
    )


def batch(connection: psycopg.Connection[Any], turn: int) -> float:
    """Claim a thousand jobs in one statement and settle them in another."""
    ids = [
        row[0]
        for row in connection.execute(
            "INSERT INTO job (id, kind, state, move, queue) SELECT gen_random_uuid(), 'batch',"
            " 'QUEUED', 'create', %s FROM generate_series(1, %s) RETURNING id",
            (f"batch{turn}", BATCH),
        )
    ]

    def claim_and_settle() -> None:
        connection.execute(
            "UPDATE job SET state = 'RUNNING', move = 'claim', version = version + 1,"
            " fence = fence + 1, worker_id = 'w' WHERE id = ANY(%s)",
            (ids,),
        )
        connection.execute(
            "UPDATE job SET state = 'SUCCEEDED', move = 'succeed', version = version + 1,"
            " worker_id = NULL WHERE id = ANY(%s) AND state = 'RUNNING'",
            (ids,),
        )

    return timed(claim_and_settle)


def compare(
    name: str,
    measure: Callable[[psycopg.Connection[Any], int], float],
    enforced: psycopg.Connection[Any],
    plain: psycopg.Connection[Any],
) -> Figure:
    """Measure both in turn, the first turn thrown away, and keep the medians."""
    pairs = [(measure(enforced, turn), measure(plain, turn)) for turn in range(ROUNDS + 1)][1:]
    on, off = zip(*pairs, strict=True)
    return Figure(name, statistics.median(on), statistics.median(off))


def figures() -> list[Figure]:
    """Run everything on a server of its own."""
    with running("18", settings=SETTINGS) as server:
        enforced = store(server, "enforced", enforced=True)
        plain = store(server, "plain", enforced=False)
        try:
            return [
                compare(f"{ROWS:,} rows, one legal UPDATE", bulk, enforced, plain),
                compare("one row, one move", single, enforced, plain),
                compare(f"{BATCH:,} jobs, claim and succeed", batch, enforced, plain),
            ]
        finally:
            enforced.close()
            plain.close()


def main() -> int:
    """Print the table and the verdicts; fail when a target is missed."""
    found = figures()
    print(f"{'':34}{'triggers on':>14}{'off':>12}{'more':>12}")
    for figure in found:
        print(
            f"{figure.name:34}{figure.enforced_ms:>11.2f} ms{figure.plain_ms:>9.2f} ms"
            f"{figure.more_ms:>9.2f} ms"
        )
    verdicts = [
        (
            f"{ROWS:,} rows under {BULK_SECONDS_MAX:g} s",
            found[0].enforced_ms < BULK_SECONDS_MAX * 1000,
        ),
        (
            f"one move at most {SINGLE_MS_MORE_MAX:g} ms more",
            found[1].more_ms <= SINGLE_MS_MORE_MAX,
        ),
    ]
    for promise, kept in verdicts:
        print(f"{'kept  ' if kept else 'MISSED'}  {promise}")
    return 0 if all(kept for _, kept in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
