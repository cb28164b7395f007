"""When a worker takes a job that may have killed the processes it ran in."""

import random
from collections.abc import Sequence

from milepost.clock import Clock
from milepost.store.jobs import Suspect

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 7200.0
"""Longer than an attempt's usual timeout: by then every job that was there has ended."""
TRIED_MOST = 16
"""So many suspects are tried at once; if their limits block all of them, then those after them."""
BLOCKED_TIMES = 32
"""While suspects are blocked, the others run for up to so many times as long as room was made."""


class Suspects:
    """Divides a worker's time between all other jobs and suspects, which run one by one.

    A suspect may have killed the processes it ran in, and one more loss would end it, so it runs
    with no other job in its process: if that dies, it is known which job it died of. A worker that
    is empty takes a suspect when it finds nothing else. One that is never empty takes no other jobs
    for a while; if its jobs take longer than that, for twice as long the next time. In between, and
    after a suspect, the others have as much time as they were kept waiting.

    Where limits blocked all suspects that were tried, it is two seconds until room is made again,
    then four, ... A worker that is empty tries meanwhile, too.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.waiting = False
        """Whether one was in line when it was last looked for."""
        self.running = False
        """Whether one runs now."""
        self._making_room = False
        self._since = 0.0
        self._until = 0.0
        self._span = FIRST_SECONDS
        self.after: Suspect | None = None
        """The last one that was passed over, if more may stand behind it."""
        self.blocked_seconds = 0.0
        """For so long no room is made, after a try at suspects that were blocked."""
        self._blocked_until = 0.0

    def see(self, *, waiting: bool) -> None:
        """Learn whether a suspect is in line."""
        if waiting and not self.waiting:
            # At a time of its own: of several workers, one making room is enough.
            seconds = self._span * random.uniform(0.5, 1.5)  # noqa: S311 - jitter
            blocked = max(0.0, self._blocked_until - self._clock.monotonic())
            self._let_others_run(blocked + seconds)
        elif not waiting:
            self._none_blocked()
            if not self.running:
                self._making_room = False
                self._span = FIRST_SECONDS
        self.waiting = waiting

    def pass_over(self, found: Sequence[Suspect]) -> None:
        """Note that none of these could be claimed: those after them are next."""
        now, before = self._clock.monotonic(), self.blocked_seconds
        kept = now - self._since if self._making_room else 0.0
        self.see(waiting=False)
        if not found:
            return  # others were quicker
        self.after = found[-1] if len(found) == TRIED_MOST else None
        least = max(FIRST_SECONDS, kept)
        longest = min(BLOCKED_TIMES * least, LONGEST_SECONDS)
        self.blocked_seconds = min(2 * max(before, least), longest)
        self._blocked_until = now + self.blocked_seconds

    def keep_out(self, *, busy: bool) -> bool:
        """Tell whether the others must wait now: for a suspect that runs, or for room for one."""
        if self.running and not busy:
            self.running = False
            self._let_others_run(self._clock.monotonic() - self._since)
        return self.running or (self.comes_first and busy)

    @property
    def comes_first(self) -> bool:
        """Whether the next job to start is a suspect; turns change here."""
        if not self.waiting:
            return False
        now = self._clock.monotonic()
        if now >= self._until:
            if self._making_room:
                self._span = min(self._span * 2, LONGEST_SECONDS)
                self._let_others_run(self._span)
            else:
                self._making_room = True
                self._since = now
                self._until = now + self._span
        return self._making_room

    def began(self) -> None:
        """Note that a suspect runs now."""
        if not self._making_room:
            self._since = self._clock.monotonic()
        self.running = True
        self._span = FIRST_SECONDS
        self._none_blocked()

    def _let_others_run(self, seconds: float) -> None:
        self._making_room = False
        self._until = self._clock.monotonic() + seconds

    def _none_blocked(self) -> None:
        self.after = None
        self.blocked_seconds = self._blocked_until = 0.0
