"""Operations on queues that a broker carries: the job is in its row, the broker has a hint of it.

A hint is written by the statement that queues its job, and removed by the claim. It is fenced like
a message: each telling has a new fence, and only the newest may record the result.
"""

from collections.abc import Mapping, Sequence
from secrets import token_hex

import msgspec

from milepost.outcome import micros
from milepost.records import Claim
from milepost.store.driver import Call, Rows, Steps
from milepost.store.jobs import claimed

STORE = "store"
"""The transport of queues whose workers look for jobs in the store themselves."""
LONGEST_SECONDS = 3600.0
"""The longest time between two tellings of a hint."""
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
    queue: str, *, most: int, batch: int, lease_seconds: float, actor: str
) -> Steps[list[Hint]]:
    """Queue the first jobs, with their hints, while fewer than so many are on their way."""
    given = {"queue": queue, "lease_us": micros(lease_seconds)}
    asked = {**given, "most": most, "batch": batch, "actor": actor}
    rows = yield Call("job_dispatch", asked, whole=True)
    if rows:
        ids, versions = [row[0] for row in rows], [row[1] for row in rows]
        rows = (yield Call("hint_write", {**given, "id": ids, "version": versions})) or rows
    return _hints(rows)


def adopt(queue: str, *, most: int, batch: int, lease_seconds: float) -> Steps[list[Hint]]:
    """Write the hints of queued jobs that have none (B-23)."""
    lease_us = micros(lease_seconds)
    given = {"queue": queue, "most": most, "batch": batch, "lease_us": lease_us}
    return _hints((yield Call("hint_adopt", given, alone=True)))


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
