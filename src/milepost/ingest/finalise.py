"""The end of a run: everything is consolidated, what is gone is removed, and the report is written.

The watermark itself moves in the transaction that ends the run, and not here.
"""

from functools import partial
from typing import Any

import msgspec

from milepost.client import Client
from milepost.context import Context
from milepost.ingest.mapping import Fingerprint
from milepost.ingest.recent import Recent
from milepost.ingest.source import Identity
from milepost.ingest.target import Target
from milepost.policy import Fail
from milepost.store import pages, removals, watermarks
from milepost.store.driver import Call, Steps
from milepost.store.pipelines import REMAP
from milepost.store.watermarks import Mark, PipelineRunRow
from milepost.telemetry import Log

log = Log("milepost.pipeline")

SOME = 1_000
UNREAD = ("replay", REMAP)
"""Runs that read nothing from the source: records they map again were identified once, or not."""
FEW = 10
"""So many records may be in quarantine, whatever share they are."""


class Counts(msgspec.Struct, frozen=True):
    """What a run has read, and what became of it: fetched is new, changed and unchanged."""

    counted: int = 0
    fetched: int = 0
    new: int = 0
    changed: int = 0
    unchanged: int = 0
    quarantined: int = 0
    removed: int = 0
    pages: int = 0
    pending: int = 0
    duplicates: int = 0
    completions: int = 0

    def __getitem__(self, name: str) -> int:
        """Give one by its name, as from a dict."""
        if name not in self.__struct_fields__:
            raise KeyError(name)
        value: int = getattr(self, name)
        return value

    def keys(self) -> tuple[str, ...]:
        """Name them, so that `dict(run.counts)` works."""
        return self.__struct_fields__


def counts(row: PipelineRunRow) -> Steps[Counts]:
    """Count what a run has read, with the runs that it goes on from."""
    found = yield from pages.counts(row.run_id, row.root_id, row.pipeline_id)
    return Counts(counted=row.counted or 0, **found)


class Finaliser:
    """Ends runs of one pipeline."""

    def __init__(
        self,
        client: Client,
        target: Target,
        recent: Recent,
        identity: Identity,
        *,
        fingerprint: Fingerprint,
        quarantine_limit: float,
        removal_limit: float,
    ) -> None:
        self._client = client
        self._target = target
        self._recent = recent
        self._identity = identity
        self._fingerprint = fingerprint
        self._quarantine_limit = quarantine_limit
        self._removal_limit = removal_limit

    async def finalise(self, ctx: Context, row: PipelineRunRow) -> dict[str, Any]:
        """Check that nothing is left, remove what is gone, and report."""
        left = await self._client.run_async(pages.unfinished, row.root_id)
        if left:
            raise RuntimeError(f"{left} records of run {row.root_id} are not consolidated yet")
        apply = partial(pages.apply_gone, statement=self._target.statement("remove"))
        while await self._client.run_async(apply, ctx.claim, row):
            pass
        counted = await self._client.run_async(counts, row)
        await self._check_identified(row, counted)
        await self._check_quarantine(row, counted)
        complete = await self._client.run_async(is_complete, row)
        await self._remove(ctx, row, is_complete=complete)
        counted = await self._client.run_async(counts, row)
        told = await self._behind(row)
        mark = Mark(row.measure)
        shown = [None if at is None else mark.shown(at) for at in (row.start_mark, row.end_mark)]
        return {
            "mode": row.mode,
            "window": shown,
            "complete": complete,
            "counts": msgspec.structs.asdict(counted),
            **told,
        }

    async def _check_identified(self, row: PipelineRunRow, counted: Counts) -> None:
        """Refuse to end a run none of whose records could be told apart."""
        if row.root_mode in UNREAD or not counted.quarantined:
            return
        if await self._client.run_async(removals.none_identified, row):
            raise Fail(
                f"none of the {counted.fetched} records of this run could be identified: looked "
                f"for {self._identity}; see `milepost pipelines quarantine ls {row.pipeline}`"
            )

    async def _check_quarantine(self, row: PipelineRunRow, counted: Counts) -> None:
        """Refuse to end a run with too many in quarantine; what was replayed since is not there."""
        most = max(FEW, self._quarantine_limit * counted.fetched)
        held = await self._client.run_async(removals.rejected, row.root_id)
        if row.root_mode != "replay" and held > most:
            raise Fail(
                f"{held} of {counted.fetched} records are in quarantine, more than "
                f"the limit of {self._quarantine_limit:.0%}: see `milepost pipelines quarantine ls "
                f"{row.pipeline}`. If it is the mapping, fix it, replay the quarantine and resume "
                "the run; if it is the source, start a new one once that is fixed"
            )

    async def _behind(self, row: PipelineRunRow) -> dict[str, Any]:
        """Count the records that were made with other rules or another mapping, and note it (H-86).

        An incremental run makes none that is: while nothing changes, it need not count.
        """
        made_with = self._fingerprint.made_with(row.rules_digest)
        known = await self._client.run_async(watermarks.find, row.pipeline)
        if row.root_mode == "incremental" and (known.made_with, known.behind) == (made_with, 0):
            return {"behind": 0}
        behind = await self._client.run_async(self._target.behind, row.pipeline_id, made_with)
        note = partial(watermarks.note_made, made_with=made_with, behind=behind)
        await self._client.run_async(note, row)
        if row.root_mode == REMAP and behind:
            return {"behind": behind, "unlanded": await self._unlanded(row)}
        return {"behind": behind}

    async def _unlanded(self, row: PipelineRunRow) -> int:
        """Say of how many records nothing is landed: nobody but the source can make them anew."""
        count = await self._client.run_async(self._target.unlanded, row.pipeline_id)
        if count:
            log.warning(
                "records stay as they were: what was landed of them has been erased",
                pipeline=row.pipeline,
                records=count,
                hint="a full run reads them from the source again",
            )
        return count

    # Removal

    async def _remove(self, ctx: Context, row: PipelineRunRow, *, is_complete: bool) -> None:
        """Remove what a complete full run did not see, unless it was there all the same."""
        if not is_complete or row.root_mode not in ("full", "incremental"):
            return
        if row.root_mode == "full":
            if await self._client.run_async(removals.is_dismissed, row):
                return
            # Once: records that were found to be there since then would be marked again.
            if not await self._recent.has_begun(ctx, row):
                await self._mark_missing(ctx, row)
        if not await self._is_sure(ctx, row):
            return
        found = await self._client.run_async(removals.missing, row.pipeline_id)
        too_many = found.exceeds(self._removal_limit)
        statement = self._target.statement("remove")
        remove = partial(removals.remove, statement=statement, most=SOME, all_=not too_many)
        while await self._client.run_async(remove, ctx.claim, row):
            pass
        if too_many and row.mode == "full":
            raise Fail(
                f"{found.waiting} of {found.live} records are not in the source any more, more "
                f"than the limit of {self._removal_limit:.0%}: nothing was removed; decide by "
                f"`milepost pipelines removals confirm {row.pipeline}` or `dismiss`, and resume "
                "the run"
            )

    async def _mark_missing(self, ctx: Context, row: PipelineRunRow) -> None:
        after: str | None = ""
        while after is not None:
            after = await self._client.run_async(
                removals.mark_missing, ctx.claim, row, after=after, most=SOME
            )

    async def _is_sure(self, ctx: Context, row: PipelineRunRow) -> bool:
        """Tell whether what is marked is gone: what changed lately is not, the next run sees it.

        When the source does not stand still for that, the next run tries again (H-81).
        """
        found = await self._client.run_async(removals.missing, row.pipeline_id)
        return bool(found.marked) and await self._recent.confirmed(ctx, row)


def is_complete(row: PipelineRunRow) -> Steps[bool]:
    """Tell whether all that a run set out to read was read."""
    [(still_open,)] = yield Call("reading_open", {"root_id": row.root_id})
    return bool(not still_open)
