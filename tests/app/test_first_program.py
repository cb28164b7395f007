"""The first program of the design, as a newcomer runs it."""

import os
import subprocess
import sys
import time

import pytest

from tests.support.prove import PROVING

pytestmark = pytest.mark.in_turn

PROGRAM = """
# app.py
import milepost as mp

app = mp.App()            # ./milepost.db; MILEPOST_DATABASE_URL=postgresql://… in production

@app.job(retries=3, retry_delay=1.0)    # D's policy; exponential with jitter is one argument away
def convert(document: str, *, format: str = "pdf") -> str:
    return f"{document}.{format}"

if __name__ == "__main__":
    job = convert.submit("report", format="html")   # durable once this returns
    app.drain()                                     # or leave it to a worker
    print(job.refresh().result)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "app.py").write_text(PROGRAM)
    return tmp_path


def run(folder, *, url=None):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILEPOST_")}
    environment.pop("DATABASE_URL", None)
    if url is not None:
        environment["MILEPOST_DATABASE_URL"] = url
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "app.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, time.monotonic() - began


def test_the_first_program_prints_its_result_and_nothing_else(folder):
    done, seconds = run(folder)
    assert (done.stdout, done.stderr, done.returncode) == ("report.html\n", "", 0)
    assert (folder / "milepost.db").exists()
    print(f"first result after {seconds:.2f} s on a fresh SQLite store")


def test_the_first_result_is_there_soon_on_every_store(folder, database):
    done, seconds = min((run(folder, url=database.url) for _ in range(2)), key=lambda r: r[1])
    assert (done.stdout, done.stderr, done.returncode) == ("report.html\n", "", 0)
    print(f"first result after {seconds:.2f} s on {database.backend}")
    if PROVING:
        assert seconds < 1


def test_an_empty_database_is_set_up_by_itself(folder, database, backends):
    empty = backends.fresh(database.backend, empty=True)
    done, _ = run(folder, url=empty.url)
    assert (done.stdout, done.stderr) == ("report.html\n", "")
