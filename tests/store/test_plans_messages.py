"""The plans of what the relay, the API and its keys ask: by an index, in order, up to a limit.

Explained as in test_plans.py: custom and generic, on stores of which the planner knows nothing, the
truth, or yesterday's news. What was delivered, answered or read long ago is never walked.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from test_plans import POSTGRES, SCENES, Scene, explained, planned, plans, steps_of

from tests.support.databases import Backends, Raw

PAST, PRESENT = 20_000, 3_000
SMALL = 40
SERIES = {
    "postgres": "generate_series({first}, {last}) AS i",
    "sqlite": "(WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n"
    " WHERE i < {last}) SELECT i FROM n)",
}
UUID = {
    "postgres": "('00000000-0000-7000-8000-' || lpad((i)::text, 12, '0'))::uuid",
    "sqlite": "printf('00000000-0000-7000-8000-%012d', i)",
}
AGO = {"postgres": "now() - i * interval '1 second'", "sqlite": "i"}
SHA = {"postgres": "'h'", "sqlite": "x'00'"}
TABLES = ("outbox", "idempotency", "inbox", "signal", "token")


def messages(raw: Raw, first: int, last: int, *, delivered: bool) -> None:
    """Messages of two channels; every third line has another one waiting before."""
    at = AGO[raw.dialect]
    raw.execute(
        "INSERT INTO outbox (id, machine, subject_id, seq, n, line, channel, tenant, queue, kind,"
        " state, created_at, due_at, place, delivered_at)"
        f" SELECT 'job_' || i, 'job', {UUID[raw.dialect]}, 3, i,"
        f" {UUID[raw.dialect].replace('(i)', '(i / 3)').replace(', i)', ', i / 3)')},"
        " CASE WHEN i % 4 = 0 THEN 'other' ELSE 'orders' END, '', 'default', 'k', 'SUCCEEDED',"
        f" {at}, {at}, CASE WHEN i % 2 = 0 THEN i END, {at if delivered else 'NULL'}"
        f" FROM {SERIES[raw.dialect].format(first=first, last=last)}"
    )


def others(raw: Raw, first: int, last: int) -> None:
    at, many = AGO[raw.dialect], SERIES[raw.dialect].format(first=first, last=last)
    raw.execute(
        "INSERT INTO idempotency (scope, key, fingerprint, created_at)"
        f" SELECT 'local', 'k' || i, 'f', {at} FROM {many}"
    )
    raw.execute(
        "INSERT INTO inbox (source, message_id, at, error)"
        f" SELECT 'nats', 'm' || i, {at}, CASE WHEN i % 50 = 0 THEN 'refused' END FROM {many}"
    )
    raw.execute(
        "INSERT INTO token (id, name, hash, scopes, created_at)"
        f" SELECT 't' || i, 'name ' || i, {SHA[raw.dialect]}, 'read', {at} FROM {many}"
    )
    job = UUID[raw.dialect]
    raw.execute(
        f"INSERT INTO job (id, kind, state, move) SELECT {job}, 'k', 'QUEUED', 'create' FROM {many}"
    )
    raw.execute(
        f"INSERT INTO signal (id, job_id, at, fence) SELECT {job}, {job}, {at}, 0 FROM {many}"
    )


@pytest.fixture(scope="module", params=[(b, s) for b in POSTGRES[:1] for s in SCENES], ids="-".join)
def scene(request, backends: Backends) -> Iterator[Scene]:
    backend, name = request.param
    with backends.fresh(backend).raw() as raw:
        for table in (*TABLES, "job"):
            raw.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
            raw.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        past, present = (SMALL, SMALL) if name == "never analysed, small" else (PAST, PRESENT)
        messages(raw, 1, past, delivered=True)
        if name == "analysed when idle":
            raw.execute("ANALYZE")
        messages(raw, past + 1, past + present, delivered=False)
        others(raw, 1, past)
        if name == "analysed":
            raw.execute("ANALYZE")
        yield planned(raw, name)


ALL: dict[str, Any] = {"tenant": None, "queues": None}
ASKED: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "outbox_take": (
        "outbox",
        {"channel": "orders", "tenant": "", "most": 100, "lease_us": 30_000_000},
        {"outbox_due", "outbox_line", "outbox_pkey"},
    ),
    "outbox_coming": ("outbox", {"name": ["orders", "other"]}, {"outbox_due"}),
    "outbox_give_up": ("outbox", {"keep_us": 1, "most": 100}, {"outbox_old"}),
    "outbox_place": (
        "outbox",
        {"channel": "orders", "last": 0, "most": 100},
        {"outbox_new", "outbox_pkey"},
    ),
    "outbox_offered": (
        "outbox",
        {"channel": "orders", "after": 0, "most": 100, **ALL},
        {"outbox_place"},
    ),
    "outbox_ack_upto": ("outbox", {"channel": "orders", "place": 5, **ALL}, {"outbox_place"}),
    "outbox_list": (
        "outbox",
        {"channel": "orders", "before": 10**9, "state": None, "most": 100, **ALL},
        {"outbox_listed"},
    ),
    "outbox_get": ("outbox", {"id": "job_7"}, {"outbox_pkey"}),
    "outbox_delivered": ("outbox", {"id": ["job_7"], "fence": [1]}, {"outbox_pkey"}),
    "idempotency_get": ("idempotency", {"scope": "local", "key": "k7"}, {"idempotency_pkey"}),
    "idempotency_answer": (
        "idempotency",
        {"scope": "local", "key": "k7", "answer": b""},
        {"idempotency_pkey"},
    ),
    "idempotency_prune": (
        "idempotency",
        {"keep_us": 1, "most": 100},
        {"idempotency_age"},
    ),
    "inbox_get": ("inbox", {"source": "nats", "message_id": "m7"}, {"inbox_pkey"}),
    "inbox_forget": ("inbox", {"keep_us": 1, "most": 100}, {"inbox_old"}),
    "token_get": ("token", {"id": "t7"}, {"token_pkey"}),
    "signal_take": (
        "signal",
        {"id": "00000000-0000-7000-8000-000000000007", "fence": 1},
        {"signal_job"},
    ),
}


WAITING = {"outbox_due", "outbox_line", "outbox_new", "outbox_place", "outbox_old"}
"""Where nothing waited when the planner last looked, one index of what waits is as good to it."""


def test_what_waits_is_found_by_its_index(scene):
    for name, (table, given, indexes) in ASKED.items():
        for plan in plans(scene.raw, name, dict(given), ways=("psycopg",)):
            read = plan.reads(table)
            found = {at for kind, at in read if kind not in ("Bitmap Heap Scan", "Tid Scan")}
            if scene.name == "analysed when idle" or name == "outbox_ack_upto":
                # An acknowledgement up to a place is of nearly all that waits.
                assert found <= indexes | WAITING, f"{plan.of}: what is over is not walked"
            else:
                assert found == indexes, (scene.name, plan.of)


def test_messages_are_taken_in_order_without_reading_all_that_wait(scene):
    """A backlog is not sorted anew for every hundred that are taken of it."""
    table, given, _ = ASKED["outbox_take"]
    plan = explained(scene.raw, "outbox_take", dict(given), mode="generic", way="asyncpg")
    if scene.name not in ("never analysed, small", "analysed when idle"):
        kinds = {node["Node Type"] for node in plan.nodes}
        assert ("Index Scan", "outbox_due") in plan.reads(table)
        assert "Sort" not in kinds
        assert not {"Hash Join", "Merge Join"} & kinds


# SQLite


@pytest.fixture(scope="module", params=["never analysed", "analysed", "analysed when idle"])
def lite(request, backends: Backends) -> Iterator[sqlite3.Connection]:
    database = backends.fresh("sqlite")
    with database.raw() as raw:
        raw.disarm()
        messages(raw, 1, PAST // 10, delivered=True)
        if request.param == "analysed when idle":
            raw.execute("ANALYZE")
        messages(raw, PAST // 10 + 1, (PAST + PRESENT) // 10, delivered=False)
        others(raw, 1, PAST // 10)
        if request.param == "analysed":
            raw.execute("ANALYZE")
        with database.raw() as fresh:
            yield fresh.connection


def test_what_waits_on_sqlite_is_found_by_its_index(lite):
    no_rows = {"outbox_coming": {"name": json.dumps(ASKED["outbox_coming"][1]["name"])}}
    for name, (table, given, _) in ASKED.items():
        found = steps_of(lite, name, no_rows.get(name) or dict(given))
        read = [line for line in found.splitlines() if line.startswith(("SCAN", "SEARCH"))]
        walked = [line for line in read if line.startswith("SCAN") and "INDEX" not in line]
        assert [line for line in walked if line.split()[1] in (table, "o", "e")] == [], name


def test_messages_are_taken_on_sqlite_in_order(lite):
    _, given, _ = ASKED["outbox_take"]
    found = steps_of(lite, "outbox_take", dict(given))
    assert "SEARCH o USING INDEX outbox_due (channel=? AND due_at<?)" in found
    assert "SEARCH e USING INDEX outbox_line (channel=? AND line=? AND n<?)" in found
    assert "USE TEMP B-TREE FOR ORDER BY" not in found
