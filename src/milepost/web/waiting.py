"""Callers that wait for an end, a job's or a run's: one look at the store serves all of them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from milepost.client import Client
from milepost.errors import MilepostError
from milepost.lifecycle import JOB, RUN
from milepost.records import Job
from milepost.store import jobs, runs
from milepost.store.driver import Steps
from milepost.web.engine import Engine

LOOK_FIRST = 0.01
LOOK_LONGEST = 0.25
LOOK_GROWS = 1.5
Standing = Callable[[list[str]], Steps[list[tuple[str, str]]]]
WAITERS = 5_000
"""Beyond so many callers are answered at once: waiting is a courtesy."""


class Waiters:
    """Whom to tell, and the task that looks while anybody waits."""

    def __init__(self, standing: Standing, final: frozenset[str]) -> None:
        self._standing = standing
        self._final = final
        self._waiting: dict[str, asyncio.Event] = {}
        self._callers: Counter[str] = Counter()
        self._pause = LOOK_FIRST
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, client: Client, subject_id: str, *, seconds: float) -> None:
        """Return once the job has ended, or the time is over."""
        if self._callers.total() >= WAITERS:
            return
        event = self._waiting.setdefault(subject_id, asyncio.Event())
        self._callers[subject_id] += 1
        self._pause = LOOK_FIRST
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(client))
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._leave(subject_id)

    def _leave(self, subject_id: str) -> None:
        self._callers[subject_id] -= 1
        if not self._callers[subject_id]:
            del self._callers[subject_id]
            self._waiting.pop(subject_id, None)

    async def _look(self, client: Client) -> None:
        try:
            while self._waiting:
                for subject_id in await self._ended(client):
                    if subject_id in self._waiting:
                        self._waiting[subject_id].set()
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * LOOK_GROWS, LOOK_LONGEST)
        finally:
            self._looking = None

    async def _ended(self, client: Client) -> list[str]:
        try:
            found = await client.run_async(self._standing, list(self._waiting))
        except MilepostError:
            return []  # whoever waits hears of it from the look that answers
        return [subject_id for subject_id, state in found if state in self._final]


Here = WeakKeyDictionary[Client, Waiters]
_jobs: WeakKeyDictionary[asyncio.AbstractEventLoop, Here] = WeakKeyDictionary()
_runs: WeakKeyDictionary[asyncio.AbstractEventLoop, Here] = WeakKeyDictionary()


async def awaited(app: Engine, job_id: str, *, seconds: float) -> Job:
    """Wait for a job's end, for so long, and read how it stands then."""
    here = _jobs.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    waiters = here.setdefault(app.client, Waiters(jobs.standing, JOB.terminal))
    await waiters.wait(app.client, job_id, seconds=seconds)
    return await app.client.run_async(jobs.get, job_id)


async def run_awaited(app: Engine, run_id: str, *, seconds: float) -> None:
    """Wait for a run's end, for so long."""
    here = _runs.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    waiters = here.setdefault(app.client, Waiters(runs.standing, RUN.terminal))
    await waiters.wait(app.client, run_id, seconds=seconds)
