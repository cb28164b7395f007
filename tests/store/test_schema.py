"""A store in PostgreSQL lives in a schema of its own, and no statement depends on `search_path`."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.observe.verify import verify
from milepost.store import catalog
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate
from milepost.store.watch import open_watch
from tests.support.databases import Backends, Raw, backend_names

pytestmark = pytest.mark.every_version

POSTGRES = [name for name in backend_names() if name.startswith("postgres")]
OF_THE_CALLER = {"guard_create", "guard_exists", "guard_fence", "guard_lock"}
"""Statements of `ctx.guard()`: its table is in a database of the user's own."""


@pytest.fixture(params=POSTGRES)
def nowhere(request, backends: Backends):
    """A connection to a store that looks for nothing anywhere."""
    database = backends.fresh(request.param)
    with psycopg.connect(StoreUrl.parse(database.url).target, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', '', false)")
        yield connection
    backends.drop(database)


def refusal(connection: psycopg.Connection, text: str) -> str:
    """Have the server parse a statement where nothing is found by a plain name."""
    return connection.pgconn.prepare(b"", text.encode()).error_message.decode()


def test_every_statement_names_its_schema(nowhere):
    assert "does not exist" in refusal(nowhere, "SELECT 1 FROM job")
    told = {
        name: refusal(nowhere, catalog.query(name, "postgres").numbered)
        for name in catalog.names() - OF_THE_CALLER
    }
    assert {name: text for name, text in told.items() if text} == {}


def test_every_notification_goes_to_the_stores_own_channel():
    texts = {name: catalog.query(name, "postgres", "a").text for name in catalog.names()}
    telling = {name: text for name, text in texts.items() if "pg_notify" in text}
    assert telling
    assert [name for name, text in telling.items() if "pg_notify('milepost_a'" not in text] == []


@pytest.fixture(params=POSTGRES)
def empty(request, backends: Backends):
    database = backends.fresh(request.param, empty=True)
    yield database
    backends.drop(database)


def greeting(url: str, **options) -> tuple[mp.App, Any]:
    app = mp.App(url, **options)

    @app.job
    def greet(name: str) -> str:
        return f"hello {name}"

    return app, greet


def made_in(raw: Raw) -> dict[str, int]:
    """Count the tables of each schema."""
    return dict(
        raw.execute(
            "SELECT schemaname, count(*) FROM pg_tables WHERE schemaname !~ '^pg_|^information_'"
            " GROUP BY 1"
        )
    )


def test_an_empty_database_is_set_up_by_itself_in_the_schema_milepost(empty):
    app, greet = greeting(empty.url)
    job = greet.submit("you")
    app.close()
    with empty.raw() as raw:
        assert set(made_in(raw)) == {"milepost"}
        assert raw.value(f"SELECT state FROM milepost.job WHERE id = '{job.id}'") == "QUEUED"


def test_a_database_of_others_is_set_up_only_when_it_is_asked_for(empty):
    """A web application's DATABASE_URL: the first submit puts nothing into it."""
    with empty.raw() as raw:
        raw.execute("CREATE TABLE customer (id integer)")
        app, greet = greeting(empty.url)
        with pytest.raises(mp.SchemaMismatch, match="customer") as refused:
            greet.submit("you")
        assert "milepost migrate" in str(refused.value)
        assert "App(migrate=True)" in str(refused.value)
        app.close()
        assert made_in(raw) == {"public": 1}

        app, greet = greeting(empty.url, migrate=True)
        greet.submit("you")
        assert app.drain() == 1
        app.close()
        assert set(made_in(raw)) == {"public", "milepost"}
        assert made_in(raw)["public"] == 1
        app, greet = greeting(empty.url)
        greet.submit("again")  # it is a store now
        app.close()


def test_what_an_extension_made_is_nobody_elses_table(empty):
    with empty.raw() as raw:
        raw.execute("CREATE TABLE of_extension (id integer)")
        raw.execute(
            "INSERT INTO pg_depend SELECT 'pg_class'::regclass, 'of_extension'::regclass, 0,"
            " 'pg_extension'::regclass, oid, 0, 'e' FROM pg_extension WHERE extname = 'plpgsql'"
        )
    app, greet = greeting(empty.url)
    greet.submit("you")
    app.close()


def test_a_store_of_an_earlier_version_is_refused_and_left_as_it_is(empty):
    earlier = open_driver(StoreUrl.parse(f"{empty.url}&schema=public"))
    migrate(earlier)
    earlier.close()
    app, greet = greeting(empty.url)
    with pytest.raises(mp.SchemaMismatch, match="a store of an earlier version"):
        greet.submit("you")
    app.close()
    with empty.raw() as raw:
        assert set(made_in(raw)) == {"public"}
        raw.execute("UPDATE public.migration SET checksum = 'x' WHERE number = 2")
        raw.execute("DELETE FROM public.migration WHERE number > 2")
    app, greet = greeting(f"{empty.url}&schema=public", migrate=True)
    with pytest.raises(mp.SchemaMismatch, match="finish its work with the version that made it"):
        greet.submit("you")
    app.close()


async def test_two_stores_in_one_database_do_not_disturb_each_other(empty):
    one, greet_one = greeting(empty.url)
    other, greet_other = greeting(f"{empty.url}&schema=other", migrate=True)
    for app, greet, count in ((one, greet_one, 3), (other, greet_other, 5)):
        await greet.submit_many_async([(str(number),) for number in range(count)])
        assert await app.drain_async() == count
        await app.maintain_once_async()
    with empty.raw() as raw:
        for schema, count in (("milepost", 3), ("other", 5)):
            assert raw.value(f"SELECT count(*) FROM {schema}.job") == count
            assert raw.value(f"SELECT count(*) FROM {schema}.journal") == 3 * count
            assert raw.value(f"SELECT count(*) FROM pg_partition_tree('{schema}.journal')") > 2
        raw.execute("UPDATE other.clock SET offset_us = 86400000000")
        moved, plain = raw.execute("SELECT other.milepost_now(), milepost.milepost_now()")[0]
        assert moved - plain > timedelta(hours=23)
        # What retention keeps in one has no bearing on the other.
        raw.execute("DELETE FROM milepost.job WHERE state = 'SUCCEEDED'")
        assert raw.value("SELECT count(*) FROM other.job") == 5
    for app in (one, other):
        assert verify(app.client.driver).clean
        await app.close_async()


async def test_a_hint_wakes_the_workers_of_its_own_store_alone(empty):
    other_url = StoreUrl.parse(f"{empty.url}&schema=other")
    one, greet_one = greeting(empty.url)
    other, greet_other = greeting(other_url.address, migrate=True)
    watches = [open_watch(url, Timeouts()) for url in (StoreUrl.parse(empty.url), other_url)]
    try:
        await greet_one.submit_async("first")
        await greet_other.submit_async("first")
        for watch in watches:
            await watch.wait(0)  # it listens from now on
            await watch.wait(0)
        with empty.raw() as raw:
            for schema in ("milepost", "other"):
                idle = ("STARTUP boot", "CONNECTING connect", "RECOVERY recover", "POLLING poll")
                raw.execute(
                    f"INSERT INTO {schema}.worker (id, state, move) VALUES ('w', 'STARTUP', 'boot')"
                )
                for step in (*idle[1:], "BACKOFF back_off", "IDLE rest"):
                    state, move = step.split()
                    raw.execute(f"UPDATE {schema}.worker SET state = '{state}', move = '{move}'")
        await greet_other.submit_async("second")
        assert await watches[1].wait(10) == {"default"}
        assert await watches[0].wait(0.2) == set()
    finally:
        for watch in watches:
            await watch.close()
        await one.close_async()
        await other.close_async()


def test_everything_runs_where_plain_names_lead_to_others(empty):
    """No table of ours is found by its plain name, and namesakes are (H-113)."""
    with empty.raw() as raw:
        raw.execute("CREATE SCHEMA app")
        for name in ("job", "run", "worker", "journal", "clock", "queue", "step", "migration"):
            raw.execute(f"CREATE TABLE app.{name} (nothing integer)")
        raw.execute(
            f"ALTER DATABASE {raw.value('SELECT current_database()')} SET search_path = app"
        )
    app = mp.App(empty.url, migrate=True)
    batch = app.batch("load")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(3)

    @batch.step(gated=True)
    def load(ctx: mp.Context, number: int) -> int:
        ctx.progress(0.5)
        return int(ctx.step("double", lambda: 2 * number))

    @batch.reduce
    def total(numbers: Iterable[int]) -> int:
        return sum(numbers)

    run = batch.start()
    app.drain(5)
    assert run.refresh().report == 6
    app.maintain_once()
    assert verify(app.client.driver).clean
    app.close()
    with empty.raw() as raw:
        assert made_in(raw)["app"] == 8
        assert raw.value("SELECT count(*) FROM app.job") == 0


def test_a_schema_that_was_made_for_a_role_is_enough(empty):
    """It may not create schemas; the one it owns is used."""
    with empty.raw() as raw:
        name = f"owner_{raw.value('SELECT current_database()')}"
        raw.execute(f"CREATE ROLE {name} LOGIN")
        raw.execute(f"CREATE SCHEMA milepost AUTHORIZATION {name}")
    driver = open_driver(StoreUrl.parse(empty.url.replace("postgres@", f"{name}@")))
    assert migrate(driver)
    driver.close()
    with empty.raw() as raw:
        raw.execute(f"DROP OWNED BY {name} CASCADE")
        raw.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize("taken", ["job", "migration", "worker"])
def test_a_clash_of_names_in_a_shared_sqlite_file_is_told_with_what_to_do(tmp_path, taken):
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"CREATE TABLE {taken} (name TEXT)")
        connection.execute(f"INSERT INTO {taken} VALUES ('mine')")
        connection.commit()
        for options, told in (({}, "tables of something else"), ({"migrate": True}, "its own")):
            app, greet = greeting(f"sqlite:///{file}", **options)
            with pytest.raises(mp.SchemaMismatch, match=told):
                greet.submit("you")
            app.close()
        tables = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        assert tables == [(taken,)]
        assert connection.execute(f"SELECT * FROM {taken}").fetchall() == [("mine",)]


def test_a_sqlite_file_of_others_is_set_up_only_when_it_is_asked_for(tmp_path):
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE customer (id)")
    app, greet = greeting(f"sqlite:///{file}")
    with pytest.raises(mp.SchemaMismatch, match=r"milepost migrate.*App\(migrate=True\)"):
        greet.submit("you")
    app.close()
    app, greet = greeting(f"sqlite:///{file}", migrate=True)
    greet.submit("you")
    assert app.drain() == 1
    app.close()
