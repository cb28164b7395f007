"""Reading the journal: every move of a job or run, and how it stood at a time."""

from datetime import datetime

from milepost.errors import NotFound
from milepost.history import Entry, Standing
from milepost.records import Listed
from milepost.store.driver import Call, Rows, Steps
from milepost.store.instants import instant


def history(subject_id: str, *, machine: str = "job") -> Steps[list[Entry]]:
    """Read every move, in order."""
    return _entries((yield Call("journal_entries", {"id": subject_id, "machine": machine})))


def history_page(
    subject_id: str, *, after: int, most: int, most_bytes: int, machine: str = "job"
) -> Steps[Listed[Entry]]:
    """Read the moves after one, in order: so many, or until their details reach so many bytes."""
    asked = {"id": subject_id, "machine": machine, "after": after}
    rows = yield Call("journal_page", {**asked, "most": most, "most_bytes": most_bytes})
    found = _entries([row[:-1] for row in rows])
    return Listed.of([entry for entry in found if entry.seq > after], rows, most=most)


def _entries(rows: Rows) -> list[Entry]:
    entries: list[Entry] = []
    standing = Standing()
    for seq, move, source, target, fence, at, actor, detail, *db_user in rows:
        told = (seq, move, source, target, fence, instant(at), actor, detail)
        entry = Entry(*told, db_user=db_user[0] if db_user else None)
        standing = standing.taking(entry)
        entries.append(entry.with_attempt(standing.attempt))
    return entries


def queue_at(queue: str, moment: datetime) -> Steps[dict[str, int]]:
    """Count the jobs of a queue by their states at that time; those that are kept still."""
    rows = yield Call("journal_queue", {"queue": queue, "moment": moment})
    return dict(map(tuple, rows))


def standing_at(subject_id: str, moment: datetime, *, machine: str = "job") -> Steps[Standing]:
    """Tell how a job or run stood at that time, or raise `NotFound` if it did not exist yet."""
    entries = yield from history(subject_id, machine=machine)
    standing = Standing()
    for entry in entries:
        if entry.at is not None and entry.at <= moment:
            standing = standing.taking(entry)
    if standing.state is None and entries and entries[0].summary is not None:
        raise NotFound(
            f"how {machine} {subject_id} stood at {moment.isoformat()} is not known any more: its "
            "history up to then was summed up; keep_history says how long one is kept whole"
        )
    if standing.state is None:
        raise NotFound(f"there was no {machine} {subject_id} at {moment.isoformat()}")
    return standing
