"""What only PostgreSQL offers a hand: roles, schemas, temporary tables, COPY, borrowed triggers."""

from collections.abc import Iterator

import psycopg
import pytest
from hands import assignments, everything, moved, put, refusal, subject, walks

from milepost.address import StoreUrl
from milepost.lifecycle import JOB, RUN
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate
from tests.support.databases import Backends, Database, Raw, backend_names

pytestmark = pytest.mark.every_version

JOB_ID, OTHER_ID = subject(1), subject(2)
POSTGRES = [name for name in backend_names() if name.startswith("postgres1")]


@pytest.fixture(params=POSTGRES)
def home(request: pytest.FixtureRequest, backends: Backends) -> Database:
    return backends.fresh(request.param)


@pytest.fixture
def owner(home: Database) -> Iterator[Raw]:
    with home.raw() as raw:
        put(raw, JOB, [JOB_ID], walks(JOB)["RUNNING"])
        yield raw


@pytest.fixture
def clerk(home: Database, owner: Raw) -> Iterator[Raw]:
    """A role that may look at jobs and runs and write them, and nothing else."""
    name = f"clerk_{owner.value('SELECT current_database()')}"
    owner.execute(f"CREATE ROLE {name} LOGIN")
    owner.execute(f"GRANT SELECT, INSERT, UPDATE ON job, run TO {name}")
    # Defaults are computed with the writer's own rights.
    owner.execute(f"GRANT SELECT ON clock TO {name}")
    owner.execute(f"GRANT USAGE ON SEQUENCE queued_seq TO {name}")
    owner.execute(f"GRANT USAGE ON SCHEMA milepost TO {name}")
    owner.execute(f"GRANT CREATE ON SCHEMA public TO {name}")
    with home.raw(role=name) as raw:
        yield raw


def seqs(raw: Raw, name: str) -> list[int]:
    rows = raw.execute(f"SELECT seq FROM journal WHERE subject_id = '{name}' ORDER BY seq")
    return [seq for (seq,) in rows]


def test_the_lawful_moves_of_a_role_without_rights_on_the_journal_are_journalled(
    clerk: Raw, owner: Raw
):
    put(clerk, JOB, [OTHER_ID], walks(JOB)["RUNNING"])
    clerk.execute(moved(JOB, [OTHER_ID], "retry", "RETRYING"))
    put(clerk, RUN, [OTHER_ID], walks(RUN)["RUNNING"])

    assert seqs(owner, OTHER_ID) == [1, 1, 2, 2, 3]
    assert owner.value(f"SELECT errors FROM job WHERE id = '{OTHER_ID}'") == 1


def test_the_cheats_of_such_a_role_are_refused(clerk: Raw, owner: Raw):
    before = everything(owner)
    cheats = [
        moved(JOB, [JOB_ID], "claim", "RUNNING"),
        f"UPDATE job SET state = 'QUEUED' WHERE id = '{JOB_ID}'",
        f"UPDATE job SET id = '{OTHER_ID}', move = 'note', version = version + 1",
        f"UPDATE job SET {assignments(JOB, 'retry', 'RETRYING')}, errors = 9",
        (
            "INSERT INTO job (id, kind, state, move, worker_id)"
            f" VALUES ('{OTHER_ID}', 'k', 'RUNNING', 'create', 'w')"
        ),
    ]
    for cheat in cheats:
        assert "milepost:" in (refusal(clerk, cheat) or ""), cheat
    for cheat in (
        "DELETE FROM job",
        "TRUNCATE job",
        "ALTER TABLE job DISABLE TRIGGER USER",
        "CREATE TABLE heir () INHERITS (job)",
        "CREATE TRIGGER mine AFTER UPDATE ON job EXECUTE FUNCTION milepost_refuse_hand()",
        "SET session_replication_role = replica",
    ):
        said = refusal(clerk, cheat) or ""
        assert "permission denied" in said or "must be owner" in said, cheat
    assert everything(owner) == before


ENTRY = (
    "INSERT INTO {journal} (subject_id, machine, seq, at, fence, move, to_state)"
    f" VALUES ('{JOB_ID}', 'job', 3, now(), 1, 'note', 'RUNNING')"
)


def test_such_a_role_cannot_write_the_journal_even_by_a_trigger_of_its_own(clerk: Raw, owner: Raw):
    before = everything(owner)
    clerk.execute("CREATE TABLE mine (n int)")
    for journal in ("journal", "journal_default"):
        clerk.execute(
            "CREATE OR REPLACE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {ENTRY.format(journal=journal)}; RETURN NULL; END $$"
        )
        clerk.execute(
            "CREATE OR REPLACE TRIGGER forge AFTER INSERT ON mine"
            " FOR EACH ROW EXECUTE FUNCTION forge()"
        )
        assert "permission denied" in (refusal(clerk, ENTRY.format(journal=journal)) or "")
        assert "permission denied" in (refusal(clerk, "INSERT INTO mine VALUES (1)") or "")
    assert everything(owner) == before


def test_the_journalling_functions_serve_no_strangers_table(clerk: Raw, owner: Raw):
    owner.execute("CREATE SCHEMA elsewhere")
    owner.execute("CREATE TABLE elsewhere.job (LIKE milepost.job)")
    owner.execute("CREATE TABLE stranger (LIKE job)")
    before = everything(owner)
    for table in ("stranger", "elsewhere.job"):
        owner.execute(
            f"CREATE TRIGGER borrowed AFTER INSERT ON {table} REFERENCING NEW TABLE AS new_rows"
            " FOR EACH STATEMENT EXECUTE FUNCTION milepost_journal_insert()"
        )
        owner.execute(
            f"CREATE TRIGGER moved AFTER UPDATE ON {table}"
            " REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows"
            " FOR EACH STATEMENT EXECUTE FUNCTION milepost_journal_move()"
        )
        assert "milepost:" in (refusal(owner, f"INSERT INTO {table} SELECT * FROM job") or "")
        assert "milepost:" in (refusal(owner, f"UPDATE {table} SET version = version + 1") or "")
    clerk.execute("CREATE TABLE mine (LIKE job)")
    said = refusal(
        clerk,
        "CREATE TRIGGER borrowed AFTER INSERT ON mine REFERENCING NEW TABLE AS new_rows"
        " FOR EACH STATEMENT EXECUTE FUNCTION milepost_journal_insert()",
    )
    assert "permission denied" in (said or "")
    assert everything(owner) == before


def test_a_temporary_table_does_not_stand_in_for_ours(clerk: Raw, owner: Raw):
    columns = (
        "subject_id uuid, machine text, seq int, move text, from_state text, to_state text,"
        " at timestamptz, actor text, fence bigint, detail text"
    )
    clerk.execute(f"CREATE TEMP TABLE journal ({columns})")
    for name in ("job", "run", "clock"):
        clerk.execute(f"CREATE TEMP TABLE {name} (LIKE milepost.{name})")
    clerk.execute(
        "UPDATE milepost.job SET state = 'RETRYING', move = 'retry', worker_id = NULL,"
        " version = version + 1"
    )
    assert seqs(owner, JOB_ID) == [1, 2, 3]
    assert owner.value("SELECT errors FROM job") == 1
    assert clerk.value("SELECT count(*) FROM pg_temp.journal") == 0


def test_a_search_path_of_nothing_or_of_a_strangers_changes_nothing(owner: Raw):
    owner.execute("CREATE SCHEMA stranger")
    owner.execute("CREATE TABLE stranger.journal (LIKE milepost.journal)")
    owner.execute("CREATE TABLE stranger.job (LIKE milepost.job)")
    for path in ("''", "stranger, pg_catalog"):
        owner.execute(f"SET search_path = {path}")
        owner.execute("UPDATE milepost.job SET move = 'note', version = version + 1")
    owner.execute(
        "INSERT INTO milepost.job (id, kind, state, move)"
        f" VALUES ('{OTHER_ID}', 'k', 'QUEUED', 'create')"
    )
    owner.execute(
        "UPDATE milepost.job SET state = 'RETRYING', move = 'retry', worker_id = NULL,"
        f" version = version + 1 WHERE id = '{JOB_ID}'"
    )
    said = refusal(owner, "UPDATE milepost.job SET state = 'QUEUED'")
    owner.execute("SET search_path = public, milepost")

    assert "milepost:" in (said or "")
    assert seqs(owner, JOB_ID) == [1, 2, 3, 4, 5]
    assert seqs(owner, OTHER_ID) == [1]
    assert owner.value(f"SELECT errors FROM job WHERE id = '{JOB_ID}'") == 1
    assert owner.value("SELECT count(*) FROM stranger.journal") == 0


@pytest.mark.parametrize("backend", POSTGRES)
def test_a_store_in_a_schema_of_its_own_is_enforced_there(backends: Backends, backend: str):
    empty = backends.fresh(backend, empty=True)
    home = f"{empty.url}&schema=Mile_Post"
    driver = open_driver(StoreUrl.parse(home))
    migrate(driver)
    driver.close()
    with empty.raw() as raw:
        raw.execute(
            'INSERT INTO "Mile_Post".job (id, kind, state, move)'
            f" VALUES ('{JOB_ID}', 'k', 'QUEUED', 'create')"
        )
        said = refusal(raw, """UPDATE "Mile_Post".job SET state = 'READY'""")
        assert "milepost:" in (said or "")
        assert raw.value('SELECT count(*) FROM "Mile_Post".journal') == 1


def copied(raw: Raw, table: str, columns: str, rows: list[tuple[object, ...]]) -> str | None:
    try:
        with raw.connection.cursor().copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        return str(error)
    return None


def test_copy_bears_and_journals_lawful_jobs_and_is_refused_for_any_other(owner: Raw):
    columns = "id, kind, state, move, version"
    lawful = [(subject(n), "k", "QUEUED", "create", 1) for n in range(10, 20)]
    assert copied(owner, "job", columns, lawful) is None
    assert owner.value("SELECT count(*) FROM journal WHERE move = 'create'") == 11

    before = everything(owner)
    bad = [(subject(n), "k", "QUEUED", "create", 1) for n in range(20, 30)]
    bad[5] = (subject(25), "k", "SUCCEEDED", "create", 1)
    assert "milepost:" in (copied(owner, "job", columns, bad) or "")
    entry = [(JOB_ID, "job", 3, "2026-01-01", 1, "note", "RUNNING")]
    for journal in ("journal", "journal_default"):
        names = "subject_id, machine, seq, at, fence, move, to_state"
        assert "milepost:" in (copied(owner, journal, names, entry) or "")
    assert everything(owner) == before


def test_a_partition_made_later_is_guarded_too(owner: Raw):
    owner.execute(
        "CREATE TABLE journal_later PARTITION OF journal FOR VALUES FROM"
        " ('02000000-0000-0000-0000-000000000000') TO ('03000000-0000-0000-0000-000000000000')"
    )
    name = "02000000-0000-7000-8000-000000000001"
    put(owner, JOB, [name], walks(JOB)["QUEUED"])
    assert owner.value("SELECT count(*) FROM journal_later") == 1
    before = everything(owner)
    for cheat in (
        "UPDATE journal_later SET detail = 'x'",
        "DELETE FROM journal_later",
        (
            "INSERT INTO journal_later (subject_id, machine, seq, at, fence, move, to_state)"
            f" VALUES ('{name}', 'job', 2, now(), 0, 'undispatch', 'READY')"
        ),
    ):
        assert "milepost:" in (refusal(owner, cheat) or ""), cheat
    assert everything(owner) == before


def test_lawful_moves_inside_a_users_trigger_are_journalled(owner: Raw):
    owner.execute("CREATE TABLE mine (n int)")
    owner.execute(
        "CREATE FUNCTION mine_acts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE job SET move = 'note', version = version + 1; RETURN NULL; END $$"
    )
    owner.execute(
        "CREATE TRIGGER mine_acts AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION mine_acts()"
    )
    owner.execute("INSERT INTO mine VALUES (1), (2)")
    assert seqs(owner, JOB_ID) == [1, 2, 3, 4]


def test_the_pass_that_lets_an_entry_in_does_not_outlive_the_move(owner: Raw):
    owner.execute("CREATE TABLE mine (n int)")
    owner.execute(
        "CREATE FUNCTION forge() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE job SET move = 'note', version = version + 1;"
        f" {ENTRY.format(journal='journal').replace(', 3,', ', 9,')}; RETURN NULL; END $$"
    )
    owner.execute("CREATE TRIGGER forge AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION forge()")
    before = everything(owner)
    assert "milepost:" in (refusal(owner, "INSERT INTO mine VALUES (1)") or "")
    assert everything(owner) == before
