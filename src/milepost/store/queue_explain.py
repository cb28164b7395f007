"""Why the jobs of a queue wait, who serves it, and what happens next."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import chain, repeat

import msgspec

from milepost.records import Queue, Worker
from milepost.store import brokers, limit_explain, queues
from milepost.store.brokers import QueueBroker
from milepost.store.driver import Call, Steps
from milepost.store.explain import NO_WORKER, Explanation, broker_away, limit_reasons
from milepost.store.instants import instant
from milepost.store.job_facts import live_workers, takes
from milepost.store.limit_explain import Limited
from milepost.store.phrases import moment, none_of, some, span
from milepost.store.reasons import LimitReason, QueueReason, Reason

Q = QueueReason
WAITS = ("job waits", "jobs wait")
LOST = (
    "the first worker that runs takes the jobs away whose workers are gone;"
    " those with attempts left run again"
)
IN_LINE = 1_000
"""So many jobs of a queue's line are looked at: does a worker know their kinds?"""


def explain_queue(name: str) -> Steps[Explanation]:
    """Say whether jobs of a queue are claimed, and by which workers."""
    listed, oldest = yield from queues.standing()
    queue, live = queues.named(listed, name), (yield from live_workers())
    kinds = yield from first_kinds(name, live)
    broker = (yield from brokers.queues([queue])).get(name)
    [(now,)] = yield Call("clock_now")
    first = yield from limit_explain.first_of_queue(name, instant(now))
    return explained_queue(QueueFacts(queue, oldest.get(name), live, kinds, broker, first))


class QueueFacts(msgspec.Struct, frozen=True):
    """What there is to know of a queue."""

    queue: Queue
    age: float | None
    """For how many seconds its oldest job has been in it."""
    live: Sequence[Worker]
    kinds: Sequence[tuple[str, int, int]] = ()
    """Of the first jobs in line: kind, version, and how many."""
    broker: QueueBroker | None = None
    """How it stands on its broker, if it is on one."""
    first: Limited | None = None
    """The limits that its first job in line is under, if it is under one."""


def first_kinds(name: str, live: Sequence[Worker]) -> Steps[list[tuple[str, int, int]]]:
    """Tell what the first jobs in line are, if some worker serves the queue."""
    if not any(takes(worker, name) for worker in live):
        return []
    return (yield from queues.kinds(name, most=IN_LINE))


def explained_queue(facts: QueueFacts) -> Explanation:
    """Say it of what was looked up."""
    queue, age, live = facts.queue, facts.age, facts.live
    name = queue.name
    why: list[tuple[QueueReason | LimitReason, str]] = []
    if queue.paused:
        since = f" since {moment(queue.paused_at)}" if queue.paused_at else ""
        said = f": {queue.reason}" if queue.reason else ""
        by = f"it was paused by {queue.paused_by or 'somebody'}{since}{said}"
        why.append((Q.PAUSED, by))
    why += _unserved(name, facts.kinds, live)
    why += _limited(facts)
    why += [] if facts.broker is None else on_broker(facts.broker)
    waiting = queue.counts.get("QUEUED", 0) + queue.counts.get("READY", 0)
    if queue.max_waiting is not None and waiting >= queue.max_waiting:
        why.append((Q.FULL, f"it is full: {waiting:,} of {queue.max_waiting:,} wait"))
    serving = sum(takes(worker, name) for worker in live)
    oldest = f", the oldest for {span(age)}" if age else ""
    busy = queue.counts.get("RUNNING", 0)
    if busy and not live:
        held = some(busy, "job is", "jobs are")
        why.append((Q.LEASE_OVER, f"{held} held by workers that are gone"))
    waits = some(waiting, *WAITS) + oldest
    serves = some(serving, "live worker serves", "live workers serve")
    line = f"{waits}; {some(busy, 'runs', 'run')}; {serves} it"
    why.append((Q.IN_LINE if waiting else Q.EMPTY, line))
    state = "paused" if queue.paused else "active"
    then = _queue_next(facts, {word for word, _ in why})
    return Explanation.of("queue", name, iter(why), kind="queue", state=state, then=then)


def _limited(facts: QueueFacts) -> list[tuple[LimitReason, str]]:
    """Say which limits keep the first job in line that is under one."""
    if facts.first is None:
        return []
    told = limit_reasons(facts.first, facts.queue.name, facts.live)
    first = f"its first job under a limit, {facts.first.job.id}, waits"
    waits = chain([first], repeat("that job waits, too"))
    return [(word, f"{start}: {text}") for start, (word, text) in zip(waits, told, strict=False)]


def on_broker(found: QueueBroker) -> list[tuple[QueueReason, str]]:
    """Say how a queue stands that is on a broker: whether that answers, and what it was told."""
    kind, stand, report = found.kind, found.stand, found.report
    if report is None:
        return [(Q.UNREPORTED, f"it is on {kind}, and no worker has served it there lately")]
    why = []
    if (away := broker_away(report)) is not None:
        why.append((Q.BROKER_AWAY, away))
    if stand is not None and stand.error is not None:
        count = some(stand.untold, "hint was", "hints were")
        why.append((Q.UNTOLD, f"{count} not taken: {stand.error}"))
    if report.dead:
        count = some(report.dead, "hint is", "hints are")
        why.append((Q.DEAD_HINTS, f"{count} dead on the broker: it is told of their jobs again"))
    told = f"it is on {kind} at {report.address}"
    if stand is not None:
        often = f", up to {stand.tellings} times" if stand.tellings > 1 else ""
        count = some(stand.told, "job was", "jobs were")
        oldest = f"the oldest handed out {span(stand.oldest)} ago"
        told += f": {count} told{often}, {stand.untold:,} yet to be, {oldest}"
    figures = report.figures.items() if report.up else ()  # else they are old
    counts = ", ".join(f"{n:,} {word.replace('_', ' ')}" for word, n in figures)
    return [*why, (Q.ON_BROKER, told + (f"; the broker has {counts}" if counts else ""))]


def _unserved(
    name: str, kinds: Sequence[tuple[str, int, int]], live: Sequence[Worker]
) -> list[tuple[QueueReason, str]]:
    if not live:
        return [(Q.NO_WORKER, NO_WORKER)]
    if not any(takes(worker, name) for worker in live):
        return [(Q.NO_WORKER_FOR_QUEUE, none_of(len(live), "serve", "it"))]
    return [
        (
            Q.NO_WORKER_FOR_KIND,
            f"none of its live workers knows {kind} version {version}: {_first(count)} for one",
        )
        for kind, version, count in kinds
        if not any(takes(worker, name, kind, version) for worker in live)
    ]


def _first(count: int) -> str:
    return f"at least {count:,} jobs wait" if count >= IN_LINE else some(count, *WAITS)


def _queue_next(facts: QueueFacts, words: set[QueueReason | LimitReason]) -> str:
    if Q.PAUSED in words:
        resume = f"milepost queues resume {shlex.quote(facts.queue.name)}"
        return f"nothing, until it is resumed: `{resume}`"
    if Q.IN_LINE not in words:
        return LOST if Q.LEASE_OVER in words else "nothing waits"
    if facts.first is not None and (command := limit_explain.opening_command(facts.first, "queue")):
        return f"nothing, until its limit is raised: `{command}`"
    found = (then for cause, then in QUEUE_NEXT.items() if words & set(cause))
    return next(found, "the next free worker claims the oldest job")


QUEUE_NEXT: Mapping[tuple[Reason, ...], str] = {
    (
        *(Q.NO_WORKER, Q.NO_WORKER_FOR_QUEUE),
        Q.NO_WORKER_FOR_KIND,
    ): "the first worker that serves it and knows the kind claims the oldest job",
    tuple(LimitReason): ("jobs that their limits let start are claimed, free keys first"),
    (Q.BROKER_AWAY,): "workers claim its jobs from the store while the broker is away",
    (Q.ON_BROKER, Q.UNREPORTED): (
        "a worker tells the broker, and whichever gets the hint claims the job"
    ),
}
"""What follows for a queue with jobs in line, by the reasons; the one that stands first wins."""
