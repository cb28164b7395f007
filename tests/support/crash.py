"""Real worker processes that are killed, paused and cut off, and what must hold afterwards.

`app` is what the workers run: jobs of a tenth of a second that leave an effect, with their fence,
in a table of the same database. The effect that counts is the one with the success's fence.
"""

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from milepost.address import StoreUrl
from milepost.app import App
from milepost.context import Context, current
from milepost.errors import Unavailable
from milepost.observe.verify import verify
from milepost.store.connect import open_driver
from tests.support.servers import PostgresServer

__all__ = ["Figures", "Fleet", "Plan", "app", "broken_invariants", "crash", "program"]

WORK_SECONDS = 0.1
AGAIN_SECONDS = 0.7
"""A job that is run again takes longer, so that who had it before wakes while it runs."""
LEASE_SECONDS = 1.0
PAUSE_SECONDS = (1.1, 2.5)
"""Past the lease, and then until another runs what the sleeper had, or the time is over."""
SETTINGS = {
    "MILEPOST_LEASE": "1",
    "MILEPOST_HEARTBEAT": "0.3",
    "MILEPOST_SWEEP": "0.2",
    "MILEPOST_RECOVERY": "0.3",
    "MILEPOST_ERROR_WAIT": "0.3",
    "MILEPOST_POLL_MAX": "0.2",
    "MILEPOST_GRACE": "5",
}
TRIES = 1_000_000
"""A budget that no fault exhausts: whatever is lost is run again until it succeeds."""
SETTLE_SECONDS = 120.0
ROOT = Path(__file__).parents[2]
"""Where the workers find this module."""


def _connect(url: str) -> Any:
    """Open a connection of the program's own, in autocommit."""
    parsed = StoreUrl.parse(url)
    if parsed.dialect == "sqlite":
        return sqlite3.connect(parsed.target, isolation_level=None, timeout=30)
    import psycopg

    return psycopg.connect(
        parsed.target,
        autocommit=True,
        connect_timeout=10,
        options=f"-c search_path=public,{parsed.schema}",
    )


@contextmanager
def _connection(url: str) -> Iterator[Any]:
    connection = _connect(url)
    try:
        yield connection
    finally:
        connection.close()


def _seconds(context: Context) -> float:
    return WORK_SECONDS if context.fence == 1 else AGAIN_SECONDS


def leave_effect(url: str, context: Context) -> None:
    """Do what the job is for, with the fence it was done under."""
    with _connection(url) as connection:
        connection.execute(
            f"INSERT INTO effect (job_id, fence) VALUES ('{context.id}', {context.fence})"
        )


def program(url: str | None = None) -> App:
    """Make the app whose workers are crashed: one plain and one asynchronous kind of job."""
    made = App(url)
    target = url or os.environ.get("MILEPOST_DATABASE_URL", "")

    @made.job(name="plain", retries=TRIES, poison_limit=TRIES, retry_delay=0.05)
    def plain(number: int) -> int:
        time.sleep(_seconds(current()))
        leave_effect(target, current())
        return number

    @made.job(name="awaited", retries=TRIES, poison_limit=TRIES, retry_delay=0.05)
    async def awaited(ctx: Context, number: int) -> int:
        await asyncio.sleep(_seconds(ctx))
        await asyncio.to_thread(leave_effect, target, ctx)
        return number

    return made


app = program()
"""What `milepost worker tests.support.crash:app` runs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is to happen."""

    jobs: int
    kills: int
    pauses: int
    restarts: int = 0
    workers: int = 4
    concurrency: int = 6
    seed: int = 1

    def events(self) -> list[str]:
        """Mix the faults, the same way for the same seed."""
        events = ["kill"] * self.kills + ["pause"] * self.pauses + ["restart"] * self.restarts
        random.Random(self.seed).shuffle(events)
        return events


@dataclass(slots=True)
class Figures:
    """What happened."""

    acknowledged: list[str] = field(default_factory=list)
    refused: int = 0
    kills: int = 0
    kills_lost: int = 0
    pauses: int = 0
    pauses_lost: int = 0
    restarts: int = 0
    seconds: float = 0.0
    moves: Counter[str] = field(default_factory=Counter)
    effects: int = 0
    exits: Counter[int] = field(default_factory=Counter)

    def __str__(self) -> str:
        moved = ", ".join(f"{name} {count}" for name, count in sorted(self.moves.items()))
        return (
            f"{len(self.acknowledged)} jobs acknowledged ({self.refused} submits refused), "
            f"{self.kills} kills ({self.kills_lost} seen as lose), "
            f"{self.pauses} pauses ({self.pauses_lost} seen as lose), {self.restarts} restarts; "
            f"{moved}; {self.effects} effects; {self.seconds:.0f} s"
        )


class Fleet:
    """Worker processes that are replaced when they die."""

    def __init__(self, url: str, folder: Path, plan: Plan, *, app: str = "") -> None:
        self._url = url
        self._app = app or f"{__name__}:app"
        self._folder = folder
        self._plan = plan
        self._workers: list[subprocess.Popen[bytes]] = []
        self._asleep: dict[int, threading.Thread] = {}
        self._log = (folder / "workers.log").open("ab")
        self.killed: list[int] = []
        self.paused: list[int] = []

    def fill(self) -> None:
        """Start as many workers as are missing."""
        self._workers = [worker for worker in self._workers if worker.poll() is None]
        for _ in range(self._plan.workers - len(self._workers)):
            self._workers.append(self._started())

    def _started(self) -> "subprocess.Popen[bytes]":
        arguments = ["worker", self._app, f"--concurrency={self._plan.concurrency}"]
        return subprocess.Popen(
            [sys.executable, "-m", "milepost.cli", *arguments],
            env={
                **os.environ,
                **SETTINGS,
                "MILEPOST_DATABASE_URL": self._url,
                "PYTHONPATH": str(ROOT),
            },
            cwd=self._folder,
            stdout=self._log,
            stderr=self._log,
        )

    def kill(self, pid: int) -> None:
        """End one as a power cut does."""
        os.kill(pid, signal.SIGKILL)
        self.killed.append(pid)
        self.fill()

    def pause(self, pid: int) -> None:
        """Freeze one past its lease. A thread wakes it: it may hold what everybody waits for."""
        os.kill(pid, signal.SIGSTOP)
        sleeping = threading.Thread(target=self._wake, args=[pid])
        self._asleep[pid] = sleeping
        sleeping.start()
        self.paused.append(pid)

    def wait_for_sleepers(self) -> None:
        """Let one sleep at a time: the others are to take over meanwhile."""
        for sleeping in list(self._asleep.values()):
            sleeping.join()

    def _wake(self, pid: int) -> None:
        least, most = PAUSE_SECONDS
        end = time.monotonic() + most
        time.sleep(least)
        while time.monotonic() < end and not self._taken_over(pid):
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        self._asleep.pop(pid, None)

    def _taken_over(self, pid: int) -> bool:
        try:
            with _connection(self._url) as connection:
                cursor = connection.execute(
                    "SELECT count(*) FROM job, journal WHERE job.state = 'RUNNING'"
                    " AND journal.machine = 'job' AND journal.subject_id = job.id"
                    f" AND journal.move = 'lose' AND journal.detail LIKE '%-{pid}-%'"
                )
                return int(cursor.fetchone()[0]) > 0
        except Exception:  # noqa: BLE001 - the server is on its way back
            return False

    @property
    def awake(self) -> set[int]:
        """Whom a fault may befall."""
        return {w.pid for w in self._workers if w.poll() is None} - set(self._asleep)

    def stop(self) -> Counter[int]:
        """Drain everyone; answer with how they ended."""
        self.wait_for_sleepers()
        for worker in self._workers:
            worker.terminate()
        codes: Counter[int] = Counter()
        for worker in self._workers:
            try:
                codes[worker.wait(timeout=30)] += 1
            except subprocess.TimeoutExpired:
                worker.kill()
                codes[worker.wait()] += 1
        self._log.close()
        return codes


def crash(url: str, folder: Path, plan: Plan, server: PostgresServer | None = None) -> Figures:
    """Run the plan's jobs through its faults until all are final; answer with what happened."""
    began = time.monotonic()
    figures = Figures()
    client = program(url)
    client.counts()
    with _connection(url) as connection:
        connection.execute("CREATE TABLE effect (job_id TEXT NOT NULL, fence BIGINT NOT NULL)")
    fleet = Fleet(url, folder, plan)
    try:
        fleet.fill()
        _go_through(client, fleet, plan, figures, server)
        _wait_for_the_end(url, fleet)
    finally:
        figures.exits = fleet.stop()
        client.close()
    _count(url, fleet, figures)
    figures.seconds = time.monotonic() - began
    return figures


def _go_through(
    client: App, fleet: Fleet, plan: Plan, figures: Figures, server: PostgresServer | None
) -> None:
    events = plan.events()
    for number, event in enumerate(events, 1):
        _submit(client, figures, plan.jobs * number // len(events))
        fleet.fill()
        if event == "restart" and server is not None:
            server.stop("immediate")
            server.start()
            figures.restarts += 1
        elif event == "kill":
            fleet.kill(_busy(client, fleet, figures))
            figures.kills += 1
        elif event == "pause":
            fleet.wait_for_sleepers()
            fleet.pause(_busy(client, fleet, figures))
            figures.pauses += 1
    _submit(client, figures, plan.jobs)


def _submit(client: App, figures: Figures, total: int) -> None:
    """Submit up to that many; only what was acknowledged is owed."""
    from milepost.job import Job

    kinds = [Job[Any, Any, Any, Any](client, definition) for definition in client.registry]
    while (count := len(figures.acknowledged)) < total:
        try:
            handle = kinds[count % len(kinds)].submit(count)
        except Unavailable:
            figures.refused += 1  # the server was away; it may be there all the same
        else:
            figures.acknowledged.append(handle.id)


def _busy(client: App, fleet: Fleet, figures: Figures) -> int:
    """Find a worker that holds jobs; if there are no jobs left, submit a few more."""

    def found() -> int | None:
        fleet.fill()
        awake = fleet.awake
        holders = _holders(client)
        if not holders:
            _submit(client, figures, len(figures.acknowledged) + 1)
        return next((pid for pid in holders if pid in awake), None)

    pid: int = _until(found, seconds=60)
    return pid


def _holders(client: App) -> list[int]:
    try:
        with _connection(client.client.url.address) as c:
            table = f"{client.client.url.schema}.job" if _is_postgres(client) else "job"
            rows = c.execute(
                f"SELECT worker_id FROM {table} WHERE state = 'RUNNING'"
                " GROUP BY worker_id ORDER BY count(*) DESC, worker_id"
            ).fetchall()
    except Exception:  # noqa: BLE001 - the server is on its way back
        return []
    return [int(row[0].split("-")[-2]) for row in rows]


def _is_postgres(client: App) -> bool:
    return client.client.url.dialect == "postgres"


def _until(condition: Callable[[], Any], *, seconds: float) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError("it did not happen in time")
        time.sleep(0.01)
    return found


def _wait_for_the_end(url: str, fleet: Fleet) -> None:
    def ended() -> bool:
        fleet.fill()
        time.sleep(0.1)
        with _connection(url) as connection:
            cursor = connection.execute(
                "SELECT count(*) FROM job WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"
            )
            return int(cursor.fetchone()[0]) == 0

    _until(ended, seconds=SETTLE_SECONDS)


def _count(url: str, fleet: Fleet, figures: Figures) -> None:
    with _connection(url) as connection:
        query = "SELECT move, count(*) FROM journal WHERE machine = 'job' GROUP BY move"
        figures.moves = Counter(dict(connection.execute(query).fetchall()))
        query = "SELECT DISTINCT detail FROM journal WHERE move = 'lose'"
        losers = {int(row[0].split("-")[-2]) for row in connection.execute(query).fetchall()}
        [(figures.effects,)] = connection.execute("SELECT count(*) FROM effect").fetchall()
    figures.kills_lost = sum(pid in losers for pid in fleet.killed)
    figures.pauses_lost = sum(pid in losers for pid in fleet.paused)


# Each answers with a number that must be zero.
INVARIANTS = {
    "jobs that are not SUCCEEDED": "SELECT count(*) FROM job WHERE state <> 'SUCCEEDED'",
    "jobs still owned": "SELECT count(*) FROM job WHERE worker_id IS NOT NULL",
    "jobs without exactly one effect under the fence of their success": (
        "SELECT count(*) FROM job WHERE 1 <> (SELECT count(*) FROM effect, journal"
        " WHERE journal.machine = 'job' AND journal.subject_id = job.id"
        " AND journal.move = 'succeed' AND effect.job_id = {text}"
        " AND effect.fence = journal.fence)"
    ),
    "effects twice under one fence": (
        "SELECT count(*) FROM (SELECT 1 FROM effect GROUP BY job_id, fence"
        " HAVING count(*) > 1) AS twice"
    ),
    "effects of a fence that was never claimed": (
        "SELECT count(*) FROM effect WHERE NOT EXISTS (SELECT 1 FROM journal"
        " WHERE journal.machine = 'job' AND journal.move = 'claim'"
        " AND {subject} = effect.job_id AND journal.fence = effect.fence)"
    ),
    "jobs whose fence is not the number of their claims": (
        "SELECT count(*) FROM job WHERE fence <> (SELECT count(*) FROM journal"
        " WHERE machine = 'job' AND subject_id = job.id AND move = 'claim')"
    ),
    "claims whose fence did not grow": (
        "SELECT count(*) FROM journal AS later, journal AS earlier"
        " WHERE later.machine = 'job' AND earlier.machine = 'job'"
        " AND later.subject_id = earlier.subject_id AND later.move = 'claim'"
        " AND earlier.move = 'claim' AND later.seq > earlier.seq AND later.fence <= earlier.fence"
    ),
    "outcomes written by another worker than the one whose claim it was": (
        "SELECT count(*) FROM journal AS told, journal AS claimed"
        " WHERE told.machine = 'job' AND claimed.machine = 'job'"
        " AND told.move IN ('succeed', 'fail', 'retry', 'later', 'release')"
        " AND claimed.move = 'claim' AND claimed.subject_id = told.subject_id"
        " AND claimed.fence = told.fence AND claimed.actor <> told.actor"
    ),
    "jobs with more than one success": (
        "SELECT count(*) FROM (SELECT 1 FROM journal WHERE machine = 'job' AND move = 'succeed'"
        " GROUP BY subject_id HAVING count(*) > 1) AS twice"
    ),
    "jobs whose counters do not add up to their claims": (
        "SELECT count(*) FROM job WHERE fence <> errors + losses + polls + releases + 1"
    ),
}


def broken_invariants(url: str, figures: Figures) -> list[str]:
    """Name everything that should be impossible and is so."""
    postgres = StoreUrl.parse(url).dialect == "postgres"
    words = {
        "text": "job.id::text" if postgres else "job.id",
        "subject": "journal.subject_id::text" if postgres else "journal.subject_id",
    }
    found: list[str] = []
    with _connection(url) as connection:
        for name, statement in INVARIANTS.items():
            [(count,)] = connection.execute(statement.format(**words)).fetchall()
            if count:
                found.append(f"{count} {name}")
        stored = {str(row[0]) for row in connection.execute("SELECT id FROM job").fetchall()}
    missing = set(figures.acknowledged) - stored
    if missing:
        found.append(f"{len(missing)} acknowledged jobs that are not there")
    if len(stored) > len(figures.acknowledged) + figures.refused:
        found.append("more jobs than were ever submitted")
    driver = open_driver(StoreUrl.parse(url))
    try:
        verdict = verify(driver)
    finally:
        driver.close()
    return [*found, *(str(problem) for problem in verdict.problems)]
