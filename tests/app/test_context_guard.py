"""guard(): the same fence on a database of the user's own."""

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager, suppress

import asyncpg
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
import sqlalchemy.orm
from attempts import claimed, overtaken

import milepost as mp
from milepost.address import StoreUrl
from tests.support.databases import backend_names, everyday_names


@pytest.fixture
def app(backends):
    """One store is enough: the database that is guarded is another."""
    made = mp.App(backends.fresh("sqlite").url)

    @made.job(name="work")
    def work() -> None: ...

    work.submit()
    yield made
    made.close()


@pytest.fixture(params=everyday_names())
def other(request, backends):
    """A database that knows nothing of Milepost."""
    database = backends.fresh(request.param, empty=True)
    with database.raw() as raw:
        raw.execute("CREATE TABLE effect (name text NOT NULL)")
    return database


@contextmanager
def of_sqlite(database):
    connection = sqlite3.connect(StoreUrl.parse(database.url).target)
    yield connection, connection.commit
    connection.close()


@contextmanager
def of_sqlite_begun(database):
    connection = sqlite3.connect(StoreUrl.parse(database.url).target, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    yield connection, connection.commit
    connection.close()


@contextmanager
def of_psycopg(database):
    with psycopg.connect(database.url) as connection:
        yield connection, connection.commit
        connection.rollback()


def engine_url(database, driver):
    if database.dialect == "sqlite":
        return database.url
    return database.url.replace("postgresql://", f"postgresql+{driver}://")


@contextmanager
def of_alchemy(database):
    engine = sqlalchemy.create_engine(engine_url(database, "psycopg"))
    with engine.connect() as connection:
        yield connection, connection.commit
    engine.dispose()


@contextmanager
def of_alchemy_session(database):
    engine = sqlalchemy.create_engine(engine_url(database, "psycopg"))
    with sqlalchemy.orm.Session(engine) as session:
        yield session, session.commit
    engine.dispose()


SYNC = {
    "sqlite": [of_sqlite, of_sqlite_begun, of_alchemy, of_alchemy_session],
    "postgres": [of_psycopg, of_alchemy, of_alchemy_session],
}
INSERT = "INSERT INTO effect VALUES ('{}')"


def write(connection, name):
    text = INSERT.format(name)
    alchemy = type(connection).__module__.startswith("sqlalchemy")
    connection.execute(sqlalchemy.text(text) if alchemy else text)


def effects(database):
    with database.raw() as raw:
        return [name for (name,) in raw.execute("SELECT name FROM effect ORDER BY name")]


def advance_of(app):
    from milepost.store import workers

    return lambda seconds: app.client.run(workers.advance_clock, seconds)


def test_an_older_attempt_is_refused_once_a_newer_one_was_there(app, other):
    late, holder = overtaken(app, advance_of(app))
    for number, opened in enumerate(SYNC[other.dialect]):
        for _ in range(2):  # the table is made by the first, and found by the second
            with opened(other) as (connection, commit):
                holder.guard(connection)
                write(connection, f"{number}")
                commit()
        with opened(other) as (connection, _), pytest.raises(mp.LeaseLost, match="fence 1"):
            late.guard(connection)
    assert effects(other) == sorted(f"{n}" for n in range(len(SYNC[other.dialect])) for _ in "ab")


def test_what_is_not_committed_guards_nothing(app, other):
    late, holder = overtaken(app, advance_of(app))
    for opened in SYNC[other.dialect]:
        with opened(other) as (connection, _):
            holder.guard(connection)
        with opened(other) as (connection, commit):
            late.guard(connection)
            write(connection, "late")
            commit()
    assert effects(other) == ["late"] * len(SYNC[other.dialect])


def test_without_a_transaction_it_is_refused(app, other):
    context = claimed(app)
    with other.raw() as raw, pytest.raises(mp.Invalid, match="in no transaction: begin one"):
        context.guard(raw.connection)


def test_two_that_make_the_table_at_once_both_get_through(backends):
    """The second waits for the first; neither fails."""
    import threading

    first = mp.App(backends.fresh("sqlite").url)

    @first.job(name="work")
    def work() -> None: ...

    work.submit_many([(), ()])
    contexts = [claimed(first), claimed(first)]
    database = backends.fresh(backend_names()[-1], empty=True)
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer")
    start = threading.Barrier(2)
    passed = []

    def run(context):
        with psycopg.connect(database.url) as connection:
            connection.execute("SELECT 1")
            start.wait()
            context.guard(connection)
        passed.append(context.id)

    threads = [threading.Thread(target=run, args=[context]) for context in contexts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(passed) == sorted(context.id for context in contexts)
    first.close()


def test_what_is_no_connection_is_refused(app):
    with pytest.raises(mp.Invalid, match="cannot be used here; give a connection of"):
        claimed(app).guard(object())


# Asynchronous connections


@asynccontextmanager
async def of_asyncpg(database):
    connection = await asyncpg.connect(database.url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection, transaction.commit
    with suppress(asyncpg.InterfaceError):
        await transaction.rollback()
    await connection.close()


@asynccontextmanager
async def of_psycopg_async(database):
    async with await psycopg.AsyncConnection.connect(database.url) as connection:
        yield connection, connection.commit
        await connection.rollback()


@asynccontextmanager
async def of_alchemy_async(database):
    engine = sqlalchemy.ext.asyncio.create_async_engine(engine_url(database, "asyncpg"))
    async with engine.connect() as connection:
        yield connection, connection.commit
    await engine.dispose()


@pytest.mark.parametrize("opened", [of_asyncpg, of_psycopg_async, of_alchemy_async])
async def test_asynchronous_connections(app, other, opened):
    if other.dialect == "sqlite":
        pytest.skip("sqlite3 connections are synchronous")
    late, holder = await asyncio.to_thread(overtaken, app, advance_of(app))
    async with opened(other) as (connection, commit):
        with pytest.raises(mp.Invalid, match=r"asynchronous: await ctx\.guard_async"):
            holder.guard(connection)
        await holder.guard_async(connection)
        await commit()
    async with opened(other) as (connection, _):
        with pytest.raises(mp.LeaseLost):
            await late.guard_async(connection)
    await app.close_async()


async def test_a_synchronous_connection_is_not_awaited(app):
    context = await asyncio.to_thread(claimed, app)
    with (
        pytest.raises(mp.Invalid, match=r"synchronous: call ctx\.guard\("),
        sqlite3.connect(":memory:") as connection,
    ):
        await context.guard_async(connection)
    connection.close()
    await app.close_async()


async def test_an_asyncpg_connection_without_a_transaction_is_refused(app, other):
    if other.dialect == "sqlite":
        pytest.skip("sqlite3 connections are synchronous")
    context = await asyncio.to_thread(claimed, app)
    connection = await asyncpg.connect(other.url)
    with pytest.raises(mp.Invalid, match="in no transaction"):
        await context.guard_async(connection)
    await connection.close()
    await app.close_async()
