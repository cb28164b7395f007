"""Which stores may be opened under pytest: those made for tests, never the real one.

The plugin sets a variable, so that programs which a test starts are held to it too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
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
    if patterns is None or os.environ.get(ALL) == "1" or _is_temporary(url):
        return
    spellings = _spellings(url)
    for pattern in filter(None, patterns.splitlines()):
        if any(fnmatchcase(spelling, pattern) for spelling in spellings):
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


def _is_temporary(url: "StoreUrl") -> bool:
    import tempfile  # noqa: PLC0415 - loads much, and is for tests alone

    folder = Path(os.path.realpath(tempfile.gettempdir()))
    return url.dialect == "sqlite" and Path(os.path.realpath(url.target)).is_relative_to(folder)


def _spellings(url: "StoreUrl") -> set[str]:
    """Give what a pattern may match: as it is printed, as it is typed, and a file's whole path."""
    whole = {f"sqlite:///{os.path.realpath(url.target)}"} if url.dialect == "sqlite" else set()
    return {str(url), unquote(url.typed), *whole}
