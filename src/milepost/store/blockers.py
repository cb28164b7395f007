"""Why a run, a queue, a schedule, a channel or a pipeline stands still, and what happens next."""

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from milepost.errors import Invalid, NotFound
from milepost.lifecycle import JOB, RUN, Cause, RunState
from milepost.records import Queue, Run, StepCount, Worker
from milepost.store import (
    brokers,
    limit_explain,
    looks,
    outbox,
    pipelines,
    queues,
    runs,
    schedules,
    watermarks,
    workers,
)
from milepost.store.brokers import QueueBroker
from milepost.store.driver import Call, Steps
from milepost.store.explain import (
    NO_WORKER,
    Explanation,
    Why,
    broker_away,
    explain,
    is_live,
    limit_reasons,
    takes,
)
from milepost.store.failures import breaches
from milepost.store.instants import instant
from milepost.store.limit_explain import Limited
from milepost.store.looks import StepStand
from milepost.store.outbox import Channel
from milepost.store.phrases import moment, none_of, some, span
from milepost.store.watermarks import PipelineRow

WAITS = ("job waits", "jobs wait")
LOST = (
    "the first worker that runs takes the jobs away whose workers are gone;"
    " those with attempts left run again"
)
IN_LINE = 1_000
"""So many jobs of a queue's line are looked at: does a worker know their kinds?"""


def explain_any(subject: str, name: str) -> Steps[Explanation]:
    """Say why a job, run, queue, schedule, channel or pipeline stands where it does."""
    if subject not in EXPLAINED:
        raise Invalid(f"{subject!r} cannot be explained; there are {', '.join(EXPLAINED)}")
    return (yield from EXPLAINED[subject](name))


def _told(subject: str, name: str, why: Why, *, kind: str, state: str, then: str) -> Explanation:
    words, details = zip(*why, strict=True)
    return Explanation(name, kind, state, words, details, subject, then)


def _live() -> Steps[list[Worker]]:
    return [worker for worker in (yield from workers.listing()) if is_live(worker)]


# Runs


def explain_run(run_id: str) -> Steps[Explanation]:
    """Say which step and which job a run waits for."""
    run = yield from runs.get(run_id)
    steps = (yield from looks.stands([run_id])).get(run_id, [])
    if run.state in RUN.terminal:
        return explained_run(run, steps, None)
    found = yield from looks.reached(run_id, slowest=1)
    told = (yield from explain(found.nearest.id)) if found.nearest else (yield from within(run_id))
    return explained_run(run, steps, told)


def explained_run(run: Run, steps: Sequence[StepStand], told: Explanation | None) -> Explanation:
    """Say it of what was looked up: how its steps stand, and why its nearest job does."""
    if run.state in RUN.terminal:
        why, then = iter([_run_ended(run, steps)]), "nothing: a final state is final"
        if run.state != RunState.SUCCEEDED:
            then = f"nothing, unless it is resumed: `milepost runs resume {run.id}`"
        return _told("run", run.id, why, kind=run.kind, state=run.state, then=then)
    why = _run_waits(run, steps, told)
    return _told("run", run.id, why, kind=run.kind, state=run.state, then=_run_next(run, steps))


def within(run_id: str) -> Steps[Explanation | None]:
    """Explain the first batch within a batch that goes on; None where there is none."""
    for branch in (yield from runs.tree(run_id)):
        if branch.parent_id == run_id and branch.state not in RUN.terminal:
            return (yield from explain_run(branch.id))
    return None


def _run_ended(run: Run, steps: Sequence[StepStand]) -> tuple[str, str]:
    cause = f" ({run.cause})" if run.cause else ""
    told = breaches(steps) if run.cause == Cause.POLICY else []
    return run.state.lower(), ": ".join([f"it ended {run.state}{cause}", *told])


def _run_waits(run: Run, steps: Sequence[StepStand], told: Explanation | None) -> Why:
    if run.state == RunState.CREATED:
        yield "held", "it is still being filled or planned: nobody has submitted it yet"
    if run.state == RunState.STOPPING:
        yield "stopping", f"it ends {run.ending} once the jobs that run have ended"
    for step in steps:
        if step.open and (step.number <= run.current_step or run.state == RunState.STOPPING):
            yield "step", f"step {step.name} has {step.open} open{_by_state(step)}"
        elif step.open and step.gated and not step.opened:
            wait = some(step.open, *WAITS)
            yield "gate", f"the gate of step {step.name} is closed: {wait} at it"
    if told is not None:
        yield told.reasons[0], told.text
    if not any(step.open for step in steps) and run.state != RunState.CREATED:
        yield "overdue", "it has no open job: maintenance, which any worker does, moves it on"


def _by_state(step: StepStand) -> str:
    counts = [f"{n} {state}" for state, n in step.states.items() if state not in JOB.terminal]
    counts += [f"{step.more} more"] if step.more else []
    return f": {', '.join(counts)}" if counts else ""


def _run_next(run: Run, steps: Sequence[StepCount]) -> str:
    if run.state == RunState.CREATED:
        return "it begins when it is submitted, or its plan is stored"
    if run.state == RunState.STOPPING:
        return f"it becomes {run.ending} with the end of its last open job"
    later = [step for step in steps if step.number > run.current_step and step.role != "reduce"]
    if later and later[0].open:
        return f"step {later[0].name} goes on with the end of the last open job before it"
    if run.state != RunState.FINALIZING and any(step.role == "reduce" for step in steps):
        return "its reducer runs after the last open job"
    return "it ends with its last open job"


# Queues


def explain_queue(name: str) -> Steps[Explanation]:
    """Say whether jobs of a queue are claimed, and by which workers."""
    listed, oldest = yield from queues.standing()
    queue, live = queues.named(listed, name), (yield from _live())
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
    why: list[tuple[str, str]] = []
    if queue.paused:
        since = f" since {moment(queue.paused_at)}" if queue.paused_at else ""
        said = f": {queue.reason}" if queue.reason else ""
        by = f"it was paused by {queue.paused_by or 'somebody'}{since}{said}"
        why.append(("queue_paused", by))
    why += _unserved(name, facts.kinds, live)
    why += _limited(facts)
    why += [] if facts.broker is None else on_broker(facts.broker)
    waiting = queue.counts.get("QUEUED", 0) + queue.counts.get("READY", 0)
    if queue.max_waiting is not None and waiting >= queue.max_waiting:
        why.append(("full", f"it is full: {waiting:,} of {queue.max_waiting:,} wait"))
    serving = sum(takes(worker, name) for worker in live)
    oldest = f", the oldest for {span(age)}" if age else ""
    busy = queue.counts.get("RUNNING", 0)
    if busy and not live:
        held = some(busy, "job is", "jobs are")
        why.append(("lease_over", f"{held} held by workers that are gone"))
    waits = some(waiting, *WAITS) + oldest
    serves = some(serving, "live worker serves", "live workers serve")
    line = f"{waits}; {some(busy, 'runs', 'run')}; {serves} it"
    why.append(("in_line" if waiting else "empty", line))
    state = "paused" if queue.paused else "active"
    return _told("queue", name, iter(why), kind="queue", state=state, then=_queue_next(name, why))


def _limited(facts: QueueFacts) -> list[tuple[str, str]]:
    """Say which limits keep the first job in line that is under one."""
    if facts.first is None:
        return []
    told = limit_reasons(facts.first, facts.queue.name, facts.live)
    first = f"its first job under a limit, {facts.first.job.id}, waits"
    return [(word, f"{first}: {text}") for word, text in told]


def on_broker(found: QueueBroker) -> list[tuple[str, str]]:
    """Say how a queue stands that is on a broker: whether that answers, and what it was told."""
    kind, stand, report = found.kind, found.stand, found.report
    if report is None:
        return [("unreported", f"it is on {kind}, and no worker has served it there lately")]
    why = []
    if (away := broker_away(report)) is not None:
        why.append(("broker_away", away))
    if stand is not None and stand.error is not None:
        count = some(stand.untold, "hint was", "hints were")
        why.append(("untold", f"{count} not taken: {stand.error}"))
    if report.dead:
        count = some(report.dead, "hint is", "hints are")
        why.append(("dead_hints", f"{count} dead on the broker: the sweep tells anew"))
    told = f"it is on {kind} at {report.address}"
    if stand is not None:
        often = f", up to {stand.tellings} times" if stand.tellings > 1 else ""
        count = some(stand.told, "job was", "jobs were")
        oldest = f"the oldest handed out {span(stand.oldest)} ago"
        told += f": {count} told{often}, {stand.untold:,} yet to be, {oldest}"
    counts = ", ".join(f"{n} {word.replace('_', ' ')}" for word, n in report.figures.items())
    return [*why, ("on_broker", told + (f"; the broker has {counts}" if counts else ""))]


def _unserved(
    name: str, kinds: Sequence[tuple[str, int, int]], live: Sequence[Worker]
) -> list[tuple[str, str]]:
    if not live:
        return [("no_worker", NO_WORKER)]
    if not any(takes(worker, name) for worker in live):
        return [("no_worker_for_queue", none_of(len(live), "serve", "it"))]
    return [
        (
            "no_worker_for_kind",
            f"none of its live workers knows {kind} version {version}: {_first(count)} for one",
        )
        for kind, version, count in kinds
        if not any(takes(worker, name, kind, version) for worker in live)
    ]


def _first(count: int) -> str:
    return f"at least {count:,} jobs wait" if count >= IN_LINE else some(count, *WAITS)


def _queue_next(name: str, why: Sequence[tuple[str, str]]) -> str:
    words = {word for word, _ in why}
    if "queue_paused" in words:
        return f"nothing, until it is resumed: `milepost queues resume {shlex.quote(name)}`"
    if "in_line" not in words:
        return LOST if "lease_over" in words else "nothing waits"
    found = (then for cause, then in QUEUE_NEXT.items() if words & set(cause))
    return next(found, "the next free worker claims the oldest job")


QUEUE_NEXT = {
    ("no_worker", "no_worker_for_queue", "no_worker_for_kind"): (
        "the first worker that serves it and knows the kind claims the oldest job"
    ),
    ("limit", "turn", "rate", "queue_limit", "queue_rate"): (
        "jobs that their limits let start are claimed, those of keys that are free first"
    ),
    ("broker_away",): "workers claim its jobs from the store while the broker is away",
    ("on_broker", "unreported"): (
        "a worker tells the broker, and whichever gets the hint claims the job"
    ),
}
"""What follows for a queue with jobs in line, by the reasons; the one that stands first wins."""


# Schedules, channels, pipelines


def explain_schedule(name: str) -> Steps[Explanation]:
    """Say whether a schedule fires, and when."""
    listed = {schedule.name: schedule for schedule in (yield from schedules.listing())}
    if name not in listed:
        raise schedules.missing(name, listed)
    found = listed[name]
    live = yield from _live()
    why: list[tuple[str, str]] = []
    if found.state == "vanished":
        why.append(("vanished", "no running worker declares it: it is kept, and does not fire"))
    if found.paused:
        why.append(("paused", f"it was paused by {found.paused_by or 'somebody'}"))
    if not live:
        why.append(("no_worker", NO_WORKER))
    late = (found.read_at - found.next_at).total_seconds()
    if late > 0 and not why:
        why.append(
            ("overdue", f"it has been due for {span(late)}: a worker's maintenance fires it")
        )
    last = "it never fired"
    if found.last_at is not None:
        fired = some(found.fired, "time")
        last = f"it fired {fired}, last at {moment(found.last_at)}: {found.last_job_id}"
    why.append(("fired", last))
    then = f"it fires at {moment(found.next_at)}"
    if found.state == "paused":
        then = f"nothing, until it is resumed: `milepost schedules resume {shlex.quote(name)}`"
    elif found.state == "vanished" or not live:
        then = "nothing, until a worker of the program that declares it runs"
    return _told("schedule", name, iter(why), kind=found.kind, state=found.state, then=then)


def explain_channel(name: str) -> Steps[Explanation]:
    """Say whether messages leave through a channel, and what keeps them."""
    known = {channel.name: channel for channel in (yield from outbox.known())}
    if name not in known:
        raise NotFound(f"there is no channel {name!r}; there are: {', '.join(known) or 'none'}")
    channel, live = known[name], (yield from _live())
    ages = {each: age for each, _, age in (yield from outbox.waiting())}
    why = _channel_hindered(channel, live)
    if (failing := (yield from outbox.failing(name))) is not None:
        attempts, error = failing
        why.append(("failing", f"a message failed {some(attempts, 'time')}, last with: {error}"))
    if channel.dead:
        dead = f"`milepost channels dead {shlex.quote(name)}`"
        count = some(channel.dead, "message is", "messages are")
        why.append(("dead", f"{count} dead: {dead}"))
    age = ages.get(name)
    waits = some(channel.waiting, "message waits", "messages wait")
    waits += f", the oldest for {span(age)}" if age else ""
    why.append(("waiting" if channel.waiting else "empty", waits))
    due = yield from outbox.next_due(name)
    then = _channel_next(channel, {word for word, _ in why}, due)
    return _told("channel", name, iter(why), kind=channel.kind, state=channel.state, then=then)


def _channel_hindered(channel: Channel, live: Sequence[Worker]) -> list[tuple[str, str]]:
    """Say what keeps all messages of a channel from being delivered."""
    why = []
    if channel.state == "stopped":
        why.append(("stopped", f"it was stopped by {channel.stopped_by} ({channel.reason})"))
    if channel.state == "vanished":
        why.append(("vanished", "no running program declares it: nothing is delivered"))
    if channel.kind != "pull" and not live:
        why.append(("no_worker", f"nobody delivers: {NO_WORKER}"))
    return why


def _channel_next(channel: Channel, words: set[str], due: datetime | None) -> str:
    if "stopped" in words:
        return (
            f"nothing, until it is started: `milepost channels start {shlex.quote(channel.name)}`"
        )
    if due is None:
        return "nothing waits"
    if channel.kind == "pull":
        return "somebody pulls them, and acknowledges each"
    if words & {"vanished", "no_worker"}:
        return "nothing, until a worker of the program that declares it runs"
    return f"the first of them is delivered at {moment(due)}"


class PipelineFacts(msgspec.Struct, frozen=True):
    """What there is to know of a pipeline that stands still."""

    row: PipelineRow
    lag: float
    gaps: int
    schedules: Sequence[schedules.Schedule]
    """Those that start runs of it."""
    latest: Run | None
    told: Explanation | None
    """Of the latest run."""


def explain_pipeline(name: str) -> Steps[Explanation]:
    """Say how far a pipeline has read, and which run is next or hinders it."""
    row = yield from watermarks.find(name)
    lag = (yield from watermarks.lags()).get(name, 0.0)
    latest = yield from pipelines.latest(row.id)
    gaps = yield from pipelines.gaps(row.id)
    planned = [one for one in (yield from schedules.listing()) if one.kind == f"{name}.start"]
    run = None if latest is None else (yield from runs.get(latest.run_id))
    told = None if run is None else (yield from explain_run(run.id))
    return explained_pipeline(PipelineFacts(row, lag, len(gaps), planned, run, told))


def explained_pipeline(facts: PipelineFacts) -> Explanation:
    """Say it of what was looked up."""
    row, name, told = facts.row, facts.row.name, facts.told
    behind = f"it is {span(facts.lag)} behind"
    stands = "nothing was ever read to its end" if row.mark is None else behind
    why = [("watermark", f"its watermark: {stands}")]
    if facts.gaps:
        count = some(facts.gaps, "partition of ended runs was", "partitions of ended runs were")
        why.append(("gaps", f"{count} never read"))
    then = f"nothing, until a run starts: `milepost pipelines start APP {shlex.quote(name)}`"
    for planned in facts.schedules:
        if planned.state == "active":
            then = f"schedule {planned.name} starts a run at {moment(planned.next_at)}"
    state = "idle"
    if facts.latest is not None and told is not None:
        state = told.state
        why.append(("run", told.text))
        if facts.latest.state not in RUN.terminal:
            then = told.next
    return _told("pipeline", name, iter(why), kind=row.target, state=state, then=then)


EXPLAINED: dict[str, Callable[[str], Steps[Explanation]]] = {
    "job": explain,
    "run": explain_run,
    "queue": explain_queue,
    "schedule": explain_schedule,
    "channel": explain_channel,
    "pipeline": explain_pipeline,
}
