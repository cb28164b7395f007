"""Time inside a process: for sleeping and measuring only. The store's clock decides the rest."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What sleeps and measures; tests pass one they can move."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for that long."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for that long."""
        await asyncio.sleep(seconds)
