"""Two workers are replaced by those of a release with a migration, by the page's commands."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import milepost as mp
from tests.support.databases import everyday_names

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/how-to/rolling-upgrade.md").read_text()
PROGRAM = """
import time
from pathlib import Path
import milepost as mp

app = mp.App()


@app.job
def hold() -> str:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return "ended"


@app.job
def quick() -> int:
    return 1
"""


def commands(name):
    [found] = re.findall(rf"<!-- run: {name} -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    return found.strip().splitlines()


def next_release(folder):
    """Make a Milepost with one migration more than this one, and its command."""
    package = folder / "next/milepost"
    shutil.copytree(ROOT / "src/milepost", package)  # compiled as it is
    for dialect in ("postgres", "sqlite"):
        added = package / "sql/migrations" / dialect / "9999_more.sql"
        added.write_text("CREATE TABLE more (id bigint PRIMARY KEY);\n")
    program = folder / "next/bin/milepost"
    program.parent.mkdir()
    call = f'PYTHONPATH={package.parent} exec {sys.executable} -m milepost "$@"'
    program.write_text(f"#!/bin/sh\n{call}\n")
    program.chmod(0o755)
    return program.parent


class Release:
    """The programs of one version, on a store."""

    def __init__(self, folder, binaries, url):
        self._folder = folder
        path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "MILEPOST_DATABASE_URL": url}

    def run(self, command):
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    def runs(self, commands):
        told = [(command, *self.run(command)) for command in commands]
        assert [each for each in told if each[1]] == []
        return "".join(text for _, _, text in told)

    @contextmanager
    def worker(self):
        process = subprocess.Popen(
            ["milepost", "worker", "app:app"],
            cwd=self._folder,
            env=self._environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def until(happened):
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end, "it did not happen within 30 seconds"
        time.sleep(0.05)


@pytest.fixture(params=everyday_names())
def database(request, backends):
    """A store that nobody uses afterwards: its schema is one of the future."""
    made = backends.fresh(request.param)
    yield made
    backends.drop(made)


def test_workers_are_replaced_while_jobs_run(database, tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM)
    old = Release(tmp_path, Path(sys.executable).parent, database.url)
    new = Release(tmp_path, next_release(tmp_path), database.url)
    app = mp.App(database.url)
    hold, quick = (app.job(name=name)(lambda: None) for name in ("hold", "quick"))
    with ExitStack() as stack:
        workers = [stack.enter_context(old.worker()) for _ in range(2)]
        until(lambda: len(app.workers.list()) == 2)
        held = hold.submit()
        until((tmp_path / "begun").exists)
        old.runs(commands("old"))
        code, told = new.run("milepost verify")
        assert (code, "older than this program" in told) == (75, True)

        assert "applied 9999_more" in new.runs(commands("new"))

        # Old programs that run go on; none of them starts.
        assert quick.submit().wait(30).result == 1
        code, told = old.run("milepost worker app:app")
        assert (code, "set up by a newer one" in told) == (75, True)
        stack.enter_context(new.worker())
        until(lambda: len([w for w in app.workers.list() if w.state != "STOPPED"]) == 3)
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        assert [worker.wait(30) for worker in workers] == [0, 0]
        assert (held.refresh().result, held.attempt) == ("ended", 1)
        assert quick.submit().wait(30).result == 1
        assert "clean:" in new.runs(commands("after"))
        code, told = new.run("milepost migrate --sql")
        assert (code, "nothing is missing" in told) == (0, True)
    app.close()
