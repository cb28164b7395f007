"""A step that yields very many items needs little memory, and its worker keeps its lease."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import milepost as mp
from tests.support.prove import PROVING

ITEMS = 1_000_000 if PROVING else 20_000
MEMORY_MIB = 100
PROGRAM = f"""
from collections.abc import Iterator
import milepost as mp

app = mp.App()
batch = app.batch("large")

@batch.step(timeout=1800)
def find() -> Iterator[str]:
    for number in range({ITEMS}):
        yield f"item {{number}}"

@batch.step(queue="parked")
def store(item: str) -> None: ...
"""

pytestmark = pytest.mark.prove


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


def test_a_step_that_yields_very_many_items_takes_bounded_memory(database, tmp_path):
    (tmp_path / "large.py").write_text(PROGRAM)
    app = mp.App(database.url)
    batch = app.batch("large")

    @batch.step
    def find() -> None: ...

    @batch.step(queue="parked")
    def store(item: str) -> None: ...

    run = batch.start()
    command = [sys.executable, "-m", "milepost.cli", "worker", "large:app", "--queue", "default"]
    environment = {**os.environ, "MILEPOST_DATABASE_URL": database.url}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment)
    try:
        end = time.monotonic() + (1200 if PROVING else 100)
        while run.refresh().steps[1].total < ITEMS:
            assert process.poll() is None
            assert time.monotonic() < end, run.steps
            time.sleep(0.5)
        peak = resident_mib(process.pid)
    finally:
        process.terminate()
        process.wait(60)
    print(f"{ITEMS:,} items on {database.backend}: {peak:.0f} MiB at most")
    assert peak < MEMORY_MIB
    # One attempt was enough: no heartbeat was late enough to lose the lease.
    [producer] = app.jobs.list(kind="large.find")
    assert [entry.move for entry in producer.history] == ["create", "claim", "succeed"]
    app.close()
