"""Why a job is, or is not, running now: looked up, and said so that a person understands it."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from math import inf

import msgspec

from milepost.lifecycle import JOB, Cause, JobState, RunState
from milepost.records import Job, StepCount, Worker
from milepost.store import brokers, fanin, jobs, journal, limit_explain, workers
from milepost.store.brokers import BrokerReport, JobHint
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant
from milepost.store.limit_explain import Limited, Place
from milepost.store.phrases import moment, none_of, some, span

Why = Iterator[tuple[str, str]]
"""Reasons: a word for programs, a sentence for people."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is, or is not, running now; or why something else stands where it does."""

    id: str
    """The id of a job or a run, or the name of a queue, schedule, channel or pipeline."""
    kind: str
    state: str
    reasons: tuple[str, ...]
    """One word for each reason, the nearest first: `due`, `queue_paused`, `no_worker`, …"""
    details: tuple[str, ...]
    """The same reasons in sentences."""
    subject: str = "job"
    """Or `run`, `queue`, `schedule`, `channel`, `pipeline`."""
    next: str = ""
    """The next thing that will happen."""

    @property
    def text(self) -> str:
        """Everything in one sentence."""
        return f"{self.heading}: {'; '.join(self.details)}"

    @property
    def heading(self) -> str:
        """What it is and where it stands."""
        kind = "" if self.kind == self.subject else f" ({self.kind})"
        return f"{self.subject} {self.id}{kind} is {self.state}"

    def __str__(self) -> str:
        return self.text


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of a job and of whom and what it waits for."""

    job: Job
    now: datetime
    paused: bool = False
    workers: Sequence[Worker] = ()
    run_state: str | None = None
    """Of a job of a run."""
    steps: Sequence[StepCount] = ()
    """Of the run of a job that waits at a gate."""
    misfit: str | None = None
    """Why its arguments do not fit, if that is what it waits for."""
    broker: str | None = None
    """The kind of broker that its queue is on, if it is on one."""
    hint: JobHint | None = None
    """What the broker was told of it, if its queue is on one."""
    report: BrokerReport | None = None
    """What the broker of its queue last said, if somebody asked."""

    limited: Limited | None = None
    """The limits that a job in line is under, or one that keeps the turn of its key."""
    start_by: datetime | None = None
    """When a job that was never claimed fails (`start_within`)."""

    @property
    def limit(self) -> tuple[float, str]:
        """In how many seconds a job that does not run fails, and what says so."""
        ends = {"its deadline": self.job.deadline_at, "its latest start": self.start_by}
        left = [((at - self.now).total_seconds(), name) for name, at in ends.items() if at]
        return min(left, default=(inf, ""))

    @property
    def live(self) -> list[Worker]:
        """The workers that hold a lease."""
        return [worker for worker in self.workers if is_live(worker)]

    @property
    def holder(self) -> Worker | None:
        """The worker that runs it."""
        return next((w for w in self.workers if w.id == self.job.worker_id), None)


def explain(job_id: str) -> Steps[Explanation]:
    """Say why a job is, or is not, running now; raise `NotFound` if it is not there."""
    job = yield from jobs.get(job_id)
    return explained((yield from look(job)))


def look(job: Job, *, detail: str | None = None) -> Steps[JobFacts]:
    """Look up what a job waits for; `detail` is that of its last move, read now if it is needed."""
    asked = {"id": job.id, "queue": job.queue, "run_id": job.run_id}
    [(now, paused, run_state, transport, by, *place)] = yield Call("explain_look", asked)
    facts = JobFacts(
        job=job,
        now=instant(now),
        paused=bool(paused),
        run_state=run_state,
        start_by=None if by is None else instant(by),
    )
    if job.state in JOB.terminal:
        return facts
    if transport not in (None, "store") and job.state in (JobState.READY, JobState.QUEUED):
        facts = msgspec.structs.replace(
            facts,
            broker=transport,
            hint=(yield from brokers.hint_of(job.id, version=job.version)),
            report=(yield from brokers.report(brokers.QUEUE, job.queue)),
        )
    gated = job.state == JobState.GATED and job.run_id is not None
    return msgspec.structs.replace(
        facts,
        workers=(yield from workers.listing()),
        steps=(yield from fanin.steps(job.run_id)) if gated and job.run_id else [],
        misfit=(yield from misfit_of(job, detail)),
        limited=(yield from limit_explain.look(job, Place(*place), facts.now)),
    )


def explained(facts: JobFacts) -> Explanation:
    """Say why a job is, or is not, running, by what was looked up."""
    job = facts.job
    words, details = zip(*_reasons(facts), strict=True)
    return Explanation(job.id, job.kind, job.state, words, details, next=_next(facts, words))


NO_WORKER = "no worker is alive: start one with `milepost worker APP`"
NEXT = {
    "succeeded": "nothing: a final state is final",
    "rerun": "nothing here: `milepost explain {newer}` tells of the job that took its place",
    "of_run": "nothing, unless its run, once ended, is resumed: `milepost runs resume {run}`",
    "failed": "nothing, unless it is run again: `milepost jobs rerun {id}`",
    "cancelled": "nothing, unless it is run again: `milepost jobs rerun {id}`",
    "nobody": "nothing, until a worker runs: it takes the job away, and {if_lost}",
    "lease_over": "maintenance takes it from its worker, and {if_lost}",
    "asked_to_stop": "its worker stops it at the next check, or at the end of its lease",
    "running": "its attempt ends, or its lease does",
    "spent": "maintenance ends it",
    "deadline": "maintenance ends it",
    "deadline_first": "maintenance ends it then",
    "run_stopping": "it is cancelled with its run",
    "unfit": "a worker whose function takes its arguments claims it",
    "held": "submit() queues it",
    "gate": "its gate opens with the end of the last open job before it",
    "signal": "a signal queues it",
    "due": "it is queued when it is due",
    "overdue": "any worker's maintenance queues it",
    "queue_paused": "nothing, until its queue is resumed: `milepost queues resume {queue}`",
    "no_worker": "the first worker that starts and knows its kind claims it",
    "no_worker_for_queue": "the first worker that serves its queue claims it",
    "no_worker_for_kind": "the first worker that is deployed with its kind and version claims it",
    "turn": "the job that has the turn ends for good, and the next in line is claimed",
    "limit": "one of the jobs that hold it ends, and the next in line is claimed",
    "queue_limit": "a job of its queue ends, and the next in line is claimed",
    "rate": "it is claimed when its rate lets it start",
    "queue_rate": "it is claimed when the rate of its queue lets it start",
    "broker_away": "a worker finds it in the store, where all look while their broker is away",
    "broker": "a worker of its queue hands it to the broker, as soon as fewer are on their way",
    "untold": "a worker of its queue tells the broker of it",
    "alone": "a worker with nothing else to do claims it",
    "busy": "the next of them that is free claims it",
    "told": "the worker that gets its hint claims it; else it is told again in {again}",
    "in_line": "one of them claims it",
}
"""What follows, by the word of the reason that decides; the one that stands first here wins."""


def _next(facts: JobFacts, words: Sequence[str]) -> str:
    job = facts.job
    then = next((then for word, then in NEXT.items() if word in words), "")
    queue = shlex.quote(job.queue)
    again = span(max(0.0, facts.hint.due)) if facts.hint else ""
    told = {"id": job.id, "queue": queue, "run": job.run_id, "newer": job.rerun_by, "again": again}
    return then.format(**told, if_lost=_if_lost(facts)) + _until_limit(facts, words)


def _until_limit(facts: JobFacts, words: Sequence[str]) -> str:
    """Say when an open job that does not run fails, whatever else follows."""
    left, name = facts.limit
    is_over = facts.job.state in JOB.terminal or facts.job.state == JobState.RUNNING
    if is_over or "deadline_first" in words or not 0 < left < inf:
        return ""
    return f"; if nothing comes of that, it fails at {name}, in {span(left)}"


def _if_lost(facts: JobFacts) -> str:
    """Say what becomes of a job that is taken from its worker, as maintenance decides it."""
    job = facts.job
    if job.cancel_reason is not None or facts.run_state == RunState.STOPPING:
        return "it is CANCELLED"
    ends = {
        Cause.DEADLINE: job.deadline_at is not None and job.deadline_at <= facts.now,
        Cause.OUTCOME_UNKNOWN: job.phase == "REQUESTING" and job.policy == "fail_unknown",
        Cause.POISONED: job.losses + 1 >= job.poison_limit,  # such a job was claimed alone
        Cause.ATTEMPTS_EXHAUSTED: job.losses >= job.losses_allowed,
    }
    cause = next((cause for cause, is_so in ends.items() if is_so), None)
    return "it runs again" if cause is None else f"it ends FAILED ({cause})"


def misfit_of(job: Job, detail: str | None = None) -> Steps[str | None]:
    """Read why the arguments of a job do not fit, if that is what it waits for."""
    if job.state != JobState.WAITING or job.phase != "unfit":
        return None
    if detail is None:
        detail = (yield from journal.history(job.id))[-1].detail
    return detail or "its arguments do not fit"


def is_live(worker: Worker) -> bool:
    """Tell whether a worker holds a lease."""
    return worker.state != "STOPPED" and worker.lease_seconds > 0


def can_take(worker: Worker, job: Job) -> bool:
    """Tell whether a worker is there, serves the job's queue and knows its kind."""
    return is_live(worker) and takes(worker, job.queue, job.kind, job.kind_version)


def takes(worker: Worker, queue: str, kind: str | None = None, version: int = 1) -> bool:
    """Tell whether a worker serves a queue, and knows a kind if one is named."""
    if worker.queues is not None and queue not in msgspec.json.decode(worker.queues):
        return False
    known = kind is None or worker.kinds is None
    return known or f"{kind} {version}" in msgspec.json.decode(worker.kinds or "[]")


def limit_reasons(found: Limited | None, queue: str, live: Sequence[Worker]) -> Why:
    """Say which limits keep a job in line, if any does."""

    def knows(kind: str, version: int) -> bool:
        return any(takes(worker, queue, kind, version) for worker in live)

    if found is not None:
        yield from limit_explain.told(found, knows)


def _reasons(facts: JobFacts) -> Why:
    state = facts.job.state
    if state in JOB.terminal:
        yield from _ended(facts.job)
    elif state == JobState.RUNNING:
        yield from _running(facts)
    else:
        yield from _waiting(facts)
        hindered = list(_hindered(facts))
        yield from hindered
        if facts.broker is not None:
            yield from _on_broker(facts)
        limits = list(limit_reasons(facts.limited, facts.job.queue, facts.live))
        yield from limits
        if state == JobState.QUEUED and not hindered and not limits:
            yield _in_line(facts)


def _on_broker(facts: JobFacts) -> Why:
    """Say what a queue's broker knows of a job, and whether it can be reached."""
    hint, report = facts.hint, facts.report
    if report is not None and (away := broker_away(report)) is not None:
        yield "broker_away", away
    if facts.job.state != JobState.QUEUED:
        return
    if hint is None:
        yield "untold", f"its queue is on {facts.broker}, which was told nothing of it yet"
    elif hint.told is None:
        failed = "" if hint.error is None else f": {hint.error}"
        yield "untold", f"it was handed to {facts.broker}, which has not confirmed it{failed}"
    else:
        often = "once" if hint.tellings == 1 else f"{hint.tellings} times"
        last = f"last {span(hint.told)} ago"
        yield "told", f"{facts.broker} was told of it {often}, {last}; nobody has claimed it since"


def broker_away(report: BrokerReport) -> str | None:
    """Say that a broker does not answer, or that nobody asks it; None when it does."""
    if report.stale:
        return f"no worker has asked the broker at {report.address} for {span(report.age)}"
    if report.error is None:
        return None
    since = (
        "never answered" if report.reached is None else f"last answered {span(report.reached)} ago"
    )
    return f"the broker at {report.address} {since}: {report.error}"


def _ended(job: Job) -> Why:
    if job.state == JobState.SUCCEEDED:
        yield "succeeded", f"it succeeded in attempt {job.attempt}"
    elif job.state == JobState.CANCELLED:
        yield "cancelled", f"it was cancelled ({job.cancel_reason or 'no reason was given'})"
    else:
        yield "failed", f"it failed ({job.cause or job.move}){_error(job)}"
        if job.error is not None:
            yield "traceback", f"`milepost jobs show {job.id}` has what it said, and its traceback"
    if job.rerun_by is not None:
        yield "rerun", f"it was run again as job {job.rerun_by}"
    elif job.state != JobState.SUCCEEDED and job.run_id is None:
        yield "final", "a final state is final: a rerun makes a new job of it"
    elif job.state != JobState.SUCCEEDED:
        yield "of_run", f"it belongs to run {job.run_id}, which runs it again when it is resumed"


def _error(job: Job) -> str:
    """Name the error's class; what it says may be private, and is in `job.error`."""
    try:
        return f" with {msgspec.json.decode(job.error or '')['type']}"
    except (msgspec.DecodeError, KeyError, TypeError):  # none, or one that was written by hand
        return ""


def _running(facts: JobFacts) -> Why:
    job, holder = facts.job, facts.holder
    begun = f"attempt {job.attempt} of {job.attempts_allowed} runs on {job.worker_id}"
    share = f", {job.progress:.0%} done" if job.progress is not None else ""
    said = f" ({job.progress_text})" if job.progress_text else ""
    # Who has just killed the worker wants to know when somebody else takes over.
    leased = f", leased for {holder.lease_seconds:.0f} s more" if holder and is_live(holder) else ""
    yield "running", f"{begun}{leased}{share}{said}"
    if job.cancel_reason is not None:
        yield "asked_to_stop", f"it was asked to stop ({job.cancel_reason}) and has not yet"
    if facts.run_state == RunState.STOPPING:
        yield "run_stopping", f"its run {job.run_id} is stopping and waits for it"
    if holder is None or not is_live(holder):
        yield "lease_over", "its worker is gone: maintenance, which any worker does, takes it away"
        if not facts.live:
            yield "nobody", NO_WORKER


def _waiting(facts: JobFacts) -> Why:
    job = facts.job
    if job.state == JobState.CREATED:
        held = "it is held" if job.run_id is None else "its run is still being filled"
        yield "held", f"{held}: nobody has called submit() yet"
    elif job.state == JobState.GATED:
        yield from _gated(facts)
    elif job.state == JobState.READY:
        yield (
            "broker",
            f"it waits to be handed to its queue's broker ({facts.broker or 'none yet'})",
        )
    elif job.state == JobState.RETRYING:
        yield "retry", f"{_last(job)}; {job.attempt} of {job.attempts_allowed} attempts are spent"
    if facts.misfit is not None:
        way = f"a worker whose function takes other parameters, or `milepost jobs release {job.id}`"
        yield "unfit", f"{facts.misfit}; {way} sends it on"
    elif job.state in (JobState.WAITING, JobState.RETRYING):
        yield from _due(facts)


def _gated(facts: JobFacts) -> Why:
    job = facts.job
    before = [step for step in facts.steps if step.number < (job.step or 0) and step.open]
    for step in before:
        yield (
            "gate",
            f"it waits at a gate: step {step.name} of run {job.run_id} has "
            + some(step.open, "open job"),
        )
    if not before:
        yield "gate", "its gate is about to open: maintenance, which any worker does, sends it on"


def _last(job: Job) -> str:
    if job.move == "lose":
        return "its worker was lost"
    if job.move == "release":
        return "its worker gave it back"
    return f"its last attempt failed{_error(job)}"


def _due(facts: JobFacts) -> Why:
    due = facts.job.due_at
    if due is None:
        yield "signal", "it waits for a signal: job.signal(data) sends one"
        return
    left = (due - facts.now).total_seconds()
    if left > 0:
        yield "due", f"it is due in {span(left)}, at {moment(due)}"
        ends, name = facts.limit
        if 0 < ends <= left:
            yield "deadline_first", f"{name} comes first, in {span(ends)}"
    else:
        yield (
            "overdue",
            f"it has been due for {span(-left)}: maintenance, which any worker does, sends it on",
        )


def _hindered(facts: JobFacts) -> Why:
    job = facts.job
    if facts.paused:
        yield "queue_paused", f"its queue {job.queue!r} is paused: resume it"
    if facts.run_state == RunState.STOPPING:
        yield "run_stopping", f"its run {job.run_id} is stopping: it will be cancelled"
    if job.is_spent:
        yield "spent", f"its {job.attempts_allowed} attempts are spent: maintenance will end it"
    left, name = facts.limit
    if left <= 0:
        yield "deadline", f"{name} has passed: maintenance will end it"
    yield from _without_worker(facts)


def _without_worker(facts: JobFacts) -> Why:
    job, live = facts.job, facts.live
    kind = f"{job.kind} version {job.kind_version}"
    serving = [worker for worker in live if takes(worker, job.queue)]
    if not live:
        yield "no_worker", NO_WORKER
    elif not serving:
        yield "no_worker_for_queue", none_of(len(live), "serve", f"queue {job.queue!r}")
    elif not any(can_take(worker, job) for worker in serving):
        yield (
            "no_worker_for_kind",
            f"{none_of(len(serving), 'know', kind, of=' of its queue')}: deploy one that does"
            + _known(serving, job),
        )


def _known(serving: Sequence[Worker], job: Job) -> str:
    """Tell which versions of its kind are deployed."""
    known = {word for worker in serving for word in msgspec.json.decode(worker.kinds or "[]")}
    versions = sorted(word.rpartition(" ")[2] for word in known if word.startswith(f"{job.kind} "))
    return f" (they know {job.kind} version {', '.join(versions)})" if versions else ""


def _in_line(facts: JobFacts) -> tuple[str, str]:
    able = [worker for worker in facts.live if can_take(worker, facts.job)]
    if facts.job.is_suspect:
        return "alone", (
            f"it was lost {some(facts.job.losses, 'time')} and one more loss would end it: it runs "
            f"with no other job in its process, as soon as {_one_of(able)} has room for that"
        )
    if any(_free(worker) for worker in able):
        who = f"any of {len(able)} live workers" if len(able) > 1 else "the only live worker"
        return "in_line", f"it is in line: {who} may take it next"
    if len(able) == 1:
        return "busy", "it is in line: the only worker that may take it is busy"
    return "busy", f"it is in line: all of the {len(able)} workers that may take it are busy"


def _one_of(able: Sequence[Worker]) -> str:
    return "its only worker" if len(able) == 1 else f"one of {len(able)} workers"


def _free(worker: Worker) -> bool:
    if worker.slots is None:
        return True
    slots = msgspec.json.decode(worker.slots)
    return bool(slots.get("FREE") or slots.get("CLAIMING"))


def ruled_out(facts: JobFacts) -> list[str]:
    """Say what does not keep an open job that does not run; nothing of others."""
    job, told = facts.job, []
    if job.state in JOB.terminal or job.state == JobState.RUNNING:
        return []
    if not facts.paused:
        told.append(f"queue {job.queue} is open")
    able = [worker for worker in facts.live if can_take(worker, job)]
    if able:
        know = some(len(able), "live worker knows", "live workers know")
        told.append(f"{know} {job.kind} version {job.kind_version}")
    free = sum(_free_slots(worker) for worker in able)
    if free:
        told.append(f"{some(free, 'slot is', 'slots are')} free")
    if facts.run_state is not None and facts.run_state != RunState.STOPPING:
        told.append(f"its run is {facts.run_state}")
    if job.deadline_at is not None and job.deadline_at > facts.now:
        left = (job.deadline_at - facts.now).total_seconds()
        told.append(f"its deadline is in {span(left)}")
    return told


def _free_slots(worker: Worker) -> int:
    slots = {} if worker.slots is None else msgspec.json.decode(worker.slots)
    return int(slots.get("FREE", 0)) + int(slots.get("CLAIMING", 0))
