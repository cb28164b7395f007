"""Callers that wait for an end, a job's or a run's: one look at the store serves all of them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from weakref import WeakKeyDictionary

from milepost.client import Client
from milepost.errors import MilepostError
from milepost.lifecycle import JOB, RUN
from milepost.machine import Machine
from milepost.store import jobs, runs
from milepost.store.driver import Steps

LOOK_FIRST = 0.01
LOOK_LONGEST = 0.25
LOOK_GROWS = 1.5
WAITERS = 5_000
"""Beyond so many callers are answered at once: waiting is a courtesy."""

_STATES: dict[str, tuple[Callable[[list[str]], Steps[list[tuple[str, str]]]], Machine]] = {
    "job": (jobs.standing, JOB),
    "run": (runs.standing, RUN),
}


class Waiters:
    """Callers that wait for jobs, or for runs, and the task that looks while there are any.

    The client is not kept: that would keep both of them for ever.
    """

    def __init__(self, what: str) -> None:
        self._states, machine = _STATES[what]
        self._final = machine.terminal
        self._waiting: dict[str, asyncio.Event] = {}
        self._callers: Counter[str] = Counter()
        self._pause = LOOK_FIRST
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, client: Client, subject_id: str, *, seconds: float) -> None:
        """Return once it has ended, or the time is over."""
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
            found = await client.run_async(self._states, list(self._waiting))
        except MilepostError:
            return []  # the read that answers a waiting caller says so
        return [subject_id for subject_id, state in found if state in self._final]


_waiters: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakKeyDictionary[Client, dict[str, Waiters]]
] = WeakKeyDictionary()


async def wait_until_final(client: Client, what: str, subject_id: str, *, seconds: float) -> None:
    """Return once a job or a run has ended, or the time is over."""
    here = _waiters.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    known = here.setdefault(client, {})
    if what not in known:
        known[what] = Waiters(what)
    await known[what].wait(client, subject_id, seconds=seconds)
