"""Operations on queues: pausing them, counting their jobs, and how many may wait in one."""

from collections.abc import Mapping

import msgspec

from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import NotFound
from milepost.records import Queue
from milepost.store import jobs
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant


def pause(queue: str, *, paused: bool, actor: str | None, reason: str | None = None) -> Steps[bool]:
    """Stop claims from a queue, or let them go on; False when that is how it was."""
    if reason is not None:
        check_text(reason, what="reason", most=PROSE_BYTES, blank=True)
    known = yield from paused_by_name()
    if known.get(queue, False) == paused:
        return False
    yield Call("queue_pause", {"name": queue, "paused": paused, "actor": actor, "reason": reason})
    return True


def paused_by_name() -> Steps[Mapping[str, bool]]:
    """Tell which known queues are paused."""
    rows = yield Call("queue_list")
    return {row[0]: bool(row[2]) for row in rows}


def listing() -> Steps[list[Queue]]:
    """Read every queue that is known or holds a job, by name."""
    rows = yield Call("queue_list")
    # A queue that was resumed has the time and the actor of that; it is not paused by them.
    known = {row[0]: Queue(row[0], {}) for row in rows}
    known |= {row[0]: Queue(row[0], {}, True, instant(row[3]), *row[4:]) for row in rows if row[2]}
    counted, most = (yield from jobs.counts()), (yield from bounds())
    return [
        msgspec.structs.replace(
            known.get(name) or Queue(name, {}),
            counts=counted.get(name, {}),
            max_waiting=most.get(name),
        )
        for name in sorted({*counted, *known, *most})
    ]


def require(name: str) -> Steps[Queue]:
    """Read one queue, or raise `NotFound` and name those that there are."""
    known = {queue.name: queue for queue in (yield from listing())}
    if name not in known:
        there = ", ".join(known) or "none"
        raise NotFound(f"no job was ever in a queue {name!r}; there are: {there}")
    return known[name]


def waiting() -> Steps[list[str]]:
    """Name the queues that have something to claim."""
    rows = yield Call("queue_waiting", alone=True)
    return [row[0] for row in rows]


def oldest() -> Steps[dict[str, float]]:
    """Tell for how many seconds the oldest job of each queue has been in it."""
    rows = yield Call("queue_oldest", alone=True)
    return {name: max(0.0, waited / 1e6) for name, waited in rows}


def declare(bounds: Mapping[str, int | None]) -> Steps[None]:
    """Store how many jobs may wait in each of these queues, None for any number.

    The program that started last wins.
    """
    for name, most in sorted(bounds.items()):
        yield Call("queue_bound", {"name": name, "max_waiting": most})


def bounds() -> Steps[dict[str, int]]:
    """Tell how many jobs may wait in each queue that has a bound."""
    rows = yield Call("queue_bounds", alone=True)
    return dict(rows)
