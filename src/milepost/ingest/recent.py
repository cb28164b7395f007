"""Who is still there: what changed about the end of a window may have been missed, and is not gone.

A record that changes while it is read leaves the window, or moves from a place that is not yet read
to one that was; one that is committed late does so with a time before the end. All of them changed
later than the overlap before the end (H-70, H-81). So before anything is removed, what changed
since then is read twice: it counts if both times it was the same, for then nothing moved meanwhile.
"""

from typing import Any

from milepost.client import Client
from milepost.ingest.calls import Calls
from milepost.ingest.fetch import Landing
from milepost.ingest.keys import HIGHEST, LOWEST, Axis
from milepost.ingest.source import Partition, Source, Window, page_of
from milepost.store.watermarks import Mark, PipelineRunRow

__all__ = ["Recent"]

PASSES = 4
"""How often it is read at most; a source that never stands still is asked again by the next run."""
MOST = 100_000
"""How many records are read for this at most."""
FAR = {"time": 253_000_000_000_000_000}
"""Later than anything that changes: microseconds since 1970, in the year 9987."""
FARTHEST = 2**62


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

    async def keys(self, row: PipelineRunRow) -> list[str] | None:
        """Name what changed since shortly before the window's end; None if it is not to be told."""
        if row.end_mark is None:
            return []
        mark = Mark(row.measure)
        end = mark.shown(FAR.get(row.measure, FARTHEST))
        window = Window(mark.shown(row.end_mark - row.overlap), end)
        before = await self._read(window)
        for _ in range(PASSES - 1):
            if before is None:
                return None
            after = await self._read(window)
            if after == before:
                return sorted(before)
            before = after
        return None

    async def _read(self, window: Window) -> dict[str, bytes] | None:
        """Read it once, each key with its record; None if that is too much."""
        found: dict[str, bytes] = {}
        for part in self._parts:
            position: Any = None
            while True:
                answer = await self._calls.remote(self._source.fetch, window, part, position)
                page = page_of(self._source, answer, position)
                found.update(self._keyed(page.records))
                if page.next is None:
                    break
                if len(found) > MOST:
                    return None
                position = page.next
        return found

    def _keyed(self, records: Any) -> dict[str, bytes]:
        landed = map(self._landing.of, records)
        # One without a key was never removed by it.
        return {key: digest for key, _, digest, _ in landed if not key.startswith("?")}
