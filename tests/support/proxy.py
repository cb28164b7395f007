"""A TCP proxy that does what networks do: drop, swallow, pass one way only, reset, go slow (F4).

It runs in a thread of its own, so that a test may block meanwhile, and stands before anything that
listens: a server's local socket, or a port. What it does may be changed at any time, for every
connection that is open and for those to come.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

__all__ = ["Network", "Proxy", "proxy"]

CHUNK = 65_536
SLOW_BYTES = 512
SLOW_SECONDS = 0.02
LOOK_SECONDS = 0.01


class Network(StrEnum):
    """What a network does with bytes."""

    PASS = "pass"
    SWALLOW = "swallow"  # taken, acknowledged and thrown away, both ways: half-open
    DEAF = "deaf"  # requests arrive, answers do not
    MUTE = "mute"  # requests do not arrive
    SLOW = "slow"
    REFUSE = "refuse"  # new connections are reset


class Proxy:
    """Passes connections on to one place, and does to them what it is told."""

    def __init__(self, target: tuple[str, int] | Path) -> None:
        """Stand before a port, or before a server's local socket."""
        self.mode = Network.PASS
        self.calls = 0
        """How many connections were asked for."""
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.port = 0

    def start(self) -> None:
        """Listen, on any free port."""
        self._thread.start()
        self.port = self._done(self._listen())

    def stop(self) -> None:
        """Hang up everything."""
        self._done(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def drop(self) -> None:
        """Close every connection politely."""
        self._done(self._hang_up(hard=False))

    def reset(self) -> None:
        """Break every connection off, as a firewall does."""
        self._done(self._hang_up(hard=True))

    def url(self, database: str) -> str:
        """Return the address of a PostgreSQL database behind it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def _done(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        self._server.close()
        await self._hang_up(hard=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _hang_up(self, *, hard: bool) -> None:
        for writer in list(self._open):
            if hard:
                _make_hard(writer)
            writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        if self.mode == Network.REFUSE:
            _make_hard(writer)
            writer.close()
            return
        try:
            there = await self._reach()
        except OSError:
            writer.close()
            return
        self._open |= {writer, there[1]}
        for source, sink, asked in ((reader, there[1], True), (there[0], writer, False)):
            task = self._loop.create_task(self._carry(source, sink, asked=asked))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(str(self._target))
        return await asyncio.open_connection(*self._target)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, asked: bool
    ) -> None:
        """Carry bytes one way; once some were lost, nothing more is carried on that connection."""
        whole = True
        with suppress(OSError):
            while data := await source.read(CHUNK):
                if self._loses(asked=asked):
                    whole = False
                elif whole:
                    await self._write(sink, data)
        # The other side must not learn that this one has ended while nothing passes; afterwards its
        # keepalives are answered by a reset.
        while self._loses(asked=asked):  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(LOOK_SECONDS)
        sink.close()
        self._open.discard(sink)

    def _loses(self, *, asked: bool) -> bool:
        return self.mode in (Network.SWALLOW, Network.MUTE if asked else Network.DEAF)

    async def _write(self, sink: asyncio.StreamWriter, data: bytes) -> None:
        while data and self.mode == Network.SLOW:
            sink.write(data[:SLOW_BYTES])
            data = data[SLOW_BYTES:]
            await sink.drain()
            await asyncio.sleep(SLOW_SECONDS)
        sink.write(data)
        await sink.drain()


def _make_hard(writer: asyncio.StreamWriter) -> None:
    """Have a connection end with a reset."""
    there = writer.get_extra_info("socket")
    if there is not None and there.family != socket.AF_UNIX:
        with suppress(OSError):  # it has ended by itself
            there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def proxy(target: tuple[str, int] | Path) -> Iterator[Proxy]:
    """Stand before something for a while."""
    made = Proxy(target)
    made.start()
    try:
        yield made
    finally:
        made.stop()
