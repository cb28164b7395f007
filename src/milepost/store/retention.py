"""What leaves, and when: finished jobs and runs whose time is over, whole, in bounded batches.

A row, what hangs on it and its entries in the journal leave in one transaction. The jobs of a run
leave when the run may, and a chain of resumed runs, or a tree of batches, is one. So is a chain of
reruns: its newest job stays until the time of each is over, and takes those with it whose steps it
goes on with.

What is still there after long (a job that polls for a year) would let the journal grow without end:
the part of its history that is too old is summed up, in one entry from which a fold goes on
(`history.Summary`). On PostgreSQL the journal has a partition for each week of creation; one of
which nearly nothing is left is dropped.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from milepost.outcome import micros
from milepost.store.driver import Call, Rows, Steps
from milepost.store.events import KEEP_SECONDS
from milepost.store.instants import instant

FIRST = "00000000-0000-0000-0000-000000000000"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
SUMMED = 50
ENTRIES = 100
"""How many histories are summed up at once, and of how many entries each at most."""
AHEAD = 2
"""For how many weeks to come the journal has partitions."""
MOVED = 1_000
"""How many entries a partition may have left and still be dropped: they are moved meanwhile."""


class Keep(msgspec.Struct, frozen=True):
    """How long what has ended is kept, and the history of what is still there or has left."""

    succeeded: float
    failed: float
    history: float = 90 * 86_400.0
    audit: float | None = None
    """How long entries are kept whose job or run has left; None: they leave with it."""

    @property
    def parameters(self) -> dict[str, int]:
        """What the queries take."""
        return {"succeeded_us": micros(self.succeeded), "failed_us": micros(self.failed)}

    @property
    def least(self) -> timedelta:
        """How old everything is that may leave."""
        return timedelta(seconds=min(self.succeeded, self.failed))


class NotArchivedError(Exception):
    """A history was to be summed up beyond the entries that are in the archive."""


class RetentionPage(msgspec.Struct, frozen=True):
    """What was looked at: where to go on (None at the end), and how many left."""

    after: str | None
    left: int = 0
    over: tuple[str, ...] = ()


class Minimum(msgspec.Struct, frozen=True):
    """How old anything is at least that leaves, and who said so; the database holds to it."""

    seconds: float
    set_at: datetime | None
    set_by: str | None


def minimum() -> Steps[Minimum]:
    """Read how old anything is at least that leaves."""
    [(least, set_at, set_by)] = yield Call("retention_minimum")
    return Minimum(least / 1_000_000, None if set_at is None else instant(set_at), set_by)


def set_minimum(seconds: float, *, actor: str | None) -> Steps[None]:
    """Say how old anything is at least that leaves."""
    yield Call("retention_set_minimum", {"least_us": micros(seconds), "actor": actor})


def forget_jobs(keep: Keep, *, after: str, most: int) -> Steps[RetentionPage]:
    """Look at the next old jobs after an id, and let go of those whose time is over."""
    age, kept = keep.least, keep.parameters
    page = yield from _old("retention_jobs", age, kept, after=after, most=most)
    if not page.over:
        return page
    count, leaving = 0, list(page.over)
    while leaving:
        # Held first, so that the next statement sees every rerun of them that there will ever be.
        held = dict((yield Call("retention_hold_jobs", {"id": leaving})))
        gone = yield from _forget("retention_forget_job", list(held), keep)
        count += len(gone)
        # What was run again leaves together with its rerun: alone it would speak for the chain.
        leaving = [before for job_id in gone if (before := held[job_id]) is not None]
    return RetentionPage(page.after, count)


def old_runs(keep: Keep, *, after: str, most: int) -> Steps[RetentionPage]:
    """Look at the next old runs after an id; answer with those whose own time is over."""
    age, kept = keep.least, keep.parameters
    return (yield from _old("retention_runs", age, kept, after=after, most=most))


def old_histories(keep: Keep, *, after: str, most: int) -> Steps[RetentionPage]:
    """Look at the next old jobs after an id; answer with some whose histories are too old."""
    # Who follows the journal may be away for a while, and is to miss nothing.
    age = timedelta(seconds=max(keep.history, KEEP_SECONDS))
    page = yield from _old("journal_summable", age, _history(keep), after=after, most=most)
    # Somebody may hold all of these: there will be another walk.
    due = page.over[:SUMMED]
    return RetentionPage(due[-1] if len(page.over) > len(due) else page.after, 0, due)


def _history(keep: Keep) -> dict[str, int]:
    return {"history_us": micros(max(keep.history, KEEP_SECONDS))}


def sum_up(
    keep: Keep, *, after: str, most: int, archived: Mapping[str, int] | None = None
) -> Steps[RetentionPage]:
    """Look at the next old jobs after an id, and sum up some of their histories that are too old.

    The page is to be looked at again while there are any. What is summed up must be `archived`,
    each history up to an entry, where anything is; else `NotArchivedError` is raised.
    """
    page = yield from old_histories(keep, after=after, most=most)
    due = [job_id for job_id in page.over if archived is None or job_id in archived]
    if not due:
        return RetentionPage(after if page.over else page.after)
    summed, _ = yield from _allowed(
        Call("journal_sum_up", {"id": due, "most": ENTRIES, **_history(keep)}),
        Call("journal_drop_summed", {"id": due}),
    )
    if archived is not None:
        for job_id, seq in (yield Call("archive_summed", {"id": [row[0] for row in summed]})):
            if seq > archived[job_id]:
                raise NotArchivedError(f"job {job_id} was summed up meanwhile, by another worker")
    return RetentionPage(after, len(summed)) if summed else RetentionPage(page.after)


def old_entries(keep: Keep, *, after: str, most: int) -> Steps[RetentionPage]:
    """Look at the next old histories after an id; answer with those whose subject left long ago.

    Only where they have a time of their own: else they leave with it.
    """
    if keep.audit is None:
        return RetentionPage(None)
    # What is younger than that is still there itself.
    age = max(timedelta(seconds=keep.audit), keep.least)
    told = {"audit_us": micros(keep.audit)}
    return (yield from _old("retention_entries", age, told, after=after, most=most))


def forget_entries(ids: Sequence[str], keep: Keep) -> Steps[int]:
    """Let go of the entries of jobs and runs that left; answer with how many of these had any."""
    told = {"id": list(ids), "audit_us": micros(keep.audit or 0)}
    [gone] = yield from _allowed(Call("retention_forget_entries", told))
    return len({row[0] for row in gone})


def make_weeks() -> Steps[int]:
    """Make the partitions that the journal needs next; answer with how many were missing."""
    yield Call("journal_patience")
    [made] = yield from _allowed(Call("journal_make_weeks", {"ahead": AHEAD}))
    return made[0][0] if made else 0


def weeks_full() -> Steps[int | None]:
    """Tell how many bytes the default partition has, where no more weeks are made for its size."""
    full = yield Call("journal_weeks_full", alone=True)
    return int(full[0][0]) if full else None


def drop_week(keep: Keep) -> Steps[bool]:
    """Drop the oldest partition of which nearly nothing is left; tell whether there was one."""
    yield Call("journal_patience")
    kept = {"history_us": micros(keep.history), "most": MOVED}
    [gone] = yield from _allowed(Call("journal_drop_week", kept))
    return bool(gone)


def _old(
    query: str, age: timedelta, told: Mapping[str, int], *, after: str, most: int
) -> Steps[RetentionPage]:
    [(now,)] = yield Call("clock_now")
    before = _first_id(instant(now) - age)
    rows = yield Call(query, {"after": after, "before": before, "most": most, **told})
    over = tuple(sorted(row[0] for row in rows if row[1]))
    return RetentionPage(max(row[0] for row in rows) if len(rows) == most else None, 0, over)


def _first_id(moment: datetime) -> str:
    """Make the smallest id that the engine could have made then: ids begin with their time."""
    passed = f"{max(moment - EPOCH, timedelta()) // MILLISECOND:012x}"
    return f"{passed[:8]}-{passed[8:]}-7000-8000-000000000000"


def forget_chain(run_id: str, keep: Keep, *, most: int) -> Steps[int]:
    """Let go of a run, all in its tree of batches and in their chains, if the time of each is over.

    Their jobs leave first, at most so many at once; answer with how many rows left. It is to be
    asked again while anything does.
    """
    chain = yield from _chain(run_id, keep)
    if not all(chain.values()):
        return 0
    ids = sorted(chain)
    held = yield Call("retention_lock", {"id": ids})
    # What was resumed in between is seen now; a caller that comes later finds nothing to resume.
    if len(held) < len(ids) or (yield from _chain(run_id, keep)) != chain:
        return 0
    jobs = yield Call("retention_run_jobs", {"id": ids, "most": most})
    if jobs:
        return len((yield from _forget("retention_forget_job", [row[0] for row in jobs], keep)))
    return len((yield from _forget("retention_forget_run", ids, keep)))


def _chain(run_id: str, keep: Keep) -> Steps[dict[str, bool]]:
    """Read the runs that leave together, from any of them: whether the time of each is over."""
    chain: dict[str, bool] = {}
    asked: set[str] = set()
    unknown = {run_id}
    while unknown:
        rows = yield Call("retention_chain", {"id": sorted(unknown), **keep.parameters})
        chain |= {row[0]: bool(row[3]) for row in rows}
        asked |= unknown
        unknown = {name for row in rows for name in row[:3] if name is not None} - asked
    return chain


def _forget(query: str, ids: Sequence[str], keep: Keep) -> Steps[list[str]]:
    call = Call(query, {"id": list(ids)})
    [gone] = yield from _allowed(call, keeps=keep.audit is not None)
    return [row[0] for row in gone]


def _allowed(*calls: Call, keeps: bool = False) -> Steps[list[Rows]]:
    """Make calls that take entries out of the journal: its guards let these through, no others.

    It `keeps` the entries of rows that leave, where these have a time of their own.
    """
    yield Call("retention_begin", {"keeps": keeps})
    answers: list[Rows] = []
    for call in calls:
        answers += [(yield call)]
    yield Call("retention_end")
    return answers
