"""Limits the concurrency and the rate of requests to each host, in one worker process."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from milepost.errors import Invalid

_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*/\s*(s|m|h)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def read_rate(text: str | None) -> float | None:
    """Read "25/s", "100/m" or "5000/h" as requests per second; None or "" is no limit."""
    if not text:
        return None
    match = _RATE.fullmatch(str(text))
    if match is None or not float(match[1]):
        raise Invalid(f"rate={text!r}: expected a number per s, m or h, such as 25/s")
    return float(match[1]) / _SECONDS[match[2]]


class Busy(Exception):  # noqa: N818 - the word that the history shows
    """A host whose turn did not come in time."""


class HostLimit(msgspec.Struct, frozen=True):
    """How many requests a host gets at a time, and how many a second."""

    concurrency: int
    rate: float | None = None


class _Turns:
    """The turns at one host, in one event loop."""

    def __init__(self, limit: HostLimit) -> None:
        self.free = asyncio.Semaphore(limit.concurrency)
        self.gap = None if limit.rate is None else 1.0 / limit.rate
        self.users = 0
        self._next = 0.0

    async def take(self) -> None:
        """Wait for a free slot, and for the next moment of the rate: one each, evenly apart."""
        await self.free.acquire()
        if self.gap is None:
            return
        now = asyncio.get_running_loop().time()
        mine = max(now, self._next)
        self._next = mine + self.gap
        try:
            if mine > now:
                await asyncio.sleep(mine - now)
        except BaseException:
            self.free.release()
            raise


class Hosts:
    """The hosts that requests go to from here; an unused one is forgotten."""

    def __init__(self, default: HostLimit, limits: dict[str, HostLimit]) -> None:
        self._default = default
        self._limits = limits
        self._turns: dict[str, _Turns] = {}

    @asynccontextmanager
    async def slot(self, host: str, *, within: float | None = None) -> AsyncIterator[None]:
        """Wait until the host may be sent one more request, or raise `Busy` after so long."""
        turns = self._turns.get(host)
        if turns is None:
            turns = self._turns[host] = _Turns(self._limits.get(host, self._default))
        turns.users += 1
        try:
            await _take(turns, host, within)
            try:
                yield
            finally:
                turns.free.release()
        finally:
            turns.users -= 1
            # Forgetting a rate would forget when it was last used.
            if not turns.users and turns.gap is None:
                del self._turns[host]


async def _take(turns: _Turns, host: str, within: float | None) -> None:
    try:
        async with asyncio.timeout(within):
            await turns.take()
    except TimeoutError:
        raise Busy(f"{host} was busy for {within:g} s") from None
