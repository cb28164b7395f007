"""Why a job is, or is not, running now: said so that a person understands it."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from math import inf

import msgspec

from milepost.lifecycle import JOB, Cause, JobState, RunState
from milepost.records import Job, Worker
from milepost.store import jobs, limit_explain
from milepost.store.brokers import BrokerReport
from milepost.store.driver import Steps
from milepost.store.job_facts import JobFacts, can_take, is_live, look, takes
from milepost.store.limit_explain import Limited
from milepost.store.phrases import moment, none_of, some, span
from milepost.store.reasons import JobReason, LimitReason, Reason, Why

J, L = JobReason, LimitReason
OfJob = Why[JobReason | LimitReason]
"""Reasons of a job."""


class Explanation(msgspec.Struct, frozen=True):
    """Why a job is, or is not, running now; or why something else stands where it does."""

    id: str
    """The id of a job or a run, or the name of a queue, schedule, channel or pipeline."""
    kind: str
    state: str
    reasons: tuple[Reason, ...]
    """One word for each reason, the nearest first: `due`, `queue_paused`, `no_worker`, …

    Each is a `str` that has a `meaning`."""
    details: tuple[str, ...]
    """The same reasons in sentences."""
    subject: str = "job"
    """Or `run`, `queue`, `schedule`, `channel`, `pipeline`."""
    next: str = ""
    """The next thing that will happen."""
    ruled_out: tuple[str, ...] = ()
    """What one might suspect of an open job that does not run, and is not the cause."""

    @classmethod
    def of(
        cls, subject: str, name: str, why: Why[Reason], *, kind: str, state: str, then: str
    ) -> "Explanation":
        """Explain something by its reasons."""
        words, details = zip(*why, strict=True)
        return cls(name, kind, state, words, details, subject, then)

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


def explain(job_id: str) -> Steps[Explanation]:
    """Say why a job is, or is not, running now; raise `NotFound` if it is not there."""
    job = yield from jobs.get(job_id)
    return explained((yield from look(job)))


def explained(facts: JobFacts) -> Explanation:
    """Say why a job is, or is not, running, by what was looked up."""
    job = facts.job
    words, details = zip(*_reasons(facts), strict=True)
    return Explanation(
        job.id,
        job.kind,
        job.state,
        words,
        details,
        next=_next(facts, words),
        ruled_out=tuple(_ruled_out(facts, words)),
    )


SENT_ON = "maintenance, which any worker does, sends it on"
NO_WORKER = "no worker is alive: start one with `milepost worker APP`"
NEXT: Mapping[Reason, str] = {
    J.RERUN: "nothing here: `milepost explain {newer}` tells of the job that took its place",
    J.SUCCEEDED: "nothing: a final state is final",
    J.OF_RUN: "nothing, unless its run, once ended, is resumed: `milepost runs resume {run}`",
    J.FAILED: "nothing, unless it is run again: `milepost jobs rerun {id}`",
    J.CANCELLED: "nothing, unless it is run again: `milepost jobs rerun {id}`",
    J.NOBODY: "nothing, until a worker runs: it takes the job away, and {if_lost}",
    J.LEASE_OVER: "maintenance takes it from its worker, and {if_lost}",
    J.ASKED_TO_STOP: "its worker stops it at the next check, or at the end of its lease",
    J.HOST: "it is sent when its turn at the host comes",
    J.RUNNING: "its attempt ends, or its lease does",
    J.SPENT: "any worker's maintenance ends it",
    J.DEADLINE: "any worker's maintenance ends it",
    J.DEADLINE_FIRST: "any worker's maintenance ends it then",
    J.RUN_STOPPING: "it is cancelled with its run",
    J.UNFIT: "a worker whose function takes its arguments claims it",
    J.HELD: "submit() queues it",
    J.GATE: "its gate opens with the end of the last open job before it",
    J.SIGNAL: "a signal queues it",
    J.DUE: "it is queued when it is due",
    J.OVERDUE: "any worker's maintenance queues it",
    J.QUEUE_PAUSED: "nothing, until its queue is resumed: `milepost queues resume {queue}`",
    J.NO_WORKER: "the first worker that starts and knows its kind claims it",
    J.NO_WORKER_FOR_QUEUE: "the first worker that serves its queue claims it",
    J.NO_WORKER_FOR_KIND: "the first worker that is deployed with its kind and version claims it",
    L.TURN: "the job that has the turn ends for good, and the next in line is claimed",
    L.LIMIT: "one of the jobs that hold it ends, and the next in line is claimed",
    L.QUEUE_LIMIT: "a job of its queue ends, and the next in line is claimed",
    L.RATE: "it is claimed when its rate lets it start",
    L.QUEUE_RATE: "it is claimed when the rate of its queue lets it start",
    J.BROKER_AWAY: "a worker finds it in the store, where all look while their broker is away",
    J.BROKER: "a worker of its queue hands it to the broker, as soon as fewer are on their way",
    J.UNTOLD: "a worker of its queue tells the broker of it",
    J.ALONE: "a worker with nothing else to do claims it",
    J.BUSY: "the next worker with a free slot claims it",
    J.TOLD: "the worker that gets its hint claims it; else the broker is told again{again}",
    J.IN_LINE: "a worker with a free slot claims it",
}
"""What follows, by the word of the reason that decides; the one that stands first here wins."""


def _next(facts: JobFacts, words: Sequence[Reason]) -> str:
    decisive = next(word for word in NEXT if word in words)
    then = _raised(facts) if decisive in (J.HOST, L.LIMIT, L.QUEUE_LIMIT) else None
    return (then or _following(facts, NEXT[decisive])) + _until_limit(facts, words)


def _raised(facts: JobFacts) -> str | None:
    """Name the command that raises a limit of 0, which lets none start."""
    command = None
    if facts.host is not None:
        command = limit_explain.opening_host(facts.host) if facts.host.is_shut else None
    elif facts.limited is not None:
        command = limit_explain.opening_command(facts.limited, "job", "queue")
    return f"nothing, until its limit is raised: `{command}`" if command else None


def _following(facts: JobFacts, then: str) -> str:
    job, hint = facts.job, facts.hint
    return then.format(
        id=job.id,
        queue=shlex.quote(job.queue),
        run=job.run_id,
        newer=job.rerun_by,
        again=f" in {span(hint.due)}" if hint and hint.due > 0 else "",
        if_lost=_if_lost(facts),
    )


def _until_limit(facts: JobFacts, words: Sequence[Reason]) -> str:
    """Say when an open job that does not run fails, whatever else follows."""
    left, name = facts.limit
    is_over = facts.job.state in JOB.terminal or facts.job.state == JobState.RUNNING
    if is_over or J.DEADLINE_FIRST in words or not 0 < left < inf:
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


def limit_reasons(found: Limited | None, queue: str, live: Sequence[Worker]) -> Why[LimitReason]:
    """Say which limits keep a job in line, if any does."""

    def knows(kind: str, version: int) -> bool:
        return any(takes(worker, queue, kind, version) for worker in live)

    if found is not None:
        yield from limit_explain.kept_by(found, knows)


def _reasons(facts: JobFacts) -> OfJob:
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
        if facts.limited is not None and (turn := limit_explain.turn_kept(facts.limited)):
            yield J.HAS_TURN, turn
        if state == JobState.QUEUED and not hindered and not limits:
            yield _in_line(facts)


def _on_broker(facts: JobFacts) -> OfJob:
    """Say what a queue's broker knows of a job, and whether it can be reached."""
    hint, report = facts.hint, facts.report
    if report is not None and (away := broker_away(report)) is not None:
        yield J.BROKER_AWAY, away
    if facts.job.state != JobState.QUEUED:
        return
    if hint is None:
        yield J.UNTOLD, f"its queue is on {facts.broker}, which was told nothing of it yet"
    elif hint.told is None:
        failed = "" if hint.error is None else f": {hint.error}"
        yield (
            J.UNTOLD,
            f"it was handed to {facts.broker}, which has not confirmed it{failed}",
        )
    else:
        often = "once" if hint.tellings == 1 else f"{hint.tellings} times"
        last = f"last {span(hint.told)} ago"
        yield (
            J.TOLD,
            f"{facts.broker} was told of it {often}, {last}; nobody has claimed it since",
        )


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


def _ended(job: Job) -> OfJob:
    if job.state == JobState.SUCCEEDED:
        yield J.SUCCEEDED, f"it succeeded in attempt {job.attempt}"
    elif job.state == JobState.CANCELLED:
        yield (
            J.CANCELLED,
            f"it was cancelled ({job.cancel_reason or 'no reason was given'})",
        )
    else:
        yield J.FAILED, f"it failed ({job.cause or job.move}){_error(job)}"
        if job.error is not None:
            yield (
                J.TRACEBACK,
                f"what it said, and its traceback: `milepost jobs show {job.id}`",
            )
    if job.rerun_by is not None:
        yield J.RERUN, f"it was run again as job {job.rerun_by}"
    elif job.state != JobState.SUCCEEDED and job.run_id is None:
        yield J.FINAL, "a final state is final: a rerun makes a new job of it"
    elif job.state != JobState.SUCCEEDED:
        yield (
            J.OF_RUN,
            f"it belongs to run {job.run_id}, which runs it again when it is resumed",
        )


def _error(job: Job) -> str:
    """Name the error's class; what it says may be private, and is in `job.error`."""
    try:
        return f" with {msgspec.json.decode(job.error or '')['type']}"
    except (msgspec.DecodeError, KeyError, TypeError):  # none, or one that was written by hand
        return ""


def _running(facts: JobFacts) -> OfJob:
    job, holder = facts.job, facts.holder
    begun = f"attempt {job.attempt} of {job.attempts_allowed} runs on {job.worker_id}"
    share = f", {job.progress:.0%} done" if job.progress is not None else ""
    said = f" ({job.progress_text})" if job.progress_text else ""
    # Who has just killed the worker wants to know when somebody else takes over.
    leased = f", leased for {holder.lease_seconds:.0f} s more" if holder and is_live(holder) else ""
    if facts.host is not None:
        yield J.HOST, limit_explain.waits_at_host(facts.host)
    yield J.RUNNING, f"{begun}{leased}{share}{said}"
    if job.cancel_reason is not None:
        yield J.ASKED_TO_STOP, f"it was asked to stop ({job.cancel_reason}) and has not yet"
    if facts.run_state == RunState.STOPPING:
        yield J.RUN_STOPPING, f"its run {job.run_id} is stopping and waits for it"
    if holder is None or not is_live(holder):
        yield (
            J.LEASE_OVER,
            "its worker is gone: maintenance, which any worker does, takes it away",
        )
        if not facts.live:
            yield J.NOBODY, NO_WORKER


def _waiting(facts: JobFacts) -> OfJob:
    job = facts.job
    if job.state == JobState.CREATED:
        held = "it is held" if job.run_id is None else "its run is still being filled"
        yield J.HELD, f"{held}: nobody has called submit() yet"
    elif job.state == JobState.GATED:
        yield from _gated(facts)
    elif job.state == JobState.READY and facts.broker is None:
        yield J.OVERDUE, f"its queue is on no broker any more: {SENT_ON}"
    elif job.state == JobState.READY:
        yield J.BROKER, f"it waits to be handed to its queue's broker ({facts.broker})"
    elif job.state == JobState.RETRYING:
        yield (
            J.RETRY,
            f"{_last(job)}; {job.attempt} of {job.attempts_allowed} attempts are spent",
        )
    if facts.misfit is not None:
        way = f"a worker whose function takes other parameters, or `milepost jobs release {job.id}`"
        yield J.UNFIT, f"{facts.misfit}; {way} sends it on"
    elif job.state in (JobState.WAITING, JobState.RETRYING):
        yield from _due(facts)


def _gated(facts: JobFacts) -> OfJob:
    job = facts.job
    before = [step for step in facts.steps if step.number < (job.step or 0) and step.open]
    for step in before:
        yield (
            J.GATE,
            f"it waits at a gate: step {step.name} of run {job.run_id} has "
            + some(step.open, "open job"),
        )
    if not before:  # more wait behind it than one transaction lets through
        yield J.OVERDUE, f"its gate is open: {SENT_ON}"


def _last(job: Job) -> str:
    if job.move == "lose":
        return "its worker was lost"
    if job.move == "release":
        return "its worker gave it back"
    return f"its last attempt failed{_error(job)}"


def _due(facts: JobFacts) -> OfJob:
    due = facts.job.due_at
    if due is None:
        yield J.SIGNAL, "it waits for a signal: job.signal(data) sends one"
        return
    left = (due - facts.now).total_seconds()
    if left > 0:
        yield J.DUE, f"it is due in {span(left)}, at {moment(due)}"
        ends, name = facts.limit
        if 0 < ends <= left:
            yield J.DEADLINE_FIRST, f"{name} comes first, in {span(ends)}"
    else:
        yield J.OVERDUE, f"it has been due for {span(-left)}: {SENT_ON}"


def _hindered(facts: JobFacts) -> OfJob:
    job = facts.job
    if facts.paused:
        yield J.QUEUE_PAUSED, f"its queue {job.queue!r} is paused: resume it"
    if facts.run_state == RunState.STOPPING:
        yield J.RUN_STOPPING, f"its run {job.run_id} is stopping: it will be cancelled"
    if job.is_spent:
        yield J.SPENT, "it has no attempt left: maintenance will end it"
    left, name = facts.limit
    if left <= 0:
        yield J.DEADLINE, f"{name} has passed: maintenance will end it"
    yield from _without_worker(facts)


def _without_worker(facts: JobFacts) -> OfJob:
    job, live = facts.job, facts.live
    kind = f"{job.kind} version {job.kind_version}"
    serving = [worker for worker in live if takes(worker, job.queue)]
    if not live:
        yield J.NO_WORKER, NO_WORKER
    elif not serving:
        yield J.NO_WORKER_FOR_QUEUE, none_of(len(live), "serve", f"queue {job.queue!r}")
    elif not any(can_take(worker, job) for worker in serving):
        yield (
            J.NO_WORKER_FOR_KIND,
            f"{none_of(len(serving), 'know', kind, of=' of its queue')}: deploy one that does"
            + _known(serving, job),
        )


def _known(serving: Sequence[Worker], job: Job) -> str:
    """Tell which versions of its kind are deployed."""
    known = {word for worker in serving for word in msgspec.json.decode(worker.kinds or "[]")}
    versions = sorted(word.rpartition(" ")[2] for word in known if word.startswith(f"{job.kind} "))
    who = "it knows" if len(serving) == 1 else "they know"
    return f" ({who} {job.kind} version {', '.join(versions)})" if versions else ""


def _in_line(facts: JobFacts) -> tuple[JobReason, str]:
    able = facts.able
    if facts.job.is_suspect:
        lost = f"it was lost {some(facts.job.losses, 'time')} and one more loss would end it"
        return J.ALONE, (
            f"{lost if facts.job.losses else 'a loss would end it'}: it runs "
            f"with no other job in its process, as soon as {_one_of(able)} has room for that"
        )
    if any(_free(worker) for worker in able):
        who = f"any of {len(able)} live workers" if len(able) > 1 else "the only live worker"
        return J.IN_LINE, f"it is in line: {who} may take it next"
    if len(able) == 1:
        return J.BUSY, "it is in line: the only worker that may take it is busy"
    return (
        J.BUSY,
        f"it is in line: all of the {len(able)} workers that may take it are busy",
    )


def _one_of(able: Sequence[Worker]) -> str:
    return "its only worker" if len(able) == 1 else f"one of {len(able)} workers"


def _free(worker: Worker) -> bool:
    if worker.slots is None:
        return True
    slots = msgspec.json.decode(worker.slots)
    return bool(slots.get("FREE") or slots.get("CLAIMING"))


def _ruled_out(facts: JobFacts, words: Sequence[Reason]) -> Iterator[str]:
    """Say what does not keep an open job that does not run; nothing of others."""
    job = facts.job
    if job.state in JOB.terminal or job.state == JobState.RUNNING:
        return
    if not facts.paused:
        yield f"queue {job.queue} is not paused"
    if able := facts.able:
        know = some(len(able), "live worker knows", "live workers know")
        yield f"{know} {job.kind} version {job.kind_version}"
    if free := sum(map(_free_slots, able)):
        yield f"{some(free, 'slot is', 'slots are')} free"
    if facts.run_state is not None and facts.run_state != RunState.STOPPING:
        yield f"its run is {facts.run_state}"
    if job.deadline_at is not None and J.DEADLINE_FIRST not in words and facts.limit[0] > 0:
        yield f"its deadline is in {span((job.deadline_at - facts.now).total_seconds())}"


def _free_slots(worker: Worker) -> int:
    slots = {} if worker.slots is None else msgspec.json.decode(worker.slots)
    return int(slots.get("FREE", 0)) + int(slots.get("CLAIMING", 0))
