"""How many more jobs than it has slots a worker claims: as many as will start soon.

A claim and a settlement cost about the same for one job and for hundreds. A worker whose jobs end
by the thousand in a second therefore claims more than it can start, and starts each when another
ends. The jobs that wait are held as running ones are: leased, fenced, and known to reconciliation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AheadPolicy:
    """The numbers that bound claiming ahead, in seconds unless they say otherwise."""

    soon: float = 0.08
    """A worker holds at most as many jobs as its lanes end within it, at the recent rate."""
    window: float = 0.01
    """The recent rate is that of the last one or two windows in which lanes had jobs."""
    least: float = 400.0
    """Below so many jobs a second none are: claims are no burden, and a few ends are no rate."""
    patience: float = 0.1
    """A job not started this long after its claim is released, if another worker is free."""
    longest: float = 1.0
    """After this long it is released in any case: other jobs may go first by now."""
    of_slots: int = 30
    """How many jobs a slot may have waiting for it."""
    refill: float = 0.5
    """The share of slots that are filled at once; a smaller one waits for this turn's last end."""
    enough: int = 3_000
    """With so many, one claim is made while a second one's jobs run and a third one's settle."""
    most_bytes: int = 32 * 1024**2
    """How much memory the arguments of the jobs claimed ahead may take."""

    def ahead(self, slots: int, *, rate: float, size: float) -> int:
        """Say how many jobs may be held in addition to those in slots.

        `rate` is how many ended in a second, and `size` the bytes of one's arguments.
        """
        if rate < self.least:
            return 0
        soon = min(rate * self.soon, self.enough) - slots
        most = min(soon, slots * self.of_slots, self.most_bytes / max(size, 1.0))
        return max(0, int(most))


class Pace:
    """The rate at which lanes have ended jobs lately, by the time in which they had any.

    The time that a worker waits for the store, or rests, says nothing of its jobs.
    """

    def __init__(self, policy: AheadPolicy) -> None:
        self._window = policy.window
        self._worked = 0.0
        self._working_since: float | None = None
        self._before = self._since = (0.0, 0)

    def work(self, now: float) -> None:
        """Note that lanes have jobs from now on."""
        if self._working_since is None:
            self._working_since = now

    def rest(self, now: float) -> None:
        """Note that lanes have none from now on."""
        self._worked = self._time(now)
        self._working_since = None

    def _time(self, now: float) -> float:
        since = self._working_since
        return self._worked if since is None else self._worked + now - since

    def rate(self, now: float, *, ended: int) -> float:
        """Say how many jobs ended in a second; `ended` is how many have ended so far."""
        time = self._time(now)
        if time - self._since[0] >= self._window:
            self._before, self._since = self._since, (time, ended)
        began, count = self._before
        # Over less than a window a few quick ends would look like many.
        return (ended - count) / max(time - began, self._window)

    def forget(self, now: float, *, ended: int) -> None:
        """Begin again from zero."""
        self._before = self._since = (self._time(now), ended)
