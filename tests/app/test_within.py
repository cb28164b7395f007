"""Inside the caller's own transaction: it commits, or it never was."""

import sqlite3
import warnings
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import psycopg
import psycopg.rows
import pytest
import sqlalchemy
import sqlalchemy.orm

import milepost as mp
from milepost.address import StoreUrl
from tests.support.databases import Database


class Named(sqlite3.Connection):
    """A subclass, as frameworks make them."""


class Renamed(psycopg.Connection):
    """Likewise."""


@contextmanager
def plain_sqlite(database, **options):
    connection = sqlite3.connect(StoreUrl.parse(database.url).target, timeout=30, **options)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def sqlite_rows(database):
    with plain_sqlite(database, factory=Named) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        yield connection


@contextmanager
def sqlite_explicit(database):
    """Autocommit, and a transaction that the caller begins."""
    with plain_sqlite(database, isolation_level=None) as connection:
        connection.execute("BEGIN")
        yield connection


@contextmanager
def plain_psycopg(database, kind=psycopg.Connection, **options):
    with kind.connect(database.url, **options) as connection:
        yield connection
        connection.rollback()


def psycopg_dicts(database):
    return plain_psycopg(database, Renamed, row_factory=psycopg.rows.dict_row)


@contextmanager
def psycopg_pipeline(database):
    """Statements are sent ahead of their answers."""
    with plain_psycopg(database) as connection, connection.pipeline():
        yield connection


def engine_url(database, driver):
    if database.dialect == "sqlite":
        return f"sqlite:///{StoreUrl.parse(database.url).target}"
    return database.url.replace("postgresql://", f"postgresql+{driver}://")


@contextmanager
def engine_of(database):
    engine = sqlalchemy.create_engine(engine_url(database, "psycopg"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def alchemy_connection(database):
    with engine_of(database) as engine, engine.connect() as connection:
        yield connection


@contextmanager
def alchemy_session(database):
    with engine_of(database) as engine, sqlalchemy.orm.Session(engine) as session:
        yield session


SYNC = {
    "sqlite": [
        plain_sqlite,
        sqlite_rows,
        sqlite_explicit,
        alchemy_connection,
        alchemy_session,
    ],
    "postgres": [
        plain_psycopg,
        psycopg_dicts,
        psycopg_pipeline,
        alchemy_connection,
        alchemy_session,
    ],
}


@asynccontextmanager
async def psycopg_async(database):
    connection = await psycopg.AsyncConnection.connect(
        database.url, row_factory=psycopg.rows.dict_row
    )
    async with connection:
        yield connection, connection.commit, connection.rollback
        await connection.rollback()


@asynccontextmanager
async def psycopg_async_pipeline(database):
    async with psycopg_async(database) as (connection, commit, rollback), connection.pipeline():
        yield connection, commit, rollback


@asynccontextmanager
async def plain_asyncpg(database):
    connection = await asyncpg.connect(database.url)
    # As many programs do: JSON columns read and written as Python values.
    import json

    await connection.set_type_codec(
        "jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
    )
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield connection, transaction.commit, transaction.rollback
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(database):
    async with (
        asyncpg.create_pool(database.url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
    ):
        transaction = connection.transaction()
        await transaction.start()
        yield connection, transaction.commit, transaction.rollback


def alchemy_async():
    pytest.importorskip("greenlet", reason="SQLAlchemy's asyncio needs greenlet")
    import sqlalchemy.ext.asyncio

    return sqlalchemy.ext.asyncio


@asynccontextmanager
async def async_engine(database, driver="asyncpg"):
    engine = alchemy_async().create_async_engine(engine_url(database, driver))
    try:
        yield engine
    finally:
        await engine.dispose()


@asynccontextmanager
async def alchemy_async_connection(database):
    async with async_engine(database) as engine, engine.connect() as connection:
        yield connection, connection.commit, connection.rollback


@asynccontextmanager
async def alchemy_async_session(database):
    async with async_engine(database) as engine, alchemy_async().AsyncSession(engine) as session:
        yield session, session.commit, session.rollback


@asynccontextmanager
async def alchemy_async_psycopg(database):
    async with async_engine(database, "psycopg") as engine, engine.connect() as connection:
        yield connection, connection.commit, connection.rollback


ASYNC = [
    psycopg_async,
    psycopg_async_pipeline,
    plain_asyncpg,
    asyncpg_pool,
    alchemy_async_connection,
    alchemy_async_session,
    alchemy_async_psycopg,
]


@pytest.fixture
def greet(app):
    @app.job
    def greet(name: str) -> str:
        return f"hello {name}"

    app.counts()
    return greet


def end(connection, what):
    if isinstance(connection, sqlite3.Connection) and connection.isolation_level is None:
        connection.execute(what)
    else:
        getattr(connection, what)()


def test_what_a_sync_transaction_commits_is_stored_and_what_it_rolls_back_never_was(
    app, greet, database, raw
):
    for way in SYNC[database.dialect]:
        stored = raw.value("SELECT count(*) FROM job")
        with way(database) as connection:
            job = greet.within(connection).options(tags={"a": "b"}).submit("kept")
            assert raw.value("SELECT count(*) FROM job") == stored
            end(connection, "commit")
            assert job.refresh().state == mp.JobState.QUEUED, way
            assert job.record.tags.replace(" ", "") == '{"a":"b"}'
            if way is sqlite_explicit:
                connection.execute("BEGIN")
            lost = greet.within(connection).submit("lost")
            unique = greet.options(unique="once").within(connection).submit("lost")
            many = greet.within(connection).submit_many([("lost",)] * 3)
            end(connection, "rollback")
            for job in (lost, unique, *many):
                with pytest.raises(mp.NotFound):
                    job.refresh()
    count = len(SYNC[database.dialect])
    assert app.drain() == count
    assert [job.result for job in app.jobs.list()] == ["hello kept"] * count


@pytest.mark.parametrize("way", ASYNC)
async def test_what_an_async_transaction_commits_is_stored_and_what_it_rolls_back_never_was(
    app, greet, database, way
):
    if database.dialect == "sqlite":
        pytest.skip("sqlite3 connections are synchronous")
    async with way(database) as (connection, commit, _):
        job = await greet.within(connection).options(tags={"a": "b"}).submit_async("kept")
        with pytest.raises(mp.NotFound):
            await job.refresh_async()
        await commit()
        assert (await job.refresh_async()).state == mp.JobState.QUEUED
        assert job.record.tags.replace(" ", "") == '{"a":"b"}'
    async with way(database) as (connection, _, rollback):
        lost = await greet.within(connection).submit_async("lost")
        unique = await greet.options(unique="once").within(connection).submit_async("lost")
        many = await greet.within(connection).submit_many_async([("lost",)] * 3)
        await rollback()
        for job in (lost, unique, *many):
            with pytest.raises(mp.NotFound):
                await job.refresh_async()
    assert await app.drain_async() == 1
    await app.close_async()


def test_the_callers_own_rows_and_the_job_are_one_transaction(app, greet, database):
    for way in SYNC[database.dialect]:
        with way(database) as connection:
            execute = connection.execute
            text = sqlalchemy.text if "sqlalchemy" in type(connection).__module__ else str
            execute(text("CREATE TABLE IF NOT EXISTS mine (x int)"))
            execute(text("INSERT INTO mine VALUES (1)"))
            greet.within(connection).submit("lost")
            end(connection, "rollback")
    assert list(app.jobs.list()) == []


def test_a_callers_mistake_is_told_and_stores_nothing(app, greet, database):
    with SYNC[database.dialect][0](database) as connection:
        with pytest.raises(mp.Invalid):
            greet.within(connection).submit(7)
        greet.within(connection).submit("fine")
        end(connection, "commit")
    assert len(app.jobs.list()) == 1


def test_within_returns_an_immutable_copy(app, greet, database):
    with SYNC[database.dialect][0](database) as connection:
        bound = greet.within(connection)
        assert bound is not greet
        assert greet.submit("outside").refresh().state == mp.JobState.QUEUED
        assert bound.options(priority=3).submit("inside").id


async def test_the_wrong_colour_names_the_right_one(app, greet, database):
    with (
        SYNC[database.dialect][0](database) as connection,
        pytest.raises(mp.Invalid, match=r"synchronous: call submit\(\)"),
    ):
        await greet.within(connection).submit_async("x")
    if database.dialect == "postgres":
        async with psycopg_async(database) as (connection, _, _):
            with (
                warnings.catch_warnings(action="ignore"),
                pytest.raises(mp.Invalid, match=r"asynchronous: await submit_async\(\)"),
            ):
                greet.within(connection).submit("x")
    await app.close_async()


def test_the_wrong_kind_of_database_is_refused(app, greet, database, backends):
    other = backends.fresh("postgres18" if database.dialect == "sqlite" else "sqlite")
    with (
        SYNC[other.dialect][0](other) as connection,
        pytest.raises(mp.Invalid, match="must be the same database"),
    ):
        greet.within(connection).submit("x")


def test_another_database_of_the_same_kind_is_refused(app, greet, database, backends):
    for empty in (True, False):
        other: Database = backends.fresh(database.backend, empty=empty)
        for way in SYNC[database.dialect]:
            with way(other) as connection:
                with pytest.raises(mp.Invalid, match="must be the same database"):
                    greet.within(connection).submit("x")
                end(connection, "rollback")


@pytest.mark.parametrize("way", ASYNC)
async def test_another_postgres_is_refused_in_async_too(app, greet, database, backends, way):
    if database.dialect == "sqlite":
        pytest.skip("sqlite3 connections are synchronous")
    other: Database = backends.fresh(database.backend)
    async with way(other) as (connection, _, rollback):
        with pytest.raises(mp.Invalid, match="must be the same database"):
            await greet.within(connection).submit_async("x")
        await rollback()
    await app.close_async()


def test_an_engine_a_cursor_and_a_text_are_refused_with_what_is_taken(greet, database):
    with engine_of(database) as engine:
        maker = sqlalchemy.orm.sessionmaker(engine)
        cursor = sqlite3.connect(":memory:").cursor()
        for wrong in (engine, maker, cursor, database.url, None, object()):
            with pytest.raises(mp.Invalid, match=r"connection"):
                greet.within(wrong)
        cursor.connection.close()


def test_an_async_engine_is_refused(greet, database):
    if database.dialect == "sqlite":
        pytest.skip("no asynchronous driver for SQLite here")
    engine = alchemy_async().create_async_engine(engine_url(database, "asyncpg"))
    with pytest.raises(mp.Invalid, match="connection or session, not an engine"):
        greet.within(engine)


def test_a_savepoint_that_is_undone_takes_its_submits_with_it(app, greet, database, raw):
    for way in SYNC[database.dialect]:
        with way(database) as connection:
            driver = getattr(connection, "exec_driver_sql", None) or connection.execute
            text = sqlalchemy.text if hasattr(connection, "get_bind") else str
            greet.within(connection).submit("before")
            driver(text("SAVEPOINT ours"))
            undone = greet.within(connection).submit("undone")
            driver(text("ROLLBACK TO SAVEPOINT ours"))
            greet.within(connection).submit("after")
            end(connection, "commit")
        assert len(app.jobs.list()) == 2, way
        with pytest.raises(mp.NotFound):
            undone.refresh()
        assert app.drain() == 2
        raw.execute("DELETE FROM job")


def test_a_connection_that_is_closed_says_so_in_its_own_words(app, greet, database):
    errors = (sqlite3.ProgrammingError, psycopg.Error)
    if database.dialect == "sqlite":
        connection = sqlite3.connect(StoreUrl.parse(database.url).target)
    else:
        connection = psycopg.connect(database.url)
    within = greet.within(connection)
    within.submit("never committed")
    connection.close()
    with pytest.raises(errors, match="closed"):
        within.submit("x")
    assert app.jobs.list() == []
