"""Actions on all jobs that a filter finds: a job of the engine's own does them, some at a time.

The filter and its time are fixed when the action is asked for. An attempt goes on where the one
before it stopped; a job that was acted on before is passed over. Cancel it to stop the rest.
"""

import time
from typing import Final

import msgspec

from milepost.client import Client, caller
from milepost.context import Context
from milepost.declare import Arguments, Definition, Host
from milepost.errors import IllegalMove, Invalid
from milepost.faces import Flow, Wait, faces
from milepost.filters import Term, Value, Where, parse
from milepost.handles import JobHandle
from milepost.job import Job
from milepost.lifecycle import JOB, JobState
from milepost.options import DEFAULTS
from milepost.records import NewJob
from milepost.store import jobs, journal, reruns, search
from milepost.store.driver import Steps

KIND: Final = "jobs.bulk"
QUEUE: Final = "bulk"
"""The queue of such jobs: any worker that serves all queues takes them, and so does the prompt."""
EVERY: Final = Where()
NOT_BULK: Final = Where((Term("kind", (Value(KIND),), negated=True),))
ACTIONS: Final = ("cancel", "rerun", "erase")
BATCH = 100
"""How many jobs are acted on between two looks whether to stop."""
REST_SECONDS = 0.2
"""How long it rests between two such looks, where a rate is set."""
RATE_MOST = 10_000


class BulkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is done to which jobs; the filter is that of the moment at which they were counted."""

    action: str
    where: str
    total: int = 0
    """How many jobs fitted when it was asked for, of those that were counted."""
    counted: bool = True
    """Whether all were: False if there may be more."""
    reason: str = "cancelled"
    fresh: bool = False
    rate: float | None = None
    """How many jobs are acted on in a second at most; None: as many as can be."""


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

    def _order(
        self,
        action: str,
        where: Where,
        *,
        within: Where = EVERY,
        reason: str = "",
        fresh: bool = False,
        rate: float | None = None,
    ) -> Flow[BulkOrder]:
        """Fix a filter at this moment and count its jobs; those `within` the caller's bounds."""
        check_order(action, where, rate)
        frozen = yield from self._client.flow(search.fixed, allowed(action, where & within))
        total, is_whole = yield from self._client.flow(
            search.count, frozen, superseded=superseded(action)
        )
        return BulkOrder(
            action=action,
            where=str(frozen),
            total=total,
            counted=is_whole,
            reason=reason or "cancelled",
            fresh=fresh,
            rate=rate,
        )

    order, order_async = faces(_order)

    def new(self, order: BulkOrder) -> NewJob:
        """Make the job that carries out an order."""
        return Job(self._host, self._definition).new((order,), {})

    def _submit(self, order: BulkOrder) -> Flow[JobHandle[BulkCount]]:
        """Create the job that carries out an order."""
        new = [self.new(order)]
        [job_id] = yield Wait(self._client.create, self._client.create_async, (new,))
        return JobHandle(self._client, job_id, type_=BulkCount)

    submit, submit_async = faces(_submit)

    def _start(
        self,
        action: str,
        where: Where,
        *,
        reason: str = "",
        fresh: bool = False,
        rate: float | None = None,
    ) -> Flow[JobHandle[BulkCount]]:
        """Create the job that acts on all jobs that a filter finds, so many a second at most."""
        order = yield from self._order(action, where, reason=reason, fresh=fresh, rate=rate)
        return (yield from self._submit(order))

    start, start_async = faces(_start)

    def run(self, ctx: Context, asked: BulkOrder) -> BulkCount:
        """Act on the jobs, newest first, some at a time."""
        where = parse(asked.where, stored=True)
        actor = self._client.run(_ordered_by, ctx.id)
        counted = msgspec.convert(ctx.cursor or {}, BulkCount)
        size = BATCH if asked.rate is None else max(1, min(BATCH, int(asked.rate)))
        while True:
            ctx.check()
            began = time.monotonic()
            found = self._client.run(
                search.ids,
                where,
                superseded=superseded(asked.action),
                before=counted.before,
                most=size,
            )
            mine = [job_id for job_id in found if job_id != ctx.id]
            done = _acted(self._client, mine, asked, actor=actor, ctx=ctx)
            counted = BulkCount(
                matched=counted.matched + len(mine), done=counted.done + done, before=found.next
            )
            ctx.save(msgspec.to_builtins(counted))
            share = counted.matched / asked.total if asked.total else 1.0
            ctx.progress(min(1.0, share), f"{counted.matched:,} of {asked.total:,} jobs")
            if found.next is None:
                return counted
            if asked.rate is not None:
                _rest(ctx, until=began + done / asked.rate)


def _rest(ctx: Context, *, until: float) -> None:
    """Wait, and look now and then whether to stop."""
    while (left := until - time.monotonic()) > 0:
        ctx.check()
        time.sleep(min(left, REST_SECONDS))


def check_order(action: str, where: Where, rate: float | None) -> None:
    """Refuse an order that nobody may mean."""
    if action not in ACTIONS:
        raise Invalid(f"action={action!r}: expected one of {', '.join(ACTIONS)}")
    if not where.terms:
        raise Invalid(f"{action} needs a filter with at least one term")
    if rate is not None and not 0 < rate <= RATE_MOST:
        raise Invalid(f"rate={rate:g}: expected more than 0, and {RATE_MOST:,} at most")


def allowed(action: str, where: Where) -> Where:
    """Leave out what an action may not be done to.

    Whoever ordered an action on many jobs had rights that others may not have.
    """
    return where & (NOT_BULK if action == "rerun" else EVERY)


def superseded(action: str) -> bool | None:
    """Leave jobs out that were run again: the newest of a chain speaks for it."""
    return False if action == "rerun" else None


def _ordered_by(job_id: str) -> Steps[str | None]:
    """Name whoever created the job: of an order that is run again, whoever did that."""
    return (yield from journal.history(job_id))[0].actor


def _acted(
    client: Client, ids: list[str], asked: BulkOrder, *, actor: str | None, ctx: Context
) -> int:
    """Act on some jobs in the name of whoever asked; say on how many."""
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


def _cancelled(ids: list[str], *, reason: str, actor: str | None) -> Steps[int]:
    done = 0
    for job_id, state in sorted((yield from jobs.standing(ids))):
        if state not in JOB.terminal:
            now, is_stopping = yield from jobs.cancel(job_id, reason=reason, actor=actor)
            done += is_stopping or now == JobState.CANCELLED
    return done
