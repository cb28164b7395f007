"""The plans of fan-in, outputs and runs: whatever is asked of one run, no other is walked.

Explained as in test_plans.py: custom and generic, on stores of which the planner knows nothing, the
truth, or yesterday's news. Half of the jobs are one run's; the rest belong to many others.
"""

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from test_plans import POSTGRES, SCENES, Scene, explained, planned, plans, steps_of

from milepost.store.catalog import query
from tests.support.databases import Backends, Raw
from tests.support.prove import PROVING

LARGE = 100_000 if PROVING else 20_000
SMALL = 60
EACH = 2
"""How many jobs a run has that is not the large one."""
SERIES = {
    "postgres": "generate_series({first}, {last}) AS i",
    "sqlite": "(WITH RECURSIVE n (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n"
    " WHERE i < {last}) SELECT i FROM n)",
}
UUID = {
    "postgres": "('{kind}-0000-7000-8000-' || lpad(({of})::bigint::text, 12, '0'))::uuid",
    "sqlite": "printf('{kind}-0000-7000-8000-%012d', {of})",
}
TABLES = ("job", "run", "step", "step_count", "staged", "publication", "journal")
STATE = (
    "CASE WHEN i % 2 = 0 AND i < {many} * 0.5 THEN 'SUCCEEDED' WHEN i % 97 = 0 THEN 'FAILED'"
    " WHEN i % 7 = 0 THEN 'GATED' WHEN i % 5 = 0 THEN 'QUEUED' ELSE 'SUCCEEDED' END"
)


def of(raw: Raw, kind: str, number: str) -> str:
    return UUID[raw.dialect].format(kind=kind * 8, of=number)


def a(kind: str, number: int) -> str:
    return f"{kind * 8}-0000-7000-8000-{number:012}"


def fill_runs(raw: Raw, many: int) -> None:
    """Runs with three steps each: the first one is open, the others are over."""
    true, count = {"postgres": "true", "sqlite": "1"}[raw.dialect], many // EACH + 1
    few = SERIES[raw.dialect].format(first=1, last=count)
    run = of(raw, "a", "i")
    raw.execute(
        "INSERT INTO run (id, kind, state, move, unique_key, resumes)"
        f" SELECT {run}, 'batch', CASE WHEN i % 50 = 1 THEN 'RUNNING' ELSE 'SUCCEEDED' END,"
        f" 'create', 'k' || i, CASE WHEN i % 10 = 3 THEN {of(raw, 'a', 'i - 1')} END FROM {few}"
    )
    for number in range(3):
        raw.execute(
            "INSERT INTO step (run_id, number, name, kind, gated, opened)"
            f" SELECT {run}, {number}, 's{number}', 'k', {true}, {true} FROM {few}"
        )
        for slot in (-1, 0):
            raw.execute(
                "INSERT INTO step_count (run_id, step, slot)"
                f" SELECT {run}, {number}, {slot} FROM {few}"
            )


def fill_jobs(raw: Raw, first: int, last: int) -> None:
    many = SERIES[raw.dialect].format(first=first, last=last)
    whose = of(raw, "a", f"CASE WHEN i % 2 = 0 THEN 1 ELSE i / {EACH} + 1 END")
    raw.execute(
        "INSERT INTO job (id, kind, state, move, run_id, step, ordinal)"
        f" SELECT {of(raw, 'b', 'i')}, 'k', {STATE.format(many=last)}, 'create', {whose}, i % 3, i"
        f" FROM {many}"
    )
    raw.execute(
        "INSERT INTO staged (producer_id, fence, seq, step, job_id)"
        f" SELECT {of(raw, 'b', 'i / 1000')}, 1, i, 1, {of(raw, 'c', 'i')} FROM {many}"
    )
    raw.execute(
        "INSERT INTO publication (producer_id, fence, run_id, total, published, first_step)"
        f" SELECT {of(raw, 'b', 'i')}, 1, {of(raw, 'a', f'i / {EACH} + 1')}, 9,"
        f" CASE WHEN i % 1000 = 0 THEN 3 ELSE 9 END, 1 FROM {many}"
    )


@pytest.fixture(scope="module", params=[(b, s) for b in POSTGRES[:1] for s in SCENES], ids="-".join)
def scene(request, backends: Backends) -> Iterator[Scene]:
    backend, name = request.param
    with backends.fresh(backend).raw() as raw:
        for table in ("job", "run"):
            raw.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        for table in TABLES[:-1]:
            raw.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
        many = SMALL if name == "never analysed, small" else LARGE
        fill_runs(raw, many)
        fill_jobs(raw, 1, many // 2)
        if name == "analysed when idle":
            raw.execute("ANALYZE")
        fill_jobs(raw, many // 2 + 1, many)
        if name == "analysed":
            raw.execute("ANALYZE")
        yield planned(raw, name)


RUN, OTHER, JOB = a("a", 1), a("a", 3), a("b", 1)
ENDED = [a("b", number) for number in range(1, 101)]
SLICES = {"producer_id": [JOB], "fence": [1], "run_id": [RUN], "low": [0], "high": [9]}
MOVES: dict[str, list[Any]] = {
    "id": [RUN],
    "version": [1],
    "state": ["FINALIZING"],
    "move": ["finalize"],
    **{name: [None] for name in ("cause", "ending", "current_step", "phase", "watermark", "error")},
}
ASKED: dict[str, dict[str, Any]] = {
    "run_lock": {"id": [RUN, OTHER]},
    "run_lock_tree": {"id": [RUN, OTHER]},
    "run_depths": {"id": [RUN, OTHER]},
    "run_children_active": {"id": RUN, "most": 500},
    "run_lost_children": {"id": RUN},
    "run_tree": {"id": RUN},
    "run_peek": {"id": [RUN, OTHER]},
    "run_get": {"id": RUN},
    "run_steps": {"id": [RUN, OTHER]},
    "run_counts": {"id": [RUN, OTHER]},
    "run_move": {**MOVES, "actor": "m", "detail": None},
    "run_results": {"run_id": RUN, "step": 2, "after": JOB, "most": 500},
    "run_unfinished": {"run_id": RUN, "new_id": OTHER, "after": JOB, "most": 500},
    "run_errors": {"id": RUN, "most": 100},
    "run_cancelled": {"id": RUN, "most": 100},
    "run_responses": {"run_id": RUN, "after": JOB, "ended": 0, "most": 500},
    "run_records": {"run_id": OTHER, "root_id": OTHER, "pipeline_id": 1},
    "partition_list": {"root_id": OTHER, "run_id": OTHER},
    "progress_carry": {"run_id": OTHER},
    "message_jobs": {"id": OTHER, "most": 100},
    "retention_run_jobs": {"id": [OTHER], "most": 1000},
    "run_chain": {"id": OTHER},
    "run_resumed_by": {"id": RUN},
    "run_succeeded_before": {"id": OTHER},
    "run_live": {"after": None, "most": 100},
    "run_live_by_key": {"tenant": "", "kind": "batch", "unique_key": "k7"},
    "run_reusable": {"tenant": "", "kind": "batch", "params_key": "k7"},
    "rerun_lock": {"id": ENDED},
    "rerun_newest": {"id": ENDED},
    "rerun_older": {"id": JOB},
    "rerun_needs": {"id": JOB},
    "rerun_chain": {"id": JOB},
    "durable_look_back": {"id": JOB, "fence": 1, "name": "charge"},
    "cursor_look_back": {"id": JOB},
    "job_rerun": {
        "old_id": ENDED,
        "new_id": [a("c", number) for number in range(1, 101)],
        "run_id": OTHER,
        "state": "CREATED",
        "actor": "m",
        "trace": None,
        "fresh": False,
    },
    "run_late": {"most": 100},
    "run_forgotten": {"most": 100},
    "run_is_forgotten": {"id": RUN},
    "step_filled": {"run_id": RUN, "number": 0},
    "step_open": {"run_id": [RUN], "number": [1]},
    "step_get": {"run_id": RUN, "number": 1},
    "job_create_in_steps": {
        "id": ENDED,
        "run_id": [RUN] * 100,
        "step": [1] * 100,
        "parent_id": [JOB] * 100,
        "ordinal": list(range(100)),
        "codec": ["json"] * 100,
        "payload": [b"1"] * 100,
        "limit_key": [None] * 100,
        "actor": "m",
    },
    "job_open": {"run_id": [RUN], "most": 1000, "actor": "m"},
    "job_release_held": {"run_id": [RUN], "most": 1000, "actor": "m"},
    "job_cancel_stopped": {"run_id": RUN, "most": 1000, "actor": "m"},
    "publication_add": {"id": [JOB], "fence": [1], "run_id": [RUN], "total": [9]},
    "publication_take": {"run_id": None, "most": 1000},
    "publication_publish": {**SLICES, "actor": "m"},
    "publication_done": {name: SLICES[name] for name in ("producer_id", "high")},
    "publication_withdraw": {"run_id": [RUN]},
    "publication_move": {"old_id": RUN, "new_id": OTHER},
    "staged_add": {
        "producer_id": JOB,
        "fence": 1,
        "codec": "json",
        "seq": list(range(100)),
        "step": [1] * 100,
        "job_id": ENDED,
        "payload": [b"1"] * 100,
        "limit_key": [None] * 100,
    },
    "staged_remove": SLICES,
    "output_add": {"id": JOB, "fence": 1, "seq": [0, 1], "payload": [b"1"] * 2},
    "output_put": {"id": ENDED, "fence": [1] * 100, "seq": [0] * 100, "payload": [b"1"] * 100},
    "output_drop": {"id": JOB, "fence": 2, "most": 1000},
    "output_list": {"id": JOB, "after": -1, "most": 100},
    "staged_sweep": {"most": 1000},
}


def test_nothing_but_what_is_asked_for_is_walked_h100(scene):
    walked = {
        (plan.of, table)
        for name, given in ASKED.items()
        for plan in plans(scene.raw, name, dict(given), ways=("psycopg",))
        for table in TABLES
        if ("Seq Scan", None) in plan.reads(table)
    }
    assert walked == set()


def test_a_page_of_a_reducers_inputs_is_read_in_order_and_no_further(scene):
    for plan in plans(scene.raw, "run_results", ASKED["run_results"], ways=("psycopg",)):
        assert plan.reads("job") == {("Index Scan", "job_run")}, plan.of
        assert not plan.sorts("id"), plan.of


@pytest.mark.parametrize("superseded", [None, False])
def test_the_jobs_of_a_run_are_listed_by_its_index_whatever_their_state(scene, superseded):
    asked = dict.fromkeys(("state", "kind", "queue", "tenant", "states", "queues", "before"))
    given = {**asked, "superseded": superseded, "run_id": OTHER, "most": 100, "most_bytes": None}
    plan = explained(scene.raw, "job_list", given, mode="custom", way="psycopg")
    used = {index for _, index in plan.reads("job")}
    # By its key only what the page holds is read; each is asked for its rerun.
    assert used - {"job_pkey", "job_rerun", None}, [n["Node Type"] for n in plan.nodes]
    assert ("Seq Scan", None) not in plan.reads("job")


@pytest.mark.parametrize("view", ["jobs", "partition_progress", "worker_runs"])
def test_a_view_finds_the_jobs_of_a_run_by_its_index(scene, view):
    [[found]] = scene.raw.execute(
        f"EXPLAIN (FORMAT JSON) SELECT * FROM {view} WHERE run_id = '{OTHER}'"
    )
    assert '"job_run"' in json.dumps(found)


# SQLite


@pytest.fixture(scope="module", params=["never analysed", "analysed", "analysed when idle"])
def lite(request, backends: Backends) -> Iterator[sqlite3.Connection]:
    database = backends.fresh("sqlite")
    with database.raw() as raw:
        raw.disarm()
        fill_runs(raw, LARGE // 10)
        fill_jobs(raw, 1, LARGE // 20)
        if request.param == "analysed when idle":
            raw.execute("ANALYZE")
        fill_jobs(raw, LARGE // 20 + 1, LARGE // 10)
        if request.param == "analysed":
            raw.execute("ANALYZE")
        with database.raw() as fresh:
            yield fresh.connection


GIVEN = ("json_each", "t", "chain", "CONSTANT", "clock", "first", "attempt", "unwanted")
GIVEN += ("older", "newer", "line", "tree", "jobs", "batches", "items", "few")
"""What is walked because it came with the question, or was found by an index."""
FEW = ("run_live", "run_late", "run_held", "publication_open")
"""Indexes of what is open only."""


def test_nothing_but_what_is_asked_for_is_walked_on_sqlite_h100(lite):
    walked = {}
    for name, asked in ASKED.items():
        rows = {one.removesuffix("*") for one in query(name, "sqlite").rows}
        given = {
            one: json.dumps(value, default=bytes.decode)
            if isinstance(value, list) and one not in rows
            else value
            for one, value in asked.items()
        }
        found = steps_of(lite, name, given)
        scans = [line.split() for line in found.splitlines() if line.startswith("SCAN")]
        walked[name] = [w for w in scans if w[1] not in GIVEN and w[-1] not in FEW]
    assert {name: scans for name, scans in walked.items() if scans} == {}
