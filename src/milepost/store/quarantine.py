"""Quarantine: records of a pipeline that could not be used, kept with payload and reason."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.watermarks import PipelineRunRow


class Rejection(msgspec.Struct, frozen=True):
    """A record that cannot be used, and why."""

    key: str
    version: int
    payload: bytes
    type: str
    reason: str


class QuarantinedRecord(msgspec.Struct, frozen=True):
    """A record in quarantine."""

    key: str
    run_id: str
    version: int
    type: str
    reason: str
    payload: bytes
    at: datetime


_record = reader(QuarantinedRecord)


def update(run: PipelineRunRow, keys: list[str], rejected: Sequence[Rejection]) -> Steps[None]:
    """Keep the rejected records; those kept before are resolved: used now, or kept anew."""
    if rejected:
        names = Rejection.__struct_fields__
        columns = {name: [getattr(one, name) for one in rejected] for name in names}
        yield Call("quarantine_add", {**run.own, **columns})
    if (yield from count(run.pipeline_id)):
        yield from release(run, keys, rejected=[one.key for one in rejected])


def release(
    run: PipelineRunRow, keys: Sequence[str], *, rejected: Sequence[str] = ()
) -> Steps[list[str]]:
    """Let records leave the quarantine, except those that this run rejects; answer their keys."""
    given = {**run.own, "key": list(keys), "rejected": list(rejected)}
    return [row[0] for row in (yield Call("quarantine_resolve", given))]


def count(pipeline_id: int) -> Steps[int]:
    """Count the records in quarantine."""
    [(found,)] = yield Call("quarantine_count", {"pipeline_id": pipeline_id})
    return int(found)


def page(
    pipeline_id: int, *, after: str = "", most: int = 100
) -> Steps[Sequence[QuarantinedRecord]]:
    """Read a page of the records in quarantine, in the order of the keys."""
    given = {"pipeline_id": pipeline_id, "after": after, "most": most}
    return [_record(row) for row in (yield Call("quarantine_list", given))]


def count_of(run: PipelineRunRow) -> Steps[int]:
    """Count the records that a run put into quarantine and nobody has fixed since."""
    [(found,)] = yield Call("run_unresolved", run.own)
    return int(found)


def none_identified(run: PipelineRunRow) -> Steps[bool]:
    """Tell whether a run read records and found the key of none: then each has a made-up one."""
    [(keyless, keyed)] = yield Call("run_identified", run.own)
    return bool(keyless and not keyed)
