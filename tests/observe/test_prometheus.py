"""Metrics of Prometheus, on every worker: the names, the figures, and the real tool's opinion."""

import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from urllib.request import urlopen

import pytest

import milepost as mp
from milepost.observe import metrics
from milepost.observe.fresh import FreshMetrics
from milepost.observe.metrics import StoreMetrics, WorkerMetrics, read, serving
from milepost.outcome import succeeded
from milepost.records import Settlement
from milepost.store import jobs, workers
from milepost.store.jobs import lines

pytestmark = pytest.mark.in_turn

SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
PROGRAM = """
import milepost as mp

app = mp.App()

@app.job
def convert() -> None: ...
"""


def scraped(text):
    """Read samples by name and labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found[name, ",".join(sorted((labels or "").split(",")))] = float(value)
    return found


def scrape(app):
    with serving("127.0.0.1", 0, app.metrics, lambda: app.client.run(read)) as (host, port):
        return urlopen(f"http://{host}:{port}/metrics").read().decode()


@pytest.fixture
def worked(app, advance):
    """A store in which something of everything has happened."""
    app.metrics = WorkerMetrics()

    @app.job(retries=1, retry_delay=0)
    def convert(ctx: mp.Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")

    @app.job(queue="slow", retries=0)
    async def read_page(*, ok: bool) -> None:
        if not ok:
            raise mp.Fail("no")

    @app.job(timeout=0.05, retries=0)
    def stuck() -> None:
        time.sleep(0.5)

    @app.job(limit=mp.Limit(1, key="customer", name="customers"), queue="narrow")
    def bill(customer: str) -> None: ...

    app.limits.set("narrow", scope="queue", most=2)
    bill.submit_many([("acme",), ("acme",), ("other",)])
    convert.submit()
    stuck.submit()
    read_page.options(channel="news").submit_many([{"ok": ok} for ok in (True, True, False)])
    advance(7)
    app.drain(5)
    read_page.options(queue="left").submit(ok=True)
    advance(60)
    return app


def test_a_worker_counts_what_it_started_and_how_it_ended(worked):
    found = scraped(scrape(worked))
    convert, page = 'kind="convert",queue="default"', 'kind="read_page",queue="slow"'
    ended = {
        (kind, outcome): found[
            "milepost_jobs_ended_total", kind.replace(",", f',outcome="{outcome}",')
        ]
        for kind in (convert, page)
        for outcome in ("succeeded", "failed", "cancelled")
    }
    assert found["milepost_jobs_started_total", convert] == 2
    assert found["milepost_jobs_started_total", page] == 3
    assert [*ended.values()] == [1, 0, 0, 2, 1, 0]
    assert found["milepost_job_retries_total", convert] == 1
    assert found["milepost_job_duration_seconds_count", page] == 3
    assert 0 < found["milepost_job_duration_seconds_sum", page] < 60
    stuck = 'kind="stuck",queue="default"'
    assert found["milepost_job_duration_seconds_count", stuck] == 1
    assert 0.05 <= found["milepost_job_duration_seconds_sum", stuck] < 60
    assert found["milepost_job_wait_seconds_count", page] == 3
    assert 21 <= found["milepost_job_wait_seconds_sum", page] < 60
    assert found["milepost_job_wait_seconds_bucket", page.replace(",", ',le="5.0",')] == 0
    assert found["milepost_settle_seconds_count", ""] >= 1
    assert found["milepost_lease_losses_total", 'found="settle"'] == 0
    assert ("milepost_pool_connections", 'state="busy"') in found


def test_it_also_tells_what_the_store_holds(worked):
    found = scraped(scrape(worked))
    assert found["milepost_store_up", ""] == 1
    assert found["milepost_jobs", 'queue="left",state="QUEUED"'] == 1
    assert 60 <= found["milepost_queue_oldest_seconds", 'queue="left"'] < 120
    assert found["milepost_queue_oldest_seconds", 'queue="default"'] == 0
    assert found["milepost_outbox_messages", 'channel="news"'] == 3
    assert 60 <= found["milepost_outbox_oldest_seconds", 'channel="news"'] < 120
    assert ("process_cpu_seconds_total", "") in found


def test_limits_have_their_figures_and_keys_are_no_labels(worked):
    worked.limits.set("customers", most=0)
    worked.registry.newest("bill")
    mp.job.Job(worked, worked.registry.newest("bill")).submit("acme")
    worked.drain()
    text = scrape(worked)
    found = scraped(text)
    rule, queue = 'limit="customers",scope="job"', 'limit="narrow",scope="queue"'
    assert found["milepost_limit_most", rule] == 0
    assert found["milepost_limit_running", rule] == 0
    assert found["milepost_limit_waiting", rule] == 1
    assert found["milepost_limit_most", queue] == 2
    assert found["milepost_limit_waiting", queue] == 1
    assert found["milepost_limit_looks_total", 'outcome="claimed"'] >= 1
    assert found["milepost_limit_looks_total", 'outcome="blocked"'] >= 1
    assert found["milepost_limit_blocked_jobs_total", ""] >= 1
    assert "acme" not in text


def test_labels_of_limits_are_bounded(app, monkeypatch):
    monkeypatch.setattr(metrics, "NAMES_MOST", 3)
    app.metrics = WorkerMetrics()
    for number in range(5):
        app.limits.set(f"q{number}", scope="queue", most=number)

    @app.job
    def convert() -> None: ...

    for number in range(5):
        convert.options(queue=f"q{number}").submit()
    found = scraped(scrape(app))
    waiting = {labels: value for (name, labels), value in found.items() if "limit_wait" in name}
    assert len(waiting) == 3
    assert waiting['limit="(others)",scope="(others)"'] == 3
    assert sum("limit_most" in name for name, _ in found) == 2


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (prometheus)")
def test_promtool_finds_nothing_to_complain_about(worked):
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=scrape(worked),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_labels_are_bounded_and_a_store_that_is_away_leaves_the_rest(app, monkeypatch):
    monkeypatch.setattr(metrics, "NAMES_MOST", 3)
    app.metrics = WorkerMetrics()

    @app.job
    def convert() -> None: ...

    for number in range(5):
        convert.options(queue=f"q{number}").submit()
    app.drain()
    text = scrape(app)
    started = [line for line in text.splitlines() if line.startswith("milepost_jobs_started_total")]
    assert len(started) == 3
    assert 'milepost_jobs_started_total{kind="(others)",queue="(others)"} 3.0' in started

    def away():
        raise mp.Unavailable("gone")

    with serving("127.0.0.1", 0, app.metrics, away) as (host, port):
        found = scraped(urlopen(f"http://{host}:{port}/metrics").read().decode())
    assert found["milepost_store_up", ""] == 0
    assert ("milepost_jobs", 'queue="q0",state="SUCCEEDED"') not in found
    assert ("milepost_settle_seconds_count", "") in found


def figures(**workers):
    return StoreMetrics({}, {}, workers, False, {}, (), {})


class Reading:
    """A store whose figures take that long to be read, and a clock."""

    def __init__(self, seconds, **workers):
        self.now, self.count, self._seconds, self._workers = 0.0, 0, seconds, workers
        self.fresh = FreshMetrics(lambda: self.now)

    def __call__(self):
        self.count += 1
        self.now += self._seconds
        return figures(**self._workers)

    def scraped(self, *, every, times):
        for _ in range(times):
            self.fresh.get(self)
            self.now += every
        return self.count


def test_the_more_workers_show_the_figures_of_the_store_the_less_often_each_reads_them():
    assert Reading(0.01, IDLE=1).scraped(every=15, times=20) == 20
    assert Reading(0.1, IDLE=1).scraped(every=15, times=20) == 20
    assert Reading(0.1, IDLE=10, POLLING=10, STOPPED=500).scraped(every=15, times=20) == 7
    assert Reading(30, IDLE=100).scraped(every=15, times=20) == 5  # never older than a minute
    assert Reading(0.001).scraped(every=0.01, times=20) == 2


def test_scrapes_at_the_same_moment_share_one_reading_and_a_failure_is_not_kept():
    fresh, asked, go_on, found = FreshMetrics(), [], threading.Event(), []

    def read():
        asked.append(1)
        assert go_on.wait(20)
        return figures()

    scrapes = [threading.Thread(target=lambda: found.append(fresh.get(read))) for _ in range(8)]
    for scrape in scrapes:
        scrape.start()
    go_on.set()
    for scrape in scrapes:
        scrape.join()
    assert (len(asked), len(found), len({id(each) for each in found})) == (1, 8, 1)

    def away():
        raise mp.Unavailable("gone")

    other = FreshMetrics()
    for _ in range(2):
        with pytest.raises(mp.Unavailable):
            other.get(away)
    assert other.get(figures) is not None


def test_messages_of_channels_beyond_the_limit_are_added_up(monkeypatch):
    monkeypatch.setattr(metrics, "NAMES_MOST", 2)
    told = StoreMetrics({}, {}, {}, False, {}, [("a", 9, 1.0), ("b", 3, 5.0), ("c", 4, 2.0)], {})
    found = {
        (sample.name, sample.labels["channel"]): sample.value
        for family in told.collect()
        for sample in family.samples
        if "channel" in sample.labels
    }
    assert found["milepost_outbox_messages", "(others)"] == 7
    assert found["milepost_outbox_oldest_seconds", "(others)"] == 2.0


def test_a_result_that_comes_too_late_and_a_sweep_count_the_lost_lease(app, advance):
    app.metrics = WorkerMetrics()

    @app.job
    def convert() -> None: ...

    convert.submit()
    app.client.run(workers.register, workers.NewWorker(id="w", lease_us=1_000_000))
    [claim] = app.client.run(jobs.claim, worker_id="w", line=lines(["default"]), most=1)
    assert claim.waited_us is None
    advance(60)
    app.drain()
    found = scraped(scrape(app))
    assert found["milepost_lease_losses_total", 'found="sweep"'] == 1
    late = app.client.run(jobs.settle_some, [Settlement(claim, succeeded())], actor="w")
    assert late.held == set()


def test_the_command_serves_them_on_this_machine_alone(tmp_path):
    (tmp_path / "crew.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "milepost.cli", "worker", "crew:app", "--metrics", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if told := re.search(
                    r"metrics are served address=(http://127\.0\.0\.1:\d+\S*)", line
                ):
                    break
            end = time.monotonic() + 30
            while 'state="IDLE"' not in (text := urlopen(told[1]).read().decode()):
                assert time.monotonic() < end, text
            assert "milepost_lease_losses_total" in text
        finally:
            process.terminate()
            process.communicate(timeout=30)
    assert process.returncode == 0
    refused = subprocess.run(
        [*command[:-1], "here"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "metrics='here': expected PORT or HOST:PORT" in refused.stderr


@pytest.mark.parametrize(
    ("port", "told"), [("taken", "Address already in use"), ("elsewhere", "Cannot assign")]
)
def test_a_port_that_cannot_be_served_is_a_wrong_setting_and_not_a_store_that_is_away(
    tmp_path, port, told
):
    (tmp_path / "crew.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "milepost.cli", "worker", "crew:app", "--metrics"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = f"127.0.0.1:{taken.getsockname()[1]}"
        address = here if port == "taken" else "192.0.2.1:9100"
        refused = subprocess.run(
            [*command, address], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert refused.returncode == 2
    assert f"metrics cannot be served on {address}" in refused.stderr
    assert told in refused.stderr
    assert "choose another address: --metrics [HOST:]PORT" in refused.stderr
