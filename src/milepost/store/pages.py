"""What pages of a source become: records, the cursor and a note, in one transaction under a fence.

Each page has a number. Storing one moves the partition's cursor on from exactly the page before it;
one that was stored already is a duplicate, one of a partition that is complete is just that, and
neither changes a record (H-46, H-47, H-48).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from milepost.errors import LeaseLost
from milepost.records import Claim
from milepost.store import durable, jobs, removals
from milepost.store.catalog import Statement
from milepost.store.driver import Call, Steps
from milepost.store.watermarks import PipelineRunRow

Answer = Literal["applied", "duplicate", "completed", "lost"]
FRESH, CHANGED, SAME = 0, 1, 2
DELETED = 5
GONE_PAGES = 100
LISTED, LISTED_PAGE = 10_000, 500
"""How many landed records are listed in one transaction at most, and in one page."""
"""Statements on a pipeline's own table are named after it, and made when it is declared."""


class Page(msgspec.Struct, frozen=True):
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


class Cursor(msgspec.Struct, frozen=True):
    """How far a partition came: pages stored, where the next begins, whether there is a next."""

    pages: int
    position: bytes | None
    done: bool


def cursor(claim: Claim) -> Steps[Cursor]:
    """Read how far a partition came, or raise `LeaseLost`."""
    rows = yield Call("partition_cursor", {"id": claim.id, "fence": claim.fence}, alone=True)
    if not rows:
        raise LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}")
    saves, position, done = rows[0]
    return Cursor(saves, position, bool(done))


def land(
    pages: Sequence[Page],
    *,
    pipeline_id: int,
    root_id: str,
    seen: int,
    check: Statement,
    made_with: int,
    fresh: bool = False,
    actor: str | None = None,
) -> Steps[list[Answer]]:
    """Store pages of different partitions; answer what became of each.

    `check` is the statement that tells which records stand in the target as they are here and
    were `made_with` the same. With `fresh` no record is expected to be known, which is quicker; one
    that is refuses them all by `IllegalMove`.
    """
    held = yield from _held(pages)
    answers = [_answer(page, held.get(place)) for place, page in enumerate(pages)]
    yield from _count_repeated(pages, answers)
    applied = [page for page, answer in zip(pages, answers, strict=True) if answer == "applied"]
    if not applied:
        return answers
    whose = {"pipeline_id": pipeline_id, "root_id": root_id, "seen": seen}
    found = yield from _stored(applied, whose, fresh=fresh)
    if there := sorted({key for page in applied for key in page.there}):
        yield Call("raw_there", {**whose, "key": there})
    settled = yield from _settled(found, check, made_with)
    yield from _moved(applied)
    rows = [_row(page, root_id, found, settled) for page in applied]
    yield Call("page_add", {name: [row[name] for row in rows] for name in rows[0]})
    yield from _noted(applied, rows, actor=actor)
    if ended := [page for page in applied if page.done]:
        ordinals = [page.claim.ordinal for page in ended]
        yield Call("reading_close", {"root_id": [root_id] * len(ended), "ordinal": ordinals})
    return answers


def _held(pages: Sequence[Page]) -> Steps[dict[int, tuple[int, bool]]]:
    rows = yield Call(
        "page_hold",
        {
            "place": list(range(len(pages))),
            "id": [page.claim.id for page in pages],
            "fence": [page.claim.fence for page in pages],
        },
    )
    return {place: (saves, bool(done)) for place, saves, done, _ in rows}


def _answer(page: Page, held: tuple[int, bool] | None) -> Answer:
    if held is None:
        return "lost"
    saves, done = held
    if done:
        return "completed"
    return "applied" if page.number == saves else "duplicate"


def _count_repeated(pages: Sequence[Page], answers: Sequence[Answer]) -> Steps[None]:
    for page, answer in zip(pages, answers, strict=True):
        if answer in ("duplicate", "completed"):
            counted = {name: int(answer == name) for name in ("duplicate", "completed")}
            yield Call("page_repeat", {"id": page.claim.id, **counted})


def _stored(
    pages: Sequence[Page], whose: Mapping[str, Any], *, fresh: bool
) -> Steps[dict[str, tuple[int, bytes | None]]]:
    """Store the records; answer with what each was to what stood here, and what stands here now."""
    best: dict[str, tuple[int, bytes, bytes, int]] = {}
    for page in pages:
        for key, (version, digest, payload) in page.records.items():
            if key not in best or best[key][0] <= version:
                best[key] = (version, digest, payload, page.claim.ordinal or 0)
    # In the order of their keys, so that two transactions cannot wait for each other.
    keys = sorted(best)
    if not keys:
        return {}
    rows = yield Call(
        "raw_insert" if fresh else "raw_land",
        {
            **whose,
            "key": keys,
            "version": [best[key][0] for key in keys],
            "hash": [best[key][1] for key in keys],
            "payload": [best[key][2] for key in keys],
            "ordinal": [best[key][3] for key in keys],
        },
    )
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


def _moved(pages: Sequence[Page]) -> Steps[None]:
    moved = yield Call(
        "page_progress",
        {
            "id": [page.claim.id for page in pages],
            "fence": [page.claim.fence for page in pages],
            "fraction": [page.fraction for page in pages],
            "records": [page.count for page in pages],
            "position": [page.position for page in pages],
            "number": [page.number for page in pages],
            "done": [page.done for page in pages],
        },
    )
    if len(moved) != len(pages):
        raise LeaseLost("a cursor was moved by somebody else; nothing was stored")


def _row(
    page: Page,
    root_id: str,
    found: Mapping[str, tuple[int, bytes | None]],
    settled: set[str],
) -> dict[str, Any]:
    fates = [found[key][0] for key in page.records]
    fresh, changed = fates.count(FRESH), fates.count(CHANGED)
    todo = [key for key in page.records if key not in settled]
    return {
        "root_id": root_id,
        "ordinal": page.claim.ordinal,
        "number": page.number,
        "id": page.claim.id,
        "records": page.count,
        "fresh": fresh,
        "changed": changed,
        "unchanged": page.count - fresh - changed,
        "pending": len(todo),
        "keys": msgspec.json.encode(todo).decode() if todo else None,
        "gone": msgspec.json.encode(page.gone).decode() if page.gone else None,
    }


def _noted(
    pages: Sequence[Page], rows: Sequence[Mapping[str, Any]], *, actor: str | None
) -> Steps[None]:
    yield Call(
        "page_note",
        {
            "id": [page.claim.id for page in pages],
            "fence": [page.claim.fence for page in pages],
            "number": [page.number for page in pages],
            "detail": [f"{row['records']} records" for row in rows],
            "actor": [actor] * len(pages),
        },
    )


def apply_gone(claim: Claim, run: PipelineRunRow, *, statement: Statement) -> Steps[int]:
    """Remove what some pages of a run say was deleted; answer with how many pages that were.

    Once everything that the run has read is in the target, so that it does not matter which was
    read first, a record or its deletion.
    """
    yield from durable.hold(claim)
    rows = yield Call("page_gone", {"root_id": run.root_id, "most": GONE_PAGES})
    for *_, told in rows:
        gone = msgspec.json.decode(told)
        yield from removals.remove_known(
            run.pipeline_id, run.root_id, gone, statement=statement, unless_seen=True
        )
    if rows:
        places = {"ordinal": [row[0] for row in rows], "number": [row[1] for row in rows]}
        yield Call("page_gone_done", {"root_id": run.root_id, **places})
    return len(rows)


# Making anew


class Place(msgspec.Struct, frozen=True):
    """How far landed records are listed: the number of the next page, and the last key so far."""

    number: int = 0
    key: str = ""


def listed(root_id: str) -> Steps[Place]:
    """Tell how far the landed records of a pipeline are listed in pages of a run."""
    rows = yield Call("page_last", {"root_id": root_id, "ordinal": 0})
    if not rows:
        return Place()
    number, keys = rows[0]
    return Place(number + 1, msgspec.json.decode(keys)[-1])


def list_landed(
    claim: Claim, place: Place, *, root_id: str, pipeline_id: int
) -> Steps[Place | None]:
    """List some more landed records in pages that are to be consolidated; None when all are.

    They are unchanged records of pages that no source gave.
    """
    yield from durable.hold(claim)
    asked = {"pipeline_id": pipeline_id, "after": place.key, "most": LISTED}
    keys = [row[0] for row in (yield Call("raw_keys", asked))]
    if not keys:
        return None
    parts = [keys[at : at + LISTED_PAGE] for at in range(0, len(keys), LISTED_PAGE)]
    counts = [len(part) for part in parts]
    nothing = [0] * len(parts)
    yield Call(
        "page_add",
        {
            "root_id": [root_id] * len(parts),
            "ordinal": nothing,
            "number": [place.number + more for more, _ in enumerate(parts)],
            "id": [claim.id] * len(parts),
            "records": counts,
            "fresh": nothing,
            "changed": nothing,
            "unchanged": counts,
            "pending": counts,
            "keys": [msgspec.json.encode(part).decode() for part in parts],
            "gone": [None] * len(parts),
        },
    )
    return Place(place.number + len(parts), keys[-1])


# Consolidating


class Batch(msgspec.Struct, frozen=True):
    """Pages that one attempt works on, and the records in them: (key, version, hash, payload)s."""

    pages: Sequence[tuple[int, int]]
    records: Sequence[tuple[str, int, bytes, bytes]]
    fresh: bool = False
    """Whether no record was ever seen before these pages."""


class Rejected(msgspec.Struct, frozen=True):
    """A record that cannot be used, and why."""

    key: str
    version: int
    payload: bytes
    type: str
    reason: str


def share(root_id: str) -> Steps[float]:
    """Tell how many records a page has that is to be consolidated, on the average."""
    [(pages, records)] = yield Call("page_average", {"root_id": root_id})
    return float(records) / pages if pages else 0.0


def take(claim: Claim, *, root_id: str, pipeline_id: int, most: int) -> Steps[Batch]:
    """Take pages that nobody works on, and read their records."""
    yield from jobs.note(claim, phase="FetchingRawBatch")
    taken = yield Call(
        "page_take", {"root_id": root_id, "id": claim.id, "fence": claim.fence, "most": most}
    )
    pages = [(ordinal, number) for ordinal, number, *_ in taken]
    keys = sorted({key for _, _, text, _ in taken for key in msgspec.json.decode(text or "[]")})
    if not keys:
        return Batch(pages, [])
    rows = yield Call("raw_read", {"pipeline_id": pipeline_id, "key": keys})
    return Batch(pages, rows, all(fresh for *_, fresh in taken))


def mark(
    claim: Claim,
    batch: Batch,
    rejected: Sequence[Rejected],
    *,
    root_id: str,
    pipeline_id: int,
    gone: Mapping[str, int | None],
    remove: Statement,
    deleted: Sequence[str] = (),
    restore: bool = False,
) -> Steps[None]:
    """Say that pages are consolidated, and put what could not be used into quarantine (H-75).

    Records that `map` said are gone are removed; `deleted` are those of which what was landed says
    so itself. With `restore`, records that were used are not removed any more.
    """
    yield from jobs.note(claim, phase="MarkingConsolidated")
    whose = {"pipeline_id": pipeline_id, "root_id": root_id}
    yield from _quarantine(whose, [key for key, *_ in batch.records], rejected)
    if gone:
        yield from removals.remove_known(pipeline_id, root_id, gone, statement=remove)
        yield Call("raw_gone", {"pipeline_id": pipeline_id, "key": list(deleted)})
    if restore:
        unused = {*gone, *(one.key for one in rejected)}
        used = [key for key, *_ in batch.records if key not in unused]
        yield Call("raw_restore", {"pipeline_id": pipeline_id, "key": used})
    done = yield Call(
        "page_done",
        {
            "root_id": root_id,
            "id": claim.id,
            "fence": claim.fence,
            "ordinal": [ordinal for ordinal, _ in batch.pages],
            "number": [number for _, number in batch.pages],
        },
    )
    if len(done) != len(batch.pages):
        raise LeaseLost(f"job {claim.id} does not hold its pages any more; another attempt does")


def _quarantine(
    whose: Mapping[str, Any], keys: list[str], rejected: Sequence[Rejected]
) -> Steps[None]:
    """Keep what could not be used, and resolve what was kept before: used now, or kept anew."""
    if rejected:
        columns = {
            name: [getattr(one, name) for one in rejected]
            for name in ("key", "version", "type", "reason", "payload")
        }
        yield Call("quarantine_add", {**whose, **columns})
    [(held,)] = yield Call("quarantine_count", {"pipeline_id": whose["pipeline_id"]})
    if held:
        refused = [one.key for one in rejected]
        yield Call("quarantine_resolve", {**whose, "key": keys, "rejected": refused})


def unfinished(root_id: str) -> Steps[int]:
    """Count the records that are not consolidated, whoever works on them (H-67)."""
    [(count,)] = yield Call("run_unconsolidated", {"root_id": root_id})
    return int(count)


def read(pipeline_id: int, keys: Sequence[str]) -> Steps[list[Any]]:
    """Read records as the source gave them."""
    return (yield Call("raw_read", {"pipeline_id": pipeline_id, "key": list(keys)}))


def counts(run_id: str, root_id: str, pipeline_id: int) -> Steps[dict[str, int]]:
    """Count what a run has read and what became of it: derived, never added up (H-87)."""
    own = {"run_id": run_id, "root_id": root_id, "pipeline_id": pipeline_id}
    [(pages, fetched, fresh, changed, unchanged, pending)] = yield Call("run_records", own)
    [(removed,)] = yield Call("run_removed", own)
    [(quarantined,)] = yield Call("run_quarantined", own)
    [(duplicates, completions)] = yield Call("run_repeated", own)
    counted = {
        "pages": pages,
        "fetched": fetched,
        "new": fresh,
        "changed": changed,
        "unchanged": unchanged,
        "pending": pending,
        "quarantined": quarantined,
        "removed": removed,
        "duplicates": duplicates,
        "completions": completions,
    }
    return {name: int(value) for name, value in counted.items()}
