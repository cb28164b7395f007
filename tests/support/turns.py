"""What stands above the store takes turns: each such test on one database, on both when proving.

Pages, commands, batches, requests and receivers add no SQL of their own: what they ask is asked
on both databases below them. Where a test is about SQL, or about callers at the same time, it is
marked `both_stores`; elsewhere whatever stands above the store is marked `in_turn`.

What runs on every server at hand runs on the newest every day; on older ones, too, where it is
marked `every_version`: what they are most likely to refuse.
"""

from collections.abc import Iterator
from zlib import crc32

import pytest

from tests.support.databases import backend_names, older_names
from tests.support.prove import PROVING

__all__ = ["take_turns"]

FOLDERS = (
    *("tests/batch/", "tests/cli/", "tests/relay/", "tests/request/", "tests/specs/"),
    "tests/web/",
)


def take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave a test out on the databases whose turn it is not; when proving they are the proof."""
    others = [*_of_other_turns(items), *_on_older_servers(items)]
    if PROVING:
        for item in others:
            item.add_marker(pytest.mark.prove)
        return
    if others:
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=list(left_out))


def _on_older_servers(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    older = set(older_names())
    for item in items:
        its_own = {part for given in _ids(item) for part in given.split("-")}
        if its_own & older and item.get_closest_marker("every_version") is None:
            yield item


def _of_other_turns(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Name all but one of the databases of each test: there may be one alone that it is for."""
    known, older = set(backend_names()), set(older_names())
    alike: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        its_own = [part for part in _ids(item) if part in known]
        if len(its_own) != 1 or not _is_above(item):
            continue
        rest = [part for part in _ids(item) if part not in known]
        name = "-".join([item.nodeid.split("[")[0], *rest])
        alike.setdefault(name, {})[its_own[0]] = item
    for name, stores in alike.items():
        daily = [store for store in stores if store not in older] or list(stores)
        # The same every day, whatever the order; and the parameters of a test fall on both.
        chosen = daily[crc32(name.encode()) % len(daily)]
        yield from (item for store, item in stores.items() if store != chosen)


def _is_above(item: pytest.Item) -> bool:
    above = item.nodeid.startswith(FOLDERS) or item.get_closest_marker("in_turn") is not None
    return above and item.get_closest_marker("both_stores") is None


def _ids(item: pytest.Item) -> list[str]:
    """Name the parameters of a test."""
    given = getattr(item, "callspec", None)
    return list(given._idlist) if given is not None else []
