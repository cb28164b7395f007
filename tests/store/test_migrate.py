"""Migrations: numbered, checksummed, repeatable, one runner at a time, printable."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from milepost.address import StoreUrl
from milepost.cli import main
from milepost.errors import SchemaMismatch
from milepost.observe.verify import verify
from milepost.store import migrate as module
from milepost.store.migrate import Migration, check, migrate, migrations, pending
from tests.support.databases import Backends, Database, Raw, backend_names, older_names
from tests.support.prove import PROVING

pytestmark = pytest.mark.every_version

NUMBERS = [migration.number for migration in migrations("sqlite")]
NEWEST = NUMBERS[-1]
BY_VERSION = [
    (backend, version)
    for backend, version in product(backend_names(), NUMBERS[:-1])
    # Every day the first and the newest but one, and half of those between on each database.
    if PROVING
    or version == 1
    or (backend not in older_names() and (version + (backend == "sqlite")) % 2 == 0)
    or (backend not in older_names() and version == NUMBERS[-2])
]


def test_numbers_leave_no_gap_and_are_the_same_for_both_databases():
    assert list(range(1, NEWEST + 1)) == NUMBERS
    assert [m.name for m in migrations("postgres")] == [m.name for m in migrations("sqlite")]


@pytest.fixture(params=backend_names())
def empty(request, backends: Backends) -> Database:
    return backends.fresh(request.param, empty=True)


def some_id(number: int) -> str:
    return f"018f0000-0000-7000-8000-{number:012d}"


def add_live_rows(raw: Raw, version: int) -> None:
    """Put rows in many states into a store of an old version, by hand."""
    for number in range(1, 5):
        raw.execute(
            "INSERT INTO job (id, kind, state, move, payload) "
            f"VALUES ('{some_id(number)}', 'k', 'QUEUED', 'create', {blob(raw, 'x')})"
        )
    claim = "state = 'RUNNING', move = 'claim', fence = fence + 1, worker_id = 'w'"
    raw.execute(f"UPDATE job SET {claim}, version = version + 1 WHERE id >= '{some_id(2)}'")
    for number, end in ((3, "'RETRYING', move = 'retry'"), (4, "'SUCCEEDED', move = 'succeed'")):
        raw.execute(
            f"UPDATE job SET state = {end}, worker_id = NULL, version = version + 1"
            f" WHERE id = '{some_id(number)}'"
        )
    if version >= 2:
        raw.execute(
            "INSERT INTO run (id, kind, state, move) "
            f"VALUES ('{some_id(99)}', 'k', 'CREATED', 'create')"
        )
        raw.execute("UPDATE run SET state = 'QUEUED', move = 'seal', version = version + 1")
    if version >= 3:
        raw.execute("INSERT INTO worker (id, state, move) VALUES ('w', 'STARTUP', 'boot')")


def blob(raw: Raw, text: str) -> str:
    return f"x'{text.encode().hex()}'" if raw.dialect == "sqlite" else f"'{text}'::bytea"


@pytest.mark.prove
@pytest.mark.parametrize(("backend", "version"), BY_VERSION)
def test_every_version_upgrades_to_the_newest_with_live_rows(backends, backend, version):
    store = backends.fresh(backend, empty=True)
    with store.driver() as driver, store.raw() as raw:
        migrate(driver, upto=version)
        add_live_rows(raw, version)
        before = raw.execute("SELECT * FROM job ORDER BY id")

        applied = migrate(driver)

        assert [migration.number for migration in applied] == [n for n in NUMBERS if n > version]
        assert raw.execute("SELECT * FROM job ORDER BY id") == before
        raw.execute(
            "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1,"
            " worker_id = NULL WHERE state IN ('QUEUED', 'RUNNING', 'RETRYING')"
        )
        verdict = verify(driver)
        assert verdict.clean, verdict.problems
        check(driver, StoreUrl.parse(store.url))


def test_running_it_again_changes_nothing(empty):
    with empty.driver() as driver:
        assert len(migrate(driver)) == len(NUMBERS)
        assert migrate(driver) == []
        assert pending(driver) == []


def test_two_runners_at_once_apply_each_migration_once(empty):
    applied: list[Migration] = []
    start = threading.Barrier(4, timeout=60)

    def run() -> None:
        with empty.driver() as driver:
            start.wait()
            applied.extend(migrate(driver))

    with ThreadPoolExecutor(4) as threads:
        for runner in [threads.submit(run) for _ in range(4)]:
            runner.result()
    assert sorted(migration.number for migration in applied) == NUMBERS


def test_a_migration_that_fails_leaves_nothing_behind(empty, monkeypatch):
    broken = Migration(
        NEWEST + 1, "9999_broken", "CREATE TABLE half (id integer);\nSELECT nonsense;"
    )
    whole = (*migrations(empty.dialect), broken)
    monkeypatch.setattr(module, "migrations", lambda _dialect: whole)
    with empty.driver() as driver:
        with pytest.raises(Exception, match="nonsense"):
            migrate(driver)
        monkeypatch.undo()
        assert len(pending(driver)) == len(NUMBERS)


def test_an_altered_migration_is_noticed(database):
    with database.driver() as driver, database.raw() as raw:
        raw.execute("UPDATE migration SET checksum = 'another' WHERE number = 1")
        with pytest.raises(SchemaMismatch, match="0001_jobs was applied with another text"):
            check(driver, StoreUrl.parse(database.url))
        with pytest.raises(SchemaMismatch, match="0001_jobs"):
            migrate(driver)


def test_a_store_from_the_future_is_left_alone(database):
    with database.driver() as driver, database.raw() as raw:
        raw.execute("INSERT INTO migration (number, name, checksum) VALUES (999, '0999_x', '')")
        with pytest.raises(SchemaMismatch, match="upgrade this program"):
            migrate(driver)


def test_an_older_schema_is_refused_with_the_command_to_run(empty):
    with empty.driver() as driver:
        migrate(driver, upto=1)
        with pytest.raises(SchemaMismatch, match="milepost migrate"):
            check(driver, StoreUrl.parse(empty.url))


def schema(raw: Raw) -> list[object]:
    if raw.dialect == "sqlite":
        return raw.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name")
    columns = raw.execute(
        "SELECT table_name, column_name, data_type, column_default FROM information_schema.columns"
        " WHERE table_schema = 'milepost' ORDER BY 1, 2"
    )
    triggers = raw.execute(
        "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2"
    )
    functions = raw.execute(
        "SELECT proname, prosrc, proconfig FROM pg_proc"
        " WHERE pronamespace = 'milepost'::regnamespace ORDER BY 1"
    )
    return [*columns, *triggers, *functions]


def test_what_migrate_prints_can_be_run_by_hand(backends, empty, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["migrate", "--store", empty.url, "--sql"])
    printed = capsys.readouterr().out
    with empty.driver() as driver:
        assert len(pending(driver)) == len(NUMBERS)  # it was printed, not run

    with empty.raw() as raw:
        if raw.dialect == "sqlite":
            raw.connection.executescript(printed)
        else:
            raw.execute(printed)
        by_hand = schema(raw)
    with empty.driver() as driver:
        check(driver, StoreUrl.parse(empty.url))
    with backends.fresh(empty.backend).raw() as raw:
        assert by_hand == schema(raw)


def test_migrate_prints_for_a_database_it_cannot_reach(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["migrate", "--sql", "--dialect", "sqlite"])
    connection = sqlite3.connect(":memory:")
    connection.executescript(capsys.readouterr().out)
    assert connection.execute("SELECT max(number) FROM migration").fetchone() == (NEWEST,)
    connection.close()


def test_both_dialects_have_the_same_numbered_files():
    names = [[m.name for m in migrations(dialect)] for dialect in ("sqlite", "postgres")]
    assert names[0] == names[1]
    assert sorted(set(NUMBERS)) == NUMBERS
