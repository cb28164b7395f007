"""Which stores may be opened under pytest: those made for tests, never the real one.

The plugin sets a variable, so that programs which a test starts are held to it too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from milepost.errors import Invalid

if TYPE_CHECKING:
    from milepost.address import StoreUrl

ONLY = "MILEPOST_TEST_STORES"
"""Patterns of addresses, one a line; without it every store may be opened."""
ALL = "MILEPOST_ALLOW_STORE"


def check_allowed(url: "StoreUrl") -> None:
    """Refuse a store that was not made for tests, while tests run."""
    patterns = os.environ.get(ONLY)
    if patterns is None or os.environ.get(ALL) == "1":
        return
    import tempfile  # noqa: PLC0415 - loads much, and is for tests alone

    file = os.path.abspath(url.target) if url.dialect == "sqlite" else None  # noqa: PTH100 - as typed
    if _is_allowed(url, file, tempfile.gettempdir(), patterns):
        return
    raise Invalid(
        f"{url} is not a store made for tests, and pytest is running: use the fixture milepost_app "
        f"or milepost.testing.fresh_store(app), or allow it by milepost_allow = {url} in "
        f"pytest.ini, or every store by {ALL}=1"
    )


@contextmanager
def allowed(pattern: str) -> Iterator[None]:
    """Let stores of that address be opened for the time of the block; they are made for tests."""
    _change(add=pattern)
    try:
        yield
    finally:
        _change(remove=pattern)


def _change(*, add: str | None = None, remove: str | None = None) -> None:
    known = os.environ.get(ONLY)
    if known is None:
        return
    patterns = [pattern for pattern in known.splitlines() if pattern != remove]
    os.environ[ONLY] = "\n".join(patterns if add is None else [*patterns, add])


@lru_cache(maxsize=64)
def _is_allowed(url: "StoreUrl", file: str | None, folder: str, patterns: str) -> bool:
    """Look at a store's address once: a test opens its store many times."""
    whole = None if file is None else os.path.realpath(file)
    if whole is not None and Path(whole).is_relative_to(os.path.realpath(folder)):
        return True
    spellings = _spellings(url, whole)
    known = filter(None, patterns.splitlines())
    return any(fnmatchcase(spelling, pattern) for pattern in known for spelling in spellings)


def _spellings(url: "StoreUrl", file: str | None) -> set[str]:
    """Give what a pattern may match: as it is printed, as it is typed, and a file's whole path."""
    whole = set() if file is None else {f"sqlite:///{file}"}
    return {str(url), unquote(url.typed), *whole}
