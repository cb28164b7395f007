"""How jobs come into being: one, many, held, one per unique key, or as a step has it pinned."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import uuid_utils

from milepost.errors import IllegalMove, LeaseLost, QueueFull
from milepost.lifecycle import JobState
from milepost.records import NewJob
from milepost.store.driver import Call, Rows, Steps
from milepost.store.instants import instant
from milepost.store.phrases import some

UNIQUE_TRIES = 100
"""Each that fails is a submit of another's that has succeeded meanwhile."""
ROW_SECONDS = 0.005
"""How much longer a load may take for each of its rows."""
BYTES_A_SECOND = 1024**2


class Child(msgspec.Struct, frozen=True):
    """A job of a step about to be created; everything else is pinned on the step."""

    run_id: str
    step: int
    parent_id: str | None = None
    ordinal: int = 0
    codec: str = "json"
    payload: bytes | None = None
    limit_key: str | None = None


def refuse_full(jobs: Sequence[NewJob], bounds: Mapping[str, int]) -> Steps[None]:
    """Raise `QueueFull` if the jobs do not fit into their queues; those that wait to start do.

    Nothing is locked: submits at the same moment may exceed a bound together.
    """
    wanted: dict[str, list[NewJob]] = {}
    for job in jobs:
        state, conflict = job.template.state, job.on_conflict
        # One that replaces another starts when that one would have: it may be now.
        if state == JobState.QUEUED or (state == JobState.WAITING and conflict == "replace"):
            wanted.setdefault(job.template.queue, []).append(job)
    for name in sorted(bounds.keys() & wanted.keys()):
        left = yield from room(name, bounds[name])
        if len(wanted[name]) > left:
            count = yield from _count_new(wanted[name])
            _check_room(name, count, left, bounds[name])


def refuse_more(counts: Mapping[str, int], bounds: Mapping[str, int]) -> Steps[None]:
    """Raise `QueueFull` if so many more jobs do not fit into their queues."""
    for name in sorted(bounds.keys() & counts.keys()):
        left = yield from room(name, bounds[name])
        _check_room(name, counts[name], left, bounds[name])


def room(name: str, most: int) -> Steps[int]:
    """Tell how many more jobs may wait in a queue that has a bound."""
    [(waiting,)] = yield Call("queue_depth", {"name": name, "most": most})
    return most - int(waiting)


def _check_room(name: str, count: int, left: int, most: int) -> None:
    if count > left:
        raise QueueFull(
            f"queue {name!r} has {some(most - left, 'job')} waiting, of max_waiting={most:,}: "
            f"{count:,} more {'does' if count == 1 else 'do'} not fit; submit later, add workers, "
            "or raise max_waiting",
            queue=name,
        )


def _count_new(jobs: Sequence[NewJob]) -> Steps[int]:
    """Count the jobs that would be in line: a unique key that is taken answers with its job."""
    count = sum(job.unique_key is None for job in jobs)
    by_key = {_key(job): job for job in jobs if job.unique_key is not None}
    for key in sorted(by_key):
        count += yield from _adds_one(by_key[key])
    return count


def _adds_one(job: NewJob) -> Steps[bool]:
    """Tell whether a job with a unique key would make its queue longer."""
    is_due = job.template.state == JobState.QUEUED
    if job.unique_us is not None:
        held = yield Call("unique_held", {**_place(job), "for_us": job.unique_us})
        if held:
            return False
    rows = yield from _live(job)
    if not rows or not rows[0][3] or job.on_conflict == "keep":
        return is_due and not rows
    _, queue, state, _ = rows[0]
    if job.on_conflict == "replace" and state != JobState.CREATED:
        is_due = state != JobState.WAITING  # at the time of the one that it replaces
    stands = queue == job.template.queue and state in (JobState.QUEUED, JobState.READY)
    return is_due and not stands


def live(job: NewJob) -> Steps[list[str]]:
    """Find the job with the same unique key that has not ended: none, or one."""
    return [row[0] for row in (yield from _live(job))]


def _live(job: NewJob) -> Steps[Rows]:
    tenant, kind, key = _key(job)
    return (yield Call("job_live_by_key", {"tenant": tenant, "kind": kind, "unique_key": key}))


def create(jobs: Sequence[NewJob]) -> Steps[list[str]]:
    """Store jobs; answer with their ids, or for a taken unique key with its live job's id."""
    ids: dict[str, str] = {}
    plain = [job for job in jobs if job.unique_key is None]
    groups = [list(group) for _, group in groupby(plain, key=lambda job: job.template)]
    for rows in groups:
        yield Call(
            "job_create",
            {
                **msgspec.structs.asdict(rows[0].template),
                "id": [job.id for job in rows],
                "payload": [job.payload for job in rows],
                "ordinal": [job.ordinal for job in rows],
                "limit_key": [job.key or job.template.limit_key for job in rows],
            },
            alone=len(groups) == 1 and len(plain) == len(jobs),
            seconds=_seconds(rows),
        )
    # In the order of their keys, so that two bulk submits cannot wait for each other.
    for job in sorted((job for job in jobs if job.unique_key is not None), key=_key):
        ids[job.id] = yield from _create_unique(job)
    return [ids.get(job.id, job.id) for job in jobs]


def _seconds(rows: Sequence[NewJob]) -> float:
    """Tell how much longer than others a load may take."""
    size = sum(len(job.payload) for job in rows if job.payload is not None)
    return len(rows) * ROW_SECONDS + size / BYTES_A_SECOND


def _key(job: NewJob) -> tuple[str, str, str]:
    return (job.template.tenant, job.template.kind, job.unique_key or "")


def _place(job: NewJob) -> dict[str, str]:
    """Name a key that stays taken for a while; names may hold spaces, so the first is measured."""
    tenant, kind, key = _key(job)
    return {"scope": f"unique {len(tenant)} {tenant} {kind}", "key": key}


def _create_unique(job: NewJob) -> Steps[str]:
    if job.unique_us is None:
        return (yield from _create_or_find(job))
    place = _place(job)
    taken = {**place, "fingerprint": job.id, "for_us": job.unique_us}
    while not (yield Call("unique_take", taken)):
        # Others may have submitted with that key, and for no while.
        if there := (yield from live(job)):
            return there[0]
        # A new statement sees the rival's commit; it may have been pruned since.
        if found := (yield Call("idempotency_get", place)):
            return str(found[0][0])
    job_id = yield from _create_or_find(job)
    if job_id != job.id:
        yield Call("unique_keep", {**place, "fingerprint": job_id})
    return job_id


def _create_or_find(job: NewJob) -> Steps[str]:
    """Create the job, or find the live one with its key; one that never ran may be replaced."""
    parameters = {
        **msgspec.structs.asdict(job.template),
        "id": job.id,
        "payload": job.payload,
        "ordinal": job.ordinal,
        "unique_key": job.unique_key,
        "limit_key": job.key or job.template.limit_key,
        "reason": f"replaced by {job.id}",
        "queued_seq": None,
    }
    for _ in range(UNIQUE_TRIES):
        if (yield Call("job_create_unique", parameters)):
            return job.id
        if job.on_conflict != "keep" and (gone := (yield Call("job_replace", parameters))):
            if job.on_conflict == "replace":
                _, due_at, was_held, place = gone[0]
                parameters["queued_seq"] = place
                parameters.update({} if was_held else _at_its_time(job, due_at))
            continue
        # A new statement sees the commit of the rival; that job may have ended since.
        for rival, _, _, may_go in (yield Call("job_live_by_key", parameters)):
            if job.on_conflict == "keep" or not may_go:
                return str(rival)
    raise LeaseLost(f"unique key {job.unique_key!r} changed hands too often; submit again")


def _at_its_time(job: NewJob, due_at: Any) -> dict[str, Any]:
    """Choose the start of a job that takes another's place: when that one would have started."""
    if job.template.state == JobState.CREATED:
        return {}
    if due_at is None:
        return {"state": JobState.QUEUED.value, "due_at": None, "delay_us": None}
    return {"state": JobState.WAITING.value, "due_at": instant(due_at), "delay_us": None}


def in_steps(children: Sequence[Child], *, actor: str | None) -> Steps[None]:
    """Create jobs of steps: gated, sleeping or queued as each step stands now."""
    if not children:
        return
    rows = [msgspec.structs.astuple(child) for child in children]
    columns = dict(zip(Child.__struct_fields__, map(list, zip(*rows, strict=True)), strict=True))
    ids = [str(uuid_utils.uuid7()) for _ in children]
    parameters = {"id": ids, **columns, "actor": actor}
    yield Call("job_create_in_steps", parameters, seconds=len(ids) * ROW_SECONDS)


def submit(ids: Sequence[str], *, actor: str | None) -> Steps[set[str]]:
    """Release held jobs; answer with those that were held.

    One that was submitted before stays as it is; one that will never run raises `IllegalMove`.
    """
    parameters = {"id": list(ids), "actor": actor}
    rows = yield Call("job_submit", parameters, seconds=len(ids) * ROW_SECONDS)
    held = {row[0] for row in rows}
    if others := sorted(set(ids) - held):
        for job_id, state in (yield Call("job_standing", {"id": others})):
            if state in (JobState.FAILED, JobState.CANCELLED):
                raise IllegalMove(
                    f"job {job_id} is {state} and cannot be submitted: a held job ends after "
                    "hold_limit, or when it is cancelled; submit a new one"
                )
    return held
