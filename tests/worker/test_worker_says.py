"""What a worker says of failures: a line on stderr, or as the program has configured structlog."""

import json
import logging
import re
import subprocess
import sys
import threading
import time
import types
import warnings
from contextlib import contextmanager
from typing import Any

import pytest
import structlog

import milepost as mp
from milepost.cli.logs import logging_as
from milepost.config import Settings
from milepost.store import workers
from milepost.telemetry import Log
from milepost.worker import heartbeat

pytestmark = [pytest.mark.in_turn, pytest.mark.filterwarnings("default:old:UserWarning")]


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """On a crowded machine a worker that ends would warn that its state could not be shown."""
    monkeypatch.setattr("milepost.worker.heartbeat.SHOW_SECONDS", 60.0)


def declared(app):
    @app.job(retries=1, retry_delay=0)
    def convert(document: str) -> str:
        raise ValueError(f"{document}\x1b[31m is broken\nand this is a second line")

    @app.job
    async def read(document: str) -> str:
        raise mp.Fail("no such format")

    return convert, read


def test_each_failed_attempt_is_told_on_stderr_and_nothing_on_stdout(app, capsys):
    convert, read = declared(app)
    first, second = convert.submit("a"), read.submit("b")
    app.drain()
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    error = r"error='ValueError: a\x1b[31m is broken'"
    # Below each stands the traceback, indented.
    whole = [line.partition("] ")[2] for line in lines if line[:1].isdigit()]
    assert all(re.search(r" at='test_worker_says\.py:\d+ in declared\S+'", line) for line in whole)
    told = [re.sub(r" at='.*?'| outcome=\w+ duration=[0-9.e-]+$", "", line) for line in whole]
    assert sorted(re.findall(r"outcome=(\w+) duration=[0-9]", " ".join(whole))) == [
        *("fail", "fail"),
        "retry",
    ]
    assert any('raise ValueError(f"{document}' in line for line in lines)
    assert sorted(told) == sorted(
        [
            f"an attempt failed kind=convert job_id={first.id} attempt=1 {error} again_in='0 s'",
            f"a job failed kind=convert job_id={first.id} attempt=2 {error}",
            f"a job failed kind=read job_id={second.id} attempt=1 error='Fail: no such format'",
        ]
    )


def test_what_ends_well_or_asks_to_be_run_later_is_not_told(app, capsys):
    @app.job
    def wait() -> None:
        raise mp.Later(60)

    wait.submit()
    app.drain()
    assert capsys.readouterr() == ("", "")


def test_a_worker_that_ends_while_it_connects_for_its_lease_says_nothing(app, capsys, monkeypatch):
    """It said that its own lease was not renewed, because it had hung up itself."""
    begun, may_connect, connect = threading.Event(), threading.Event(), heartbeat.open_driver

    def slowly(*args: Any, **named: Any) -> Any:
        begun.set()
        may_connect.wait(30)
        return connect(*args, **named)

    monkeypatch.setattr(heartbeat, "open_driver", slowly)
    app.settings = app.settings.chosen(heartbeat=0.01)

    @app.job
    def wait() -> None:
        begun.wait(30)

    wait.submit()
    app.drain()
    may_connect.set()
    for thread in threading.enumerate():
        if thread.name.startswith("milepost-heartbeat-"):
            thread.join(30)
    assert capsys.readouterr() == ("", "")


def test_a_program_that_configured_structlog_gets_it_there(app, capsys):
    _, read = declared(app)
    read.submit("b")
    with structlog.testing.capture_logs() as lines:
        app.drain()
    structlog.reset_defaults()
    assert [(line["event"], line["kind"]) for line in lines] == [("a job failed", "read")]
    assert capsys.readouterr().err == ""


def test_a_handlers_own_log_goes_to_stderr_too(app, capsys):
    @app.job
    def convert(ctx: mp.Context) -> None:
        ctx.log.info("converted", pages=4)

    job = convert.submit()
    app.drain()
    said = capsys.readouterr()
    assert said.out == ""
    assert "converted" in said.err
    assert f"job_id={job.id}" in said.err
    assert "\x1b" not in said.err


# In commands that run workers


@contextmanager
def unconfigured(**settings):
    """Log as a command does whose program has not configured logging: pytest has."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        with warnings.catch_warnings(), logging_as(Settings(**settings)):
            warnings.simplefilter("always")  # by default a line warns once in a process
            yield
        assert root.handlers == []
    finally:
        root.handlers = before


def chatty(app):
    @app.job
    def chat(name: str) -> None:
        logging.getLogger("shop").info("hello %s\x1b, token=hunter2\nand more", name)
        mp.current().log.info("bound", size=3)
        logging.getLogger("httpx2").info("HTTP Request: GET https://partner.example")
        warnings.warn("old", stacklevel=1)
        if name == "bad":
            raise mp.Fail("no such format")

    return chat


def test_each_attempt_is_one_line_with_its_outcome_and_duration(app, capsys):
    chat = chatty(app)
    good, bad = chat.submit("good"), chat.submit("bad")
    with unconfigured(log_format="json"):
        app.drain()
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.err.splitlines()]
    assert said.out == ""
    ended = {one["job_id"]: one for one in lines if "outcome" in one}
    assert [
        (one["level"], one["kind"], one["attempt"], one["outcome"], one["duration"] >= 0)
        for one in (ended[good.id], ended[bad.id])
    ] == [("info", "chat", 1, "succeed", True), ("warning", "chat", 1, "fail", True)]
    assert ended[bad.id]["error"] == "Fail: no such format"
    own = [one for one in lines if one["job_id"] == good.id and "outcome" not in one]
    assert [(one["logger"], one["attempt"]) for one in own] == [
        ("shop", 1),
        ("milepost.job", 1),
        ("py.warnings", 1),
    ]
    assert own[0]["event"] == "hello good\x1b, token=[redacted]\nand more"
    assert (own[1]["event"], own[1]["size"]) == ("bound", 3)
    assert [line.logger for line in good.logs] == ["shop", "milepost.job", "py.warnings"]


def test_as_text_nothing_reaches_the_terminal_raw(app, capsys):
    chatty(app).submit("good")
    with unconfigured():
        app.drain()
    first, below, bound, *_, ended = capsys.readouterr().err.splitlines()
    assert "[info     ] hello good\\x1b, token=[redacted] logger=shop kind=chat job_id=" in first
    assert below == "  and more"
    assert "bound size=3 kind=chat job_id=" in bound
    assert re.search(r"an attempt ended kind=chat .* outcome=succeed duration=[0-9.e-]+$", ended)


class Unprintable:
    def __str__(self):
        raise RuntimeError("no text")


def odd(app):
    @app.job
    def convert(ctx: mp.Context) -> None:
        shop = logging.getLogger("shop")
        shop.info("undecodable \udc80")
        shop.info("%d pages", "four")
        shop.info("page %s", Unprintable())
        shop.info("paid", extra={"amount": 10**30, "api_key": "hunter2 and more", "job_id": "no"})
        ctx.log.info("bound", page=Unprintable(), password="hunter2 and more", n=10**30, b=b"\xff")

    return convert


def raises_elsewhere(app):
    @app.job
    def convert() -> None:
        thread = threading.Thread(target=int, args=["token=hunter2"], name="side")
        thread.start()
        thread.join()

        class Fragile:
            def __del__(self):
                raise RuntimeError("in a destructor")

        Fragile()

    return convert


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_line_is_lost_or_raw_whatever_is_logged(app, capsys, log_format):
    job = odd(app).submit()
    with unconfigured(log_format=log_format):
        app.drain()
    told = capsys.readouterr().err
    lines = told.splitlines()
    assert len(lines) == 6
    assert "hunter2" not in told
    assert "hunter2" not in str(job.logs)
    if log_format == "json":
        one, two, three, paid, bound, _ = map(json.loads, lines)
        assert one["event"] == r"undecodable \udc80"
        assert two["event"].startswith("%d pages (logged with arguments that do not fit: TypeErr")
        assert three["event"].startswith("page %s (")
        assert (paid["job_id"], paid["api_key"]) == (job.id, "[redacted]")
        assert (paid["amount"], bound["n"]) == (10**30, 10**30)
        assert bound["page"] == "(Unprintable: RuntimeError when written)"
    else:
        assert all(line[:1].isdigit() for line in lines)
        assert "amount=1000000000000000000000000000000" in lines[3]


def test_errors_of_threads_and_destructors_are_lines_too(app, capsys, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest has its own
    raises_elsewhere(app).submit()
    with unconfigured(log_format="json"):
        app.drain()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [(one["logger"], one["level"]) for one in lines]
    assert told == [("threading", "error"), ("python", "error"), ("milepost.worker", "info")]
    assert lines[0]["event"] == "thread side ended by an error"
    assert "token=[redacted]" in lines[0]["exception"]
    assert "in a destructor" in lines[1]["exception"]
    assert threading.excepthook is threading.__excepthook__


def test_logging_that_fails_loses_no_job(app, capsys, monkeypatch):
    """A processor of the program's, an import of structlog under way in a handler's thread."""
    convert, read = declared(app)

    def broken(*_):
        raise RuntimeError("the collector is away")

    structlog.configure(processors=[broken])
    try:
        jobs = [job.submit("a") for job in (convert, read, convert, read)]
        app.drain()
    finally:
        structlog.reset_defaults()
    assert {job.refresh().state for job in jobs} == {"FAILED"}
    told = capsys.readouterr().err
    assert "logging_failed=\"RuntimeError('the collector is away')\"" in told
    monkeypatch.setitem(sys.modules, "structlog", types.ModuleType("structlog"))
    jobs = [job.submit("a") for job in (convert, read)]
    app.drain()
    assert {job.refresh().state for job in jobs} == {"FAILED"}
    monkeypatch.undo()
    monkeypatch.setattr(sys, "stderr", None)
    job = read.submit("b")
    app.drain()
    assert job.refresh().state == "FAILED"


def test_above_info_nothing_is_written_or_formatted(app, capsys, monkeypatch):
    monkeypatch.setattr(Log, "tell", None)
    chatty(app).options(tags=None).submit("good")
    with unconfigured(log_level="error"):
        app.drain()
    assert capsys.readouterr().err == ""


def test_a_program_that_configured_logging_has_its_own_way(app, caplog):
    chat = chatty(app)
    caplog.set_level(logging.INFO)
    job = chat.submit("good")
    with logging_as(Settings(log_format="json")):
        app.drain()
    [ended] = [str(r.msg) for r in caplog.records if r.name == "milepost.worker"]
    assert ended.startswith(f"an attempt ended kind=chat job_id={job.id} attempt=1 outcome=succeed")


def test_the_commands_take_a_level_and_a_format(tmp_path):
    (tmp_path / "shop.py").write_text(
        "import milepost as mp\napp = mp.App('sqlite:///shop.db')\n"
        "@app.job\ndef stop() -> None:\n"
        "    import os, signal\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )

    def milepost(*words):
        command = [sys.executable, "-m", "milepost.cli", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )

    assert milepost("submit", "shop.py", "stop").returncode == 0
    ran = milepost("worker", "shop.py", "--log-level", "info", "--log-format", "json")
    assert ran.returncode == 0
    told = [json.loads(line) for line in ran.stderr.splitlines()]  # every line is an object
    assert told[0]["store"] == "sqlite:///shop.db"
    assert [one["outcome"] for one in told if "outcome" in one] == ["succeed"]
    assert milepost("worker", "shop.py", "--log-level", "loud").returncode == 2


def test_a_lease_that_is_not_renewed_is_told_once_and_when_it_is_again(
    database, capsys, monkeypatch
):
    app, failing, usual = mp.App(database.url, lease=5, heartbeat=0.1), [1] * 3, workers.renew

    def renew(*args, **kwargs):
        if failing and failing.pop():
            raise mp.Unavailable("the network is away")
        return usual(*args, **kwargs)

    monkeypatch.setattr(workers, "renew", renew)

    @app.job
    def slow() -> None:
        while failing:
            time.sleep(0.05)
        time.sleep(1)

    job = slow.submit()
    app.drain()
    app.close()
    told = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert job.refresh().state == "SUCCEEDED"
    assert [line.partition(" error=")[0] for line in told] == [
        "lease not renewed, trying again",
        "lease renewed again",
    ]
    assert re.search(r"ends_in='[345] s'$", told[0])
