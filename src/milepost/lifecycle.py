"""The four machines, declared. Everything else about a machine is derived in `machine`."""

from enum import StrEnum

from milepost.machine import Machine, Move


class JobState(StrEnum):
    """Where a job stands."""

    CREATED = "CREATED"  # exists, held, not submitted
    GATED = "GATED"  # waits for the step before it
    WAITING = "WAITING"  # sleeps until a time or a signal; nothing spent
    READY = "READY"  # may run; not yet handed to a broker
    QUEUED = "QUEUED"  # in its queue; any worker may claim it
    RUNNING = "RUNNING"  # leased by exactly one worker
    RETRYING = "RETRYING"  # failed or lost, will run again after a delay
    SUCCEEDED = "SUCCEEDED"  # final
    FAILED = "FAILED"  # final, with a cause
    CANCELLED = "CANCELLED"  # final, with actor and reason


class RunState(StrEnum):
    """Where a run stands."""

    CREATED = "CREATED"  # being filled or planned
    QUEUED = "QUEUED"  # nothing claimed yet
    RUNNING = "RUNNING"  # jobs are under way
    STOPPING = "STOPPING"  # failed or cancelled; running jobs end first
    FINALIZING = "FINALIZING"  # the reducer or finalizer runs
    SUCCEEDED = "SUCCEEDED"  # final
    FAILED = "FAILED"  # final
    CANCELLED = "CANCELLED"  # final


class WorkerState(StrEnum):
    """What a worker is doing (E, worker level)."""

    STARTUP = "STARTUP"
    CONNECTING = "CONNECTING"
    RECOVERY = "RECOVERY"
    POLLING = "POLLING"
    BACKOFF = "BACKOFF"
    IDLE = "IDLE"
    ERROR_WAIT = "ERROR_WAIT"
    DRAINING = "DRAINING"
    STOPPED = "STOPPED"


class SlotState(StrEnum):
    """What one slot of a worker is doing (E, task level)."""

    FREE = "FREE"
    CLAIMING = "CLAIMING"
    PROCESSING = "PROCESSING"
    REPORTING_SUCCESS = "REPORTING_SUCCESS"
    REPORTING_FAILURE = "REPORTING_FAILURE"


class Cause(StrEnum):
    """Why a job or a run is FAILED."""

    ERROR = "error"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    POISONED = "poisoned"
    POLL_LIMIT = "poll_limit"
    DEADLINE = "deadline"
    REJECTED = "rejected"
    OUTCOME_UNKNOWN = "outcome_unknown"
    POLICY = "policy"  # from here on: runs only
    PLAN = "plan"
    FINALIZER = "finalizer"
    INCOMPLETE = "incomplete"
    WATERMARK_CONFLICT = "watermark_conflict"


J = JobState
_JOB_OPEN = (J.CREATED, J.GATED, J.WAITING, J.READY, J.QUEUED, J.RUNNING, J.RETRYING)
_JOB_FINAL = (J.SUCCEEDED, J.FAILED, J.CANCELLED)

JOB = Machine(
    name="job",
    title="The job machine",
    states=JobState,
    # The hot moves stand first: the rendered SQL compares in this order.
    moves=(
        Move("claim", J.QUEUED, J.RUNNING, "worker: new fence, lease"),
        Move("succeed", J.RUNNING, J.SUCCEEDED, "worker, fenced"),
        Move(
            "create",
            None,
            (J.CREATED, J.GATED, J.WAITING, J.READY, J.QUEUED),
            "client; WAITING when due later",
        ),
        Move("submit", J.CREATED, (J.GATED, J.WAITING, J.READY, J.QUEUED), "client"),
        Move(
            "open",
            J.GATED,
            (J.WAITING, J.READY, J.QUEUED),
            "the transaction that ends the last job of the step before",
        ),
        Move("wake", J.WAITING, (J.READY, J.QUEUED), "time or signal"),
        Move("due", J.RETRYING, (J.READY, J.QUEUED), "time"),
        Move("dispatch", J.READY, J.QUEUED, "maintenance, with the outbox row (broker queues)"),
        Move(
            "undispatch",
            J.QUEUED,
            J.READY,
            "maintenance: handed to the broker, never claimed in time",
        ),
        Move(
            "note",
            J.RUNNING,
            None,
            "fenced; records a phase, or that cancel was asked",
        ),
        Move("fail", J.RUNNING, J.FAILED, "worker, fenced"),
        Move("retry", J.RUNNING, J.RETRYING, "worker, fenced"),
        Move("later", J.RUNNING, J.WAITING, "worker, fenced"),
        Move(
            "release",
            J.RUNNING,
            (J.RETRYING, J.WAITING),
            "worker, fenced, nothing spent: due now when it drains or is in trouble; WAITING when "
            "the stored arguments do not fit the function",
        ),
        Move(
            "lose",
            J.RUNNING,
            (J.RETRYING, J.FAILED),
            "maintenance: the lease is over, same fence; FAILED when poisoned (lost alone), spent, "
            "or the outcome is unknown by policy",
        ),
        Move(
            "expire",
            _JOB_OPEN,
            J.FAILED,
            "maintenance; a running job when its worker agreed or its lease is over",
        ),
        Move(
            "reject",
            (J.WAITING, J.READY, J.QUEUED, J.RETRYING),
            J.FAILED,
            "engine: budget already spent, no definition will ever run it",
        ),
        Move("erase", _JOB_FINAL, None, "operator: payload, result and error text set to NULL"),
        Move(
            "cancel",
            _JOB_OPEN,
            J.CANCELLED,
            "client or engine; a running job when its worker agreed or its lease is over",
        ),
    ),
)

R = RunState
_RUN_OPEN = (R.CREATED, R.QUEUED, R.RUNNING, R.STOPPING, R.FINALIZING)

RUN = Machine(
    name="run",
    title="The run machine",
    states=RunState,
    moves=(
        Move("create", None, (R.CREATED, R.QUEUED), "client"),
        Move("seal", R.CREATED, R.QUEUED, "all its first jobs are stored"),
        Move("begin", R.QUEUED, R.RUNNING, "first claim of one of its jobs"),
        Move(
            "advance",
            R.RUNNING,
            None,
            "the step has no open job and no running producer, the policy holds, "
            "a next step exists",
        ),
        Move(
            "finalize",
            (R.QUEUED, R.RUNNING),
            R.FINALIZING,
            "no open job, policy holds, a reducer or finalizer is declared",
        ),
        Move(
            "finish",
            (R.QUEUED, R.RUNNING, R.FINALIZING),
            R.SUCCEEDED,
            "no open job and no finalizer, or the finalizer succeeded",
        ),
        Move(
            "stop",
            (R.CREATED, R.QUEUED, R.RUNNING, R.FINALIZING),
            R.STOPPING,
            "failure, cancel or deadline while a job is open; `ending` is fixed",
        ),
        Move("fail", _RUN_OPEN, R.FAILED, "no open job"),
        Move("cancel", _RUN_OPEN, R.CANCELLED, "no open job"),
    ),
)

W = WorkerState
_WORKER_LIVE = tuple(state for state in W if state is not W.STOPPED)
_WORKER_TROUBLED = (W.ERROR_WAIT, W.DRAINING, W.STOPPED)

WORKER = Machine(
    name="worker",
    title="The worker machine",
    states=WorkerState,
    moves=(
        Move("boot", None, W.STARTUP, "logging, metrics, tracing"),
        Move(
            "connect",
            (W.STARTUP, W.IDLE, W.ERROR_WAIT),
            W.CONNECTING,
            "entry; slept or woken; 5 s (jittered) over",
        ),
        Move(
            "recover",
            (W.CONNECTING, W.POLLING),
            W.RECOVERY,
            "connected; or its timer is due, idle or not",
        ),
        Move("poll", W.RECOVERY, W.POLLING, "done, or not due"),
        Move("back_off", W.POLLING, W.BACKOFF, "nothing found"),
        Move("rest", W.BACKOFF, W.IDLE, "interval set, and no slot busy"),
        Move(
            "error",
            tuple(state for state in W if state not in _WORKER_TROUBLED),
            W.ERROR_WAIT,
            "unexpected error; claims released first where possible",
        ),
        Move(
            "drain",
            tuple(state for state in W if state not in (W.DRAINING, W.STOPPED)),
            W.DRAINING,
            "SIGTERM",
        ),
        Move("stop", W.DRAINING, W.STOPPED, "slots free or grace over"),
        Move("bury", _WORKER_LIVE, W.STOPPED, "maintenance: heartbeat dead"),
    ),
)

S = SlotState
_SLOT_BUSY = tuple(state for state in S if state is not S.FREE)

SLOT = Machine(
    name="slot",
    title="The slot machine",
    states=SlotState,
    moves=(
        Move("take", S.FREE, S.CLAIMING, "worker POLLING: a claim is under way"),
        Move("start", S.CLAIMING, S.PROCESSING, "a row"),
        Move("miss", S.CLAIMING, S.FREE, "none"),
        Move("success", S.PROCESSING, S.REPORTING_SUCCESS, "value or Later"),
        Move("failure", S.PROCESSING, S.REPORTING_FAILURE, "exception or cancel"),
        Move(
            "reported",
            (S.REPORTING_SUCCESS, S.REPORTING_FAILURE),
            S.FREE,
            "committed: state, usage, journal, outbox together",
        ),
        Move("drop", _SLOT_BUSY, S.FREE, "lease lost or released"),
    ),
)

MACHINES = {machine.name: machine for machine in (JOB, RUN, WORKER, SLOT)}

ORDINARY = (J.QUEUED, J.RUNNING, J.SUCCEEDED, J.FAILED)
"""The states of a job that waits for nothing but a worker, and of one that failed."""

GROUPS: dict[str, tuple[StrEnum, ...]] = {
    "final": _JOB_FINAL,  # of a job and of a run alike
    "unsuccessful": (J.FAILED, J.CANCELLED),  # of a job and of a run alike
    "open": _JOB_OPEN,
    "submitted": tuple(state for state in _JOB_OPEN if state is not J.CREATED),
    "unclaimed": tuple(state for state in _JOB_OPEN if state is not J.RUNNING),
    "pending": (J.WAITING, J.READY, J.QUEUED, J.RETRYING),  # submitted, through its gate, unclaimed
    "sleeping": (J.WAITING, J.RETRYING),
    "lined_up": (J.READY, J.QUEUED),  # due: in its queue, or to be handed to the queue's broker
    "unqueued": tuple(state for state in _JOB_OPEN if state not in ORDINARY),
    "counted": (J.RUNNING, J.SUCCEEDED),  # the last claim has ended in no counted way
    "active": tuple(state for state in _RUN_OPEN if state is not R.STOPPING),  # of a run
    "resting": (W.IDLE, W.BACKOFF),  # of a worker
}
"""The lists of states that statements ask for; each says `{name}` in SQL."""


def group_sql(name: str) -> str:
    """Render the states of a group as SQL's IN takes them. Predicates of indexes say the same."""
    return f"({', '.join(repr(state.value) for state in GROUPS[name])})"
