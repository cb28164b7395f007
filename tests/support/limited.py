"""Jobs under a limit whose workers are killed, paused and cut off, and what is judged afterwards.

Whether a limit was exceeded is judged from the order of commits: on PostgreSQL by the commit times
of the journal's entries, on SQLite, which has one writer, by a trigger of the test's own.
"""

import asyncio
import os
import random
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import milepost as mp
from milepost.address import StoreUrl
from milepost.errors import Unavailable
from milepost.observe.verify import verify
from milepost.store.connect import open_driver
from milepost.store.rules import Limit, change
from milepost.worker import floors
from tests.support.crash import TRIES, Fleet, Plan, _connection
from tests.support.servers import PostgresServer

__all__ = ["Chaos", "Figures", "app", "chaos", "without_locks"]

MOSTS = (1, 2, 3, 5)
RULE = ("job", "work")
WINDOW_SECONDS = 2.0
"""A claim may have read its rule so long before it committed: the server may have been slow."""
BATCH = 5_000
END_SECONDS = 1200.0


def program(url: str | None = None) -> mp.App:
    """Make the app whose workers are crashed."""
    made = mp.App(url)

    @made.job(
        name="work",
        limit=mp.Limit(MOSTS[2], key="key"),
        retries=TRIES,
        poison_limit=TRIES,
        retry_delay=0.01,
    )
    async def work(key: str, number: int) -> None:
        del key
        await asyncio.sleep(0.0005 * (number % 7))

    return made


if "worker" in sys.argv and os.getpid() % 2:
    # Half of the workers count leases from floors all the time, as all do behind an old snapshot.
    floors.COSTLY_US = floors.COSTLY_KEY_US = -1

app = program()
"""What `milepost worker tests.support.limited:app` runs."""


@dataclass(frozen=True, slots=True)
class Chaos:
    """How much is to happen."""

    jobs: int
    keys: int
    kills: int
    pauses: int
    changes: int
    restarts: int = 0
    workers: int = 4
    concurrency: int = 200
    seed: int = 1

    def events(self) -> list[str]:
        """Mix the faults, the same way for the same seed."""
        counts = {"kill": self.kills, "pause": self.pauses, "change": self.changes}
        events = [name for name, count in counts.items() for _ in range(count)]
        events += ["restart"] * self.restarts
        random.Random(self.seed).shuffle(events)
        return events


@dataclass(slots=True)
class Figures:
    """What happened."""

    claims: int = 0
    over: list[tuple[str, int, int]] = field(default_factory=list)
    """Keys, how many ran at once, and how many were allowed."""
    most_at_once: int = 0
    left: int = 0
    kills: int = 0
    seconds: float = 0.0
    problems: Sequence[Any] = ()

    def __str__(self) -> str:
        return (
            f"{self.claims:,} claims, {self.kills} kills, {self.most_at_once} of a key at once, "
            f"{len(self.over)} over, {self.left} left; {self.seconds:.0f} s"
        )


def chaos(url: str, folder: Path, plan: Chaos, server: PostgresServer | None = None) -> Figures:
    """Run jobs of many keys through the plan's faults until all have ended; judge."""
    began = time.monotonic()
    client = program(url)
    client.counts()
    if server is None:
        _watch(url)
    fleet = Fleet(
        url,
        folder,
        Plan(jobs=0, kills=0, pauses=0, workers=plan.workers, concurrency=plan.concurrency),
        app=f"{__name__}:app",
    )
    figures = Figures()
    try:
        fleet.fill()
        _go_through(client, fleet, plan, figures, server)
        _wait_for_the_end(url, fleet)
    finally:
        fleet.stop()
        client.close()
    _judge(url, figures, server)
    with closing(open_driver(StoreUrl.parse(url))) as driver:
        figures.problems = tuple(verify(driver).problems)
    figures.seconds = time.monotonic() - began
    return figures


def _go_through(
    client: mp.App, fleet: Fleet, plan: Chaos, figures: Figures, server: PostgresServer | None
) -> None:
    chance = random.Random(plan.seed)
    events = plan.events()
    submitted = 0
    for number, event in enumerate(events, 1):
        wanted = plan.jobs * number // len(events)
        while submitted < wanted:
            count = min(BATCH, wanted - submitted)
            submitted += _submit(client, chance, plan.keys, submitted, count)
        fleet.fill()
        _wait_for_less(client, wanted=plan.jobs // 10 + 1000)
        awake = sorted(fleet.awake)
        if event == "restart" and server is not None:
            server.stop("immediate")
            server.start()
        elif event == "kill" and awake:
            fleet.kill(chance.choice(awake))
            figures.kills += 1
        elif event == "pause" and awake:
            fleet.wait_for_sleepers()
            fleet.pause(chance.choice(awake))
        elif event == "change":
            limit = Limit(most=chance.choice(MOSTS))
            _again(partial(client.client.run, change, RULE, limit, actor="test", reason="chaos"))


def _submit(client: mp.App, chance: random.Random, keys: int, first: int, count: int) -> int:
    job = _declared(client)
    calls = [(f"k{chance.randrange(keys)}", first + n) for n in range(count)]
    _again(lambda: job.submit_many(calls))
    return count


def _declared(client: mp.App) -> Any:
    from milepost.job import Job

    [definition] = list(client.registry)
    return Job[Any, Any, Any, Any](client, definition)


def _again(call: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Call until the server is there."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


OPEN = " + ".join(
    f"(SELECT count(*) FROM (SELECT 1 FROM job WHERE {condition} LIMIT 200000) AS few)"
    for condition in (
        "state = 'QUEUED'",
        "state = 'RUNNING'",
        "state IN ('WAITING', 'RETRYING')",
    )
)
"""Counted by their indexes: to read every job would take more than to run it."""


def _open(url: str) -> int:
    with _connection(url) as connection:
        return int(connection.execute(f"SELECT {OPEN}").fetchone()[0])


def _wait_for_less(client: mp.App, *, wanted: int) -> None:
    """Let workers catch up: faults are to meet jobs that run, not a backlog that only grows."""
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        with suppress(Exception):
            if _open(client.client.url.address) <= wanted:
                return
        time.sleep(0.2)
    raise AssertionError("workers do not catch up")


def _wait_for_the_end(url: str, fleet: Fleet) -> None:
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        fleet.fill()
        with suppress(Exception):
            if _open(url) == 0:
                return
        time.sleep(0.1)


# Judging


def _watch(url: str) -> None:
    """Write down leases and rules, as they begin, end and change: in the order of commits."""
    with _connection(url) as connection:
        connection.executescript(
            """
            CREATE TABLE seen (n INTEGER PRIMARY KEY, key TEXT, more INTEGER);
            CREATE TRIGGER seen_lease AFTER UPDATE OF worker_id ON job
              WHEN (OLD.worker_id IS NULL) <> (NEW.worker_id IS NULL) BEGIN
              INSERT INTO seen (key, more)
              VALUES (NEW.limit_key, CASE WHEN NEW.worker_id IS NULL THEN -1 ELSE 1 END);
            END;
            CREATE TRIGGER seen_rule AFTER INSERT ON limit_change BEGIN
              INSERT INTO seen (key, more) VALUES (NULL, json_extract(NEW.after, '$.most'));
            END;
            """
        )


POSTGRES_SEEN = """
SELECT job.limit_key, CASE WHEN journal.move = 'claim' THEN 1 ELSE -1 END,
       extract(epoch FROM pg_xact_commit_timestamp(journal.xmin))
  FROM journal JOIN job ON job.id = journal.subject_id
 WHERE journal.machine = 'job' AND (journal.move = 'claim'
       OR (journal.from_state = 'RUNNING' AND journal.to_state <> 'RUNNING'))
"""
POSTGRES_RULES = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin)), (after::json ->> 'most')::integer
  FROM limit_change ORDER BY 1
"""


def _judge(url: str, figures: Figures, server: PostgresServer | None) -> None:
    with _connection(url) as connection:
        figures.left = _open(url)
        if server is None:
            rows = connection.execute("SELECT key, more FROM seen ORDER BY n").fetchall()
            _judge_sequence(rows, figures)
            connection.executescript("DROP TRIGGER seen_lease; DROP TRIGGER seen_rule")
        else:
            rules = [(float(at), most) for at, most in connection.execute(POSTGRES_RULES)]
            rows = connection.execute(POSTGRES_SEEN).fetchall()
            _judge_times([(key, more, float(at)) for key, more, at in rows], rules, figures)


def _judge_sequence(rows: Sequence[tuple[str | None, int]], figures: Figures) -> None:
    most = MOSTS[2]
    live: Counter[str] = Counter()
    for key, more in rows:
        if key is None:
            most = more
            continue
        live[key] += more
        _note(figures, key, live[key], most, more)


def _judge_times(
    rows: Sequence[tuple[str, int, float]], rules: Sequence[tuple[float, int]], figures: Figures
) -> None:
    times = [at for at, _ in rules]
    live: Counter[str] = Counter()
    # An end that committed in the same microsecond came before the claim that could see it.
    for key, more, at in sorted(rows, key=lambda row: (row[2], row[1])):
        first = max(0, bisect_right(times, at - WINDOW_SECONDS) - 1)
        allowed = max(most for _, most in rules[first : bisect_right(times, at)])
        live[key] += more
        _note(figures, key, live[key], allowed, more)


def _note(figures: Figures, key: str, now: int, allowed: int, more: int) -> None:
    if more > 0:
        figures.claims += 1
        figures.most_at_once = max(figures.most_at_once, now)
        if now > allowed:
            figures.over.append((key, now, allowed))


def without_locks(url: str) -> None:
    """Take the locks out of a PostgreSQL store: what is judged must then go wrong."""
    with _connection(url) as connection:
        connection.execute(
            """
            CREATE OR REPLACE FUNCTION milepost.milepost_lock_stripes(first integer, most integer)
              RETURNS text[] LANGUAGE sql VOLATILE AS
              $$ SELECT ARRAY(SELECT to_hex(n) FROM generate_series(0, 15) AS n) $$
            """
        )
