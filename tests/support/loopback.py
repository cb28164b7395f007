"""Hosts of this machine that answer after a while, and write down when requests came and went."""

import asyncio
import random
import threading
import time
from types import TracebackType
from typing import NamedTuple, Self

__all__ = ["Arrival", "Loopback"]

REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
SECONDS = (0.002, 0.03)
LONG_SECONDS, LONG_SHARE = 0.3, 0.03
"""Some take longer, so that faults meet them."""


class Arrival(NamedTuple):
    """A request as a host saw it."""

    job: str
    host: str
    at: float
    ended_at: float


class Loopback:
    """Addresses 127.0.0.1, 127.0.0.2, … of this machine, each a host of its own."""

    def __init__(self, count: int, *, seed: int = 1) -> None:
        self.names = [f"127.0.0.{number}" for number in range(1, count + 1)]
        self.arrivals: list[Arrival] = []
        self.port = 0
        self._chance = random.Random(seed)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    @property
    def allowed(self) -> str:
        """The addresses, as MILEPOST_REQUEST_ALLOW takes them."""
        return ",".join(f"{name}:{self.port}" for name in self.names)

    def url(self, place: int) -> str:
        """Give the address of one of them."""
        return f"http://{self.names[place]}:{self.port}/"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        servers = []
        for name in self.names:
            server = await asyncio.start_server(self._talk, name, self.port)
            servers.append(server)
            self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stopped.wait()
        for server in servers:
            server.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = writer.get_extra_info("sockname")[0]
        try:
            while not self._stopped.is_set():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                arrived = time.time()
                await asyncio.sleep(self._seconds())
                self.arrivals.append(Arrival(_job_of(head), host, arrived, time.time()))
                writer.write(REPLY)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # who asked is gone
        finally:
            writer.close()

    def _seconds(self) -> float:
        if self._chance.random() < LONG_SHARE:
            return LONG_SECONDS
        return self._chance.uniform(*SECONDS)


def _job_of(head: str) -> str:
    """Read the job's id: it is the key under which a request is not done twice."""
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "idempotency-key":
            return value.strip()
    return ""
