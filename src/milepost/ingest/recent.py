"""Records that changed about the end of a window: a full run may have missed them, they are there.

A record that changes while it is read leaves the window, or moves from a place that is not yet read
to one that was; one that is committed late does so with a time before the end. All of them changed
later than the overlap before the end (H-70, H-81). So before anything is removed, what changed
since then is read twice: every record seen is there, and if both times all were the same, nothing
moved meanwhile. How far this came is kept with the job: an attempt that is lost costs one page.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from milepost.client import Client
from milepost.context import Context
from milepost.ingest.calls import Calls
from milepost.ingest.fetch import Landing, Repeats, is_unidentified
from milepost.ingest.keys import HIGHEST, LOWEST, Axis
from milepost.ingest.source import Gone, Partition, Source, Window, page_of
from milepost.store import removals, workers
from milepost.store.watermarks import Mark, PipelineRunRow

PASSES = 4
"""How often it is read at most; a source that never stands still is asked again by the next run."""
MOST = 100_000
"""How many records are read for this at most."""
AHEAD_US = 3_600_000_000
"""How far after now the window ends at least: what changes while it is read lies in it."""


class Look(msgspec.Struct, frozen=True):
    """How far a run came: the window's end, the pass, the part, its cursor, and what was seen."""

    run_id: str
    end: int
    number: int = 0
    part: int = 0
    position: Any = None
    count: int = 0
    seen: str = "0"
    before: str | None = None

    def next_pass(self) -> "Look":
        """Begin again, to compare with what this pass has seen."""
        return Look(self.run_id, self.end, number=self.number + 1, before=self.seen)


class Recent:
    """Reads what changed lately in one pipeline's source."""

    def __init__(
        self,
        client: Client,
        source: Source[Any, Any, Any],
        calls: Calls,
        axis: Axis,
        landing: Landing,
        *,
        page: int,
    ) -> None:
        self._client = client
        self._source = source
        self._calls = calls
        self._landing = landing
        everything = Partition(axis.key(LOWEST), axis.key(HIGHEST), page=page)
        self._parts = [everything, *([Partition(None, None, page=page)] if source.nullable else [])]

    async def confirmed(self, ctx: Context, row: PipelineRunRow) -> bool:
        """Unmark what is there after all; tell whether what is still marked is gone for certain."""
        look = await self._kept(ctx, row) or Look(row.run_id, await self._end(row))
        at, repeats = (look.number, look.part), self._repeats()
        while look.number < PASSES and look.count <= MOST:
            if at != (look.number, look.part):
                at, repeats = (look.number, look.part), self._repeats()
            if look.part < len(self._parts):
                look = await self._read_page(ctx, row, look, repeats)
            elif look.seen == look.before:
                return await self._is_still(row, look)
            else:
                look = look.next_pass()
            await ctx.save_async(msgspec.to_builtins(look))
        return False

    def _repeats(self) -> Repeats:
        return Repeats(type(self._source).__name__)

    async def has_begun(self, ctx: Context, row: PipelineRunRow) -> bool:
        """Tell whether an attempt of this run has looked already."""
        return await self._kept(ctx, row) is not None

    async def _kept(self, ctx: Context, row: PipelineRunRow) -> Look | None:
        """Read how far this run came; one that it goes on with looked at what was there then."""
        kept = await ctx.cursor_async()
        look = None if kept is None else msgspec.convert(kept, Look)
        return look if look is not None and look.run_id == row.run_id else None

    async def _end(self, row: PipelineRunRow) -> int:
        """Fix where the window ends before its first page is read (H-69)."""
        bound = await self._calls.remote(self._source.upper_bound)
        mark = Mark(row.measure)
        if row.measure != "time":
            return mark.stored(bound)
        now = mark.stored(await self._client.run_async(workers.now))
        return max(now, now if bound is None else mark.stored(bound)) + max(AHEAD_US, row.overlap)

    async def _is_still(self, row: PipelineRunRow, look: Look) -> bool:
        """Tell whether a sequence stands where it stood; a window of times ends after now."""
        if row.measure == "time":
            return True
        return bool(await self._calls.remote(self._source.upper_bound) == look.end)

    async def _read_page(
        self, ctx: Context, row: PipelineRunRow, look: Look, repeats: Repeats
    ) -> Look:
        mark = Mark(row.measure)
        start = (row.end_mark or 0) - row.overlap
        window = Window(mark.shown(start), mark.shown(look.end))
        part = self._parts[look.part]
        answer = await self._calls.remote(self._source.fetch, window, part, look.position)
        page = page_of(self._source, answer, look.position)
        there = [raw for raw in page.records if not isinstance(raw, Gone)]
        landed = [one[:3] for one in map(self._landing.of, there)]
        if page.next is not None:
            repeats.check(page.next, ((key, digest) for key, _, digest in landed))
        # One without a key was never removed by it; one whose version cannot be read has a key.
        keys = [key for key, _, _ in landed if not is_unidentified(key)]
        if len(keys) < len(landed):
            keys = [key for raw in there for key in self._landing.keys_of(raw)]
        if keys:
            await self._client.run_async(
                removals.unmark, ctx.claim, pipeline_id=row.pipeline_id, keys=keys
            )
        return msgspec.structs.replace(
            look,
            part=look.part + (page.next is None),
            position=page.next,
            count=look.count + len(landed),
            seen=_added(look.seen, (f"{key} {digest.hex()}" for key, _, digest in landed)),
        )


def _added(seen: str, records: Iterable[str]) -> str:
    """Add records to a sum that knows no order: pages may be cut differently each time."""
    hashes = (hashlib.blake2b(record.encode(), digest_size=16).digest() for record in records)
    return f"{(int(seen, 16) + sum(map(int.from_bytes, hashes))) % 2**128:x}"
