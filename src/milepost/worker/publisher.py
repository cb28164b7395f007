"""Turns outputs of ended jobs into jobs, beside the settling; maintenance would do it later."""

import asyncio
from collections.abc import Callable

from milepost.store import runs
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log

__all__ = ["Publisher"]

log = Log("milepost.worker")

BATCH = 500


class Publisher:
    """Publishes whatever waits, of any run, whenever it is told that something does."""

    def __init__(self, driver: AsyncDriver, *, published: Callable[[], None]) -> None:
        self._driver = driver
        self._published = published
        self.worker_id = ""
        self._wanted = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def want(self) -> None:
        """Say that outputs wait."""
        self._quiet.clear()
        self._wanted.set()

    @property
    def busy(self) -> bool:
        """Whether outputs may still wait."""
        return not self._quiet.is_set()

    async def flush(self) -> None:
        """Wait until what waited is published, or is left to maintenance."""
        await self._quiet.wait()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._wanted.wait()
            while self._wanted.is_set():
                self._wanted.clear()
                await self._publish()
            self._quiet.set()

    async def _publish(self) -> None:
        try:
            count = BATCH
            while count == BATCH:  # a whole batch: there may be more
                count = await self._driver.run(runs.publish, actor=self.worker_id, most=BATCH)
                self._published()
        except Exception as error:  # noqa: BLE001 - maintenance does it later
            log.warning("outputs are published later", error=repr(error))
