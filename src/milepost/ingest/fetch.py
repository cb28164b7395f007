"""Reading one partition: page after page, each stored with its cursor; a crash costs one page."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from milepost.context import Context
from milepost.errors import IllegalMove, Invalid, LeaseLost, Unavailable
from milepost.ingest.declaration import Declaration
from milepost.ingest.keys import read
from milepost.ingest.landing import could_be_key, is_unidentified
from milepost.ingest.plan import Planner
from milepost.ingest.source import Gone, OffsetSource, Partition, Window, page_of
from milepost.policy import Fail
from milepost.store import pages
from milepost.store.group import AsyncGroupCommit, GroupSize
from milepost.store.pages import Answer, NewPage
from milepost.store.watermarks import PipelineRunRow

LEAST = 47
"""As many records as an empty page weighs: at most 64 pages are stored in one transaction."""
RECORDS = 3_000
"""How many records are stored in one transaction at most."""
TWICE = 2
FIRST = 1
"""The number of a pipeline's first run: before it, nothing was landed."""
PAUSES = (0.05, 0.2, 0.5, 1.0, 2.0)
"""How long a store that is away is waited for with a page in hand (F3)."""
_Landing = tuple[PipelineRunRow, NewPage]


class Fetcher:
    """Reads partitions of one pipeline's source."""

    def __init__(self, pipeline: Declaration[Any], planner: Planner) -> None:
        self._pipeline = pipeline
        self._planner = planner
        # Pages of one run that come at the same time share a transaction.
        size = GroupSize(
            RECORDS,
            weight=lambda item: max(item[1].count, LEAST),
            kind=lambda item: item[0].root_id,
        )
        self._pages: AsyncGroupCommit[_Landing, Answer] = AsyncGroupCommit(self._store, size=size)
        self._twice: str | None = None
        """The first run, once one of its records came twice."""

    async def fetch(self, ctx: Context, low: Any, high: Any, estimate: int = 0) -> dict[str, int]:
        """Read a partition from where it came to, up to its end.

        An estimate stops nothing: whenever twice as many records were read as expected, the planner
        tells whether the partition is better read by several (H-80).
        """
        pipeline, source, ordinal = self._pipeline, self._pipeline.source, ctx.claim.ordinal or 0
        run = await pipeline.owning(pipeline.hold, ctx.claim.run_id)
        window, ends = Window(*run.window), (read(low, pipeline.axis), read(high, pipeline.axis))
        partition = Partition(*ends, ordinal, estimate, pipeline.options["page"])
        at = await pipeline.client.run_async(pages.cursor, ctx.claim)
        number, position, done = at.pages, self._decoded(at.position), at.done
        told = {"applied": 0, "duplicate": 0, "completed": 0}
        fetched, most = 0, TWICE * max(estimate, partition.page)
        repeats = Repeats(type(source).__name__)
        while not done:
            ctx.check()
            answer = await pipeline.calls.remote(source.fetch, window, partition, position)
            page = page_of(source, answer, position)
            onward = page.next
            if onward is None:
                onward = await self._next_pass(partition, run, window, number)
            fetched += len(page.records)
            ready = self._page(ctx, number, page.records, onward, _share(fetched, estimate))
            if not isinstance(source, OffsetSource):
                repeats.check(onward, ((key, one[1]) for key, one in ready.records.items()))
            told[await self._land(ready, run)] += 1
            number, position, done = number + 1, onward, onward is None
            if fetched >= most and not done:
                done = await self._planner.split(ctx, partition, window, fetched)
                most = TWICE * fetched
        return told

    async def _land(self, page: NewPage, run: PipelineRunRow) -> Answer:
        """Store a page, or raise `LeaseLost`; after a lost answer the next try says if it was."""
        for pause in (*PAUSES, None):
            try:
                answer = await self._pages.run((run, page))
                break
            except Unavailable:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        if answer == "lost":
            raise LeaseLost(
                f"job {page.claim.id} is no longer held: page {page.number} is not kept"
            )
        return answer

    async def _store(self, items: list[_Landing]) -> list[Answer]:
        """Store pages: in a pipeline's first run as new ones, until a record comes twice."""
        run, group = items[0][0], [page for _, page in items]
        land = partial(
            pages.land,
            check=self._pipeline.target.statement("check"),
            made_with=self._pipeline.fingerprint.made_with(run.rules_digest),
        )
        client = self._pipeline.client
        if run.root_number == FIRST and self._twice != run.root_id:
            try:
                return await client.run_async(partial(land, fresh=True), group, run)
            except IllegalMove:
                self._twice = run.root_id
        return await client.run_async(land, group, run)

    async def _next_pass(
        self, partition: Partition, run: PipelineRunRow, window: Window, number: int
    ) -> int | None:
        """Begin a partition of offsets again if it gave fewer records than it counts (H-78)."""
        source = self._pipeline.source
        if not isinstance(source, OffsetSource) or partition.is_null or number == 0:
            return None
        bounds = partition.low, partition.high
        counted = await self._pipeline.calls.remote(source.count, window, *bounds)
        seen = partial(pages.seen, ordinal=partition.ordinal)
        records, passes = await self._pipeline.client.run_async(seen, run)
        return 0 if records < int(counted) and passes < source.passes else None

    def _page(
        self, ctx: Context, number: int, records: Any, onward: Any, share: float | None
    ) -> NewPage:
        landing = self._pipeline.landing
        found: dict[str, tuple[int, bytes, bytes]] = {}
        gone: dict[str, int | None] = {}
        there: list[str] = []
        for raw in records:
            if isinstance(raw, Gone):
                # One whose key no record can have removes none.
                if could_be_key(raw.key):
                    gone[raw.key] = raw.version
                continue
            key, version, digest, payload = landing.of(raw)
            if is_unidentified(key):
                there += landing.keys_of(raw)
            if key not in found or found[key][0] <= version:
                found[key] = (version, digest, payload)
        # A record that is there is not gone, unless a newer version says so.
        gone = {
            key: version
            for key, version in gone.items()
            if key not in found or (version is not None and version >= found[key][0])
        }
        for key in gone:
            found.pop(key, None)
        return NewPage(
            claim=ctx.claim,
            number=number,
            position=None if onward is None else self._encoded(onward),
            records=found,
            count=sum(not isinstance(raw, Gone) for raw in records),
            done=onward is None,
            fraction=1.0 if onward is None else share,
            gone=gone,
            there=there,
        )

    def _encoded(self, cursor: Any) -> bytes:
        """Encode a cursor; one that a retry would see changed is refused at the first page."""
        name = type(self._pipeline.source).__name__
        try:
            position = self._pipeline.client.codec.encode({"at": cursor})
        except Invalid as error:
            raise Fail(f"{name}.fetch(): the cursor {cursor!r} cannot be kept: {error}") from error
        back = self._decoded(position)
        if back != cursor:
            raise Fail(
                f"{name}.fetch(): the cursor {cursor!r} would come back as {back!r} after a retry; "
                "use a text, a number, or a list or dict of them"
            )
        return position

    def _decoded(self, position: bytes | None) -> Any:
        return None if position is None else self._pipeline.client.codec.decode(position)["at"]


class Repeats:
    """Notices a source that goes round in circles: the same records at the same cursor again.

    Only one page is remembered, and a later one in its place whenever twice as many were read: a
    circle of any length is noticed (Brent's algorithm).
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._last: tuple[object, ...] | None = None
        self._pages, self._until = 0, 1

    def check(self, onward: object, records: Iterable[tuple[str, bytes]]) -> None:
        """Refuse a page that was seen before, by its cursor and its records' keys and hashes."""
        this = (onward, sorted(records))
        if this == self._last:
            raise Fail(
                f"{self._source}.fetch() gives the same records and the same cursor again, after "
                f"{self._pages} pages: it would never end; its cursor must move on"
            )
        self._pages += 1
        if self._pages == self._until:
            self._last, self._until = this, 2 * self._until


def _share(fetched: int, estimate: int) -> float | None:
    """Tell the share of a partition that was read: an estimate knows no end."""
    return min(0.99, fetched / estimate) if estimate else None
