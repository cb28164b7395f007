"""Runs as pages and `explain` look at them: a few statements, however many jobs a run has."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.errors import NotFound
from milepost.history import Entry
from milepost.lifecycle import RUN, JobState
from milepost.records import Job, Run, Situation, StepCount, Worker
from milepost.store import runs
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

COUNTED_MOST = 10_000
"""Open jobs of a step are counted so far by state; of more one says that there are more."""
ENDS_MOST = 10_000
"""So many ended jobs are placed on the time line one by one; of more the tally tells."""
BUCKETS = 60
SLOWEST = 8
_BOUNDED = (
    *(JobState.RETRYING, JobState.READY, JobState.WAITING, JobState.GATED, JobState.CREATED),
)
_ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
_job, _situation, _worker = reader(Job), reader(Situation), reader(Worker)


class StepStand(StepCount, frozen=True):
    """How a step stands, its open jobs by state; counts are up to `COUNTED_MOST`."""

    states: Mapping[str, int] = {}
    more: int = 0
    """Open jobs beyond those that were counted by state."""

    @property
    def ended(self) -> int:
        """How many of its jobs are final."""
        return self.succeeded + self.lost

    @property
    def total(self) -> int:
        """How many jobs it has so far."""
        return self.open + self.ended


def stands(
    run_ids: Sequence[str], *, most: int = COUNTED_MOST
) -> Steps[dict[str, list[StepStand]]]:
    """Read how the steps of runs stand, in one statement."""
    found: dict[str, list[StepStand]] = {}
    for run_id, *row in (yield Call("run_stands", {"id": list(run_ids), "most": most})):
        found.setdefault(run_id, []).append(_stand(row, most))
    return found


def _stand(row: Sequence[Any], most: int) -> StepStand:
    number, name, role, gated, opened, fail_fast, tolerance, *counts = row
    still_open, succeeded, failed, cancelled, running, children, *bounded = map(int, counts)
    states = {"RUNNING": running + children}
    states |= {state.value: count for state, count in zip(_BOUNDED, bounded, strict=True)}
    rest = max(0, still_open - sum(states.values()))
    # Where a state was not counted to its end, what is left may be of that one, or QUEUED.
    capped = any(count >= most for count in bounded)
    ended = dict(zip(_ENDED, (succeeded, failed, cancelled), strict=True))
    states |= {} if capped else {"QUEUED": rest}
    states |= {state.value: count for state, count in ended.items()}
    flags = (bool(gated), bool(opened), bool(fail_fast))
    return StepStand(
        *(number, name, role, *flags, tolerance, still_open, succeeded, failed, cancelled),
        states={state: count for state, count in states.items() if count},
        more=rest if capped else 0,
    )


class RunHead(msgspec.Struct, frozen=True):
    """A run, the store's clock, and the run that resumes it."""

    run: Run
    now: datetime
    resumed_by: str | None


def head(run_id: str) -> Steps[RunHead]:
    """Read a run as its page begins, or raise `NotFound`."""
    rows = yield Call("run_look", {"id": run_id})
    if not rows:
        raise NotFound(f"there is no run {run_id}")
    *row, now, newer = rows[0]
    return RunHead(runs.from_row(row), instant(now), newer)


class RunJobs(msgspec.Struct, frozen=True):
    """The job that a run waits for first, and those that run longest, the longest first."""

    nearest: Job | None
    situation: Situation | None
    """Of the nearest one."""
    slowest: Sequence[Job]


def reached(run_id: str, *, slowest: int = SLOWEST) -> Steps[RunJobs]:
    """Read the open jobs of a run that no gate holds and that its next move waits for."""
    rows = yield Call("run_look_jobs", {"id": run_id, "slowest": slowest})
    width = len(Job.__struct_fields__)
    near = next((row for row in rows if row[-1]), None)
    return RunJobs(
        None if near is None else _job(near[:width]),
        None if near is None else _situation(near[width:-2]),
        [_job(row[:width]) for row in rows if row[-2]],
    )


class ErrorOfRun(msgspec.Struct, frozen=True):
    """Jobs of a step that failed with the same error."""

    fingerprint: str | None
    step: int
    jobs: int
    failed: int
    """How many of them it ended."""
    job_id: str
    cause: str | None
    error: str | None
    """Of the first of them, as it is stored."""


class ChildRun(msgspec.Struct, frozen=True):
    """A batch within a batch."""

    id: str
    kind: str
    state: str
    ordinal: int | None


class RunTold(msgspec.Struct, frozen=True):
    """The journal of a run, its errors, the ends of its jobs by time, and the workers."""

    workers: Sequence[Worker]
    entries: Sequence[Entry]
    errors: Sequence[ErrorOfRun]
    ends: Mapping[int, Mapping[int, int]]
    """How many jobs of each step ended in each span of time."""
    children: Sequence[ChildRun]


def told(run_id: str, *, since: datetime, width: float, with_ends: bool) -> Steps[RunTold]:
    """Read what else there is to tell of a run; ends are counted by spans of `width` seconds."""
    span = {"since": since, "width": float(width), "with_ends": with_ends}
    rows = yield Call("run_look_told", {"id": run_id, "most": COUNTED_MOST, **span})
    sections: dict[str, list[Any]] = {}
    for section, values, text in rows:
        sections.setdefault(section, []).append((msgspec.json.decode(values), text))
    ends: dict[int, dict[int, int]] = {}
    for (step, place, count), _ in sections.get("ended", ()):
        here = ends.setdefault(step, {})
        # The clocks of a claim and of an end are one; still, nothing ends before it began.
        here[max(0, int(place))] = here.get(max(0, int(place)), 0) + count
    return RunTold(
        workers=[_worker(values) for values, _ in sections.get("worker", ())],
        entries=[_entry(values, text) for values, text in reversed(sections.get("entry", []))],
        errors=[ErrorOfRun(*(*values, text)) for values, text in sections.get("error", ())],
        ends=ends,
        children=[ChildRun(*values) for values, _ in sections.get("child", ())],
    )


def _entry(values: Sequence[Any], detail: str | None) -> Entry:
    seq, move, source, target, fence, at, actor = values
    return Entry(seq, move, source, target, fence, instant(at), actor, detail)


def is_over(run: Run) -> bool:
    """Tell whether a run has ended."""
    return run.state in RUN.terminal
