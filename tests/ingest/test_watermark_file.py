"""`watermark_file=`: B's three fields as JSON, written after the commit, again until it is done."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import fsspec
import pytest
from diamond_shop import OPTIONS, go

import milepost as mp
from milepost.client import new_id
from milepost.ingest.watermark_file import write_file

pytestmark = pytest.mark.in_turn

PROGRAM = """
import os, signal, sys
sys.path.insert(0, {folder!r})
import milepost as mp
from diamond_shop import OPTIONS, Shop
from milepost.ingest import pipeline

def die(place, document):
    os.kill(os.getpid(), signal.SIGKILL)

pipeline.write_file = die
app = mp.App({url!r}, lease=2, heartbeat=0.5)
app.pipeline("killed", Shop(30), **OPTIONS, watermark_file={place!r}).start()
app.drain(timeout=60)
"""


def test_each_advance_is_written_as_bs_three_fields(app, shop, tmp_path):
    path = tmp_path / "watermark.json"
    pipeline = app.pipeline("filed", shop, **OPTIONS, watermark_file=str(path))
    first = go(app, pipeline.start())
    told = json.loads(path.read_text())
    assert list(told) == ["lastUpdatedAt", "lastRunId", "lastRunCompletedAt"]
    assert (told, told["lastRunId"]) == (pipeline.row.document(), first.id)
    second = go(app, pipeline.start())
    assert json.loads(path.read_text())["lastRunId"] == second.id
    assert [one.name for one in tmp_path.glob("*watermark*")] == [path.name]
    # For programs of other users too, if the folder's owner lets them.
    umask = os.umask(0o022)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_file_that_could_not_be_written_is_written_by_a_later_attempt(
    app, database, shop, tmp_path
):
    path = tmp_path / "later" / "watermark.json"
    named = {"watermark_file": str(path), "retry_delay": 0.1}
    pipeline = app.pipeline("later", shop, **OPTIONS, **named)
    errors = "SELECT count(*) FROM job WHERE kind = 'later.watermark' AND errors > 0"

    def make_folder():
        with database.raw() as raw:
            while not raw.value(errors):
                time.sleep(0.05)
        path.parent.mkdir()

    maker = Thread(target=make_folder, daemon=True)
    maker.start()
    run = go(app, pipeline.start())
    maker.join()
    assert run.state == mp.RunState.SUCCEEDED
    assert json.loads(path.read_text()) == pipeline.row.document()


def test_an_address_is_written_to_by_fsspec(app, shop):
    place = f"memory://{new_id()}/watermark.json"
    pipeline = app.pipeline("far", shop, **OPTIONS, watermark_file=place)
    go(app, pipeline.start())
    with fsspec.open(place) as written:
        assert json.load(written) == pipeline.row.document()


def test_an_address_of_no_known_kind_is_refused_at_once(app, shop):
    """Found when it is declared, and not by the first run's job."""
    with pytest.raises(mp.Invalid, match="fsspec knows no 'nope'"):
        app.pipeline("far", shop, **OPTIONS, watermark_file="nope://bucket/watermark.json")


def test_h_44_a_process_killed_before_the_write_leaves_it_to_the_next(database, shop, tmp_path):
    """The run and its watermark are committed; the job that writes is lost, and runs again."""
    path = tmp_path / "watermark.json"
    program = PROGRAM.format(folder=str(Path(__file__).parent), url=database.url, place=str(path))
    killed = subprocess.run([sys.executable, "-c", program], check=False, timeout=100)
    assert killed.returncode == -signal.SIGKILL
    app = mp.App(database.url, lease=2, heartbeat=0.5)
    pipeline = app.pipeline("killed", shop, **OPTIONS, watermark_file=str(path))
    [run] = app.runs.list(kind="killed")
    assert (run.state, path.exists()) == (mp.RunState.SUCCEEDED, False)
    app.drain(timeout=30)
    told = json.loads(path.read_text())
    assert (told, told["lastRunId"]) == (pipeline.row.document(), run.id)
    app.close()


@pytest.mark.parametrize("place", ["watermark.json", "memory://{}/watermark.json"])
def test_an_older_write_never_stands_over_a_newer_one(app, shop, tmp_path, monkeypatch, place):
    place = place.format(new_id()) if "://" in place else str(tmp_path / place)
    pipeline = app.pipeline("late", shop, **OPTIONS, watermark_file=place)
    writes = []

    def slow(where, document):
        """Write the first one only when another run has ended, and where it can, has written."""
        writes.append(document["lastRunId"])
        if len(writes) == 1:
            second = pipeline.start()
            while not second.refresh().done or ("://" in place and len(writes) == 1):
                time.sleep(0.02)
        write_file(where, document)

    monkeypatch.setattr("milepost.ingest.pipeline.write_file", slow)
    first = go(app, pipeline.start())
    latest = pipeline.row.last_run_id
    assert (writes[0], latest != first.id) == (first.id, True)
    with fsspec.open(place) as written:
        assert json.load(written) == pipeline.row.document()


def test_resumed_and_forced_runs_write_it_as_it_stands(app, shop, tmp_path):
    path = tmp_path / "watermark.json"
    pipeline = app.pipeline("linked", shop, **OPTIONS, watermark_file=str(path))

    def away(partition, _cursor):
        if partition.ordinal == 1:
            raise mp.Fail("away")

    shop.before_fetch = away
    failed = go(app, pipeline.start())
    assert (failed.state, path.exists()) == (mp.RunState.FAILED, False)
    # Published by force: the watermark stays where it was, before its first advance.
    go(app, pipeline.start(force=True))
    assert json.loads(path.read_text())["lastUpdatedAt"] is None
    shop.before_fetch = lambda *_: None
    resumed = go(app, failed.resume())
    assert json.loads(path.read_text())["lastRunId"] == resumed.id
