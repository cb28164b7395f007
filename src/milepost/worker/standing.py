"""Where a worker stands, and what its row shows of that (spec E's machine)."""

import asyncio
import os
import platform
from collections.abc import Callable, Sequence

import msgspec

from milepost.declare import Registry
from milepost.lifecycle import WORKER, WorkerState
from milepost.outcome import micros
from milepost.store import workers
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Seldom

RESTING = (WorkerState.IDLE, WorkerState.BACKOFF)
SHOW_SECONDS = 1.0
"""How long a store that is away may hold up a worker that only wants to be seen."""


class Standing:
    """A worker's state: moved here at once, shown on its row when there is time."""

    def __init__(
        self,
        driver: AsyncDriver,
        registry: Registry,
        queues: Sequence[str] | None,
        *,
        lease: float,
        slots: Callable[[], str],
        away: Seldom,
    ) -> None:
        """Make one; `slots` tells how the slots stand, in the words of the row."""
        self._away = away
        self.state: WorkerState | None = None
        self.shown: WorkerState | None = None
        self._driver = driver
        self._registry = registry
        self._queues = queues
        self._lease = lease
        self._slots = slots
        self._worker_id = ""
        self._showing = asyncio.Lock()

    async def begin(self, worker_id: str) -> None:
        """Begin anew, under a name and with a row of its own."""
        self._worker_id = worker_id
        self.state = None
        self.move("boot")
        await self._driver.run(workers.register, self._row())
        self.shown = self.state

    def _row(self) -> workers.NewWorker:
        queues = None if self._queues is None else msgspec.json.encode(list(self._queues)).decode()
        return workers.NewWorker(
            id=self._worker_id,
            lease_us=micros(self._lease),
            host=platform.node(),
            pid=os.getpid(),
            program="milepost",
            queues=queues,
            kinds=msgspec.json.encode(self._registry.words).decode(),
            slots=self._slots(),
        )

    def move(self, name: str) -> None:
        """Move on; what the machine does not declare is a mistake."""
        targets = WORKER.targets(name, self.state)
        WORKER.check(name, self.state, targets[0] if targets else "nowhere")
        self.state = WorkerState(targets[0])

    def back_off(self, *, idle: bool) -> None:
        """Make the moves that follow a poll which found nothing; while jobs run it is not idle."""
        self.move("back_off")
        if idle:
            self.move("rest")

    @property
    def shown_resting(self) -> bool:
        """Whether its row tells those who submit to notify it."""
        return self.shown in RESTING

    def walk_to_polling(self) -> None:
        """Make the moves that lead to a poll."""
        for name in ("rest", "connect", "recover", "poll"):
            if WORKER.targets(name, self.state) and self.state != WorkerState.POLLING:
                self.move(name)

    async def show(self) -> None:
        """Show on the row where it stands, by the moves that lead there, in one transaction."""
        async with self._showing:
            state = self.state
            path = [(name, WorkerState(source)) for name, source in _path(self.shown, state)]
            await self._driver.run(workers.walk, self._worker_id, path, slots=self._slots())
            self.shown = state

    async def show_if_possible(self) -> None:
        """Show it unless the store is away: it is for people, and the lease tells the rest."""
        try:
            async with asyncio.timeout(SHOW_SECONDS):
                await self.show()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._away.warning("worker state could not be shown", error=repr(error))


def _path(shown: WorkerState | None, state: WorkerState | None) -> list[tuple[str, str]]:
    """Find the moves that lead there; only maintenance buries."""
    if state != WorkerState.STOPPED:
        return WORKER.path(shown, state)
    return [*WORKER.path(shown, WorkerState.DRAINING), ("stop", WorkerState.DRAINING.value)]
