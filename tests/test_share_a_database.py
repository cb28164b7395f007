"""Milepost beside an application's own tables: a schema and a role of its own, as documented."""

import re
from pathlib import Path

import pytest

import milepost as mp
from milepost.cli import main
from tests.support.databases import Backends, backend_names

PAGE = Path(__file__).parent.parent / "docs/how-to/share-a-database.md"
POSTGRES = [name for name in backend_names() if name.startswith("postgres")]


@pytest.fixture(params=POSTGRES)
def shared(request, backends: Backends, capsys):
    """An application's database in which `jobs` is taken, with the documented schema and role."""
    database = backends.fresh(request.param, empty=True)
    [words] = re.findall(r"^milepost (grants .*) \| psql", PAGE.read_text(), re.MULTILINE)
    url = database.url
    with database.raw() as raw:
        raw.execute("CREATE TABLE jobs (id integer)")
        with pytest.raises(SystemExit, match="0"):
            main(["migrate", "--store", url])
        raw.execute("DROP ROLE IF EXISTS app")
        raw.execute("CREATE ROLE app LOGIN")
        capsys.readouterr()
        with pytest.raises(SystemExit, match="0"):
            main([*words.split(), "--store", url])
        raw.execute(capsys.readouterr().out)
        yield raw, url.replace("postgres@", "app@")
        raw.execute("DROP OWNED BY app")
        raw.execute("DROP ROLE app")


def advance(raw, days: int) -> None:
    """Move the store's clock, as only its owner can."""
    raw.execute(f"UPDATE milepost.clock SET offset_us = {days * 86_400_000_000}")


def test_a_role_without_rights_on_the_journal_submits_runs_and_is_journalled(shared):
    raw, url = shared
    app = mp.App(url)

    @app.job
    def double(number: int) -> int:
        return 2 * number

    job = double.submit(21)
    assert app.drain() == 1
    assert job.refresh().result == 42
    assert [entry.move for entry in job.history] == ["create", "claim", "succeed"]
    app.close()
    assert raw.value("SELECT count(*) FROM milepost.journal") == 3
    assert raw.value("SELECT count(*) FROM jobs") == 0  # the application's own table


def test_the_role_migrates_nothing_where_nothing_is_missing_and_is_told_who_may(shared, capsys):
    raw, url = shared
    with pytest.raises(SystemExit, match="0"):
        main(["migrate", "--store", url])
    raw.execute("DELETE FROM milepost.migration WHERE number > 1")
    with pytest.raises(SystemExit, match="5"):
        main(["migrate", "--store", url])
    assert "migrate as the tables' owner" in capsys.readouterr().err


def test_retention_runs_with_the_rights_of_that_role(shared):
    raw, url = shared
    app = mp.App(url)

    @app.job
    def nothing() -> None:
        return None

    nothing.submit()
    assert app.drain() == 1
    advance(raw, 8)
    app.maintain_once()
    app.close()
    assert raw.value("SELECT count(*) FROM milepost.job") == 0
    assert raw.value("SELECT count(*) FROM milepost.journal") == 0


def test_histories_are_summed_up_and_weeks_turned_with_the_rights_of_that_role(shared):
    """A worker owns nothing; what it may ask for is done with the owner's rights."""
    raw, url = shared
    app = mp.App(url)

    @app.job
    def poll():
        return mp.Later(86_400)

    def weeks() -> set[str]:
        found = raw.execute(
            "SELECT relid::regclass::text FROM pg_partition_tree('milepost.journal')"
        )
        return {name for (name,) in found}

    job = poll.submit()
    app.drain()
    before = weeks()
    advance(raw, 100)
    app.maintain_once()
    assert [entry.move for entry in job.history] == ["snapshot", "wake"]
    made, gone = weeks() - before, before - weeks()
    assert (len(made), len(gone)) == (3, 1)
    owners = raw.execute(
        "SELECT DISTINCT tableowner FROM pg_tables WHERE tablename LIKE 'journal%'"
    )
    assert owners == [("postgres",)]
    app.close()


def test_the_role_cannot_touch_the_journal_nor_any_part_of_it(shared):
    import psycopg

    raw, url = shared
    parts = raw.execute("SELECT relid::regclass::text FROM pg_partition_tree('milepost.journal')")
    assert len(parts) == 5
    for part in (f"milepost.{name}" for (name,) in parts):
        for attempt in (
            f"DELETE FROM {part}",
            f"UPDATE {part} SET detail = 'x'",
            f"INSERT INTO {part} SELECT * FROM {part}",
            f"TRUNCATE {part}",
            f"DROP TABLE {part}",
        ):
            with (
                psycopg.connect(url) as connection,
                pytest.raises(psycopg.errors.InsufficientPrivilege),
            ):
                connection.execute(attempt)


def test_a_qualified_statement_from_any_session_is_refused_like_any_other(shared):
    raw, url = shared
    app = mp.App(url)

    @app.job
    def nothing() -> None:
        return None

    job = nothing.submit()
    app.close()
    with pytest.raises(Exception, match="every change is a move"):
        raw.execute(f"UPDATE milepost.job SET state = 'SUCCEEDED' WHERE id = '{job.id}'")
