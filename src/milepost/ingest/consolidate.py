"""Consolidating: what was landed becomes records of the target, a batch at a time."""

import asyncio
import inspect
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from milepost.client import Client
from milepost.context import Context
from milepost.errors import IllegalMove, Invalid
from milepost.ingest.calls import Calls
from milepost.ingest.columns import Part
from milepost.ingest.fetch import is_unidentified, is_unusable
from milepost.ingest.mapping import Fingerprint, raw_type
from milepost.ingest.source import Gone, Identity, Reject, Source, could_be_key
from milepost.ingest.target import Target
from milepost.policy import Fail, storable
from milepost.records import Claim
from milepost.store import jobs, pages
from milepost.store.driver import Steps
from milepost.store.pages import Batch, Rejected
from milepost.store.pipelines import REMAP
from milepost.store.watermarks import PipelineRunRow

PHASES = (
    "ValidatingRun",
    "LoadingPricingRules",
    "FetchingRawBatch",
    "ProcessingBatch",
    "MappingDiamonds",
    "ApplyingPricing",
    "UpsertingBatch",
    "MarkingConsolidated",
    "UpdatingRunMetadata",
    "AdvancingWatermark",
)
"""B's ten states within Consolidating, as the journal of the jobs shows them."""
PASSING = (OSError, TimeoutError, MemoryError, Fail)
"""What says nothing of a record when all are enriched: the attempt fails, and another follows."""
REASON_LIMIT = 1_000

Row = tuple[str, int, bytes, bytes]
Write = partial[Steps[None]]


class Consolidator:
    """Turns landed records of one pipeline into records of its target."""

    def __init__(
        self,
        client: Client,
        source: Source[Any, Any, Any],
        calls: Calls,
        target: Target,
        identity: Identity,
        *,
        fingerprint: Fingerprint,
        batch: int,
        upsert: int,
        concurrency: int,
    ) -> None:
        self._client = client
        self._source = source
        self._calls = calls
        self._target = target
        self._fingerprint = fingerprint
        self._identity = identity
        self._batch = batch
        self._upsert = upsert
        self._concurrency = concurrency
        self._raw = raw_type(source)

    async def consolidate(self, ctx: Context, row: PipelineRunRow) -> int:
        """Work until no page is free; what others hold is theirs. Answers with the records."""
        await self.note(ctx, "ValidatingRun")
        if not row.is_planned:
            raise Fail(f"run {row.run_id} was never planned")
        await self.note(ctx, "LoadingPricingRules")
        rules = None if row.rules is None else self._client.codec.decode(row.rules)
        share = await self._client.run_async(pages.share, row.root_id)
        most = max(1, math.floor(self._batch / share)) if share else 1
        done = 0
        while True:
            ctx.check()
            batch = await self._taken(ctx, row, most)
            if not batch.pages:
                return done
            await self._one(ctx, row, batch, rules)
            done += len(batch.records)

    async def note(self, ctx: Context, phase: str) -> None:
        """Say in B's word what is being done; a lease that was lost is noticed here."""
        await self._client.run_async(jobs.note, ctx.claim, phase=phase, alone=True)

    async def _taken(self, ctx: Context, row: PipelineRunRow, most: int) -> Batch:
        return await self._client.run_async(
            pages.take, ctx.claim, root_id=row.root_id, pipeline_id=row.pipeline_id, most=most
        )

    async def _one(self, ctx: Context, row: PipelineRunRow, batch: Batch, rules: Any) -> None:
        await self.note(ctx, "ProcessingBatch")
        rejected: list[Rejected] = []
        await self.note(ctx, "MappingDiamonds")
        mapped = await self._mapped(batch.records, rejected)
        said = [one for _, one in mapped if isinstance(one, Gone)]
        gone = {one.key: one.version for one in said if could_be_key(one.key)}
        deleted = [at[0] for at, one in mapped if isinstance(one, Gone) and one.key == at[0]]
        mapped = [(row, one) for row, one in mapped if not isinstance(one, Gone)]
        await self.note(ctx, "ApplyingPricing")
        rows, ready = await self._enriched(mapped, rules, rejected)
        await self.note(ctx, "UpsertingBatch")
        await self._upserted(ctx.claim, row, rows, ready, rejected, fresh=batch.fresh)
        await self._client.run_async(
            pages.mark,
            ctx.claim,
            batch,
            rejected,
            root_id=row.root_id,
            pipeline_id=row.pipeline_id,
            gone=gone,
            deleted=deleted,
            remove=self._target.statement("remove"),
            restore=row.root_mode == REMAP,
        )

    # Mapping

    async def _mapped(self, rows: Sequence[Row], rejected: list[Rejected]) -> list[tuple[Row, Any]]:
        if inspect.iscoroutinefunction(self._source.map):
            return [
                (row, record) for row in rows for record in await self._mapped_async(row, rejected)
            ]
        return await self._client.call_async(self._mapped_here, rows, rejected)

    def _mapped_here(self, rows: Sequence[Row], rejected: list[Rejected]) -> list[tuple[Row, Any]]:
        found: list[tuple[Row, Any]] = []
        map_, checked = self._source.map, self._checked
        for row in rows:
            try:
                found.append((row, map_(checked(row))))
            except MemoryError:
                raise
            except Gone as gone:
                found.append((row, gone))
            except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
                rejected.append(_rejected(row, error))
        return found

    async def _mapped_async(self, row: Row, rejected: list[Rejected]) -> list[Any]:
        try:
            return [await self._source.map(self._checked(row))]
        except MemoryError:
            raise
        except Gone as gone:
            return [gone]
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
            rejected.append(_rejected(row, error))
            return []

    def _checked(self, row: Row) -> Any:
        """Read a record as the source gave it; what could not be told apart says why."""
        if is_unusable(row[2]):
            raise Reject(self._client.codec.decode(row[3])["reason"])
        raw = self._client.codec.decode(row[3], self._raw)
        if is_unidentified(row[0]):
            self._identity.key_of(raw)
            self._identity.version_of(raw)
        return raw

    # Enriching

    async def _enriched(
        self, mapped: list[tuple[Row, Any]], rules: Any, rejected: list[Rejected]
    ) -> tuple[list[Row], Part]:
        records = await self._prices(mapped, rules, rejected)
        rows = [row for row, _ in records]
        try:
            columns = self._target.rows([row[0] for row in rows], [one for _, one in records])
        except Exception:  # noqa: BLE001 - one of them does not fit: which?
            rows, columns = self._sorted_out(records, rejected)
        return rows, Part([row[1] for row in rows], [row[2] for row in rows], columns)

    def _sorted_out(
        self, records: list[tuple[Row, Any]], rejected: list[Rejected]
    ) -> tuple[list[Row], list[list[Any]]]:
        rows, fitting = [], []
        for row, record in records:
            try:
                fitting.append([column[0] for column in self._target.rows([row[0]], [record])])
                rows.append(row)
            except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
                rejected.append(_rejected(row, error))
        return rows, [list(column) for column in zip(*fitting, strict=True)]

    async def _prices(
        self, mapped: list[tuple[Row, Any]], rules: Any, rejected: list[Rejected]
    ) -> list[tuple[Row, Any]]:
        """Enrich all at once; if that cannot be, one by one, to know which one is to blame."""
        if not mapped:
            return []
        try:
            priced = await self._calls.local(
                self._source.enrich, [record for _, record in mapped], rules
            )
            _check_length(mapped, priced)
        except (Invalid, *PASSING):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
            if len(mapped) == 1:
                rejected.append(_rejected(mapped[0][0], error))
                return []
            half = len(mapped) // 2
            return [
                *await self._prices(mapped[:half], rules, rejected),
                *await self._prices(mapped[half:], rules, rejected),
            ]
        return [(row, record) for (row, _), record in zip(mapped, priced, strict=True)]

    # Writing

    async def _upserted(
        self,
        claim: Claim,
        row: PipelineRunRow,
        rows: list[Row],
        ready: Part,
        rejected: list[Rejected],
        *,
        fresh: bool,
    ) -> None:
        """Write a hundred a statement, five statements at a time; each is whole or not (H-85)."""
        made_with = self._fingerprint.made_with(row.rules_digest)
        write = partial(self._target.write, claim, row.root_id, made_with=made_with, fresh=fresh)
        free = asyncio.Semaphore(self._concurrency)

        async def written(part: slice) -> None:
            async with free:
                await self._written(write, rows[part], ready[part], rejected)

        try:
            async with asyncio.TaskGroup() as group:
                for at in range(0, len(rows), self._upsert):
                    group.create_task(written(slice(at, at + self._upsert)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _written(
        self, write: Write, rows: list[Row], part: Part, rejected: list[Rejected]
    ) -> None:
        try:
            await self._client.run_async(write, part)
        except IllegalMove:
            if not write.keywords["fresh"]:
                raise
            # What was expected to be new is there: an attempt before this one wrote it.
            await self._written(partial(write, fresh=False), rows, part, rejected)
        except Invalid as error:
            if len(rows) == 1:
                rejected.append(_rejected(rows[0], error))
                return
            half = len(rows) // 2
            for some in (slice(half), slice(half, None)):
                await self._written(write, rows[some], part[some], rejected)


def _check_length(given: Sequence[Any], priced: Sequence[Any]) -> None:
    if len(priced) != len(given):
        raise Invalid(
            f"enrich() got {len(given)} records and returned {len(priced)}: it returns each, in "
            "the same order, and raises mp.Reject for one that cannot be used"
        )


def _rejected(row: Row, error: Exception) -> Rejected:
    key, version, _, payload = row
    said = storable(str(error) or type(error).__name__)[:REASON_LIMIT]
    kind = "Reject" if isinstance(error, Reject) else type(error).__qualname__
    return Rejected(key, version, payload, kind, said)
