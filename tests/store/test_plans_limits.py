"""Looks at limits read a bounded number of rows, however many wait (L-20, L-21)."""

import json

import pytest

from milepost.limit import limit_key
from milepost.store import rules, workers
from milepost.store.catalog import query
from milepost.store.rules import Limit
from tests.support.databases import Backends, backend_names
from tests.support.suite import opened
from tests.support.suite.limits import ASKED

POSTGRES = [name for name in backend_names() if name.startswith("postgres")]
MANY, MOST = 6_000, 20
INSERT = """
INSERT INTO job (id, kind, state, move, queue, version, limit_key, queued_seq)
SELECT gen_random_uuid(), 'k', 'QUEUED', 'create', 'default', 1, {key}, n
  FROM generate_series({first}, {last}) AS n"""
OTHERS = "to_hex(n % 16) || '/o/k' || n"


@pytest.fixture(scope="module")
def full(request, backends: Backends):
    """A server's store that was never analysed: one key with many jobs, and many keys."""
    database = backends.fresh(POSTGRES[0])
    with opened(database, "sync") as store:
        store.run(rules.declare, {("job", "r"): Limit(most=1), ("job", "o"): Limit(ordered=True)})
    with database.raw() as raw:
        raw.execute("ALTER TABLE job SET (autovacuum_enabled = false)")
        raw.execute("ALTER TABLE job DISABLE TRIGGER USER")
        raw.execute(INSERT.format(key=f"'{limit_key('r', 'big')}'", first=1, last=MANY))
        raw.execute(INSERT.format(key=OTHERS, first=MANY + 1, last=2 * MANY))
        [[last]] = raw.execute("SELECT id::text FROM job ORDER BY queued_seq DESC LIMIT 1")
        yield raw, last


def read(node: dict) -> int:
    """Count the rows that scans of `job` met, those that a filter removed included."""
    met = sum(read(child) for child in node.get("Plans", ()))
    if node.get("Relation Name") != "job" or "Bitmap" in node["Node Type"]:
        return met + (node.get("Relation Name") == "job") * node["Actual Rows"]
    rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return round(met + rows * node["Actual Loops"])


@pytest.mark.skipif(not POSTGRES, reason="needs a server")
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("limit_running", {"name": ["r", "o"], "prefix": ["/r", "/o"], "most": MOST}),
        ("limit_waiting", {"name": ["r", "o"], "prefix": ["/r", "/o"], "most": MOST}),
        ("limit_holders", {"key": limit_key("r", "big"), "most": MOST, "shown": MOST}),
        ("queue_holders", {"queue": "default", "most": MOST, "shown": MOST}),
        ("limit_before", {"id": None, "most": MOST}),
        ("queue_before", {"id": None, "most": MOST}),
        ("queue_first", {"queue": "default"}),
        ("limit_turn", {"key": None, "queue": "default", "priority": 0}),
    ],
)
def test_a_look_at_limits_reads_a_bounded_number_of_rows(full, name, given):
    raw, last = full
    asked = {**given, **({"id": last} if "id" in given else {})}
    if "key" in given and given["key"] is None:
        asked["key"] = raw.execute(f"SELECT limit_key FROM job WHERE id = '{last}'")[0][0]
    text = query(name, "postgres").text
    [[found]] = raw.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", asked)
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    assert read(plan) <= 10 * MOST, plan


@pytest.mark.skipif(not POSTGRES, reason="needs a server")
@pytest.mark.parametrize("name", ["job_claim", "job_claim_limited"])
def test_a_claim_that_finds_no_job_writes_nothing(backends: Backends, name):
    """Workers that rest ask again and again: each of those looks would wait for the disk."""
    database = backends.fresh(POSTGRES[0])
    with opened(database, "sync") as store:
        store.run(workers.register, workers.NewWorker(id="w1", lease_us=10**9))
    asked = {**ASKED, "most": 10, "front": 10, "visits": 4, "newest": 4}
    statement = query(name, "postgres")
    with database.raw() as raw:
        raw.execute(INSERT.format(key="NULL", first=1, last=9).replace("'default'", "'other'"))
        raw.execute("SET enable_seqscan = off")  # as the engine's sessions do
        raw.execute("BEGIN")
        raw.execute(statement.text, {key: asked[key] for key in statement.parameters})
        assert raw.execute("SELECT pg_current_xact_id_if_assigned()::text") == [(None,)]
        raw.execute("ROLLBACK")
