"""verify is the second opinion: whatever should be impossible, it names."""

import json
import tracemalloc

import pytest

from milepost.cli import main
from milepost.observe.verify import verify
from milepost.store import retention
from tests.support.databases import Database, Raw
from tests.support.suite import opened

JOB = "018f0000-0000-7000-8000-{:012d}"


def add_jobs(raw: Raw, count: int = 3) -> None:
    for number in range(count):
        raw.execute(
            "INSERT INTO job (id, kind, state, move, actor) "
            f"VALUES ('{JOB.format(number)}', 'k', 'QUEUED', 'create', 'me')"
        )
    raw.execute(
        "UPDATE job SET state = 'RUNNING', move = 'claim', fence = fence + 1, worker_id = 'w',"
        " version = version + 1"
    )
    raw.execute(
        "UPDATE job SET state = 'RETRYING', move = 'retry', worker_id = NULL, version = version + 1"
    )


def problems(database: Database) -> list[str]:
    """Name what is wrong with jobs and runs; the guards that a test disarmed have their own."""
    with database.driver() as driver:
        found = verify(driver).problems
    return [problem.text for problem in found if problem.machine != "guard"]


def test_an_untouched_store_is_clean(database, raw):
    add_jobs(raw)
    raw.execute(
        "INSERT INTO run (id, kind, state, move) "
        f"VALUES ('{JOB.format(9)}', 'k', 'CREATED', 'create')"
    )
    with database.driver() as driver:
        verdict = verify(driver)
    assert verdict.clean
    assert (verdict.entries, verdict.rows, verdict.pruned) == (10, 4, 0)


TAMPERED = {
    "state": (
        "UPDATE job SET state = 'SUCCEEDED'",
        "row says state SUCCEEDED, its journal RETRYING",
    ),
    "version": ("UPDATE job SET version = 9", "row says version 9, its journal 3"),
    "fence": ("UPDATE job SET fence = 7", "row says fence 7, its journal 1"),
    "errors": ("UPDATE job SET errors = 0", "row says errors 0, its journal 1"),
    "losses": ("UPDATE job SET losses = 2", "row says losses 2, its journal 0"),
    "move": ("UPDATE job SET move = 'lose'", "row says move lose, its journal retry"),
    "worker": ("UPDATE job SET worker_id = 'w'", "it is RETRYING and its worker is w"),
    "actor": ("UPDATE job SET actor = 'you'", "actor or detail"),
    "row gone": ("DELETE FROM job", "ends in RETRYING but it has no row"),
    "journal gone": ("DELETE FROM journal", "a row but no journal"),
    "entry gone": ("DELETE FROM journal WHERE seq = 2", "entry 3 follows entry 1"),
    "creation gone": ("DELETE FROM journal WHERE seq = 1", "entry 2 follows entry 0"),
    "entry forged": (
        "UPDATE journal SET to_state = 'QUEUED' WHERE seq = 2",
        "its journal is broken",
    ),
    "move forged": ("UPDATE journal SET move = 'wake' WHERE seq = 2", "cannot 'wake' from QUEUED"),
    "fence forged": ("UPDATE journal SET fence = 5 WHERE seq = 3", "has fence 5; 1 was due"),
    "actor forged": ("UPDATE journal SET actor = 'you' WHERE seq = 3", "actor or detail"),
}


@pytest.mark.parametrize("change", TAMPERED)
def test_each_tampering_is_found_in_every_row_it_touched(database, raw, change):
    add_jobs(raw)
    raw.disarm()
    statement, told = TAMPERED[change]
    raw.execute(statement)
    found = problems(database)
    assert len(found) == 3
    assert all(told in text for text in found), found


def test_an_entry_after_a_final_one_is_found(database, raw):
    add_jobs(raw, 1)
    raw.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
    raw.disarm()
    raw.execute("UPDATE journal SET from_state = 'CANCELLED' WHERE seq = 4")
    assert "leaves CANCELLED" in problems(database)[0]


def test_a_final_job_without_a_row_was_pruned_and_is_no_problem(database, raw):
    add_jobs(raw)
    raw.execute("UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1")
    raw.execute("DELETE FROM job")
    with database.driver() as driver:
        verdict = verify(driver)
    assert verdict.clean
    assert (verdict.rows, verdict.pruned) == (0, 3)


def test_a_snapshot_entry_stands_for_a_dropped_past(database, raw):
    """One that says nothing but where its subject stood is believed as far as it goes."""
    add_jobs(raw, 1)
    raw.disarm()
    raw.execute("DELETE FROM journal WHERE seq < 3")
    raw.execute("UPDATE journal SET move = 'snapshot', from_state = NULL")
    assert problems(database) == []
    raw.execute("UPDATE job SET fence = 5")
    assert problems(database) == ["its row says fence 5, its journal 1"]


FORGED = {
    "errors": ("UPDATE job SET errors = 7", "its row says errors 7, its journal 1"),
    "move": ("UPDATE job SET move = 'release'", "its row says move release, its journal retry"),
    "detail": ("UPDATE job SET detail = 'x'", "detail is not that of its last entry"),
    "state": ("UPDATE journal SET to_state = 'QUEUED'", "says state RETRYING, its journal QUEUED"),
    "seq": ("UPDATE journal SET seq = 2", "entry 2 is a snapshot of 3 moves"),
    "its own counters": (
        """UPDATE journal SET detail = replace(detail, '"errors": 1', '"errors": 2')""",
        "its row says errors 1, its journal 2",
    ),
    "its own moves": (
        """UPDATE journal SET detail = replace(detail, '"moves": 3', '"moves": 2')""",
        "entry 3 is a snapshot of 2 moves",
    ),
    "its own text": (
        """UPDATE journal SET detail = replace(detail, '"errors"', '"mistakes"')""",
        "a snapshot that cannot be read",
    ),
}


@pytest.mark.parametrize(("forgery", "found"), FORGED.values(), ids=FORGED)
def test_what_is_forged_after_a_history_was_summed_up_is_found(database, raw, forgery, found):
    """I9: what retention summed up says how often what happened; nothing hides behind it."""
    add_jobs(raw, 1)
    raw.disarm()
    raw.execute("DELETE FROM journal WHERE seq < 3")
    told = {"moves": 3, "since": 1, "errors": 1, "losses": 0, "polls": 0, "releases": 0}
    said = json.dumps({**told, "move": "retry", "detail": None, "worker": None})
    raw.execute(f"UPDATE journal SET move = 'snapshot', from_state = NULL, detail = '{said}'")
    assert problems(database) == []
    raw.execute(forgery)
    assert any(found in text for text in problems(database)), problems(database)


def test_a_history_with_a_hole_is_not_made_whole_by_summing_it_up(database, raw):
    add_jobs(raw, 1)
    raw.disarm()
    raw.execute("UPDATE job SET started_at = created_at")
    raw.execute("DELETE FROM journal WHERE seq = 2")
    assert "entry 3 follows entry 1" in problems(database)[0]
    with opened(database, "sync") as store:
        store.advance(91 * 86_400)
        keep = retention.Keep(60, 60)
        assert store.run(retention.sum_up, keep, after=retention.FIRST, most=9).left == 1
    assert "entry 3 is a snapshot of 2 moves" in problems(database)[0]


def test_a_snapshot_with_entries_before_it_is_found(database, raw):
    add_jobs(raw, 1)
    raw.disarm()
    raw.execute("UPDATE journal SET move = 'snapshot', from_state = NULL WHERE seq = 3")
    assert "a snapshot with entries before it" in problems(database)[0]


def test_the_command_answers_by_exit_code_and_as_json(database, raw, capsys):
    add_jobs(raw)
    with pytest.raises(SystemExit) as clean:
        main(["verify", "--store", database.url])
    assert clean.value.code == 0
    assert capsys.readouterr().out.startswith("clean: 9 entries")
    raw.disarm()
    raw.execute("UPDATE job SET fence = 7")
    with pytest.raises(SystemExit) as dirty:
        main(["verify", "--store", database.url, "--json"])
    assert dirty.value.code == 1
    verdict = json.loads(capsys.readouterr().out)
    assert not verdict["clean"]
    of_jobs = [p["id"] for p in verdict["problems"] if p["machine"] == "job"]
    assert (len(of_jobs), of_jobs[0]) == (3, JOB.format(0))


def test_memory_does_not_grow_with_the_store(backends):
    peaks = []
    for jobs in (2_000, 20_000):
        database = backends.fresh("sqlite")
        with database.raw() as raw:
            raw.execute("BEGIN")
            raw.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :jobs) "
                "INSERT INTO job (id, kind, state, move) SELECT "
                "'018f0000-0000-7000-8000-' || substr('000000000000' || i, -12), "
                "'k', 'QUEUED', 'create' FROM n",
                {"jobs": jobs},
            )
            raw.execute("COMMIT")
        with database.driver() as driver:
            tracemalloc.start()
            assert verify(driver).rows == jobs
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] + 100_000


def test_a_job_that_no_step_counts_is_found(database, raw):
    raw.execute(
        "INSERT INTO run (id, kind, state, move) "
        f"VALUES ('{JOB.format(2)}', 'k', 'QUEUED', 'create')"
    )
    raw.add_step(JOB.format(2))
    raw.execute(
        "INSERT INTO job (id, kind, state, move, run_id, step) VALUES "
        f"('{JOB.format(1)}', 'k', 'QUEUED', 'create', '{JOB.format(2)}', 0)"
    )
    raw.execute("DELETE FROM step_count")
    assert problems(database) == ["its step 0 counts 0 open jobs, but has 1"]


def test_a_run_that_ended_over_open_work_is_found(database, raw):
    raw.execute(
        "INSERT INTO run (id, kind, state, move) "
        f"VALUES ('{JOB.format(2)}', 'k', 'QUEUED', 'create')"
    )
    raw.add_step(JOB.format(2))
    raw.execute(
        "INSERT INTO job (id, kind, state, move, run_id, step) VALUES "
        f"('{JOB.format(1)}', 'k', 'QUEUED', 'create', '{JOB.format(2)}', 0)"
    )
    raw.execute("UPDATE run SET state = 'SUCCEEDED', move = 'finish', version = version + 1")
    assert "it is SUCCEEDED and has open jobs or batches" in problems(database)


def test_text_that_is_no_utf8_is_shown_and_not_stumbled_over(backends):
    database = backends.fresh("sqlite")
    with database.raw() as raw:
        raw.execute(
            "INSERT INTO job (id, kind, state, move, actor) VALUES "
            f"('{JOB.format(1)}', 'k', 'QUEUED', 'create', CAST(x'ff00fe' AS TEXT))"
        )
    assert problems(database) == []


@pytest.mark.parametrize(
    "wrong",
    [
        (
            "UPDATE job SET state = 'RUNNING', move = 'claim', fence = fence + 1, worker_id = '',"
            " version = version + 1"
        ),
        (
            "INSERT INTO job (id, kind, state, move, ordinal) VALUES "
            f"('{JOB.format(7)}', 'k', 'QUEUED', 'create', -1)"
        ),
    ],
)
def test_what_no_counter_and_no_lease_could_hold_is_refused(raw, wrong):
    raw.execute(
        "INSERT INTO job (id, kind, state, move) "
        f"VALUES ('{JOB.format(1)}', 'k', 'QUEUED', 'create')"
    )
    with pytest.raises(Exception, match="milepost:"):
        raw.execute(wrong)


def test_a_job_that_is_poisoned_by_a_loss_in_company_is_found(database, raw):
    with opened(database, "sync") as store:
        [job_id] = store.create(poison_limit=1, retries=9)
        store.worker()
        store.claim()
        store.lose_all()
        assert (store.state(job_id), store.problems()) == ("FAILED", [])
    raw.disarm()
    raw.execute("UPDATE journal SET detail = NULL WHERE move = 'claim'")
    assert problems(database) == ["it is poisoned, but was not claimed alone"]
