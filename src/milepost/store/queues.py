"""Operations on queues: pausing them, counting their jobs, and how many may wait in one."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import NotFound
from milepost.records import Queue
from milepost.store import jobs
from milepost.store.driver import Call, Rows, Steps
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
    return {row[0]: bool(row[1]) for row in rows}


def listing() -> Steps[list[Queue]]:
    """Read every queue that is known or holds a job, by name."""
    return (yield from standing())[0]


def standing(
    counted: Mapping[str, Mapping[str, int]] | None = None,
) -> Steps[tuple[list[Queue], dict[str, float]]]:
    """Read every queue, and for how many seconds the oldest job of each has been in it.

    A caller that has `counted` their jobs, by `jobs.counts`, saves that.
    """
    rows = yield Call("queue_list")
    if counted is None:
        counted = yield from jobs.counts()
    known = {row[0]: _queue(row) for row in rows}
    listed = [
        msgspec.structs.replace(known.get(name) or Queue(name, {}), counts=counted.get(name, {}))
        for name in sorted({*counted, *known})
    ]
    return listed, _waited(rows)


def _queue(row: Sequence[Any]) -> Queue:
    name, paused, at, actor, reason, most, transport, _ = row
    found = Queue(name, {}, max_waiting=most, transport=transport or "store")
    if not paused:  # who resumed it, and when, are no pause
        return found
    pause = {"paused": True, "paused_at": instant(at), "paused_by": actor, "reason": reason}
    return msgspec.structs.replace(found, **pause)


def _waited(rows: Rows) -> dict[str, float]:
    return {row[0]: max(0.0, row[-1] / 1e6) for row in rows if row[-1] is not None}


def require(name: str) -> Steps[Queue]:
    """Read one queue, or raise `NotFound` and name those that there are."""
    return named((yield from listing()), name)


def named(listed: Sequence[Queue], name: str) -> Queue:
    """Give one of these queues, or raise `NotFound` and name them all."""
    known = {queue.name: queue for queue in listed}
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
    return _waited((yield Call("queue_list", alone=True)))


def kinds(name: str, *, most: int) -> Steps[list[tuple[str, int, int]]]:
    """Tell which kinds and versions the first jobs of a queue's line have, and how many."""
    rows = yield Call("queue_kinds", {"name": name, "most": most})
    return [tuple(row) for row in rows]


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
