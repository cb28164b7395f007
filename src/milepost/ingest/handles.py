"""Handles of a pipeline's runs and of its quarantine."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.batch.handles import BATCH, RunHandle, resuming
from milepost.client import Client, caller
from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.faces import Flow, faces
from milepost.ingest.keys import read
from milepost.ingest.source import Window
from milepost.lifecycle import JobState
from milepost.records import NewJob, NewRun
from milepost.store import jobs, pages, pipelines, quarantine, removals, runs, watermarks
from milepost.store.driver import Steps
from milepost.store.instants import instant
from milepost.store.pages import Counts
from milepost.store.quarantine import QuarantinedRecord
from milepost.store.removals import RemovalDecision
from milepost.store.watermarks import PipelineRunRow
from milepost.subjects import check_page

if TYPE_CHECKING:
    from milepost.ingest.pipeline import Pipeline

CONSOLIDATE = 2
FETCH = 1


class PartitionState(msgspec.Struct, frozen=True):
    """One partition of a run: its bounds, and how far it is."""

    ordinal: int
    job_id: str
    state: JobState
    low: Any
    high: Any
    pages: int
    records: int
    progress: float | None
    error: str | None
    closed_at: datetime | None
    duplicates: int = 0
    completions: int = 0


class PipelineRun(RunHandle):
    """A run of a pipeline as it stood when it was last read; `refresh()` reads again."""

    def __init__(
        self, client: Client, run_id: str, *, pipeline: "Pipeline[Any] | None" = None
    ) -> None:
        super().__init__(client, run_id)
        self._pipeline = pipeline

    @property
    def about(self) -> PipelineRunRow:
        """The pipeline's row of the run: its window, its mode, its plan; read now."""
        return self._client.run(pipelines.get, self.id)

    @property
    def mode(self) -> str:
        """Which kind of run it is: full, incremental, backfill, forced, retry, replay or remap."""
        return self.record.mode or "full"

    @property
    def window(self) -> Window:
        """The window that it reads; the end is fixed before the first read. Read now."""
        return Window(*self.about.window)

    @property
    def counts(self) -> Counts:
        """The counts of its records, with those of the runs it goes on from; read now."""
        return self._client.run(pages.counts, self.about)

    async def counts_async(self) -> Counts:
        """Read the counts of its records, with those of the runs it goes on from."""
        row = await self._client.run_async(pipelines.get, self.id)
        return await self._client.run_async(pages.counts, row)

    @property
    def partitions(self) -> list[PartitionState]:
        """Its partitions in order, read now."""
        return self._client.run(_partitions, self.id)

    async def partitions_async(self) -> list[PartitionState]:
        """Read its partitions in order."""
        return await self._client.run_async(_partitions, self.id)

    # Going on

    def _resume(self) -> Flow["PipelineRun"]:
        """Go on with a run that failed or was cancelled, as a new one with the same bounds."""
        return self._made(self.resuming())

    resume, resume_async = faces(_resume)

    def resuming(self) -> Callable[[], Steps[str]]:
        """Answer with the operation that makes the run which goes on with this one."""

        def resumed() -> Steps[str]:
            new = resuming((yield from runs.get(self.id)))
            yield from pipelines.resume(self.id, new, actor=caller().actor)
            return new.id

        return resumed

    def _force(self) -> Flow["PipelineRun"]:
        """Publish the records of a failed run, as a linked run; its gap stays open."""
        return self._made(self.forcing())

    force, force_async = faces(_force)

    def forcing(self) -> Callable[[], Steps[str]]:
        """Answer with the operation that makes the run which publishes the records of this one."""
        pipeline = self._declared("force")
        new = pipeline.new_run(rerun_of=self.id)
        return lambda: self._linked(new, pipeline.consolidating(new.id), mode="forced")

    def _retry(self, partition: int) -> Flow["PipelineRun"]:
        """Read one failed partition again, from its cursor, as a linked run."""
        return self._made(self.retrying(partition))

    retry, retry_async = faces(_retry)

    def retrying(self, partition: int) -> Callable[[], Steps[str]]:
        """Answer with the operation that makes the run which reads one partition again."""
        pipeline = self._declared("retry")
        new = pipeline.new_run(rerun_of=self.id)

        def retried() -> Steps[str]:
            found = yield from _failed(self.id, partition)
            again = pipeline.job(FETCH, new.id, None, partition, rerun_of=found)
            again = msgspec.structs.replace(again, payload=(yield from jobs.get(found)).payload)
            work = [again, *pipeline.consolidating(new.id)]
            return (yield from self._linked(new, work, mode="retry"))

        return retried

    def _linked(self, new: NewRun, work: Sequence[NewJob], *, mode: str) -> Steps[str]:
        """Create a linked run and let it begin, all or nothing."""
        steps = self._declared(mode).steps(first=FETCH)
        yield from pipelines.link(self.id, new, steps, work, mode=mode)
        yield from runs.seal(new.id, actor=caller().actor)
        return new.id

    def _made(self, operation: Callable[[], Steps[str]]) -> Flow["PipelineRun"]:
        run_id = yield from self._client.flow(operation)
        return PipelineRun(self._client, run_id, pipeline=self._pipeline)

    def _declared(self, what: str) -> "Pipeline[Any]":
        if self._pipeline is None:
            raise Invalid(f"{what} needs the declared pipeline: pipeline.run(run_id).{what}(…)")
        return self._pipeline


def _failed(run_id: str, ordinal: int) -> Steps[str]:
    """Find the job of a partition that failed, or say why it is not read again."""
    found = [part for part in (yield from _partitions(run_id)) if part.ordinal == ordinal]
    if not found:
        raise NotFound(f"run {run_id} has no partition {ordinal}")
    if found[0].state not in (JobState.FAILED, JobState.CANCELLED):
        raise IllegalMove(f"partition {ordinal} is {found[0].state}; only a failed one is read")
    return found[0].job_id


def _partitions(run_id: str) -> Steps[list[PartitionState]]:
    row = yield from pipelines.get(run_id)
    rows = yield from pipelines.partitions(run_id, row.root_id)
    return [_partition(one) for one in rows]


def _partition(row: Sequence[Any]) -> PartitionState:
    ordinal, job_id, state, cause, error, saves, records, share, low, high, closed, _, *told = row
    text = msgspec.json.decode(error).get("message") if error else cause
    return PartitionState(
        ordinal,
        job_id,
        JobState(state),
        _bound(low),
        _bound(high),
        saves,
        records,
        share,
        text,
        None if closed is None else instant(closed),
        *told,
    )


def _bound(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return read(text)


class Quarantine:
    """The records of a pipeline that could not be used: kept with payload and reason."""

    def __init__(
        self, client: Client, name: str, *, pipeline: "Pipeline[Any] | None" = None
    ) -> None:
        self._client = client
        self._name = name
        self._pipeline = pipeline

    def __len__(self) -> int:
        return self._client.run(self._counted)

    def __iter__(self) -> Iterator[QuarantinedRecord]:
        after = ""
        while page := self.list(after=after, limit=BATCH):
            yield from page
            after = page[-1].key

    def _list(self, *, after: str = "", limit: int = 100) -> Flow[Sequence[QuarantinedRecord]]:
        """Return a page, in the order of the keys; the next one comes `after` its last."""
        return self._client.flow(self._page, after=after, most=check_page(limit))

    list, list_async = faces(_list)

    def _page(self, *, after: str, most: int) -> Steps[Sequence[QuarantinedRecord]]:
        try:
            row = yield from watermarks.find(self._name)
        except NotFound:
            return []
        return (yield from quarantine.page(row.id, after=after, most=most))

    def _counted(self) -> Steps[int]:
        try:
            row = yield from watermarks.find(self._name)
        except NotFound:
            return 0
        return (yield from quarantine.count(row.id))

    def _replay(self, keys: Sequence[str] | None = None) -> Flow[PipelineRun]:
        """Map these records again, or all that are here, as a run of their own."""
        run_id = yield from self._client.flow(self.replaying(keys))
        return PipelineRun(self._client, run_id, pipeline=self._pipeline)

    replay, replay_async = faces(_replay)

    def replaying(self, keys: Sequence[str] | None = None) -> Callable[[], Steps[str]]:
        """Answer with the operation that makes the run which maps these records again."""
        pipeline, name = self._pipeline, self._name
        if pipeline is None:
            raise Invalid("replay needs the declared pipeline: pipeline.quarantine.replay()")
        new = pipeline.new_run()

        def replayed() -> Steps[str]:
            row = yield from watermarks.find(name)
            last = yield from pipelines.latest_ruled(row.id)
            if last is None:
                raise NotFound(f"pipeline {name!r} has no run that was planned")
            held = yield from _kept(row.id)
            chosen = held if keys is None else list(dict.fromkeys(keys))
            if not chosen:
                raise IllegalMove(f"the quarantine of pipeline {name!r} is empty")
            if absent := sorted(set(chosen).difference(held)):
                # It was corrected, or removed, and a replay would bring it back.
                raise NotFound(
                    f"{', '.join(map(repr, absent[:5]))} of pipeline {name!r} is not in quarantine;"
                    f" see `milepost pipelines quarantine ls {name}`"
                )
            made = msgspec.structs.replace(new, rerun_of=last)
            work = pipeline.consolidating(new.id)
            yield from _replay(last, made, pipeline.steps(first=FETCH), work, chosen)
            return new.id

        return replayed


class Removals:
    """Records that a full run did not see, too many for its limit: an operator decides."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self._name = name

    def __len__(self) -> int:
        return self._client.run(self._counted)

    def list(self, *, after: str = "", limit: int = 100) -> Sequence[str]:
        """Return keys that wait for a decision, in their order; the next come `after` the last."""
        most = check_page(limit)
        row = self._client.run(watermarks.find, self._name)
        return self._client.run(removals.pending, row.id, after=after, most=most)

    @property
    def decisions(self) -> Sequence[RemovalDecision]:
        """The decisions so far, each with its actor and reason; read now."""
        return self._client.run(self._decisions)

    def confirm(self, *, reason: str) -> int:
        """Let the next run remove them; answer with how many they are."""
        return self._client.run(self.deciding(removals.CONFIRMED, reason=reason))

    def dismiss(self, *, reason: str) -> int:
        """Keep them until a full run misses them again; answer with how many they are."""
        return self._client.run(self.deciding(removals.DISMISSED, reason=reason))

    def deciding(self, decision: str, *, reason: str) -> Callable[[], Steps[int]]:
        """Answer with the operation that records a decision."""
        check_text(reason, what="reason", most=PROSE_BYTES)
        actor = caller().actor

        def decided() -> Steps[int]:
            row = yield from watermarks.find(self._name)
            count = yield from removals.decide(row.id, decision, actor=actor, reason=reason)
            if not count:
                raise IllegalMove(f"pipeline {self._name!r} has no removal to be decided")
            return count

        return decided

    def _counted(self) -> Steps[int]:
        row = yield from watermarks.find(self._name)
        found = yield from removals.missing(row.id)
        return found.waiting

    def _decisions(self) -> Steps[Sequence[RemovalDecision]]:
        row = yield from watermarks.find(self._name)
        return (yield from removals.decisions(row.id))


def _kept(pipeline_id: int) -> Steps[list[str]]:
    """Read the keys of everything in quarantine."""
    keys: list[str] = []
    while page := (
        yield from quarantine.page(pipeline_id, after=keys[-1] if keys else "", most=BATCH)
    ):
        keys += [one.key for one in page]
    return keys


def _replay(
    old_id: str, new: Any, steps: Any, work: Sequence[NewJob], keys: Sequence[str]
) -> Steps[None]:
    """Make a run whose only pages are records in quarantine."""
    yield from pipelines.link(old_id, new, steps, work, mode="replay", own_root=True)
    yield from pages.add_listed(new.id, work[0].id, keys, ordinal=-1, size=BATCH)
    yield from runs.seal(new.id, actor=caller().actor)
