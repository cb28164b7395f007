"""Pipelines under fire: killed at every commit, and at random while their source changes."""

import os
import random
import subprocess
import sys
import time
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path

import httpx2
import pytest
from diamond_shop import OPTIONS, Shop, ended, held, offered

import milepost as mp
from milepost.observe.verify import verify
from milepost.store import outbox
from milepost.testing import everywhere
from tests.support.databases import Backends
from tests.support.prove import PROVING

EXAMPLE = Path(__file__).parents[2] / "examples" / "diamonds"


def test_h_45_to_h_49_a_crash_at_any_commit_loses_nothing(database, monkeypatch):
    """H-44 … H-49, H-67, H-87: run, plan, pages, cursor, watermark: each whole or not at all."""
    if not PROVING:  # every tenth place
        places = everywhere._places()
        monkeypatch.setattr(everywhere, "_places", lambda: islice(places, 0, None, 10))
    app = mp.App(database.url, lease=2, heartbeat=0.5)
    shop = Shop(7 if PROVING else 6)
    options = {**OPTIONS, "partitions": 2 if PROVING else 1}
    options |= {"consolidators": 1, "retries": 5, "retry_delay": 0, "messages": "bus"}
    pipeline = app.pipeline("crashing", shop, **options)

    def check():
        [run] = app.runs.list(kind="crashing")
        run = pipeline.run(run.id).refresh()
        assert run.state == mp.RunState.SUCCEEDED, run.errors
        assert held(pipeline) == offered(shop)
        counts = run.counts
        assert (counts.fetched, counts.new, counts.pending) == (len(shop.data), len(shop.data), 0)
        assert pipeline.watermark == run.window.end
        assert pipeline.dataset_version == 1
        assert [e.move for e in run.history].count("finish") == 1
        told = [one.machine for one in app.client.run(outbox.signals, run.id)]
        assert told == [*["job"] * len(run.partitions), "run"]

    crashes = mp.testing.crash_everywhere(app, pipeline.start, check)
    print(f"{crashes} crashes")
    app.close()


PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import milepost as mp
from app import Supplier

app = mp.App()
diamonds = app.pipeline(
    "diamonds", Supplier(), key="id", version="updated_at", partition_by="price", partitions=6,
    retries=50, retry_delay=0, poison_limit=50, overlap={overlap},
)
"""
OVERLAP = 6
"""A second more than the source commits late: a window that was skipped is not read again."""
QUICK = {
    "MILEPOST_SWEEP": "0.1",
    "MILEPOST_LEASE": "2",
    "MILEPOST_HEARTBEAT": "0.3",
    "MILEPOST_POLL_MAX": "0.1",
    "MILEPOST_ERROR_WAIT": "0.2",
}
RUNS = 50 if PROVING else 2
SEED = int(os.environ.get("MILEPOST_SEEDS", "11").partition(",")[0])
COUNT = 600
WORKERS = 2


class Crew:
    """Worker processes, one of which dies now and then."""

    def __init__(self, folder, environment):
        self._folder = folder
        self._environment = environment
        self._processes = [self._started() for _ in range(WORKERS)]
        self.kills = 0

    def _started(self):
        return subprocess.Popen(
            [sys.executable, "-m", "milepost.cli", "worker", "under_fire:app"],
            cwd=self._folder,
            env=self._environment,
            stderr=subprocess.DEVNULL,
        )

    def kill_one(self, chance):
        place = chance.randrange(WORKERS)
        self._processes[place].kill()
        self._processes[place].wait()
        self._processes[place] = self._started()
        self.kills += 1

    def close(self):
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["postgres18"] if not PROVING else ["sqlite", "postgres18"])
def test_a_target_equals_a_source_that_changed_while_workers_were_killed(
    backends: Backends, backend, monkeypatch, tmp_path
):
    database = backends.fresh(backend)
    supplier = subprocess.Popen(
        [
            *(sys.executable, str(EXAMPLE / "supplier.py")),
            *(f"--count={COUNT}", "--port=0", f"--seed={SEED}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    address = supplier.stdout.readline().strip()
    environment = {
        **os.environ,
        **QUICK,
        "MILEPOST_DATABASE_URL": database.url,
        "DIAMONDS_SUPPLIER": address,
    }
    for name in ("MILEPOST_DATABASE_URL", "DIAMONDS_SUPPLIER"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.syspath_prepend(str(EXAMPLE))
    (tmp_path / "under_fire.py").write_text(PROGRAM.format(folder=str(EXAMPLE), overlap=OVERLAP))
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("app", "under_fire"):
        sys.modules.pop(module, None)
    import under_fire as example

    crew = Crew(tmp_path, environment)
    chance = random.Random(SEED)
    pipeline = example.diamonds
    windows = []
    try:
        trouble = {"short_every": 7, "throttle_every": 40}
        httpx2.post(f"{address}/trouble", json=trouble).raise_for_status()
        for _ in range(RUNS):
            run = pipeline.start()
            while not run.refresh().done:
                asked = {"change": chance.randrange(1, 8), "late": chance.randrange(2)}
                if chance.random() < 0.1:
                    asked["down"] = 0.3
                httpx2.post(f"{address}/trouble", json=asked).raise_for_status()
                if chance.random() < 0.4:
                    crew.kill_one(chance)
                time.sleep(chance.uniform(0.1, 0.6))
            assert run.state == mp.RunState.SUCCEEDED, (run.record.cause, run.errors)
            windows.append(run.window)
        run = ended(pipeline.start())  # the writer has stopped
        assert run.state == mp.RunState.SUCCEEDED
        windows.append(run.window)
        assert differences(pipeline, address) == []
        check_windows(windows, httpx2.get(f"{address}/log").json())
        assert crew.kills > 0
        print(f"{RUNS + 1} runs, {crew.kills} kills")
        with database.driver() as driver:
            assert verify(driver).clean
    finally:
        crew.close()
        supplier.kill()
        supplier.wait()
        supplier.stdout.close()
        example.app.close()


def differences(pipeline, address):
    """Say of every record that differs how: what it is there and here, and which is the newer.

    One that is older here was lost; one that is newer here was taken back by the source.
    """
    every = {"low": "-inf", "high": "inf", "until": "9999-01-01T00:00:00+00:00", "limit": "100000"}
    httpx2.post(f"{address}/trouble", json={"short_every": 0, "throttle_every": 0})
    items = httpx2.get(f"{address}/diamonds", params=every).json()["items"]
    stamped = datetime.fromisoformat
    there = {item["id"]: (item["price"], stamped(item["updated_at"])) for item in items}
    here = {record.id: (record.price, record.updated_at) for record in pipeline.records()}
    return [
        (key, "there", there.get(key), "here", here.get(key))
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]


def check_windows(windows, log):
    """Compare with the supplier's own log: every window begins before the last one ended.

    And each was read whole: the ranges that were asked for in it join without a gap.
    """
    for before, after in pairwise(windows):
        assert after.start < before.end
    read = {}
    for line in log:
        key = datetime.fromisoformat(line["until"])
        read.setdefault(key, set()).add((float(line["low"]), float(line["high"])))
    for window in windows:
        at, end = float("-inf"), float("inf")
        ranges = dict(sorted(read[window.end]))
        while at != end:
            assert at in ranges, f"nothing was read from {at} on in the window to {window.end}"
            at = ranges[at]
