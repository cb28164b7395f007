"""Queues and workers: backlog and capacity are one question."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.codec import check_text
from milepost.errors import NotFound
from milepost.records import Queue, Worker
from milepost.store import brokers, limit_explain, queues, tally
from milepost.store.brokers import QueueBroker
from milepost.store.driver import Steps
from milepost.store.job_facts import is_live, takes
from milepost.store.queue_explain import QueueFacts, explained_queue, first_kinds
from milepost.store.reasons import QueueReason
from milepost.store.tally import MoveCount
from milepost.web.call import Call, OperateCall, ReadCall
from milepost.web.dashboard import words
from milepost.web.dashboard.facts import LATE_SECONDS, Counts, Facts
from milepost.web.dashboard.overview import worst
from milepost.web.dashboard.page import (
    PageRoute,
    View,
    acted,
    ask_first,
    command,
    confirmation,
    form_of,
    one,
    show,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)
PACE_SECONDS = 300
INTO = frozenset({"create", "submit", "open", "wake", "due"})
OUT_OF = frozenset({"claim"})
STOPPED_SHOWN, STOPPED_MOST = timedelta(hours=1), 6
"""For how long workers are shown that stopped, and how many of them."""


CALM = frozenset({QueueReason.IN_LINE, QueueReason.EMPTY, QueueReason.ON_BROKER})
"""First reasons of a queue that is as it should be."""


class QueueRow(msgspec.Struct, frozen=True):
    """A queue as its line shows it."""

    queue: Queue
    oldest: float | None
    open: int
    put_in: float
    taken: float
    outlook: str
    breaks: bool
    broker: str = ""
    """What there is to say of its broker, if it is on one."""
    broker_told: str = ""
    """What that counts."""
    broken: bool = False
    """Whether that does not answer, or does not take what it is told."""
    limit: str = ""
    """What its own limit allows, if it has one."""


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as its line shows it."""

    worker: Worker
    live: bool
    busy: int
    slots: int
    share: float
    serves: str
    glyph: str

    @property
    def name(self) -> str:
        """Its machine and process."""
        return f"{self.worker.host}/{self.worker.pid}" if self.worker.host else self.worker.id


class Found(msgspec.Struct, frozen=True):
    """What the page reads."""

    queues: Sequence[Queue]
    oldest: Mapping[str, float]
    moves: Sequence[MoveCount]
    brokers: Mapping[str, QueueBroker]


def _read(now: datetime, counted: Counts) -> Steps[Found]:
    listed, oldest = yield from queues.standing(counted)
    carried = yield from brokers.queues(listed)
    since = now - timedelta(seconds=PACE_SECONDS)
    moves = yield from tally.moves(since, now, by=("move", "queue"))
    return Found(listed, oldest, moves, carried)


@router.get("/queues")
async def listing(*, call: ReadCall, name: str | None = None) -> Response:
    """Show queues, the worst first, why one of them stands still, and workers."""

    async def load() -> View:
        return await _view(call, name)

    return await show(call, load)


def _cli(name: str | None) -> str:
    if name is None:
        return "milepost queues ls; milepost workers ls"
    return command("explain", "queue", name)


async def _view(call: Call, name: str | None) -> View:
    # Its counts and its pause are of every tenant's jobs.
    call.principal.check_unbound("a queue", queues=False)
    state = call.request.app.state
    now = await state.rail.now()
    read = await call.run(_read, now, await state.counts.read())
    seen = [queue for queue in read.queues if call.principal.sees_queue(queue.name)]
    facts: Facts = await state.facts.read()
    found = facts.workers if call.principal.queues is None else []
    rows = rows_of(seen, read.oldest, read.moves, found, now)
    rows = [_with_broker(row, read.brokers.get(row.queue.name)) for row in rows]
    limits = facts.queue_limits
    rows = [msgspec.structs.replace(row, limit=limits.get(row.queue.name, "")) for row in rows]
    rows.sort(key=lambda row: not row.breaks)
    asked = name if name in {queue.name for queue in seen} else _stuck(rows)
    explained = None
    if asked is not None:
        queue = queues.named(seen, asked)
        explained = explained_queue(await call.run(_facts, queue, read, facts.live, now))
    return View(
        template="queues/page.html",
        title="Queues & workers",
        section="queues",
        cli=_cli(name if name == asked else None),
        values={
            "rows": rows,
            "workers": workers_of(found, now),
            "explained": explained,
            "calm": explained is not None and explained.reasons[0] in CALM,
            "now": now,
        },
        parts={
            "queue-list": "queues/list.html",
            "queue-why": "queues/why.html",
            "worker-list": "queues/workers.html",
        },
    )


def _facts(queue: Queue, read: Found, live: Sequence[Worker], now: datetime) -> Steps[QueueFacts]:
    """Look up what explains how a queue stands."""
    name = queue.name
    kinds = yield from first_kinds(name, live)
    first = yield from limit_explain.first_of_queue(name, now)
    return QueueFacts(queue, read.oldest.get(name), live, kinds, read.brokers.get(name), first)


def _stuck(rows: Sequence[QueueRow]) -> str | None:
    return next((row.queue.name for row in rows if row.breaks), None)


def rows_of(
    found: Sequence[Queue],
    oldest: Mapping[str, float],
    moves: Sequence[MoveCount],
    known: Sequence[Worker],
    now: datetime,
) -> list[QueueRow]:
    """Put together what each queue's line shows, the worst first."""
    put_in = _rates(moves, INTO)
    taken = _rates(moves, OUT_OF)
    rows = []
    for queue, waited, still_open in worst(found, oldest):
        pace = (put_in.get(queue.name, 0.0), taken.get(queue.name, 0.0))
        outlook, breaks = outlook_of(queue, waited, pace, known, now)
        rows.append(QueueRow(queue, waited, still_open, *pace, outlook, breaks))
    return sorted(rows, key=lambda row: not row.breaks)


def _with_broker(row: QueueRow, found: QueueBroker | None) -> QueueRow:
    """Add what there is to say of the broker that a queue is on."""
    if found is None:
        return row
    stand, report = found.stand, found.report
    told, counted, broken = [f"on {found.kind}"], "", False
    if report is None or report.stale:
        told.append("nobody serves it there")
        broken = bool(row.open)
    elif not report.up:
        told.append("it does not answer")
        broken = True
    else:
        words = report.figures.items()
        counted = ", ".join(f"{count:,} {word.replace('_', ' ')}" for word, count in words)
        told += [f"{report.dead:,} dead"] if report.dead else []
        broken = bool(report.dead)
    if stand is not None:
        told.append(f"{stand.told:,} told, {stand.untold:,} to tell")
        broken = broken or stand.error is not None
    return msgspec.structs.replace(
        row,
        broker=" · ".join(told),
        broker_told=counted,
        broken=broken,
        breaks=row.breaks or broken,
    )


def _rates(moves: Sequence[MoveCount], names: frozenset[str]) -> dict[str, float]:
    counted: dict[str, int] = {}
    for move in moves:
        if move.move in names and move.queue is not None:
            counted[move.queue] = counted.get(move.queue, 0) + move.count
    return {name: count / PACE_SECONDS for name, count in counted.items()}


def waiting_of(queue: Queue) -> int:
    """Count the jobs that could be claimed: in the queue, or about to be told its broker."""
    return queue.counts.get("QUEUED", 0) + queue.counts.get("READY", 0)


def outlook_of(
    queue: Queue,
    waited: float | None,
    pace: tuple[float, float],
    known: Sequence[Worker],
    now: datetime,
) -> tuple[str, bool]:
    """Say what becomes of a queue at this pace, and whether somebody should look."""
    waiting = waiting_of(queue)
    if queue.paused:
        since = words.duration((now - queue.paused_at).total_seconds()) if queue.paused_at else ""
        return f"paused {since} by {queue.paused_by or 'somebody'}", bool(waiting)
    if not waiting:
        return "empty", False
    if known and not any(is_live(worker) and takes(worker, queue.name) for worker in known):
        return "no worker serves it", True
    late = (waited or 0.0) > LATE_SECONDS
    put_in, taken = pace
    if taken <= put_in:
        grows = f"grows, {words.rate(put_in - taken)}" if put_in > taken else "does not shrink"
        return grows, late
    return f"empty in {words.duration(waiting / (taken - put_in))}", late


def workers_of(found: Sequence[Worker], now: datetime) -> list[WorkerRow]:
    """Put together what each worker's line shows: those alive, then those that stopped lately."""
    ended = [
        worker
        for worker in found
        if not is_live(worker) and now - worker.heartbeat_at < STOPPED_SHOWN
    ]
    # Those that were lost first: of those that were told to stop, few are enough.
    ended.sort(key=lambda worker: (worker.move != "bury", now - worker.heartbeat_at))
    live = [_worker_row(worker) for worker in found if is_live(worker)]
    rows = [_worker_row(worker) for worker in ended[:STOPPED_MOST]]
    return [*sorted(live, key=lambda row: row.name), *rows]


GLYPHS = {"IDLE": "queued", "BACKOFF": "queued", "DRAINING": "stopping", "ERROR_WAIT": "retrying"}


def _worker_row(worker: Worker) -> WorkerRow:
    slots: dict[str, int] = msgspec.json.decode(worker.slots or "{}")
    served = msgspec.json.decode(worker.queues or "null")
    live = is_live(worker)
    every = sum(slots.values())
    length = (worker.lease_until - worker.heartbeat_at).total_seconds() or 1.0
    return WorkerRow(
        worker,
        live,
        every - slots.get("FREE", 0),
        every,
        max(0.0, min(1.0, worker.lease_seconds / length)),
        "every queue" if served is None else ", ".join(served),
        GLYPHS.get(worker.state, "running") if live else "cancelled",
    )


def _visible(call: Call, name: str) -> str:
    call.principal.check_unbound("a queue", queues=False)
    if not call.principal.sees_queue(name):
        raise NotFound(f"no job is in a queue {name!r}")
    return check_text(name, what="queue")


async def _asked(call: Call, name: str, action: str) -> Response:
    queue = await call.run(queues.require, _visible(call, name))
    values: dict[str, Any] = {"queue": queue, "action": action}
    title = f"{action.capitalize()} queue {name}"
    return await confirmation(
        call,
        "queues/confirm.html",
        title=title,
        section="queues",
        values=values,
        cli=command("queues", action, name),
    )


ask_first(router, "/queues", ("pause", "resume"), _asked)


@router.post("/queues/{name}/pause")
async def pause(*, name: str, call: OperateCall) -> Response:
    """Let nobody claim from a queue."""
    reason = one(await form_of(call), "reason") or None
    actor = call.principal.actor
    await call.run(queues.pause, _visible(call, name), paused=True, actor=actor, reason=reason)
    return acted(call, "pause queue", name, "/queues", name=name)


@router.post("/queues/{name}/resume")
async def resume(*, name: str, call: OperateCall) -> Response:
    """Let claims from a queue go on."""
    await form_of(call)
    actor = call.principal.actor
    await call.run(queues.pause, _visible(call, name), paused=False, actor=actor)
    return acted(call, "resume queue", name, "/queues", name=name)
