"""Operations on messages and on the channels they go through.

A message is written by the database, with the move that it tells of: the end of a job or a run, or
a gate of a pipeline's run that opens. It is
fenced like a job: each take gives a new fence, and only the newest may record the result.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import itemgetter

import msgspec

from milepost.errors import NotFound
from milepost.outcome import micros
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

VANISHED_SECONDS = 60.0
"""A channel that no running program declared for so long has vanished."""

EVERYONE = "*"
"""The tenant of a channel that carries every tenant's messages."""

LAST = 2**62
LOOK = 500
"""How many of a channel's newest messages are looked at for those that arrived lately."""
CHILDREN_MOST = 10_000


class Message(msgspec.Struct, frozen=True):
    """A final message as it stood when it was read."""

    id: str
    machine: str
    subject_id: str
    seq: int
    n: int
    line: str
    channel: str
    tenant: str
    queue: str
    kind: str
    state: str
    trace: str | None
    fence: int
    attempts: int
    place: int | None
    error: str | None
    created_at: datetime
    due_at: datetime
    delivered_at: datetime | None
    dead_at: datetime | None

    @property
    def stands(self) -> str:
        """Whether it is `waiting`, `delivered` or `dead`."""
        if self.delivered_at is not None:
            return "delivered"
        return "waiting" if self.dead_at is None else "dead"


class Channel(msgspec.Struct, frozen=True):
    """A channel as it stood when it was read."""

    name: str
    kind: str
    target: str | None
    tenant: str | None
    stopped_by: str | None
    reason: str | None
    waiting: int
    dead: int
    stopped_at: datetime | None
    declared: bool

    @property
    def state(self) -> str:
        """Whether messages leave: `active`, `stopped`, or `vanished` (nobody declares it)."""
        if self.stopped_at is not None:
            return "stopped"
        return "active" if self.declared or self.kind == "pull" else "vanished"


class Failure(msgspec.Struct, frozen=True):
    """A delivery that did not succeed: its error, and the attempts that it spends."""

    id: str
    fence: int
    error: str
    delay_us: int = 0
    spent: int = 1


# Channels


def declare(channels: Sequence[Mapping[str, str | None]]) -> Steps[None]:
    """Enter the name, kind, target and tenant of a running program's channels."""
    # In the order of their names, so that two programs cannot wait for each other.
    for channel in sorted(channels, key=itemgetter("name")):
        yield Call("channel_declare", channel)


def tenant(name: str) -> Steps[str | None]:
    """Tell whose a channel is, "" for jobs without a tenant; None while nobody declared it."""
    rows = yield Call("channel_tenant", {"name": name})
    return rows[0][0] if rows else None


def known() -> Steps[list[Channel]]:
    """Read every channel, by name."""
    rows = yield Call("channel_list", {"vanished_us": micros(VANISHED_SECONDS)})
    return [_channel(row) for row in rows]


def stop(name: str, *, reason: str, actor: str) -> Steps[bool]:
    """Let nothing leave through it; False when it was stopped already."""
    yield from _require_channel(name)
    parameters = {"name": name, "reason": reason, "actor": actor}
    return bool((yield Call("channel_stop", parameters)))


def start(name: str) -> Steps[bool]:
    """Let messages leave through it again; False when it was not stopped."""
    yield from _require_channel(name)
    return bool((yield Call("channel_start", {"name": name})))


def _lock_channel(name: str) -> Steps[int | None]:
    """Hold a channel's row until the commit; answer with its last place, None if there is none."""
    for again in (False, True):
        if again:
            yield Call("channel_enter", {"name": name})
        if found := (yield Call("channel_lock", {"name": name})):
            return int(found[0][0])
    return None


def _require_channel(name: str) -> Steps[None]:
    if (yield from _lock_channel(name)) is None:
        there = ", ".join(channel.name for channel in (yield from known())) or "none"
        raise NotFound(f"there is no channel {name!r}; there are: {there}")


# Delivering


def waiting() -> Steps[list[tuple[str, int, float]]]:
    """Tell of each channel how many messages wait, and for how many seconds the oldest."""
    rows = yield Call("outbox_waiting", alone=True)
    return [(channel, count, max(0.0, waited / 1e6)) for channel, count, waited in rows]


def coming(names: Sequence[str]) -> Steps[dict[str, float]]:
    """Tell in how many seconds each channel has something to deliver; stopped ones have nothing."""
    rows = yield Call("outbox_coming", {"name": list(names)}, alone=True)
    return {name: left / 1_000_000 for name, left in rows if left is not None}


def take(
    channel: str, *, most: int, lease_seconds: float, tenant: str = EVERYONE
) -> Steps[list[Message]]:
    """Take a tenant's messages that are due, in order; nobody else may, until the lease is over."""
    where = {"channel": channel, "tenant": tenant}
    rows = yield Call(
        "outbox_take", {**where, "most": most, "lease_us": micros(lease_seconds)}, alone=True
    )
    return sorted((_message(row) for row in rows), key=lambda message: message.n)


def delivered(messages: Sequence[Message]) -> Steps[set[str]]:
    """Record deliveries; answer with the ids of those that were still in the caller's hand."""
    if not messages:
        return set()
    ids, fences = [m.id for m in messages], [m.fence for m in messages]
    rows = yield Call("outbox_delivered", {"id": ids, "fence": fences}, alone=True)
    return {row[0] for row in rows}


def failed(failures: Sequence[Failure], *, most: int) -> Steps[int]:
    """Record failures, dead after so `most`; answer with how many are dead now."""
    dead = 0
    for failure in sorted(failures, key=lambda failure: failure.id):
        rows = yield Call("outbox_failed", {**msgspec.structs.asdict(failure), "most": most})
        dead += sum(row[0] is not None for row in rows)
    return dead


def give_up(*, keep_seconds: float, most: int) -> Steps[int]:
    """Let those die that nobody took in all that time; answer with how many."""
    rows = yield Call("outbox_give_up", {"keep_us": micros(keep_seconds), "most": most})
    return len(rows)


# Pulling


def offer(
    channel: str,
    *,
    after: int,
    most: int,
    tenant: str | None = None,
    queues: str | None = None,
) -> Steps[list[Message]]:
    """Read the messages after a place that nobody acknowledged, and give places to new ones.

    A place is given while the channel's row is held, so a reader that has seen one place will not
    find an earlier one appear behind it, however late a transaction commits.
    """
    last = yield from _lock_channel(channel)
    if last is None:
        return []
    given = yield Call("outbox_place", {"channel": channel, "last": last, "most": most})
    if given:
        yield Call("channel_places", {"name": channel, "places": last + len(given)})
    where = {"channel": channel, "after": after, "most": most}
    rows = yield Call("outbox_offered", {**where, "tenant": tenant, "queues": queues})
    return [_message(row) for row in rows]


def acknowledge(
    channel: str,
    *,
    ids: Sequence[str] | None = None,
    place: int = 0,
    tenant: str | None = None,
    queues: str | None = None,
) -> Steps[list[str]]:
    """Record that these arrived, or all up to a place; answer with those that were new."""
    where = {"channel": channel, "tenant": tenant, "queues": queues}
    if ids is None:
        rows = yield Call("outbox_ack_upto", {**where, "place": place})
    else:
        rows = yield Call("outbox_ack", {**where, "id": sorted(ids)})
    return [row[0] for row in rows]


# Looking


def get(message_id: str) -> Steps[Message]:
    """Read one message, or raise `NotFound`."""
    rows = yield Call("outbox_get", {"id": message_id})
    if not rows:
        raise NotFound(f"there is no message {message_id!r}")
    return _message(rows[0])


def listing(
    channel: str, *, state: str | None = None, before: int | None = None, most: int = 100
) -> Steps[list[Message]]:
    """Read a page, newest first; the next page stands `before` its last `n`."""
    where = {"channel": channel, "state": state, "before": LAST if before is None else before}
    rows = yield Call("outbox_list", {**where, "most": most})
    return [_message(row) for row in rows]


def shown(channel: str, stands: str, *, most: int) -> Steps[list[Message]]:
    """Read messages as a page lists them: those due first, or the newest dead or delivered ones."""
    where = {"channel": channel, "most": most}
    if stands == "delivered":
        return (yield from listing(channel, state=stands, most=most))
    name = "outbox_dead" if stands == "dead" else "outbox_next_up"
    return [_message(row) for row in (yield Call(name, where, alone=True))]


def lately(
    names: Sequence[str], *, seconds: float, look: int = LOOK
) -> Steps[dict[str, tuple[int, datetime | None]]]:
    """Tell of each channel how many messages arrived within a time, and when the last one did."""
    if not names:
        return {}
    asked = {"name": list(names), "span_us": micros(seconds), "look": look}
    rows = yield Call("channel_lately", asked, alone=True)
    return {name: (count, None if at is None else instant(at)) for name, count, at in rows}


def failing(channel: str) -> Steps[tuple[int, str] | None]:
    """Say how often the oldest message that waits and failed before did, and how last."""
    rows = yield Call("outbox_failing", {"channel": channel})
    return (rows[0][0], rows[0][1]) if rows else None


def next_due(channel: str) -> Steps[tuple[datetime | None, datetime]]:
    """Tell when the first message that waits is due, None if none waits; and the time now."""
    [(due, now)] = yield Call("outbox_next", {"channel": channel})
    return None if due is None else instant(due), instant(now)


def retry(channel: str, ids: Sequence[str] | None = None) -> Steps[list[str]]:
    """Bring dead ones back to life: those named, or all; answer with their ids."""
    yield from _require_channel(channel)
    named = None if ids is None else sorted(ids)
    rows = yield Call("outbox_retry", {"channel": channel, "id": named})
    return [row[0] for row in rows]


def redeliver(channel: str, ids: Sequence[str]) -> Steps[list[str]]:
    """Deliver messages once more that were delivered, or are dead; answer with their ids."""
    yield from _require_channel(channel)
    rows = yield Call("outbox_redeliver", {"channel": channel, "id": sorted(ids)})
    return [row[0] for row in rows]


def children(run_id: str) -> Steps[list[tuple[str, int, bool]]]:
    """Name the first items of a run in their order: about its size, and whether it is a batch."""
    rows = yield Call("message_jobs", {"id": run_id, "most": CHILDREN_MOST})
    return [(item_id, size, bool(batch)) for item_id, size, batch in rows]


def worker_run(job_id: str) -> Steps[tuple[str | None, int]]:
    """Tell which worker had a partition last, and how many records were read of it."""
    rows = yield Call("message_worker", {"id": job_id})
    return (rows[0][0], rows[0][1]) if rows else (None, 0)


def signals(run_id: str) -> Steps[list[Message]]:
    """Read the messages that tell of a run's partitions and its consolidation, in order."""
    return [_message(row) for row in (yield Call("outbox_signals", {"run_id": run_id}))]


_message = reader(Message)
_channel = reader(Channel)
