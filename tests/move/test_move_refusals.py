"""A move that cannot be made is refused with its reason, and nothing is different afterwards."""

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from contents import content, types

import milepost as mp
from milepost.cli import main
from milepost.store import retention, workers
from tests.support.databases import Backends, Database, Raw


def fill(file: Database) -> str:
    app = mp.App(file.url)
    job = app.job(name="work")(lambda n: n).submit(1)
    app.close()
    return job.id


def state(raw: Raw) -> list[str]:
    """Read what a dump would: whatever a refusal might have changed."""
    if raw.dialect == "sqlite":
        return list(raw.connection.iterdump())
    return [
        *map(str, raw.execute("SELECT oid, relname FROM pg_class WHERE oid > 16384 ORDER BY oid")),
        *map(str, raw.execute("SELECT oid, tgenabled FROM pg_trigger ORDER BY oid")),
    ]


@pytest.fixture
def refused(file: Database, move):
    """Move, and make sure that it is refused and changes nothing; its message comes back."""

    def run(source: Database | str, target: Database | str, *, code: int = 5) -> str:
        watched = [one for one in (source, target) if isinstance(one, Database)]

        def look() -> list[list[str]]:
            found = []
            for database in watched:
                with database.raw() as raw:
                    found.append(state(raw))
            return found

        before = look()
        ended = move(source, target)
        assert ended.code == code, ended.said
        assert look() == before
        assert not ended
        return str(ended.said)

    return run


def test_a_target_that_has_jobs_is_named_with_its_tables(file, server, backends, refused):
    fill(file)
    target = backends.fresh(server.backend)
    app = mp.App(target.url)
    app.job(name="work")(lambda: None).submit()
    app.close()
    known = types(target)
    with target.raw() as raw:
        before = content(raw, known)
    said = refused(file, target)
    assert "not empty" in said
    assert "job, journal" in said
    with target.raw() as raw:
        assert content(raw, known) == before


def test_a_target_that_somebody_has_set_up_otherwise_is_not_empty(file, newest, backends, refused):
    fill(file)
    target = backends.fresh(newest.backend)
    with target.driver() as driver:
        driver.run(retention.set_minimum, 7200.0, actor="ann")
    assert "rows in retention" in refused(file, target)


def test_a_database_of_something_else_is_not_set_up_unasked(file, server, refused, move):
    fill(file)
    with server.raw() as raw:
        raw.execute("CREATE TABLE invoices (id int)")
    said = refused(file, server, code=75)
    assert "invoices" in said
    assert "milepost migrate" in said
    with pytest.raises(SystemExit):  # it is meant
        main(["migrate", "--store", server.url])
    assert move(file, server).code == 0


@pytest.mark.parametrize("side", ["source", "target"])
def test_both_must_be_at_the_same_version(side, file, newest, backends, refused):
    fill(file)
    target = backends.fresh(newest.backend)
    old = file if side == "source" else target
    with old.raw() as raw:
        raw.execute("DELETE FROM migration WHERE number > 17")
    said = refused(file, target, code=75)
    assert "older than this program" in said
    assert "milepost migrate" in said


def test_live_workers_are_named_with_how_to_stop_them(file, server, refused):
    fill(file)
    with file.driver() as driver:
        for number in range(7):
            new = workers.NewWorker(id=f"w{number}", lease_us=30_000_000, host="box", pid=4711)
            driver.run(workers.register, new)
    said = refused(file, server)
    assert "(process 4711 on box)" in said
    assert "and 2 more" in said
    assert "SIGTERM" in said


def test_a_worker_that_died_is_in_nobodys_way_once_its_lease_is_over(file, server, move):
    fill(file)
    with file.driver() as driver:
        driver.run(workers.register, workers.NewWorker(id="w", lease_us=30_000_000))
        driver.run(workers.advance_clock, 31.0)
    assert move(file, server).code == 0


def test_a_server_that_is_away(file, refused):
    fill(file)
    said = refused(file, "postgresql://app:secret@127.0.0.1:1/app", code=75)
    assert "cannot be reached" in said
    assert "secret" not in said


def test_a_role_that_may_not_own_tables(file, server, backends: Backends, refused):
    fill(file)
    target = backends.fresh(server.backend)
    with target.raw() as raw:
        name = f"guest_{raw.value('SELECT current_database()')}"
        raw.execute(f"CREATE ROLE {name} LOGIN")
        raw.execute(f"GRANT ALL ON SCHEMA milepost TO {name}")
        raw.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA milepost TO {name}")
        said = refused(file, target.url.replace("postgres@", f"{name}@"))
        assert "must be owner" in said or "permission denied" in said
        raw.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_what_is_no_way_to_move(file, backends, newest, tmp_path, refused):
    fill(file)
    other = f"sqlite:///{tmp_path}/other.db"
    assert "both" in refused(file, file.url, code=2)
    assert "SQLite file to PostgreSQL" in refused(file, other, code=2)
    assert "SQLite file to PostgreSQL" in refused(newest.url, other, code=2)
    assert "SQLite file to PostgreSQL" in refused(
        newest.url, backends.fresh(newest.backend), code=2
    )
    assert not (tmp_path / "other.db").exists()


def test_a_file_that_is_not_there_or_no_store(newest, tmp_path, refused):
    assert "no such file" in refused(f"sqlite:///{tmp_path}/none.db", newest, code=75)
    assert not (tmp_path / "none.db").exists()
    with sqlite3.connect(tmp_path / "else.db") as connection:
        connection.execute("CREATE TABLE invoices (id int)")
    connection.close()
    assert "invoices" in refused(f"sqlite:///{tmp_path}/else.db", newest, code=75)


def test_a_store_that_was_moved_away_is_not_moved_again(file, server, newest, move, refused):
    fill(file)
    assert move(file, server).code == 0
    said = refused(file, newest)
    assert "was moved to postgresql://" in said
    assert "MILEPOST_DATABASE_URL" in said
    # Also where the new one is away.
    assert "was moved" in refused(file, "postgresql://app@127.0.0.1:1/app")


def test_another_that_writes_is_waited_for_and_then_named(file, newest, refused, monkeypatch):
    from milepost.store import sqlite

    fill(file)
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    with file.raw() as raw:
        raw.execute("BEGIN IMMEDIATE")
        assert "database is locked" in refused(file.url, newest, code=75)
        raw.execute("ROLLBACK")


# Once it is moved


def test_programs_that_still_use_the_file_are_told(file, newest, move):
    """An open connection is refused by the database itself; who opens it anew is told at once."""
    opened = mp.App(file.url)
    work = opened.job(name="work")(lambda n: n)
    kept = work.submit(1)
    with file.raw() as hand:
        assert move(file, newest).code == 0
        with pytest.raises(mp.SchemaMismatch, match=r"moved away, to postgresql://.*\(move "):
            work.submit(2)
        with pytest.raises(mp.SchemaMismatch, match="moved away"):
            kept.cancel("changed my mind")
        with pytest.raises(mp.SchemaMismatch, match="moved away"):
            opened.drain()
        with pytest.raises(sqlite3.IntegrityError, match="milepost: this store was moved away"):
            hand.execute("DELETE FROM job")
        with pytest.raises(sqlite3.IntegrityError, match="moved away"):
            work.within(hand.connection).submit(3)
    opened.close()
    with pytest.raises(mp.SchemaMismatch, match=r"was moved to postgresql://.* by .* at \d{4}-"):
        mp.App(file.url).jobs.list()
    with file.raw() as hand:
        assert hand.value("SELECT count(*) FROM job") == 1


def test_every_table_of_the_file_is_frozen(file, newest, move):
    assert move(file, newest).code == 0
    with file.raw() as raw:
        for table in types(newest):
            [first, *_] = [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
            with pytest.raises(sqlite3.IntegrityError, match="moved away"):
                raw.execute(f'INSERT INTO {table} ("{first}") VALUES (1)')


@pytest.mark.parametrize("command", [["jobs", "ls"], ["verify"], ["doctor"], ["queues", "ls"]])
def test_commands_tell_where_the_store_is(command, file, newest, move, capsys):
    assert move(file, newest).code == 0
    with pytest.raises(SystemExit) as end:
        main([*command, "--store", file.url])
    printed = capsys.readouterr()
    assert end.value.code != 0
    assert "was moved to postgresql://" in printed.out + printed.err


def test_no_password_is_kept_or_shown(file, server, move):
    """Neither in the file, nor in the new store, nor on the terminal."""
    fill(file)
    with server.raw() as raw:
        name = f"owner_{raw.value('SELECT current_database()')}"
        raw.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'tr0ub4dor'")
    ended = move(file, server.url.replace("postgres@", f"{name}:tr0ub4dor@"))
    assert ended.code == 0, ended.said
    with file.raw() as here, server.raw() as there:
        stored = [*here.connection.iterdump(), *map(str, there.execute("TABLE store_move"))]
        assert not any("tr0ub4dor" in text for text in [*stored, ended.said, json.dumps(ended)])
        there.execute(
            f"REASSIGN OWNED BY {name} TO postgres; DROP OWNED BY {name}; DROP ROLE {name}"
        )


def test_the_owner_of_a_database_needs_no_other_right(file, server, move):
    """Triggers are switched off and on by the tables' owner; every guard stands afterwards."""
    fill(file)
    with server.raw() as raw:
        database = raw.value("SELECT current_database()")
        name = f"owner_{database}"
        raw.execute(f"CREATE ROLE {name} LOGIN")
        raw.execute(f"GRANT CREATE ON DATABASE {database} TO {name}")
        ended = move(file, server.url.replace("postgres@", f"{name}@"))
        assert ended.code == 0, ended.said
        off = raw.execute("SELECT tgname FROM pg_trigger WHERE tgenabled <> 'O'")
        assert off == []
        raw.execute(f"REASSIGN OWNED BY {name} TO postgres; DROP OWNED BY {name}; DROP ROLE {name}")


def test_what_the_command_prints(file, newest, tmp_path):
    """Data on stdout, messages on stderr; no bar where there is no terminal."""
    fill(file)
    environment = {**os.environ, "MILEPOST_DATABASE_URL": file.url}
    command = [sys.executable, "-m", "milepost", "move", "--to", newest.url]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{file.url} is at postgresql://")
    assert " rows in " in ended.stdout
    assert "MILEPOST_DATABASE_URL" in ended.stderr
    assert list(Path(tmp_path).iterdir()) == []
