"""Requests to hosts with limits, whose workers are killed, paused and cut off; judged afterwards.

Whether a limit was exceeded is judged from the order of commits: a place counts from the commit
that gives it until the one that takes it away, or that ends the lease of its job. On PostgreSQL
commits have times, SQLite has one writer; a trigger of the test's own writes places down. The hosts
themselves count how many requests are under way.
"""

import random
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import milepost as mp
from milepost.address import StoreUrl
from milepost.observe.verify import verify
from milepost.store.connect import open_driver
from milepost.store.rules import ANY_HOST, Limit, change
from tests.support.crash import TRIES, Fleet, Plan, _connection
from tests.support.limited import MOSTS, WINDOW_SECONDS, Chaos, _again, _open, _wait_for_the_end
from tests.support.loopback import Arrival, Loopback
from tests.support.servers import PostgresServer

__all__ = ["HostFigures", "app", "host_chaos", "without_host_locks"]

BATCH = 500
FIRST_MOST = MOSTS[2]
SLACK_SECONDS = 0.5
"""A commit may be seen so much later than it was made, a request arrive after it was sent."""

app = mp.App()
"""What `milepost worker tests.support.hosted:app` runs: requests are a kind that every app has."""


class Event(NamedTuple):
    """A place that is given or taken away, or a lease that ends, in the order of commits."""

    at: float
    rank: int
    """Of what committed at the same time, ends come first."""
    job: str
    host: str
    """Empty: the job's lease ends."""
    fence: int


BEGINS, ENDS, LEASE_ENDS = 2, 1, 0


@dataclass(slots=True)
class HostFigures:
    """What happened."""

    places: int = 0
    over: list[tuple[str, int, int]] = field(default_factory=list)
    """Hosts, how many had places at once, and how many were allowed."""
    most_at_once: int = 0
    arrived: int = 0
    most_at_host: int = 0
    """How many requests were under way at a host at once, of those that had a place."""
    late: int = 0
    """Requests that were sent when their place was over: by a process that slept past its lease."""
    unplaced: int = 0
    """Requests that arrived more often than their jobs had places."""
    left: int = 0
    kills: int = 0
    pauses: int = 0
    seconds: float = 0.0
    problems: Sequence[Any] = ()

    def __str__(self) -> str:
        return (
            f"{self.places:,} places, {self.most_at_once} at once, {len(self.over)} over; "
            f"{self.arrived:,} requests arrived, {self.most_at_host} at once, {self.late} late, "
            f"{self.unplaced} without a place; {self.kills} kills, {self.pauses} pauses, "
            f"{self.left} left; {self.seconds:.0f} s"
        )


def host_chaos(
    url: str,
    folder: Path,
    plan: Chaos,
    hosts: Loopback,
    server: PostgresServer | None = None,
    *,
    program: str = f"{__name__}:app",
) -> HostFigures:
    """Send requests through the plan's faults until all have ended; judge. `keys` are hosts."""
    began = time.monotonic()
    client = mp.App(url)
    client.counts()
    _watch(url, server)
    _limit(client, hosts)
    workers = Plan(0, 0, 0, workers=plan.workers, concurrency=plan.concurrency)
    fleet = Fleet(url, folder, workers, app=program)
    figures = HostFigures()
    try:
        fleet.fill()
        _go_through(client, fleet, plan, figures, hosts)
        _wait_for_the_end(url, fleet)
    finally:
        fleet.stop()
        client.close()
    _judge(url, figures, hosts.arrivals, server)
    with closing(open_driver(StoreUrl.parse(url))) as driver:
        figures.problems = tuple(verify(driver).problems)
    figures.seconds = time.monotonic() - began
    return figures


def _limit(client: mp.App, hosts: Loopback) -> None:
    """Give every host but the last a rule of its own; that one has the rule of all others."""
    for name in (*hosts.names[:-1], ANY_HOST):
        client.limits.set(name, scope="host", most=FIRST_MOST)


def _go_through(
    client: mp.App, fleet: Fleet, plan: Chaos, figures: HostFigures, hosts: Loopback
) -> None:
    chance = random.Random(plan.seed)
    events = plan.events()
    submitted = 0
    for number, event in enumerate(events, 1):
        wanted = plan.jobs * number // len(events)
        submitted += _submit(client, chance, hosts, wanted - submitted)
        fleet.fill()
        _wait_for_less(client.client.url.address, fleet, plan.jobs // 10 + 200)
        awake = sorted(fleet.awake)
        if event == "kill" and awake:
            fleet.kill(chance.choice(awake))
            figures.kills += 1
        elif event == "pause" and awake:
            fleet.wait_for_sleepers()
            fleet.pause(chance.choice(awake))
            figures.pauses += 1
        elif event == "change":
            named = "host", chance.choice((*hosts.names[:-1], ANY_HOST))
            limit = Limit(most=chance.choice(MOSTS))
            _again(partial(client.client.run, change, named, limit, actor="test", reason="chaos"))


def _submit(client: mp.App, chance: random.Random, hosts: Loopback, count: int) -> int:
    for first in range(0, count, BATCH):
        made = [
            _request(client, hosts.url(chance.randrange(len(hosts.names))))
            for _ in range(min(BATCH, count - first))
        ]
        _again(partial(client.client.create, made))
    return count


def _request(client: mp.App, url: str) -> Any:
    job, request = client.requests.prepare(
        "GET", url, {"retries": TRIES, "retry_delay": 0.05, "jitter": False, "record": False}
    )
    made = job.new((request,), {})
    # Whatever its workers die of, it is tried again, among others.
    template = msgspec.structs.replace(made.template, poison_limit=TRIES)
    return msgspec.structs.replace(made, template=template)


def _wait_for_less(url: str, fleet: Fleet, wanted: int) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        fleet.fill()
        if _again(partial(_open, url)) <= wanted:
            return
        time.sleep(0.1)
    raise AssertionError("workers do not catch up")


# Judging

SQLITE_WATCH = """
CREATE TABLE seen (n INTEGER PRIMARY KEY, at REAL DEFAULT ((julianday('now') - 2440587.5) * 86400),
                   rank INTEGER, job TEXT, host TEXT, fence INTEGER);
CREATE TRIGGER seen_put AFTER INSERT ON host_place WHEN NEW.sends BEGIN
  INSERT INTO seen (rank, job, host, fence) VALUES (2, NEW.job_id, NEW.host, NEW.fence);
END;
CREATE TRIGGER seen_change AFTER UPDATE ON host_place BEGIN
  INSERT INTO seen (rank, job, host, fence)
  SELECT 1, OLD.job_id, OLD.host, OLD.fence WHERE OLD.sends;
  INSERT INTO seen (rank, job, host, fence)
  SELECT 2, NEW.job_id, NEW.host, NEW.fence WHERE NEW.sends;
END;
CREATE TRIGGER seen_drop AFTER DELETE ON host_place WHEN OLD.sends BEGIN
  INSERT INTO seen (rank, job, host, fence) VALUES (1, OLD.job_id, OLD.host, OLD.fence);
END;
CREATE TRIGGER seen_lease AFTER UPDATE OF worker_id ON job
  WHEN OLD.worker_id IS NOT NULL AND NEW.worker_id IS NULL BEGIN
  INSERT INTO seen (rank, job, host, fence) VALUES (0, NEW.id, '', NEW.fence);
END;
CREATE TRIGGER seen_rule AFTER INSERT ON limit_change BEGIN
  INSERT INTO seen (rank, job, host, fence)
  VALUES (-1, NULL, NEW.name, json_extract(NEW.after, '$.most'));
END;
"""
SQLITE_TRIGGERS = ("seen_put", "seen_change", "seen_drop", "seen_lease", "seen_rule")
POSTGRES_WATCH = """
CREATE TABLE public.seen (n bigserial, rank integer, job uuid, host text, fence bigint);
CREATE FUNCTION public.note_place() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP <> 'INSERT' AND OLD.sends THEN
    INSERT INTO public.seen (rank, job, host, fence) VALUES (1, OLD.job_id, OLD.host, OLD.fence);
  END IF;
  IF TG_OP <> 'DELETE' AND NEW.sends THEN
    INSERT INTO public.seen (rank, job, host, fence) VALUES (2, NEW.job_id, NEW.host, NEW.fence);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER seen_place AFTER INSERT OR UPDATE OR DELETE ON milepost.host_place
  FOR EACH ROW EXECUTE FUNCTION public.note_place();
"""
POSTGRES_SEEN = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float, rank, job::text, host, fence
  FROM public.seen
 UNION ALL
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float, 0, subject_id::text, '', 0
  FROM journal
 WHERE machine = 'job' AND from_state = 'RUNNING' AND to_state <> 'RUNNING'
"""
POSTGRES_RULES = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin))::float, name,
       (after::json ->> 'most')::integer
  FROM limit_change ORDER BY 1
"""


def _watch(url: str, server: PostgresServer | None) -> None:
    with _connection(url) as connection:
        if server is None:
            connection.executescript(SQLITE_WATCH)
        else:
            connection.execute(POSTGRES_WATCH)


def _judge(
    url: str,
    figures: HostFigures,
    arrivals: Sequence[Arrival],
    server: PostgresServer | None,
) -> None:
    figures.left = _open(url)
    with _connection(url) as connection:
        if server is None:
            told = "SELECT at, rank, job, host, fence FROM seen ORDER BY n"
            rows = connection.execute(told).fetchall()
            spans = _Fold(figures).fold_sequence(rows)
            for name in SQLITE_TRIGGERS:
                connection.execute(f"DROP TRIGGER {name}")
        else:
            rules = [(at, name, most) for at, name, most in connection.execute(POSTGRES_RULES)]
            rows = connection.execute(POSTGRES_SEEN).fetchall()
            spans = _Fold(figures).fold_times([Event(*row) for row in rows], rules)
            connection.execute("DROP TRIGGER seen_place ON milepost.host_place")
    _judge_arrivals(arrivals, spans, figures)


Spans = dict[str, list[list[float]]]
"""From when until when each job had a place."""


class _Fold:
    """Goes through events, and knows who has a place at each host."""

    def __init__(self, figures: HostFigures) -> None:
        self._figures = figures
        self._held: dict[str, tuple[str, int]] = {}
        self._live: Counter[str] = Counter()
        self.spans: Spans = defaultdict(list)

    def fold_sequence(self, rows: Iterable[tuple[float, int, str, str, int]]) -> Spans:
        """Judge what is in order; rules stand among the rest."""
        rules: dict[str, int] = {}
        for at, rank, job, host, fence in rows:
            if rank < 0:
                rules[host] = fence
                continue
            allowed = rules.get(host, rules.get(ANY_HOST, FIRST_MOST))
            self._apply(Event(at, rank, job, host, fence), allowed)
        return self.spans

    def fold_times(self, events: Iterable[Event], rules: Sequence[tuple[float, str, int]]) -> Spans:
        """Judge by the times of commits; a rule may have been read a while before."""
        of: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for at, name, most in rules:
            of[name].append((at, most))
        for event in sorted(events):
            self._apply(event, _allowed(of.get(event.host) or of[ANY_HOST], event.at))
        return self.spans

    def _apply(self, event: Event, allowed: int) -> None:
        held = self._held.get(event.job)
        if event.rank != BEGINS:
            if held is not None and (event.rank == LEASE_ENDS or held == (event.host, event.fence)):
                self._live[self._held.pop(event.job)[0]] -= 1
                self.spans[event.job][-1][1] = event.at
            return
        assert held is None, f"job {event.job} has two places"
        self._held[event.job] = event.host, event.fence
        self._live[event.host] += 1
        self.spans[event.job].append([event.at, float("inf")])
        figures, now = self._figures, self._live[event.host]
        figures.places += 1
        figures.most_at_once = max(figures.most_at_once, now)
        if now > allowed:
            figures.over.append((event.host, now, allowed))


def _allowed(rules: Sequence[tuple[float, int]], at: float) -> int:
    times = [time_ for time_, _ in rules]
    first = max(0, bisect_right(times, at - WINDOW_SECONDS) - 1)
    return max(most for _, most in rules[first : bisect_right(times, at)])


def _judge_arrivals(arrivals: Sequence[Arrival], spans: Spans, figures: HostFigures) -> None:
    """Compare what hosts saw with the places: each request had one when it was sent."""
    figures.arrived = len(arrivals)
    often = Counter(one.job for one in arrivals)
    figures.unplaced = sum(max(0, count - len(spans[job])) for job, count in often.items())
    moments: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for one in arrivals:
        if any(_within(one.at, *span) for span in spans[one.job]):
            moments[one.host] += [(one.at, 1), (one.ended_at, -1)]
        else:
            figures.late += 1
    for found in moments.values():
        now = 0
        for _, more in sorted(found):
            now += more
            figures.most_at_host = max(figures.most_at_host, now)


def _within(at: float, low: float, high: float) -> bool:
    return low - SLACK_SECONDS <= at <= high + SLACK_SECONDS


def without_host_locks(url: str) -> None:
    """Take the locks out of a PostgreSQL store: what is judged must then go wrong."""
    with _connection(url) as connection:
        connection.execute(
            """
            CREATE OR REPLACE FUNCTION milepost.milepost_lock_hosts(hosts text[]) RETURNS void
              LANGUAGE sql VOLATILE AS $$ SELECT NULL::void $$
            """
        )
