"""In which order tests run: what takes long first, and what waits beside what computes.

Each runner gets an equal piece of the list, and begins at its front; those that are done early
take from the ends of the others' pieces. So what takes seconds stands at the front of each piece:
nobody waits for it at the end. The other modules are mixed: those of a folder are alike, and would
all wait, or all compute, at the same time.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from zlib import crc32

import pytest

__all__ = ["LONG", "in_order"]

LONG = (
    "examples/fhir_import/test_fhir_import.py",
    "tests/app/test_async_twins.py",
    "tests/app/test_forked.py",
    "tests/app/test_on_failure.py",
    "tests/app/test_typing.py",
    "tests/cli/test_bench.py",
    "tests/cli/test_demo.py",
    "tests/cli/test_reload.py",
    "tests/cli/test_tokens_commands.py",
    "tests/relay/test_brokers_page.py",
    "tests/relay/test_rabbitmq_broker.py",
    "tests/specs/test_a_page.py",
    "tests/test_docs.py",
    "tests/test_dump_restore.py",
    "tests/test_rolling_upgrade.py",
    "tests/testing/test_crash_everywhere.py",
    "tests/testing/test_examples.py",
    "tests/worker/test_isolated.py",
    "tests/worker/test_network.py",
    "tests/worker/test_poison.py",
    "tests/worker/test_sigterm.py",
    "tests/worker/test_store_away.py",
)
"""Modules with tests that take seconds, besides the proofs."""

TOGETHER = "tests/web/browser/"
"""What shares more than a module does: a browser, and an evening in a shop."""


def in_order(items: Sequence[pytest.Item], runners: int) -> list[pytest.Item]:
    """Put tests in the order in which so many runners are done with them soonest."""
    long = [item for item in items if _takes_long(item)]
    short = [item for item in items if not _takes_long(item)]
    if runners < 2:
        return [*long, *short]
    fronts: list[list[pytest.Item]] = [[] for _ in range(runners)]
    for number, unit in enumerate(_mixed(long)):
        fronts[number % runners] += unit
    rest = [item for unit in _mixed(short) for item in unit]
    found: list[pytest.Item] = []
    left = len(items)
    for number, front in enumerate(fronts):
        piece = left // (runners - number)  # as xdist cuts them
        more = max(0, piece - len(front))
        found += [*front, *rest[:more]]
        del rest[:more]
        left -= piece
    return [*found, *rest]


def _takes_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("prove") is not None or item.nodeid.split("::")[0] in LONG


def _mixed(items: Sequence[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """List the modules, the same way every day, next to others than their neighbours."""
    units = [(unit, list(same)) for unit, same in groupby(items, _unit)]
    for _, same in sorted(units, key=lambda unit: crc32(unit[0].encode())):
        yield same


def _unit(item: pytest.Item) -> str:
    return TOGETHER if item.nodeid.startswith(TOGETHER) else item.nodeid.split("::")[0]
