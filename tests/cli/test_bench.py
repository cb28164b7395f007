"""`milepost bench`: what it tells, that its limit is honest, and that it leaves nothing behind."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.bench import measure, probe, raw
from milepost.bench.scratch import fresh
from milepost.observe.verify import verify
from milepost.store.connect import open_driver
from tests.support.databases import everyday_names, proof

RATES = ("submit", "bulk", "drain", "drain_2", "drain_sync")


@pytest.fixture
def left_behind(database):
    """Name the stores that a benchmark made and did not remove."""

    def look():
        if database.dialect == "sqlite":
            return list(Path(StoreUrl.parse(database.url).target).parent.glob("milepost-bench-*"))
        with database.raw() as connection:
            return connection.execute(
                "SELECT datname FROM pg_database WHERE datname LIKE 'milepost_bench%'"
            )

    return look


@pytest.fixture
def briefly(monkeypatch):
    monkeypatch.setattr(measure, "ROUNDS", 1)
    monkeypatch.setattr(measure, "IMPORTS", 1)


def test_it_measures_everything_beside_the_limit(prompt, database, left_behind, briefly):
    app = mp.App(database.url)
    before = app.counts()
    told = prompt("bench", "--store", database.url, "--jobs", "40", "--json")
    assert told.code == 0, told.err
    report = json.loads(told.out)
    assert list(report) == ["store", "jobs", *RATES, "pickup_ms", "rss_mib", "import_ms"]
    assert (report["store"], report["jobs"]) == (str(StoreUrl.parse(database.url)), 40)
    for name in RATES:
        assert list(report[name]) == ["jobs_per_s", "limit_jobs_per_s", "ratio"]
        rate, limit, ratio = report[name].values()
        assert ratio == pytest.approx(rate / limit, abs=0.002)
    assert list(report["pickup_ms"]) == ["p50", "p95", "p99", "floor_p50"]
    assert report["pickup_ms"]["p50"] <= report["pickup_ms"]["p95"] <= report["pickup_ms"]["p99"]
    assert all(report[name] > 0 for name in ("rss_mib", "import_ms"))
    assert app.counts() == before
    assert left_behind() == []
    app.close()


@pytest.mark.both_stores
def test_the_loop_by_hand_keeps_to_the_lifecycle_with_every_trigger_on(database):
    """A limit that did less would be worth little: three entries a job, and verify is content."""
    with fresh(StoreUrl.parse(database.url)) as store:
        raw.insert(store, 3, batch=1)
        raw.insert(store, 7)
        done, began, ended = raw.drain(store, lambda: None, batch=4)
        raw.floor(store, 2)
        driver = open_driver(store)
        verdict = verify(driver)
        driver.close()
    assert (done, ended > began) == (10, True)
    assert (verdict.clean, verdict.rows, verdict.entries) == (True, 12, 36)


def test_a_benchmark_that_fails_says_so_and_leaves_nothing_behind(
    prompt, database, left_behind, briefly, monkeypatch
):
    monkeypatch.setattr(measure, "STORE", "BENCH_NOT_THE_STORE")
    failed = prompt("bench", "--store", database.url, "--jobs", "10")
    assert (failed.code, failed.out) == (75, "")
    assert "ended early" in failed.err
    assert left_behind() == []


def test_a_table_for_people(prompt, database, monkeypatch):
    rate = {"jobs_per_s": 10.0, "limit_jobs_per_s": 20.0, "ratio": 0.5}
    pickup = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "floor_p50": 0.5}
    report = dict.fromkeys(RATES, rate) | {
        "pickup_ms": pickup,
        "rss_mib": 30.0,
        "import_ms": 9.0,
        "jobs": 1000,
    }
    monkeypatch.setattr(measure, "bench", lambda *_: report)
    shown = prompt("bench", "--store", database.url)
    lines = shown.out.splitlines()
    assert lines[0] == "what\tjobs/s\tlimit jobs/s\tratio"
    assert lines[3] == "drain, one worker\t10.0\t20.0\t0.5"
    assert lines[6] == "pickup\tp50 1.0 ms, p95 2.0 ms, p99 3.0 ms (by hand p50 0.5 ms)"
    assert "plain SQL on the same tables and triggers" in shown.err


@pytest.mark.parametrize(
    "backend",
    [pytest.param(name, marks=proof(name)) for name in everyday_names() if name != "sqlite"],
)
def test_a_role_that_may_not_make_a_database_is_told_what_to_do(prompt, backends, backend):
    database = backends.fresh(backend)
    with database.raw() as connection:
        connection.execute("DROP ROLE IF EXISTS visitor")
        connection.execute("CREATE ROLE visitor LOGIN")
    refused = prompt("bench", "--store", database.url.replace("//postgres@", "//visitor@"))
    assert (refused.code, refused.out) == (75, "")
    assert "permission denied to create database" in refused.err
    assert "ALTER ROLE … CREATEDB" in refused.err


def test_a_folder_that_is_not_there_is_told(prompt, tmp_path):
    away = prompt("bench", "--store", f"sqlite:///{tmp_path}/nowhere/jobs.db")
    assert (away.code, away.out) == (75, "")
    assert "no file can be made in" in away.err


def test_the_scratch_database_is_on_the_same_server_and_not_in_a_schema_of_the_old_one():
    from milepost.bench.scratch import _renamed

    url = "postgresql://me:pw@db:5433/jobs?sslmode=require&options=-csearch_path%3Dmilepost"
    assert _renamed(url, "fresh") == "postgresql://me:pw@db:5433/fresh?sslmode=require"
    socket = "postgresql://me@/jobs?host=%2Ftmp%2Fpg&dbname=other"
    assert _renamed(socket, "fresh") == "postgresql://me@/fresh?host=%2Ftmp%2Fpg"


def test_the_probe_counts_every_call_of_every_thread(tmp_path, monkeypatch):
    """A call that is not counted would be waited for until the time is over."""
    monkeypatch.setenv(probe.VARIABLE, str(tmp_path / "probe"))
    probe.reset()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            for _ in range(20_000):
                threads.submit(probe.hit, 1)
    finally:
        sys.setswitchinterval(before)
    assert probe.read()[0] == 20_000
    assert len(probe.latencies()) == probe.LOGGED_MOST
    probe.reset()
    assert probe.read() == (0, 0, 0)
    probe.reset()


def test_without_the_extra_it_says_what_to_install(prompt, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    missing = prompt("bench", "--store", "postgresql://me@localhost/jobs")
    assert (missing.code, missing.out) == (75, "")
    assert "pip install 'milepost[postgres]'" in missing.err
