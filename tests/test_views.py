"""The SQL views: the specs' own tables, and `jobs` and `runs`, filled by moves typed by hand."""

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from milepost.lifecycle import Cause, JobState, RunState
from milepost.specs import JOB_VIEWS, RUN_VIEWS, Facts
from milepost.store.job_view import message_of
from milepost.store.migrate import migrations
from tests.support import spec_pages
from tests.support.databases import backend_names
from tools.reference import rendered
from tools.views import NAMES

JOB = "018f0000-0000-7000-8000-000000000001"
RUN = "018f0000-0000-7000-8000-00000000000a"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def some_id(number):
    return f"018f0000-0000-7000-8000-{number:012d}"


class Hand:
    """A person at a SQL prompt, who sets what a move needs and nothing more."""

    def __init__(self, raw):
        self.raw = raw

    def literal(self, value):
        if value is None or isinstance(value, int):
            return "NULL" if value is None else str(value)
        if isinstance(value, bytes):
            return f"x'{value.hex()}'" if self.raw.dialect == "sqlite" else f"'\\x{value.hex()}'"
        if isinstance(value, datetime):
            micros = (value - EPOCH) // timedelta(microseconds=1)
            return str(micros) if self.raw.dialect == "sqlite" else f"'{value.isoformat()}'"
        return "'" + value.replace("'", "''") + "'"

    def insert(self, table, **columns):
        values = ", ".join(self.literal(value) for value in columns.values())
        self.raw.execute(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})")

    def add(self, number=1, *, state="QUEUED", **columns):
        created = {"id": some_id(number), "kind": "k", "state": state, "move": "create"}
        if "run_id" in columns:
            self.raw.add_step(columns["run_id"], columns["step"])
        self.insert("job", **created, **columns)
        return some_id(number)

    def move(self, move, state, *, table="job", where="true", **columns):
        changes = {"move": move, "state": state, **columns}
        if table == "job" and state != "RUNNING":
            changes["worker_id"] = None
        told = ", ".join(f"{name} = {self.literal(value)}" for name, value in changes.items())
        counted = ", fence = fence + 1" if move == "claim" else ""
        self.raw.execute(f"UPDATE {table} SET {told}{counted}, version = version + 1 WHERE {where}")

    def claim(self, worker="w", **options):
        self.move("claim", "RUNNING", worker_id=worker, actor=worker, **options)

    def walk(self, *moves, **options):
        for move, state in moves:
            extra = {"worker_id": "w"} if move == "claim" else {}
            self.move(move, state, **extra, **options)

    def row(self, view, where="true"):
        rows = self.rows(view, where)
        assert len(rows) == 1, rows
        return rows[0]

    def rows(self, view, where="true", order="1"):
        columns = self.columns(view)
        listed = ", ".join(f'"{column}"' for column in columns)
        found = self.raw.execute(f"SELECT {listed} FROM {view} WHERE {where} ORDER BY {order}")
        return [dict(zip(columns, map(plain, row), strict=True)) for row in found]

    def columns(self, view):
        if self.raw.dialect == "sqlite":
            return [row[1] for row in self.raw.execute(f"PRAGMA table_info({view})")]
        return [
            row[0]
            for row in self.raw.execute(
                "SELECT attname FROM pg_attribute WHERE attnum > 0"
                f" AND attrelid = '{view}'::regclass ORDER BY attnum"
            )
        ]

    def at(self, move, subject=JOB, *, last=False):
        """Say when that move was made, as `instant` tells it."""
        order = "DESC" if last else "ASC"
        return instant(
            self.raw.value(
                f"SELECT at FROM journal WHERE subject_id = '{subject}' AND move = '{move}'"
                f" ORDER BY seq {order} LIMIT 1"
            )
        )


def plain(value):
    """Ids become text; everything else stays as the driver gave it."""
    return str(value) if type(value).__name__ == "UUID" else value


def instant(value):
    """Read an instant however a view tells it: microseconds, ISO text or a datetime."""
    if isinstance(value, int):
        return EPOCH + timedelta(microseconds=value)
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def content(value):
    """Read JSON however a view tells it: text or a decoded value."""
    return json.loads(value) if isinstance(value, str) else value


@pytest.fixture
def hand(raw):
    return Hand(raw)


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_the_migration_is_a_fresh_rendering(dialect):
    text = next(m.text for m in migrations(dialect) if "begin rendered: views\n" in m.text)
    assert rendered(text, dialect) == text


# E


def test_h54_every_move_of_a_task_is_in_audit_logs(hand):
    hand.add()
    hand.claim("w1")
    hand.move("retry", "RETRYING", detail="timeout")
    hand.walk(("due", "QUEUED"))
    hand.claim("w2")
    hand.move("lose", "FAILED", actor="maintenance")
    hand.move("erase", "FAILED")

    rows = hand.rows("audit_logs", order="created_at, id")

    steps = [(row["event"], row["from_status"], row["to_status"]) for row in rows]
    assert steps == [
        ("create", None, "pending"),
        ("claim", "pending", "running"),
        ("retry", "running", "pending"),
        ("due", "pending", "pending"),
        ("claim", "pending", "running"),
        ("lose", "running", "error"),
        ("erase", "error", "error"),
    ]
    assert [row["id"] for row in rows] == [f"{JOB}:{number}" for number in range(1, 8)]
    assert {row["task_id"] for row in rows} == {JOB}
    lost = rows[5]
    assert (lost["from_state"], lost["to_state"]) == ("RUNNING", "FAILED")
    assert (lost["worker_id"], lost["fence"]) == ("maintenance", 2)
    assert rows[2]["detail"] == "timeout"
    assert instant(rows[1]["created_at"]) == hand.at("claim")


def test_h54_transitions_and_audit_rows_are_the_same_number(hand):
    for number in range(1, 6):
        hand.add(number)
    hand.claim()
    hand.move("succeed", "SUCCEEDED", where=f"id <= '{some_id(2)}'")
    hand.move("fail", "FAILED", where=f"id = '{some_id(3)}'")
    hand.move("cancel", "CANCELLED", where=f"id = '{some_id(4)}'")

    counted = dict(
        hand.raw.execute("SELECT to_status, count(*) FROM audit_logs GROUP BY to_status")
    )
    assert counted == {"pending": 5, "running": 5, "done": 2, "error": 2}


def test_a_run_has_no_place_in_audit_logs(hand):
    hand.insert("run", id=RUN, kind="r", state="CREATED", move="create")
    assert hand.rows("audit_logs") == []


def test_tasks_count_tries_and_show_the_workers_lease(hand):
    lease = datetime(2040, 1, 2, tzinfo=UTC)
    hand.insert("worker", id="w", state="STARTUP", move="boot", lease_until=lease)
    hand.add(retries=2, queue="slow")

    def told():
        task = hand.row("tasks")
        assert instant(task["updated_at"]) == hand.at(
            hand.raw.value("SELECT move FROM job"), last=True
        )
        return task["status"], task["try_count"], task["worker_id"], instant(task["lease_timeout"])

    assert told() == ("pending", 0, None, None)
    hand.claim()
    assert told() == ("running", 1, "w", lease)
    hand.move("retry", "RETRYING")
    assert told() == ("pending", 1, None, None)
    hand.walk(("due", "QUEUED"))
    hand.claim()
    assert told() == ("running", 2, "w", lease)
    hand.move("lose", "RETRYING")
    hand.walk(("due", "QUEUED"))
    hand.claim()
    hand.move("succeed", "SUCCEEDED", error="kept")
    assert told() == ("done", 3, None, None)

    task = hand.row("tasks")
    assert (task["max_tries"], task["kind"], task["queue"]) == (3, "k", "slow")
    assert (task["id"], task["error"]) == (JOB, "kept")


def test_polls_and_releases_are_no_tries(hand):
    hand.add()
    for move, state, back in (("later", "WAITING", "wake"), ("release", "RETRYING", "due")):
        hand.claim()
        hand.move(move, state)
        assert hand.row("tasks")["try_count"] == 0
        hand.walk((back, "QUEUED"))


# D

RETRIED = (("claim", "RUNNING"), ("retry", "RETRYING"), ("due", "QUEUED"))
SUBMITTED = ("submit", "QUEUED")
D_EXAMPLES = {
    "successful processing": (
        [SUBMITTED, ("claim", "RUNNING"), ("succeed", "SUCCEEDED")],
        {"state": "SUCCEEDED", "retryCount": 0, "lastError": None, "errorType": None},
    ),
    "failure with successful retry": (
        [SUBMITTED, *RETRIED, ("claim", "RUNNING"), ("succeed", "SUCCEEDED")],
        {"state": "SUCCEEDED", "retryCount": 1, "lastError": None, "errorType": None},
    ),
    "failure exhausting retries": (
        [SUBMITTED, *RETRIED * 3, ("claim", "RUNNING"), ("fail", "FAILED")],
        {"state": "FAILED", "retryCount": 3, "lastError": "boom", "errorType": "TERMINAL"},
    ),
    "non-retryable failure": (
        [SUBMITTED, ("claim", "RUNNING"), ("fail", "FAILED")],
        {"state": "FAILED", "retryCount": 0, "lastError": "boom", "errorType": "TERMINAL"},
    ),
}


@pytest.mark.parametrize("example", D_EXAMPLES)
def test_d_examples_give_their_metadata(hand, example):
    moves, expected = D_EXAMPLES[example]
    hand.add(state="CREATED")
    before = hand.row("job_lifecycle")
    assert (before["state"], before["startedAt"], before["completedAt"]) == ("CREATED", None, None)

    for move in moves:
        failed = {"error": '{"message": "boom"}'} if move[0] in ("retry", "fail") else {}
        hand.walk(move, **failed)

    told = hand.row("job_lifecycle")
    assert {name: told[name] for name in expected} == expected
    assert (told["jobId"], told["maxRetries"]) == (JOB, 3)
    assert told["createdAt"] == before["createdAt"]
    assert instant(told["startedAt"]) == hand.at("claim")
    assert instant(told["completedAt"]) == hand.at(moves[-1][0])


def test_d_metadata_on_the_way(hand):
    hand.add()
    hand.claim()
    assert hand.row("job_lifecycle")["errorType"] is None
    hand.move("retry", "RETRYING", error='{"message": "timeout"}')

    told = hand.row("job_lifecycle")
    assert (told["state"], told["retryCount"]) == ("RETRYING", 1)
    assert (told["lastError"], told["errorType"]) == ("timeout", "RETRYABLE")
    assert told["completedAt"] is None


def test_a_release_is_no_error_for_d(hand):
    hand.add()
    hand.claim()
    hand.move("release", "RETRYING")
    told = hand.row("job_lifecycle")
    assert (told["state"], told["retryCount"], told["errorType"]) == ("RETRYING", 0, None)


@pytest.mark.parametrize(
    ("move", "state", "count"),
    [
        ("fail", "FAILED", 1),
        ("lose", "FAILED", 1),
        ("expire", "FAILED", 1),
        ("cancel", "CANCELLED", 1),
    ],
)
def test_the_retry_count_survives_erase(hand, move, state, count):
    hand.add()
    hand.walk(*RETRIED, ("claim", "RUNNING"), (move, state))
    hand.raw.execute("UPDATE clock SET offset_us = offset_us + 1000000")
    before = hand.row("job_lifecycle")
    hand.move("erase", state)

    assert before["retryCount"] == count
    assert hand.row("job_lifecycle") == before
    assert hand.row("jobs")["move"] == "erase"


ERRORS = {
    None: None,
    '{"message": "bad file", "type": "ValueError"}': "bad file",
    "typed by hand": "typed by hand",
    '{"type": "ValueError"}': '{"type": "ValueError"}',
    '{"message": 7}': "7",
    '{"message": null}': '{"message": null}',
    '["message"]': '["message"]',
    '{"message": "cut o': '{"message": "cut o',
    "": "",
}


def test_any_error_text_can_be_read(hand):
    for number, error in enumerate(ERRORS, start=1):
        hand.add(number)
        hand.claim(where=f"id = '{some_id(number)}'")
        hand.move("fail", "FAILED", where=f"id = '{some_id(number)}'", error=error)
    told = [row["lastError"] for row in hand.rows("job_lifecycle")]
    assert told == [Cause.ERROR, *list(ERRORS.values())[1:]], "where there is none, its cause"
    assert {error: message_of(error) for error in ERRORS if error is not None} == {
        error: told for error, told in ERRORS.items() if error is not None
    }


def test_h25_the_last_error_is_null_for_d_on_success_and_kept_in_jobs(hand):
    hand.add()
    hand.claim()
    hand.move("retry", "RETRYING", error="timeout")
    hand.walk(("due", "QUEUED"), ("claim", "RUNNING"), ("succeed", "SUCCEEDED"))
    assert hand.row("job_lifecycle")["lastError"] is None
    assert hand.row("jobs")["error"] == "timeout"


def test_h26_a_retry_does_not_move_the_start(hand):
    hand.add()
    hand.claim()
    first = hand.at("claim")
    hand.raw.execute("UPDATE clock SET offset_us = offset_us + 5000000")
    hand.walk(("retry", "RETRYING"), ("due", "QUEUED"), ("claim", "RUNNING"))

    assert hand.at("claim", last=True) > first
    assert instant(hand.row("job_lifecycle")["startedAt"]) == first
    assert instant(hand.row("jobs")["started_at"]) == first


# B

WATERMARKS = (datetime(2024, 1, 15, 2, tzinfo=UTC), datetime(2024, 1, 16, 2, tzinfo=UTC))
SEAL, BEGIN = ("seal", "QUEUED"), ("begin", "RUNNING")
CONSOLIDATE, FINISH = ("finalize", "FINALIZING"), ("finish", "SUCCEEDED")

# B's table "State Field Values" for 30 partitions: how the run got there, its counters, what B
# expects of completed_workers, failed_workers, and whether completed_at, watermark_after are set.
FIELD_VALUES = {
    "Created": ([SEAL], {"open": 30}, "Created", (0, 0, False, False)),
    "WorkersRunning": (
        [SEAL, BEGIN],
        {"open": 8, "succeeded": 20, "failed": 2},
        "WorkersRunning",
        (20, 2, False, False),
    ),
    "ConsolidationSkipped": (
        [SEAL, BEGIN, ("fail", "FAILED")],
        {"succeeded": 27, "failed": 2, "cancelled": 1},
        "Failed",
        (27, 3, False, False),
    ),
    "Consolidating": (
        [SEAL, BEGIN, CONSOLIDATE],
        {"succeeded": 30},
        "Consolidating",
        (30, 0, False, False),
    ),
    "Completed": (
        [SEAL, BEGIN, CONSOLIDATE, FINISH],
        {"succeeded": 30},
        "Completed",
        (30, 0, True, True),
    ),
    "Failed": (
        [SEAL, BEGIN, CONSOLIDATE, ("fail", "FAILED")],
        {"succeeded": 30},
        "Failed",
        (30, 0, False, False),
    ),
}


def count(hand, *, step, slot=0, **counts):
    """Have a step counted: counters begin at nothing."""
    hand.insert("step_count", run_id=RUN, step=step, slot=slot)
    for name, value in counts.items():
        hand.raw.execute(
            f"UPDATE step_count SET {name} = {value} WHERE step = {step} AND slot = {slot}"
        )


def start_pipeline(hand, moves, counts, *, ordinals=(), **columns):
    """Make a run whose second step has partitions. Its counters are what the test says."""
    hand.insert("run", id=RUN, kind="diamonds", state="CREATED", move="create", **columns)
    hand.insert("step", run_id=RUN, number=0, name="plan", kind="plan")
    hand.insert("step", run_id=RUN, number=1, name="fetch", kind="fetch", role="partition")
    count(hand, step=0, succeeded=1)
    count(hand, step=1, **counts)
    for ordinal in ordinals:
        payload = json.dumps({"low": ordinal}).encode()
        hand.add(ordinal + 1, run_id=RUN, step=1, ordinal=ordinal, payload=payload)
    hand.walk(*moves, table="run")


@pytest.mark.parametrize("state", FIELD_VALUES)
def test_b_state_field_values_h17(hand, state):
    moves, counts, word, expected = FIELD_VALUES[state]
    # The window is fixed before anything is fetched: B must not see its end until it counts.
    before, after = WATERMARKS
    start_pipeline(hand, moves, counts, watermark_before=before, watermark_after=after)

    told = hand.row("run_metadata")

    ended, advanced = (told[name] is not None for name in ("completed_at", "watermark_after"))
    assert (told["completed_workers"], told["failed_workers"], ended, advanced) == expected
    assert (told["run_id"], told["expected_workers"]) == (RUN, 30)
    assert instant(told["watermark_before"]) == before
    assert hand.row("runs")["spec_b"] == word
    began = hand.at("begin" if BEGIN in moves else "create", RUN)
    assert abs(instant(told["started_at"]) - began) < timedelta(seconds=1)
    if ended:
        assert instant(told["completed_at"]) == hand.at("finish", RUN)
        assert instant(told["watermark_after"]) == after


def test_h14_every_end_of_a_run_has_a_time_though_b_shows_none(hand):
    start_pipeline(hand, [SEAL, BEGIN, ("fail", "FAILED")], {"succeeded": 1, "failed": 1})
    assert hand.row("run_metadata")["completed_at"] is None
    assert instant(hand.row("runs")["finished_at"]) == hand.at("fail", RUN)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"mode": "full", "watermark_before": WATERMARKS[0]}, "full"),
        ({"mode": "incremental"}, "incremental"),
        ({}, "full"),
        ({"watermark_before": WATERMARKS[0]}, "incremental"),
        ({"mode": "remap", "watermark_before": WATERMARKS[0]}, "full"),
        ({"mode": "replay"}, "incremental"),
        ({"mode": "backfill"}, "incremental"),
        ({"mode": "forced", "rerun_of": None}, "full"),  # what it publishes is gone
        ({"mode": "retry", "watermark_before": WATERMARKS[0]}, "incremental"),
    ],
)
def test_the_run_type_is_one_of_bs_two_words(hand, columns, told):
    start_pipeline(hand, [], {}, **columns)
    assert hand.row("run_metadata")["run_type"] == told


def test_a_large_step_is_counted_over_all_its_slots(hand):
    start_pipeline(hand, [SEAL, BEGIN], {"open": 1, "succeeded": 2, "failed": 3})
    count(hand, step=1, slot=1, open=10, succeeded=20, cancelled=40)
    told = hand.row("run_metadata")
    counted = [told[f"{name}_workers"] for name in ("expected", "completed", "failed")]
    assert counted == [76, 22, 43]


def test_only_runs_with_partitions_are_in_run_metadata(hand):
    hand.insert("run", id=RUN, kind="batch", state="CREATED", move="create")
    hand.insert("step", run_id=RUN, number=0, name="load", kind="load")
    hand.add(run_id=RUN, step=0, ordinal=0)
    hand.claim()
    for view in ("run_metadata", "worker_runs", "partition_progress"):
        assert hand.rows(view) == []


def partitions_under_way(hand):
    """Five partitions: completed, failed, running, waiting to be retried, never claimed."""
    start_pipeline(hand, [SEAL, BEGIN], {}, ordinals=range(5), mode="incremental")
    for ordinal in range(4):
        hand.claim(f"w{ordinal}", where=f"ordinal = {ordinal}")
    for ordinal, records in ((0, 5000), (1, 60), (2, 90)):
        progress = {"next_offset": records + 30, "records": records}
        hand.insert("progress", job_id=some_id(ordinal + 1), fence=1, **progress)
    hand.move("succeed", "SUCCEEDED", where="ordinal = 0", actor="w0")
    hand.move("fail", "FAILED", where="ordinal = 1", error='{"message": "gone"}', actor="nobody")
    hand.move("retry", "RETRYING", where="ordinal = 3", error="slow")
    hand.raw.execute(
        "UPDATE step_count SET open = 3 * (slot + 1), succeeded = slot + 1, failed = slot + 1"
        " WHERE step = 1"
    )


def test_h42_worker_runs_name_the_worker_after_its_lease(hand):
    partitions_under_way(hand)
    rows = hand.rows("worker_runs", order="partition_id")
    told = [
        (r["partition_id"], r["worker_id"], r["status"], r["records_processed"], r["error_message"])
        for r in rows
    ]
    assert told == [
        ("partition-0", "w0", "completed", 5000, None),
        ("partition-1", "w1", "failed", 60, "gone"),
        ("partition-2", "w2", "running", 90, None),
        ("partition-3", "w3", "running", 0, "slow"),
    ]
    ends = [row["completed_at"] and instant(row["completed_at"]) for row in rows]
    assert ends == [hand.at("succeed"), hand.at("fail", some_id(2)), None, None]
    assert [instant(row["started_at"]) for row in rows] == [
        hand.at("claim", some_id(number)) for number in range(1, 5)
    ]
    assert [content(row["work_item_payload"]) for row in rows] == [{"low": n} for n in range(4)]
    assert {row["run_id"] for row in rows} == {RUN}
    assert [row["id"] for row in rows] == [some_id(number) for number in range(1, 5)]

    hand.walk(("due", "QUEUED"), where="ordinal = 3")
    hand.claim("another", where="ordinal = 3")
    hand.move("lose", "FAILED", where="ordinal = 3", actor="maintenance")
    assert hand.row("worker_runs", "partition_id = 'partition-3'")["worker_id"] == "another"


def test_a_claim_without_an_actor_leaves_the_worker_empty(hand):
    start_pipeline(hand, [SEAL, BEGIN], {"open": 1}, ordinals=[0])
    hand.move("claim", "RUNNING", worker_id="w")
    assert hand.row("worker_runs")["worker_id"] == "w"
    hand.move("succeed", "SUCCEEDED")
    assert hand.row("worker_runs")["worker_id"] == ""


def test_partition_progress_lists_every_partition(hand):
    partitions_under_way(hand)
    rows = hand.rows("partition_progress", order="partition_id")
    assert [(r["partition_id"], r["next_offset"], bool(r["completed"])) for r in rows] == [
        ("partition-0", 5030, True),
        ("partition-1", 90, False),
        ("partition-2", 120, False),
        ("partition-3", 0, False),
        ("partition-4", 0, False),
    ]
    assert instant(rows[0]["updated_at"]) == hand.at("succeed")
    moved = datetime(2040, 1, 1, tzinfo=UTC)
    hand.raw.execute(f"UPDATE progress SET updated_at = {hand.literal(moved)}")
    assert instant(hand.rows("partition_progress", order="partition_id")[2]["updated_at"]) == moved


def test_b_columns_are_exactly_b_columns(hand):
    assert hand.columns("run_metadata") == [
        "run_id",
        "run_type",
        "expected_workers",
        "completed_workers",
        "failed_workers",
        "watermark_before",
        "watermark_after",
        "started_at",
        "completed_at",
    ]
    assert hand.columns("worker_runs") == [
        "id",
        "run_id",
        "partition_id",
        "worker_id",
        "status",
        "records_processed",
        "error_message",
        "work_item_payload",
        "started_at",
        "completed_at",
    ]
    assert hand.columns("partition_progress") == [
        "run_id",
        "partition_id",
        "next_offset",
        "completed",
        "created_at",
        "updated_at",
    ]


# B's queries, read off B's own page; only the run's id is put in.

MICROSECONDS = {
    "NOW()": "(strftime('%s', 'now') * 1000000 + substr(strftime('%f', 'now'), 4) * 1000)",
    "EXTRACT(EPOCH FROM (": "(((",
    ")) / 60": ")) / 60000000.0)",
    "INTERVAL '24 hours'": "86400000000",
}
"""What SQLite spells otherwise, where an instant is a number of microseconds."""


def rewritten(query):
    """Write a query of B's once more, for SQLite."""
    for phrase, other in MICROSECONDS.items():
        query = query.replace(phrase, other)
    return query


def answers(raw, *, spelled=str):
    """Ask every query of B's page about the partitions that are under way."""
    partitions_under_way(Hand(raw))
    queries = {name: spelled(query) for name, query in spec_pages.queries("B").items()}
    assert len(queries) == 7
    return {name: raw.execute(query.replace("abc123", RUN)) for name, query in queries.items()}


def is_as_b_says(told):
    [status] = told["Get current run status"]
    assert (str(status[0]), *status[1:5]) == (RUN, "incremental", "1/5", 1, "failed")
    assert status[6] is None
    assert 0 <= status[7] < 5
    assert [row[:3] for row in told["Get worker breakdown"]] == [
        ("partition-0", "completed", 5000),
        ("partition-1", "failed", 60),
        ("partition-2", "running", 90),
        ("partition-3", "running", 0),
    ]
    assert [row[1] for row in told["Get partition progress"]] == [5030, 90, 120, 0, 0]
    [active] = told["Active runs"]
    assert active[1:5] == ("incremental", 1, 5, 1)
    [recent] = told["Recent runs (last 24 hours)"]
    assert recent[2:4] == ("1/5", "failed")
    assert 0 <= recent[6] < 5
    [failed] = told["Find failed workers"]
    assert failed[:3] == ("partition-1", 60, "gone")
    assert sorted(told["Check partition progress at failure"]) == [
        ("partition-1", 90, False),
        ("partition-2", 120, False),
        ("partition-3", 0, False),
        ("partition-4", 0, False),
    ]


@pytest.mark.parametrize("backend", [name for name in backend_names() if name != "sqlite"])
def test_b_queries_run_as_they_stand_on_postgresql(backends, backend):
    with backends.fresh(backend).raw() as raw:
        is_as_b_says(answers(raw))


def test_b_queries_run_rewritten_once_on_sqlite(backends):
    with backends.fresh("sqlite").raw() as raw:
        is_as_b_says(answers(raw, spelled=rewritten))


# People


def test_jobs_show_what_is_json_as_json(hand):
    hand.add(payload=b'{"document": "a"}', tags='{"user": "42"}')
    hand.claim()
    hand.move("succeed", "SUCCEEDED", result=b"[1, null]")
    told = hand.row("jobs")
    assert content(told["payload"]) == {"document": "a"}
    assert content(told["result"]) == [1, None]
    assert content(told["tags"]) == {"user": "42"}
    assert (told["attempt"], told["state"], told["id"]) == (1, "SUCCEEDED", JOB)


def test_a_payload_that_is_not_json_shows_as_nothing(hand):
    start_pipeline(hand, [], {}, codec="secret", payload=b"1")
    opaque = [None, b"", b"\x00\xff\xfe", b'{"cut": ']
    for number, payload in enumerate(opaque, start=1):
        hand.add(number, payload=payload, run_id=RUN, step=1, ordinal=number)
    hand.add(9, codec="secret", payload=b"1", run_id=RUN, step=1, ordinal=9)
    hand.claim()
    assert [row["payload"] for row in hand.rows("jobs")] == [None] * 5
    assert [row["work_item_payload"] for row in hand.rows("worker_runs")] == [None] * 5
    assert hand.row("runs")["payload"] is None


CAUSES = {
    "fail": "error",
    "expire": "deadline",
    "reject": "rejected",
    "lose": "attempts_exhausted",
}


def test_a_failure_by_hand_has_the_cause_of_its_move(hand):
    for number, move in enumerate(CAUSES, start=1):
        hand.add(number)
        if move != "reject":
            hand.claim(where=f"id = '{some_id(number)}'")
        hand.move(move, "FAILED", where=f"id = '{some_id(number)}'")

    assert [row["cause"] for row in hand.rows("jobs")] == list(CAUSES.values())
    hand.move("erase", "FAILED")
    assert [row["cause"] for row in hand.rows("jobs")] == list(CAUSES.values())


def test_a_cause_that_was_given_stays_and_none_is_invented(hand):
    hand.add()
    hand.claim()
    hand.move("lose", "RETRYING")
    assert hand.row("jobs")["cause"] is None
    hand.walk(("due", "QUEUED"), ("claim", "RUNNING"))
    hand.move("lose", "FAILED", cause="poisoned")
    assert hand.row("jobs")["cause"] == "poisoned"


def test_what_the_row_does_not_know_comes_from_the_journal(hand):
    hand.add()
    told = hand.row("jobs")
    assert (told["started_at"], told["finished_at"]) == (None, None)
    hand.claim()
    hand.move("succeed", "SUCCEEDED")
    ended = hand.at("succeed")
    hand.raw.execute("UPDATE clock SET offset_us = offset_us + 5000000")
    hand.move("erase", "SUCCEEDED")

    told = hand.row("jobs")
    assert instant(told["started_at"]) == hand.at("claim")
    assert instant(told["finished_at"]) == ended
    assert instant(told["updated_at"]) == hand.at("erase") > ended


def test_what_the_row_knows_wins(hand):
    started, finished = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
    hand.add()
    hand.claim(started_at=started)
    hand.move("succeed", "SUCCEEDED", finished_at=finished)
    told = hand.row("jobs")
    assert (instant(told["started_at"]), instant(told["finished_at"])) == (started, finished)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1901, 1, 1, 0, 0, 0, 7, tzinfo=UTC),
        EPOCH,
    ],
)
def test_an_instant_is_readable_to_the_microsecond(hand, moment):
    hand.insert("run", id=RUN, kind="r", state="CREATED", move="create", watermark_before=moment)
    told = hand.row("runs")["watermark_before"]
    assert instant(told) == moment
    if hand.raw.dialect == "sqlite":
        assert told == moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ").rjust(27, "0")


def test_runs_tell_their_times_and_report(hand):
    hand.insert("run", id=RUN, kind="r", state="CREATED", move="create", payload=b'{"a": 1}')
    assert hand.row("runs")["started_at"] is None
    hand.walk(SEAL, BEGIN, table="run")
    hand.move("finish", "SUCCEEDED", table="run", report=b'{"loaded": 3}')

    told = hand.row("runs")
    assert (content(told["payload"]), content(told["report"])) == ({"a": 1}, {"loaded": 3})
    assert instant(told["started_at"]) == hand.at("begin", RUN)
    assert instant(told["finished_at"]) == hand.at("finish", RUN)
    assert instant(told["updated_at"]) == hand.at("finish", RUN)


# Words

PHASES = (None, "REQUESTING", "RESPONSE", "page 7", "a page", "consolidate", "")
TRANSPORTS = {"unknown": "store", "plain": "store", "broker": "nats"}


def add_queues(hand):
    hand.insert("queue", name="plain")
    hand.insert("queue", name="broker", transport="nats")


def values(hand, rows):
    return ", ".join(f"({', '.join(map(hand.literal, row))})" for row in rows)


@pytest.mark.parametrize("spec", JOB_VIEWS)
def test_h1_a_jobs_word_in_sql_is_its_word_in_python_for_all_facts(hand, spec):
    add_queues(hand)
    facts = list(product((s.value for s in JobState), (0, 1, 7), PHASES, TRANSPORTS))
    view = JOB_VIEWS[spec]

    told = hand.raw.execute(
        f"WITH job (state, fence, phase, queue) AS (VALUES {values(hand, facts)})"
        f" SELECT state, fence, phase, queue, {view.sql()} FROM job"
    )

    assert len(told) == len(facts)
    for state, fence, phase, queue, word in told:
        assert word == view.word(Facts(state, fence, phase, TRANSPORTS[queue]))


@pytest.mark.parametrize("spec", RUN_VIEWS)
def test_h1_a_runs_word_in_sql_is_its_word_in_python_for_all_facts(hand, spec):
    facts = list(product((s.value for s in RunState), PHASES, ("retrying", "calm")))
    view = RUN_VIEWS[spec]

    told = hand.raw.execute(
        f"WITH run (state, phase, id) AS (VALUES {values(hand, facts)}),"
        " job (run_id, state) AS (VALUES ('retrying', 'RETRYING'), ('calm', 'RUNNING'))"
        f" SELECT state, phase, id, {view.sql()} FROM run"
    )

    assert len(told) == len(facts)
    for state, phase, name, word in told:
        assert word == view.word(Facts(state, phase=phase, retrying=name == "retrying"))


CLAIM = ("claim", "RUNNING")
WAYS = {
    "CREATED": [("create", "CREATED")],
    "GATED": [("create", "GATED")],
    "WAITING": [("create", "WAITING")],
    "WAITING again": [("create", "QUEUED"), CLAIM, ("later", "WAITING")],
    "READY": [("create", "READY")],
    "READY again": [("create", "QUEUED"), CLAIM, ("retry", "RETRYING"), ("due", "READY")],
    "QUEUED": [("create", "QUEUED")],
    "QUEUED again": [("create", "QUEUED"), CLAIM, ("retry", "RETRYING"), ("due", "QUEUED")],
    "RUNNING": [("create", "QUEUED"), CLAIM],
    "RETRYING": [("create", "QUEUED"), CLAIM, ("retry", "RETRYING")],
    "SUCCEEDED": [("create", "QUEUED"), CLAIM, ("succeed", "SUCCEEDED")],
    "FAILED": [("create", "QUEUED"), ("expire", "FAILED")],
    "FAILED later": [("create", "QUEUED"), CLAIM, ("fail", "FAILED")],
    "CANCELLED": [("create", "QUEUED"), ("cancel", "CANCELLED")],
    "CANCELLED later": [("create", "QUEUED"), CLAIM, ("cancel", "CANCELLED")],
}


def test_h1_the_views_tell_every_reachable_job_in_all_five_words(hand):
    add_queues(hand)
    cases = list(product(WAYS, PHASES, TRANSPORTS))
    for number, (way, phase, queue) in enumerate(cases, start=1):
        hand.add(
            number, state=WAYS[way][0][1], kind_version=1, phase=phase, queue=queue, tenant=way
        )
    for way, moves in WAYS.items():
        hand.walk(*moves[1:], where=f"tenant = '{way}'")

    rows = hand.rows("jobs")
    assert {row["state"] for row in rows} == {state.value for state in JobState}
    for row in rows:
        facts = Facts(row["state"], row["fence"], row["phase"], TRANSPORTS[row["queue"]])
        told = {spec: row[f"spec_{spec.lower()}"] for spec in JOB_VIEWS}
        assert told == {spec: view.word(facts) for spec, view in JOB_VIEWS.items()}

    for view, name, spec in (("tasks", "id", "E"), ("job_lifecycle", "jobId", "D")):
        words = {row[name]: row.get("status", row.get("state")) for row in hand.rows(view)}
        assert words == {row["id"]: row[f"spec_{spec.lower()}"] for row in rows}


def test_h1_a_run_is_errored_for_a_only_while_a_job_waits_for_its_retry(hand):
    hand.insert("run", id=RUN, kind="r", state="CREATED", move="create")
    hand.add(run_id=RUN, step=0, ordinal=0)
    hand.walk(SEAL, BEGIN, table="run")
    hand.claim()
    assert hand.row("runs")["spec_a"] == "IN_PROGRESS"
    hand.move("retry", "RETRYING")
    assert hand.row("runs")["spec_a"] == "ERRORED"
    hand.walk(("due", "QUEUED"))
    told = hand.row("runs")
    assert (told["spec_a"], told["spec_b"], told["spec_c"]) == (
        "IN_PROGRESS",
        "WorkersRunning",
        "REQUEST",
    )


# Guards


def test_a_view_is_only_read(hand):
    partitions_under_way(hand)
    for view in NAMES:
        column = hand.columns(view)[0]
        assert hand.rows(view)
        for statement in (
            f'INSERT INTO {view} ("{column}") SELECT "{column}" FROM {view}',
            f'UPDATE {view} SET "{column}" = "{column}"',
            f"DELETE FROM {view}",
        ):
            with pytest.raises(Exception, match="view"):
                hand.raw.execute(statement)


BY_KEY = {
    "sqlite": r"SEARCH journal USING PRIMARY KEY \(subject_id=\? AND machine=\?",
    "postgres": r"using (journal_\w+)_pkey on \1",
}


def looks_at_the_journal(hand, query):
    """List the lines of the query's plan that say how it reads the journal."""
    if hand.raw.dialect == "sqlite":
        plan = [row[3] for row in hand.raw.execute(f"EXPLAIN QUERY PLAN {query}")]
        return [line for line in plan if "journal" in line]
    # In an empty store a sequential scan looks cheap; only what cannot use the key keeps one.
    hand.raw.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    plan = [row[0] for row in hand.raw.execute(f"EXPLAIN {query}")]
    keyed = [line for line in plan if re.search(r"Index Cond.*subject_id = .*machine = ", line)]
    looks = [line for line in plan if re.search(r"\bon journal", line)]
    assert len(keyed) == len(looks), plan
    return looks


def test_the_journal_is_looked_up_by_its_key(hand):
    history = f"SELECT * FROM audit_logs WHERE task_id = '{JOB}'"
    queries = [f"SELECT * FROM {view}" for view in NAMES if view != "audit_logs"]
    for query in [history, *queries]:
        looks = looks_at_the_journal(hand, query)
        assert looks
        keyed = [re.search(BY_KEY[hand.raw.dialect], line) for line in looks]
        assert all(keyed), (query, looks)
