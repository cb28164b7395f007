"""The page that goes through A line by line: it leaves no edge out, and names tests that exist."""

import re

import pytest
from test_a_batch_states import CHUNK, INSTANCE

from tests.support.spec_pages import ROOT, defined_in

PAGE = (ROOT / "docs" / "explanation" / "batch-states.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| *([A-Z_]*) *\| *([A-Z_]+) *\|.*\| (`test_.*`) \|$", re.MULTILINE)


def edges(heading: str) -> set[tuple[str, str]]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return {(source, target) for source, target, _ in ROW.findall(section)}


@pytest.mark.parametrize(
    ("heading", "diagram"), [("The instance", INSTANCE), ("The work chunk", CHUNK)]
)
def test_the_page_has_every_edge_that_a_draws_and_no_other(heading, diagram):
    assert edges(heading) == diagram.drawn


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    there = frozenset().union(*map(defined_in, (ROOT / "tests").rglob("*.py")))
    assert named - there == set()


def test_every_line_of_the_page_names_a_test():
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    shown = [line for line in lines if not re.match(r"\|(---| from | rule )", line)]
    assert [line for line in shown if "`test_" not in line] == []
