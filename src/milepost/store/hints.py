"""Operations on queues that a broker carries: the job is in its row, the broker has a hint of it.

A hint is written by the statement that queues its job, and removed by the claim. It is fenced like
a message: each telling has a new fence, and only the newest may record the result.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from secrets import token_hex
from typing import Any, NamedTuple

import msgspec

from milepost.options import HIGHEST
from milepost.outcome import micros
from milepost.records import Claim
from milepost.store.choice import SLACK_US, rule_of
from milepost.store.driver import Call, Rows, Steps
from milepost.store.jobs import claimed
from milepost.store.rules import Limit, rules

STORE = "store"
"""The transport of queues whose workers look for jobs in the store themselves."""
LONGEST_SECONDS = 3600.0
"""The longest time between two tellings of a hint."""
LOOK = 1_000
"""How many jobs that wait for a broker are looked at at once, where any is under a limit."""
FRESH_SECONDS = 30.0
"""How long the word of a broker counts that it has hints waiting; it is asked every 15."""


class Hint(msgspec.Struct, frozen=True):
    """A hint in the hand of the one who tells it."""

    job_id: str
    version: int
    fence: int

    @property
    def message_id(self) -> str:
        """What a broker knows this telling by: the next one is a message of its own (B-10)."""
        return f"{self.job_id}.{self.version}.{self.fence}"


class Place(NamedTuple):
    """Where a job stands among those that wait for the broker of their queue."""

    priority: int
    seq: int
    number: int
    """Its rowid: on SQLite several share a `seq`."""


TOP = Place(HIGHEST + 1, 0, 0)


class Standing(msgspec.Struct, frozen=True):
    """Where a job stands that could not be claimed."""

    state: str
    queue: str
    word: str
    paused: bool
    limited: bool
    """Whether it, or its queue, is under a limit."""


def name() -> Steps[str]:
    """Read the store's own name, which its topics carry; the first to ask gives it one."""
    found = yield Call("store_name")
    if not found:
        yield Call("store_give_name", {"name": token_hex(6)})
        found = yield Call("store_name")
    return str(found[0][0])


def declare(transports: Mapping[str, str]) -> Steps[None]:
    """Store where the jobs of each of these queues wait; the program that started last wins."""
    known = dict((yield Call("queue_transports")))
    for queue, transport in sorted(transports.items()):
        if known.get(queue, STORE) != transport:
            yield Call("queue_transport", {"name": queue, "transport": transport})


# Telling


def dispatch(
    queue: str,
    *,
    most: int,
    batch: int,
    lease_seconds: float,
    actor: str,
    kinds: Collection[str] | None = None,
) -> Steps[list[Hint]]:
    """Queue the first jobs, with their hints, while fewer than so many are on their way."""
    given: dict[str, Any] = {"lease_seconds": lease_seconds, "actor": actor, "kinds": kinds}
    found, _ = yield from dispatch_behind(queue, None, most=most, batch=batch, **given)
    return found


def dispatch_behind(
    queue: str,
    after: Place | None,
    *,
    most: int,
    batch: int,
    lease_seconds: float,
    actor: str,
    kinds: Collection[str] | None = None,
) -> Steps[tuple[list[Hint], Place | None]]:
    """Queue the first jobs behind a place, with their hints; None: from the top.

    Answers also with the place to go on behind, where there are jobs under limits and those that
    were looked at leave room for others. Jobs under limits are left to those who know their kinds:
    one that nobody runs must not take the place of its key or its queue.
    """
    known = {named: rule.limit for named, rule in (yield from rules()).items()}
    limited = {name: limit for (scope, name), limit in known.items() if scope == "job"}
    own = known.get(("queue", queue))
    ids, last = None, None
    if limited or own is not None:
        rooms = {"most": most, "batch": batch}
        ids, last = yield from _first_of_keys(
            queue, after or TOP, limited=limited, own=own, kinds=kinds, **rooms
        )
        if not ids:
            return [], last
    given = {"queue": queue, "lease_us": micros(lease_seconds)}
    asked = {**given, "most": most, "batch": batch, "actor": actor, "id": ids}
    rows = yield Call("job_dispatch", asked, whole=True)
    if rows:
        ids, versions = [row[0] for row in rows], [row[1] for row in rows]
        rows = (yield Call("hint_write", {**given, "id": ids, "version": versions})) or rows
    return _hints(rows), last


def _first_of_keys(
    queue: str,
    after: Place,
    *,
    limited: Mapping[str, Limit],
    own: Limit | None,
    kinds: Collection[str] | None,
    most: int,
    batch: int,
) -> Steps[tuple[list[str], Place | None]]:
    """Choose jobs so that those of a key that its limit blocks do not take the room of others."""
    asked = {"queue": queue, "limited": own is not None}
    [(there, paused, *stand)] = yield Call("hint_room", asked, alone=True)
    room: float = 0 if paused else min(batch, most - there)
    if own is not None:
        room = min(room, _room(own, *stand))
    if room <= 0:
        return [], None
    rows = yield Call("hint_line", {"queue": queue, **after._asdict(), "most": LOOK}, alone=True)
    found = [_Ready(row[0], row[1], row[2], row[3], Place(*row[4:])) for row in rows]
    found = sorted(found, key=lambda one: (-one.place.priority, *one.place[1:]))[:LOOK]
    keys = sorted({one.key for one in found if one.key})
    rows = (yield Call("hint_keys", {"queue": queue, "key": keys}, alone=True)) if keys else []
    # All keys together leave something of the room.
    share = max(1, most // (len(rows) + 1))
    stands = {row[0]: _Key(limited.get(rule_of(row[0])), share, _There(*row[1:])) for row in rows}
    ids: list[str] = []
    for one in found:
        key = stands[one.key] if one.key else None
        if (key or own is not None) and kinds is not None and one.kind not in kinds:
            if key:
                key.skip()
        elif len(ids) < room and (key is None or key.takes(one)):
            ids.append(one.id)
    is_end = len(ids) >= room or len(found) < LOOK
    return ids, None if is_end else found[-1].place


def _room(limit: Limit, there: int, running: int, ahead_us: float) -> float:
    """Tell how many more jobs of a queue may start, besides those that are on its broker."""
    room = inf if limit.most is None else limit.most - running
    if limit.rate is not None:
        left_us = limit.burst_us - max(0.0, float(ahead_us)) + SLACK_US
        room = min(room, left_us // limit.unit_us)
    return room - there


class _Ready(NamedTuple):
    """A job that waits for its broker."""

    id: str
    key: str | None
    units: float
    kind: str
    place: Place


class _There(NamedTuple):
    """How many jobs of a key are on the broker, and what keeps others from it."""

    jobs: int
    units: float
    seq: int | None
    """The place of the first one."""
    number: int
    running: int
    turns: int
    """How many keep the turn of an ordered key between two attempts."""
    ahead_us: float


class _Key:
    """How many more jobs of a key are handed out: as many as may start, so no hint is useless."""

    def __init__(self, limit: Limit | None, share: int, there: _There) -> None:
        self._there = there
        self._limit = limit or Limit()
        self._left = share - there.jobs
        if self._limit.ordered:
            self._left = min(self._left, 1 - there.jobs - there.running - there.turns)
        elif self._limit.most is not None:
            self._left = min(self._left, self._limit.most - there.jobs - there.running)
        self._units = there.units
        self._closed = False

    def skip(self) -> None:
        """Leave the next one to others: no later one passes it if the key is ordered."""
        self._closed = self._limit.ordered

    def takes(self, one: _Ready) -> bool:
        """Take this job, the next one in line, or say that it has to wait."""
        if self._closed:
            return False
        if not (self._is_first(one.place) if self._left <= 0 else self._is_earned(one)):
            self._units += one.units  # smaller ones behind it must not take them
            return False
        self._left -= 1
        self._units += one.units
        return True

    def _is_earned(self, one: _Ready) -> bool:
        """Tell whether the bucket has what it takes; one that takes more waits until it is full."""
        limit, ahead_us = self._limit, max(0.0, float(self._there.ahead_us))
        if limit.rate is None:
            return True
        taken_us = (self._units + one.units) * limit.unit_us
        return taken_us <= limit.burst_us - ahead_us or (not self._units and ahead_us <= 0)

    def _is_first(self, place: Place) -> bool:
        """Tell whether it has the turn of an ordered key, before those that are there."""
        there = self._there
        if not self._limit.ordered or there.seq is None or there.running + there.turns:
            return False
        first = self._left == 1 - there.jobs  # none was taken before it
        return first and (place.seq, place.number) < (there.seq, there.number)


def adopt(queue: str, *, most: int, batch: int, lease_seconds: float) -> Steps[list[Hint]]:
    """Write the hints of queued jobs that have none (B-23), if they are under no limit."""
    if ("queue", queue) in (yield from rules()):
        return []
    lease_us = micros(lease_seconds)
    given = {"queue": queue, "most": most, "batch": batch, "lease_us": lease_us}
    return _hints((yield Call("hint_adopt", given)))


def any_left(queue: str) -> Steps[bool]:
    """Tell whether jobs under a limit are queued without a hint: workers have to look for them."""
    [(found,)] = yield Call("hint_left", {"queue": queue}, alone=True)
    return bool(found)


def take(queue: str, *, batch: int, lease_seconds: float) -> Steps[list[Hint]]:
    """Take hints that are due to be told again and may be lost; dead ones leave (B-11)."""
    yield Call("hint_clean", {"queue": queue})
    spans = {"lease_us": micros(lease_seconds), "fresh_us": micros(FRESH_SECONDS)}
    given = {"queue": queue, "batch": batch, **spans}
    return _hints((yield Call("hint_take", given)))


def told(hints: Sequence[Hint], *, again_seconds: float) -> Steps[None]:
    """Record that the broker has these; each is told again, after twice the time each time."""
    spans = {"again_us": micros(again_seconds), "longest_us": micros(LONGEST_SECONDS)}
    yield Call("hint_told", {**_held(hints), **spans}, alone=True)


def untold(hints: Sequence[Hint], *, error: str, delay_seconds: float) -> Steps[None]:
    """Record why the broker did not take these, and when they are tried again."""
    given = {**_held(hints), "error": error, "delay_us": micros(delay_seconds)}
    yield Call("hint_untold", given, alone=True)


def _held(hints: Sequence[Hint]) -> dict[str, list[str] | list[int]]:
    ordered = sorted(hints, key=lambda hint: hint.job_id)
    return {"id": [hint.job_id for hint in ordered], "fence": [hint.fence for hint in ordered]}


def _hints(rows: Rows) -> list[Hint]:
    return [Hint(*row) for row in rows]


# Maintenance


def undispatch(*, actor: str, most: int, limit_seconds: float) -> Steps[int]:
    """Take back jobs that were handed to a broker and not claimed in time, with their hints."""
    given = {"limit_us": micros(limit_seconds), "most": most}
    rows = yield Call("job_undispatch", {**given, "actor": actor})
    yield Call("hint_forget", given)
    return len(rows)


def enqueue(
    queues: Sequence[str] | None, *, actor: str, most: int, detail: str | None = None
) -> Steps[int]:
    """Queue jobs without a hint, for workers that scan; None: of every queue."""
    if queues is None:
        queues = [row[0] for row in (yield Call("queue_ready"))]
    if not queues:
        return 0
    given = {"queue": list(queues), "most": most, "actor": actor, "detail": detail}
    return len((yield Call("job_enqueue", given)))


def enqueue_left(*, actor: str, most: int) -> Steps[int]:
    """Queue jobs that wait for a broker in a queue that is on none any more."""
    left = [queue for queue, transport in (yield Call("queue_ready")) if transport == STORE]
    if not left:
        return 0
    moved = yield from enqueue(left, actor=actor, most=most, detail="the queue is on no broker")
    yield Call("worker_hint")
    return moved


# Claiming


def claim(
    ids: Sequence[str], *, worker_id: str, queue: str, kinds: Sequence[str]
) -> Steps[list[Claim]]:
    """Take the jobs that hints name, as far as any worker could; their hints leave with it."""
    given = {"worker_id": worker_id, "id": list(ids), "queue": queue, "kinds": list(kinds)}
    rows = yield Call("job_claim_hinted", given, whole=True)
    claims = yield from claimed(rows, worker_id=worker_id)
    if claims:
        yield Call("hint_heard", {"id": [claim.id for claim in claims]})
    return claims


def standing(ids: Sequence[str]) -> Steps[dict[str, Standing]]:
    """Tell where jobs stand that could not be claimed; those that there are none of are missing."""
    rows = yield Call("hint_standing", {"id": list(ids)}, alone=True)
    return {row[0]: Standing(row[1], row[2], row[3], bool(row[4]), bool(row[5])) for row in rows}
