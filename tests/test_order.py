"""The order of tests: nothing is lost, what takes long begins, modules stay whole and mixed."""

from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from tests.support.order import LONG, TOGETHER, in_order


@dataclass(frozen=True)
class Item:
    """As much of a test as its order needs."""

    nodeid: str
    proof: bool = False

    def get_closest_marker(self, name: str) -> bool | None:
        return True if name == "prove" and self.proof else None


def of(module: str, count: int, **given: bool) -> list[Item]:
    return [Item(f"{module}::test_{number}", **given) for number in range(count)]


ITEMS = [
    *(item for number in range(40) for item in of(f"tests/a/test_{number}.py", number % 7 + 1)),
    *(item for number in range(9) for item in of(f"tests/b/test_{number}.py", 3, proof=True)),
    *(item for module in LONG for item in of(module, 2)),
    *(item for name in ("live", "plain") for item in of(f"{TOGETHER}test_{name}.py", 5)),
]


def module_of(item: Item) -> str:
    return item.nodeid.split("::")[0]


def pieces(items: list[Item], runners: int) -> list[list[Item]]:
    """Cut a list as xdist does."""
    cut, rest = [], list(items)
    for left in range(runners, 0, -1):
        size = len(rest) // left
        cut.append(rest[:size])
        rest = rest[size:]
    return cut


@pytest.mark.parametrize("runners", [1, 2, 5, 64])
def test_every_test_runs_once_and_the_same_way_every_day(runners):
    found = in_order(ITEMS, runners)
    assert sorted(found, key=str) == sorted(ITEMS, key=str)
    assert found == in_order(ITEMS, runners)


def test_each_runner_begins_with_its_share_of_what_takes_long():
    for piece in pieces(in_order(ITEMS, 5), 5):
        long = [item.proof or module_of(item) in LONG for item in piece]
        assert 5 < sum(long) < 30
        assert long == sorted(long, reverse=True)


def test_modules_stay_whole_where_no_piece_ends_and_neighbours_are_mixed():
    found = in_order(ITEMS, 5)
    modules = [module for module, _ in groupby(found, module_of)]
    assert len(modules) <= len(set(modules)) + 4
    short = [module for module in modules if module.startswith("tests/a/")]
    assert sum(pair != tuple(sorted(pair)) for pair in pairwise(short)) > 10
    shared = [at for at, item in enumerate(found) if item.nodeid.startswith(TOGETHER)]
    assert shared[-1] - shared[0] == len(shared) - 1


def test_what_is_said_to_take_long_is_there():
    root = Path(__file__).parents[1]
    assert [module for module in LONG if not (root / module).exists()] == []
