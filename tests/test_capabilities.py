"""Code outside the store asks for an ability of a database, never for its name."""

import ast
from pathlib import Path

import pytest

from milepost.address import CAPABILITIES, StoreUrl
from milepost.store.connect import open_driver

SOURCE = Path(__file__).parents[1] / "src" / "milepost"
NAMES = set(CAPABILITIES)
MAY_COMPARE = {
    "address.py": "reads the scheme of a store's address, which is where the dialect comes from",
}


def comparisons(source: str) -> list[int]:
    """Find the lines that compare a dialect, or anything with the name of one."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and not isinstance(node.ops[0], ast.Is | ast.IsNot)
        and any(_is_dialect(side) for side in (node.left, *node.comparators))
    ]


def _is_dialect(side: ast.expr) -> bool:
    named = getattr(side, "attr", getattr(side, "id", None)) == "dialect"
    return named or (isinstance(side, ast.Constant) and side.value in NAMES)


def test_nothing_outside_the_store_compares_dialects():
    found = {
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "store"
        and str(path.relative_to(SOURCE)) not in MAY_COMPARE
        for line in comparisons(path.read_text(encoding="utf-8"))
    }
    assert not found, "ask for an ability, as in `driver.can.listen` (config.Capabilities)"


@pytest.mark.parametrize(
    "source", ["url.dialect == 'x'", "a if dialect != b else c", "'sqlite' == kind"]
)
def test_a_comparison_is_found(source):
    assert comparisons(source) == [1]


def test_each_exception_is_still_needed():
    for name in MAY_COMPARE:
        assert comparisons((SOURCE / name).read_text(encoding="utf-8")), name


def test_an_address_and_its_driver_say_the_same(tmp_path):
    url = StoreUrl.parse(f"sqlite:///{tmp_path}/some.db")
    driver = open_driver(url)
    try:
        assert driver.can is url.can is CAPABILITIES["sqlite"]
    finally:
        driver.close()


def test_no_two_databases_can_the_same():
    assert len(set(CAPABILITIES.values())) == len(CAPABILITIES)
