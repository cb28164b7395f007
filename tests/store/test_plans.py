"""The plans of the hot statements, in the very texts that the drivers run.

Each is explained as a custom plan and as the generic one that a prepared statement ends up with, on
a store that was never analysed (small and large), one whose statistics are right, and one whose
statistics were taken when nothing was going on.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from milepost.limit import limit_key
from milepost.outcome import succeeded
from milepost.store import jobs, limits, rules
from milepost.store.catalog import query, with_same
from milepost.store.connections import PLANNED
from milepost.store.failures import ERROR_WORDS
from milepost.store.postgres import array
from milepost.store.rules import Limit
from milepost.store.sqlite_calls import _alike, _packed
from tests.support.databases import Backends, Database, Raw, backend_names
from tests.support.suite import opened

POSTGRES = [name for name in backend_names() if name.startswith("postgres")]
SMALL, LARGE = 60, 30_000
MODES = ("custom", "generic")
DRIVERS = ("psycopg", "asyncpg")
SIZES = (1, 100, 1000)
BUSY = 1_000
"""How many jobs stand in each state that something looks for, in the large stores."""

INSERT = """
INSERT INTO job (id, kind, state, move, queue, version, fence, worker_id, due_at, deadline_at,
                 run_id, step, finished_at)
SELECT gen_random_uuid(), 'k', '{state}', 'create', 'default', 1, 1, {worker}, {due}, {deadline},
       {run}, 0, {finished}
  FROM generate_series(1, {count})"""
RUN = "(SELECT id FROM run LIMIT 1)"


def add(raw: Raw, count: int, state: str, **columns: str) -> None:
    """Put rows there as they would stand after long use, past the triggers."""
    given = {"worker": "NULL", "due": "NULL", "deadline": "NULL", "run": "NULL", "finished": "NULL"}
    raw.execute(INSERT.format(state=state, count=count, **{**given, **columns}))


def add_past(raw: Raw, count: int) -> None:
    add(raw, count, "SUCCEEDED", finished="now()", worker="NULL", deadline="now()")
    raw.execute(
        "INSERT INTO run (id, kind, state, move, version) SELECT gen_random_uuid(), 'r',"
        f" 'SUCCEEDED', 'create', 1 FROM generate_series(1, {count // 4})"
    )


def add_present(raw: Raw, count: int) -> None:
    raw.execute(
        "INSERT INTO run (id, kind, state, move) SELECT gen_random_uuid(), 'r', 'RUNNING', 'create'"
        " FROM generate_series(1, 10)"
    )
    add(raw, 10 * count, "QUEUED")
    add(raw, count, "QUEUED", run=RUN)
    add(raw, count, "RUNNING", worker="'w'")
    add(raw, count, "WAITING", due="now() - interval '1 hour'")
    add(raw, count, "RETRYING", due="now() + interval '1 hour'")
    add(raw, count, "WAITING", due="now() + interval '1 day'", deadline="now() - interval '1 hour'")


def fill(raw: Raw, scene: str) -> None:
    """Make a store in which the planner knows nothing, the truth, or yesterday's news."""
    for table in ("job", "run"):
        raw.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        raw.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    raw.execute(
        "INSERT INTO worker (id, state, move, lease_until)"
        " VALUES ('w', 'STARTUP', 'boot', now() + interval '1 day')"
    )
    small = scene == "never analysed, small"
    add_past(raw, SMALL if small else LARGE)
    if scene == "analysed when idle":
        raw.execute("ANALYZE")
    add_present(raw, SMALL // 10 if small else BUSY)
    if scene == "analysed":
        raw.execute("ANALYZE")
    for table in ("job", "run"):
        raw.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


SCENES = ("never analysed, small", "never analysed, large", "analysed", "analysed when idle")


@dataclass(frozen=True)
class Scene:
    raw: Raw
    name: str


def planned(raw: Raw, name: str) -> Scene:
    """Have the session plan as those of the engine do."""
    for setting, value in PLANNED.items():
        raw.execute(f"SET {setting} = {value}")
    return Scene(raw, name)


@pytest.fixture(scope="module", params=[(b, s) for b in POSTGRES for s in SCENES], ids="-".join)
def scene(request, backends: Backends) -> Iterator[Scene]:
    backend, name = request.param
    with backends.fresh(backend).raw() as raw:
        fill(raw, name)
        yield planned(raw, name)


# What the drivers would send


def claim(most: int) -> dict[str, Any]:
    return {
        "worker_id": "w",
        "queue": ["default"] * 10,
        "priority": list(range(9, -1, -1)),
        "floor": [0] * 10,
        "most": most,
        "kinds": ["k 1", "other 1"],
        "alone": False,
        "ahead": False,
        "timed": False,
    }


def settle(raw: Raw, count: int) -> dict[str, Any]:
    held = raw.execute(f"SELECT id::text, fence FROM job WHERE state = 'RUNNING' LIMIT {count}")
    size = len(held)
    return {
        "id": [row[0] for row in held],
        "fence": [row[1] for row in held],
        "move": ["succeed"] * size,
        "state": ["SUCCEEDED"] * size,
        "result": [b"%d" % number for number in range(size)],
        "actor": "w",
        **{name: [None] * size for name in ("delay_us", "error", "cause", "detail")},
        **{name: [] for name in ERROR_WORDS},
    }


@dataclass(frozen=True)
class Plan:
    """What a plan reads, and how."""

    of: str
    nodes: list[Mapping[str, Any]]

    def reads(self, table: str) -> set[tuple[str, str | None]]:
        return {
            (node["Node Type"], node.get("Index Name"))
            for node in self.nodes
            if node.get("Relation Name") == table and node["Node Type"] != "ModifyTable"
        } | {
            ("Bitmap Index Scan", node["Index Name"])
            for node in self.nodes
            if node["Node Type"] == "Bitmap Index Scan" and node["Index Name"].startswith(table)
        }

    def sorts(self, column: str) -> bool:
        return any(column in key for node in self.nodes for key in node.get("Sort Key", ()))


def explained(raw: Raw, name: str, parameters: Mapping[str, Any], *, mode: str, way: str) -> Plan:
    """Explain a statement as one of the drivers sends it."""
    statement = query(name, "postgres")
    text = statement.numbered if way == "psycopg" else statement.written
    given = ", ".join(literal(parameters[name]) for name in statement.parameters)
    raw.execute(f"PREPARE hot AS {text}")
    try:
        raw.execute(f"SET plan_cache_mode = force_{mode}_plan")
        [[found]] = raw.execute(f"EXPLAIN (FORMAT JSON) EXECUTE hot ({given})")
    finally:
        raw.execute("DEALLOCATE hot")
        raw.execute("RESET plan_cache_mode")
    document = found if isinstance(found, list) else json.loads(found)
    return Plan(f"{name}, {mode}, {way}", list(walk(document[0]["Plan"])))


def plans(
    raw: Raw, name: str, parameters: Mapping[str, Any], *, ways: tuple[str, ...] = DRIVERS
) -> Iterator[Plan]:
    """Explain a statement as a custom plan and as the generic one, as each driver sends it."""
    for mode, way in product(MODES, ways):
        yield explained(raw, name, parameters, mode=mode, way=way)


def walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


def literal(value: Any) -> str:
    if value is None:
        return "NULL"
    text = array(value) if isinstance(value, list) else str(value)
    return "'" + text.replace("'", "''") + "'"


sizes = pytest.mark.parametrize("size", [1, 100, 1000])
BY_ID = ("Index Scan", "job_pkey")


def only(plan: Plan, scene: Scene, *allowed: tuple[str, str | None]) -> None:
    """Assert what is read of `job`, even in a store of a few pages: a prepared plan outlives it."""
    assert plan.reads("job") == set(allowed), (scene.name, plan.of)


def by_id(plan: Plan, table: str) -> bool:
    return all(at for kind, at in plan.reads(table) if kind != "Bitmap Heap Scan")


def test_a_claim_walks_its_index_in_order_and_updates_rows_in_their_places(scene):
    for size in SIZES:
        for plan in plans(scene.raw, "job_claim", claim(size)):
            only(plan, scene, ("Index Scan", "job_claim"), ("Tid Scan", None))
            assert not plan.sorts("queued_seq"), plan.of
            assert by_id(plan, "run"), plan.of


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_worker_that_waited_in_an_empty_store_reads_none_of_its_tables_whole(backends, colour):
    """Its claims were prepared there, and read all jobs each time when there were many."""
    database = backends.fresh(POSTGRES[0])
    with database.raw() as raw:
        raw.execute("ALTER TABLE job SET (autovacuum_enabled = false)")
        with opened(database, colour) as store:
            store.run(rules.declare, {("job", "r"): Limit(most=BUSY)})
            line, worker = jobs.lines(["default"]), store.worker()
            for size in (*[1] * 12, *[BUSY] * 3):
                store.create(size)
                store.create(size, limit_key=limit_key("r", "one"))
                claims = store.run(jobs.claim, worker_id=worker, line=line, most=BUSY)
                reach = limits.Reach(front=BUSY)
                asked = {"worker_id": worker, "line": line, "most": BUSY, "reach": reach}
                more, _ = store.run(limits.claim, **asked)
                assert len(claims) == len(more) == size
                store.settle(*[(claim, succeeded()) for claim in (*claims, *more)], actor=worker)
        # What a session has read is counted when it ends, by itself.
        until = time.monotonic() + 10
        read = "SELECT idx_tup_fetch, seq_tup_read FROM pg_stat_user_tables WHERE relname = 'job'"
        while (found := raw.execute(read)[0])[0] < 3 * BUSY and time.monotonic() < until:
            time.sleep(0.05)
        assert found[0] >= 3 * BUSY
        assert found[1] < BUSY, "rows of jobs were read by scans of the whole table"


@pytest.mark.parametrize("name", ["job_settle", "job_succeed"])
def test_a_settle_looks_each_job_up_by_its_id(scene, name):
    for size in SIZES:
        for plan in plans(scene.raw, name, settle(scene.raw, size)):
            only(plan, scene, BY_ID)
            assert by_id(plan, "run"), plan.of


def test_suspects_are_found_by_an_index_that_has_few_others(scene):
    place = dict.fromkeys(["after_priority", "after_seq", "after_id"])
    asked = {**place, "queues": None, "kinds": ["k 1"], "most": 16}
    for plan in plans(scene.raw, "job_suspects", asked):
        found = {at for kind, at in plan.reads("job") if kind != "Bitmap Heap Scan"}
        assert found == {"job_spent"}, plan.of


CHORES = [
    ("job_wake", "job_due"),
    ("job_lose", "job_held"),
    ("job_expire", "job_deadline"),
    ("job_expire_held", "job_unsubmitted"),
    ("unfit_wake", "job_unfit"),
    ("job_reject_spent", "job_spent"),
]

MORE: dict[str, dict[str, Any]] = {
    "job_expire_held": {"hold_us": 3_600_000_000},
    "unfit_wake": {"kind": ["k"], "kind_version": [1], "signature": ["s"], "queues": None},
}


def test_a_chore_finds_what_is_due_by_its_index_and_updates_by_id(scene):
    for (name, index), size in product(CHORES, SIZES):
        given = {"actor": "m", "most": size, **MORE.get(name, {})}
        for plan in plans(scene.raw, name, given, ways=("psycopg",)):
            # Few in a large table may be read in the order of the heap; all that counts is which.
            found = {at for kind, at in plan.reads("job") if kind != "Bitmap Heap Scan"}
            assert found == {index, "job_pkey"}, plan.of


def test_the_look_for_chores_that_are_due_walks_no_table(scene):
    limits = ("hold_us", "hint_us", "keep_us", "fold_us", "roll_us")
    due = {**dict.fromkeys(limits, 3_600_000_000), "minute": 60}
    indexes = {index for _, index in CHORES} - {"job_unfit"} | {"job_ready"}
    for plan in plans(scene.raw, "maintain_due", due, ways=("psycopg",)):
        found = {at for kind, at in plan.reads("job") if kind != "Bitmap Heap Scan"}
        assert found <= indexes, plan.of


def test_opening_a_gate_walks_the_runs_jobs_and_stops_at_its_limit(scene):
    run_id = scene.raw.value("SELECT id::text FROM run WHERE state = 'RUNNING' LIMIT 1")
    given = {"run_id": [run_id], "most": 1000, "actor": "m"}
    for name in ("job_open", "job_release_held"):
        for plan in plans(scene.raw, name, given, ways=("psycopg",)):
            only(plan, scene, ("Index Scan", "job_run"), BY_ID)
            assert not plan.sorts("job."), plan.of


OLD = {
    "after": "00000000-0000-0000-0000-000000000000",
    "before": "ffffffff-ffff-7fff-8fff-ffffffffffff",
    "succeeded_us": 1,
    "failed_us": 1,
}


@pytest.mark.parametrize(("table", "size"), [("job", 500), ("run", 50)])
def test_retention_walks_the_key_in_order_and_stops_at_its_limit(scene, table, size):
    if scene.name == "never analysed, small":
        return  # it is rare, and its plan is made anew with the statistics that a larger one gets
    for plan in plans(scene.raw, f"retention_{table}s", {**OLD, "most": size}):
        # By its index each is asked for a rerun.
        again = {("Index Scan", "job_rerun"), ("Bitmap Index Scan", "job_rerun")}
        walked = plan.reads(table) - again - {("Bitmap Heap Scan", None)}
        assert walked == {("Index Scan", f"{table}_pkey")}, plan.of
        assert not plan.sorts("id"), plan.of


def test_what_leaves_is_looked_up_by_its_id(scene):
    for size in (1, 100):
        ids = [row[0] for row in scene.raw.execute(f"SELECT id::text FROM job LIMIT {size}")]
        for plan in plans(scene.raw, "retention_forget_job", {"id": ids}):
            assert by_id(plan, "job"), plan.of


# SQLite: no statistics unless somebody asks for them


@pytest.fixture(scope="module", params=["never analysed", "analysed", "analysed when idle"])
def lite(request, backends: Backends) -> Iterator[sqlite3.Connection]:
    database: Database = backends.fresh("sqlite")
    with database.raw() as raw:
        raw.disarm()
        fill_lite(raw, "SUCCEEDED", 3_000)
        if request.param == "analysed when idle":
            raw.execute("ANALYZE")
        for state in ("QUEUED", "RUNNING", "WAITING", "RETRYING"):
            fill_lite(raw, state, 300)
        if request.param == "analysed":
            raw.execute("ANALYZE")
        # Statistics are read when a connection opens.
        with database.raw() as fresh:
            yield fresh.connection


def fill_lite(raw: Raw, state: str, count: int) -> None:
    raw.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
        " INSERT INTO job (id, kind, state, move, worker_id, due_at, deadline_at, queued_seq)"
        " SELECT :state || i, 'k', :state, 'create', CASE :state WHEN 'RUNNING' THEN 'w' END,"
        " i, i, i FROM n",
        {"state": state, "count": count},
    )


def steps_of(connection: sqlite3.Connection, name: str, parameters: dict[str, Any]) -> str:
    """Explain a statement just as the driver sends it."""
    statement = query(name, "sqlite")
    lists = {name: parameters.pop(name.removesuffix("*")) for name in statement.rows}
    same = frozenset(name for name, values in lists.items() if _alike(values))
    parameters |= {name.removesuffix("*"): (lists.pop(name) or [None])[0] for name in same}
    texts = (with_same(name, same) if statement.rows else statement).texts
    given = {**parameters, "picked": "[]", **(_packed(lists, slice(0, 1)) if lists else {})}
    if statement.rows:
        given = {"rows": "[]", **given}
    return "\n".join(
        row[3]
        for text in texts
        for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", given).fetchall()
    )


@sizes
def test_a_claim_on_sqlite_walks_its_index_in_order(lite, size):
    lines = {"queue": ["default"] * 10, "priority": list(range(9, -1, -1)), "floor": [0] * 10}
    given = {
        **lines,
        "worker_id": "w",
        "most": size,
        "kinds": '["k 1"]',
        "alone": False,
        "ahead": False,
        "timed": False,
    }
    found = steps_of(lite, "job_claim", given)
    assert "job_claim (queue=? AND priority=? AND limit_key=? AND queued_seq>?)" in found
    assert "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)" in found
    assert found.index("SCAN json_each") < found.index("job_claim"), "the line is the outer loop"
    assert "TEMP B-TREE" not in found
    assert "SCAN job" not in found
    assert "SCAN run" not in found


@sizes
@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("name", ["job_settle", "job_succeed"])
def test_a_settle_on_sqlite_looks_each_job_up_by_its_id(lite, name, size, alike):
    given = {name: list(range(size)) for name in ("id", "fence", "move", "state", "delay_us")}
    given |= {name: [None] * size for name in ("error", "cause", "detail")}
    given |= {name: [] for name in ERROR_WORDS}
    given |= {"result": [b"%d" % number for number in range(size)], "actor": "w"}
    if alike:
        given |= {name: v[:1] * size for name, v in given.items() if name not in ("id", "actor")}
    found = steps_of(lite, name, given)
    assert ("MATERIALIZE" in found) is (size == 1 or not alike), "a table only where it helps"
    assert "SEARCH job USING INDEX sqlite_autoindex_job_1 (id=?)" in found
    assert "SCAN job" not in found
    assert "SCAN run" not in found


@pytest.mark.parametrize(("name", "index"), CHORES)
def test_a_chore_on_sqlite_finds_what_is_due_by_its_index(lite, name, index):
    more = {key: v[0] if isinstance(v, list) else v for key, v in MORE.get(name, {}).items()}
    found = steps_of(lite, name, {"actor": "m", "most": 100, **more})
    assert f"INDEX {index}" in found
    assert "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)" in found
    looked = [line for line in found.splitlines() if " job " in line]
    assert all(f"INDEX {index}" in line or "INTEGER PRIMARY KEY" in line for line in looked), found


def test_opening_a_gate_on_sqlite_walks_the_runs_jobs_and_stops_at_its_limit(lite):
    for name in ("job_open", "job_release_held", "job_cancel_stopped"):
        found = steps_of(lite, name, {"run_id": "r", "most": 1000, "actor": "m"})
        assert "SEARCH job USING COVERING INDEX job_run (run_id=?" in found
        assert "TEMP B-TREE" not in found
        assert "SCAN job" not in found


def test_retention_on_sqlite_walks_the_key_in_order(lite):
    found = steps_of(lite, "retention_jobs", {**OLD, "most": 100})
    assert "SEARCH job USING INDEX sqlite_autoindex_job_1 (id>?)" in found
    assert "TEMP B-TREE" not in found
