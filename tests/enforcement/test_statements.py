"""Lawful moves are journalled whatever statement makes them, and counters are put right."""

import pytest
from hands import assignments, created, everything, moved, put, refusal, subject, walks

from milepost.lifecycle import JOB
from tests.support.databases import Backends, Raw, backend_names
from tests.support.prove import size
from tools.triggers import GUARDS

pytestmark = pytest.mark.every_version

BULK = size(100_000)
FEW = [subject(number) for number in range(1, 6)]
LISTED = ", ".join(f"'{name}'" for name in FEW)
CLAIM = assignments(JOB, "claim", "RUNNING")

CLAIMS = {
    "sqlite": {
        "plain": f"UPDATE job SET {CLAIM} WHERE id IN ({LISTED})",
        "or ignore": f"UPDATE OR IGNORE job SET {CLAIM} WHERE id IN ({LISTED})",
        "or replace": f"UPDATE OR REPLACE job SET {CLAIM} WHERE id IN ({LISTED})",
        "from": f"UPDATE job SET {CLAIM} FROM (SELECT id AS name FROM job) AS n WHERE id = n.name",
        "returning": f"UPDATE job SET {CLAIM} RETURNING id",
    },
    "postgres": {
        "plain": f"UPDATE job SET {CLAIM} WHERE id IN ({LISTED})",
        "from": f"UPDATE job SET {CLAIM} FROM (SELECT id AS name FROM job) AS n WHERE id = n.name",
        "returning": f"UPDATE job SET {CLAIM} RETURNING id",
        "upsert": (
            f"{created(JOB, FEW, 'create', 'QUEUED')} ON CONFLICT (id) DO UPDATE SET {CLAIM}"
        ),
        "merge": (
            f"MERGE INTO job USING (SELECT id AS name FROM job) AS n ON job.id = n.name"
            f" WHEN MATCHED THEN UPDATE SET {CLAIM}"
        ),
        "writable cte": (
            f"WITH one AS (UPDATE job SET {CLAIM} WHERE id = '{FEW[0]}' RETURNING id),"
            f" more AS (UPDATE job SET {CLAIM} WHERE id <> '{FEW[0]}' RETURNING id)"
            " SELECT count(*) FROM one, more"
        ),
        "block": f"DO $$ BEGIN UPDATE job SET {CLAIM}; END $$",
    },
}


def entries(raw: Raw, move: str) -> int:
    return int(raw.value(f"SELECT count(*) FROM journal WHERE move = '{move}'"))


@pytest.mark.parametrize(
    ("backend", "writing"),
    [
        (backend, writing)
        for backend in backend_names()
        for writing in CLAIMS["sqlite" if backend == "sqlite" else "postgres"]
    ],
)
def test_a_lawful_move_is_journalled_written_as(backends: Backends, backend: str, writing: str):
    with backends.fresh(backend).raw() as raw:
        put(raw, JOB, FEW, (("create", "QUEUED"),))

        raw.execute(CLAIMS[raw.dialect][writing])

        assert entries(raw, "claim") == len(FEW)
        assert raw.execute("SELECT DISTINCT state, version, fence FROM job") == [("RUNNING", 2, 1)]


@pytest.mark.parametrize("name", GUARDS["job"].counters)
def test_a_move_by_hand_that_does_not_count_itself_is_counted(raw: Raw, name: str):
    put(raw, JOB, FEW, walks(JOB)["RUNNING"])
    for move in GUARDS["job"].counters[name]:
        [target] = JOB.targets(move, "RUNNING")[:1]
        put_back = JOB.targets("due", target) or JOB.targets("wake", target)
        raw.execute(moved(JOB, FEW, move, target))
        if put_back:
            raw.execute(moved(JOB, FEW, "wake" if target == "WAITING" else "due", "QUEUED"))
            raw.execute(moved(JOB, FEW, "claim", "RUNNING"))

    counted = len(GUARDS["job"].counters[name])
    others = {other: 0 for other in GUARDS["job"].counters if other != name}
    [row] = raw.execute(f"SELECT DISTINCT {name}, {', '.join(others)} FROM job")
    assert row == (counted, *others.values())
    assert raw.value("SELECT count(*) FROM journal") == raw.value("SELECT sum(version) FROM job")


def test_a_move_that_counts_itself_is_left_as_it_is(raw: Raw):
    put(raw, JOB, FEW, walks(JOB)["RUNNING"])
    raw.execute(f"UPDATE job SET {assignments(JOB, 'retry', 'RETRYING')}, errors = errors + 1")
    assert raw.execute("SELECT DISTINCT errors, losses, version FROM job") == [(1, 0, 3)]


def test_a_final_row_may_be_erased_and_erased_again_and_deleted(raw: Raw):
    put(raw, JOB, FEW, walks(JOB)["SUCCEEDED"])
    for _ in range(2):
        raw.execute(
            "UPDATE job SET move = 'erase', version = version + 1,"
            " payload = NULL, result = NULL, error = NULL, actor = 'me', detail = 'asked'"
        )
    raw.execute("DELETE FROM job")

    assert entries(raw, "erase") == 2 * len(FEW)
    assert raw.value("SELECT count(*) FROM journal") == 5 * len(FEW)


def test_an_entry_tells_who_and_why_and_under_which_fence(raw: Raw):
    put(raw, JOB, FEW[:1], walks(JOB)["RUNNING"])
    raw.execute(f"UPDATE job SET {assignments(JOB, 'fail', 'FAILED')}, actor = 'me', detail = 'so'")
    assert raw.execute(
        "SELECT seq, from_state, to_state, fence, actor, detail FROM journal WHERE move = 'fail'"
    ) == [(3, "RUNNING", "FAILED", 1, "me", "so")]


def test_what_is_rolled_back_is_not_journalled(raw: Raw):
    put(raw, JOB, FEW, (("create", "QUEUED"),))
    before = everything(raw)
    raw.execute("BEGIN")
    raw.execute(moved(JOB, FEW, "claim", "RUNNING"))
    raw.execute("SAVEPOINT deeper")
    raw.execute(moved(JOB, FEW, "succeed", "SUCCEEDED"))
    raw.execute("ROLLBACK TO SAVEPOINT deeper")
    assert (entries(raw, "claim"), entries(raw, "succeed")) == (len(FEW), 0)
    raw.execute("ROLLBACK")
    assert everything(raw) == before


def bulk_insert(raw: Raw) -> str:
    """Write the creation of a hundred thousand jobs."""
    if raw.dialect == "postgres":
        return (
            "INSERT INTO job (id, kind, state, move) SELECT"
            " ('018f0000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,"
            f" 'k', 'QUEUED', 'create' FROM generate_series(1, {BULK}) AS n"
        )
    return (
        f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT {BULK})"
        " INSERT INTO job (id, kind, state, move)"
        " SELECT printf('018f0000-0000-7000-8000-%012x', n), 'k', 'QUEUED', 'create' FROM numbers"
    )


@pytest.mark.prove
def test_a_statement_over_100_000_rows_is_journalled_whole_or_refused_whole(raw: Raw):
    raw.execute(bulk_insert(raw))
    assert entries(raw, "create") == BULK

    raw.execute(f"UPDATE job SET {assignments(JOB, 'undispatch', 'READY')}")
    assert entries(raw, "undispatch") == BULK

    # One of them, in the middle, is not where the others are.
    raw.execute(moved(JOB, [subject(BULK // 2)], "dispatch", "QUEUED"))
    said = refusal(raw, f"UPDATE job SET {assignments(JOB, 'dispatch', 'QUEUED')}")
    assert said is not None
    assert "milepost:" in said
    assert entries(raw, "dispatch") == 1
    assert raw.value("SELECT count(*) FROM job WHERE state = 'READY' AND version = 2") == BULK - 1
    assert raw.value("SELECT count(*) FROM journal") == 2 * BULK + 1
