"""Hints that there may be work: NOTIFY on PostgreSQL, the file's version on SQLite.

Everything is right without them; they only save waiting.
"""

import asyncio
import sqlite3
from contextlib import suppress
from typing import Any

from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.errors import Unavailable
from milepost.store.connections import connect_async, import_asyncpg
from milepost.store.sqlite import StoreFile

LOOK_SECONDS = 0.004


class FileWatch:
    """Reads whether another connection has changed the file: five microseconds each time."""

    def __init__(self, path: str) -> None:
        self._file = StoreFile(path)
        self._connection = self._opened()
        self._seen = self._version()
        self._woken = asyncio.Event()

    def _opened(self) -> sqlite3.Connection:
        return sqlite3.connect(self._file.path, isolation_level=None, check_same_thread=False)

    def _follow(self) -> None:
        """Watch the file that is there now, if another took its place."""
        with suppress(Unavailable):
            if not self._file.unchanged():
                self._connection.close()
                self._connection = self._opened()
                self._file.follow()

    def _version(self) -> int:
        [(version,)] = self._connection.execute("PRAGMA data_version")
        return int(version)

    async def wait(self, seconds: float) -> set[str]:
        """Return when the file changed, or when the time is over; a file names no queues."""
        self._follow()
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until and not self._woken.is_set():
            version = self._version()
            if version != self._seen:
                self._seen = version
                break
            await asyncio.sleep(min(LOOK_SECONDS, max(0.0, until - loop.time())))
        self._woken.clear()
        return set()

    def wake(self) -> None:
        """End the wait from within this process."""
        self._woken.set()

    async def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class ListenWatch:
    """Listens on a connection of its own; a lost one is opened again at the next rest."""

    def __init__(self, url: StoreUrl, limits: Timeouts) -> None:
        self._url = url
        self._limits = limits
        self._connection: Any = None
        self._hint = asyncio.Event()
        self._queues: set[str] = set()

    async def wait(self, seconds: float) -> set[str]:
        """Return at a notification, or when the time is over, with the queues that were named."""
        await self._listen()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hint.wait()
        self._hint.clear()
        named, self._queues = self._queues, set()
        return named

    async def _listen(self) -> None:
        if self._url.pooled:
            return  # a pooler passes no notification on
        if self._connection is not None and not self._connection.is_closed():
            return
        asyncpg = import_asyncpg()
        try:
            self._connection = await connect_async(self._url, self._limits)
            await self._connection.add_listener(self._url.channel, self._hear)
            # Jobs queued before we listened were notified to nobody.
            self._hint.set()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            self._connection = None

    def _hear(self, _connection: Any, _pid: int, _channel: str, queue: str) -> None:
        if queue:
            self._queues.add(queue)
        self._hint.set()

    def wake(self) -> None:
        """End the wait from within this process."""
        self._hint.set()

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with suppress(Exception):
                await self._connection.close(timeout=1)


Watch = FileWatch | ListenWatch
"""Wakes a worker that rests, at a hint or from within its process."""


def open_watch(url: StoreUrl, limits: Timeouts) -> Watch:
    """Open the watch that fits the store."""
    return ListenWatch(url, limits) if url.can.listen else FileWatch(url.target)
