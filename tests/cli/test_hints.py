"""What a command tells people to type can be typed: the hint is copied, run, and works."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

BATCH = """
import dataclasses
import milepost as mp

app = mp.App("sqlite:///sub folder/own.db")


@dataclasses.dataclass
class Params:
    folder: str
    depth: int = 1


load = app.batch("load", params=Params)


@load.step
def find(params: Params) -> None: ...


@app.job
def convert(document: str, *, format: str = "pdf", pages: list[int] | None = None) -> str:
    return f"{document}.{format}"


@app.job
def resize(width: int, *, keep: bool) -> int:
    return width
"""


@pytest.fixture
def own(folder):
    """An app whose store no setting names, in a folder that a shell must quote."""
    (folder / "sub folder").mkdir()
    (folder / "own.py").write_text(BATCH)
    return folder


def copied(text: str) -> list[list[str]]:
    """Find the commands in backquotes, as a shell would take them apart."""
    return [shlex.split(found)[1:] for found in re.findall(r"`(milepost [^`]+)`", text)]


def test_what_submit_says_works_when_it_is_copied(prompt, own):
    told = prompt("submit", "own.py", "convert", "a").err
    [wait] = copied(told)
    assert prompt(*wait, "--timeout", "0").code == 124  # found, and not run yet


def test_what_start_says_works_when_it_is_copied(prompt, own):
    [watch] = copied(prompt("batches", "start", "own.py", "load", "--set", "folder=x").err)
    assert prompt(*watch, "--timeout", "0").code == 124


def test_what_an_ended_run_says_works_when_it_is_copied(prompt, own):
    run = prompt("batches", "start", "own.py", "load", "--set", "folder=x").out.strip()
    store = ("--store", "sqlite:///sub folder/own.db")
    assert prompt("runs", "cancel", run, *store).code == 0
    [show, resume] = copied(prompt("runs", "watch", run, *store).err)
    assert prompt(*show).code == 0
    resumed = prompt(*resume)
    assert resumed.code == 0
    [watch] = copied(resumed.err)
    assert prompt(*watch, "--timeout", "0").code == 124


def test_what_dev_says_works_when_it_is_copied(prompt, own, monkeypatch):
    from milepost.app import App

    monkeypatch.setattr(App, "run_worker", lambda *_: None)
    said = dict(line.split(maxsplit=1) for line in prompt("dev", "own.py").out.splitlines())
    assert said["submit"] == "milepost submit own.py convert DOCUMENT"
    assert prompt(*shlex.split(said["submit"])[1:]).code == 0
    assert prompt(*shlex.split(said["look"])[1:]).code == 0
    start = said["batch"].removeprefix("load: ")
    assert prompt(*shlex.split(start)[1:], "--set", "depth=2").code == 0


def test_dev_shows_values_that_fit(prompt, own, monkeypatch):
    from milepost.app import App

    text = (own / "own.py").read_text().replace("convert", "zonvert")
    (own / "typed.py").write_text(text)
    monkeypatch.setattr(App, "run_worker", lambda *_: None)
    [line] = [x for x in prompt("dev", "typed.py").out.splitlines() if x.startswith("submit")]
    assert line == "submit  milepost submit typed.py resize 1 --set keep=true"
    assert prompt(*shlex.split(line)[2:]).code == 0


def test_what_a_store_that_is_missing_says_works_when_it_is_copied(prompt, own):
    (own / "new one.db").touch()
    [migrate] = copied(prompt("jobs", "ls", "--store", "sqlite:///new one.db").err)
    assert prompt(*migrate).code == 0
    assert prompt("jobs", "ls", "--store", "sqlite:///new one.db").code == 0


def test_the_store_of_the_environment_need_not_be_named(prompt, own, monkeypatch):
    monkeypatch.setenv("MILEPOST_DATABASE_URL", "sqlite:///sub folder/own.db")
    [wait] = copied(prompt("submit", "own.py", "convert", "a").err)
    assert "--store" not in wait


def test_a_password_is_never_part_of_a_hint():
    from milepost.address import StoreUrl
    from milepost.config import command_for

    url = StoreUrl.parse("postgresql://me:hunter2@h:5433/db?sslmode=require&password=hunter2")
    told = command_for("milepost migrate", url, {})
    assert "hunter2" not in told
    assert shlex.split(told)[3] == (
        "postgresql://me:PASSWORD@h:5433/db?sslmode=require&password=PASSWORD"
    )


def test_a_batch_given_to_submit_is_told_with_the_app(prompt, own):
    [start] = copied(prompt("submit", "own.py", "load").err)
    assert start == ["batches", "start", "own.py", "load"]


def test_a_wait_names_the_app_whose_worker_is_missing(prompt, own, monkeypatch):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", -1.0)
    late = prompt("submit", "own.py", "convert", "a", "--wait", "--timeout", "0")
    assert "start one with `milepost worker own.py`" in late.err


# What was typed wrongly


def test_a_parameter_that_is_not_there_is_not_blamed_on_quotes(prompt, own):
    answer = prompt("submit", "own.py", "convert", "a", "--set", "formt=1")
    assert answer.code == 2
    assert "unexpected keyword argument 'formt'" in answer.err
    assert "'formt'. Did you mean format?" in answer.err
    assert "was read as JSON" not in answer.err


def test_a_number_where_a_text_is_wanted_is_told_how_to_quote(prompt, own):
    answer = prompt("submit", "own.py", "convert", "a", "--set", "format=1")
    assert "1 was read as JSON, and as a text it is '\"1\"'" in answer.err
    placed = prompt("submit", "own.py", "convert", "42")
    assert "42 was read as JSON" in placed.err
    other = prompt("submit", "own.py", "resize", "wide", "--set", "keep=1")
    assert "was read as JSON" not in other.err


def test_json_that_does_not_parse_is_told_with_the_place(prompt, own):
    answer = prompt("submit", "own.py", "convert", "a", "--set", "pages=[1,")
    assert answer.code == 2
    assert "[1, was read as a text, because it is no JSON: Expecting value: line 1" in answer.err


@pytest.mark.parametrize("broken", ["{", '{"folder": }', "[1,", '"open'])
def test_parameters_that_do_not_parse_say_so_and_where(broken, prompt, own):
    answer = prompt("batches", "start", "own.py", "load", broken)
    assert (answer.code, answer.out) == (2, "")
    assert "are no JSON: " in answer.err
    assert "line 1 column" in answer.err


def test_a_word_for_parameters_says_what_is_wanted(prompt, own):
    answer = prompt("batches", "start", "own.py", "load", "folder")
    assert "'folder' is a text: give one JSON document, or each by --set NAME=VALUE" in answer.err


# Where it cannot be written


@pytest.mark.parametrize("words", [("--help",), ("machine", "job"), ("config", "show", "--json")])
@pytest.mark.skipif(sys.platform != "linux", reason="a full device is Linux's")
def test_an_output_that_cannot_be_written_is_one_line_and_a_code(words, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "milepost.cli", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "milepost: the output cannot be written: No space left on device\n"
