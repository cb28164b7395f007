"""What tests need. For users: a fresh store, its clock, crashes at every commit (`__all__`).

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

__all__ = [
    "StoreClock",
    "address",
    "connection",
    "crash_everywhere",
    "crash_everywhere_async",
    "fresh_store",
    "fresh_store_async",
]

_EVERYWHERE = ("crash_everywhere", "crash_everywhere_async")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'milepost.testing' has no attribute {name!r}")
    home = "everywhere" if name in _EVERYWHERE else "fresh"
    value = getattr(import_module(f"milepost.testing.{home}"), name)
    globals()[name] = value
    return value
