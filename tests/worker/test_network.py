"""Networks that swallow, drop and reset (F4): no wait is without an end, and nothing is lost."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.store import queues, timers, workers
from milepost.store.connect import open_async_driver, open_driver
from milepost.store.driver import Call
from tests.support.databases import backend_names
from tests.support.proxy import Network, proxy

POSTGRES = [name for name in backend_names() if name[8:].isdigit()][:1]
QUICK = Timeouts(command=1.0, connect=1.0, idle=1.0)

pytestmark = pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL server at hand")


@pytest.fixture
def database(backends):
    made = backends.fresh(POSTGRES[0])
    yield made
    backends.drop(made)


@pytest.fixture
def network(database):
    [server] = Path(database.server.folder).glob(".s.PGSQL.*[0-9]")
    with proxy(server) as between:
        yield between


@pytest.fixture
def url(network, database):
    return network.url(urlsplit(database.url).path[1:])


def took(began: float) -> float:
    return time.monotonic() - began


@pytest.mark.parametrize("mode", [Network.SWALLOW, Network.DEAF, Network.MUTE])
def test_a_plain_caller_waits_no_longer_than_its_limit(network, url, mode):
    driver = open_driver(StoreUrl.parse(url), limits=QUICK)
    driver.run(workers.now)
    network.mode = mode
    began = time.monotonic()
    with pytest.raises(mp.Unavailable):
        driver.run(workers.now)
    with pytest.raises(mp.Unavailable):
        driver.run(workers.now)  # on a connection that does not come about
    assert took(began) < 10
    network.mode = Network.PASS
    driver.run(workers.now)
    driver.close()


@pytest.mark.parametrize("mode", [Network.SWALLOW, Network.DEAF, Network.MUTE])
async def test_an_asynchronous_caller_waits_no_longer_than_its_limit(network, url, mode):
    driver = open_async_driver(StoreUrl.parse(url), limits=QUICK)
    await driver.run(workers.now)
    network.mode = mode
    for _ in range(2):
        with pytest.raises(mp.Unavailable):
            await asyncio.wait_for(driver.run(workers.now), 10)
    network.mode = Network.PASS
    await driver.run(workers.now)
    network.mode = mode
    await asyncio.wait_for(driver.close(), 10)


def test_submit_ends_and_what_it_did_not_store_is_submitted_again(network, url):
    app = mp.App(url, lease=3, heartbeat=1)

    @app.job
    def note(number: int) -> int:
        return number

    note.submit(1)
    network.mode = Network.SWALLOW
    began = time.monotonic()
    with pytest.raises(mp.Unavailable):
        note.submit(2)
    assert took(began) < 8
    network.mode = Network.PASS
    note.submit(2)
    app.drain()
    assert sorted(job.result for job in app.jobs.list()) == [1, 2]
    app.close()


def held(id_):
    """Lock a row, and then wait for nothing."""
    yield Call("worker_move", {"id": id_, "move": "connect", "state": "CONNECTING", "slots": None})
    reached.set()
    release.wait(60)
    yield Call("clock_now")


reached, release = threading.Event(), threading.Event()


def test_a_row_that_a_half_open_connection_holds_is_freed_by_the_server(network, url, database):
    """The server hears nothing: it ends the transaction, and whoever waits for the row has it."""
    reached.clear()
    release.clear()
    with database.driver() as here:
        here.run(workers.register, workers.NewWorker(id="w", lease_us=60_000_000))
        driver = open_driver(StoreUrl.parse(url), limits=QUICK)
        told = []

        def hold():
            with pytest.raises(mp.Unavailable):
                driver.run(held, "w")
            told.append(True)

        thread = threading.Thread(target=hold)
        thread.start()
        assert reached.wait(30)
        network.mode = Network.SWALLOW
        began = time.monotonic()
        here.run(workers.renew, "w", lease_seconds=60)
        assert took(began) < 10
        release.set()
        thread.join(30)
        assert told == [True]
        driver.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_every_connection_asks_for_keepalives_and_a_user_timeout(network, url, colour):
    app = mp.App(url)
    if colour == "sync":
        driver = open_driver(StoreUrl.parse(url))
        with driver._connections.taken() as connection:
            there = connection.pgconn.socket
            options = seen(there)
        driver.close()
    else:
        driver = open_async_driver(StoreUrl.parse(url))
        connection = await driver._connections.take_async()
        options = seen(connection._transport.get_extra_info("socket").fileno())
        driver._connections.give_back(connection)
        await driver.close()
    assert options["SO_KEEPALIVE"] == 1
    assert 1 <= options["TCP_KEEPIDLE"] <= 10
    assert options["TCP_USER_TIMEOUT"] == 20_000
    app.close()


def seen(number: int) -> dict[str, int]:
    with socket.socket(fileno=os.dup(number)) as there:
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        told = {n: there.getsockopt(socket.IPPROTO_TCP, getattr(socket, n)) for n in names}
        return {"SO_KEEPALIVE": there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), **told}


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_call_goes_out_on_a_fresh_connection_when_the_kept_ones_have_ended(
    database, url, network, colour
):
    """After a restart of the server no stale connection costs its caller an error."""
    if colour == "sync":
        driver = open_driver(StoreUrl.parse(url))

        async def run():
            return await asyncio.to_thread(driver.run, queues.waiting)
    else:
        driver = open_async_driver(StoreUrl.parse(url))

        async def run():
            return await driver.run(queues.waiting)

    for _ in range(5):
        await asyncio.gather(*(run() for _ in range(8)))
        with psycopg.connect(database.url, autocommit=True) as administrator:
            # The time is what it waits at most until they have ended.
            administrator.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        time.sleep(0.05)  # noqa: ASYNC251 - meanwhile the loop must not notice either
    await asyncio.gather(*(run() for _ in range(8)))
    closing = driver.close()
    if closing is not None:
        await closing


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_transaction_that_is_refused_at_its_beginning_begins_on_a_fresh_connection(
    url, network, colour, monkeypatch
):
    """A server that shuts down says so before it hangs up; that was an AttributeError."""
    made = (open_driver if colour == "sync" else open_async_driver)(StoreUrl.parse(url))
    texts = [
        "DO $$ BEGIN RAISE 'terminating connection' USING ERRCODE = '57P01'; END $$",
        made._connections.begin,
    ]
    begin = property(lambda _: texts.pop(0), lambda *_: None)
    monkeypatch.setattr(type(made._connections), "begin", begin, raising=False)
    if colour == "sync":
        assert made.run(timers.wake, actor="m", most=9) == 0
        made.close()
    else:
        assert await made.run(timers.wake, actor="m", most=9) == 0
        await made.close()
    assert texts == []


def test_a_handlers_transaction_ends_with_its_attempt(network, url, database):
    app = mp.App(url, lease=6, heartbeat=1)
    with database.raw() as raw:
        raw.execute("CREATE TABLE effect (number int)")

    @app.job(timeout=2, retries=0)
    def write(ctx: mp.Context) -> None:
        with ctx.transaction() as connection:
            shown = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
            assert shown == ("2s",), shown
            connection.execute("INSERT INTO effect VALUES (1)")

    job = write.submit()
    app.drain()
    assert job.refresh().state == "SUCCEEDED", job.error
    began = time.monotonic()
    with pytest.raises(psycopg.OperationalError), app.client.lend(1.0) as lent:
        hang(network, lent)
    assert took(began) < 10
    app.close()


def hang(network, lent):
    network.mode = Network.SWALLOW
    lent.connection.execute("SELECT 1")


PROGRAM = """
import milepost as mp

app = mp.App(lease=4, heartbeat=1, error_wait=0.5, grace=1, sweep=0.2)


@app.job(retries=5)
def note(number: int) -> int:
    return number
"""


@pytest.mark.filterwarnings("ignore:.* waits and no live worker")
def test_a_worker_behind_a_network_that_swallows_comes_back_and_ends_at_sigterm(
    tmp_path, network, url, database
):
    (tmp_path / "behind.py").write_text(PROGRAM)
    app = mp.App(database.url)

    @app.job(retries=5)
    def note(number: int) -> int:
        return number

    with closing(started(tmp_path, url)) as worker:
        assert note.submit(1).wait(60).result == 1
        calls = network.calls
        network.mode = Network.SWALLOW
        second = note.submit(2)
        wait_for(lambda: network.calls > calls)  # it noticed that nobody answers
        network.mode = Network.PASS
        assert second.wait(60).result == 2
        network.mode = Network.SWALLOW
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
    app.close()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@contextmanager
def closing(process):
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def started(folder, url):
    return subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "worker", "behind.py"],
        cwd=folder,
        env={**os.environ, "MILEPOST_DATABASE_URL": url},
    )
