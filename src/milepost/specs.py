"""The five specs' words for the states of the machines.

A spec's view is data: from it come `job.as_spec("D")`, the SQL views in the specs' own names, the
diagrams in the specs' words, and the tests that walk each diagram.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TypedDict

from milepost.lifecycle import JOB, RUN, SLOT, WORKER, JobState, RunState, SlotState, WorkerState
from milepost.machine import CREATION, Machine, among

J = JobState
R = RunState
W = WorkerState
S = SlotState


@dataclass(frozen=True, slots=True)
class Facts:
    """The state, and the other facts that a spec's word may depend on."""

    state: str
    fence: int = 0
    phase: str | None = None
    transport: str = "store"
    retrying: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A fact in two spellings: one for Python, one for SQL over the machine's own table."""

    holds: Callable[[Facts], bool]
    sql: str


@dataclass(frozen=True, slots=True)
class Word:
    """A spec's name for some states, perhaps only under a condition."""

    name: str
    states: tuple[StrEnum, ...]
    when: Condition | None = None

    def fits(self, facts: Facts) -> bool:
        """Tell whether this word describes those facts."""
        return facts.state in self.states and (self.when is None or self.when.holds(facts))


Step = tuple[str, Facts | None, Facts]
"""(move, facts before, facts after); there are none before its creation."""

REDUCING = "reduce"
"""The phase of a run that finalizes, and of one that was stopped while it did."""
ITS_JOBS = "its jobs"
"""No move: a run's word changed because one of its jobs began or ended a retry wait."""


@dataclass(frozen=True)
class View:
    """One spec's vocabulary: a total, many-to-one function of the facts. The first word wins."""

    spec: str
    machine: Machine
    words: tuple[Word, ...]
    phases: tuple[str, ...] = ()  # in the order in which an attempt, or a run, passes them

    def word(self, facts: Facts) -> str:
        """Say in the spec's own word where the row stands."""
        return next(word.name for word in self.words if word.fits(facts))

    def sql(self) -> str:
        """Render the same function as a CASE over the columns of the machine's table."""
        branches = "\n".join(
            f"    WHEN {_word_sql(word)} THEN '{word.name}'" for word in self.words
        )
        return f"CASE\n{branches}\n  END"

    def table(self) -> str:
        """Write the vocabulary as a Markdown table."""
        head = ["| word | states | when |", "|---|---|---|"]
        return "\n".join(head + [_table_row(word) for word in self.words])

    def mermaid(self) -> str:
        """Draw the machine as a reader of the spec sees it."""
        drawn = [
            f"  {before or '[*]'} --> {after} : {', '.join(moves)}"
            for (before, after), moves in sorted(self.edges.items())
            if before != after
        ]
        ends = sorted({name for state in self.machine.terminal for name in self.names(state)})
        return "\n".join(["stateDiagram-v2", *drawn, *(f"  {name} --> [*]" for name in ends)])

    @cached_property
    def edges(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """Every (word, word) that a reader can see change, or stay, and the moves that do it."""
        seen: dict[tuple[str, str], set[str]] = {}
        for move, before, after in self.steps:
            edge = (self.word(before) if before else CREATION, self.word(after))
            seen.setdefault(edge, set()).add(move)
        return {edge: tuple(sorted(moves)) for edge, moves in seen.items()}

    @cached_property
    def steps(self) -> frozenset[Step]:
        """Every step that the engine can make, from its creation on.

        States alone would also draw what cannot be: a job that went back to WAITING has run, so
        a reader of D never sees RUNNING become CREATED.
        """
        found: set[Step] = set()
        known: set[Facts] = set()
        ahead: set[Facts | None] = {None if self.machine.initial else self._first}
        while ahead:
            fresh = {(move, at, after) for at in ahead for move, after in self._next(at)}
            ahead = {after for _, _, after in fresh if after not in known}
            known |= {after for _, _, after in fresh}
            found |= fresh
        return frozenset(found)

    @property
    def _first(self) -> Facts:
        return Facts(next(iter(self.machine.states)).value)

    def _next(self, before: Facts | None) -> Iterator[tuple[str, Facts]]:
        state = before.state if before else CREATION
        for move, source, target in self.machine.triples:
            # A job that waits for its retry is open: its run neither ends well nor is reduced.
            waits = before and before.retrying and target in (R.SUCCEEDED, R.FINALIZING)
            if source == state and not waits:
                yield from ((move, after) for after in self._after(before, move, target))
        if before and self.machine is RUN and state == R.RUNNING:
            yield from ((ITS_JOBS, replace(before, retrying=wait)) for wait in (False, True))

    def _after(self, before: Facts | None, move: str, target: str) -> Iterator[Facts]:
        fence = 1 if move == "claim" else before.fence if before else 0
        for transport in (before.transport,) if before else ("store", "broker"):
            if self.machine is not JOB or _routed(transport, move, target):
                for phase in self._phases(before, target):
                    yield Facts(target, fence, phase, transport)

    def _phases(self, before: Facts | None, target: str) -> tuple[str | None, ...]:
        if self.machine is RUN and target == R.FINALIZING:
            return (REDUCING,)
        if self.machine is RUN and before and target == R.STOPPING:
            return (before.phase,)
        # A phase belongs to one attempt, or to a run under way: it begins unset and goes forward.
        if not before or not before.state == target == J.RUNNING:
            return (None,)
        passed = self.phases.index(before.phase) + 1 if before.phase else 0
        return (before.phase, *self.phases[passed : passed + 1])

    def names(self, state: str) -> tuple[str, ...]:
        """Every word that this state may be called."""
        names: list[str] = []
        for word in self.words:
            if state in word.states:
                names.append(word.name)
                if word.when is None:
                    break
        return tuple(dict.fromkeys(names))


def _routed(transport: str, move: str, target: str) -> bool:
    # Only a broker's queue has READY, and there only `dispatch`, with its outbox row, makes QUEUED.
    if transport == "store":
        return target != J.READY
    return target != J.QUEUED or move == "dispatch"


def _table_row(word: Word) -> str:
    when = f"`{word.when.sql}`" if word.when else ""
    return f"| {word.name} | {', '.join(word.states)} | {when} |"


def _word_sql(word: Word) -> str:
    states = f"state {among(state.value for state in word.states)}"
    return f"{states} AND {word.when.sql}" if word.when else states


def _in_phase(phase: str) -> Condition:
    return Condition(lambda facts: facts.phase == phase, f"phase = '{phase}'")


_STARTED = Condition(lambda facts: facts.fence > 0, "fence > 0")
_PAGED = Condition(
    lambda facts: (facts.phase or "").startswith("page"), "substr(phase, 1, 4) = 'page'"
)
_BROKERED = Condition(
    lambda facts: facts.transport != "store",
    "coalesce((SELECT transport FROM queue WHERE name = job.queue), 'store') <> 'store'",
)
_HAS_RETRIES = Condition(
    lambda facts: facts.retrying,
    "EXISTS (SELECT 1 FROM job WHERE run_id = run.id AND state = 'RETRYING')",
)
_ENDED_BADLY = (J.FAILED, J.CANCELLED)


def _views(
    machine: Machine,
    phases: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    **specs: tuple[Word, ...],
) -> dict[str, View]:
    """Give each spec's view of a machine; `phases` are those that a spec names."""
    return {spec: View(spec, machine, words, phases.get(spec, ())) for spec, words in specs.items()}


def _title(state: StrEnum) -> str:
    return state.value.title().replace("_", "")


JOB_VIEWS = _views(
    JOB,
    {"B": ("page",), "C": ("REQUESTING", "RESPONSE")},
    A=(
        Word("GATE_WAITING", (J.GATED,)),
        Word("POLL_WAITING", (J.WAITING,)),
        Word("QUEUED", (J.QUEUED,), _BROKERED),
        # Where the store is the queue there is no dispatch: ready is claimable (H-50).
        Word("READY", (J.CREATED, J.READY, J.QUEUED)),
        Word("IN_PROGRESS", (J.RUNNING,)),
        Word("ERROR", (J.RETRYING,)),
        Word("COMPLETED", (J.SUCCEEDED,)),
        Word("FAILED", _ENDED_BADLY),
    ),
    B=(
        Word("PartitionFetchingPages", (J.RUNNING,), _PAGED),
        Word("PartitionInProgress", (J.WAITING,), _STARTED),
        Word("PartitionInProgress", (J.RUNNING, J.RETRYING)),
        Word("PartitionPending", (J.CREATED, J.GATED, J.WAITING, J.READY, J.QUEUED)),
        Word("PartitionCompleted", (J.SUCCEEDED,)),
        Word("PartitionFailed", _ENDED_BADLY),
    ),
    C=(
        Word("REQUESTING", (J.RUNNING,), _in_phase("REQUESTING")),
        Word("RESPONSE", (J.RUNNING,), _in_phase("RESPONSE")),
        Word("REQUEST", (J.RUNNING,)),
        Word("WAITING", (J.WAITING,), _STARTED),
        Word("WAITING", (J.RETRYING,)),
        Word("IDLE", (J.CREATED, J.GATED, J.WAITING, J.READY, J.QUEUED)),
        Word("COMPLETE", (J.SUCCEEDED,)),
        Word("FAIL", _ENDED_BADLY),
    ),
    D=(
        Word("RETRYING", (J.WAITING,), _STARTED),
        Word("CREATED", (J.CREATED, J.GATED, J.WAITING)),
        Word("QUEUED", (J.READY, J.QUEUED)),
        Word("RUNNING", (J.RUNNING,)),
        Word("RETRYING", (J.RETRYING,)),
        Word("SUCCEEDED", (J.SUCCEEDED,)),
        Word("FAILED", _ENDED_BADLY),
    ),
    E=(
        Word("running", (J.RUNNING,)),
        Word("pending", (J.CREATED, J.GATED, J.WAITING, J.READY, J.QUEUED, J.RETRYING)),
        Word("done", (J.SUCCEEDED,)),
        Word("error", _ENDED_BADLY),
    ),
)

CONSOLIDATION_PHASES = (
    "ValidatingRun",
    "LoadingPricingRules",
    "FetchingRawBatch",
    "ProcessingBatch",
    "MappingDiamonds",
    "ApplyingPricing",
    "UpsertingBatch",
    "MarkingConsolidated",
    "UpdatingRunMetadata",
    "AdvancingWatermark",
)
"""B's states within Consolidating, as jobs that consolidate or finalize note them."""
CONSOLIDATING_ROLES = ("consolidate", "reduce")

CONSOLIDATION_VIEW = View(
    "B",
    JOB,
    (
        *(Word(phase, (J.RUNNING,), _in_phase(phase)) for phase in CONSOLIDATION_PHASES),
        Word("Consolidating", (J.WAITING,), _STARTED),
        Word("Consolidating", (J.RUNNING, J.RETRYING)),
        Word("WorkersRunning", (J.CREATED, J.GATED)),  # held until every partition is read
        Word("ConsolidationTriggered", (J.WAITING, J.READY, J.QUEUED)),
        Word("Completed", (J.SUCCEEDED,)),
        Word("Failed", _ENDED_BADLY),
    ),
    CONSOLIDATION_PHASES,
)
"""B's words for a job that consolidates or finalizes: it is no partition."""

STEP_ROLE = "(SELECT step.role FROM step WHERE step.run_id = job.run_id AND step.number = job.step)"
"""The role of a job's step in SQL; NULL for a job outside the steps of a run."""


def job_view(spec: str, *, role: str | None) -> View:
    """Choose a spec's words for a job whose step has that role."""
    is_consolidating = spec == "B" and role in CONSOLIDATING_ROLES
    return CONSOLIDATION_VIEW if is_consolidating else JOB_VIEWS[spec]


def job_word_sql(spec: str) -> str:
    """Render the same choice, and the word, over the columns of the table of jobs."""
    word = JOB_VIEWS[spec].sql()
    if spec != "B":
        return word
    is_consolidating = f"{STEP_ROLE} {among(CONSOLIDATING_ROLES)}"
    return f"CASE WHEN {is_consolidating} THEN\n  {CONSOLIDATION_VIEW.sql()}\n  ELSE {word} END"


RUN_VIEWS = _views(
    RUN,
    {"B": ("consolidate",)},
    A=(
        Word("BUILDING", (R.CREATED,)),
        Word("QUEUED", (R.QUEUED,)),
        # Never stored: shown only while a job is in retry wait (H-2).
        Word("ERRORED", (R.RUNNING,), _HAS_RETRIES),
        # Stopping, it is where it was stopped until its jobs have ended.
        Word("FINALIZE", (R.STOPPING,), _in_phase(REDUCING)),
        Word("IN_PROGRESS", (R.RUNNING, R.STOPPING)),
        Word("FINALIZE", (R.FINALIZING,)),
        Word("COMPLETED", (R.SUCCEEDED,)),
        Word("FAILED", (R.FAILED,)),
        Word("CANCELLED", (R.CANCELLED,)),
    ),
    B=(
        Word("Created", (R.CREATED, R.QUEUED)),
        Word("Consolidating", (R.RUNNING, R.STOPPING), _in_phase("consolidate")),
        Word("Consolidating", (R.STOPPING,), _in_phase(REDUCING)),
        Word("WorkersRunning", (R.RUNNING, R.STOPPING)),
        Word("Consolidating", (R.FINALIZING,)),
        Word("Completed", (R.SUCCEEDED,)),
        # ConsolidationSkipped is passed within the failing transaction: cause incomplete.
        Word("Failed", (R.FAILED, R.CANCELLED)),
    ),
    C=(
        Word("IDLE", (R.CREATED, R.QUEUED)),
        Word("REQUEST", (R.RUNNING, R.STOPPING, R.FINALIZING)),
        Word("COMPLETE", (R.SUCCEEDED,)),
        Word("FAIL", (R.FAILED, R.CANCELLED)),
    ),
)

WORKER_VIEWS = _views(WORKER, E=tuple(Word(_title(state), (state,)) for state in W))
# A free slot is the worker's own polling.
SLOT_VIEWS = _views(SLOT, E=tuple(Word("Polling" if s is S.FREE else _title(s), (s,)) for s in S))

VIEWS = {"job": JOB_VIEWS, "run": RUN_VIEWS, "worker": WORKER_VIEWS, "slot": SLOT_VIEWS}


CANCELLED = "cancelled"
EXPIRED = "its deadline has passed"
LOST = "its worker died or its lease expired"
"""D's `lastError` for jobs without an error of their own."""


class Lifecycle(TypedDict):
    """D's record of a job, in D's names; the SQL view `job_lifecycle` says the same."""

    jobId: str
    state: str
    createdAt: datetime
    startedAt: datetime | None
    completedAt: datetime | None
    retryCount: int
    maxRetries: int
    lastError: str | None
    errorType: str | None


class WatermarkWord(StrEnum):
    """B's words for a pipeline's watermark, derived from the watermark and its latest run."""

    NO_WATERMARK = "NoWatermark"
    READ = "WatermarkRead"
    RUN_CREATED = "RunCreated"
    PROCESSING = "Processing"
    ADVANCED = "WatermarkAdvanced"
    NOT_ADVANCED = "WatermarkNotAdvanced"


def watermark_word(run_state: str | None, *, exists: bool) -> WatermarkWord:
    """Say in B's word where a pipeline's watermark stands, given the run that uses it now.

    No run means that the scheduler looks at it next. Before the first success there is none, and
    a failed first run leaves it so.
    """
    if not exists:
        return WatermarkWord.NO_WATERMARK
    if run_state is None:
        return WatermarkWord.READ
    if run_state in (R.CREATED, R.QUEUED):
        return WatermarkWord.RUN_CREATED
    if run_state in (R.RUNNING, R.STOPPING, R.FINALIZING):
        return WatermarkWord.PROCESSING
    return WatermarkWord.ADVANCED if run_state == R.SUCCEEDED else WatermarkWord.NOT_ADVANCED


PUBLIC_WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "PENDING": (R.CREATED, J.GATED, J.WAITING, J.READY, J.QUEUED, J.RETRYING),
        "RUNNING": (J.RUNNING, R.STOPPING, R.FINALIZING),
        "COMPLETE": (J.SUCCEEDED,),
        "FAILED": (J.FAILED,),
        "CANCELLED": (J.CANCELLED,),
    }
)
"""The words of the API for the states of jobs and runs."""

_PUBLIC = {str(state): word for word, states in PUBLIC_WORDS.items() for state in states}


def public(state: str) -> str:
    """Say the state of a job or a run in a public word."""
    return _PUBLIC[str(state)]


def answer_word(state: str) -> str:
    """Say the state of a job or a run as C's caller reads it, in answers and in final messages."""
    if state == J.SUCCEEDED:
        return "COMPLETE"
    return "FAIL" if state in _ENDED_BADLY else "PENDING"
