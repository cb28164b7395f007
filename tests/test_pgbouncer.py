"""A worker and an app behind PgBouncer in transaction mode, with fewer servers than clients."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.config import command_for
from milepost.errors import Invalid
from milepost.observe.verify import verify
from milepost.store import workers
from milepost.store.connect import open_async_driver, open_driver
from tests.support.databases import Backends, Database, backend_names
from tests.support.servers import scratch

PGBOUNCER = (
    os.environ.get("MILEPOST_PGBOUNCER")
    or shutil.which("pgbouncer")
    or shutil.which("pgbouncer", path="/usr/sbin")
)
FOLLOWS = (1, 21)
"""From this version on it knows which statements were prepared where."""
POSTGRES = [name for name in backend_names() if name[8:].isdigit()]
SERVERS = 3
JOBS = 150
SETTINGS = """
[databases]
{name} = host={socket} dbname={name} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {servers}
max_client_conn = 200
logfile = {folder}/log
{more}
"""
PROGRAM = """
import asyncio
import milepost as mp

app = mp.App(lease=6, heartbeat=1, poll_max=0.2)


@app.job(retries=3, retry_delay=0)
def convert(ctx: mp.Context, number: int) -> int:
    if number % 7 == 0 and ctx.attempt == 1:
        raise ConnectionError("away")
    ctx.progress(0.5, "half")
    doubled = ctx.step("double", lambda: number * 2)
    with ctx.transaction() as connection:
        connection.execute("INSERT INTO effect VALUES (%s)", (number,))
    return doubled


@app.job(retries=3)
async def awaited(ctx: mp.Context, number: int) -> int:
    async with ctx.transaction_async() as connection:
        await connection.execute("INSERT INTO effect VALUES ($1)", -number)
    return number


load = app.batch("load")


@load.step
def find() -> list[int]:
    yield from range(20)


@load.step(gated=True)
def add(number: int) -> int:
    return number


@load.reduce
def total(numbers) -> int:
    return sum(numbers)
"""

pytestmark = [
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
    pytest.mark.skipif(not POSTGRES, reason="there is no PostgreSQL to stand behind it"),
]


@pytest.fixture
def database(backends: Backends):
    made = backends.fresh(POSTGRES[0])
    with made.raw() as raw:
        raw.execute("CREATE TABLE effect (number int)")
    yield made
    backends.drop(made)


def version() -> tuple[int, ...]:
    told = subprocess.run([PGBOUNCER, "--version"], capture_output=True, text=True, check=True)
    return tuple(map(int, told.stdout.split()[1].split(".")))


@pytest.fixture(params=["told", "followed"])
def pooled(request, database: Database):
    """The same database through a pooler: the address says so, or the pooler follows statements."""
    told = request.param == "told"
    if not told and version() < FOLLOWS:
        pytest.skip("this PgBouncer mixes prepared statements up")
    folder = scratch("milepost-pgbouncer-")
    folder.chmod(0o777)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = urlsplit(database.url).path[1:]
    settings = folder / "pgbouncer.ini"
    where = {"name": name, "socket": database.server.folder, "port": port, "folder": folder}
    more = "" if told else "max_prepared_statements = 200"
    settings.write_text(SETTINGS.format(**where, servers=SERVERS, more=more))
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [PGBOUNCER, "-q", *user, str(settings)], stderr=subprocess.DEVNULL, cwd=folder
    )
    try:
        _answers(port)
        address = f"postgresql://postgres@127.0.0.1:{port}/{name}"
        yield f"{address}?pooler=transaction" if told else address
    finally:
        process.terminate()
        process.wait(30)
        shutil.rmtree(folder)


def _answers(port: int) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError("pgbouncer did not start")


def started(folder: Path, url: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "worker", "behind.py"],
        cwd=folder,
        env={**os.environ, "MILEPOST_DATABASE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.filterwarnings("ignore:.* waits and no live worker")
async def test_a_worker_and_an_app_work_behind_a_transaction_pooler(
    pooled, database, tmp_path, monkeypatch
):
    (tmp_path / "behind.py").write_text(PROGRAM)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", pooled)
    namespace: dict = {}
    exec(compile(PROGRAM, "behind.py", "exec"), namespace)
    app, convert, awaited = (namespace[name] for name in ("app", "convert", "awaited"))
    workers = [started(tmp_path, pooled) for _ in range(2)]
    try:
        handles = await convert.submit_many_async([(number,) for number in range(1, JOBS + 1)])
        handles += [await awaited.submit_async(number) for number in range(1, 21)]
        run = await namespace["load"].start_async()
        ended = [await handle.wait_async(120) for handle in handles]
        assert (await run.wait_async(120)).report == sum(range(20))
    finally:
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        told = [worker.communicate(timeout=60)[1] for worker in workers]
    assert [handle.error for handle in ended if handle.state != "SUCCEEDED"] == []
    assert ["\nTraceback" in text for text in told] == [False, False], told
    await app.close_async()
    with database.raw() as raw:
        effects = [number for (number,) in raw.execute("SELECT number FROM effect")]
        assert sorted(effects) == sorted([*range(-20, 0), *range(1, JOBS + 1)])
        assert raw.value("SELECT count(*) FROM pg_prepared_statements") == 0
    with database.driver() as driver:
        assert verify(driver).clean


def test_a_program_that_only_submits_works_behind_it(pooled, monkeypatch):
    """The synchronous way: many statements, each of which may reach another server process."""
    app = mp.App(pooled)
    job = app.job(_nothing)
    ids = [job.submit().id for _ in range(20)]
    assert app.drain() == 20
    assert [app.jobs.get(id_).state for id_ in ids] == ["SUCCEEDED"] * 20
    assert len(app.jobs.get(ids[0]).history) == 3
    app.close()


def test_settings_of_the_database_and_of_other_clients_do_not_reach_it(pooled, database):
    """Every server's connection of the pool has them; no startup parameter can be sent for most."""
    with database.raw() as raw:
        name = raw.value("SELECT current_database()")
        for setting in ("DateStyle = 'German'", "TimeZone = 'Asia/Kathmandu'", "search_path = ''"):
            raw.execute(f"ALTER DATABASE {name} SET {setting}")
    app = mp.App(pooled)
    job = app.job(_nothing)
    before = datetime.now(UTC)
    handles = [job.options(start_in=0.001).submit() for _ in range(20)]
    assert app.drain(5) == 20
    ended = [handle.refresh() for handle in handles]
    assert all(abs(one.finished_at - before) < timedelta(minutes=5) for one in ended)
    assert len(handles[0].history) == 4
    app.close()
    with psycopg.connect(
        pooled.partition("?")[0], autocommit=True, prepare_threshold=None
    ) as other:
        assert other.execute("SHOW DateStyle").fetchone() == ("German, DMY",)
        assert other.execute("SHOW array_nulls").fetchone() == ("on",)


def test_maintenance_leaves_nothing_behind_on_a_connection(pooled, database):
    """Retention asks for little patience, in its own transactions alone."""
    app = mp.App(pooled)

    @app.job
    def poll():
        return mp.Later(86_400)

    job = poll.submit()
    app.drain()
    app.client.run(workers.advance_clock, 100 * 86_400)
    app.maintain_once()
    assert [entry.move for entry in job.history] == ["snapshot", "wake"]
    app.close()
    with psycopg.connect(
        pooled.partition("?")[0], autocommit=True, prepare_threshold=None
    ) as next_:
        for setting in ("statement_timeout", "lock_timeout"):
            assert next_.execute(f"SHOW {setting}").fetchone() == ("0",)
        told = next_.execute("SELECT current_setting('milepost.retaining', true)").fetchone()
        assert told in [(None,), ("",)]


async def test_limits_that_a_pooler_does_not_take_are_set_with_each_transaction(pooled):
    """F4: PgBouncer refuses them at the start of a connection; nothing in the address says so."""
    url = StoreUrl.parse(pooled.partition("?")[0])
    driver = open_driver(url)
    driver.run(workers.counts)
    assert "SET LOCAL idle_in_transaction_session_timeout" in driver._connections.begin
    driver.close()
    awaited = open_async_driver(url)
    await awaited.run(workers.counts)
    assert "SET LOCAL idle_in_transaction_session_timeout" in awaited._connections.begin
    await awaited.close()


def _nothing() -> None:
    return None


def test_the_address_says_that_a_pooler_is_there():
    url = StoreUrl.parse("postgresql://me@h/db?sslmode=require&pooler=transaction")
    assert (url.pooled, url.target) == (True, "postgresql://me@h/db?sslmode=require")
    told = command_for("milepost migrate", url, {})
    assert "?sslmode=require&pooler=transaction" in told
    with pytest.raises(Invalid, match="expected pooler=transaction"):
        StoreUrl.parse("postgresql://me@h/db?pooler=statement")
