"""Does what was too much for the transaction that ended jobs; maintenance would do it later."""

import asyncio
from collections.abc import Callable, Iterable

from milepost.store import outputs, runs
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log

log = Log("milepost.worker")

BATCH = 1_000


class Publisher:
    """Publishes outputs and opens gates, batch by batch, whenever it is told that some wait."""

    def __init__(self, driver: AsyncDriver, *, published: Callable[[], None]) -> None:
        self._driver = driver
        self._published = published
        self.worker_id = ""
        self._wanted = asyncio.Event()
        self._runs: set[str] = set()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def want(self, run_ids: Iterable[str]) -> None:
        """Say that outputs of these runs wait, or jobs at their gates."""
        self._runs.update(run_ids)
        self._quiet.clear()
        self._wanted.set()

    @property
    def busy(self) -> bool:
        """Whether something may still wait."""
        return not self._quiet.is_set()

    async def flush(self) -> None:
        """Wait until what waited is done, or is left to maintenance."""
        await self._quiet.wait()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._wanted.wait()
            while self._wanted.is_set():
                self._wanted.clear()
                await self._follow_up()
            self._quiet.set()

    async def _follow_up(self) -> None:
        wanted, self._runs = sorted(self._runs), set()
        try:
            # A whole batch: there may be more.
            while await self._open(wanted) == BATCH or await self._publish() == BATCH:
                pass
        except Exception as error:  # noqa: BLE001 - maintenance does it later
            log.warning("outputs are published later", error=repr(error))

    async def _open(self, run_ids: list[str]) -> int:
        count = await self._driver.run(runs.open_gates, run_ids, actor=self.worker_id, most=BATCH)
        if count:
            self._published()
        return count

    async def _publish(self) -> int:
        done = await self._driver.run(outputs.publish_some, actor=self.worker_id, most=BATCH)
        if done.count:
            self._published()
        if done.left:
            self.want(done.left)
        return done.count
