"""What stands above the store takes turns: each such test on one database, on both when proving.

Pages, commands, batches, requests and receivers add no SQL of their own: what they ask is asked
on both databases below them. Where a test is about SQL, or about callers at the same time, it is
marked `both_stores`; elsewhere whatever stands above the store is marked `in_turn`.

What runs on every server at hand runs on the newest every day; on older ones, too, where it is
marked `every_version`: what they are most likely to refuse.
"""

from zlib import crc32

import pytest

from tests.support.databases import backend_names, older_names
from tests.support.prove import PROVING

__all__ = ["take_turns"]

FOLDERS = (
    *("tests/batch/", "tests/cli/", "tests/relay/", "tests/request/", "tests/specs/"),
    "tests/web/",
)
CHOSEN = "each_shop"
"""What chooses its databases itself."""


def take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a test out on the databases whose turn it is not; when proving they are the proof."""
    older = set(older_names())
    others = [item for item in items if _is_anothers_turn(item) or _is_for_proofs(item, older)]
    if PROVING:
        for item in others:
            item.add_marker(pytest.mark.prove)
        return
    if others:
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=others)


def _is_for_proofs(item: pytest.Item, older: set[str]) -> bool:
    if not (parameters := getattr(item, "callspec", None)):
        return False
    its_own = {part for given in parameters._idlist for part in given.split("-")}
    return bool(its_own & older) and item.get_closest_marker("every_version") is None


def _is_anothers_turn(item: pytest.Item) -> bool:
    above = item.nodeid.startswith(FOLDERS) or item.get_closest_marker("in_turn") is not None
    if not above or item.get_closest_marker("both_stores") is not None:
        return False
    if not (parameters := getattr(item, "callspec", None)):
        return False
    known, older = backend_names(), older_names()
    names = [name for name in known if name not in older]
    its_own = [value for value in parameters.params.values() if value in known]
    if not its_own or CHOSEN in parameters.params:
        return False
    # The same every day, whatever the order; and the parameters of a test fall on both.
    rest = [part for part in parameters._idlist if part not in its_own]
    turn = crc32("-".join([item.nodeid.split("[")[0], *rest]).encode())
    return names[turn % len(names)] not in its_own
