"""Tools for users' tests: fresh stores, their clock, crashes at every commit, a context.

Each is loaded when it is first used: pytest imports this package for every test run of everybody
who has Milepost installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.testing.everywhere import crash_everywhere, crash_everywhere_async
    from milepost.testing.fresh import (
        StoreClock,
        address,
        connection,
        fresh_store,
        fresh_store_async,
    )
    from milepost.testing.unit import Context, context

__all__ = [
    "Context",
    "StoreClock",
    "address",
    "connection",
    "context",
    "crash_everywhere",
    "crash_everywhere_async",
    "fresh_store",
    "fresh_store_async",
]

_HOMES = {
    "Context": "unit",
    "context": "unit",
    "crash_everywhere": "everywhere",
    "crash_everywhere_async": "everywhere",
}
"""The others are in `fresh`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'milepost.testing' has no attribute {name!r}")
    value = getattr(import_module(f"milepost.testing.{_HOMES.get(name, 'fresh')}"), name)
    globals()[name] = value
    return value
