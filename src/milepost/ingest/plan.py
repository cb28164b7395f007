"""The first job of a run: it fixes the window and the rules, and cuts the source into partitions.

It also cuts a partition again that outgrew its estimate.
"""

import asyncio
import hashlib
import math
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from milepost.context import Context
from milepost.errors import Invalid
from milepost.ingest.declaration import FETCH, Declaration
from milepost.ingest.keys import written
from milepost.ingest.scan import Count, Plan, divided, scanned
from milepost.ingest.source import Partition, Window
from milepost.policy import Fail
from milepost.store import pages, pipelines
from milepost.store.pages import ListCursor
from milepost.store.pipelines import REMAP, Portion
from milepost.store.watermarks import PipelineRunRow

DAY = 86_400.0
SPLIT = 2
"""A partition of so many times the records read of it is read anew, by so many jobs at least."""


class Planner:
    """Plans runs of one pipeline."""

    def __init__(self, pipeline: Declaration[Any]) -> None:
        self._pipeline = pipeline

    async def plan(self, ctx: Context) -> int | None:
        """Fix the window and the rules, cut the source, and store every partition."""
        pipeline, client = self._pipeline, self._pipeline.client
        row = await client.run_async(pipelines.get, ctx.claim.run_id or "")
        if row.is_planned:
            return None
        await pipeline.owning(pipeline.prepare, row.run_id)
        if row.rules_digest is None:
            row = await self._fix(ctx, row)
        if row.mode == REMAP:
            return await self._list(ctx, row)
        plan = await self.cut(Window(*row.window), is_full=row.mode == "full")
        parts = plan.partitions
        jobs = [pipeline.job(FETCH, row.run_id, _payload(part), part.ordinal) for part in parts]
        bounds = [(part.ordinal, _text(part.low), _text(part.high)) for part in parts]
        jobs += pipeline.consolidating(row.run_id)
        seal = partial(pipelines.seal, counted=plan.counted, calls=plan.calls, plan=plan.text())
        await client.run_async(seal, ctx.claim, jobs, bounds)
        return len(parts)

    async def _list(self, ctx: Context, row: PipelineRunRow) -> int:
        """Plan a run that makes records anew: list the landed ones, for consolidation to take."""
        client = self._pipeline.client
        at: ListCursor | None = await client.run_async(pages.list_cursor, row)
        while at is not None:
            ctx.check()
            at = await client.run_async(pages.list_landed, ctx.claim, at, row)
        listed = (await client.run_async(pages.counts, row)).fetched
        jobs = self._pipeline.consolidating(row.run_id)
        await client.run_async(pipelines.seal, ctx.claim, jobs, [], counted=listed)
        return listed

    async def _fix(self, ctx: Context, row: PipelineRunRow) -> PipelineRunRow:
        pipeline = self._pipeline
        # Records that are made anew were read before, up to wherever that was.
        end = None if row.mode == REMAP else await self._upper_bound(row)
        rules = await pipeline.calls.remote(pipeline.source.rules)
        data = None if rules is None else pipeline.client.codec.encode(rules)
        longest = pipeline.options["max_window"]
        return await pipeline.client.run_async(
            pipelines.fix,
            ctx.claim,
            end=None if end is None else pipeline.mark(end),
            before=None if longest is None else pipeline.span(longest),
            rules=data,
            digest=hashlib.sha256(data or b"").hexdigest(),
        )

    async def _upper_bound(self, row: PipelineRunRow) -> Any:
        source = self._pipeline.source
        end = await self._pipeline.calls.remote(source.upper_bound)
        # The store's clock says where times have come to; as a number, no sequence would reach it.
        if end is None and not self._pipeline.is_time and row.end_mark is None:
            raise Fail(
                f"{type(source).__name__}.upper_bound() returned None: with measure = "
                '"sequence" it returns the number up to which everything can be read'
            )
        return end

    # Cutting

    async def cut(self, window: Window, *, is_full: bool) -> Plan:
        """Cut the records that changed in a window into partitions."""
        options = self._pipeline.options
        plan = await scanned(
            self._counting(window),
            self._pipeline.axis,
            parts=options["partitions"],
            page=options["page"],
            origin=self._origin(),
            spread=not is_full,
        )
        if not self._pipeline.source.nullable:
            return plan
        null = Partition(None, None, len(plan.partitions), 0, options["page"])
        return msgspec.structs.replace(plan, partitions=[*plan.partitions, null])

    def _counting(self, window: Window) -> Count:
        source, turn = self._pipeline.source, asyncio.Lock()

        async def count(low: Any, high: Any) -> int:
            answer = await self._pipeline.calls.remote(source.count, window, low, high, turn=turn)
            if isinstance(answer, bool) or not isinstance(answer, int):
                raise Invalid(f"{type(source).__name__}.count() returned {answer!r}: a number")
            return answer

        return count

    def _origin(self) -> float:
        """Say around where keys are looked for: times and days around now."""
        axis = self._pipeline.axis
        if axis.kind not in ("time", "date"):
            return 0.0
        now = axis.place(datetime.now(UTC))
        return now if axis.kind == "time" else now // DAY

    async def split(self, ctx: Context, part: Partition, window: Window, seen: int) -> bool:
        """Let several read a partition that is much larger than its estimate, if it can be cut.

        Each begins anew: the cursor of this one says nothing of the records that are left (H-80).
        """
        count = self._counting(window)
        counted = 0 if part.is_null else await count(part.low, part.high)
        if counted < SPLIT * seen:
            return False
        wanted = math.ceil(counted / max(part.estimate, part.page))
        parts = min(self._pipeline.options["partitions"], wanted)
        origin, client = self._origin(), self._pipeline.client
        cut = await divided(count, self._pipeline.axis, part, parts=parts, origin=origin)
        if len(cut) < SPLIT:
            return False
        portions = [
            Portion(_text(one.low), _text(one.high), client.codec.encode(_payload(one)))
            for one in cut
        ]
        codec = client.codec.name
        return await client.run_async(pipelines.split, ctx.claim, portions, codec=codec)


def _payload(part: Partition) -> dict[str, Any]:
    """Write the arguments of the job that reads a partition."""
    return {"low": written(part.low), "high": written(part.high), "estimate": part.estimate}


def _text(bound: Any) -> str | None:
    """Write a bound as the store keeps it."""
    return None if bound is None else str(written(bound))
