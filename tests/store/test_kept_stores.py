"""Tests take stores on servers in turn: the next one cannot tell that there was one before."""

from collections.abc import Iterator

import psycopg
import pytest

import milepost as mp
from milepost.store import workers
from tests.support.databases import IDLE, Backends, Database, everyday_names
from tests.support.kept import Kept

POSTGRES = [name for name in everyday_names() if name[8:].isdigit()]
TRACES = (
    "CREATE VIEW public.left_over AS SELECT 1",
    "CREATE TABLE public.needed (n int); CREATE VIEW public.needs AS TABLE public.needed",
    "ALTER TABLE milepost.job DISABLE TRIGGER USER",
    "ALTER TABLE milepost.job ADD COLUMN more text",
    "DROP INDEX milepost.publication_run",
    "GRANT SELECT ON milepost.job TO PUBLIC",
    "CREATE SCHEMA another",
    "REVOKE USAGE ON SCHEMA public FROM PUBLIC",
    "ANALYZE milepost.clock",
    "ALTER FUNCTION milepost.milepost_now() COST 7",
    "COMMENT ON TABLE milepost.job IS 'jobs'",
    "UPDATE milepost.retention SET least_us = 1",
    "UPDATE milepost.migration SET checksum = 'another' WHERE number = 1",
    "ALTER DATABASE {name} SET work_mem = '1MB'",
    "ALTER DATABASE {name} CONNECTION LIMIT 50",
)


@pytest.fixture(params=POSTGRES)
def database(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Database]:
    made = backends.fresh(request.param)
    yield made
    backends.drop(made)


@pytest.fixture
def kept(database: Database) -> Iterator[Kept]:
    made = Kept(database.url)
    yield made
    made.close()


def lived_in(url: str) -> list[int]:
    """Use a store as tests do; tell the numbers that it gave."""
    app = mp.App(url)
    count = app.batch("count")
    count.step(lambda: [1, 2], name="find")
    count.step(lambda number: number, name="add")
    run = count.start()
    app.drain()
    assert run.state == "SUCCEEDED"
    app.client.run(workers.advance_clock, 3600)
    app.close()
    with psycopg.connect(url) as connection:
        return [n for (n,) in connection.execute("SELECT nextval('milepost.queued_seq')")]


def test_a_store_given_back_is_as_it_was(database: Database, kept: Kept) -> None:
    before = rows(database)
    first = lived_in(database.url)
    assert rows(database) != before
    assert kept.emptied()
    assert rows(database) == before
    assert lived_in(database.url) == first
    assert kept.emptied()


def rows(database: Database) -> dict[str, int]:
    with database.raw() as raw:
        tables = raw.execute(
            "SELECT oid::regclass::text FROM pg_class"
            " WHERE relkind = 'r' AND relnamespace = 'milepost'::regnamespace"
        )
        found = {name: raw.value(f"SELECT count(*) FROM {name}") for (name,) in tables}
        return {**found, "moved": raw.value("SELECT offset_us FROM clock")}


def test_a_store_with_a_trace_of_a_test_is_not_taken_again(database: Database) -> None:
    """Each of them alone: what changed the same catalogue before must not hide it."""
    missed = [trace for trace in TRACES if not _notices(database, trace)]
    assert missed == []


def _notices(database: Database, trace: str) -> bool:
    made = Kept(database.url)
    try:
        with database.raw() as raw:
            name = raw.value("SELECT current_database()")
        assert made.emptied(), f"before {trace}"
        with database.raw() as raw:
            raw.execute(trace.format(name=f'"{name}"'))
        return not made.emptied()
    finally:
        made.close()


def test_tables_that_a_test_made_are_dropped(database: Database, kept: Kept) -> None:
    with database.raw() as raw:
        raw.execute("CREATE TABLE public.left_over (id bigserial PRIMARY KEY, t text UNIQUE)")
        raw.execute('CREATE TABLE milepost."Left, over" (n int) PARTITION BY RANGE (n)')
    assert kept.emptied()
    with database.raw() as raw:
        assert raw.value("SELECT count(*) FROM pg_class WHERE relname ILIKE 'left%over'") == 0


def test_a_store_that_a_test_still_holds_is_not_taken_again(
    database: Database, kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.kept.PATIENCE_SECONDS", 0)
    with database.raw():
        assert not kept.emptied()


def test_a_store_is_lent_again_and_a_changed_one_is_dropped(
    backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "_idle", {})
    first = [backends.take(POSTGRES[0]) for _ in range(IDLE)]
    with first[0].raw() as raw:
        raw.execute("CREATE SCHEMA another")
    for database in first:
        backends.give_back(database)
    second = backends.take(POSTGRES[0])
    assert second not in first
    with pytest.raises(psycopg.OperationalError, match="does not exist"), first[0].raw():
        pass
    backends.give_back(second)
    assert backends.take(POSTGRES[0]) == first[1]
    for database in (*first[1:], second):
        backends.drop(database)
