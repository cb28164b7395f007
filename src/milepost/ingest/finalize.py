"""The last job of a run: it checks that all is consolidated, removes records, and reports.

The watermark itself moves in the transaction that ends the run, and not here.
"""

from functools import partial
from typing import Any

import msgspec

from milepost.context import Context
from milepost.ingest.confirm import Confirmer
from milepost.ingest.declaration import FILLING, Declaration
from milepost.policy import Fail
from milepost.store import pages, quarantine, removals, tables, watermarks
from milepost.store.driver import Call, Steps
from milepost.store.pages import Counts
from milepost.store.pipelines import REMAP
from milepost.store.watermarks import PipelineRunRow
from milepost.telemetry import Log

log = Log("milepost.pipeline")

SOME = 1_000
UNREAD = ("replay", REMAP)
"""Modes of runs that read nothing from the source: their records were identified before, or not."""
FEW = 10
"""So many records may be in quarantine even if their share exceeds the limit."""


class Finalizer:
    """Ends runs of one pipeline."""

    def __init__(self, pipeline: Declaration[Any]) -> None:
        self._pipeline = pipeline
        self.confirmer = Confirmer(pipeline)

    async def finalize(self, ctx: Context) -> dict[str, Any]:
        """Check that every record is consolidated, remove those that are gone, and report."""
        pipeline, client = self._pipeline, self._pipeline.client
        run = await pipeline.owning(pipeline.hold, ctx.claim.run_id)
        await client.run_async(self._fill, run)
        await pipeline.note(ctx, "UpdatingRunMetadata")
        if left := await client.run_async(pages.unfinished, run):
            raise RuntimeError(f"{left} records of run {run.root_id} are not consolidated yet")
        apply = partial(pages.apply_gone, statement=pipeline.target.statement("remove"))
        while await client.run_async(apply, ctx.claim, run):
            pass
        await self._check(run, await client.run_async(pages.counts, run))
        complete = await client.run_async(_is_complete, run)
        if complete and run.root_mode in ("full", "incremental"):
            await self._remove(ctx, run)
        counted = await client.run_async(pages.counts, run)
        report = {
            "mode": run.mode,
            "window": list(run.window),
            "complete": complete,
            "counts": msgspec.structs.asdict(counted),
            **await self._behind(run),
        }
        await pipeline.note(ctx, "AdvancingWatermark")
        return report

    def _fill(self, run: PipelineRunRow) -> Steps[None]:
        """Note when the table holds every landed record, whether the run ends well or not."""
        if run.root_mode in FILLING and (yield from _is_complete(run)):
            left = yield from pages.unfinished(run)
            if not left:
                yield from tables.fill(run.pipeline_id, self._pipeline.target.name)

    async def _check(self, run: PipelineRunRow, counted: Counts) -> None:
        """Refuse to end a run with no record identified, or with too many in quarantine."""
        client, limit = self._pipeline.client, self._pipeline.options["quarantine_limit"]
        see = f"see `milepost pipelines quarantine ls {run.pipeline}`"
        if (
            run.root_mode not in UNREAD
            and counted.quarantined
            and await client.run_async(quarantine.none_identified, run)
        ):
            raise Fail(
                f"none of the {counted.fetched} records of this run could be identified: looked "
                f"for {self._pipeline.landing}; {see}"
            )
        # Records that were replayed since then are not there any more.
        held = await client.run_async(quarantine.count_of, run)
        if run.root_mode != "replay" and held > max(FEW, limit * counted.fetched):
            raise Fail(
                f"{held} of {counted.fetched} records are in quarantine, more than "
                f"the limit of {limit:.0%}: {see}. If it is the mapping, fix it, replay the "
                "quarantine and resume the run; if it is the source, start a new one once that is "
                "fixed"
            )

    async def _behind(self, run: PipelineRunRow) -> dict[str, Any]:
        """Count the records that were made with other rules or another mapping, and note it (H-86).

        An incremental run makes none that is: while nothing changes, it need not count.
        """
        client, target = self._pipeline.client, self._pipeline.target
        made_with = self._pipeline.fingerprint.made_with(run.rules_digest)
        known = await client.run_async(watermarks.find, run.pipeline)
        if run.root_mode == "incremental" and (known.made_with, known.behind) == (made_with, 0):
            return {"behind": 0}
        behind = await client.run_async(target.behind, run.pipeline_id, made_with)
        note = partial(watermarks.note_made, made_with=made_with, behind=behind)
        await client.run_async(note, run)
        if run.root_mode != REMAP or not behind:
            return {"behind": behind}
        # Records of which nothing is landed: only the source can make them anew.
        unlanded = await client.run_async(target.unlanded, run.pipeline_id)
        if unlanded:
            log.warning(
                "records stay as they were: their landed payloads have been erased",
                pipeline=run.pipeline,
                records=unlanded,
                hint="a full run reads them from the source again",
            )
        return {"behind": behind, "unlanded": unlanded}

    # Removal

    async def _remove(self, ctx: Context, run: PipelineRunRow) -> None:
        """Remove records that a full run did not see, unless they were there all the same."""
        client, limit = self._pipeline.client, self._pipeline.options["removal_limit"]
        if run.root_mode == "full":
            if await client.run_async(removals.is_dismissed, run):
                return
            # Once: records that were found to be there since then would be marked again.
            if await self.confirmer.cursor(ctx, run) is None:
                await self._mark_missing(ctx, run)
        found = await client.run_async(removals.missing, run.pipeline_id)
        # When the source does not stand still for that, the next run tries again (H-81).
        if not found.marked or not await self.confirmer.confirm(ctx, run):
            return
        found = await client.run_async(removals.missing, run.pipeline_id)
        too_many = found.exceeds(limit)
        statement = self._pipeline.target.statement("remove")
        remove = partial(removals.remove, statement=statement, most=SOME, all_=not too_many)
        while await client.run_async(remove, ctx.claim, run):
            pass
        if too_many and run.mode == "full":
            raise Fail(
                f"{found.waiting} of {found.live} records are not in the source any more, more "
                f"than the limit of {limit:.0%}: nothing was removed; decide by "
                f"`milepost pipelines removals confirm {run.pipeline}` or `dismiss`, and resume "
                "the run"
            )

    async def _mark_missing(self, ctx: Context, run: PipelineRunRow) -> None:
        after: str | None = ""
        while after is not None:
            mark = partial(removals.mark_missing, after=after, most=SOME)
            after = await self._pipeline.client.run_async(mark, ctx.claim, run)


def _is_complete(run: PipelineRunRow) -> Steps[bool]:
    """Tell whether every range that a run was going to read was read."""
    [(still_open,)] = yield Call("reading_open", run.own)
    return bool(not still_open)
