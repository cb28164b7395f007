"""The measures of the house can tell, and those that were reached are kept."""

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tools import metrics

ROOT = Path(__file__).parents[1]
REACHED = {"sql-files", "function-p90", "function-longest", "option-files", "submit-files"}
"""The others are printed by `python -m tools.metrics`, with their limits."""


@pytest.fixture(scope="module")
def figures() -> dict[str, metrics.Figure]:
    return {figure.name: figure for figure in metrics.measured(ROOT, metrics.LIMITS)}


def test_every_limit_has_its_figure(figures):
    assert figures.keys() == metrics.LIMITS.keys()
    assert all(figure.value > 0 for name, figure in figures.items() if name != "long-modules")


@pytest.mark.parametrize("name", sorted(REACHED))
def test_what_was_reached_is_kept(figures, name):
    assert not figures[name].is_over, (str(figures[name]), figures[name].places)


def test_a_submit_is_followed_from_the_call_to_the_store(figures):
    places = figures["submit-files"].places
    assert places[0] == "job.py"
    assert {"client.py", "store/sqlite.py"} <= set(places)
    assert all((ROOT / "src/milepost" / place).is_file() for place in places)


def test_a_docstring_is_no_line_of_its_function():
    source = dedent('''
        class Thing:
            @property
            def told(self) -> int:
                """Say it.

                At length.
                """
                return 1

            async def silent(self) -> None:
                def inner() -> None: ...

                inner()
    ''')
    assert sorted(metrics.function_lengths(source)) == [("inner", 1), ("silent", 4), ("told", 2)]


@pytest.mark.parametrize(("limit", "code"), [("lines=999999", 0), ("lines=10", 1)])
def test_a_figure_over_its_limit_fails_the_check(limit, code):
    others = [f"--limit={name}=999999" for name in metrics.LIMITS if name != "lines"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.metrics", "--check", *others, f"--limit={limit}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert ("  over  " in done.stdout) == bool(code)
