"""What decides whether a job runs: its situation, the workers, its broker, its limits."""

from collections.abc import Sequence
from datetime import datetime
from math import inf

import msgspec

from milepost.errors import NotFound
from milepost.lifecycle import JOB, JobState
from milepost.records import Job, Situation, StepCount, Worker
from milepost.store import brokers, fanin, limit_explain, workers
from milepost.store.brokers import BrokerReport, JobHint
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.hints import STORE
from milepost.store.limit_explain import HostWait, Limited

_situation = reader(Situation)


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to know of a job and of whom and what it waits for."""

    job: Job
    situation: Situation
    workers: Sequence[Worker] = ()
    steps: Sequence[StepCount] = ()
    """Of the run of a job that waits at a gate."""
    hint: JobHint | None = None
    """What the broker was told of it, if its queue is on one."""
    report: BrokerReport | None = None
    """What the broker of its queue last said, if somebody asked."""
    limited: Limited | None = None
    """The limits that a job in line is under, or one that keeps the turn of its key."""
    host: HostWait | None = None
    """Where a request that runs waits for its turn."""

    @property
    def now(self) -> datetime:
        """When it was looked up, by the store's clock."""
        return self.situation.now

    @property
    def paused(self) -> bool:
        """Whether its queue is paused."""
        return bool(self.situation.paused)

    @property
    def run_state(self) -> str | None:
        """How its run stands, if it is of one."""
        return self.situation.run_state

    @property
    def broker(self) -> str | None:
        """The kind of broker that its queue is on, if it is on one."""
        return None if self.job.transport in (None, STORE) else self.job.transport

    @property
    def misfit(self) -> str | None:
        """Why its arguments do not fit, if that is what it waits for."""
        if self.job.state != JobState.WAITING or self.job.phase != "unfit":
            return None
        return self.situation.detail or "its arguments do not fit"

    @property
    def limit(self) -> tuple[float, str]:
        """In how many seconds a job that does not run fails, and what says so."""
        ends = {"its deadline": self.job.deadline_at, "its latest start": self.situation.start_by}
        left = [((at - self.now).total_seconds(), name) for name, at in ends.items() if at]
        return min(left, default=(inf, ""))

    @property
    def live(self) -> list[Worker]:
        """The workers that hold a lease."""
        return [worker for worker in self.workers if is_live(worker)]

    @property
    def able(self) -> list[Worker]:
        """Those of them that serve its queue and know its kind."""
        return [worker for worker in self.live if can_take(worker, self.job)]

    @property
    def holder(self) -> Worker | None:
        """The worker that runs it."""
        return next((w for w in self.workers if w.id == self.job.worker_id), None)


def look(job: Job) -> Steps[JobFacts]:
    """Look up what a job waits for."""
    rows = yield Call("job_situation", {"id": job.id})
    if not rows:
        raise NotFound(f"there is no job {job.id}")
    return (yield from look_around(job, _situation(rows[0])))


def look_around(
    job: Job, situation: Situation, *, known: Sequence[Worker] | None = None
) -> Steps[JobFacts]:
    """Look up what else there is to know of a job; the workers unless they are known."""
    facts = JobFacts(job=job, situation=situation)
    if job.state in JOB.terminal:
        return facts
    if facts.broker is not None and job.state in (JobState.READY, JobState.QUEUED):
        facts = msgspec.structs.replace(
            facts,
            hint=(yield from brokers.hint_of(job.id, version=job.version)),
            report=(yield from brokers.report(brokers.QUEUE, job.queue)),
        )
    gated = job.run_id if job.state == JobState.GATED else None
    limited = situation.queue_limited
    return msgspec.structs.replace(
        facts,
        workers=(yield from workers.listing()) if known is None else known,
        steps=[] if gated is None else (yield from fanin.steps(gated)),
        limited=(yield from limit_explain.look(job, situation.now, queue_limited=limited)),
        host=(yield from limit_explain.at_host(job)),
    )


def live_workers() -> Steps[list[Worker]]:
    """Read the workers that hold a lease."""
    return [worker for worker in (yield from workers.listing()) if is_live(worker)]


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
