"""`milepost demo`: it runs to its verdict, and its verdict can tell."""

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from rich.console import Console

from milepost.demo.cheats import CHEATS, try_each
from milepost.demo.documents import TABLE
from milepost.demo.story import _Story


def test_workers_are_killed_and_nothing_is_lost_or_done_twice(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "milepost.cli", "demo", "--documents", "40"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    killed = [int(pid) for pid in re.findall(r"kill -9 (\d+)", done.stdout)]
    assert len(killed) == 2
    assert re.search(r"lost with a killed worker, converted by another\s+│\s+[1-9]", done.stdout)
    assert re.search(r"│ lose\s+│ RUNNING", done.stdout)
    assert "0 lost, 0 done twice, 0 that should not be there" in " ".join(done.stdout.split())
    assert "10 of 10 refused" in done.stdout
    assert "clean" in done.stdout
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind
    for pid in killed:
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            pytest.fail(f"process {pid} is still there")


def drop_triggers(raw):
    found = raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in found:
        raw.execute(f"DROP TRIGGER {name}")


@pytest.fixture
def story(tmp_path):
    """The demonstration's work, done here: its verdict is to be tried."""
    told = _Story(Console(quiet=True), tmp_path, 25)
    told.job.submit_many([(number,) for number in range(1, 26)])
    with told._raw() as raw:
        raw.execute(TABLE)
    told.app.drain(timeout=60)
    yield told
    told.app.close()


@pytest.mark.parametrize(
    ("statement", "good"),
    [
        ("SELECT 1", True),
        ("INSERT INTO converted SELECT * FROM converted LIMIT 1", False),
        ("DELETE FROM converted WHERE document = 7", False),
        ("INSERT INTO converted SELECT 23, id FROM job WHERE state = 'FAILED'", False),
        ("UPDATE job SET state = 'QUEUED' WHERE state = 'FAILED'", False),
    ],
)
def test_the_verdict_tells_what_is_missing_doubled_or_strange(story, statement, good):
    with story._raw() as raw:
        if statement.startswith("UPDATE"):
            drop_triggers(raw)
        raw.execute(statement)
    assert story._verdict() is good


def test_every_cheat_is_refused_and_leaves_no_trace(story):
    with story._raw() as raw:
        before = raw.execute("SELECT count(*) FROM journal").fetchone()
        assert None not in try_each(raw).values()
        assert raw.execute("SELECT count(*) FROM journal").fetchone() == before
        drop_triggers(raw)
        passed = [wish for wish, said in try_each(raw).items() if said is None]
    assert "rewrite history" in passed
    assert set(passed) <= set(CHEATS)


def test_an_interrupted_demonstration_leaves_no_worker_and_no_folder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "demo", "--documents", "4000"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert "4000 documents" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
