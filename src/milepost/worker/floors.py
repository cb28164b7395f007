"""The floors of the lines that a worker claims from: below them no job was left."""

from collections.abc import Iterable

from milepost.options import HIGHEST
from milepost.records import Claim
from milepost.store.jobs import Line, lines

RESCAN_SECONDS = 1.0
RESCAN_SHARE = 0.05
RESCAN_TIMES, RESCAN_MOST_SECONDS = 200, 5.0
"""A look at the bottom comes again after so many times what it took, at the latest then."""
COSTLY_SECONDS = 0.005
"""Where it took longer, dead entries are walked: nobody looks there because nothing was met."""
AGED = 7
"""One claim in so many begins with the lowest priority: each gets an eighth of all at least."""
HINTS = 4
"""How many queues are worth a look before it is asked which ones have work."""


class Floors:
    """The queues, and for each (queue, priority) the floor below which no job was left.

    Behind an old snapshot the index keeps dead entries alive; from the floor they are not walked
    again. The bottom is looked at once a second, less often where that takes long, and when a look
    from the floor finds nothing, as long as that takes no more than a twentieth of the time. A
    priority that the last look at the bottom did not meet has a floor too, where numbers stood a
    look before: later jobs are younger.
    Now and then the lowest priority comes first, so that none starves behind higher ones.
    To ask which queues have work takes a query of its own: after a hint the queue that it named is
    looked at, and only when that is empty it is asked.
    """

    def __init__(self) -> None:
        self._queues: list[str] = []
        self._hinted: list[str] = []
        self._floors: dict[tuple[str, int], int] = {}
        self._top = 0
        self.top_before = 0
        """Where numbers stood a look before: a transaction may have taken one and commit later."""
        self._unmet_floor = 0
        """The floor of places where the last look at the bottom met no job, and came to its end."""
        self._rests_until = 0.0
        self._due = 0.0
        self._allowed = 0.0
        self.whole = self.whole_next = False
        self._turn = 0

    def know(self, queues: Iterable[str]) -> None:
        """Learn which queues there are; the one served first moves on, so that none starves."""
        known = list(queues)
        self._queues = [*known[1:], *known[:1]]

    def expect(self, queues: Iterable[str]) -> None:
        """Take a hint: these have new jobs."""
        hinted = list(queues)
        self._hinted = hinted if len(hinted) <= HINTS else []

    def follow_hint(self) -> bool:
        """Look, once, at the queues of the last hint; False without one."""
        if not self._hinted:
            return False
        self._queues, self._hinted = self._hinted, []
        return True

    def due(self, now: float) -> bool:
        """Tell whether it is time to look at the bottom."""
        empty = not self._floors and now >= self._rests_until
        return now >= self._due or empty or self.whole_next

    def rescan(self, now: float) -> bool:
        """Ask for a look at the bottom; False while that would take too much time."""
        if now < self._allowed:
            return False
        self._due = now
        return True

    def line(self, now: float) -> list[Line]:
        """Say where to look now."""
        self.whole = self.due(now)
        self.whole_next = False
        self._turn += 1
        if self._turn % AGED == 0:
            return self._aged()
        if self.whole:
            self._due = now + RESCAN_SECONDS
            return lines(self._queues)
        floors = {**self._unmet(), **self._known()}
        ordered = sorted(floors.items(), key=lambda item: -item[0][1])
        return [Line(queue, priority, floor) for (queue, priority), floor in ordered]

    def _aged(self) -> list[Line]:
        """Name every place, the lowest priorities first; it is no look at the bottom."""
        self.whole = False
        places = [(queue, level) for level in range(HIGHEST + 1) for queue in self._queues]
        return [Line(*place, self._floors.get(place, self._unmet_floor)) for place in places]

    def _known(self) -> dict[tuple[str, int], int]:
        """Give the floors; where nothing was met, each queue's last place has one too."""
        return self._floors or {(queue, 0): self.top_before for queue in self._queues}

    def _unmet(self) -> dict[tuple[str, int], int]:
        """Name the places ahead of the last one in line that may have got a first job by now."""
        known = self._known()
        lowest = min((priority for _, priority in known), default=0)
        queues = {queue for queue, _ in known}
        above = range(lowest + 1, HIGHEST + 1)
        return {(queue, priority): self.top_before for queue in queues for priority in above}

    def learn(self, claims: list[Claim], *, most: int, began: float, ended: float) -> None:
        """Learn from the claims of a look, of which there might have been so many, and its time."""
        if self.whole:
            self._floors.clear()
            took = ended - began
            self._rests_until = ended + took / RESCAN_SHARE if took > COSTLY_SECONDS else 0.0
            self._allowed = ended + min(RESCAN_SECONDS, took / RESCAN_SHARE)
            self._due = max(self._due, ended + min(RESCAN_MOST_SECONDS, took * RESCAN_TIMES))
            self.top_before = self._top
            self._unmet_floor = self.top_before if len(claims) < most else 0
        self._top = max((self._top, *(claim.queued_seq for claim in claims)))
        # The oldest of each place comes first, and so has the last word here.
        self._floors.update({(c.queue, c.priority): c.queued_seq for c in reversed(claims)})
