"""When a worker makes room for a suspect: a job that may have killed the processes it ran in.

One more loss would end it, so it runs with no other job in its process: if that dies, it is known
which job it died of. A worker that is empty takes a suspect when it finds nothing else. One that is
never empty takes no other jobs for a while; if its jobs take longer than that, for twice as long
the next time. In between, and after a suspect, the others have as much time as they were kept
waiting.
"""

import random
from collections.abc import Callable

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 7200.0
"""Longer than an attempt's usual timeout: by then every job that was there has ended."""


class Suspects:
    """Divides a worker's time between suspects, one by one, and all other jobs."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.waiting = False
        """Whether one was in line when it was last looked for."""
        self._running = False
        self._making_room = False
        self._since = 0.0
        self._until = 0.0
        self._span = FIRST_SECONDS

    def see(self, *, waiting: bool) -> None:
        """Learn whether a suspect is in line."""
        if waiting and not self.waiting:
            # At a time of its own: of several workers, one making room is enough.
            self._others_turn(self._span * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
        elif not waiting and not self._running:
            self._making_room = False
            self._span = FIRST_SECONDS
        self.waiting = waiting

    def keep_out(self, *, busy: bool) -> bool:
        """Tell whether the others must wait now: for a suspect that runs, or for room for one."""
        if self._running and not busy:
            self._running = False
            self._others_turn(self._now() - self._since)
        if self._running:
            return True
        return self.comes_first and busy

    @property
    def comes_first(self) -> bool:
        """Whether the next job to start is a suspect; turns change here."""
        if self.waiting and self._now() >= self._until:
            if self._making_room:
                self._span = min(self._span * 2, LONGEST_SECONDS)
                self._others_turn(self._span)
            else:
                self._making_room = True
                self._since = self._now()
                self._until = self._since + self._span
        return self.waiting and self._making_room

    def began(self) -> None:
        """Note that a suspect runs now."""
        if not self._making_room:
            self._since = self._now()
        self._running = True
        self._span = FIRST_SECONDS

    def _others_turn(self, seconds: float) -> None:
        self._making_room = False
        self._until = self._now() + seconds
