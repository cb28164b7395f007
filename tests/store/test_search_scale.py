"""The first page of every single filter, in a store with a long past: by an index, within 50 ms.

It is full, or all that there is, but for the filters of `FAR`: those say how far they looked.
"""

import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from milepost import filters
from milepost.store import joblist, search, tally
from milepost.store.catalog import query
from milepost.store.driver import Call, Driver, Rows
from milepost.store.sqlite_calls import _bound
from tests.support.databases import Backends, Database, Raw, everyday_names
from tests.support.prove import PROVING

FINISHED, OPEN = (1_000_000, 100_000) if PROVING else (20_000, 2_000)
SECONDS_MAX = 0.05
ROUNDS = 40
RUN = "01900000-0000-7000-8000-00000000beef"
STEP_MS = 2_500
"""A job every so many milliseconds: a million of them are a month."""
FIRST_MS = 1_790_000_000_000
COLUMNS = (
    "id, kind, state, move, queue, tenant, unique_key, created_at, started_at, finished_at, due_at,"
    " worker_id, tags, run_id, step, error, error_type, error_code, fingerprint, payload"
)
FIRST = (FINISHED + OPEN) // 2
"""Half of the jobs are older than those that are open, and half are newer."""

pytestmark = pytest.mark.prove

NOTHING = ("tag.customer:none", "error:none", "age:<1h")
RARE = 60
"""So many of the oldest jobs have a kind, a queue and a tenant that no other has."""
FAR = ("kind:rare", "queue:rare", "tenant:rare", "duration:>1s", "duration:>1d")
"""Jobs that are none of the newest, and no index tells where: the page says how far it looked."""
MOST = 50

FILTERS = [
    *("state:succeeded", "state:failed", "state:cancelled", "state:queued", "state:running"),
    *("state:waiting", "state:retrying", "state:pending", "state:failed,cancelled"),
    "-state:succeeded",
    *("kind:kind7", "-kind:kind7", "queue:queue3", "tenant:tenant2", "key:key-500"),
    *("kind:rare", "queue:rare", "tenant:rare"),
    *("tag.customer:70", "tag.half:0", "tag.customer:none", "-tag.customer:70"),
    *("age:<1h", "age:>1h", "age:>10d", "created:<2026-09-25", "created:>2020-01-01"),
    *("duration:>1s", "duration:<1s", "duration:>1d", f"run:{RUN}", "worker:w0"),
    *(
        "error:Timeout",
        "error:far",
        "error:none",
        'error:"number 1"',
        "fingerprint:f1",
        "-error:far",
    ),
]


def named(word: str, number: int) -> str:
    return f"CASE WHEN i < {RARE} THEN 'rare' ELSE '{word}' || (i % {number}) END"


def rows(count: str, *, id: str, at: str, state: str, json: str) -> str:  # noqa: A002 - its SQL
    """Make jobs as they would stand after long use; one in fifty failed, one in ten has tags."""
    ended = f"{state} IN ('SUCCEEDED', 'FAILED')"
    failed = f"{state} = 'FAILED'"
    return (
        f"SELECT {id}, {named('kind', 10)}, {state}, 'create', {named('queue', 5)},"
        f" {named('tenant', 4)},"
        f" CASE WHEN i % 100 = 0 THEN 'key-' || i END, {at},"
        f" CASE WHEN {ended} OR {state} = 'RUNNING' THEN {at} END, CASE WHEN {ended} THEN {at} END,"
        f" CASE WHEN {state} IN ('WAITING', 'RETRYING') THEN {at} END,"
        f" CASE WHEN {state} = 'RUNNING' THEN 'w' || (i % 10) END,"
        f" CASE WHEN i % 10 = 0 THEN {json} END,"
        f" CASE WHEN i % 4 = 1 THEN '{RUN}'{'::uuid' if 'uuid' in id else ''} END,"
        " CASE WHEN i % 4 = 1 THEN 0 END,"
        f' CASE WHEN {failed} THEN \'{{"type":"Timeout","message":"number \' || i || \'"}}\' END,'
        f" CASE WHEN {failed} THEN 'Timeout' END, CASE WHEN {failed} THEN 'far' END,"
        f" CASE WHEN {failed} THEN 'f' || (i % 100 / 50) END, {count}"
    )


STATE = (
    f"CASE WHEN i < {FIRST} OR i >= {FIRST + OPEN}"
    " THEN CASE WHEN i % 50 = 0 THEN 'FAILED' WHEN i % 75 = 0 THEN 'CANCELLED' ELSE 'SUCCEEDED' END"
    " WHEN i % 500 = 0 THEN 'RUNNING' WHEN i % 5 = 0 THEN 'WAITING' WHEN i % 7 = 0 THEN 'RETRYING'"
    " ELSE 'QUEUED' END"
)


TOTALS = "INSERT INTO queue_total (queue, count) SELECT queue, count(*) FROM job GROUP BY queue"
"""Counted by maintenance, and by triggers that are switched off here."""


def fill(raw: Raw) -> None:
    total = FINISHED + OPEN
    if raw.dialect == "postgres":
        raw.execute("SET session_replication_role = replica")  # without triggers
        made = rows(
            "'\\x7b7d'::bytea",
            id="(lpad(to_hex(ms), 12, '0') || '70008000' || lpad(to_hex(i), 12, '0'))::uuid",
            at="to_timestamp(ms / 1000.0)",
            state=STATE,
            json="jsonb_build_object('customer', (i % 1000)::text, 'half', (i % 2)::text)",
        )
        counted = f"SELECT i, {FIRST_MS} + i::bigint * {STEP_MS} AS ms"
        source = f"({counted} FROM generate_series(0, {total - 1}) AS i) AS s"
        raw.execute(f"INSERT INTO job ({COLUMNS}) {made} FROM {source}")
        raw.execute("INSERT INTO job_tag SELECT key, value, job.id FROM job, jsonb_each_text(tags)")
        add_past(raw)
        raw.execute("SET session_replication_role = origin")
        raw.execute("VACUUM ANALYZE")
        return
    for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        raw.execute(f"DROP TRIGGER {name}")
    made = rows(
        "x'7b7d'",
        id="printf('%08x-%04x-7000-8000-%012x', ms / 65536, ms % 65536, i)",
        at="ms * 1000",
        state=STATE,
        json="json_object('customer', CAST(i % 1000 AS TEXT), 'half', CAST(i % 2 AS TEXT))",
    )
    counted = (
        f"WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {total - 1}),"
        f" s AS (SELECT i, {FIRST_MS} + i * {STEP_MS} AS ms FROM n)"
    )
    raw.execute(f"{counted} INSERT INTO job ({COLUMNS}) {made} FROM s")
    raw.execute("INSERT INTO job_tag SELECT key, value, job.id FROM job, json_each(job.tags)")
    add_past(raw)
    last = "SELECT rowid, id FROM job ORDER BY rowid DESC LIMIT 1"
    raw.execute(f"UPDATE tally_mark SET (number, job_id) = ({last})")


def add_past(raw: Raw) -> None:
    """Add what triggers, workers and maintenance would have written next to the jobs."""
    raw.execute(TOTALS)
    add_run(raw)
    raw.execute(
        "INSERT INTO journal (subject_id, machine, seq, at, fence, move, to_state)"
        " SELECT id, 'job', version, created_at, 0, 'create', state FROM job"
        " WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')"
    )
    add_failures(raw)
    add_tally(raw)


def add_run(raw: Raw) -> None:
    """Add the run that a quarter of the jobs belong to, with its counters."""
    made = f"SELECT '{RUN}', 'k', 'RUNNING', 'create', min(created_at), min(created_at) FROM job"
    raw.execute(f"INSERT INTO run (id, kind, state, move, created_at, started_at) {made}")
    raw.add_step(RUN)
    counted = ", ".join(
        f"(SELECT count(*) FROM job WHERE run_id = '{RUN}' AND state {states})"
        for states in (
            *("NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED')", "= 'SUCCEEDED'"),
            *("= 'FAILED'", "= 'CANCELLED'"),
        )
    )
    raw.execute(
        f"UPDATE step_count SET (open, succeeded, failed, cancelled) = (SELECT {counted})"
        f" WHERE run_id = '{RUN}' AND slot = 0"
    )


def add_failures(raw: Raw) -> None:
    """Let the jobs that failed have done so in the last week, and count them by the hour."""
    raw.execute(
        "INSERT INTO failure (job_id, fence, at, error, fingerprint)"
        f" SELECT id, 1, {raw.now} - (max(created_at) OVER () - created_at) / 5, error, fingerprint"
        " FROM job WHERE state = 'FAILED'"
    )
    hour = "at / 3600000000 * 3600000000"
    if raw.dialect == "postgres":
        hour = "date_bin('1 hour', at, 'epoch')"
    raw.execute(
        "INSERT INTO failure_hour (fingerprint, at, count)"
        f" SELECT fingerprint, {hour}, count(*) FROM failure GROUP BY 1, 2"
    )


SPANS = ((60, 0, 180), (600, 18, 132), (3_600, 25, 167))
"""Sums of how many seconds there are, how many spans ago the last one ends, and how many."""
SUMS = [
    *((name, 0) for name in ("create", "claim", "succeed", "retry", "fail")),
    *(("wait", bucket) for bucket in range(3, 8)),
    *(("run", bucket) for bucket in range(5, 10)),
]


def add_tally(raw: Raw) -> None:
    """Add the sums of eight days: moves, waits and durations of ten kinds, each in its queue."""
    at = f"{raw.now} / {{0}}000000 * {{0}}000000 - {{0}}000000 * (n + {{1}})"
    if raw.dialect == "postgres":
        step = "make_interval(secs => {0})"
        at = f"date_bin({step}, {raw.now}, 'epoch') - (n + {{1}}) * {step}"
    for span, after, number in SPANS:
        raw.execute(
            "WITH RECURSIVE"
            f" place (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM place WHERE n < {number - 1}),"
            " kind (k) AS (SELECT 0 UNION ALL SELECT k + 1 FROM kind WHERE k < 9),"
            f" what (name, bucket) AS (VALUES {', '.join(map(str, SUMS))})"
            " INSERT INTO tally (span, at, queue, kind, name, bucket, count, sum_us)"
            f" SELECT {span}, {at.format(span, after)}, 'queue' || (k % 5), 'kind' || k,"
            f" name, bucket, {span}, {span} * 1000 FROM place, kind, what"
        )
    raw.execute("INSERT INTO tally_label (queue, kind) SELECT DISTINCT queue, kind FROM tally")
    for kind, others in (("kind", "queue <> ''"), ("''", "queue = ''")):
        raw.execute(
            "INSERT INTO tally (span, at, queue, kind, name, bucket, count, sum_us)"
            f" SELECT span, at, '', {kind}, name, bucket, sum(count), sum(sum_us) FROM tally"
            f" WHERE {others} GROUP BY 1, 2, 4, 5, 6"
        )


@pytest.fixture(scope="module", params=everyday_names())
def filled(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Database]:
    made = backends.fresh(request.param)
    with made.raw() as raw:
        fill(raw)
    yield made
    backends.drop(made)


def plan(raw: Raw, call: Call) -> str:
    statement = query(call.name, raw.dialect)
    if raw.dialect == "sqlite":
        connection: sqlite3.Connection = raw.connection
        told = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", _bound(call.parameters))
        return "\n".join(row[3] for row in told)
    cursor = raw.connection.execute(f"EXPLAIN {statement.format}", call.parameters)
    return "\n".join(row[0] for row in cursor.fetchall())


def watched(driver: Driver, asked: Callable[[], Any]) -> tuple[Any, list[Call]]:
    """Search, and keep the statements that the search made."""
    calls: list[Call] = []

    def operation():
        steps = asked()
        answer: Rows | None = None
        while True:
            try:
                call = steps.send(answer) if answer is not None else next(steps)
            except StopIteration as end:
                return end.value
            if not isinstance(call.name, str):
                calls.append(call)
            answer = yield call

    return driver.run(operation), calls


WHOLE = re.compile(r"Seq Scan on job\b|SCAN job(?! USING (COVERING )?INDEX job_(held|claim))")
"""A plan that reads a table, or an index, from end to end; few jobs are held or wait in line."""


def test_the_first_page_of_each_filter_is_read_off_an_index(filled):
    slow = {}
    with filled.driver() as driver, filled.raw() as raw:
        for text in FILTERS:
            asked = partial(search.page, filters.parse(text), most=MOST)
            page, calls = watched(driver, asked)
            assert page or page.next or text in NOTHING, text
            is_whole = len(page) == MOST or page.next is None
            assert is_whole or (text in FAR and page.looked_to is not None), text
            plans = "\n".join(plan(raw, call) for call in calls)
            assert not WHOLE.search(plans), f"{text}\n{plans}"
            if PROVING:
                seconds = p95(driver, asked)
                print(f"{raw.dialect} {text}: {len(page)} in {seconds * 1000:.1f} ms")
                if seconds > SECONDS_MAX:
                    slow[text] = (seconds, plans)
    assert slow == {}


def now_us() -> int:
    return time.time_ns() // 1_000


FOLDED = 200_000
COUNTED_SECONDS_MAX = 0.15
BOUNDED = re.compile(r"Seq Scan on job\b|SCAN job(?! USING (COVERING )?INDEX)")


def test_a_page_of_the_dashboard_and_its_counts_are_read_off_indexes(filled):
    slow = {}
    with filled.driver() as driver, filled.raw() as raw:
        while driver.run(tally.fold, most=FOLDED) >= FOLDED:  # maintenance has long done that
            pass
        for text in [
            "",
            *FILTERS,
            "state:failed queue:queue3 age:<10d",
            "kind:kind7 tenant:tenant2",
        ]:
            where = filters.parse(text)
            page, _ = watched(driver, partial(joblist.page, where, now_us=now_us(), most=MOST))
            ids = [line.job.id for line in page]
            asked = {
                "page": partial(joblist.page, where, now_us=now_us(), most=MOST),
                "again": partial(joblist.again, where, ids, now_us=now_us(), is_last=False),
                "counts": partial(joblist.counts, where, now_us=now_us()),
            }
            for name, operation in asked.items():
                _, calls = watched(driver, operation)
                plans = "\n".join(plan(raw, call) for call in calls)
                assert not BOUNDED.search(plans), f"{name} {text}\n{plans}"
                if PROVING:
                    seconds = p95(driver, operation)
                    print(f"{raw.dialect} {name} {text}: {seconds * 1000:.1f} ms")
                    most = COUNTED_SECONDS_MAX if name == "counts" else SECONDS_MAX
                    if seconds > most:
                        slow[name, text] = seconds
    assert slow == {}


def p95(driver: Driver, asked: Callable[[], Any]) -> float:
    times = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        driver.run(asked)
        times.append(time.perf_counter() - begun)
    return sorted(times)[int(ROUNDS * 0.95) - 1]
