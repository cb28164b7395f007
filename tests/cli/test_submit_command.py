"""`milepost submit` and the apps that commands load: values, kinds, paths, and what is wrong."""

import json
import os
import signal
import subprocess
import sys

import pytest


def test_submitting_prints_the_id_and_the_job_runs(prompt, app):
    done = prompt("submit", "newcomer:app", "convert", "report", "--set", "format=html")
    assert done.code == 0
    job = app.jobs.get(done.out.strip())
    assert "`milepost jobs wait" in done.err
    app.drain()
    assert job.refresh().result == "report.html"


def test_submitting_with_json_prints_the_job_as_an_object(prompt, app):
    done = prompt("submit", "newcomer:app", "convert", "report", "--json")
    job = json.loads(done.out)
    assert (job["kind"], job["state"], job["arguments"]) == (
        *("convert", "QUEUED"),
        {"document": "report"},
    )
    assert app.jobs.get(job["id"]).id == job["id"]
    assert done.err == ""


def test_a_queue_that_is_full_is_refused_by_a_code_of_its_own(prompt, folder):
    """A script could not tell it from any other failure, code 1."""
    (folder / "full.py").write_text(
        "import milepost as mp\n"
        "app = mp.App()\n"
        "app.queue('slow', max_waiting=1)\n"
        "@app.job(queue='slow')\n"
        "def work(n: int) -> None: ...\n"
    )
    assert prompt("submit", "full:app", "work", "1").code == 0
    refused = prompt("submit", "full:app", "work", "2")
    assert (refused.code, refused.out) == (5, "")
    assert "queue 'slow' has 1 job waiting, of max_waiting=1" in refused.err


def test_a_job_under_a_limit_is_submitted_and_shown_with_its_key_and_units(prompt, app, folder):
    (folder / "limited.py").write_text(
        "import milepost as mp\n"
        "app = mp.App()\n"
        "@app.job(limit=mp.Limit(rate='9/s', units='tokens', name='model'))\n"
        "def ask(prompt: str) -> None: ...\n"
    )
    given = ("--limit-key", "acme", "--units", "4.5")
    made = prompt("submit", "limited:app", "ask", "why", *given)
    assert made.code == 0, made.err
    shown = json.loads(prompt("jobs", "show", made.out.strip(), "--json").out)
    assert [shown[name] for name in ("limit", "limit_key", "units")] == ["model", "acme", 4.5]
    refused = prompt("submit", "newcomer:app", "convert", "x", *given[:2])
    assert (refused.code, "limit_key= is for kinds with a limit=" in refused.err) == (2, True)


def test_options_reach_the_job(prompt, app):
    given = ("--queue", "slow", "--priority", "9", "--start-in", "60", "--unique", "invoice-7")
    more = ("--retries", "7", "--deadline", "3600", "--tag", "user=42", "--tag", "why=a=b")
    asked = ("submit", "newcomer:app", "convert", "x", *given, *more, "--json")
    job = json.loads(prompt(*asked).out)
    shown = {name: job[name] for name in ("queue", "priority", "state", "unique", "retries")}
    assert shown == {
        "queue": "slow",
        "priority": 9,
        "state": "WAITING",
        "unique": "invoice-7",
        "retries": 7,
    }
    assert job["tags"] == {"user": "42", "why": "a=b"}
    assert job["deadline_at"] is not None
    assert json.loads(prompt(*asked).out)["id"] == job["id"]  # unique: the one that is there


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ('"42"', "42"),
        ("report", "report"),
        ("true", True),
        ("null", None),
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ("{broken", "{broken"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("", ""),
        ("a=b", "a=b"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_each_value_is_json_if_it_parses_else_a_string(text, value):
    from milepost.cli import values

    assert values.value(text) == value
    assert type(values.value(text)) is type(value)


def test_a_value_that_was_read_as_json_says_how_to_pass_a_text(prompt, folder):
    wrong = prompt("submit", "newcomer:app", "convert", "42")
    assert (wrong.code, wrong.out) == (2, "")
    assert "Expected `str`, got `int`" in wrong.err
    assert """as a text it is '"42"'""" in wrong.err
    assert prompt("submit", "newcomer:app", "convert", '"42"').code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["newcomer:app", "convret", "x"], "no job is called 'convret'. Did you mean convert?"),
        (["newcomer:app", "zzz", "x"], "no job is called 'zzz'. Declared: convert, refuse."),
        (["newcomer:app", "convert"], "missing a required argument: 'document'"),
        (["newcomer:app", "convert", "x", "--set", "fromat=a"], "'fromat'"),
        (["newcomer:app", "convert", "x", "--set", "format"], "expected NAME=VALUE"),
        (["newcomer:app", "convert", "x", "--tag", "=a"], "expected NAME=VALUE"),
        (["newcomer", "convert"], "expected MODULE:APP, as in app:app, or a file, as in app.py"),
        (["newcmer:app", "convert"], "there is no module 'newcmer'"),
        (["newcmer:app", "convert"], "Did you mean newcomer?"),
        (["newcomer:ap", "convert"], "newcomer has no App called 'ap'; it has app"),
        (["newcmer.py", "convert"], "there is no file newcmer.py. Did you mean newcomer.py?"),
        (["empty.py", "convert"], "holds no App; it needs a line like"),
        (["my-app.py", "convert"], "rename it to letters, digits and underscores"),
        (["json.py", "convert"], "has the name of another module"),
        (["broken.py", "convert"], "broken cannot be imported: ZeroDivisionError"),
        (["broken.py", "convert"], "broken.py, line 2)"),
        (["quitting.py", "convert"], "it ends the program"),
        (["needy:app", "convert"], "No module named 'not_installed'"),
        (["needy:app", "convert"], "needy.py, line 1)"),
        (["torn.py", "convert"], "SyntaxError"),
        (["torn.py", "convert"], "line 1)"),
        (["two.py", "convert"], "holds several: add one of :one, :other"),
        (["twice.py", "convert"], "is declared twice"),
    ],
)
def test_what_is_wrong_is_a_usage_error_that_says_what_to_do(prompt, folder, arguments, told):
    (folder / "empty.py").write_text("")
    (folder / "my-app.py").write_text("")
    (folder / "json.py").write_text("")
    (folder / "broken.py").write_text("\n1 / 0\n")
    (folder / "quitting.py").write_text("raise SystemExit(0)\n")
    (folder / "needy.py").write_text("import not_installed\n")
    (folder / "torn.py").write_text("def :\n")
    (folder / "two.py").write_text("import milepost as m\none = m.App()\nother = m.App()\n")
    twice = "@app.job\ndef same() -> None: ...\n" * 2
    (folder / "twice.py").write_text(f"import milepost as m\napp = m.App()\n{twice}")
    wrong = prompt("submit", *arguments)
    assert (wrong.code, wrong.out) == (2, "")
    assert told in wrong.err
    assert "Traceback" not in wrong.err


def test_a_file_names_its_app_in_several_ways(prompt, folder):
    apps = "import milepost as m\napp = m.App()\nother = m.App()\n"
    (folder / "pair.py").write_text(f"{apps}@other.job\ndef hello() -> None: ...\n")
    assert prompt("submit", "pair.py:other", "hello").code == 0
    assert prompt("submit", "pair:other", "hello").code == 0
    assert "no job is called" in prompt("submit", "pair.py", "hello").err  # `app` comes first
    (folder / "sub").mkdir()
    (folder / "sub" / "nested.py").write_text((folder / "newcomer.py").read_text())
    assert prompt("submit", "sub/nested.py", "convert", "x").code == 0


def test_a_submit_may_wait_for_the_end(prompt, app, monkeypatch):
    from milepost.handles import JobHandle

    waited = JobHandle.wait

    def run_it(self, timeout=None):
        app.drain()
        return waited(self, timeout)

    monkeypatch.setattr(JobHandle, "wait", run_it)
    good = prompt("submit", "newcomer:app", "convert", "a", "--wait")
    assert (good.code, good.out) == (0, '"a.pdf"\n')
    bad = prompt("submit", "newcomer:app", "refuse", "3", "--wait", "--timeout", "5", "--json")
    assert (bad.code, json.loads(bad.out)["state"]) == (3, "FAILED")


def test_an_unreachable_store_is_exit_code_75(prompt, folder, monkeypatch):
    monkeypatch.setenv("MILEPOST_DATABASE_URL", "postgresql://me:hunter2@127.0.0.1:9/none")
    (folder / "away.py").write_text((folder / "newcomer.py").read_text())
    away = prompt("submit", "away:app", "convert", "x")
    assert (away.code, away.out) == (75, "")
    assert "hunter2" not in away.err


@pytest.mark.filterwarnings("ignore:job .* waits")  # the worker may need a while to be there
def test_dev_says_what_it_found_and_runs_what_is_submitted(app, here):
    """The whole engine in one process, started as a newcomer starts it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost.cli", "dev", "newcomer.py"],
        cwd=here,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said = [process.stdout.readline() for _ in range(5)]
        assert "job     convert(document: str, *, format: str = 'pdf') -> str\n" in said
        assert "job     refuse(size: int) -> None\n" in said
        assert "submit  milepost submit newcomer.py convert DOCUMENT\n" in said
        assert said[-1] == "look    milepost jobs ls\n"
        job = app.registry.newest("convert")
        from milepost.job import Job

        assert Job(app, job).submit("a").wait(60).result == "a.pdf"
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in err


def test_dev_shows_what_a_job_needs(prompt, folder, monkeypatch):
    from milepost.app import App

    declared = "def send(ctx: m.Context, to: str, *more: int, subject: str, copy: int = 1): ..."
    (folder / "mail.py").write_text(f"import milepost as m\napp = m.App()\n@app.job\n{declared}\n")
    monkeypatch.setattr(App, "run_worker", lambda *_: None)
    shown = prompt("dev", "mail.py").out
    assert "job     send(to: str, *more: int, subject: str, copy: int = 1)\n" in shown
    assert "submit  milepost submit mail.py send TO --set subject=SUBJECT\n" in shown


def test_the_steps_of_a_batch_are_not_submitted_one_by_one(prompt, folder, monkeypatch):
    from milepost.app import App

    step = "batch = app.batch('load')\n@batch.step\ndef find(params: int) -> int: ..."
    (folder / "steps.py").write_text(f"import milepost as m\napp = m.App()\n{step}\n")
    monkeypatch.setattr(App, "run_worker", lambda *_: None)
    shown = prompt("dev", "steps.py")
    assert "load.find" not in shown.out
    assert "nothing to do" not in shown.err
    assert "batch   load: milepost batches start steps.py load\n" in shown.out
    assert "no job is called 'load.find'" in prompt("submit", "steps.py", "load.find", "1").err
    assert (
        "load is a batch: `milepost batches start steps.py load`"
        in prompt("submit", "steps.py", "load").err
    )


def test_dev_without_jobs_says_that_there_is_nothing_to_do(prompt, folder, monkeypatch):
    from milepost.app import App

    (folder / "idle.py").write_text("import milepost\nservice = milepost.App()\n")
    monkeypatch.setattr(App, "run_worker", lambda *_: None)
    idle = prompt("dev", "idle.py")
    assert idle.code == 0
    assert "declares no job yet: nothing to do" in idle.err
