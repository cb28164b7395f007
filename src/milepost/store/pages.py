"""Pages of a source: landed with their cursor, then consolidated, each under a fence.

Each page has a number. Storing one moves the partition's cursor on from exactly the page before it;
one that was stored already is a duplicate, one of a partition that is complete is just that, and
neither changes a record (H-46, H-47, H-48).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from milepost.errors import LeaseLost
from milepost.records import Claim
from milepost.store import durable, jobs, quarantine, removals
from milepost.store.catalog import Statement
from milepost.store.columns import lists
from milepost.store.driver import Call, Steps
from milepost.store.quarantine import Rejection
from milepost.store.watermarks import PipelineRunRow

Answer = Literal["applied", "duplicate", "completed", "lost"]
FRESH, CHANGED, SAME = 0, 1, 2
DELETED = 5
"""Fates of a landed record, as `sql/pages.sql` has them."""
GONE_PAGES = 100
LISTED, LISTED_PAGE = 10_000, 500
"""How many landed records are listed in one transaction at most, and in one page."""


# Landing


class NewPage(msgspec.Struct, frozen=True):
    """A page about to be stored; records by their keys: (version, hash, payload)."""

    claim: Claim
    number: int
    position: bytes | None
    records: Mapping[str, tuple[int, bytes, bytes]]
    count: int
    done: bool
    fraction: float | None = None
    gone: Mapping[str, int | None] = {}
    """Keys of records that the source says were deleted, with the version if it says that too."""
    there: Sequence[str] = ()
    """Keys of records that the source has, but not so that they could be landed with their key."""


class PartitionCursor(msgspec.Struct, frozen=True):
    """How far a partition came: pages stored, where the next begins, whether there is a next."""

    pages: int
    position: bytes | None
    done: bool


def cursor(claim: Claim) -> Steps[PartitionCursor]:
    """Read how far a partition came, or raise `LeaseLost`."""
    rows = yield Call("partition_cursor", {"id": claim.id, "fence": claim.fence}, alone=True)
    if not rows:
        raise LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}")
    saves, position, done = rows[0]
    return PartitionCursor(saves, position, bool(done))


def land(
    pages: Sequence[NewPage],
    run: PipelineRunRow,
    *,
    check: Statement,
    made_with: int,
    fresh: bool = False,
) -> Steps[list[Answer]]:
    """Store pages of different partitions; answer which were applied.

    `check` is the statement that tells which records stand in the target as they are here and
    were `made_with` the same. With `fresh` no record is expected to be known, which is quicker; one
    that is refuses them all by `IllegalMove`.
    """
    answers = yield from _answers(pages)
    applied = [page for page, answer in zip(pages, answers, strict=True) if answer == "applied"]
    if not applied:
        return answers
    found = yield from _store_records(applied, run, fresh=fresh)
    if there := sorted({key for page in applied for key in page.there}):
        yield Call("raw_there", {**run.own, "key": there})
    settled = yield from _settled(found, check, made_with)
    rows = [_row(page, found, settled) for page in applied]
    given = {name: [row[name] for row in rows] for name in rows[0]}
    if len((yield Call("page_progress", given))) != len(applied):
        raise LeaseLost("a cursor was moved by somebody else; nothing was stored")
    yield Call("page_add", {**given, "root_id": [run.root_id] * len(rows)})
    yield Call("page_note", given)
    if ended := [page.claim.ordinal for page in applied if page.done]:
        yield Call("reading_close", {"root_id": [run.root_id] * len(ended), "ordinal": ended})
    return answers


def _answers(pages: Sequence[NewPage]) -> Steps[list[Answer]]:
    """Hold the jobs of pages; tell which pages are next, and count those that came before."""
    held = [(place, page.claim.id, page.claim.fence) for place, page in enumerate(pages)]
    answers: list[Answer] = ["lost"] * len(pages)
    for place, saves, done in (yield Call("page_hold", lists("place id fence", held))):
        is_next = pages[place].number == saves
        answers[place] = "completed" if done else "applied" if is_next else "duplicate"
    for page, answer in zip(pages, answers, strict=True):
        if answer in ("duplicate", "completed"):
            counted = {name: int(answer == name) for name in ("duplicate", "completed")}
            yield Call("page_repeat", {"id": page.claim.id, **counted})
    return answers


def _store_records(
    pages: Sequence[NewPage], run: PipelineRunRow, *, fresh: bool
) -> Steps[dict[str, tuple[int, bytes | None]]]:
    """Store the records; answer with the fate of each, and the hash that stands here now."""
    best: dict[str, tuple[int, bytes, bytes, int]] = {}
    for page in pages:
        for key, (version, digest, payload) in page.records.items():
            if key not in best or best[key][0] <= version:
                best[key] = (version, digest, payload, page.claim.ordinal or 0)
    # In the order of their keys, so that two transactions cannot wait for each other.
    keys = sorted(best)
    if not keys:
        return {}
    given = lists("version hash payload ordinal", [best[key] for key in keys])
    rows = yield Call("raw_insert" if fresh else "raw_land", {**run.own, "key": keys, **given})
    if fresh:
        return dict.fromkeys(keys, (FRESH, None))
    return {key: (fate, digest) for key, fate, digest in rows}


def _settled(
    found: Mapping[str, tuple[int, bytes | None]], check: Statement, made_with: int
) -> Steps[set[str]]:
    """Tell which records are the same here and stand in the target just so: nothing to do.

    Records that were made with other rules or another mapping are behind, whichever run made them
    and whichever came since (H-86). Those that are older than their tombstone stay removed.
    """
    same = sorted(key for key, (fate, _) in found.items() if SAME <= fate < DELETED)
    settled = {key for key, (fate, _) in found.items() if fate == DELETED}
    if not same:
        return settled
    hashes = [found[key][1] for key in same]
    rows = yield Call(check, {"key": same, "hash": hashes, "made_with": made_with})
    return settled.union(str(row[0]) for row in rows)


def _row(
    page: NewPage, found: Mapping[str, tuple[int, bytes | None]], settled: set[str]
) -> dict[str, Any]:
    """Write a page as its statements take it."""
    fates = [found[key][0] for key in page.records]
    fresh, changed = fates.count(FRESH), fates.count(CHANGED)
    todo = [key for key in page.records if key not in settled]
    return {
        "id": page.claim.id,
        "fence": page.claim.fence,
        "ordinal": page.claim.ordinal,
        "number": page.number,
        "position": page.position,
        "done": page.done,
        "fraction": page.fraction,
        "records": page.count,
        "fresh": fresh,
        "changed": changed,
        "unchanged": page.count - fresh - changed,
        "pending": len(todo),
        "keys": msgspec.json.encode(todo).decode() if todo else None,
        "gone": msgspec.json.encode(page.gone).decode() if page.gone else None,
        "detail": f"{page.count} records",
    }


def apply_gone(claim: Claim, run: PipelineRunRow, *, statement: Statement) -> Steps[int]:
    """Remove records that some pages of a run say were deleted; answer how many pages that were.

    Once everything that the run has read is in the target, so that it does not matter which was
    read first, a record or its deletion.
    """
    yield from durable.hold(claim)
    rows = yield Call("page_gone", {"root_id": run.root_id, "most": GONE_PAGES})
    for *_, told in rows:
        gone = msgspec.json.decode(told)
        yield from removals.remove_known(run, gone, statement=statement, unless_seen=True)
    if rows:
        places = lists("ordinal number", [row[:2] for row in rows])
        yield Call("page_gone_done", {"root_id": run.root_id, **places})
    return len(rows)


# Listing records that are landed already


class ListCursor(msgspec.Struct, frozen=True):
    """How far landed records are listed: the number of the next page, and the last key so far."""

    number: int = 0
    key: str = ""


def list_cursor(run: PipelineRunRow) -> Steps[ListCursor]:
    """Tell how far the landed records of a pipeline are listed in pages of a run."""
    rows = yield Call("page_last", {"root_id": run.root_id, "ordinal": 0})
    if not rows:
        return ListCursor()
    number, keys = rows[0]
    return ListCursor(number + 1, msgspec.json.decode(keys)[-1])


def list_landed(claim: Claim, at: ListCursor, run: PipelineRunRow) -> Steps[ListCursor | None]:
    """List some more landed records in pages that are to be consolidated; None when all are.

    They are unchanged records of pages that no source gave.
    """
    yield from durable.hold(claim)
    given = {"pipeline_id": run.pipeline_id, "after": at.key, "most": LISTED}
    keys = [row[0] for row in (yield Call("raw_keys", given))]
    if not keys:
        return None
    number = yield from add_listed(
        run.root_id, claim.id, keys, number=at.number, size=LISTED_PAGE, is_read=True
    )
    return ListCursor(number, keys[-1])


def add_listed(
    root_id: str,
    job_id: str,
    keys: Sequence[str],
    *,
    ordinal: int = 0,
    number: int = 0,
    size: int,
    is_read: bool = False,
) -> Steps[int]:
    """Add pages of landed records that are to be consolidated; answer the next page's number.

    With `is_read` they count as records that the run has read.
    """
    rows: list[tuple[Any, ...]] = []
    for at in range(0, len(keys), size):
        part = list(keys[at : at + size])
        count, text = len(part) if is_read else 0, msgspec.json.encode(part).decode()
        place = (root_id, ordinal, number + len(rows), job_id)
        rows.append((*place, count, 0, 0, count, len(part), text, None))
    names = "root_id ordinal number id records fresh changed unchanged pending keys gone"
    yield Call("page_add", lists(names, rows))
    return number + len(rows)


# Consolidating


class RecordBatch(msgspec.Struct, frozen=True):
    """Pages that one attempt works on, and the records in them: (key, version, hash, payload)s."""

    pages: Sequence[tuple[int, int]]
    records: Sequence[tuple[str, int, bytes, bytes]]
    fresh: bool = False
    """Whether no record was ever seen before these pages."""


def average(run: PipelineRunRow) -> Steps[float]:
    """Tell how many records a page has that is to be consolidated, on the average."""
    [(pages, records)] = yield Call("page_average", run.own)
    return float(records) / pages if pages else 0.0


def take(claim: Claim, run: PipelineRunRow, *, most: int) -> Steps[RecordBatch]:
    """Take pages that nobody works on, and read their records."""
    yield from jobs.note(claim, phase="FetchingRawBatch")
    given = {"root_id": run.root_id, "id": claim.id, "fence": claim.fence, "most": most}
    taken = yield Call("page_take", given)
    pages = [(ordinal, number) for ordinal, number, *_ in taken]
    keys = sorted({key for _, _, text, _ in taken for key in msgspec.json.decode(text or "[]")})
    if not keys:
        return RecordBatch(pages, [])
    rows = yield Call("raw_read", {"pipeline_id": run.pipeline_id, "key": keys})
    return RecordBatch(pages, rows, all(fresh for *_, fresh in taken))


def mark(
    claim: Claim,
    run: PipelineRunRow,
    batch: RecordBatch,
    rejected: Sequence[Rejection],
    *,
    gone: Mapping[str, int | None],
    remove: Statement,
    deleted: Sequence[str] = (),
    restore: bool = False,
) -> Steps[None]:
    """Mark pages as consolidated, and put records that could not be used into quarantine (H-75).

    Records that `map` said are gone are removed; `deleted` are those whose landed payload says so
    itself. With `restore`, records that were used are not removed any more.
    """
    yield from jobs.note(claim, phase="MarkingConsolidated")
    keys = [key for key, *_ in batch.records]
    yield from quarantine.update(run, keys, rejected)
    if gone:
        yield from removals.remove_known(run, gone, statement=remove)
        yield Call("raw_gone", {**run.own, "key": list(deleted)})
    if restore:
        unused = {*gone, *(one.key for one in rejected)}
        yield Call("raw_restore", {**run.own, "key": [key for key in keys if key not in unused]})
    places = lists("ordinal number", batch.pages)
    done = yield Call("page_done", {**run.own, "id": claim.id, "fence": claim.fence, **places})
    if len(done) != len(batch.pages):
        raise LeaseLost(f"job {claim.id} does not hold its pages any more; another attempt does")


def unfinished(run: PipelineRunRow) -> Steps[int]:
    """Count the records that are not consolidated, those in work included (H-67)."""
    [(count,)] = yield Call("run_unconsolidated", run.own)
    return int(count)


def seen(run: PipelineRunRow, ordinal: int) -> Steps[tuple[int, int]]:
    """Count the records that a partition gave, and how often it was read to an end."""
    own = {**run.own, "ordinal": ordinal}
    [(records,)] = yield Call("raw_seen", own)
    # Each pass but the last ended with a page without records.
    [(empty,)] = yield Call("page_empty", own)
    return int(records), int(empty) + 1


# Counting


class Counts(msgspec.Struct, frozen=True):
    """The records that a run has read (new, changed, unchanged), and their fates."""

    counted: int = 0
    fetched: int = 0
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    quarantined: int = 0
    removed: int = 0
    pages: int = 0
    pending: int = 0
    duplicates: int = 0
    completions: int = 0

    def __getitem__(self, name: str) -> int:
        """Give one by its name, as from a dict."""
        if name not in self.__struct_fields__:
            raise KeyError(name)
        value: int = getattr(self, name)
        return value

    def keys(self) -> tuple[str, ...]:
        """Name them, so that `dict(run.counts)` works."""
        return self.__struct_fields__


def counts(run: PipelineRunRow) -> Steps[Counts]:
    """Count the records of a run, with the runs it goes on from: derived, not added up (H-87)."""
    [row] = yield Call("run_records", run.own)
    return Counts(run.counted or 0, *map(int, row))
