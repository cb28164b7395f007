"""All that the pages of pipelines show: the list in one statement, one pipeline in five at most."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.errors import NotFound
from milepost.lifecycle import Cause, JobState
from milepost.outcome import micros
from milepost.records import Run, Worker
from milepost.store import blockers, looks, runs
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.explain import Explanation
from milepost.store.instants import instant
from milepost.store.schedules import VANISHED_SECONDS, Schedule
from milepost.store.watermarks import Mark, PipelineRow, WatermarkEntry

COUNTED_MOST = 10_001
RUNS = 12
CELLS_MOST = 600
"""So many partitions of a run are drawn."""
REASONS_LOOKED = 2_000
"""So many records in quarantine are grouped by their reasons."""
_row, _schedule, _worker = reader(PipelineRow), reader(Schedule), reader(Worker)


class PipelineLine(msgspec.Struct, frozen=True):
    """A pipeline of a list."""

    name: str
    mark: int | None
    measure: str
    target: str
    dataset_version: int
    queue: str
    fresh_us: int | None
    lag_us: int
    quarantined: int
    run_id: str | None
    mode: str | None
    state: str | None
    run_at: datetime | None
    next_at: datetime | None
    records: int

    @property
    def watermark(self) -> datetime | int | None:
        """The watermark as people write it."""
        return None if self.mark is None else Mark(self.measure).shown(self.mark)

    @property
    def is_late(self) -> bool:
        """Whether it breaks its promise to be fresh."""
        return self.fresh_us is not None and self.lag_us > self.fresh_us


_line = reader(PipelineLine)


def listing() -> Steps[list[PipelineLine]]:
    """Read every pipeline that was ever started, as a list shows it."""
    return [_line(row) for row in (yield Call("pipeline_looks", {"most": COUNTED_MOST}))]


class RunOfPipeline(msgspec.Struct, frozen=True):
    """A run of a pipeline: its window, and what became of its records."""

    run: Run
    root_id: str
    mode: str
    number: int
    start_mark: int | None
    end_mark: int | None
    after_mark: int | None
    counted: int | None
    fetched: int
    new: int
    changed: int
    unchanged: int
    quarantined: int
    removed: int
    plan: str | None


class Cell(msgspec.Struct, frozen=True):
    """A partition in a run."""

    run_id: str
    ordinal: int
    job_id: str
    state: str
    cause: str | None
    error: str | None
    pages: int
    records: int
    progress: float | None
    low: str | None
    high: str | None
    is_read: bool
    due_at: datetime | None
    position: bytes | None


class PipelinePage(msgspec.Struct, frozen=True):
    """A pipeline as its page shows it, read in one transaction."""

    row: PipelineRow
    now: datetime
    created_at: datetime
    fresh_seconds: float | None
    lag_seconds: float
    quarantined: int
    waiting_removals: int
    gaps: int
    schedules: Sequence[Schedule]
    reasons: Sequence[tuple[str, int]]
    moves: Sequence[WatermarkEntry]
    runs: Sequence[RunOfPipeline]
    cells: Mapping[str, Mapping[int, Cell]]
    why: Explanation

    @property
    def is_late(self) -> bool:
        """Whether it breaks its promise to be fresh."""
        return self.fresh_seconds is not None and self.lag_seconds > self.fresh_seconds

    @property
    def next_at(self) -> datetime | None:
        """When a schedule starts the next run."""
        active = [one.next_at for one in self.schedules if one.state == "active"]
        return min(active, default=None)


Sections = Mapping[str, Sequence[tuple[Any, str | None]]]


def read(name: str) -> Steps[PipelinePage]:
    """Read a pipeline and its last runs, or raise `NotFound`."""
    sections = yield from _told(name)
    if not sections.get("pipeline"):
        raise NotFound(f"no pipeline {name!r} has run here")
    [(row, _)] = sections["pipeline"]
    [((now, fresh_us, created, lag, quarantined, waiting), _)] = sections["more"]
    found = yield from _recent(name)
    cells = yield from _cells([one.run.id for one in found])
    [((gaps,), _)] = sections["gap"]
    pipeline = _row(row)
    schedules = [_schedule(one) for one, _ in sections.get("schedule", ())]
    lag_seconds = max(0.0, lag / 1e6)
    latest = found[0].run if found else None
    workers = [_worker(one) for one, _ in sections.get("worker", ())]
    at = instant(now)
    told = yield from _explained(latest, workers)
    facts = blockers.PipelineFacts(pipeline, lag_seconds, gaps, schedules, latest, told)
    return PipelinePage(
        pipeline,
        at,
        instant(created),
        None if fresh_us is None else fresh_us / 1e6,
        lag_seconds,
        quarantined,
        waiting,
        gaps,
        schedules,
        Counter(text or "" for _, text in sections.get("rejected", ())).most_common(12),
        [_moved(values, text) for values, text in sections.get("moved", ())],
        found,
        cells,
        blockers.explained_pipeline(facts),
    )


def _told(name: str) -> Steps[Sections]:
    asked = {"name": name, "most": COUNTED_MOST, "looked": REASONS_LOOKED}
    asked["vanished_us"] = micros(VANISHED_SECONDS)
    sections: dict[str, list[tuple[Any, str | None]]] = {}
    for section, values, text in (yield Call("pipeline_look_told", asked)):
        sections.setdefault(section, []).append((msgspec.json.decode(values), text))
    return sections


def _moved(values: Sequence[Any], reason: str | None) -> WatermarkEntry:
    seq, move, before, after, run_id, actor, at = values
    return WatermarkEntry(seq, move, before, after, run_id, actor, reason, instant(at))


def _recent(name: str) -> Steps[list[RunOfPipeline]]:
    rows = yield Call("pipeline_look_runs", {"name": name, "runs": RUNS})
    return [
        RunOfPipeline(*(runs.from_row(row), *msgspec.json.decode(counts), plan))
        for *row, counts, plan in rows
    ]


def _cells(run_ids: Sequence[str]) -> Steps[dict[str, dict[int, Cell]]]:
    found: dict[str, dict[int, Cell]] = {}
    if not run_ids:
        return found
    asked = {"id": list(run_ids), "most": CELLS_MOST}
    for row in (yield Call("pipeline_look_cells", asked)):
        cell = _cell(row)
        found.setdefault(cell.run_id, {})[cell.ordinal] = cell
    return found


_cell = reader(Cell)


def _explained(run: Run | None, workers: Sequence[Worker]) -> Steps[Explanation | None]:
    """Say what `explain` says of the last run, from what was read already as far as it goes."""
    if run is None:
        return None
    if looks.is_over(run) and run.cause != Cause.POLICY:
        return blockers.explained_run(run, [], None)
    steps = (yield from looks.stands([run.id])).get(run.id, [])
    if looks.is_over(run):
        return blockers.explained_run(run, steps, None)
    jobs = yield from looks.reached(run.id, slowest=1)
    nearest = yield from blockers.explain_nearest(run, jobs, workers)
    return blockers.explained_run(run, steps, nearest)


def is_trouble(cell: Cell) -> bool:
    """Tell whether a partition is what somebody would look at first."""
    return cell.state in (JobState.FAILED, JobState.RETRYING, JobState.CANCELLED)
