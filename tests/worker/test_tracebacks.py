"""A failed attempt can be read: where it failed, in which line, and which others failed alike."""

import importlib.util
import re
import sys
import time

import pytest

import milepost as mp
from milepost import tracebacks
from milepost.outcome import Problem
from milepost.policy import Policy, problem_of
from milepost.tracebacks import TEXT_LIMIT, fingerprint, hidden, located

pytestmark = pytest.mark.in_turn

SHOP = """
import json


def check(x):
    assert x > 3


def parse(text):
    return json.loads(text)


def login(url):
    try:
        raise ConnectionError(f"cannot reach {url}")
    except ConnectionError as error:
        raise RuntimeError("no session") from error


def deep(n):
    if n:
        deep(n - 1)
    raise ValueError("x" * 9000)
"""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Import a module of that text, from a folder of its own, as `till`."""

    def load(text=SHOP, folder="a"):
        path = tmp_path / folder / "till.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("till", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "till", module)
        spec.loader.exec_module(module)
        return module

    return load


def failed(function, *args, code="error"):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whichever it is
        function(*args)
    error = caught.value
    problem = Problem(type=type(error).__qualname__, message=str(error), code=code)
    return located(problem, error)


def test_an_error_without_a_text_says_its_line(shop):
    problem = failed(shop().check, 2)
    assert problem.message == "assert x > 3"
    assert problem.place == "till.py:6 in check"
    assert '  File "till.py", line 6, in check\n    assert x > 3\n' in problem.traceback


def test_a_fingerprint_knows_neither_lines_nor_folders_nor_values(shop):
    here = failed(shop().check, 2).fingerprint
    assert here == failed(shop("\n\n# moved\n" + SHOP, folder="b").check, 1).fingerprint
    assert here != failed(shop(SHOP.replace("check", "test")).test, 2).fingerprint
    assert here != failed(shop().check, 2, code="limits").fingerprint
    # What a library raises is told by who called it.
    assert failed(shop().parse, "{").place == "till.py:10 in parse"
    assert failed(shop().parse, "{").fingerprint == failed(shop().parse, "]").fingerprint
    assert fingerprint(Problem(type="TimedOut", message=""), kind="convert") == "TimedOut@convert"


def test_a_long_word_is_read_once():
    """Read from each of its letters it would keep a worker busy for minutes."""
    begun = time.monotonic()
    for text in ("x" * 100_000, "token" * 20_000, "token " * 20_000):
        assert hidden(text) == text
    assert time.monotonic() - begun < 10


def test_secrets_are_hidden_in_every_text_of_a_chain(shop):
    problem = failed(shop().login, "https://ada:hunter2@shop.example/?api_key=abc123")
    assert "The above exception was the direct cause" in problem.traceback
    assert "https://ada:[redacted]@shop.example/?api_key=[redacted]" in problem.traceback
    assert "hunter2" not in problem.traceback
    assert hidden("Authorization: Bearer abcdefghijkl, 3 tokens") == (
        "Authorization: Bearer [redacted], 3 tokens"
    )


def test_a_traceback_is_bounded(shop):
    assert len(failed(shop().deep, 300).traceback) <= TEXT_LIMIT

    def chained(links: int) -> None:
        try:
            if links:
                chained(links - 1)
        finally:
            raise RuntimeError("x" * 5_000)

    problem = failed(chained, 10)
    assert len(problem.traceback) <= TEXT_LIMIT
    assert problem.traceback.startswith("  … (its beginning was left out)\n")


def test_a_long_text_leaves_room_for_the_frames():
    """A database's error that quotes its statement took the place of every frame."""

    def insert() -> None:
        raise RuntimeError("INSERT INTO stones VALUES " + "(1, 2), " * 5_000)

    problem = failed(insert)
    assert re.search(r'File "\S+", line \d+, in insert\n    raise Runtime', problem.traceback)
    assert problem.traceback.endswith("(38,026 more characters)\n")


def test_no_more_is_read_of_a_large_text_than_is_shown(monkeypatch):
    """The worker stood still meanwhile: two seconds for ten megabytes."""
    read = []
    monkeypatch.setattr(tracebacks, "hidden", lambda text: read.append(len(text)) or hidden(text))
    error = ValueError("x" * 1_000_000)
    problem = located(problem_of(error, Policy(), attempt=1), error)
    assert max(read) <= 2 * TEXT_LIMIT
    assert problem.traceback.endswith("(998,000 more characters)\n")


def test_secrets_are_hidden_in_groups_and_notes():
    """Text of several lines within a group, and a note, were stored with the password in them."""

    def login() -> None:
        error = ValueError("refused:\npassword=hunter2")
        error.add_note("with api_key=hunter3")
        raise ExceptionGroup("all", [error])

    problem = failed(login)
    assert "hunter" not in problem.traceback
    assert problem.traceback.count("[redacted]") == 2


def test_frames_of_the_engine_are_folded(app, shop, capsys):
    till = shop()

    @app.job(retries=1, retry_delay=0)
    def sell(ctx: mp.Context, x: int) -> None:
        ctx.step("check", till.check, x)

    job = sell.submit(2)
    app.drain(5)
    first, second = job.failures
    assert (first.attempt, second.attempt) == (1, 2)
    assert (first.type, first.message, first.code) == ("AssertionError", "assert x > 3", "error")
    assert first.place == "till.py:6 in check"
    assert first.fingerprint == second.fingerprint == job.refresh().record.fingerprint
    lines = first.traceback.splitlines()
    folded = [line.strip() for line in lines if " of milepost" in line]
    assert len(folded) == 2
    assert all(re.fullmatch(r"… \d+ frames? of milepost", line) for line in folded)
    assert not any('File "milepost/' in line for line in lines)
    assert job.error.message == "assert x > 3"

    logged = capsys.readouterr().err
    assert "error='AssertionError: assert x > 3' at='till.py:6 in check'" in logged
    assert logged.count("Traceback (most recent call last)") == 1  # once a minute
