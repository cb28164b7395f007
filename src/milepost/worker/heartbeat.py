"""The worker's row in the store: its id, its state and slots, and the lease that it keeps.

The lease is renewed from a thread and a connection of its own: a handler that blocks the event loop
keeps its jobs while the process lives. C code that holds the interpreter's lock for longer than the
lease can still starve this thread.
"""

import asyncio
import os
import platform
import threading
import time
from collections.abc import Callable
from functools import partial

import msgspec

from milepost.config import Settings
from milepost.errors import LeaseLost
from milepost.lifecycle import WORKER, WorkerState
from milepost.outcome import micros
from milepost.store import workers
from milepost.store.connect import open_driver
from milepost.store.driver import Driver
from milepost.store.watch import Watch
from milepost.telemetry import Log, ThrottledLog
from milepost.worker import Setup
from milepost.worker.slots import SlotTable

log = Log("milepost.worker")

RESTING = (WorkerState.IDLE, WorkerState.BACKOFF)
SHOW_SECONDS = 1.0
"""How long a store that is away may hold up a worker that only shows its state."""
RETRY_SECONDS = 0.5
CLOSE_SECONDS = 0.5
MARGIN = 0.2
"""The share of the lease before whose end the worker starts nothing more."""


def new_id() -> str:
    """Name a worker by its host, its process and a random number."""
    return f"{platform.node()}-{os.getpid()}-{os.urandom(4).hex()}"


class WorkerRow:
    """A worker's id, state and lease: moved here at once, shown on its row when there is time."""

    def __init__(self, setup: Setup, slots: SlotTable, watch: Watch) -> None:
        self.id = new_id()
        self.state: WorkerState | None = None
        self.shown: WorkerState | None = None
        self.away = ThrottledLog(log)
        """Where the loss of the store is logged: once, and then seldom."""
        self._setup = setup
        self._slots = slots
        self._watch = watch
        self._lease: Lease | None = None
        self._showing = asyncio.Lock()

    async def register(self, *, briefly: bool = False) -> None:
        """Enter the row under the id, and keep its lease from now on.

        Whoever works `briefly` connects for the first heartbeat, and seldom lives to see it; a
        worker connects now, while the store is there.
        """
        await self.end_lease()
        setup = self._setup
        self.state = self.shown = None
        self.move("boot")
        await setup.driver.run(workers.register, self._new())
        self.shown = self.state
        limits = setup.settings.heartbeat_limits
        connect = partial(open_driver, setup.client.url, limits=limits)
        driver = None if briefly else await asyncio.to_thread(connect)
        self._lease = Lease(self, driver, setup.settings, connect=connect)

    def _new(self) -> workers.NewWorker:
        queues = self._setup.queues
        return workers.NewWorker(
            id=self.id,
            lease_us=micros(self._setup.settings.lease),
            host=platform.node(),
            pid=os.getpid(),
            program="milepost",
            queues=None if queues is None else msgspec.json.encode(list(queues)).decode(),
            kinds=msgspec.json.encode(self._setup.registry.words).decode(),
            slots=self.slots,
        )

    @property
    def slots(self) -> str:
        """The slots by state, as the row shows them."""
        return self._slots.text()

    # The lease

    @property
    def lost(self) -> bool:
        """Whether the jobs belong to other workers now."""
        return self._lease is not None and self._lease.lost

    def may_start(self) -> bool:
        """Tell whether an effect may begin."""
        return self._lease is None or self._lease.may_start

    def drop_jobs(self) -> None:
        """Let go of every slot: the lease is lost."""
        self._slots.give_back("the lease was lost")
        self._watch.wake()

    async def end_lease(self) -> None:
        """Renew it no longer."""
        if self._lease is not None:
            await asyncio.to_thread(self._lease.close)

    # The state

    def move(self, name: str) -> None:
        """Make a move, or raise `IllegalMove` where the machine declares none."""
        targets = WORKER.targets(name, self.state)
        WORKER.check(name, self.state, targets[0] if targets else "nowhere")
        self.state = WorkerState(targets[0])

    def back_off(self) -> None:
        """Make the moves that follow a poll which found nothing; while jobs run it is not idle."""
        self.move("back_off")
        if not self._slots:
            self.move("rest")

    def walk_to_polling(self) -> None:
        """Make the moves that lead to a poll."""
        for name in ("rest", "connect", "recover", "poll"):
            if WORKER.targets(name, self.state) and self.state != WorkerState.POLLING:
                self.move(name)

    @property
    def shown_resting(self) -> bool:
        """Whether its row tells those who submit to notify it."""
        return self.shown in RESTING

    async def show(self) -> None:
        """Write the state to the row, by the moves that lead there, in one transaction."""
        async with self._showing:
            if (state := self.state) is not None:
                run = self._setup.driver.run
                await run(workers.walk, self.id, self.shown, state, slots=self.slots)
            self.shown = state

    async def show_if_possible(self) -> None:
        """Show it unless the store is away: it is for people, and the lease tells the rest."""
        if self.shown is None:
            return  # there is no row yet
        try:
            async with asyncio.timeout(SHOW_SECONDS):
                await self.show()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.away.warning("worker state could not be shown", error=repr(error))


class Lease:
    """Renews the lease of a row, under one id, until it is closed or the lease is lost."""

    def __init__(
        self,
        row: WorkerRow,
        driver: Driver | None,
        settings: Settings,
        *,
        connect: Callable[[], Driver],
    ) -> None:
        self.lost = False
        self._connect = connect
        self._row = row
        self._worker_id = row.id  # the row may go on under another
        self._driver = driver
        self._seconds = settings.lease
        self._heartbeat = settings.heartbeat
        self._trouble = ThrottledLog(log)
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._until = time.monotonic() + settings.lease
        name = f"milepost-heartbeat-{row.id[-6:]}"
        self._thread = threading.Thread(target=self._keep, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End, and wait for the thread; not for a store that is away."""
        self._stop.set()
        self._thread.join(CLOSE_SECONDS)
        if self._driver is not None:
            self._driver.close()

    @property
    def may_start(self) -> bool:
        """Whether an effect may begin: by this process's own view of the lease (F4)."""
        return not self.lost and time.monotonic() < self._until - self._seconds * MARGIN

    def _keep(self) -> None:
        pause = self._heartbeat
        while not self._stop.wait(pause):
            # The store may be away for a moment: it is asked again long before the lease ends.
            pause = self._heartbeat if self._renew() else min(self._heartbeat, RETRY_SECONDS)
            if self.lost:
                self._loop.call_soon_threadsafe(self._row.drop_jobs)
                return

    def _connected(self) -> Driver:
        if self._driver is None:
            self._driver = self._connect()
            if self._stop.is_set():  # nobody waited for it
                self._driver.close()
        return self._driver

    def _renew(self) -> bool:
        asked = time.monotonic()
        try:
            self._connected().run(
                workers.renew, self._worker_id, lease_seconds=self._seconds, slots=self._row.slots
            )
        except LeaseLost:
            self.lost = True
        except Exception as error:  # noqa: BLE001 - a heartbeat that ended would lose every job
            if self._stop.is_set():
                return False  # we hung up ourselves
            left = max(0.0, self._until - time.monotonic())
            self._trouble.warning(
                "lease not renewed, trying again", error=repr(error), ends_in=f"{left:.0f} s"
            )
            return False
        else:
            self._until = asked + self._seconds
            self._trouble.over("lease renewed again")
        return True
