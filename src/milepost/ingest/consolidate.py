"""Consolidating: landed records become records of the target, a batch at a time."""

import asyncio
import inspect
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from milepost.context import Context
from milepost.errors import IllegalMove, Invalid
from milepost.ingest.columns import Part
from milepost.ingest.declaration import Declaration
from milepost.ingest.landing import could_be_key, is_unidentified, is_unusable
from milepost.ingest.mapping import raw_type
from milepost.ingest.source import Gone, Reject
from milepost.policy import Fail, storable
from milepost.store import pages
from milepost.store.driver import Steps
from milepost.store.pages import RecordBatch
from milepost.store.pipelines import REMAP
from milepost.store.quarantine import Rejection
from milepost.store.watermarks import PipelineRunRow

PASSING = (OSError, TimeoutError, MemoryError, Fail)
"""Errors of enriching that say nothing of a record: the attempt fails, and another follows."""
REASON_LIMIT = 1_000

Row = tuple[str, int, bytes, bytes]
"""A landed record: key, version, hash, payload."""
Write = partial[Steps[None]]


class Consolidator:
    """Turns landed records of one pipeline into records of its target."""

    def __init__(self, pipeline: Declaration[Any]) -> None:
        self._pipeline = pipeline
        self._raw = raw_type(pipeline.source)

    async def consolidate(self, ctx: Context) -> int:
        """Work until no page is free; pages that others hold are theirs. Answers the records."""
        pipeline, client = self._pipeline, self._pipeline.client
        run = await pipeline.owning(self._ready, ctx.claim.run_id)
        await pipeline.note(ctx, "ValidatingRun")
        if not run.is_planned:
            raise Fail(f"run {run.run_id} was never planned")
        await pipeline.note(ctx, "LoadingPricingRules")
        rules = None if run.rules is None else client.codec.decode(run.rules)
        average = await client.run_async(pages.average, run)
        most = max(1, math.floor(pipeline.options["batch"] / average)) if average else 1
        done = 0
        while True:
            ctx.check()
            batch = await client.run_async(pages.take, ctx.claim, run, most=most)
            if not batch.pages:
                return done
            await self._batch(ctx, run, batch, rules)
            done += len(batch.records)

    def _ready(self, run_id: str) -> Steps[PipelineRunRow]:
        """Make the table ready for records of this shape: another program may have read them."""
        run = yield from self._pipeline.hold(run_id)
        yield from self._pipeline.target.prepare(create=False)
        return run

    async def _batch(
        self, ctx: Context, run: PipelineRunRow, batch: RecordBatch, rules: Any
    ) -> None:
        pipeline = self._pipeline
        await pipeline.note(ctx, "ProcessingBatch")
        await pipeline.note(ctx, "MappingDiamonds")
        found = list(zip(batch.records, await self._map(batch.records), strict=True))
        rejected = [one for _, one in found if isinstance(one, Rejection)]
        gone = [(row, one) for row, one in found if isinstance(one, Gone)]
        mapped = [(row, one) for row, one in found if not isinstance(one, Rejection | Gone)]
        await pipeline.note(ctx, "ApplyingPricing")
        enriched = await self._enrich(mapped, rules, rejected)
        rows, part = self._taken_apart(enriched, rejected)
        await pipeline.note(ctx, "UpsertingBatch")
        made_with = pipeline.fingerprint.made_with(run.rules_digest)
        write = partial(pipeline.target.write, ctx.claim, run.root_id, made_with=made_with)
        await self._write_all(partial(write, fresh=batch.fresh), rows, part, rejected)
        await pipeline.client.run_async(
            pages.mark,
            ctx.claim,
            run,
            batch,
            rejected,
            gone={one.key: one.version for _, one in gone if could_be_key(one.key)},
            deleted=[row[0] for row, one in gone if one.key == row[0]],
            remove=pipeline.target.statement("remove"),
            restore=run.root_mode == REMAP,
        )

    # Mapping

    async def _map(self, rows: Sequence[Row]) -> list[Any]:
        """Map landed records: each becomes a record, `Gone`, or a `Rejection`."""
        if inspect.iscoroutinefunction(self._pipeline.source.map):
            return [await self._map_async(row) for row in rows]
        return await self._pipeline.client.call_async(lambda: list(map(self._map_here, rows)))

    def _map_here(self, row: Row) -> Any:
        try:
            return self._pipeline.source.map(self._raw_record(row))
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
            return _refused(row, error)

    async def _map_async(self, row: Row) -> Any:
        try:
            return await self._pipeline.source.map(self._raw_record(row))
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
            return _refused(row, error)

    def _raw_record(self, row: Row) -> Any:
        """Read a record as the source gave it; one that could not be identified says why."""
        codec, landing = self._pipeline.client.codec, self._pipeline.landing
        if is_unusable(row[2]):
            raise Reject(codec.decode(row[3])["reason"])
        raw = codec.decode(row[3], self._raw)
        if is_unidentified(row[0]):
            landing.key_of(raw)
            landing.version_of(raw)
        return raw

    # Enriching

    async def _enrich(
        self, mapped: list[tuple[Row, Any]], rules: Any, rejected: list[Rejection]
    ) -> list[tuple[Row, Any]]:
        """Enrich all at once; if that fails, by halves, to find the record that is to blame."""
        if not mapped:
            return []
        records = [record for _, record in mapped]
        try:
            enriched = await self._pipeline.calls.local(
                self._pipeline.source.enrich, records, rules
            )
            _check_length(mapped, enriched)
        except (Invalid, *PASSING):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
            if len(mapped) == 1:
                rejected.append(_rejection(mapped[0][0], error))
                return []
            half = len(mapped) // 2
            return [
                *await self._enrich(mapped[:half], rules, rejected),
                *await self._enrich(mapped[half:], rules, rejected),
            ]
        return [(row, record) for (row, _), record in zip(mapped, enriched, strict=True)]

    def _taken_apart(
        self, records: list[tuple[Row, Any]], rejected: list[Rejection]
    ) -> tuple[list[Row], Part]:
        """Take records apart into columns: all at once, or those that fit, one by one."""
        rows, columns_of = [row for row, _ in records], self._pipeline.target.rows
        try:
            columns = columns_of([row[0] for row in rows], [one for _, one in records])
        except Exception:  # noqa: BLE001 - one of them does not fit: which?
            rows, fitting = [], []
            for row, record in records:
                try:
                    fitting.append([column[0] for column in columns_of([row[0]], [record])])
                    rows.append(row)
                except Exception as error:  # noqa: BLE001 - whatever it is, the record is kept
                    rejected.append(_rejection(row, error))
            columns = [list(column) for column in zip(*fitting, strict=True)]
        return rows, Part([row[1] for row in rows], [row[2] for row in rows], columns)

    # Writing

    async def _write_all(
        self, write: Write, rows: list[Row], part: Part, rejected: list[Rejection]
    ) -> None:
        """Write a hundred a statement, five statements at a time; each is whole or not (H-85)."""
        size = self._pipeline.options["upsert"]
        free = asyncio.Semaphore(self._pipeline.options["concurrency"])

        async def written(chosen: slice) -> None:
            async with free:
                await self._write(write, rows[chosen], part[chosen], rejected)

        try:
            async with asyncio.TaskGroup() as group:
                for at in range(0, len(rows), size):
                    group.create_task(written(slice(at, at + size)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _write(
        self, write: Write, rows: list[Row], part: Part, rejected: list[Rejection]
    ) -> None:
        try:
            await self._pipeline.client.run_async(write, part)
        except IllegalMove:
            if not write.keywords["fresh"]:
                raise
            # A record that was expected to be new is there: an attempt before this one wrote it.
            await self._write(partial(write, fresh=False), rows, part, rejected)
        except Invalid as error:
            if len(rows) == 1:
                rejected.append(_rejection(rows[0], error))
                return
            half = len(rows) // 2
            for some in (slice(half), slice(half, None)):
                await self._write(write, rows[some], part[some], rejected)


def _check_length(given: Sequence[Any], enriched: Sequence[Any]) -> None:
    if len(enriched) != len(given):
        raise Invalid(
            f"enrich() got {len(given)} records and returned {len(enriched)}: it returns each, in "
            "the same order, and raises mp.Reject for one that cannot be used"
        )


def _refused(row: Row, error: Exception) -> Gone | Rejection:
    """Turn an error of `map` into a fate of its record; memory that ran out says nothing of it."""
    if isinstance(error, MemoryError):
        raise error
    return error if isinstance(error, Gone) else _rejection(row, error)


def _rejection(row: Row, error: Exception) -> Rejection:
    key, version, _, payload = row
    said = storable(str(error) or type(error).__name__)[:REASON_LIMIT]
    kind = "Reject" if isinstance(error, Reject) else type(error).__qualname__
    return Rejection(key, version, payload, kind, said)
