"""Session settings of a server, a database or a role do not reach what the engine reads (H-113)."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.cli import main
from milepost.config import Timeouts
from milepost.observe.verify import verify
from milepost.store import connections
from tests.support.databases import Backends, Database, backend_names

POSTGRES = [name for name in backend_names() if name.startswith("postgres1")]
STRANGE = {
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'Asia/Kathmandu'",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "client_encoding": "LATIN1",
    "search_path": "pg_catalog",
    "default_transaction_isolation": "serializable",
}


@pytest.fixture(params=POSTGRES)
def strange(request, backends: Backends) -> Iterator[Database]:
    """A database whose sessions are set otherwise than by default, in every way at once."""
    database = backends.fresh(request.param)
    with database.raw() as raw:
        name = raw.value("SELECT current_database()")
        for setting, value in STRANGE.items():
            raw.execute(f"ALTER DATABASE {name} SET {setting} = {value}")
    yield database
    backends.drop(database)


def test_a_program_reads_what_it_wrote_whatever_the_sessions_settings_are(strange):
    app = mp.App(strange.url)
    batch = app.batch("load")

    def look(connection: psycopg.Connection) -> None:
        connection.execute("SELECT 1")

    @app.job(retries=1, retry_delay=0)
    def greet(ctx: mp.Context, name: str, share: float) -> list[object]:
        ctx.progress(0.123456789, "half ½")
        ctx.step("book", look, transaction=True)
        with ctx.transaction() as connection:
            connection.execute("SELECT 1")
            ctx.save({"at": "ä"})
        if ctx.attempt == 1:
            raise ConnectionError("wäg")
        return [name, share]

    @app.job(limit=mp.Limit(1, key="name"))
    def bounded(name: str) -> str:
        return name

    @batch.step
    def find() -> Iterator[int]:
        yield from range(3)

    @batch.step(gated=True)
    def load(number: int) -> int:
        return number

    @batch.reduce
    def total(numbers: Iterable[int]) -> int:
        return sum(numbers)

    before = datetime.now(UTC)
    job = greet.options(tags={"who": "žluť"}, unique="ключ").submit("žluťoučký \\ 'kůň'", 0.1 + 0.2)
    later = greet.options(start_in=3600).submit("later", 1.0)
    limited = bounded.submit("Łódź")
    run = batch.start()
    app.drain()
    assert limited.refresh().result == "Łódź"
    ended = job.refresh()
    assert ended.result == ["žluťoučký \\ 'kůň'", 0.1 + 0.2]
    assert abs(ended.created_at - before) < timedelta(minutes=5)
    assert [entry.move for entry in job.history][-1] == "succeed"
    assert all(abs(entry.at - before) < timedelta(minutes=5) for entry in job.history)
    assert later.explain()
    assert run.refresh().report == 3
    app.maintain_once()
    assert verify(app.client.driver).clean
    app.close()


async def test_so_does_an_asynchronous_one(strange):
    app = mp.App(strange.url)

    @app.job
    async def greet(ctx: mp.Context, name: str) -> str:
        async with ctx.transaction_async() as connection:
            await connection.execute("SELECT 1")
        return name

    job = await greet.submit_async("žluť")
    assert await app.drain_async() == 1
    assert (await job.refresh_async()).result == "žluť"
    assert [entry.move for entry in await job.history_async()] == ["create", "claim", "succeed"]
    await app.close_async()


def test_a_submit_in_the_callers_transaction_leaves_its_settings_as_they_are(strange):
    app = mp.App(strange.url)

    @app.job
    def greet(name: str) -> str:
        return name

    with psycopg.connect(strange.url) as connection:
        within = greet.options(start_in=60, unique="one").within(connection).submit("Ž")
        same = greet.options(start_in=60, unique="one").within(connection).submit("Ž")
        connection.commit()
        assert same.id == within.id
        # A caller's own connection is never altered.
        assert connection.execute("SHOW DateStyle").fetchone() == ("German, DMY",)
    assert within.refresh().state == mp.JobState.WAITING
    app.close()


def test_what_a_handler_borrows_has_the_databases_own_settings(strange):
    """A plain timestamp that it writes is in the zone that its owner chose."""
    app = mp.App(strange.url)

    @app.job
    def look(ctx: mp.Context) -> list[str]:
        with ctx.transaction() as connection:
            return [
                connection.execute(f"SHOW {name}").fetchone()[0]
                for name in ("TimeZone", "DateStyle")
            ]

    job = look.submit()
    app.drain()
    assert job.refresh().result == ["Asia/Kathmandu", "German, DMY"]
    app.close()


WATCHED = "client_connection_check_interval"


@pytest.fixture
def killable():
    """Connections as in a process that may be killed."""
    connections.end_with_process()
    yield
    connections._if_killed.clear()


@pytest.mark.parametrize("backend", POSTGRES)
def test_only_a_process_that_may_be_killed_is_watched_while_a_statement_runs(
    backend, backends, request
):
    database = backends.fresh(backend)
    url, shown = StoreUrl.parse(database.url), []
    for fixture in (None, "killable"):
        if fixture is not None:
            request.getfixturevalue(fixture)
        for library in (connections.psycopg_library(), connections.psycopg_library(own=False)):
            pool = connections.Connections(url, Timeouts(), library, most=1)
            with pool.taken() as connection:
                shown += connection.execute(f"SHOW {WATCHED}").fetchone()
            pool.close()
    assert shown == ["0", "0", "500ms", "500ms"]
    backends.drop(database)


@pytest.mark.usefixtures("killable")
def test_a_server_that_cannot_watch_a_program_is_not_asked_to():
    """One on a system that does not tell it refuses the setting; a pooler refuses any."""
    refusals = [
        f'FATAL:  invalid value for parameter "{WATCHED}": 500',
        "FATAL:  unsupported startup parameter in options: tcp_keepalives_idle",
    ]
    asked = []

    def opened(_url, limits, *, with_settings):
        names = connections.settings_of(limits, own=True) if with_settings else {}
        asked.append((WATCHED in names, with_settings))
        if refusals:
            raise psycopg.OperationalError(refusals.pop(0))
        return object()

    library = msgspec.structs.replace(connections.psycopg_library(), open=opened)
    url = StoreUrl.parse("postgresql://nowhere/shop")
    connections.Connections(url, Timeouts(), library, most=1).take()
    assert asked == [(True, True), (False, True), (False, False)]


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("backend", POSTGRES)
def test_a_database_that_cannot_hold_every_text_is_refused(backends, backend, encoding, capsys):
    empty = backends.fresh(backend, empty=True)
    plain = urlsplit(empty.url).path[1:]
    name = f"{plain}_{encoding.lower()}"
    with empty.raw() as raw:
        raw.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
            " TEMPLATE template0"
        )
    other = empty.url.replace(plain, name)
    try:
        app = mp.App(other)

        @app.job
        def nothing() -> None:
            return None

        with pytest.raises(mp.SchemaMismatch, match=f"its encoding is {encoding}.*UTF8"):
            nothing.submit()
        app.close()
        with pytest.raises(SystemExit, match="75"):
            main(["migrate", "--store", other])
        assert f"its encoding is {encoding}" in capsys.readouterr().err
    finally:
        with empty.raw() as raw:
            raw.execute(f"DROP DATABASE {name} WITH (FORCE)")
        backends.drop(empty)
