"""Killed at any point, a move is as if it had not begun, or is finished when it is run again.

No job that was accepted is lost, and none is on both sides: not for a moment may both be used.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from contents import content, line, types

import milepost as mp
from milepost.store import failpoint
from milepost.store.failpoint import EXIT_CODE
from tests.support.crash import ROOT, SETTINGS
from tests.support.databases import Backends, Database
from tests.support.prove import PROVING
from tests.support.suite import opened

BEFORE = [
    "before:move_freeze",
    "before:copy_journal",
    "after:migration_add",
    "before:migration_lock",
    "before:copy_bucket",
    "before:copy_job",
    "before:copy_step_count",
    "before:move_note",
    "before:guards_standing",
][: None if PROVING else 3]
"""Points at which neither side has committed anything."""
BETWEEN = ["after:move_freeze", "before:commit"]
"""Points at which the file is given up, and the server has nothing."""
AFTER = ["after:commit", "before:move_end"]
"""Points at which all has arrived, and the file does not know."""


def fill(file: Database, number: int = 30) -> list[str]:
    app = mp.App(file.url)
    work = app.job(name="work")(lambda n: n)
    handles = work.submit_many([(n,) for n in range(number)])
    app.drain()
    more = work.submit_many([(n,) for n in range(number)])
    app.close()
    return [job.id for job in (*handles, *more)]


def command(file: Database, server: Database) -> list[str]:
    return [sys.executable, "-m", "milepost", "move", "--from", file.url, "--to", server.url]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def killed(file: Database, server: Database, point: str) -> None:
    """Let the command die as a power cut would have it."""
    ended = subprocess.run(
        command(file, server),
        env=environment(MILEPOST_FAILPOINTS=f"{point}=exit"),
        capture_output=True,
        check=False,
    )
    assert ended.returncode == EXIT_CODE, (point, ended.stderr)


def is_usable(database: Database) -> bool:
    app = mp.App(database.url)
    try:
        return bool(app.jobs.list(limit=1))
    except mp.SchemaMismatch:
        return False
    finally:
        app.close()


def is_there(server: Database) -> bool:
    with server.raw() as raw:
        return raw.value("SELECT to_regclass('milepost.job')::text") is not None


def check_moved(file: Database, server: Database, ids: list[str]) -> None:
    with file.raw() as here, server.raw() as there:
        known = types(server)
        assert content(there, known)["journal"] == content(here, known)["journal"]
        assert content(there, known)["job"] == content(here, known)["job"]
        assert line(there) == line(here)
        assert {str(row[0]) for row in there.execute("SELECT id FROM job")} == set(ids)
    assert not is_usable(file)
    with opened(server, "sync") as store:
        assert store.problems() == []
    app = mp.App(server.url)
    app.job(name="work")(lambda n: n)
    app.drain()
    assert {job.state for job in app.jobs.list(limit=1_000)} == {mp.JobState.SUCCEEDED}
    app.close()


@pytest.mark.parametrize("point", BEFORE)
def test_killed_before_the_file_is_given_up_nothing_has_happened(point, file, newest, move):
    ids = fill(file)
    killed(file, newest, point)
    assert is_usable(file)
    assert not is_there(newest)
    ended = move(file, newest)
    assert (ended.code, ended["resumed"]) == (0, False), ended.said
    check_moved(file, newest, ids)


@pytest.mark.parametrize("point", BETWEEN)
def test_killed_in_between_neither_is_used_and_the_next_move_begins_anew(
    point, file, server, move, backends: Backends
):
    ids = fill(file)
    killed(file, server, point)
    assert not is_there(server)
    with pytest.raises(mp.SchemaMismatch, match="run the same `milepost move` again"):
        mp.App(file.url).jobs.list()
    elsewhere = move(file, backends.fresh(server.backend, empty=True))
    assert elsewhere.code == 5  # it may have arrived where it went first
    assert "was interrupted: run that one again" in elsewhere.said
    ended = move(file, server)
    assert (ended.code, ended["resumed"]) == (0, False), ended.said
    check_moved(file, server, ids)


@pytest.mark.parametrize("point", AFTER)
def test_killed_after_it_has_arrived_the_next_one_notes_that(point, file, server, move):
    ids = fill(file)
    killed(file, server, point)
    assert not is_usable(file)
    assert is_usable(server)
    app = mp.App(server.url)  # and the work goes on there meanwhile
    app.job(name="work")(lambda n: n)
    assert app.drain() == len(ids) // 2
    app.close()
    ended = move(file, server)
    assert (ended.code, ended["resumed"], ended["rows"]) == (0, True, 0), ended.said
    with pytest.raises(mp.SchemaMismatch, match="was moved to"):
        mp.App(file.url).jobs.list()
    assert move(file, server).code == 5


def test_an_interrupted_move_can_be_given_up(file, newest, move):
    """Run again with a worker at work, it makes the file usable and goes no further."""
    fill(file)
    killed(file, newest, "before:commit")
    with file.raw() as raw:
        raw.execute("DROP TRIGGER moved_away_worker_insert")
        raw.execute(
            "INSERT INTO worker (id, state, move, lease_until)"
            f" VALUES ('w', 'STARTUP', 'boot', {raw.now} + 60000000)"
        )
    assert move(file, newest).code == 5
    assert is_usable(file)
    mp.App(file.url).job(name="work")(lambda n: n).submit(1)


@pytest.mark.parametrize("point", ["before:commit", "after:commit"])
def test_a_commit_whose_answer_is_lost_is_looked_up(point, file, server, move):
    """The connection is gone: whether all has arrived is asked over another one."""
    ids = fill(file)
    with failpoint.armed(point, failpoint.cut):
        ended = move(file, server)
    if point == "after:commit":
        assert (ended.code, ended["resumed"]) == (0, False), ended.said
        check_moved(file, server, ids)
        return
    assert ended.code == 75
    assert is_usable(file)
    assert not is_there(server)
    assert move(file, server).code == 0
    check_moved(file, server, ids)


def test_a_server_that_dies_with_the_commit_leaves_the_file_frozen_until_it_is_asked(
    file, backends: Backends, move, newest
):
    """Nobody knows whether it has arrived: the file must not be used, and says what to do."""
    from tests.support.servers import running

    ids = fill(file)
    with running(newest.backend.removeprefix("postgres"), {"fsync": "off"}) as server:
        target = Database(newest.backend, server.url(), server)
        with failpoint.armed("before:commit", lambda: server.stop("immediate")):
            ended = move(file, target)
        assert ended.code == 75
        assert "cannot be told now" in ended.said
        assert not is_usable(file)
        server.start()
        ended = move(file, target)
        assert (ended.code, ended["resumed"]) == (0, False), ended.said
        check_moved(file, target, ids)


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_killed_at_any_moment_nothing_is_lost_and_nothing_is_twice(backends, newest, move):
    chance = random.Random(7)
    for _ in range(60 if PROVING else 4):
        file, target = backends.fresh("sqlite"), backends.fresh(newest.backend, empty=True)
        ids = fill(file, 400)
        began = subprocess.Popen(command(file, target), env=environment(), stderr=subprocess.PIPE)
        time.sleep(chance.uniform(0.2, 2.0))
        began.kill()
        began.communicate()
        usable, arrived = is_usable(file), is_there(target)
        assert not (usable and arrived)
        if usable:  # whoever submits now is not forgotten
            app = mp.App(file.url)
            ids.append(app.job(name="work")(lambda n: n).submit(1).id)
            app.close()
        ended = move(file, target)
        assert ended.code == 0 or "was moved to" in ended.said, ended.said
        check_moved(file, target, ids)
        backends.drop(target)


# Others at the same time


def test_whoever_submits_meanwhile_is_moved_along_or_refused(file, server, move):
    """An acknowledged submit is on the server; no other is."""
    fill(file, 2_000)
    app = mp.App(file.url)
    work = app.job(name="work")(lambda n: n)
    accepted: list[str] = []
    refused: list[Exception] = []

    def submit() -> None:
        while not refused:
            try:
                accepted.append(work.submit(0).id)
            except mp.SchemaMismatch as error:
                refused.append(error)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(accepted) < 20:
        time.sleep(0.01)
    ended = move(file, server)
    for thread in threads:
        thread.join()
    app.close()
    assert ended.code == 0, ended.said
    with server.raw() as raw:
        found = {str(row[0]) for row in raw.execute("SELECT id FROM job")}
    assert set(accepted) <= found
    assert len(found) == 4_000 + len(accepted)
    assert "moved away" in str(refused[0])


def test_of_two_that_move_a_store_at_once_one_does(file, server):
    """The other is refused; or it comes when all has arrived and the file does not know yet."""
    ids = fill(file)
    began = [
        subprocess.Popen(
            command(file, server), env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    told = [process.communicate() for process in began]
    codes = [process.returncode for process in began]
    said = [
        "moved" if b" rows in " in out else "finished" if b"had arrived" in out else "refused"
        for out, _ in told
    ]
    ended = sorted(zip(said, codes, strict=True))
    assert ended in ([("moved", 0), ("refused", 5)], [("finished", 0), ("moved", 0)]), told
    check_moved(file, server, ids)


@pytest.mark.timeout(120)
def test_a_worker_that_slept_through_the_move_ends_and_does_nothing_twice(
    file, newest, move, tmp_path: Path
):
    """Its lease was over: its job went along and is run again there. Its own answer is refused."""
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    app = mp.App(file.url)
    job = app.job(name="slow")(lambda: None).submit()
    log = (tmp_path / "log").open("wb")
    worker = subprocess.Popen(
        [sys.executable, "-m", "milepost", "worker", "sleeper:app"],
        env=environment(**SETTINGS, MILEPOST_DATABASE_URL=file.url),
        cwd=tmp_path,
        stdout=log,
        stderr=log,
    )
    try:
        until(lambda: job.refresh().state == mp.JobState.RUNNING)
        os.kill(worker.pid, signal.SIGSTOP)
        app.close()
        until(lambda: move(file, newest).code == 0)
        os.kill(worker.pid, signal.SIGCONT)
        assert worker.wait(timeout=60) == 75
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()
        log.close()
    assert "moved away, to postgresql://" in (tmp_path / "log").read_text()
    there = mp.App(newest.url)
    there.job(name="slow")(lambda: "done there")
    there.drain(timeout=30)
    found = there.jobs.get(job.id)
    assert (found.result, [e.move for e in found.history].count("succeed")) == ("done there", 1)
    assert "lose" in [e.move for e in found.history]
    there.close()
    with file.raw() as raw:
        assert raw.value("SELECT count(*) FROM journal WHERE move = 'succeed'") == 0


SLEEPER = """
import time

import milepost as mp

app = mp.App()


@app.job(name="slow")
def slow() -> str:
    time.sleep(3)
    return "done here"
"""


def until(happened: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.1)
