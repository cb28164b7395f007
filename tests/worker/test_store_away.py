"""A worker whose PostgreSQL is away waits, says so once and goes on; what waiting cannot change
ends it, with an exit code of its own."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.store.connections import unreachable
from tests.support.servers import binaries, running

NEWEST = max(binaries(), key=int, default="")
PROGRAM = """
import milepost as mp

app = mp.App(lease=30, heartbeat=1, error_wait=0.3, grace=2, sweep=0.2)


@app.job
def note(number: int) -> int:
    return number
"""

pytestmark = [
    pytest.mark.skipif(not NEWEST, reason="no PostgreSQL server at hand"),
    pytest.mark.filterwarnings("ignore:.* waits and no live worker"),
]


@contextmanager
def started(folder, url):
    (folder / "away.py").write_text(PROGRAM)
    said = folder / "said"
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "milepost.cli", "worker", "away.py"],
            cwd=folder,
            env={**os.environ, "MILEPOST_DATABASE_URL": url, "MILEPOST_ALLOW_STORE": "1"},
            stderr=output,
        )
        try:
            yield process, said
        finally:
            process.kill()
            process.wait()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def hang_up(server, *, times):
    """Be where the server should be, and let so many tries come to nothing."""
    place = server.folder / ".s.PGSQL.5432"
    place.unlink(missing_ok=True)  # a server that crashed leaves it
    with socket.socket(socket.AF_UNIX) as there:
        there.bind(str(place))
        there.listen()
        there.settimeout(60)
        for _ in range(times):
            there.accept()[0].close()
    place.unlink()


def warnings(said):
    return [line for line in said.read_text().splitlines() if "[warning" in line]


def test_a_worker_waits_for_a_server_that_is_away_and_says_so_once(tmp_path):
    with running(NEWEST, {"fsync": "off"}) as server:
        server.stop("fast")
        with started(tmp_path, server.url()) as (process, said):
            until(lambda: warnings(said))
            hang_up(server, times=10)
            assert process.poll() is None, said.read_text()
            assert len(warnings(said)) == 1, said.read_text()
            assert "cannot be reached" in warnings(said)[0]
            server.start()
            app = mp.App(server.url())
            note = app.job(name="note")(lambda number: number)
            assert note.submit(1).wait(60).state == "SUCCEEDED"
            server.stop("immediate")
            hang_up(server, times=10)
            server.start()
            job = submitted(note)
            until(lambda: ended(job))
            assert len(warnings(said)) <= 3, said.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            app.close()


def submitted(kind):
    for _ in range(100):
        try:
            return kind.submit(2)
        except mp.Unavailable:
            time.sleep(0.1)
    raise AssertionError


def ended(job):
    try:
        return job.refresh().state == "SUCCEEDED"
    except mp.Unavailable:
        return False


def test_a_name_that_does_not_resolve_is_waited_for_until_sigterm(tmp_path):
    with started(tmp_path, "postgresql://me@no-such-host.invalid/x") as (process, said):
        until(lambda: warnings(said))
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert len(warnings(said)) == 1


def test_what_waiting_cannot_change_ends_the_worker_with_a_code_of_its_own(tmp_path):
    with running(NEWEST, {"fsync": "off"}) as server:
        app = mp.App(server.url())
        app.counts()
        app.close()
        with psycopg.connect(server.url(), autocommit=True) as administrator:
            administrator.execute("UPDATE milepost.migration SET checksum = 'another'")
        codes = {
            "postgresql://me@127.0.0.1:port/x": 2,
            "postgresql://me@127.0.0.1/x?no_such_option=1": 2,
            server.url("no_such_database"): 5,
            server.url().replace("postgres@", "nobody@"): 5,
            server.url(): 75,
        }
        for url, code in codes.items():
            with started(tmp_path, url) as (process, said):
                assert (url, process.wait(60)) == (url, code), said.read_text()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("connection failed: Connection refused", mp.Unavailable),
        ("FATAL:  the database system is starting up", mp.Unavailable),
        ("FATAL:  the database system is shutting down", mp.Unavailable),
        ("FATAL:  sorry, too many clients already", mp.Unavailable),
        ("FATAL:  remaining connection slots are reserved", mp.Unavailable),
        ("timeout expired", mp.Unavailable),
        ("could not translate host name", mp.Unavailable),
        ('FATAL:  password authentication failed for user "me"', mp.AccessRefused),
        ('FATAL:  database "x" does not exist', mp.AccessRefused),
        ('FATAL:  role "me" does not exist', mp.AccessRefused),
        ('FATAL:  role "me" is not permitted to log in', mp.AccessRefused),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4"', mp.AccessRefused),
    ],
)
def test_why_no_connection_came_about_is_told_apart(text, kind):
    error = unreachable(StoreUrl.parse("postgresql://me:hunter2@h/x"), OSError(text))
    assert type(error) is kind
    assert "hunter2" not in str(error)
