"""The store in a schema of its own: a caller's connection need not look there (H-113)."""

import psycopg
import pytest
from test_within import ASYNC, SYNC

import milepost as mp
from milepost.observe.verify import verify
from tests.support.databases import Backends, backend_names

POSTGRES = [name for name in backend_names() if name.startswith("postgres")]
NAMESAKES = """
CREATE TABLE job (id text, payload text);
CREATE TABLE worker (id text);
CREATE FUNCTION milepost_now() RETURNS text LANGUAGE plpgsql AS
  $$ BEGIN RAISE 'this is the application''s own function'; END $$;
"""


@pytest.fixture(params=POSTGRES)
def database(request, backends: Backends):
    """An application's database, in which the names of the store's tables are taken."""
    made = backends.fresh(request.param, empty=True)
    with made.raw() as raw:
        for statement in NAMESAKES.strip().split(";\n"):
            raw.execute(statement)
    yield made
    backends.drop(made)


@pytest.fixture
def app(database):
    made = mp.App(f"{database.url}&schema=Store", migrate=True)
    made.counts()
    yield made
    made.close()


@pytest.fixture
def greet(app):
    @app.job
    def greet(name: str) -> str:
        return f"hello {name}"

    return greet


def test_a_sync_submit_finds_the_stores_tables_and_no_namesakes(app, greet, database, raw):
    for way in SYNC["postgres"]:
        with way(database) as connection:
            kept = greet.within(connection).submit("kept")
            once = greet.options(unique=way.__name__, start_in=5).within(connection)
            assert once.submit("a").id == once.submit("b").id
            connection.commit()
            greet.within(connection).submit("undone")
            connection.rollback()
        assert kept.refresh().state == mp.JobState.QUEUED, way
    assert len(app.jobs.list()) == 2 * len(SYNC["postgres"])
    assert raw.value("SELECT count(*) FROM public.job") == 0
    assert app.drain() == len(SYNC["postgres"])


async def test_an_async_submit_finds_them_too(app, greet, database, raw):
    for way in ASYNC:
        async with way(database) as (connection, commit, _):
            kept = await greet.within(connection).submit_async("kept")
            await greet.options(unique=way.__name__).within(connection).submit_async("a")
            await commit()
        assert (await kept.refresh_async()).state == mp.JobState.QUEUED, way
    assert raw.value("SELECT count(*) FROM public.job") == 0
    await app.close_async()


def test_where_the_connection_looks_stays_as_it_was(app, greet, database):
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute("SET search_path = pg_catalog")
        greet.within(connection).submit("now")  # in autocommit it is there at once
        assert len(app.jobs.list()) == 1
        assert connection.execute("SHOW search_path").fetchone() == ("pg_catalog",)
    assert verify(app.client.driver).clean
