"""verify compares the guards that stand in the database with those that the program renders."""

import pytest
from click.testing import CliRunner

from milepost.cli.store import verify as command
from milepost.observe.verify import verify
from tests.support.databases import Database, Raw

RUN = "018f0000-0000-7000-8000-00000000000{}"


def found(database: Database) -> list[str]:
    with database.driver() as driver:
        return [str(problem) for problem in verify(driver).problems]


TAMPERED = {
    "postgres": {
        "ALTER TABLE job DISABLE TRIGGER job_a_refuse_change": (
            "job_a_refuse_change on job: it is disabled"
        ),
        "ALTER TABLE run ENABLE REPLICA TRIGGER run_journal_move": (
            "run_journal_move on run: it is disabled"
        ),
        "DROP TRIGGER job_journal_move ON job": "job_journal_move on job: it is missing",
        "ALTER TABLE journal_default DISABLE TRIGGER journal_refuse_change": (
            "journal_refuse_change on journal_default: it is disabled"
        ),
        "ALTER TABLE step DISABLE TRIGGER ALL": "step_run_id_fkey on step: it is disabled",
        "ALTER TABLE job DROP CONSTRAINT job_priority_check": (
            "job_priority_check on job: it is missing"
        ),
        "DROP INDEX job_unique": "job_unique on job: it is missing",
        "ALTER FUNCTION milepost_journal_move() SECURITY INVOKER": (
            "milepost_journal_move(): it was altered"
        ),
        (
            "CREATE OR REPLACE FUNCTION milepost.milepost_refuse_worker() RETURNS trigger"
            " LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
        ): "milepost_refuse_worker(): it was altered",
        (
            "CREATE OR REPLACE TRIGGER job_a_refuse_delete AFTER DELETE ON job FOR EACH ROW"
            " WHEN (OLD.state = 'x') EXECUTE FUNCTION milepost_refuse_job()"
        ): "job_a_refuse_delete on job: it was altered",
        "CREATE RULE nothing AS ON DELETE TO job DO INSTEAD NOTHING": (
            "nothing on job: it stands in the way of the guards"
        ),
        "DROP FUNCTION milepost_refuse_hand() CASCADE": "milepost_refuse_hand(): it is missing",
    },
    "sqlite": {
        "DROP TRIGGER job_refuse_change": "job_refuse_change on job: it is missing",
        "DROP TRIGGER journal_refuse_delete": "journal_refuse_delete on journal: it is missing",
        "DROP INDEX job_unique": "job_unique on job: it is missing",
        "CREATE TRIGGER job_refuse_delete BEFORE DELETE ON job BEGIN SELECT 1; END": (
            "job_refuse_delete on job: it was altered"
        ),
        "DROP TABLE queue": "table queue: it is missing",
    },
}


def altered(raw: Raw, statement: str) -> None:
    if raw.dialect == "sqlite" and statement.startswith("CREATE TRIGGER"):
        raw.execute(f"DROP TRIGGER {statement.split()[2]}")
    raw.execute(statement)


def test_a_guard_that_was_disabled_dropped_or_altered_is_named(database, raw):
    assert found(database) == []
    for statement, told in TAMPERED[raw.dialect].items():
        altered(raw, statement)
        assert any(told in text for text in found(database)), (statement, found(database))


def test_a_week_of_the_journal_is_guarded_like_the_others(database, raw):
    if raw.dialect == "sqlite":
        pytest.skip("there the journal is one table")
    [(week,), *_] = raw.execute(
        r"SELECT relname FROM pg_class WHERE relname ~ '^journal_\d{8}$' ORDER BY 1"
    )
    raw.execute(f"ALTER TABLE {week} DISABLE TRIGGER journal_refuse_delete")
    raw.execute(f"DROP TRIGGER journal_refuse_truncate ON {week}")
    assert [text.partition(": it")[0] for text in found(database)] == [
        f"guard trigger journal_refuse_delete on {week}",
        f"guard trigger journal_refuse_truncate on {week}",
    ]


def test_a_setting_that_switches_the_triggers_off_is_named(database, raw):
    if raw.dialect == "sqlite":
        pytest.skip("there is no such setting")
    name = raw.value("SELECT current_database()")
    raw.execute(f'ALTER DATABASE "{name}" SET session_replication_role = replica')
    assert any("session_replication_role" in text for text in found(database))


def test_the_command_fails_and_names_the_guard(database, raw):
    trigger = "job_refuse_delete" if raw.dialect == "sqlite" else "job_a_refuse_delete ON job"
    raw.execute(f"DROP TRIGGER {trigger}")
    answer = CliRunner().invoke(command, ["--store", database.url])
    assert answer.exit_code == 1
    assert "refuse_delete on job: it is missing" in answer.output


def test_triggers_of_others_on_our_tables_are_no_problem(database, raw):
    if raw.dialect == "sqlite":
        raw.execute("CREATE TRIGGER mine AFTER UPDATE ON job BEGIN SELECT 1; END")
    else:
        raw.execute(
            "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RETURN NULL; END $$"
        )
        raw.execute("CREATE TRIGGER mine AFTER UPDATE ON job EXECUTE FUNCTION mine()")
    raw.execute("CREATE TABLE mine (n integer CHECK (n > 0))")
    assert found(database) == []


@pytest.mark.parametrize("step", ["NULL", "0"])
def test_an_orphan_is_refused_by_the_database(database, raw, step):
    """I15: a job of a run that is not there, or of a step that the run does not have."""
    with pytest.raises(Exception, match=r"job.*no such step"):
        raw.execute(
            "INSERT INTO job (id, kind, state, move, run_id, step) VALUES"
            f" ('{RUN.format(1)}', 'k', 'QUEUED', 'create', '{RUN.format(2)}', {step})"
        )
    assert raw.value("SELECT count(*) FROM job") == 0


def test_a_run_with_jobs_left_is_not_deleted(database, raw):
    raw.execute(
        "INSERT INTO run (id, kind, state, move) VALUES"
        f" ('{RUN.format(1)}', 'k', 'QUEUED', 'create')"
    )
    raw.add_step(RUN.format(1))
    raw.execute(
        "INSERT INTO job (id, kind, state, move, run_id, step) VALUES"
        f" ('{RUN.format(2)}', 'k', 'QUEUED', 'create', '{RUN.format(1)}', 0)"
    )
    moved = "SET state = 'CANCELLED', move = 'cancel', version = version + 1"
    raw.execute(f"UPDATE job {moved}")
    raw.execute(f"UPDATE run {moved}")
    with pytest.raises(Exception, match="its jobs leave first"):
        raw.execute("DELETE FROM run")
    assert found(database) == []


def test_an_orphan_that_came_past_the_guards_is_named(database, raw):
    raw.disarm()
    raw.execute(
        "INSERT INTO job (id, kind, state, move, run_id, step) VALUES"
        f" ('{RUN.format(1)}', 'k', 'QUEUED', 'create', '{RUN.format(2)}', 0)"
    )
    assert f"job {RUN.format(1)}: its run {RUN.format(2)} is not there" in found(database)
