"""All that the page of a run shows, in five statements at most."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from milepost.lifecycle import JOB
from milepost.records import Run
from milepost.store import blockers, looks, tally
from milepost.store.driver import Steps
from milepost.store.explain import Explanation
from milepost.store.looks import RunHead, RunJobs, RunTold, StepStand

WIDTHS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 43_200)
"""How many seconds a span of the time line may have."""
DAY = 86_400
ENDING = frozenset(
    move.name for move in JOB.moves if JOB.terminal.issuperset(move.targets) and not move.stays
)
"""The moves by which every job that makes them ends; `lose` may be followed by another attempt."""
NO_JOBS = RunJobs(None, None, ())


class RunPage(msgspec.Struct, frozen=True):
    """A run as its page shows it, read in one transaction."""

    head: RunHead
    steps: list[StepStand]
    jobs: RunJobs
    told: RunTold
    why: Explanation
    since: datetime
    width: int
    """Seconds of a span of the time line."""
    ends: Mapping[int, Mapping[int, int]] | None
    """Ended jobs by step and span; None where they are too many and the tally knows no better."""

    @property
    def run(self) -> Run:
        """The run itself."""
        return self.head.run


def width_of(seconds: float) -> int:
    """Choose how long a span of the time line is."""
    fitting = (width for width in WIDTHS if seconds / width <= looks.BUCKETS)
    return next(fitting, max(DAY, round(seconds / looks.BUCKETS)))


def read(run_id: str) -> Steps[RunPage]:
    """Read a run, how it stands and why, or raise `NotFound`."""
    head = yield from looks.head(run_id)
    run, now = head.run, head.now
    steps = (yield from looks.stands([run_id])).get(run_id, [])
    jobs = NO_JOBS if looks.is_over(run) else (yield from looks.reached(run_id))
    since = run.started_at or run.created_at
    width = width_of(((run.finished_at or now) - since).total_seconds())
    few = sum(step.ended for step in steps) <= looks.ENDS_MOST
    told = yield from looks.told(run_id, since=since, width=width, with_ends=few)
    if not few:
        width = max(tally.MINUTE, width)
    ends = told.ends if few else (yield from _tallied(run, steps, since, width, now))
    nearest = yield from blockers.explain_nearest(run, jobs, told.workers)
    why = blockers.explained_run(run, steps, nearest)
    return RunPage(head, steps, jobs, told, why, since, width, ends)


def _tallied(
    run: Run, steps: list[StepStand], since: datetime, width: int, now: datetime
) -> Steps[dict[int, dict[int, int]] | None]:
    """Take the ends from the tally, if no other run's jobs are counted with this one's."""
    kinds = {f"{run.kind}.{step.name}": step for step in steps}
    until = run.finished_at or now
    found = yield from tally.moves(
        since, until, by=("move", "kind"), kinds=list(kinds), step_seconds=width
    )
    ends: dict[int, dict[int, int]] = {step.number: {} for step in steps}
    for one in found:
        if one.kind in kinds and one.move in ENDING:
            place = max(0, int((one.at - since) / timedelta(seconds=width)))
            here = ends[kinds[one.kind].number]
            here[place] = here.get(place, 0) + one.count
    counted = {step.number: sum(ends[step.number].values()) for step in steps}
    # Workers report a moment later.
    fits = all(abs(counted[step.number] - step.ended) <= 10 + step.ended / 50 for step in steps)
    return ends if fits else None
