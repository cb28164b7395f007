"""What an action on many jobs would do to each of them, counted before anybody does it.

The reasons are those by which the action leaves a job out: the numbers add up to the match.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from milepost.filters import Where
from milepost.lifecycle import JOB, JobState
from milepost.store import search
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

MOST: Final = 10_000
"""So many jobs are counted; beyond it there are more."""
LOOKS: Final = 20
"""How often a count looks, each time at some thousand jobs."""
ACTED: Final = ("rerun", "cancel", "stop", "erase")
"""The outcomes that are no reasons to leave a job out."""
SUPERSEDED: Final = ("rerun_succeeded", "rerun_open", "rerun_ended")
"""Jobs that were run again: the newest of a chain speaks for it."""
BULK_KIND: Final = "jobs.bulk"


class Cause(msgspec.Struct, frozen=True):
    """The error that most of the jobs failed with that an action is for."""

    type: str
    count: int
    last_at: datetime | None


class Outcomes(msgspec.Struct, frozen=True):
    """How many jobs an action finds, by what it would do to them."""

    counts: Mapping[str, int]
    whole: bool = True
    """Whether all were counted."""
    cause: Cause | None = None
    run_id: str | None = None
    """One of the runs that jobs belong to."""

    @property
    def matched(self) -> int:
        """How many jobs it finds."""
        return sum(self.counts.values())

    @property
    def acted(self) -> int:
        """How many jobs it would act on."""
        return sum(self.counts.get(name, 0) for name in ACTED)

    @property
    def passed(self) -> int:
        """How many jobs its own search finds: not those that were run again, for a rerun."""
        return self.matched - sum(self.counts.get(name, 0) for name in SUPERSEDED)


class _Standing(msgspec.Struct, frozen=True):
    """Some jobs that stand alike."""

    state: str
    is_bulk: bool
    of_run: bool
    erased: bool
    newest: str | None
    newest_goes_on: bool

    @property
    def is_final(self) -> bool:
        return self.state in JOB.terminal


def of_filter(where: Where, action: str, *, fresh: bool = False) -> Steps[Outcomes]:
    """Count what an action on all jobs of a filter would do; it looks so far, and no further."""
    rows: list[Sequence[Any]] = []
    found, before = 0, None
    for _ in range(LOOKS):
        ids = yield from search.ids(where, before=before, most=min(search.LOOK, MOST - found))
        rows += yield Call("rerun_standing", {"id": list(ids), "bulk": BULK_KIND})
        found, before = found + len(ids), ids.next
        if before is None or found >= MOST:
            break
    return _counted(rows, action, fresh=fresh, whole=before is None)


def of_jobs(ids: Sequence[str], action: str, *, fresh: bool = False) -> Steps[Outcomes]:
    """Count what an action on these jobs would do."""
    rows = yield Call("rerun_standing", {"id": list(ids), "bulk": BULK_KIND})
    return _counted(rows, action, fresh=fresh, whole=True)


def _counted(rows: Sequence[Sequence[Any]], action: str, *, fresh: bool, whole: bool) -> Outcomes:
    counts: dict[str, int] = {}
    causes: dict[str, tuple[int, datetime | None]] = {}
    run_id = None
    for state, is_bulk, of_run, erased, newest, goes_on, error_type, count, at, run in rows:
        stands = _Standing(state, bool(is_bulk), bool(of_run), bool(erased), newest, bool(goes_on))
        outcome = outcome_of(stands, action, fresh=fresh)
        counts[outcome] = counts.get(outcome, 0) + count
        run_id = run if outcome == "run" else run_id
        if outcome == "rerun" and error_type is not None:
            before, last = causes.get(error_type, (0, None))
            ended = None if at is None else instant(at)
            causes[error_type] = before + count, max(filter(None, (last, ended)), default=None)
    named = max(causes, key=lambda name: causes[name][0], default=None)
    cause = None if named is None else Cause(named, *causes[named])
    return Outcomes(counts, whole, cause, run_id)


def outcome_of(job: _Standing, action: str, *, fresh: bool) -> str:
    """Say what an action does to a job that stands so, or why it leaves it out."""
    if action == "cancel":
        return "final" if job.is_final else "stop" if job.state == JobState.RUNNING else "cancel"
    if not job.is_final:
        return "open"
    if action == "erase":
        if job.newest is not None and job.newest not in JOB.terminal and job.newest_goes_on:
            return "needed"
        return "erase"
    return _rerun(job, fresh=fresh)


def _rerun(job: _Standing, *, fresh: bool) -> str:
    if job.is_bulk:
        return "bulk"
    if job.of_run:
        return "run"
    if job.newest is not None:
        ended = "rerun_ended" if job.newest in JOB.terminal else "rerun_open"
        return "rerun_succeeded" if job.newest == JobState.SUCCEEDED else ended
    if job.erased:
        return "erased"
    return "succeeded" if job.state == JobState.SUCCEEDED and not fresh else "rerun"
