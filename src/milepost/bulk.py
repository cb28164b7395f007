"""Actions on all jobs that a filter finds: a job of the engine's own does them, some at a time.

The filter and its time are fixed when the action is asked for. An attempt goes on where the one
before it stopped; a job that was acted on before is passed over. Cancel it to stop the rest.
"""

from typing import Final

import msgspec

from milepost.client import Client, caller
from milepost.context import Context
from milepost.declare import Arguments, Definition, Host
from milepost.errors import IllegalMove, Invalid
from milepost.faces import Flow, Wait, faces
from milepost.filters import Where, parse
from milepost.handles import JobHandle
from milepost.job import Job
from milepost.lifecycle import JOB, JobState
from milepost.options import DEFAULTS
from milepost.records import NewJob
from milepost.store import jobs, reruns, search
from milepost.store.driver import Steps

KIND: Final = "jobs.bulk"
QUEUE: Final = "bulk"
"""The queue of such jobs: any worker that serves all queues takes them, and so does the prompt."""
ACTIONS: Final = ("cancel", "rerun", "erase")
BATCH = 100
"""How many jobs are acted on between two looks whether to stop."""


class BulkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to the jobs, and in whose name."""

    action: str
    where: str
    actor: str
    total: int = 0
    """How many jobs fitted when it was asked for, of those that were counted."""
    reason: str = "cancelled"
    fresh: bool = False


class BulkCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs fitted so far, and how many of them were acted on."""

    matched: int = 0
    done: int = 0
    before: str | None = None


class Bulk:
    """The bulk actions of one app."""

    def __init__(self, host: Host) -> None:
        self._host, self._client = host, host.client
        options = {**DEFAULTS, "queue": QUEUE, "retries": 10}
        self._definition = Definition(
            name=KIND,
            function=self.run,
            arguments=Arguments(self.run, KIND),
            is_async=False,
            options=options,
        )
        host.registry.add(self._definition, own=True)

    def _prepare(
        self, action: str, where: Where, *, actor: str, reason: str = "", fresh: bool = False
    ) -> Flow[NewJob]:
        """Count the jobs that a filter finds, and make the job that acts on them."""
        if action not in ACTIONS:
            raise Invalid(f"action={action!r}: expected one of {', '.join(ACTIONS)}")
        if not where.terms:
            raise Invalid(f"{action} needs a filter with at least one term")
        frozen = yield from self._client.flow(search.fixed, where)
        only = superseded(action)
        total, _ = yield from self._client.flow(search.count, frozen, superseded=only)
        order = BulkOrder(
            action=action,
            where=str(frozen),
            actor=actor,
            total=total,
            reason=reason or "cancelled",
            fresh=fresh,
        )
        return Job(self._host, self._definition).new((order,), {})

    prepare, prepare_async = faces(_prepare)

    def _start(
        self, action: str, where: Where, *, reason: str = "", fresh: bool = False
    ) -> Flow[JobHandle[BulkCount]]:
        """Create the job that acts on all jobs that a filter finds."""
        actor = caller().actor
        new = yield from self._prepare(action, where, actor=actor, reason=reason, fresh=fresh)
        [job_id] = yield Wait(self._client.create, self._client.create_async, ([new],))
        return JobHandle(self._client, job_id, type_=BulkCount)

    start, start_async = faces(_start)

    def run(self, ctx: Context, asked: BulkOrder) -> BulkCount:
        """Act on the jobs, newest first, some at a time."""
        where = parse(asked.where, stored=True)
        counted = msgspec.convert(ctx.cursor or {}, BulkCount)
        while True:
            ctx.check()
            found = self._client.run(
                search.ids,
                where,
                superseded=superseded(asked.action),
                before=counted.before,
                most=BATCH,
            )
            mine = [job_id for job_id in found if job_id != ctx.id]
            done = _acted(self._client, mine, asked, ctx)
            counted = BulkCount(
                matched=counted.matched + len(mine), done=counted.done + done, before=found.next
            )
            ctx.save(msgspec.to_builtins(counted))
            share = counted.matched / asked.total if asked.total else 1.0
            ctx.progress(min(1.0, share), f"{counted.matched:,} of {asked.total:,} jobs")
            if found.next is None:
                return counted


def superseded(action: str) -> bool | None:
    """Leave jobs out that were run again: the newest of a chain speaks for it."""
    return False if action == "rerun" else None


def _acted(client: Client, ids: list[str], asked: BulkOrder, ctx: Context) -> int:
    """Act on some jobs in the name of whoever asked; say on how many."""
    actor = asked.actor
    if asked.action == "cancel":
        return client.run(_cancelled, ids, reason=asked.reason, actor=actor)
    if asked.action == "rerun":
        again = client.run(
            reruns.rerun_many, ids, fresh=asked.fresh, actor=actor, trace=caller().trace
        )
        return len(again)
    erased = 0
    for job_id in ids:
        ctx.check()
        try:
            erased += client.run(jobs.erase, job_id, actor=actor)
        except IllegalMove:  # an open job goes on with its steps
            continue
    return erased


def _cancelled(ids: list[str], *, reason: str, actor: str) -> Steps[int]:
    done = 0
    for job_id, state in sorted((yield from jobs.standing(ids))):
        if state not in JOB.terminal:
            now, is_stopping = yield from jobs.cancel(job_id, reason=reason, actor=actor)
            done += is_stopping or now == JobState.CANCELLED
    return done
