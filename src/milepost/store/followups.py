"""Jobs that follow on failures: created by the transaction that makes another one FAILED (H-55)."""

from collections.abc import Mapping, Sequence

import msgspec
import uuid_utils

from milepost.limit import limit_key, split_key
from milepost.records import NewJob
from milepost.store import creation
from milepost.store.driver import Call, Steps

FAILED_ID = "00000000-0000-0000-0000-000000000000"
"""Stands in the arguments of a stored follow-up for the id of the job that failed."""
FAILED_TENANT = "00000000-0000-0000-0000-000000000001"
"""Stands in its limit key for the tenant of that job."""

Kind = tuple[str, int]


def declare(followups: Mapping[Kind, NewJob | None]) -> Steps[None]:
    """Store what follows on failures of these kinds; the program that started last wins."""
    rows = yield Call("followup_list")
    known = {(kind, version): text for kind, version, text in rows}
    for (kind, version), job in sorted(followups.items(), key=lambda item: item[0]):
        row = {"kind": kind, "kind_version": version}
        text = None if job is None else msgspec.json.encode(job).decode()
        if text is None and (kind, version) in known:
            yield Call("followup_forget", row)
        elif text is not None and known.get((kind, version)) != text:
            yield Call("followup_declare", {**row, "template": text})


def create(ids: Sequence[str], *, actor: str | None) -> Steps[None]:
    """Create the follow-ups of those jobs that failed, last in the transaction that ended them."""
    if not ids:
        return
    rows = yield Call("followup_due", {"id": list(ids)})
    new = [_made(*row, actor=actor) for row in rows]
    if new:
        yield from creation.create(new)


def _made(failed_id: str, tenant: str, trace: str | None, job: str, *, actor: str | None) -> NewJob:
    stored = msgspec.json.decode(job, type=NewJob)
    told = {"actor": actor, "tenant": tenant, "trace": trace, "parent_id": failed_id}
    return msgspec.structs.replace(
        stored,
        id=str(uuid_utils.uuid7()),
        payload=(stored.payload or b"").replace(FAILED_ID.encode(), failed_id.encode()),
        template=msgspec.structs.replace(stored.template, **told),
        key=None if stored.key is None else _key(stored.key, failed_id, tenant),
    )


def _key(stored: str, failed_id: str, tenant: str) -> str:
    rule, key = split_key(stored)
    return limit_key(rule, key.replace(FAILED_ID, failed_id).replace(FAILED_TENANT, tenant))
