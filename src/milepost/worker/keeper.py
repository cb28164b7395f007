"""Keeps the worker's lease, from a thread and a connection of its own.

A handler that blocks the event loop keeps its jobs while the process lives. C code that holds the
interpreter's lock for longer than the lease can still starve this thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

from milepost.config import Settings, StoreUrl
from milepost.errors import LeaseLost
from milepost.store import workers
from milepost.store.connect import open_driver
from milepost.store.driver import Driver

RETRY_SECONDS = 0.5
CLOSE_SECONDS = 0.5
MARGIN = 0.2
"""The share of the lease before whose end the worker starts nothing more."""


class Lease:
    """A worker's right to its jobs: kept for one name after the other, each time anew.

    `lost` is called in the worker's event loop when the lease is.
    """

    def __init__(
        self,
        url: StoreUrl,
        settings: Settings,
        *,
        slots: Callable[[], str | None],
        lost: Callable[[], object],
    ) -> None:
        self._url = url
        self._settings = settings
        self._slots = slots
        self._on_lost = lost
        self._keeper: Keeper | None = None

    async def begin(self, worker_id: str) -> None:
        """Keep it for a worker whose row has just been made."""
        loop = asyncio.get_running_loop()
        self._keeper = Keeper(
            await asyncio.to_thread(open_driver, self._url, limits=self._settings.heartbeat_limits),
            worker_id,
            lease=self._settings.lease,
            heartbeat=self._settings.heartbeat,
            slots=self._slots,
            lost=partial(loop.call_soon_threadsafe, self._on_lost),
        )
        self._keeper.start()

    async def end(self) -> None:
        """Keep it no longer."""
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.close)

    @property
    def lost(self) -> bool:
        """Whether the jobs are others' now."""
        return self._keeper is not None and self._keeper.lost

    def may_start(self) -> bool:
        """Tell whether an effect may begin."""
        return self._keeper is None or self._keeper.may_start


class Keeper:
    """Renews one worker's lease until it is stopped or the lease is lost."""

    def __init__(
        self,
        driver: Driver,
        worker_id: str,
        *,
        lease: float,
        heartbeat: float,
        slots: Callable[[], str | None],
        lost: Callable[[], object],
    ) -> None:
        self._driver = driver
        self._worker_id = worker_id
        self._lease = lease
        self._heartbeat = heartbeat
        self._slots = slots
        self._on_lost = lost
        self._stop = threading.Event()
        self._until = time.monotonic() + lease
        self.lost = False
        self._thread = threading.Thread(
            target=self._keep, name=f"milepost-keeper-{worker_id[-6:]}", daemon=True
        )

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def close(self) -> None:
        """End, and wait for the thread; not for a store that is away."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)
        self._driver.close()

    @property
    def may_start(self) -> bool:
        """Whether an effect may begin: by this process's own view of the lease (F4)."""
        return not self.lost and time.monotonic() < self._until - self._lease * MARGIN

    def _keep(self) -> None:
        pause = self._heartbeat
        while not self._stop.wait(pause):
            # The store may be away for a moment: it is asked again long before the lease ends.
            pause = self._heartbeat if self._renew() else min(self._heartbeat, RETRY_SECONDS)
            if self.lost:
                self._on_lost()
                return

    def _renew(self) -> bool:
        asked = time.monotonic()
        try:
            self._driver.run(
                workers.renew, self._worker_id, lease_seconds=self._lease, slots=self._slots()
            )
        except LeaseLost:
            self.lost = True
        except Exception:  # noqa: BLE001 - a keeper that ended would lose every job
            return False
        else:
            self._until = asked + self._lease
        return True
