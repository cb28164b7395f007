"""What the page on deploying says is run on a real server, and its unit drains in time."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import milepost as mp
from milepost.config import Settings
from tests.support.databases import Backends, everyday_names, proof

PAGE = Path(__file__).parent.parent / "docs/how-to/deploy-on-postgresql.md"
POSTGRES = [
    pytest.param(name, marks=proof(name))
    for name in everyday_names()
    if name.startswith("postgres")
]
RELEASE, WATCH = re.findall(r"<!-- run: deploy -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)


def lines(script, url):
    """Run each line of a block, and give back what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "MILEPOST_DATABASE_URL": url}
    for line in script.strip().splitlines():
        done = subprocess.run(
            ["bash", "-c", line], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        yield done.stdout


@pytest.mark.parametrize("backend", POSTGRES)
def test_a_release_migrates_and_the_store_can_be_watched(backend, backends: Backends):
    database = backends.fresh(backend, empty=True)

    planned, applied, again, verified = lines(RELEASE, database.url)

    assert "CREATE TABLE job" in planned
    assert "applied" in applied
    assert "is up to date" in again
    assert verified.startswith("clean:")
    app = mp.App(database.url)
    app.job(_nothing).submit()
    app.drain()
    app.close()
    workers, queues, failed, config = map(json.loads, lines(WATCH, database.url))
    assert workers is not None
    assert queues
    assert not failed
    assert config


def _nothing() -> None:
    return None


def test_systemd_waits_longer_than_a_drain_takes():
    unit = PAGE.read_text()
    [seconds] = re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(seconds) > Settings().grace + 10
    assert "KillMode=mixed" in unit


def test_the_defaults_that_the_page_names_are_the_real_ones():
    text = PAGE.read_text()
    for name in ("grace", "lease", "poll_max"):
        [told] = set(re.findall(rf"`MILEPOST_{name.upper()}` \((\d+) s\)", text))
        assert float(told) == getattr(Settings(), name)
