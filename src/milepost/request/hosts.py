"""How many requests one worker process sends to a host at a time, and how often."""

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


class Busy(Exception):  # noqa: N818 - what the history shows
    """A host whose turn did not come in time."""


class Limit(msgspec.Struct, frozen=True):
    """What one host is spared."""

    concurrency: int
    rate: float | None = None


class _Place:
    """One host, in one event loop."""

    def __init__(self, limit: Limit) -> None:
        self._free = asyncio.Semaphore(limit.concurrency)
        self._gap = None if limit.rate is None else 1.0 / limit.rate
        self._next = 0.0
        self.users = 0

    async def take(self) -> None:
        """Wait for a free place, and for the moment that the rate allows."""
        await self._free.acquire()
        try:
            await self._turn()
        except BaseException:
            self._free.release()
            raise

    def leave(self) -> None:
        """Free the place."""
        self._free.release()

    @property
    def has_rate(self) -> bool:
        """Whether there is something to remember when nobody uses it."""
        return self._gap is not None

    async def _turn(self) -> None:
        """Wait for the next free moment; those who come together get one each, evenly apart."""
        if self._gap is None:
            return
        now = asyncio.get_running_loop().time()
        mine = max(now, self._next)
        self._next = mine + self._gap
        if mine > now:
            await asyncio.sleep(mine - now)


class Hosts:
    """The hosts that requests go to from here; one that nobody uses is forgotten."""

    def __init__(self, default: Limit, limits: dict[str, Limit]) -> None:
        self._default = default
        self._limits = limits
        self._places: dict[str, _Place] = {}

    @asynccontextmanager
    async def slot(self, host: str, *, within: float | None = None) -> AsyncIterator[None]:
        """Wait until the host may be sent one more request, or raise `Busy` after so long."""
        place = self._places.get(host)
        if place is None:
            place = self._places[host] = _Place(self._limits.get(host, self._default))
        place.users += 1
        try:
            await _taken(place, host, within)
            try:
                yield
            finally:
                place.leave()
        finally:
            place.users -= 1
            # Forgetting a rate would forget when it was last used.
            if not place.users and not place.has_rate:
                del self._places[host]


async def _taken(place: _Place, host: str, within: float | None) -> None:
    try:
        async with asyncio.timeout(within):
            await place.take()
    except TimeoutError:
        raise Busy(f"{host} was busy for {within:g} s") from None
