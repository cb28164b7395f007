"""A network that swallows bytes, put between and taken away again and again, under load (F4)."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

import milepost as mp
from milepost.observe.verify import verify
from tests.support.databases import Backends, Database, backend_names
from tests.support.prove import PROVING, size
from tests.support.proxy import Network, Proxy, proxy

POSTGRES = [name for name in backend_names() if name[8:].isdigit()][:1]
LEASE = 6.0
PROGRAM = f"""
import os
import milepost as mp

app = mp.App(lease={LEASE}, heartbeat=1.5, sweep=0.2, error_wait=1, poll_max=0.2, grace=2)


@app.job(retries=50, retry_delay=0, timeout=4)
def count(ctx: mp.Context, number: int) -> int:
    def add(connection) -> int:
        connection.execute("INSERT INTO effect VALUES (%s)", (number,))
        return number

    return ctx.step("add", add, transaction=True)


@app.job(retries=50, retry_delay=0, timeout=4)
async def count_async(ctx: mp.Context, number: int) -> int:
    async def add(connection) -> int:
        await connection.execute("INSERT INTO effect VALUES ($1)", number)
        return number

    return await ctx.step_async("add", add, transaction=True)
"""

pytestmark = [
    pytest.mark.prove,
    pytest.mark.skipif(not POSTGRES, reason="no PostgreSQL server at hand"),
    pytest.mark.filterwarnings("ignore:.* waits and no live worker"),
]


@pytest.fixture
def database(backends: Backends):
    made = backends.fresh(POSTGRES[0])
    with made.raw() as raw:
        raw.execute("CREATE TABLE effect (number int)")
    yield made
    backends.drop(made)


class Load:
    """A program behind the network that submits all the time, and keeps a ledger."""

    def __init__(self, url: str) -> None:
        self.app = mp.App(url, lease=LEASE, heartbeat=1.5)
        self.kinds = [
            self.app.job(name=name, timeout=4, retries=50, retry_delay=0)(_count)
            for name in ("count", "count_async")
        ]
        self.stored: list[str] = []
        self.last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._submit)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "submit() hangs"

    def _submit(self) -> None:
        number = 0
        while not self._over.wait(0.01):
            number += 1
            try:
                job = self.kinds[number % 2].submit(number)
            except mp.Unavailable:
                continue
            self.stored.append(job.id)
            self.last = time.monotonic()


def _count(number: int) -> int:
    return number


def test_worker_and_client_are_back_in_time_and_nothing_is_lost(
    database: Database, tmp_path, capsys
):
    (tmp_path / "swallowed.py").write_text(PROGRAM)
    [server] = Path(database.server.folder).glob(".s.PGSQL.*[0-9]")
    rounds = size(30)
    with proxy(server) as between:
        url = between.url(urlsplit(database.url).path[1:])
        process = subprocess.Popen(
            [sys.executable, "-m", "milepost.cli", "worker", "swallowed.py"],
            cwd=tmp_path,
            env={**os.environ, "MILEPOST_DATABASE_URL": url},
        )
        try:
            with Load(url) as load:
                waits = [back(between, load, database, turn) for turn in range(rounds)]
            check(load, database, process)
        finally:
            process.kill()
            process.wait()
    with capsys.disabled():
        worst = [f"{max(each):.1f} s" for each in zip(*waits, strict=True)]
        print(f"\n{rounds} rounds, lease {LEASE:g} s: back: client {worst[0]}, worker {worst[1]}")
    if PROVING:
        assert all(wait < LEASE + 5 for each in waits for wait in each), waits


def back(between: Proxy, load: Load, database: Database, turn: int) -> tuple[float, float]:
    """Swallow for a while; tell how long after it client and worker took to be back."""
    until(lambda: load.last > time.monotonic() - 1)
    modes = (Network.SWALLOW, Network.DEAF, Network.MUTE)
    between.mode = modes[turn % len(modes)]
    time.sleep(0.5 + turn % 4)  # shorter and longer than the limits
    with database.raw() as raw:
        done = ended(raw)
        between.mode = Network.PASS
        since = time.monotonic()
        client = worker = 0.0
        while not (client and worker):
            assert time.monotonic() - since < 60, "it did not come back"
            client = client or max(0.0, load.last - since)
            worker = worker or (time.monotonic() - since if ended(raw) > done else 0.0)
            time.sleep(0.02)
    return client, worker


def ended(raw) -> int:
    return raw.value("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'")


def unfinished(raw) -> list:
    return raw.execute(
        "SELECT id, kind, state, phase, errors, losses, worker_id, due_at FROM job"
        " WHERE state <> 'SUCCEEDED'"
    )


def until(condition, shown=lambda: "it did not happen in time") -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, shown()
        time.sleep(0.02)


def check(load: Load, database: Database, process: "subprocess.Popen[bytes]") -> None:
    """Every job that was stored ended well, its effect stands once, and the journal agrees."""
    with database.raw() as raw:
        until(lambda: not unfinished(raw), lambda: unfinished(raw))
        kept = {str(id_) for (id_,) in raw.execute("SELECT id FROM job")}
        numbers = [number for (number,) in raw.execute("SELECT number FROM effect")]
    assert set(load.stored) <= kept
    assert len(numbers) == len(set(numbers)) == len(kept)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    load.app.close()
    with database.driver() as driver:
        assert verify(driver).clean
