"""The page that goes through the five specs row by row: it leaves none out, and its tests exist."""

import re

import pytest

from tests.support.spec_pages import ROOT, SPECS, Row, defined_in, rows

PAGE = (ROOT / "docs" / "specs" / "coverage.md").read_text(encoding="utf-8")
HAZARDS = (ROOT / "docs" / "specs" / "hazards.md").read_text(encoding="utf-8")
MARK = re.compile(r"as asked|otherwise: H-\d+(, H-\d+)*|not yet: .{20,}")
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def told(spec):
    """Read the page's rows about a spec: the row, its mark, and the tests as they stand there."""
    part = re.search(rf"^## {spec}\. .*?(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    for section in re.split(r"^### ", part[0], flags=re.MULTILINE)[1:]:
        heading, *lines = section.splitlines()
        for line in lines:
            if line.startswith("| ") and not line.startswith("| row "):
                text, mark, shown = line.strip("| ").split(" | ")
                yield Row(spec, heading, text), mark, shown


def marks(spec):
    return [mark.partition(":")[0] for _, mark, _ in told(spec)]


each_spec = pytest.mark.parametrize("spec", SPECS)


@each_spec
def test_every_row_of_the_spec_is_on_the_page_once_and_in_order(spec):
    assert [row for row, _, _ in told(spec)] == list(rows(spec))


@each_spec
def test_every_row_is_as_asked_or_says_why_not(spec):
    assert [row.text for row, mark, _ in told(spec) if not MARK.fullmatch(mark)] == []


@each_spec
def test_every_hazard_that_a_mark_names_is_explained(spec):
    named = {hazard for _, mark, _ in told(spec) for hazard in re.findall(r"H-\d+", mark)}
    assert named
    assert named <= set(re.findall(r"^\| (H-\d+) \|", HAZARDS, re.MULTILINE))


@each_spec
def test_every_row_names_tests_and_they_exist(spec):
    for row, _, shown in told(spec):
        named = NAMED.findall(shown)
        assert named, row.text
        assert NAMED.sub("", shown).strip(", ") == "", row.text
        for path, name in named:
            assert name in defined_in(ROOT / path), f"{path}::{name}"


def test_the_sums_at_its_head_are_those_of_its_rows():
    for spec, path in SPECS.items():
        counts = [marks(spec).count(mark) for mark in ("as asked", "otherwise", "not yet")]
        row = " | ".join(map(str, [sum(counts), *counts]))
        assert f"\n| [{spec}]({path.name}) | {row} |\n" in PAGE


@pytest.mark.parametrize(
    ("spec", "kinds"),
    {
        "A": [r"GATE_WAITING → READY: on prior", "state ERRORED", "note on ERRORED: ", "^Eat the"],
        "B": [
            "^run_metadata: completed_at TIMESTAMP",
            "^Failed · ",
            "^-- Active runs SELECT",
            r"^00:15 · Completed · ",
            "^// Service Bus will retry",
            "^state AdvancingWatermark",
        ],
        "C": [
            "^RESPONSE → WAITING: state pending",
            "^step 8: C to T: POST",
            "^get_next: ",
            "^FAIL",
        ],
        "D": [
            "^RETRYING → QUEUED Trigger",
            "^errorType · Enum",
            "^No orphaned jobs: ",
            "^IF error",
        ],
        "E": [
            "^Claiming → Polling: Trigger",
            "^Audit Completeness: ",
            "^Any · ErrorWait",
            "^Retries: ",
        ],
    }.items(),
)
def test_every_kind_of_row_is_found(spec, kinds):
    texts = [row.text for row in rows(spec)]
    assert [kind for kind in kinds if not any(re.search(kind, text) for text in texts)] == []
