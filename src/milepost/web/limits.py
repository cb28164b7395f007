"""Limits on how often callers come."""

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from math import ceil
from typing import Any

from milepost.web.problems import Problem

WRONG_TOKENS_RATE = 5.0
"""How many wrong tokens a second an address may present before it is slowed."""

WRONG_TOKEN_SECONDS = 1.0
WRONG_TOKENS_WAITING = 100
"""How many of their senders are kept waiting at a time; further ones are answered at once."""

CALLERS = 10_000
"""How many callers' rates are remembered."""


class RateLimiter:
    """So many requests a second for each caller, on the average; twice as many at once.

    They are counted in this process: with several servers each counts its own.
    """

    def __init__(self, rate: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """Take a rate; zero is for no limit."""
        self._rate = rate
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, rate: float | None = None) -> None:
        """Count a request, or raise a 429 that says when to come again.

        A caller's own `rate` takes the place of the usual one.
        """
        rate = self._rate if rate is None else rate
        if not rate:
            return
        now = self._now()
        most = max(2 * rate, 1.0)
        left, at = self._left.pop(caller, (most, now))
        left = min(most, left + (now - at) * rate)
        allowed = left >= 1
        self._left[caller] = (left - allowed, now)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        if not allowed:
            detail = f"more than {rate:g} requests a second; slow down"
            raise Problem(429, detail, headers={"Retry-After": str(ceil((1 - left) / rate))})


class WrongTokenThrottle:
    """Slows addresses that keep presenting wrong tokens.

    A right token is never counted here: many callers may share an address, and one of them must not
    lock the others out. There is nothing to guess in 256 random bits; this saves the server's time.
    """

    def __init__(
        self, rate: float = WRONG_TOKENS_RATE, *, seconds: float = WRONG_TOKEN_SECONDS
    ) -> None:
        self._rates = RateLimiter(rate)
        self._seconds = seconds
        self._waiting = 0

    async def count(self, scope: MutableMapping[str, Any]) -> None:
        """Count a wrong token; beyond a few a second the answer comes late, and is a 429."""
        try:
            self._rates.take(network(scope))
        except Problem as problem:
            if self._waiting < WRONG_TOKENS_WAITING:
                self._waiting += 1
                try:
                    await asyncio.sleep(self._seconds)
                finally:
                    self._waiting -= 1
            detail = "too many wrong tokens came from this address; slow down"
            raise Problem(429, detail, headers=problem.headers) from None


def network(scope: MutableMapping[str, Any]) -> str:
    """Name where a caller is: an address, or the network of one that has as many as it likes."""
    host = str((scope.get("client") or ("",))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host
