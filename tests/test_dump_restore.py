"""A store survives backup and restore: the commands of the how-to page are run as they stand."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from milepost.client import new_id
from tests.support.databases import Backends, Database, Raw, backend_names

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "backup-and-restore.md"
POSTGRES = [name for name in backend_names() if name.startswith("postgres1")]
TABLES = ("job", "run", "worker", "journal", "limit_rule", "bucket", "limit_change")
MARK = "018f0000-0000-7000-8000-0000000000"


def commands(name: str) -> str:
    """Read the commands that the page gives under a name."""
    block = rf"<!-- run: {name} -->\n```sh\n(.*?)```"
    found = re.search(block, PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"the page has no commands named {name}"
    return found.group(1)


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run commands in a shell, with this Python as `python`."""
    paths = [str(Path(sys.executable).parent), environment.pop("PATH", ""), os.environ["PATH"]]
    return subprocess.run(
        ["sh", "-euc", script],
        cwd=folder,
        env={**os.environ, **environment, "PATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def live_through(raw: Raw) -> None:
    """Let jobs and runs end, wait, retry and be deleted, so that there is something to lose."""
    for number, state in enumerate(("QUEUED", "WAITING", "QUEUED", "QUEUED", "QUEUED"), start=10):
        raw.execute(
            "INSERT INTO job (id, kind, state, move, detail)"
            f" VALUES ('{MARK}{number}', 'k', '{state}', 'create', 'it''s; here')"
        )
    move = "UPDATE job SET state = '{}', move = '{}', version = version + 1, {} WHERE id = '{}'"
    for number in (12, 13, 14):
        claimed = "worker_id = 'w', fence = fence + 1"
        raw.execute(move.format("RUNNING", "claim", claimed, f"{MARK}{number}"))
    raw.execute(move.format("RETRYING", "retry", "worker_id = NULL", f"{MARK}13"))
    raw.execute(move.format("SUCCEEDED", "succeed", "worker_id = NULL", f"{MARK}14"))
    raw.execute(f"DELETE FROM job WHERE id = '{MARK}14'")
    raw.execute(
        f"INSERT INTO run (id, kind, state, move) VALUES ('{MARK}10', 'k', 'QUEUED', 'create')"
    )
    raw.execute("INSERT INTO worker (id, state, move) VALUES ('w', 'STARTUP', 'boot')")
    raw.execute(
        "INSERT INTO limit_rule (scope, name, most, rate, per_us, burst, units)"
        " VALUES ('job', 'k', 5, 2.5, 1000000, 9, 'tokens')"
    )
    raw.execute(f"INSERT INTO bucket (scope, key, free_at) VALUES ('job', 'a/k/x', {raw.now})")
    raw.execute(
        f"INSERT INTO limit_change (at, scope, name, actor) VALUES ({raw.now}, 'job', 'k', 'jo')"
    )
    raw.execute(
        "INSERT INTO job (id, kind, state, move, limit_key, units)"
        f" VALUES ('{MARK}19', 'k', 'QUEUED', 'create', 'a/k/x', 12.5)"
    )
    # Born now: on PostgreSQL its history is in this week's partition.
    raw.execute(
        f"INSERT INTO job (id, kind, state, move) VALUES ('{new_id()}', 'k', 'CREATED', 'create')"
    )


def content(raw: Raw) -> dict[str, list[str]]:
    return {t: sorted(map(repr, raw.execute(f"SELECT * FROM {t}"))) for t in TABLES}


def triggers(raw: Raw) -> list[str]:
    if raw.dialect == "sqlite":
        listed = "SELECT name || sql FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid"
        return [text for (text,) in raw.execute(listed)]
    listed = (
        "SELECT tgrelid::regclass::text || pg_get_triggerdef(oid) || tgenabled::text"
        " FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1"
    )
    functions = (
        "SELECT pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc"
        " WHERE proname LIKE 'milepost%' ORDER BY 1"
    )
    return [text for query in (listed, functions) for (text,) in raw.execute(query)]


def check_enforced(raw: Raw) -> None:
    """The restored store refuses what is illegal and journals what is not."""
    before = content(raw)
    for cheat in (
        f"UPDATE job SET state = 'SUCCEEDED' WHERE id = '{MARK}10'",
        "DELETE FROM job",
        "DELETE FROM journal",
        "DELETE FROM limit_change",
        f"UPDATE job SET limit_key = NULL WHERE id = '{MARK}19'",
        f"INSERT INTO job (id, kind, state, move) VALUES ('{MARK}20', 'k', 'RUNNING', 'create')",
        "UPDATE worker SET state = 'POLLING'",
    ):
        with pytest.raises(Exception, match="milepost:"):
            raw.execute(cheat)
    assert content(raw) == before
    raw.execute("UPDATE job SET move = 'note', version = version + 1 WHERE state = 'RUNNING'")
    assert raw.value("SELECT count(*) FROM journal WHERE move = 'note'") == 1


def check_restored(old: Database, new: Database) -> None:
    with old.raw() as before, new.raw() as after:
        assert content(after) == content(before)
        assert triggers(after) == triggers(before)
        check_enforced(after)


def addresses(old: Database, new: Database) -> dict[str, str]:
    assert old.server is not None
    return {
        "MILEPOST_DATABASE_URL": old.url,
        "NEW_DATABASE_URL": new.url,
        "PATH": str(Path(old.server.command("pg_dump")).parent),
    }


@pytest.fixture(params=POSTGRES)
def lived(request: pytest.FixtureRequest, backends: Backends) -> Database:
    """A PostgreSQL store with a past."""
    database = backends.fresh(request.param)
    with database.raw() as raw:
        live_through(raw)
    return database


@pytest.fixture
def lived_file(backends: Backends, tmp_path: Path) -> Database:
    """A SQLite store with a past, still open in a program that has not checkpointed."""
    shutil.copy(backends.fresh("sqlite").url.removeprefix("sqlite:///"), tmp_path / "milepost.db")
    database = Database("sqlite", f"sqlite:///{tmp_path / 'milepost.db'}")
    with database.raw() as raw:
        live_through(raw)
    return database


@pytest.mark.parametrize("way", ["custom", "plain"])
def test_a_whole_postgres_dump_restores_into_an_empty_database(
    lived: Database, backends: Backends, tmp_path: Path, way: str
):
    new = backends.fresh(lived.backend, empty=True)

    done = run(commands(way), tmp_path, **addresses(lived, new))

    assert done.returncode == 0, done.stderr
    for check in ("verify", "rehearsal"):
        verified = run(commands(check), tmp_path, **addresses(lived, new))
        assert verified.returncode == 0, verified.stdout + verified.stderr
    check_restored(lived, new)


def test_the_owner_of_a_store_restores_it_without_special_rights(
    lived: Database, backends: Backends, tmp_path: Path
):
    new = backends.fresh(lived.backend, empty=True)
    with new.raw() as raw:
        name = f"owner_{raw.value('SELECT current_database()')}"
        raw.execute(f"CREATE ROLE {name} LOGIN")
        raw.execute(f"GRANT CREATE ON DATABASE {raw.value('SELECT current_database()')} TO {name}")
    owned = Database(new.backend, new.url.replace("postgres@", f"{name}@"), new.server)

    done = run(commands("custom"), tmp_path, **addresses(lived, owned))

    assert done.returncode == 0, done.stderr
    with lived.raw() as before, owned.raw() as after:
        assert content(after) == content(before)
        check_enforced(after)


@pytest.mark.skipif(len(POSTGRES) < 2, reason="needs two servers")
def test_a_store_whose_workers_have_a_role_restores_on_another_server(
    backends: Backends, tmp_path: Path
):
    """The dump grants rights to roles, which belong to a server and are in no dump."""
    old = backends.fresh(min(POSTGRES))
    new = backends.fresh(max(POSTGRES), empty=True)
    places = {**addresses(old, new), "PATH": addresses(new, new)["PATH"]}
    roles = "SELECT rolname FROM pg_roles"
    with old.raw() as before, new.raw() as after:
        name = f"crew_{before.value('SELECT current_database()')}"
        before.execute(f"CREATE ROLE {name} LOGIN")
        before.execute(granted(old.url, name))
        live_through(before)
        known = after.execute(roles)

        done = run(commands("roles") + commands("custom"), tmp_path, **places)

        assert done.returncode == 0, done.stderr
        assert content(after) == content(before)
        may = "SELECT has_table_privilege('{}', 'job', '{}')"
        assert [after.value(may.format(name, right)) for right in ("SELECT", "DELETE")] == [
            before.value(may.format(name, right)) for right in ("SELECT", "DELETE")
        ]
        called = after.value(
            "SELECT count(*) FROM pg_proc WHERE prosecdef AND proname LIKE 'milepost%'"
            f" AND has_function_privilege('{name}', oid, 'EXECUTE')"
        )
        assert called == 0
        created = [role for (role,) in after.execute(roles) if (role,) not in known]
        assert name in created
        for role in created:
            after.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')
        before.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def granted(url: str, name: str) -> str:
    command = ["milepost", "grants", "--role", "worker", "--to", name, "--store", url]
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=True
    ).stdout


def test_data_alone_restores_into_a_migrated_store_only_with_the_triggers_off(
    lived: Database, backends: Backends, tmp_path: Path
):
    new = backends.fresh(lived.backend)
    script = commands("data")

    with new.raw() as raw:  # it was made in another week
        for (week,) in raw.execute(
            "SELECT relid::regclass::text FROM pg_partition_tree('journal')"
            " WHERE isleaf AND relid <> 'journal_default'::regclass"
        ):
            raw.execute(f"DROP TABLE {week}")

    refused = run(script.replace("=replica", "=origin"), tmp_path, **addresses(lived, new))

    assert refused.returncode != 0
    assert "milepost:" in refused.stderr
    with new.raw() as raw:
        assert content(raw) == {table: [] for table in TABLES}
    done = run(script, tmp_path, **addresses(lived, new))
    assert done.returncode == 0, done.stderr
    with lived.raw() as before, new.raw() as after:
        assert content(after) == content(before)
        check_enforced(after)


@pytest.mark.parametrize("way", ["backup", "vacuum", "text"])
def test_a_copy_of_a_sqlite_store_is_whole_while_a_program_uses_it(
    lived_file: Database, tmp_path: Path, way: str
):
    with lived_file.raw() as program:
        program.execute("UPDATE job SET move = 'note', version = version + 1 WHERE worker_id = 'w'")
        done = run(commands(way), tmp_path)

    assert done.returncode == 0, done.stderr
    copy = Database("sqlite", f"sqlite:///{tmp_path / 'copy.db'}")
    verified = run(commands("verify"), tmp_path, NEW_DATABASE_URL=copy.url)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    with lived_file.raw() as before, copy.raw() as after:
        assert content(after) == content(before)
        assert triggers(after) == triggers(before)
        after.execute(
            "UPDATE job SET state = 'RETRYING', move = 'retry', worker_id = NULL,"
            " version = version + 1 WHERE state = 'RUNNING'"
        )
        assert after.value(f"SELECT errors FROM job WHERE id = '{MARK}12'") == 1


def test_a_restored_sqlite_store_is_enforced(lived_file: Database, tmp_path: Path):
    assert run(commands("text"), tmp_path).returncode == 0
    with Database("sqlite", f"sqlite:///{tmp_path / 'copy.db'}").raw() as raw:
        check_enforced(raw)


def test_a_dump_in_sql_is_not_read_into_a_migrated_store(
    lived_file: Database, backends: Backends, tmp_path: Path
):
    shutil.copy(backends.fresh("sqlite").url.removeprefix("sqlite:///"), tmp_path / "copy.db")

    done = run(commands("text"), tmp_path)

    assert done.returncode != 0
    assert "already exists" in done.stderr
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        assert copy.execute("SELECT count(*) FROM job").fetchone() == (0,)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs the sqlite3 shell")
def test_the_sqlite_shell_dumps_and_reads_the_same(lived_file: Database, tmp_path: Path):
    done = run("sqlite3 milepost.db .dump > store.sql; sqlite3 copy.db '.read store.sql'", tmp_path)
    assert done.returncode == 0, done.stderr
    with (
        lived_file.raw() as before,
        Database("sqlite", f"sqlite:///{tmp_path / 'copy.db'}").raw() as after,
    ):
        assert content(after) == content(before)
        check_enforced(after)
