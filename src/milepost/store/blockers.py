"""Why a run, a schedule, a channel or a pipeline stands still, and what happens next."""

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from milepost.errors import Invalid, NotFound
from milepost.lifecycle import JOB, RUN, Cause, RunState
from milepost.records import Run, StepCount, Worker
from milepost.store import (
    looks,
    outbox,
    pipelines,
    runs,
    schedules,
    watermarks,
)
from milepost.store.driver import Steps
from milepost.store.explain import (
    NO_WORKER,
    Explanation,
    explain,
    explained,
)
from milepost.store.failures import breaches
from milepost.store.job_facts import live_workers, look_around
from milepost.store.looks import RunJobs, StepStand
from milepost.store.outbox import Channel
from milepost.store.phrases import moment, some, span
from milepost.store.queue_explain import explain_queue
from milepost.store.reasons import (
    ChannelReason,
    PipelineReason,
    Reason,
    RunReason,
    ScheduleReason,
    Why,
)
from milepost.store.schedules import Schedule
from milepost.store.watermarks import PipelineRow

S, C = ScheduleReason, ChannelReason


def explain_any(subject: str, name: str) -> Steps[Explanation]:
    """Say why a job, run, queue, schedule, channel or pipeline stands where it does."""
    if subject not in EXPLAINED:
        raise Invalid(f"{subject!r} cannot be explained; there are {', '.join(EXPLAINED)}")
    return (yield from EXPLAINED[subject](name))


# Runs


def explain_run(run_id: str) -> Steps[Explanation]:
    """Say which step and which job a run waits for."""
    run = yield from runs.get(run_id)
    steps = (yield from looks.stands([run_id])).get(run_id, [])
    if run.state in RUN.terminal:
        return explained_run(run, steps, None)
    found = yield from looks.reached(run_id, slowest=1)
    return explained_run(run, steps, (yield from explain_nearest(run, found)))


def explain_nearest(
    run: Run, found: RunJobs, known: Sequence[Worker] | None = None
) -> Steps[Explanation | None]:
    """Explain the job, or the batch within it, that a run waits for; None: it waits for none."""
    if found.nearest is not None and found.situation is not None:
        return explained((yield from look_around(found.nearest, found.situation, known=known)))
    if run.depth is None or run.state in RUN.terminal:
        return None
    return (yield from _within(run.id))


def explained_run(run: Run, steps: Sequence[StepStand], told: Explanation | None) -> Explanation:
    """Say it of what was looked up: how its steps stand, and why its nearest job does."""
    if run.state in RUN.terminal:
        then = "nothing: a final state is final"
        if run.state != RunState.SUCCEEDED:
            then = f"nothing, unless it is resumed: `milepost runs resume {run.id}`"
        ended = iter([_run_ended(run, steps)])
        return Explanation.of("run", run.id, ended, kind=run.kind, state=run.state, then=then)
    why = _run_waits(run, steps, told)
    return Explanation.of(
        "run", run.id, why, kind=run.kind, state=run.state, then=_run_next(run, steps)
    )


def _within(run_id: str) -> Steps[Explanation | None]:
    """Explain the first batch within a batch that goes on; None where there is none."""
    for branch in (yield from runs.tree(run_id)):
        if branch.parent_id == run_id and branch.state not in RUN.terminal:
            return (yield from explain_run(branch.id))
    return None


def _run_ended(run: Run, steps: Sequence[StepStand]) -> tuple[RunReason, str]:
    cause = f" ({run.cause})" if run.cause else ""
    told = breaches(steps) if run.cause == Cause.POLICY else []
    return RunReason[run.state.name], ": ".join([f"it ended {run.state}{cause}", *told])


def _run_waits(run: Run, steps: Sequence[StepStand], told: Explanation | None) -> Why[Reason]:
    if run.state == RunState.CREATED:
        filled = "it is still being filled: nobody has submitted it yet"
        yield RunReason.HELD, filled if run.mode is None else "its plan is not stored yet"
    if run.state == RunState.STOPPING:
        yield RunReason.STOPPING, f"it ends {run.ending} once the jobs that run have ended"
    for step in steps:
        if step.open and (step.number <= run.current_step or run.state == RunState.STOPPING):
            yield RunReason.STEP, f"step {step.name} has {step.open:,} open{_by_state(step)}"
        elif step.open and step.gated and not step.opened:
            wait = some(step.open, "job waits", "jobs wait")
            yield RunReason.GATE, f"the gate of step {step.name} is closed: {wait} at it"
    if told is not None:
        yield told.reasons[0], told.text
    if not any(step.open for step in steps) and run.state != RunState.CREATED:
        yield (
            RunReason.OVERDUE,
            "it has no open job: maintenance, which any worker does, moves it on",
        )


def _by_state(step: StepStand) -> str:
    counts = [f"{n:,} {state}" for state, n in step.states.items() if state not in JOB.terminal]
    counts += [f"{step.more:,} more"] if step.more else []
    return f": {', '.join(counts)}" if counts else ""


def _run_next(run: Run, steps: Sequence[StepCount]) -> str:
    if run.state == RunState.CREATED:
        return "it begins when it is submitted" if run.mode is None else "a worker plans it"
    if run.state == RunState.STOPPING:
        return f"it becomes {run.ending} with the end of its last open job"
    if not any(step.open for step in steps):
        return "any worker's maintenance moves it on"
    later = [step for step in steps if step.number > run.current_step and step.role != "reduce"]
    if later and later[0].open:
        return f"step {later[0].name} goes on with the end of the last open job before it"
    if run.state != RunState.FINALIZING and any(step.role == "reduce" for step in steps):
        return "its reducer runs after the last open job"
    return "it ends with its last open job"


# Schedules, channels, pipelines


def explain_schedule(name: str) -> Steps[Explanation]:
    """Say whether a schedule fires, and when."""
    listed = {schedule.name: schedule for schedule in (yield from schedules.listing())}
    if name not in listed:
        raise schedules.missing(name, listed)
    found, live = listed[name], (yield from live_workers())
    why = list(_schedule_stands(found, live))
    return Explanation.of(
        *("schedule", name, iter(why)),
        kind=found.kind,
        state=found.state,
        then=_schedule_next(found, {word for word, _ in why}),
    )


def _schedule_stands(found: Schedule, live: Sequence[Worker]) -> Why[ScheduleReason]:
    hindered = found.state != "active" or not live
    if found.state == "vanished":
        yield S.VANISHED, "no running worker declares it: it is kept, and does not fire"
    if found.paused:
        yield S.PAUSED, f"it was paused by {found.paused_by or 'somebody'}"
    if not live:
        yield S.NO_WORKER, NO_WORKER
    late = (found.read_at - found.next_at).total_seconds()
    if late > 0 and not hindered:
        yield S.OVERDUE, f"it has been due for {span(late)}: a worker's maintenance fires it"
    if found.last_at is None:
        yield S.FIRED, "it never fired"
    else:
        often = some(found.fired, "time")
        last = f"last at {moment(found.last_at)} as job {found.last_job_id}"
        yield S.FIRED, f"it fired {often}, {last}"


def _schedule_next(found: Schedule, words: set[ScheduleReason]) -> str:
    if found.state == "paused":
        resume = f"milepost schedules resume {shlex.quote(found.name)}"
        return f"nothing, until it is resumed: `{resume}`"
    if words & {S.VANISHED, S.NO_WORKER}:
        return "nothing, until a worker of the program that declares it runs"
    if S.OVERDUE in words:
        return "any worker's maintenance fires it"
    return f"it fires at {moment(found.next_at)}"


def explain_channel(name: str) -> Steps[Explanation]:
    """Say whether messages leave through a channel, and what keeps them."""
    known = {channel.name: channel for channel in (yield from outbox.known())}
    if name not in known:
        raise NotFound(f"there is no channel {name!r}; there are: {', '.join(known) or 'none'}")
    channel, live = known[name], (yield from live_workers())
    ages = {each: age for each, _, age in (yield from outbox.waiting())}
    why = _channel_hindered(channel, live)
    if (failing := (yield from outbox.failing(name))) is not None:
        attempts, error = failing
        why.append(
            (
                C.FAILING,
                f"a message failed {some(attempts, 'time')}, last with: {error}",
            )
        )
    if channel.dead:
        dead = f"`milepost channels dead {shlex.quote(name)}`"
        count = some(channel.dead, "message is", "messages are")
        why.append((C.DEAD, f"{count} dead: {dead}"))
    age = ages.get(name)
    waits = some(channel.waiting, "message waits", "messages wait")
    waits += f", the oldest for {span(age)}" if age else ""
    why.append((C.WAITING if channel.waiting else C.EMPTY, waits))
    then = _channel_next(channel, {word for word, _ in why}, *(yield from outbox.next_due(name)))
    told = ("channel", name, iter(why))
    return Explanation.of(*told, kind=channel.kind, state=channel.state, then=then)


def _channel_hindered(channel: Channel, live: Sequence[Worker]) -> list[tuple[ChannelReason, str]]:
    """Say what keeps all messages of a channel from being delivered."""
    why = []
    if channel.state == "stopped":
        why.append((C.STOPPED, f"it was stopped by {channel.stopped_by} ({channel.reason})"))
    if channel.state == "vanished":
        why.append((C.VANISHED, "no running program declares it: nothing is delivered"))
    if channel.kind != "pull" and not live:
        why.append((C.NO_WORKER, f"nobody delivers: {NO_WORKER}"))
    return why


def _channel_next(
    channel: Channel, words: set[ChannelReason], due: datetime | None, now: datetime
) -> str:
    if C.STOPPED in words:
        return (
            f"nothing, until it is started: `milepost channels start {shlex.quote(channel.name)}`"
        )
    if due is None:
        return "nothing waits"
    if channel.kind == "pull":
        return "somebody pulls them, and acknowledges each"
    if words & {C.VANISHED, C.NO_WORKER}:
        return "nothing, until a worker of the program that declares it runs"
    if due <= now:
        return "a worker delivers the first of them"
    return f"the first of them is delivered at {moment(due)}"


class PipelineFacts(msgspec.Struct, frozen=True):
    """What there is to know of a pipeline that stands still."""

    row: PipelineRow
    lag: float
    gaps: int
    schedules: Sequence[Schedule]
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
    why = [(PipelineReason.WATERMARK, f"its watermark: {stands}")]
    if facts.gaps:
        count = some(facts.gaps, "partition of ended runs was", "partitions of ended runs were")
        why.append((PipelineReason.GAPS, f"{count} never read"))
    then = f"nothing, until a run starts: `milepost pipelines start APP {shlex.quote(name)}`"
    for planned in facts.schedules:
        if planned.state == "active":
            then = f"schedule {planned.name} starts a run at {moment(planned.next_at)}"
    state = "idle"
    if facts.latest is not None and told is not None:
        state = told.state
        why.append((PipelineReason.RUN, told.text))
        if facts.latest.state not in RUN.terminal:
            then = told.next
    return Explanation.of("pipeline", name, iter(why), kind=row.target, state=state, then=then)


EXPLAINED: dict[str, Callable[[str], Steps[Explanation]]] = {
    "job": explain,
    "run": explain_run,
    "queue": explain_queue,
    "schedule": explain_schedule,
    "channel": explain_channel,
    "pipeline": explain_pipeline,
}
