"""The file of a store is deleted, or another put in its place, while a program uses it."""

import asyncio
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

import milepost as mp
from milepost.observe.verify import verify


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def app(folder):
    made = mp.App("sqlite:///store.db", error_wait=0.05, lease=2, heartbeat=0.2)
    yield made
    made.close()


@pytest.fixture
def double(app):
    @app.job
    def double(number: int) -> int:
        with mp.current().transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS note (number INTEGER)")
            connection.execute("INSERT INTO note VALUES (?)", (number,))
        return 2 * number

    return double


def remove(folder: Path) -> None:
    for file in folder.glob("store.db*"):
        file.unlink()


def test_a_submit_into_a_deleted_file_is_no_success(app, double, folder, monkeypatch):
    """What SQLite would still commit nobody could ever open: durable once it returns, or raised."""
    double.submit(1)
    monkeypatch.chdir(Path(folder).parent)  # the path is that of the start
    double.submit(2)
    remove(folder)
    for _ in range(2):
        with pytest.raises(mp.Unavailable, match="was deleted while this program used it"):
            double.submit(3)
    assert list(folder.glob("store.db*")) == []


def test_a_file_put_in_its_place_is_used_from_then_on(app, double, folder):
    double.submit(1)
    with mp.testing.connection(app) as connection:  # one is kept open for handlers, too
        connection.execute("SELECT 1")
    app.close()
    shutil.copytree(folder, folder / "copy")
    double.submit(2)
    remove(folder)
    shutil.copy(folder / "copy" / "store.db", folder / "store.db")
    with pytest.raises(mp.Unavailable, match="was replaced by another file"):
        double.submit(3)
    double.submit(4)
    assert app.drain() == 2
    assert sorted(job.result for job in app.jobs.list()) == [2, 8]
    found = sqlite3.connect(folder / "store.db").execute("SELECT number FROM note ORDER BY 1")
    assert found.fetchall() == [(1,), (4,)]
    assert verify(app.client.driver).clean


async def test_a_worker_says_so_waits_and_goes_on_with_the_file_that_comes(
    app, double, folder, capsys
):
    worker = asyncio.create_task(app.run_worker_async(signals=False))
    first = await (await double.submit_async(1)).wait_async(60)
    with sqlite3.connect(folder / "store.db") as connection:
        connection.execute("VACUUM INTO 'copy.db'")
    remove(folder)
    said = ""
    async with asyncio.timeout(60):
        while "was deleted" not in said:
            said += "".join(capsys.readouterr())
            await asyncio.sleep(0.01)
    shutil.copy(folder / "copy.db", folder / "store.db")
    async with asyncio.timeout(60):
        second = None
        while second is None:
            with suppress(mp.Unavailable):  # told once that the file is another one
                second = await double.submit_async(2)
    assert (await second.wait_async(60)).result == 4
    assert (await first.refresh_async()).result == 2
    worker.cancel()
    await asyncio.wait([worker])
    await app.close_async()
