"""Floors: below them no job was left to claim, or no lease lives that counts."""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from milepost.options import HIGHEST
from milepost.records import Claim
from milepost.store.jobs import Line
from milepost.store.limits import LeaseFloor, Look

RESCAN_SECONDS = 1.0
RESCAN_SHARE = 0.05
RESCAN_TIMES, RESCAN_MOST_SECONDS = 400, 5.0
"""A look at the bottom comes again after this many times its duration, at most after this long."""
COSTLY_SECONDS = 0.005
"""Where it took longer, dead entries are walked: nobody looks there because nothing was met."""
AT_ONCE = 4
"""How many queues a look from the floors covers, in turns: each of them has ten priorities."""
AGED = 7
"""One claim in this many begins with the lowest priority: each priority gets an eighth or more."""
HINTS = 4
"""How many queues are worth a look before it is asked which ones have work."""
REMEMBERED = 0.9
FORGOTTEN = 0.1
"""The weight of the jobs that a queue was given, a look later; and below which it is dropped."""
COSTLY_US, COSTLY_KEY_US = 2_000, 50
"""A look that took longer in all, and for each job and key that it saw, counts dead leases."""
LEASES_MOST = 500
LEASES_SECONDS = 60.0
"""All leases are counted again so often: one may have been claimed by hand, with an old number."""


Place = tuple[str, int]
"""A queue and a priority."""
Passed = tuple[Place, int, int]
"""The last job that was passed over: its place, its number and its rowid."""


class Floors:
    """The queues, and for each (queue, priority) the floor below which no job was left.

    Behind an old snapshot the index keeps dead entries alive; from the floor they are not walked
    again. The bottom is looked at once a second, less often where that takes long, and when a look
    from the floor finds nothing, as long as that takes no more than a twentieth of the time. A
    priority that the last look at the bottom did not meet has a floor too, where numbers stood a
    look before: later jobs are younger. Places that it did not come to, because it had enough jobs
    before, are looked at from the bottom until a look comes to them.
    The queues take turns at being the first of their priority, and a look from the floors has a few
    of them. Now and then the lowest priority comes first, so that none starves behind higher ones.
    To ask which queues have work takes a query of its own: after a hint the queue that it named is
    looked at, and only when that is empty it is asked.
    """

    def __init__(self) -> None:
        self._queues: list[str] = []
        self._hinted: list[str] = []
        self._line: list[Line] = []
        """Where the last look was."""
        self._floors: dict[Place, int] = {}
        self._unseen: set[Place] = set()
        """The places that no look has come to since the bottom was last looked at."""
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
        self._had: dict[str, float] = {}
        """How many jobs of each queue the last looks have taken."""

    def know(self, queues: Iterable[str]) -> None:
        """Learn which queues there are."""
        self._queues = list(queues)
        self._unseen = {place for place in self._unseen if place[0] in self._queues}

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
            self.whole = False  # it is no look at the bottom, though it may be time for one
            self._line = self._in_turns(self._everywhere(), sign=1, queues=AT_ONCE)
        elif self.whole:
            self._due = now + RESCAN_SECONDS
            self._line = self._in_turns(dict.fromkeys(self._everywhere(), 0))
        else:
            self._line = self._in_turns(self._from_floors(), queues=AT_ONCE)
        return self._line

    def beyond(self, passed: Passed | None) -> list[Line]:
        """Name a place from a job on, and from their bottoms those that follow; None: all."""
        places = sorted(self._everywhere(), key=_in_fixed_order)
        self._line = []
        if passed is not None:
            place, floor, past = passed
            places = places[bisect_right(places, _in_fixed_order(place), key=_in_fixed_order) :]
            self._line = [Line(*place, floor, past)]
        self._line += [Line(*one) for one in places]
        return self._line

    def _everywhere(self) -> dict[Place, int]:
        """Name every place, with its floor."""
        places = [(queue, level) for queue in self._queues for level in range(HIGHEST + 1)]
        floors = {place: self._floors.get(place, self._unmet_floor) for place in places}
        return {**floors, **self._unseen_floors()}

    def _from_floors(self) -> dict[Place, int]:
        """Name the places that are worth a look, with their floors."""
        return {**self._unmet(), **self._known(), **self._unseen_floors()}

    def _unseen_floors(self) -> dict[Place, int]:
        return {place: 0 for place in self._unseen if place not in self._floors}

    def _known(self) -> dict[Place, int]:
        """Give the floors; where nothing was met, each queue's last place has one too."""
        return self._floors or {(queue, 0): self.top_before for queue in self._queues}

    def _unmet(self) -> dict[Place, int]:
        """Name the places ahead of the last one in line that may have got a first job by now."""
        known = self._known()
        lowest = min((priority for _, priority in known), default=0)
        queues = {queue for queue, _ in known}
        above = range(lowest + 1, HIGHEST + 1)
        return {(queue, priority): self.top_before for queue in queues for priority in above}

    def learn(
        self,
        claims: Sequence[Claim],
        *,
        came_to_end: bool,
        began: float,
        ended: float,
        last: Place | None = None,
    ) -> None:
        """Learn from the claims of a look, and its time.

        Where it did not come to the end of the line, it came to the last of its jobs, or to the
        last of those that it looked at, if that is another one.
        """
        if self.whole:
            self._floors.clear()
            self._unseen = {(place.queue, place.priority) for place in self._line}
            took = ended - began
            again = seldom(began, ended)
            self._rests_until = again if took > COSTLY_SECONDS else 0.0
            self._allowed = ended + min(RESCAN_SECONDS, took / RESCAN_SHARE)
            self._due = max(self._due, again)
            self.top_before = self._top
            self._unmet_floor = self.top_before if came_to_end else 0
        if self._unseen:
            met = {last} if last else {(claim.queue, claim.priority) for claim in claims}
            self._unseen -= self._up_to(None if came_to_end else met)
        self._count(claims)
        self._top = max((self._top, *(claim.queued_seq for claim in claims)))
        # The oldest of each place comes first, and so has the last word here.
        self._floors.update({(c.queue, c.priority): c.queued_seq for c in reversed(claims)})

    def _up_to(self, met: set[Place] | None) -> set[Place]:
        """Name the places of the last look up to the last one of these; None: all of them."""
        places = [(place.queue, place.priority) for place in self._line]
        if met is None:
            return set(places)
        last = max((places.index(place) for place in met if place in places), default=-1)
        return set(places[: last + 1])

    def _in_turns(
        self, floors: Mapping[Place, int], *, sign: int = -1, queues: int | None = None
    ) -> list[Line]:
        """Put places in order: by priority, the highest first or last, and the queues in turns.

        With a number of `queues` only so many of them are named, by chance. The one that has had
        the fewest jobs comes first: large claims may take turns with small ones.
        """
        named = sorted({queue for queue, _ in floors})
        random.shuffle(named)
        named = sorted(named[:queues], key=lambda queue: self._had.get(queue, 0.0))
        ranks = {queue: rank for rank, queue in enumerate(named)}
        places = [place for place in floors if place[0] in ranks]
        places.sort(key=lambda place: (sign * place[1], ranks[place[0]]))
        return [Line(*place, floors[place]) for place in places]

    def _count(self, claims: Sequence[Claim]) -> None:
        """Count what each queue has had, and forget what is long past."""
        counted = Counter(claim.queue for claim in claims)
        had = {queue: jobs * REMEMBERED for queue, jobs in self._had.items() if jobs > FORGOTTEN}
        self._had = {queue: had.get(queue, 0.0) + counted[queue] for queue in {*had, *counted}}


def seldom(began: float, ended: float, *, most: float = RESCAN_MOST_SECONDS) -> float:
    """Say when a look that took so long is worth another one: few claims shall be as slow."""
    return ended + min(most, (ended - began) * RESCAN_TIMES)


class LeaseFloors:
    """From which number on live leases of keys and of queues are counted, where that is worth it.

    Behind an old snapshot each one's live leases stand among all its former ones, and a look that
    counts them from the bottom takes longer and longer. Where looks are quick, nothing is kept.
    """

    def __init__(self) -> None:
        self._floors: dict[tuple[str, str], int] = {}
        self._is_on = False
        self._forgotten_at = 0.0
        self._drawn: int | None = None
        """The number of the last leases of its own: it is on the disk, and others are larger."""

    def forget(self) -> None:
        """Begin anew: another server may answer now, with other numbers."""
        self._floors.clear()
        self._drawn = None

    def begin(self, now: float) -> None:
        """Begin a look: now and then with none of them."""
        if now >= self._forgotten_at + LEASES_SECONDS:
            self._floors.clear()
            self._forgotten_at = now

    @property
    def known(self) -> list[LeaseFloor] | None:
        """What the look is given; None: nothing, and it need not tell any."""
        if not self._is_on:
            return None
        return [(*place, floor) for place, floor in self._floors.items()]

    def learn(self, look: Look) -> None:
        """Learn from what a look took, and from what it told."""
        costly = look.took_us > max(COSTLY_US, COSTLY_KEY_US * (look.front + look.visited))
        # One that is quick by what is known, or counts none, says nothing of one that counts all.
        counts_all = bool(look.leases) and not self._floors
        self._is_on = costly or (self._is_on and not counts_all)
        for scope, name, told in look.leases or ():
            self._floors.pop((scope, name), None)
            floor = self._drawn if told == 0 else told
            if floor is not None:
                self._floors[scope, name] = floor
        self._drawn = look.drawn or self._drawn
        while len(self._floors) > LEASES_MOST:
            del self._floors[next(iter(self._floors))]


def _in_fixed_order(place: Place) -> tuple[int, str]:
    queue, priority = place
    return -priority, queue
