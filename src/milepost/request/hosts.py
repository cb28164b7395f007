"""Waiting for a host: for a place that the store gives, or for a turn in this process.

Limits of hosts hold over all processes; the store keeps them (`store/hosts.py`). A host without a
rule is limited in each worker process by itself, and nobody is asked.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from milepost.store.hosts import Place
from milepost.store.rules import ANY_HOST


class Busy(Exception):  # noqa: N818 - the word that the history shows
    """A host whose turn did not come in time; it comes in so many seconds, probably."""

    def __init__(self, message: str, *, seconds: float = 0.0) -> None:
        super().__init__(message)
        # Not all at once, nor in step with other processes.
        self.seconds = seconds * random.uniform(0.8, 1.2)  # noqa: S311 - jitter


class _Host:
    """Those that send to one host from this event loop, and those that wait."""

    def __init__(self, most: int) -> None:
        self.free = asyncio.Semaphore(most)
        """Turns of a host without a rule."""
        self.head = asyncio.Lock()
        """Held by the first in line, which alone asks the store again."""
        self.ended = asyncio.Event()
        self.over: list[tuple[str, int]] = []
        """The requests, by id and fence, that have ended since the store was last asked."""
        self.users = 0
        self.waiting = 0


class Hosts:
    """The hosts that requests go to from here; an unused one is forgotten."""

    def __init__(self, most: int, *, waiting: int | None = None) -> None:
        self._most = most
        self._waiting = waiting
        """How many may wait for places here, each in a slot of the worker; None: all."""
        self._hosts: dict[str, _Host] = {}
        self._asking = 0
        self.limited: set[str] = set()
        """Hosts that have had a rule when somebody last asked."""

    def wait_all(self) -> None:
        """Let everybody wait here from now on."""
        self._waiting = None

    @asynccontextmanager
    async def slot(self, host: str, *, within: float | None = None) -> AsyncIterator[None]:
        """Wait for a turn at a host that has no rule, or raise `Busy` after so long."""
        found = self._hosts.get(host)
        if found is None:
            found = self._hosts[host] = _Host(self._most)
        found.users += 1
        try:
            if host in self.limited or ANY_HOST in self.limited:
                yield
                return
            await _take(found, host, within)
            try:
                yield
            finally:
                found.free.release()
        finally:
            found.users -= 1
            if not found.users:
                del self._hosts[host]

    def learn(self, host: str, place: Place) -> None:
        """Note whether a host has a rule."""
        if place.is_limited:
            self.limited.add(host)
        else:
            self.limited -= {host, ANY_HOST}

    # Waiting for a place

    @contextmanager
    def asking(self) -> Iterator[bool]:
        """Tell whether one that asks for a place may wait here, should there be none."""
        waiting = self._asking + sum(host.waiting for host in self._hosts.values())
        stays = self._waiting is None or waiting < self._waiting
        self._asking += stays
        try:
            yield stays
        finally:
            self._asking -= stays

    @asynccontextmanager
    async def head(self, host: str) -> AsyncIterator[None]:
        """Wait to be the first of those that wait for a place here."""
        found = self._hosts[host]
        found.waiting += 1
        try:
            async with found.head:
                yield
        finally:
            found.waiting -= 1

    async def rest(self, host: str, seconds: float) -> None:
        """Wait until a request from here has ended, or for so long."""
        found = self._hosts[host]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds * random.uniform(0.6, 1.0)):  # noqa: S311 - jitter
                await found.ended.wait()
        found.ended.clear()

    def leave(self, host: str, job_id: str, fence: int) -> None:
        """Say that a request has ended: one that waits here has its place, without delay."""
        found = self._hosts.get(host)
        if found is not None and found.waiting:
            found.over.append((job_id, fence))
            found.ended.set()

    def take_ended(self, hosts: Iterable[str]) -> list[tuple[str, int]]:
        """Take what the store is to hear of these hosts."""
        ended: list[tuple[str, int]] = []
        for host in hosts:
            if (found := self._hosts.get(host)) is not None:
                ended += found.over
                found.over.clear()
        return ended


async def _take(found: _Host, host: str, within: float | None) -> None:
    try:
        async with asyncio.timeout(within):
            await found.free.acquire()
    except TimeoutError:
        raise Busy(f"{host} was busy for {within:g} s") from None
