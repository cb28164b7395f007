"""The jobs that a worker holds, and the lanes they run in."""

import asyncio
from collections.abc import Callable, Mapping

from milepost.outcome import Outcome
from milepost.records import Claim
from milepost.store.durable import Told
from milepost.worker.execute import Executor
from milepost.worker.lanes import AsyncLanes, Running, ThreadLanes


class Held:
    """What was claimed and is not settled yet."""

    def __init__(
        self,
        executor: Executor,
        report: Callable[[Running, Outcome], None],
        *,
        threads: int,
        may_start: Callable[[], bool],
    ) -> None:
        """Begin with nothing; `report` hears of every outcome."""
        self.threads = ThreadLanes(executor, report, threads=threads, may_start=may_start)
        self._lanes = AsyncLanes(executor, report, may_start=may_start)
        self._running: dict[str, Running] = {}
        self._met_plain = True

    def __len__(self) -> int:
        """Count what is held; nothing is False."""
        return len(self._running)

    @property
    def known(self) -> Mapping[str, int]:
        """The jobs, each with its fence."""
        return {job_id: running.context.fence for job_id, running in self._running.items()}

    @property
    def news(self) -> list[Told]:
        """What handlers said of themselves since it was last asked for."""
        return [news for r in self._running.values() if (news := r.context.take_news())]

    def room(self, room: int, slots: int) -> tuple[int, bool]:
        """Tell how many more fit into so much room, and whether plain ones are among them.

        Plain ones are bounded by the threads that are free; where the last claim met none of
        them, they do not hold the others up.
        """
        held = sum(not running.definition.is_async for running in self._running.values())
        threads = self.threads.room(held, slots)
        if threads <= 0:
            return room, False
        return (min(room, threads) if self._met_plain else room), True

    def start(self, jobs: list[Running]) -> None:
        """Let them run, each in its lane."""
        self._running.update((running.context.claim.id, running) for running in jobs)
        plain = [running for running in jobs if not running.definition.is_async]
        awaited = [running for running in jobs if running.definition.is_async]
        self._met_plain = bool(plain)
        self._lanes.start(awaited)
        self.threads.start(plain)

    def forget(self, claim: Claim) -> None:
        """Let go of what was settled."""
        # The same job may have come back meanwhile, under its next fence.
        running = self._running.get(claim.id)
        if running is not None and running.context.fence == claim.fence:
            del self._running[claim.id]

    def stop(self, job_id: str, fence: int, reason: str) -> None:
        """Pass on that a job is to stop."""
        running = self._running.get(job_id)
        # Once: a handler that cleans up must not be cancelled again and again.
        if running is not None and running.context.fence == fence and not running.asked:
            self._lane_of(running).stop_job(running, reason)

    def give_back(self, detail: str) -> None:
        """Give everything back."""
        for running in list(self._running.values()):
            self._lane_of(running).give_back(running, detail)

    def sweep_overdue(self) -> None:
        """End what has run for too long."""
        now = asyncio.get_running_loop().time()
        for running in list(self._running.values()):
            if running.overdue(now):
                self._lane_of(running).time_out(running)

    async def close(self) -> None:
        """End the lanes."""
        await self._lanes.close()
        self.threads.close()

    def _lane_of(self, running: Running) -> AsyncLanes | ThreadLanes:
        return self._lanes if running.definition.is_async else self.threads
