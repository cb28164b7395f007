"""Cutting a pipeline's source into partitions, and a partition that outgrew its estimate again."""

import math
from datetime import UTC, datetime
from typing import Any

import msgspec

from milepost.client import Client
from milepost.context import Context
from milepost.errors import Invalid
from milepost.ingest.calls import Calls
from milepost.ingest.keys import Axis, written
from milepost.ingest.plan import Count, Plan, divided, scanned
from milepost.ingest.source import Partition, Source, Window
from milepost.store import pipelines
from milepost.store.pipelines import Portion

DAY = 86_400.0
SPLIT = 2
"""A partition of so many times what was read of it is worth reading anew, by so many at least."""


class Cutter:
    """Counts the source of one pipeline, and cuts it."""

    def __init__(
        self,
        client: Client,
        source: Source[Any, Any, Any],
        calls: Calls,
        axis: Axis,
        *,
        partitions: int,
        page: int,
    ) -> None:
        self._client = client
        self._source = source
        self._calls = calls
        self._axis = axis
        self._partitions = partitions
        self._page = page

    async def cut(self, window: Window, *, is_full: bool) -> Plan:
        """Cut what changed in a window into partitions."""
        plan = await scanned(
            self._counting(window),
            self._axis,
            parts=self._partitions,
            page=self._page,
            origin=self._origin(),
            spread=not is_full,
        )
        if not self._source.nullable:
            return plan
        null = Partition(None, None, len(plan.partitions), 0, self._page)
        return msgspec.structs.replace(plan, partitions=[*plan.partitions, null])

    def _counting(self, window: Window) -> Count:
        async def count(low: Any, high: Any) -> int:
            answer = await self._calls.remote(self._source.count, window, low, high)
            if isinstance(answer, bool) or not isinstance(answer, int):
                raise Invalid(
                    f"{type(self._source).__name__}.count() returned {answer!r}: a number"
                )
            return answer

        return count

    def _origin(self) -> float:
        """Say around where the keys are looked for: times and days around now."""
        if self._axis.kind not in ("time", "date"):
            return 0.0
        now = self._axis.place(datetime.now(UTC))
        return now if self._axis.kind == "time" else now // DAY

    async def split(self, ctx: Context, part: Partition, window: Window, seen: int) -> bool:
        """Let several read a partition that is much larger than was thought, if it can be cut.

        Each begins anew: where this one has come to says nothing of what is left (H-80).
        """
        count = self._counting(window)
        counted = 0 if part.is_null else await count(part.low, part.high)
        if counted < SPLIT * seen:
            return False
        parts = min(self._partitions, math.ceil(counted / max(part.estimate, part.page)))
        cut = await divided(count, self._axis, part, parts=parts, origin=self._origin())
        if len(cut) < SPLIT:
            return False
        codec = self._client.codec
        portions = [
            Portion(text_of(one.low), text_of(one.high), codec.encode(payload_of(one)))
            for one in cut
        ]
        return await self._client.run_async(pipelines.split, ctx.claim, portions, codec=codec.name)


def payload_of(part: Partition) -> dict[str, Any]:
    """Write what a job is told that reads a partition."""
    return {"low": written(part.low), "high": written(part.high), "estimate": part.estimate}


def text_of(bound: Any) -> str | None:
    """Write a bound as the store keeps it."""
    return None if bound is None else str(written(bound))
