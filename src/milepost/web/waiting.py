"""Callers that wait for a job's end: one look at the store serves all of them."""

import asyncio
from collections import Counter
from weakref import WeakKeyDictionary

from milepost.client import Client
from milepost.errors import MilepostError
from milepost.lifecycle import JOB
from milepost.records import Job
from milepost.store import jobs
from milepost.web.engine import Engine

__all__ = ["Waiters", "awaited"]

LOOK_FIRST = 0.01
LOOK_LONGEST = 0.25
LOOK_GROWS = 1.5
WAITERS = 5_000
"""Beyond so many callers are answered at once: waiting is a courtesy."""


class Waiters:
    """Whom to tell, and the task that looks while anybody waits."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Event] = {}
        self._callers: Counter[str] = Counter()
        self._pause = LOOK_FIRST
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, client: Client, job_id: str, *, seconds: float) -> None:
        """Return once the job has ended, or the time is over."""
        if self._callers.total() >= WAITERS:
            return
        event = self._waiting.setdefault(job_id, asyncio.Event())
        self._callers[job_id] += 1
        self._pause = LOOK_FIRST
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(client))
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._leave(job_id)

    def _leave(self, job_id: str) -> None:
        self._callers[job_id] -= 1
        if not self._callers[job_id]:
            del self._callers[job_id]
            self._waiting.pop(job_id, None)

    async def _look(self, client: Client) -> None:
        try:
            while self._waiting:
                for job_id in await _ended(client, list(self._waiting)):
                    if job_id in self._waiting:
                        self._waiting[job_id].set()
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * LOOK_GROWS, LOOK_LONGEST)
        finally:
            self._looking = None


async def _ended(client: Client, ids: list[str]) -> list[str]:
    try:
        found = await client.run_async(jobs.standing, ids)
    except MilepostError:
        return []  # whoever waits hears of it from the look that answers
    return [job_id for job_id, state in found if state in JOB.terminal]


_waiters: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Client, Waiters]] = (
    WeakKeyDictionary()
)


async def awaited(app: Engine, job_id: str, *, seconds: float) -> Job:
    """Wait for a job's end, for so long, and read how it stands then."""
    here = _waiters.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    waiters = here.setdefault(app.client, Waiters())
    await waiters.wait(app.client, job_id, seconds=seconds)
    return await app.client.run_async(jobs.get, job_id)
