"""`milepost batches` and `runs`: started from a prompt, looked at without an app."""

import json
import sys
import threading
from contextlib import contextmanager
from io import StringIO

import pytest

FARM = """
from collections.abc import Iterable, Iterator

import msgspec

import milepost as mp

app = mp.App()


class Harvest(msgspec.Struct):
    fields: int
    crop: str = "rye"


harvest = app.batch("harvest", params=Harvest, policy=mp.Tolerate(0.5))


@harvest.step
def walk(params: Harvest) -> Iterator[int]:
    yield from range(params.fields)


@harvest.step(gated=True, retries=0)
def mow(field: int) -> int:
    if field % 3 == 2:
        raise mp.Fail(f"field {field} is under water")
    return field


@harvest.step(poll=60)
def dry(field: int) -> int:
    return field


@harvest.reduce
def weigh(fields: Iterable[int]) -> dict[str, int]:
    return {"fields": len(list(fields))}


sale = app.batch("sale", version=2)
sale.step(lambda: None, name="sell")
strict = app.batch("strict", params=Harvest)
strict.step(walk)
strict.step(mow, retries=0)
"""


@pytest.fixture
def farm(here):
    """A program with batches, loaded the way commands load it."""
    (here / "farm.py").write_text(FARM)
    from milepost.cli.values import load_app

    loaded = load_app("farm:app")
    yield loaded
    loaded.close()


def started(prompt, *arguments):
    answer = prompt("batches", "start", "farm:app", *arguments)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def broken_off(prompt, farm):
    """A run that failed: one of its jobs did, and its policy bears none."""
    run = farm.runs.get(started(prompt, "strict", '{"fields": 3}'))
    farm.drain()
    return run.refresh()


# Batches


def test_starting_prints_the_id_and_says_how_to_follow(prompt, farm):
    answer = prompt("batches", "start", "farm:app", "harvest", "--set", "fields=2")
    assert answer.code == 0
    run = farm.runs.get(answer.out.strip())
    assert (run.kind, json.loads(run.record.payload)) == ("harvest", {"fields": 2})
    assert f"`milepost runs watch {run.id}`" in answer.err


def test_parameters_are_one_document_or_given_by_name(prompt, farm):
    options = ("--tag", "year=2026", "--priority", "3", "--deadline", "60", "--json")
    by_name = ("harvest", "--set", "fields=2", "--set", "crop=oats", *options)
    document = json.loads(started(prompt, *by_name))
    assert document["parameters"] == {"fields": 2, "crop": "oats"}
    assert (document["tags"], document["priority"], document["state"]) == (
        *({"year": "2026"}, 3),
        "QUEUED",
    )
    assert document["deadline_at"] is not None
    assert json.loads(started(prompt, "sale", "--json"))["version"] == 2


def test_a_live_run_is_used_again_if_asked(prompt, farm):
    first = started(prompt, "harvest", '{"fields": 2}', "--reuse")
    assert started(prompt, "harvest", "--set", "fields=2", "--reuse") == first
    assert started(prompt, "harvest", "--set", "fields=2") != first


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("harvset",), "no batch is called 'harvset'. Did you mean harvest?"),
        (("xyzzy",), "Declared: harvest, sale, strict."),
        (("harvest", "{}"), "fields: it is missing"),
        (("harvest", '{"fields": "two", "x": 1}'), "x: there is no such parameter; fields: Exp"),
        (("harvest", "--set", "fields=1", "--set", "crop=7"), """a text it is '"7"'"""),
        (("harvest", "--set", "fields"), "expected NAME=VALUE"),
        (("harvest", "{}", "--set", "fields=1"), "as JSON or by --set, not both"),
        (("sale", "{}"), "batch 'sale' takes no parameters"),
    ],
)
def test_a_wrong_start_stores_nothing_and_says_what_is_wrong(prompt, farm, arguments, told):
    answer = prompt("batches", "start", "farm:app", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert farm.runs.counts() == {}


def test_batches_are_listed_by_their_runs_and_with_an_app_as_declared(prompt, farm):
    started(prompt, "sale")
    farm.batch("gone").step(lambda: None, name="x")
    farm.batches[0].start()
    farm._batches.pop(("gone", 1))  # its program is gone; its run is not
    assert json.loads(prompt("batches", "ls", "--json").out) == [
        {"batch": "gone", "runs": {"QUEUED": 1}},
        {"batch": "sale", "runs": {"QUEUED": 1}},
    ]
    head, *lines = prompt("batches", "ls", "farm:app").out.splitlines()
    assert head == "batch\tversion\tpolicy\tsteps\truns"
    steps = "walk, mow (gated), dry (polls after 60 s), weigh (reducer)"
    assert lines == [
        f"harvest\t1\tTolerate(0.5)\t{steps}\t",
        "sale\t2\tFailFast\tsell\t1 QUEUED",
        "strict\t1\tFailFast\twalk, mow\t",
        "gone\t\t\t\t1 QUEUED",
    ]
    [harvest, *_] = json.loads(prompt("batches", "ls", "farm.py", "--json").out)
    assert harvest["steps"][2] == {"name": "dry", "role": "work", "gated": False, "poll": 60.0}


def test_what_is_declared_is_listed_without_a_store(prompt, folder):
    (folder / "farm.py").write_text(FARM)
    answer = prompt("batches", "ls", "farm.py")
    assert (answer.code, len(answer.out.splitlines())) == (0, 4)
    assert "no such file" in answer.err
    assert not (folder / "milepost.db").exists()
    assert prompt("batches", "ls").code == 75


def test_listing_takes_an_app_or_a_store_and_says_when_there_is_nothing(
    prompt, farm, here, database
):
    both = prompt("batches", "ls", "farm:app", "--store", database.url)
    assert both.code == 2
    assert "leave out --store" in both.err
    none = prompt("batches", "ls", "--store", database.url)
    assert (none.code, none.out) == (0, "")
    assert "no batch has run here; with an APP" in none.err
    (here / "bare.py").write_text("import milepost as mp\n\napp = mp.App()\n")
    assert "bare.py declares none" in prompt("batches", "ls", "bare.py").err


# Runs


def test_runs_are_listed_filtered_and_turned_page_by_page(prompt, farm):
    none = prompt("runs", "ls")
    assert (none.code, none.out, none.err) == (0, "", "none fits; nothing to show\n")
    first, second = started(prompt, "harvest", '{"fields": 0}'), started(prompt, "sale")
    farm.drain()
    third = started(prompt, "sale")
    head, *lines = prompt("runs", "ls").out.splitlines()
    assert head == "id\tbatch\tstate\tprogress\tcause\tcreated_at"
    assert [line.split("\t")[:4] for line in lines] == [
        [third, "sale", "QUEUED", "0.0"],
        [second, "sale", "SUCCEEDED", "1.0"],
        [first, "harvest", "SUCCEEDED", "1.0"],
    ]
    assert [
        run["id"] for run in json.loads(prompt("runs", "ls", "--batch", "harvest", "--json").out)
    ] == [first]
    assert prompt("runs", "ls", "--state", "queued").out.count("\n") == 2
    page = prompt("runs", "ls", "--limit", "1")
    assert f"--before {third}" in page.err
    assert second in prompt("runs", "ls", "--limit", "1", "--before", third).out
    assert prompt("runs", "ls", "--before", "x").code == 2


def test_one_run_is_shown_with_its_steps_its_report_and_its_errors(prompt, farm):
    run = broken_off(prompt, farm)
    shown = json.loads(prompt("runs", "show", run.id[:-1], "--json").out)
    assert (shown["id"], shown["state"], shown["cause"]) == (run.id, "FAILED", "policy")
    assert (shown["parameters"], shown["report"], shown["done"]) == ({"fields": 3}, None, True)
    assert shown["steps"][1]["counts"] == {"FAILED": 1, "SUCCEEDED": 2}
    assert shown["error"]["message"].startswith("1 of 3 jobs of mow failed, none may; ")
    [error] = shown["errors"]
    assert (error["step"], error["type"], error["message"]) == (
        *("mow", "Fail"),
        "field 2 is under water",
    )
    pairs, steps, errors = prompt("runs", "show", run.id).out.split("\n\n")
    assert dict(line.split("\t") for line in pairs.splitlines())["batch"] == "strict"
    assert steps.splitlines()[0].split("\t") == ["name", "role", "gated", "opened", "counts"]
    assert "field 2 is under water" in errors


def test_watching_ends_with_the_run_and_prints_its_report(prompt, farm):
    run = started(prompt, "harvest", '{"fields": 0}')
    farm.drain()
    seen = prompt("runs", "watch", run)
    assert (seen.code, seen.out) == (0, '{"fields": 0}\n')
    assert seen.err == "SUCCEEDED 100%: walk 1/1, mow -, dry -, weigh 1/1\n"
    assert json.loads(prompt("runs", "watch", run, "--json").out)["report"] == {"fields": 0}


def test_watching_a_run_that_broke_off_is_exit_code_3(prompt, farm):
    run = broken_off(prompt, farm)
    seen = prompt("runs", "watch", run.id)
    assert (seen.code, seen.out) == (3, "")
    assert "walk 1/1, mow 3/3 (1 failed)" in seen.err
    assert f"milepost runs show {run.id}" in seen.err
    assert "ended FAILED: policy" in seen.err
    told = prompt("runs", "watch", run.id, "--json")
    assert (told.code, json.loads(told.out)["state"]) == (3, "FAILED")
    gone = started(prompt, "sale")
    prompt("runs", "cancel", gone)
    assert prompt("runs", "watch", gone).code == 3


def test_watching_in_vain_is_exit_code_124_and_says_that_nobody_is_at_work(
    prompt, farm, monkeypatch
):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", -1.0)
    run = started(prompt, "harvest", '{"fields": 1}')
    late = prompt("runs", "watch", run, "--timeout", "0")
    assert (late.code, late.out) == (124, "")
    assert "QUEUED 0%: walk 0/1 (1 queued), mow - (the gate is shut)" in late.err
    assert "no live worker could take it" in late.err
    start = ("batches", "start", "farm:app", "sale", "--wait", "--timeout", "0")
    waited = prompt(*start)
    assert (waited.code, waited.out) == (124, "")
    assert "QUEUED 0%" not in waited.err


@contextmanager
def worker_for(app):
    """Work while a command waits."""
    stopped = threading.Event()

    def work():
        while not stopped.wait(0.02):
            app.drain()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def test_starting_may_wait_for_the_report(prompt, farm):
    with worker_for(farm):
        done = prompt("batches", "start", "farm:app", "harvest", '{"fields": 0}', "--wait")
        strict = ("batches", "start", "farm:app", "strict", '{"fields": 3}', "--wait", "--json")
        failed = prompt(*strict)
    assert (done.code, done.out) == (0, '{"fields": 0}\n')
    assert (failed.code, json.loads(failed.out)["error_count"]) == (3, 1)


def test_cancelling_says_what_really_happened(prompt, farm):
    """H-106: an open run is cancelled, a cancelled one stays so, a finished one is refused."""
    run = started(prompt, "sale")
    first = prompt("runs", "cancel", run, "--reason", "sold out", "--json")
    assert (first.code, json.loads(first.out)["state"]) == (0, "CANCELLED")
    assert farm.runs.get(run).history[-2].detail == "sold out"
    again = prompt("runs", "cancel", run)
    assert (again.code, again.err) == (0, f"run {run} was cancelled before; nothing to do\n")
    failed = broken_off(prompt, farm)
    refused = prompt("runs", "cancel", failed.id)
    assert (refused.code, refused.out) == (5, "")
    assert f"run {failed.id} is FAILED already" in refused.err


def test_cancelling_a_run_at_work_says_that_it_is_stopping(prompt, farm, monkeypatch):
    answers = []
    sale = farm.batch("auction")

    @sale.step
    def call() -> None:
        [run] = farm.runs.list(kind="auction")
        answers.append(prompt("runs", "cancel", run.id))

    sale.start()
    farm.drain()
    [answer] = answers
    assert (answer.code, answer.out) == (0, "")
    assert "is stopping; it ends with the jobs that still run" in answer.err


def test_resuming_makes_a_new_run_of_what_did_not_succeed(prompt, farm):
    run = broken_off(prompt, farm)
    again = prompt("runs", "resume", run.id)
    assert again.code == 0
    new = farm.runs.get(again.out.strip())
    assert (new.record.resumes, [step.total for step in new.steps]) == (run.id, [0, 1])
    twice = prompt("runs", "resume", run.id)
    assert (twice.code, twice.out.strip()) == (0, new.id)
    farm.drain()
    late = prompt("runs", "resume", run.id)
    assert (late.code, late.out) == (5, "")
    assert f"was resumed by run {new.id}, which ended FAILED; resume that one" in late.err
    more = json.loads(prompt("runs", "resume", new.id, "--json").out)
    assert more["resumes"] == new.id
    early = prompt("runs", "resume", more["id"])
    assert early.code == 5
    assert "only one that has ended resumes" in early.err


@pytest.mark.parametrize("command", ["show", "watch", "cancel", "resume"])
def test_an_id_that_is_not_there_is_exit_code_4(prompt, here, command):
    missing = prompt("runs", command, "0194")
    assert (missing.code, missing.out) == (4, "")
    assert missing.err == "milepost: there is no run '0194'\n"


# Bars


def test_a_terminal_shows_a_bar_for_each_step(prompt, farm):
    from rich.console import Console

    from milepost.cli.bars import stepwise

    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    run = farm.runs.get(started(prompt, "harvest", '{"fields": 4}'))
    with stepwise(console, pytest.fail) as show:
        show(run)
        farm.drain()
        show(run.refresh())
    last = screen.getvalue()[-1500:]
    assert "mow      " in last
    assert "4/4" in last
    assert "1 failed" in last
    assert "3 waiting" in last


def test_watch_draws_on_a_terminal(prompt, farm, monkeypatch):
    run = started(prompt, "sale")
    farm.drain()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    seen = prompt("runs", "watch", run)
    assert (seen.code, seen.out) == (0, "null\n")
    assert "━" in seen.err
    assert "sell" in seen.err


def test_lines_come_when_something_changed_and_not_too_often(prompt, farm, monkeypatch):
    from milepost.cli import bars

    monkeypatch.setattr(bars, "LINE_SECONDS", 0)
    run, told = farm.runs.get(started(prompt, "sale")), []
    show = bars.lines(told.append)
    show(run)
    show(run)
    monkeypatch.setattr(bars, "LINE_SECONDS", 1e9)
    run.cancel()
    show(run)  # the end is always told
    assert [line.split(":")[0] for line in told] == ["QUEUED 0%", "CANCELLED"]
    other, later = farm.runs.get(started(prompt, "harvest", '{"fields": 1}')), []
    show = bars.lines(later.append)
    show(other)
    farm.drain()
    show(other.refresh())
    assert len(later) == 1


def test_a_step_cannot_command_the_terminal(prompt, farm):
    from milepost.cli.bars import lines

    odd = farm.batch("odd")
    odd.step(lambda: None, name="\x1b[31mred")
    told = []
    lines(told.append)(odd.start())
    assert "\x1b" not in told[0]
