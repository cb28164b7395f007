"""Reading one partition: page after page, each stored with its cursor; a crash costs one page."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from milepost.client import Client
from milepost.codec import limited
from milepost.context import Context
from milepost.errors import IllegalMove, Invalid, LeaseLost, Unavailable
from milepost.ingest.calls import Calls
from milepost.ingest.mapping import Fingerprint
from milepost.ingest.source import (
    Gone,
    Identity,
    OffsetSource,
    Partition,
    Reject,
    Source,
    Window,
    could_be_key,
    page_of,
    shown,
)
from milepost.ingest.target import Target
from milepost.policy import Fail, storable
from milepost.store import pages
from milepost.store.driver import Call, Steps
from milepost.store.group import AsyncGroupCommit, GroupSize
from milepost.store.pages import Answer, Page
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

Split = Callable[[int], Awaitable[bool]]
"""Told how much was read; answers whether others read the partition now."""


_Landing = tuple[PipelineRunRow, Page]


class Lander:
    """Stores pages; partitions of one worker that come at the same time share a transaction."""

    def __init__(self, client: Client, target: Target, fingerprint: Fingerprint) -> None:
        self._client = client
        self._target = target
        self._fingerprint = fingerprint
        # Pages of one run go together.
        size = GroupSize(
            RECORDS,
            weight=lambda item: max(item[1].count, LEAST),
            kind=lambda item: item[0].root_id,
        )
        self._pages: AsyncGroupCommit[_Landing, Answer] = AsyncGroupCommit(self._store, size=size)
        self._twice: str | None = None
        """The first run, once one of its records came twice."""

    async def land(self, page: Page, *, row: PipelineRunRow) -> Answer:
        """Store a page; answer what became of it, or raise `LeaseLost`."""
        answer = await self._pages.run((row, page))
        if answer == "lost":
            raise LeaseLost(
                f"job {page.claim.id} is no longer held: page {page.number} is not kept"
            )
        return answer

    async def _store(self, items: list[_Landing]) -> list[Answer]:
        """Store pages: in a pipeline's first run as new ones, until a record comes twice."""
        row, group = items[0][0], [page for _, page in items]
        land = partial(
            pages.land,
            pipeline_id=row.pipeline_id,
            root_id=row.root_id,
            seen=row.root_number,
            check=self._target.statement("check"),
            made_with=self._fingerprint.made_with(row.rules_digest),
        )
        if row.root_number == FIRST and self._twice != row.root_id:
            try:
                return await self._client.run_async(partial(land, fresh=True), group)
            except IllegalMove:
                self._twice = row.root_id
        return await self._client.run_async(land, group)


class Reader:
    """Reads partitions of one pipeline's source."""

    def __init__(
        self,
        client: Client,
        source: Source[Any, Any, Any],
        calls: Calls,
        lander: Lander,
        landing: "Landing",
    ) -> None:
        self._client = client
        self._source = source
        self._calls = calls
        self._lander = lander
        self._landing = landing

    async def read(
        self,
        ctx: Context,
        partition: Partition,
        row: PipelineRunRow,
        window: Window,
        *,
        split: Split,
    ) -> dict[str, int]:
        """Read a partition from where it came to, up to its end.

        An estimate stops nothing: whenever twice as much was read as was thought, it is asked
        whether the partition is better read by several (H-80).
        """
        at = await self._client.run_async(pages.cursor, ctx.claim)
        number, position, done = at.pages, self._decoded(at.position), at.done
        told = {"applied": 0, "duplicate": 0, "completed": 0}
        fetched, most = 0, TWICE * max(partition.estimate, partition.page)
        repeats = Repeats(type(self._source).__name__)
        while not done:
            ctx.check()
            answer = await self._calls.remote(self._source.fetch, window, partition, position)
            page = page_of(self._source, answer, position)
            onward = page.next
            if onward is None:
                onward = await self._once_more(partition, row, window, number)
            fetched += len(page.records)
            share = 1.0 if onward is None else _share(fetched, partition.estimate)
            ready = self._page(ctx, number, page.records, onward, share=share)
            if not isinstance(self._source, OffsetSource):
                repeats.check(onward, ((key, one[1]) for key, one in ready.records.items()))
            told[await self._land(ready, row)] += 1
            number, position, done = number + 1, onward, onward is None
            if fetched >= most and not done:
                done, most = await split(fetched), TWICE * fetched
        return told

    async def _land(self, page: Page, row: PipelineRunRow) -> Answer:
        """Store a page; whether an answer that was lost had stored it, the next try says."""
        for pause in PAUSES:
            try:
                return await self._lander.land(page, row=row)
            except Unavailable:
                await asyncio.sleep(pause)
        return await self._lander.land(page, row=row)

    async def _once_more(
        self, partition: Partition, row: PipelineRunRow, window: Window, number: int
    ) -> int | None:
        """Say whether a partition of offsets is read again: it gave fewer than it counts (H-78)."""
        source = self._source
        if not isinstance(source, OffsetSource) or partition.is_null or number == 0:
            return None
        counted = await self._calls.remote(source.count, window, partition.low, partition.high)
        seen = await self._client.run_async(_seen, row, partition.ordinal)
        passes = await self._client.run_async(_passes, row, partition.ordinal)
        return 0 if seen < int(counted) and passes < source.passes else None

    def _page(
        self,
        ctx: Context,
        number: int,
        records: Any,
        onward: Any,
        *,
        share: float | None,
    ) -> Page:
        found: dict[str, tuple[int, bytes, bytes]] = {}
        gone: dict[str, int | None] = {}
        there: list[str] = []
        for raw in records:
            if isinstance(raw, Gone):
                # One whose key no record can have removes none.
                if could_be_key(raw.key):
                    gone[raw.key] = raw.version
                continue
            key, version, digest, payload = self._landing.of(raw)
            if is_unidentified(key):
                there += self._landing.keys_of(raw)
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
        return Page(
            claim=ctx.claim,
            number=number,
            position=None if onward is None else self._encoded(onward),
            records=found,
            count=sum(not isinstance(raw, Gone) for raw in records),
            done=onward is None,
            fraction=share,
            gone=gone,
            there=there,
        )

    def _encoded(self, cursor: Any) -> bytes:
        """Encode a cursor; one that a retry would see changed is refused at the first page."""
        name = type(self._source).__name__
        try:
            position = self._client.codec.encode({"at": cursor})
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
        return None if position is None else self._client.codec.decode(position)["at"]


class Repeats:
    """Notices a source that goes round in circles: the same records at the same cursor again.

    Only one page is remembered, and a later one in its place whenever twice as many were read: a
    circle of any length is noticed (Brent's algorithm).
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._kept: tuple[object, ...] | None = None
        self._pages, self._until = 0, 1

    def check(self, onward: object, records: Iterable[tuple[str, bytes]]) -> None:
        """Refuse a page that was seen before: its records are told by their keys and hashes."""
        this = (onward, sorted(records))
        if this == self._kept:
            raise Fail(
                f"{self._source}.fetch() gives the same records and the same cursor again, after "
                f"{self._pages} pages: it would never end; its cursor must move on"
            )
        self._pages += 1
        if self._pages == self._until:
            self._kept, self._until = this, 2 * self._until


def _share(fetched: int, estimate: int) -> float | None:
    """Say how much of a partition was read: an estimate knows no end."""
    return min(0.99, fetched / estimate) if estimate else None


UNUSABLE = b"!"
"""What the hash of a record ends with that could not be stored as the source gave it."""
HASH_BYTES = 16
SHOWN_CHARACTERS = 4_000


def is_unidentified(key: str) -> bool:
    """Tell whether a key was made up, for a record whose own key or version cannot be read."""
    return key.startswith("?")


def is_unusable(digest: bytes) -> bool:
    """Tell whether what was landed only describes the record."""
    return len(digest) > HASH_BYTES


class Landing:
    """Turns raw records into what the landing table keeps: key, version, hash and payload."""

    def __init__(self, client: Client, identity: Identity) -> None:
        self._client = client
        self._identity = identity

    def of(self, raw: Any) -> tuple[str, int, bytes, bytes]:
        """Take a record apart; one that cannot be used is kept, and consolidation says why."""
        payload, mark = self._payload(raw)
        digest = hashlib.blake2b(payload, digest_size=HASH_BYTES).digest() + mark
        try:
            return self._identity.key_of(raw), self._identity.version_of(raw), digest, payload
        except Reject:
            return f"?{digest.hex()}", 0, digest, payload

    def keys_of(self, raw: Any) -> list[str]:
        """Tell the key of a record that is there, though it could not be landed with it."""
        try:
            return [self._identity.key_of(raw)]
        except Reject:
            return []

    def _payload(self, raw: Any) -> tuple[bytes, bytes]:
        codec, most = self._client.codec, self._client.settings.max_payload
        try:
            return limited(codec.encode(raw), most=most, what="a record"), b""
        except Invalid as error:
            record = storable(shown(raw))[:SHOWN_CHARACTERS]
            return codec.encode({"reason": storable(str(error)), "record": record}), UNUSABLE


def _seen(row: PipelineRunRow, ordinal: int) -> Steps[int]:
    parameters = {"pipeline_id": row.pipeline_id, "root_id": row.root_id, "ordinal": ordinal}
    [(count,)] = yield Call("raw_seen", parameters)
    return int(count)


def _passes(row: PipelineRunRow, ordinal: int) -> Steps[int]:
    """Count how often a partition was read to an end: pages without records."""
    [(count,)] = yield Call("page_empty", {"root_id": row.root_id, "ordinal": ordinal})
    return int(count) + 1
