"""F17: before SQLite 3.51.3 several processes that share a file can damage it: said once."""

import os
import sqlite3

import pytest

from milepost.store import workers
from milepost.worker import loop

SAID = "several processes share a SQLite file"


@pytest.mark.parametrize(
    ("pid", "version", "said"),
    [(os.getpid() + 1, (3, 51, 2), 1), (os.getpid(), (3, 51, 2), 0), (1, (3, 51, 3), 0)],
)
async def test_a_worker_says_once_that_other_processes_share_its_file(  # noqa: PLR0917 - fixtures
    app, database, working, until, capsys, monkeypatch, pid, version, said
):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    other = workers.NewWorker(id="other", lease_us=60_000_000, host=loop.platform.node(), pid=pid)
    app.client.run(workers.register, other)
    async with working() as worker:
        await until(lambda: worker.state in ("IDLE", "BACKOFF"))
    told = capsys.readouterr().err.count(SAID)
    assert told == (said if database.dialect == "sqlite" else 0)
