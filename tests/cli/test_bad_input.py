"""What is typed wrong is refused under the name that was typed, before anything else is said."""

import json
import os
import subprocess
import sys

import pytest

from milepost.lifecycle import JobState, RunState


@pytest.fixture
def ended(app):
    """A job that ended and left a final message in the channel `orders`."""
    from milepost.job import Job

    Job(app, app.registry.newest("convert")).options(channel="orders").submit("a")
    app.drain()
    return app


@pytest.mark.parametrize("spelled", [str.lower, str.upper, str.title])
def test_a_state_is_taken_in_any_case(prompt, ended, spelled):
    """H-105."""
    [job] = json.loads(prompt("jobs", "ls", "--state", spelled("succeeded"), "--json").out)
    assert job["state"] == "SUCCEEDED"
    assert prompt("runs", "ls", "--state", spelled("stopping"), "--json").out == "[]\n"
    listed = prompt("channels", "messages", "orders", "--state", spelled("waiting"), "--json")
    assert [message["stands"] for message in json.loads(listed.out)] == ["waiting"]


@pytest.mark.parametrize(
    ("words", "states"), [(["jobs", "ls"], JobState), (["runs", "ls"], RunState)]
)
def test_the_help_lists_the_states(prompt, words, states):
    shown = prompt(*words, "--help").out.upper()
    assert "|".join(states) in shown
    wrong = prompt(*words, "--state", "nowhere")
    assert (wrong.code, wrong.out) == (2, "")
    assert all(state in wrong.err.upper() for state in states)


@pytest.mark.parametrize("words", [["jobs", "ls"], ["runs", "ls"]])
def test_what_is_no_id_is_refused_by_the_options_name(prompt, here, words):
    wrong = prompt(*words, "--before", "01a1e1d7")
    assert (wrong.code, wrong.out) == (2, "")
    assert "'--before': '01a1e1d7' is not the whole id of a job or a run" in wrong.err
    assert "cursor" not in wrong.err


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_for_a_queue_without_a_name_is_refused_before_it_says_a_word(
    prompt, here, processes
):
    for name in ("", " "):
        wrong = prompt("worker", "newcomer.py", "--queue", name, "--processes", processes)
        assert (wrong.code, wrong.out) == (2, "")
        assert wrong.err == f"milepost: queue={name!r} must be a text that is not blank\n"


@pytest.mark.parametrize("name", ["", " ", " , "])
def test_a_token_for_a_queue_without_a_name_is_refused_and_not_bound_to_nothing(prompt, app, name):
    wrong = prompt("tokens", "create", "ci", "--queue", name)
    assert (wrong.code, wrong.out) == (2, "")
    assert "--queue is blank" in wrong.err
    assert prompt("tokens", "ls", "--json").out.strip() == "[]"


@pytest.mark.parametrize("option", ["--timeout", "--deadline", "--start-in"])
def test_seconds_that_are_no_number_are_refused_before_anything_is_stored(prompt, app, option):
    wrong = prompt("submit", "newcomer.py", "convert", "a", "--wait", option, "nan")
    assert (wrong.code, wrong.out) == (2, "")
    assert f"'{option}': 'nan' is not a number of seconds" in wrong.err
    assert app.counts() == {}


def test_the_messages_of_a_channel_that_is_not_there_are_not_found(prompt, ended):
    missing = prompt("channels", "messages", "order")
    assert (missing.code, missing.err) == (
        4,
        "milepost: there is no channel 'order'; there are: orders\n",
    )


@pytest.mark.parametrize("words", ["--help", "jobs ls --help", "machine job", "config show --json"])
def test_a_reader_that_goes_away_ends_the_command_quietly(folder, words):
    """As with `milepost jobs ls | head -1`: SIGPIPE's code, which a shell takes for no failure."""
    done = _unread(words, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_complaint_that_nobody_reads_ends_quietly_too(folder):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _unread("jobs show zzz", stderr=writer)
    finally:
        os.close(writer)
    assert done.returncode == 141


def _unread(words, *, stderr):
    """Run a command whose output is a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            [sys.executable, "-m", "milepost.cli", *words.split()],
            stdout=writer,
            stderr=stderr,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
