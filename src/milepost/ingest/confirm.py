"""Confirming that records are gone: a full run may have missed some that are there.

A record that changes while it is read leaves the window, or moves from a place that is not yet read
to one that was; one that is committed late does so with a time before the end. All of them changed
later than the overlap before the end (H-70, H-81). So before any record is removed, those that
changed since then are read twice: every record seen is there, and if both passes saw the same,
nothing moved meanwhile. The cursor is kept with the job: an attempt that is lost costs one page.
"""

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from milepost.context import Context
from milepost.ingest.declaration import Declaration
from milepost.ingest.fetch import Repeats
from milepost.ingest.keys import HIGHEST, LOWEST
from milepost.ingest.landing import is_unidentified
from milepost.ingest.source import Gone, Partition, Window, page_of
from milepost.store import removals, workers
from milepost.store.watermarks import Mark, PipelineRunRow

PASSES = 4
"""How often it is read at most; a source that never stands still is asked again by the next run."""
MOST = 100_000
"""How many records are read for this at most."""
AHEAD_US = 3_600_000_000
"""How far after now the window ends at least: records that change while it is read lie in it."""


class ConfirmCursor(msgspec.Struct, frozen=True):
    """How far a run came: the window's end, the pass, the part, its cursor, the sum of records."""

    run_id: str
    end: int
    number: int = 0
    part: int = 0
    position: Any = None
    count: int = 0
    seen: str = "0"
    before: str | None = None


class Confirmer:
    """Reads the records that changed lately in one pipeline's source."""

    def __init__(self, pipeline: Declaration[Any]) -> None:
        self._pipeline = pipeline
        axis, page = pipeline.axis, pipeline.options["page"]
        self._parts = [Partition(axis.key(LOWEST), axis.key(HIGHEST), page=page)]
        if pipeline.source.nullable:
            self._parts.append(Partition(None, None, page=page))

    async def confirm(self, ctx: Context, run: PipelineRunRow) -> bool:
        """Unmark records that are there; tell whether those still marked are gone for certain."""
        source = type(self._pipeline.source).__name__
        at = await self.cursor(ctx, run) or ConfirmCursor(run.run_id, await self._end(run))
        place, repeats = (at.number, at.part), Repeats(source)
        while at.number < PASSES and at.count <= MOST:
            if place != (at.number, at.part):
                place, repeats = (at.number, at.part), Repeats(source)
            if at.part < len(self._parts):
                at = await self._read_page(ctx, run, at, repeats)
            elif at.seen == at.before:
                # A window of times ends after now; a sequence must stand where it stood.
                return run.measure == "time" or bool(await self._upper_bound() == at.end)
            else:
                again = at.number + 1
                at = ConfirmCursor(at.run_id, at.end, number=again, before=at.seen)
            await ctx.save_async(msgspec.to_builtins(at))
        return False

    async def cursor(self, ctx: Context, run: PipelineRunRow) -> ConfirmCursor | None:
        """Read how far this run came; the cursor of a run that it resumes is out of date."""
        kept = await ctx.cursor_async()
        at = None if kept is None else msgspec.convert(kept, ConfirmCursor)
        return at if at is not None and at.run_id == run.run_id else None

    async def _upper_bound(self) -> Any:
        return await self._pipeline.calls.remote(self._pipeline.source.upper_bound)

    async def _end(self, run: PipelineRunRow) -> int:
        """Fix where the window ends before its first page is read (H-69)."""
        bound, mark = await self._upper_bound(), Mark(run.measure)
        if run.measure != "time":
            return mark.stored(bound)
        now = mark.stored(await self._pipeline.client.run_async(workers.now))
        return max(now, now if bound is None else mark.stored(bound)) + max(AHEAD_US, run.overlap)

    async def _read_page(
        self, ctx: Context, run: PipelineRunRow, at: ConfirmCursor, repeats: Repeats
    ) -> ConfirmCursor:
        pipeline, mark, part = self._pipeline, Mark(run.measure), self._parts[at.part]
        start = (run.end_mark or 0) - run.overlap
        window = Window(mark.shown(start), mark.shown(at.end))
        answer = await pipeline.calls.remote(pipeline.source.fetch, window, part, at.position)
        page = page_of(pipeline.source, answer, at.position)
        there = [raw for raw in page.records if not isinstance(raw, Gone)]
        landed = [one[:3] for one in map(pipeline.landing.of, there)]
        if page.next is not None:
            repeats.check(page.next, ((key, digest) for key, _, digest in landed))
        # One without a key was never removed by it; one whose version cannot be read has a key.
        keys = [key for key, _, _ in landed if not is_unidentified(key)]
        if len(keys) < len(landed):
            keys = [key for raw in there for key in pipeline.landing.keys_of(raw)]
        if keys:
            unmark = partial(removals.unmark, pipeline_id=run.pipeline_id, keys=keys)
            await pipeline.client.run_async(unmark, ctx.claim)
        return msgspec.structs.replace(
            at,
            part=at.part + (page.next is None),
            position=page.next,
            count=at.count + len(landed),
            seen=_added(at.seen, (f"{key} {digest.hex()}" for key, _, digest in landed)),
        )


def _added(seen: str, records: Iterable[str]) -> str:
    """Add records to a sum that knows no order: pages may be cut differently each time."""
    hashes = (hashlib.blake2b(record.encode(), digest_size=16).digest() for record in records)
    return f"{(int(seen, 16) + sum(map(int.from_bytes, hashes))) % 2**128:x}"
