"""Every reason that `explain` gives, as data: the word for programs, and what it means.

There is a list for each subject: a reason that is not in it cannot be yielded (the type checker
says so), and one that no test reaches fails the tests.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Self, TypeVar


class Reason(StrEnum):
    """A word that programs compare, with what it means."""

    meaning: str

    def __new__(cls, word: str, meaning: str) -> Self:
        """Take the meaning along."""
        made = str.__new__(cls, word)
        made._value_ = word
        made.meaning = meaning
        return made

    __repr__ = str.__repr__


R_co = TypeVar("R_co", bound=Reason, covariant=True)
Why = Iterator[tuple[R_co, str]]
"""Reasons, the nearest first: a word for programs, a sentence for people."""


class JobReason(Reason):
    """Why a job is, or is not, running; limits have reasons of their own."""

    HELD = "held", "it was created, and nobody has submitted it"
    GATE = "gate", "open jobs of an earlier step keep its gate shut"
    BROKER = "broker", "it waits to be handed to the broker of its queue"
    RETRY = "retry", "its last attempt failed, was lost or was given back"
    UNFIT = "unfit", "its arguments do not fit the function"
    SIGNAL = "signal", "it waits for a signal, without a time"
    DUE = "due", "it waits for a time"
    DEADLINE_FIRST = "deadline_first", "its deadline, or its latest start, comes before that time"
    OVERDUE = "overdue", "it could go on, and maintenance has not sent it on yet"
    QUEUE_PAUSED = "queue_paused", "its queue is paused"
    RUN_STOPPING = "run_stopping", "its run is stopping"
    SPENT = "spent", "it has no attempt left"
    DEADLINE = "deadline", "its deadline, or its latest start, has passed"
    NO_WORKER = "no_worker", "no worker is alive"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue", "no live worker serves its queue"
    NO_WORKER_FOR_KIND = "no_worker_for_kind", "no live worker knows its kind and version"
    BROKER_AWAY = "broker_away", "the broker of its queue does not answer, or nobody asks it"
    UNTOLD = "untold", "the broker was not told of it, or has not confirmed it"
    TOLD = "told", "the broker was told of it, and nobody has claimed it since"
    HAS_TURN = "has_turn", "between two attempts it keeps the turn of its ordered key"
    ALONE = "alone", "one more loss would end it: it waits for a process of its own"
    BUSY = "busy", "all workers that may take it are busy"
    IN_LINE = "in_line", "the next free worker may take it"
    RUNNING = "running", "a worker runs it"
    HOST = "host", "its request waits for its turn at its host"
    ASKED_TO_STOP = "asked_to_stop", "it was asked to stop, and has not yet"
    LEASE_OVER = "lease_over", "its worker is gone"
    NOBODY = "nobody", "its worker is gone, and no other is there to take it away"
    SUCCEEDED = "succeeded", "it succeeded"
    CANCELLED = "cancelled", "it was cancelled"
    FAILED = "failed", "it failed"
    TRACEBACK = "traceback", "its error is stored"
    RERUN = "rerun", "another job took its place"
    FINAL = "final", "it can be run again as a new job"
    OF_RUN = "of_run", "it is run again when its run is resumed"


class LimitReason(Reason):
    """Which limit keeps a job in line."""

    LIMIT = "limit", "as many run as its limit allows"
    TURN = "turn", "its key is ordered, and another job has the turn"
    RATE = "rate", "the rate of its limit has none left"
    QUEUE_LIMIT = "queue_limit", "as many run as the limit of its queue allows"
    QUEUE_RATE = "queue_rate", "the rate of its queue has none left"


class RunReason(Reason):
    """How a run stands; then comes the first reason of the job that it waits for."""

    HELD = "held", "it is still being filled or planned"
    STOPPING = "stopping", "it stops: jobs of it still run"
    STEP = "step", "a step that it has reached has open jobs"
    GATE = "gate", "the gate of a later step is closed"
    OVERDUE = "overdue", "it has no open job, and maintenance has not moved it on yet"
    SUCCEEDED = "succeeded", "it succeeded"
    FAILED = "failed", "it failed"
    CANCELLED = "cancelled", "it was cancelled"


class QueueReason(Reason):
    """How a queue stands; and the limits that keep its first job that is under one."""

    PAUSED = "queue_paused", "it is paused"
    NO_WORKER = "no_worker", "no worker is alive"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue", "no live worker serves it"
    NO_WORKER_FOR_KIND = "no_worker_for_kind", "jobs wait whose kind none of its workers knows"
    UNREPORTED = "unreported", "it is on a broker, and no worker has served it there lately"
    BROKER_AWAY = "broker_away", "its broker does not answer, or nobody asks it"
    UNTOLD = "untold", "its broker does not take what it is told"
    DEAD_HINTS = "dead_hints", "its broker has given up some of what it was told"
    ON_BROKER = "on_broker", "it is on a broker: what that was told, and what it counts"
    FULL = "full", "as many wait as may: submits are refused"
    LEASE_OVER = "lease_over", "workers that are gone hold jobs of it"
    IN_LINE = "in_line", "jobs wait in it"
    EMPTY = "empty", "no job waits in it"


class ScheduleReason(Reason):
    """Whether a schedule fires."""

    VANISHED = "vanished", "no running program declares it"
    PAUSED = "paused", "it is paused"
    NO_WORKER = "no_worker", "no worker is alive"
    OVERDUE = "overdue", "its time has come, and maintenance has not fired it yet"
    FIRED = "fired", "how often it fired, and when last"


class ChannelReason(Reason):
    """Whether messages leave through a channel."""

    STOPPED = "stopped", "it was stopped"
    VANISHED = "vanished", "no running program declares it"
    NO_WORKER = "no_worker", "no worker is alive to deliver"
    FAILING = "failing", "a message that waits has failed before"
    DEAD = "dead", "messages were given up"
    WAITING = "waiting", "messages wait"
    EMPTY = "empty", "no message waits"


class PipelineReason(Reason):
    """How far a pipeline has read, and what it waits for."""

    WATERMARK = "watermark", "how far it is behind"
    GAPS = "gaps", "partitions of ended runs were never read"
    RUN = "run", "how its latest run stands"


_OF_JOB = (*JobReason, *LimitReason)
_NEVER_FIRST = {
    *(JobReason.GATE, JobReason.DEADLINE_FIRST, JobReason.HAS_TURN, JobReason.ASKED_TO_STOP),
    *(JobReason.LEASE_OVER, JobReason.NOBODY, JobReason.SUCCEEDED, JobReason.CANCELLED),
    *(JobReason.FAILED, JobReason.TRACEBACK, JobReason.RERUN, JobReason.FINAL, JobReason.OF_RUN),
}
"""A run has reached the job that it waits for, which is open: none of these is its first reason."""
REASONS: Mapping[str, tuple[Reason, ...]] = {
    "job": _OF_JOB,
    "run": (*RunReason, *(reason for reason in _OF_JOB if reason not in _NEVER_FIRST)),
    "queue": (*QueueReason, *LimitReason),
    "schedule": tuple(ScheduleReason),
    "channel": tuple(ChannelReason),
    "pipeline": tuple(PipelineReason),
}
"""All reasons, by what is explained."""
