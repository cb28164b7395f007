"""Limits on what callers send and how often."""

import time
from collections import OrderedDict
from collections.abc import Callable
from math import ceil

from milepost.web.problems import Problem

__all__ = ["BODY_SECONDS", "DEEPEST", "PAGE_BYTES", "PAGE_LONGEST", "Rates"]

DEEPEST = 100
"""How deep a request's JSON may be nested."""

BODY_SECONDS = 60
"""How long a request's body may take to come."""

PAGE_LONGEST = 1_000
"""How many items a page may hold."""

PAGE_BYTES = 4 * 1024**2
"""How much content a page may hold before it ends early; one item it holds at least."""

CALLERS = 10_000
"""How many callers' rates are remembered."""


class Rates:
    """So many requests a second for each caller, on the average; twice as many at once.

    They are counted in this process: with several servers each counts its own.
    """

    def __init__(self, rate: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """Take a rate; zero is for no limit."""
        self._rate = rate
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count a request, or raise a 429 that says when to come again."""
        if not self._rate:
            return
        now = self._now()
        most = 2 * self._rate
        left, at = self._left.pop(caller, (most, now))
        left = min(most, left + (now - at) * self._rate)
        allowed = left >= 1
        self._left[caller] = (left - allowed, now)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        if not allowed:
            again = ceil((1 - left) / self._rate)
            raise Problem(
                429,
                f"more than {self._rate:g} requests a second; slow down",
                headers={"Retry-After": str(again)},
            )
