"""What the page of a run says in numbers: how far it is, its pace, its gates, its budget."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from math import ceil, sqrt
from typing import Any

import msgspec

from milepost.lifecycle import RUN, RunState
from milepost.records import JobError, Run
from milepost.store import failures, fanin
from milepost.store.looks import ErrorOfRun, StepStand
from milepost.store.run_page import RunPage

STOPPED = frozenset({*RUN.terminal, RunState.STOPPING})
PACE_SHARE, PACE_LEAST, PACE_MOST = 0.15, 10.0, 300.0
"""The pace is that of the last part of a run, and at most of so many seconds."""
SPREAD_LEAST = 4


class Progress(msgspec.Struct, frozen=True):
    """How far a run is, in jobs."""

    ended: int
    expected: int
    coming: int
    """Jobs of later steps that do not exist yet, if each job gives as many as those before it."""
    states: Mapping[str, int]
    more: int

    @property
    def done(self) -> int:
        """Jobs that succeeded or failed: one that was cancelled was not done."""
        return self.ended - self.states.get("CANCELLED", 0)

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.done / self.expected if self.expected else 0.0


class Gate(msgspec.Struct, frozen=True):
    """What stands between two steps."""

    is_gate: bool
    is_open: bool
    at: datetime | None


class StepFigure(msgspec.Struct, frozen=True):
    """A step as it is drawn."""

    step: StepStand
    state: str
    gate: Gate | None
    """Before it; None before the first."""
    begun_at: datetime | None
    ended_at: datetime | None
    expected: int
    is_current: bool

    @property
    def counts(self) -> list[tuple[str, int]]:
        """Its jobs by state, for its bar."""
        return [*self.step.states.items(), ("CREATED", self.step.more)]


class Pace(msgspec.Struct, frozen=True):
    """How fast jobs end, and when the last one will."""

    per_second: float | None
    eta: float | None = None
    spread: float | None = None
    done_at: datetime | None = None


class Budget(msgspec.Struct, frozen=True):
    """How many jobs of a step may fail, and did."""

    name: str
    lost: int
    allowed: int
    is_over: bool
    number: int


def line_of(steps: Sequence[StepStand]) -> list[StepStand]:
    """Leave out the jobs that are called after the end."""
    return [step for step in steps if step.role not in fanin.HOOKS.values()]


def expected(run: Run, steps: Sequence[StepStand]) -> dict[int, int]:
    """Tell how many jobs each step will have: as many for each one before as there were so far."""
    found: dict[int, int] = {}
    before: StepStand | None = None
    for step in line_of(steps):
        if run.state in STOPPED or before is None:
            found[step.number] = step.total
        elif step.role == "reduce":
            found[step.number] = max(1, step.total)
        else:
            waited = found[before.number] - before.ended
            ratio = step.total / before.succeeded if before.succeeded else 1.0
            found[step.number] = step.total + round(ratio * waited)
        before = step
    return found


def progress(run: Run, steps: Sequence[StepStand]) -> Progress:
    """Sum up how far a run is."""
    line = line_of(steps)
    states: dict[str, int] = {}
    for step in line:
        for state, count in step.states.items():
            states[state] = states.get(state, 0) + count
    total = sum(step.total for step in line)
    whole = max(total, sum(expected(run, steps).values()))
    more = sum(step.more for step in line)
    return Progress(sum(step.ended for step in line), whole, whole - total, states, more)


def steps_of(page: RunPage) -> list[StepFigure]:
    """Tell how each step is drawn, with the gate before it and when it was the current one."""
    run, line = page.run, line_of(page.steps)
    begun = _begun(page)
    coming = expected(run, page.steps)
    figures = []
    for place, step in enumerate(line):
        nexts = [begun.get(later.number) for later in line[place + 1 :]]
        until = next((at for at in nexts if at is not None), run.finished_at)
        figures.append(
            StepFigure(
                step,
                _step_state(run, step),
                Gate(step.gated, step.opened, begun.get(step.number)) if place else None,
                begun.get(step.number),
                until if begun.get(step.number) is not None else None,
                coming.get(step.number, step.total),
                is_current=_is_current(run, step),
            )
        )
    return figures


def _is_current(run: Run, step: StepStand) -> bool:
    if run.state == RunState.FINALIZING:
        return step.role == "reduce"
    live = run.state in (RunState.RUNNING, RunState.STOPPING)
    return live and step.number == run.current_step and step.role not in fanin.APART


def next_gate(steps: Sequence[StepFigure]) -> str | None:
    """Name the step whose gate opens next."""
    later = False
    for figure in steps:
        gate = figure.gate
        if later and gate is not None and gate.is_gate and not gate.is_open:
            return figure.step.name
        later = later or figure.is_current
    return None


def gates_by_entry(page: RunPage) -> dict[int, str]:
    """Tell for entries of the journal which step they led to."""
    names = iter([step for step in line_of(page.steps) if step.role != "reduce" and step.number])
    found: dict[int, str] = {}
    for entry in page.told.entries:
        if entry.move == "advance" and (step := next(names, None)) is not None:
            found[entry.seq] = f"gate to {step.name} opened" if step.gated else f"to {step.name}"
    return found


def bar_of(done: Progress) -> list[tuple[str, int]]:
    """Give the parts of a run's bar."""
    return [*done.states.items(), ("CREATED", done.more)]


def _begun(page: RunPage) -> dict[int, datetime | None]:
    """Find in the journal when each step became the current one."""
    work = [step for step in line_of(page.steps) if step.role != "reduce"]
    begun: dict[int, datetime | None] = {
        step.number: page.run.started_at for step in work[:1] if step.number == 0
    }
    later = iter([step for step in work if step.number])
    for entry in page.told.entries:
        if entry.move == "advance" and (step := next(later, None)) is not None:
            begun[step.number] = entry.at
        elif entry.move == "finalize":
            begun |= {step.number: entry.at for step in page.steps if step.role == "reduce"}
    return begun


def _step_state(run: Run, step: StepStand) -> str:
    if step.states.get("RUNNING"):
        return "RUNNING"
    if step.open:
        order = ("RETRYING", "QUEUED", "READY", "WAITING", "GATED")
        return next((state for state in order if step.states.get(state)), "CREATED")
    if not step.total:
        return "CANCELLED" if run.state in STOPPED else "CREATED"
    if step.cancelled and not step.failed:
        return "CANCELLED"
    if step.breach:
        return "FAILED"
    done = step.number < run.current_step or run.state in RUN.terminal or step.role == "reduce"
    return "SUCCEEDED" if done or step.number == run.current_step else "CREATED"


def pace(page: RunPage, done: Progress) -> Pace:
    """Measure the pace of the last minutes, and what follows from it."""
    run = page.run
    span = ((run.finished_at or page.head.now) - page.since).total_seconds()
    if run.started_at is None or span <= 0:
        return Pace(None)
    if run.state in RUN.terminal:
        return Pace(done.ended / span)
    if page.ends is None:
        rate, spread = done.ended / span, 0.0
    else:
        rate, spread = _recent(_by_place(page.ends), page.width, span)
    left = done.expected - done.ended
    if not rate or not left or run.state in STOPPED:
        return Pace(rate)
    eta = left / rate
    return Pace(rate, eta, eta * spread or None, page.head.now + timedelta(seconds=eta))


def _by_place(ends: Mapping[int, Mapping[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for places in ends.values():
        for place, count in places.items():
            found[place] = found.get(place, 0) + count
    return found


def _recent(found: Mapping[int, int], width: int, span: float) -> tuple[float, float]:
    """Give the pace of the last spans, and how far it may be off, as a share of it."""
    last = int(span / width)
    some = ceil(min(max(span * PACE_SHARE, PACE_LEAST), PACE_MOST) / width)
    first = max(0, last - max(1, some))
    rate = sum(found.get(place, 0) for place in range(first, last + 1)) / (span - first * width)
    rates = [found.get(place, 0) / width for place in range(first, last)]
    mean = sum(rates) / len(rates) if rates else 0.0
    if len(rates) < SPREAD_LEAST or not mean:
        return rate, 0.0
    variance = sum((one - mean) ** 2 for one in rates) / (len(rates) - 1)
    return rate, sqrt(variance / len(rates)) / mean


def budgets(run: Run, steps: Sequence[StepStand]) -> list[Budget]:
    """Tell how many jobs of each step may fail: its policy's share of its jobs."""
    coming = expected(run, steps)
    return [
        Budget(
            step.name,
            # What a run cancels as it stops was not the reason for it.
            step.failed if run.state in STOPPED else step.lost,
            int(step.tolerance * coming.get(step.number, step.total) * (1 + 1e-9)),
            is_over=(not step.open and step.number < run.current_step) or run.state in RUN.terminal,
            number=step.number,
        )
        for step in line_of(steps)
        if step.role not in fanin.APART and (step.total or step.number <= run.current_step)
    ]


def policy_of(run: Run) -> tuple[str, float | None]:
    """Name the failure policy of a run, and the share that it tolerates."""
    found: dict[str, Any] = msgspec.json.decode(run.policy or "{}")
    share = found.get("share")
    name = str(found.get("type", "FailFast"))
    return (f"{name}({share:g})", float(share)) if share is not None else (f"{name}()", None)


class ErrorLine(msgspec.Struct, frozen=True):
    """Jobs of a step with the same error."""

    group: ErrorOfRun
    error: JobError
    place: str | None
    step: str


def errors_of(page: RunPage) -> list[ErrorLine]:
    """Read the errors of a run's jobs."""
    names = {step.number: step.name for step in page.steps}
    return [
        ErrorLine(
            group,
            failures.last_error(group.error, group.cause) or JobError("unknown", failures.UNKNOWN),
            place_of(group.error),
            names.get(group.step, ""),
        )
        for group in page.told.errors
    ]


def place_of(error: str | None) -> str | None:
    """Say where an error was raised, if that was stored."""
    try:
        found = msgspec.json.decode(error or "{}")
    except msgspec.DecodeError:
        return None
    place = found.get("place") if isinstance(found, dict) else None
    return None if place is None else str(place)
