"""F17: before SQLite 3.51.3 several processes that share a file can damage it: said once."""

import os
import platform
import sqlite3

import pytest

from milepost.store import workers

SAID = "several processes share a SQLite file"


@pytest.mark.parametrize(
    ("beside", "version", "said"),
    [(1, (3, 51, 2), 1), (0, (3, 51, 2), 0), (1, (3, 51, 3), 0)],
)
async def test_a_worker_says_once_that_other_processes_share_its_file(  # noqa: PLR0917 - fixtures
    app, database, working, until, capsys, monkeypatch, beside, version, said
):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    whose = {"host": platform.node(), "pid": os.getpid() + beside}
    other = workers.NewWorker(id="other", lease_us=60_000_000, **whose)
    app.client.run(workers.register, other)
    async with working() as worker:
        await until(lambda: worker.state in ("IDLE", "BACKOFF"))
    told = capsys.readouterr().err.count(SAID)
    assert told == (said if database.dialect == "sqlite" else 0)
