"""Operations on schedules. A slot is fired by the transaction that moves its schedule past it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import uuid_utils

from milepost import cron
from milepost.cron import Line, Missed
from milepost.errors import LeaseLost, NotFound
from milepost.outcome import micros
from milepost.records import NewJob, Template
from milepost.store import creation
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

SEEN_SECONDS = 10.0
"""How old the news that somebody declares a schedule may get."""

VANISHED_SECONDS = 60.0
"""After how long without such news nobody declares it any more."""


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as a program declares it."""

    name: str
    line: Line
    missed: Missed
    template: Template
    payload: bytes | None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stood when it was read."""

    name: str
    kind: str
    cron: str
    zone: str
    missed: str
    paused: bool = False
    paused_by: str | None = None
    fired: int = 0
    last_job_id: str | None = None
    last_at: datetime | None = None
    next_at: datetime
    declared: bool = True
    read_at: datetime

    @property
    def line(self) -> Line:
        """Its cron line in its time zone."""
        return Line(self.cron, self.zone)

    @property
    def state(self) -> str:
        """Whether it fires: `active`, `paused`, or `vanished` (no running program declares it)."""
        if not self.declared:
            return "vanished"
        return "paused" if self.paused else "active"


def unique_key(name: str, slot: datetime) -> str:
    """Name what a slot's job is unique by: its schedule and its slot (I17)."""
    return f"schedule {name} {slot.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def declare(schedules: Sequence[NewSchedule]) -> Steps[None]:
    """Enter what a program declares; a changed line begins with its next slot."""
    [(now,)] = yield Call("clock_now")
    # In the order of their names, so that two programs cannot wait for each other.
    for new in sorted(schedules, key=lambda schedule: schedule.name):
        following = next(new.line.after(instant(now)))
        yield Call("schedule_declare", {**_columns(new), "next_at": following})


def _columns(new: NewSchedule) -> dict[str, Any]:
    return {
        "name": new.name,
        "kind": new.template.kind,
        "cron": new.line.cron,
        "zone": new.line.zone,
        "missed": new.missed.value,
        "template": msgspec.json.encode(new.template).decode(),
        "payload": new.payload,
    }


def see(names: Sequence[str]) -> Steps[None]:
    """Say that a running program declares them."""
    every = micros(SEEN_SECONDS / 2)
    yield Call("schedule_see", {"name": list(names), "every_us": every}, alone=True)


def due(names: Sequence[str]) -> Steps[list[tuple[str, float]]]:
    """Tell in how many seconds each of them fires; those that are paused never do."""
    rows = yield Call("schedule_due", {"name": list(names)}, alone=True)
    return [(name, left / 1_000_000) for name, left in rows]


def fire(name: str) -> Steps[list[str]]:
    """Create the jobs of the slots that are due; answer with their ids.

    Nothing is fired where it is paused, not due, or in another scheduler's hand. Its row is locked
    from the look at `next_at` to the commit that moves it: nobody else can fire these slots.
    """
    found = yield Call("schedule_take", {"name": name})
    if not found:
        return []
    line, zone, missed, template, payload, was, now = found[0]
    first = instant(was)
    slots, following = cron.due(Line(line, zone), Missed(missed), first=first, now=instant(now))
    made = msgspec.json.decode(template, type=Template)
    fired = yield from creation.create(
        [NewJob(_id(), payload, made, unique_key=unique_key(name, slot)) for slot in slots]
    )
    last = (slots[-1], fired[-1]) if slots else (None, None)
    moved = yield Call(
        "schedule_fired",
        {
            "name": name,
            "was": first,
            "next_at": following,
            "count": len(slots),
            "last_at": last[0],
            "last_job_id": last[1],
        },
    )
    if not moved:
        raise LeaseLost(f"schedule {name} was fired by another scheduler")
    return fired


def _id() -> str:
    return str(uuid_utils.uuid7())


def missing(name: str, known: Iterable[str]) -> NotFound:
    """Say that there is no such schedule, and which there are."""
    there = ", ".join(known)
    what = f"there are: {there}" if there else "a worker enters its program's when it starts"
    return NotFound(f"there is no schedule {name!r}; {what}")


def pause(name: str, *, paused: bool, actor: str | None) -> Steps[bool]:
    """Let it rest, or go on with its next slot; False when it did already."""
    known = {schedule.name: schedule for schedule in (yield from listing())}
    if name not in known:
        raise missing(name, known)
    schedule = known[name]
    if schedule.paused == paused:
        return False
    following = None if paused else next(schedule.line.after(schedule.read_at))
    yield Call(
        "schedule_pause",
        {"name": name, "paused": paused, "next_at": following, "actor": actor if paused else None},
    )
    return True


def listing() -> Steps[list[Schedule]]:
    """Read every schedule, by name."""
    rows = yield Call("schedule_list")
    return [_schedule(list(row)) for row in rows]


def _schedule(row: list[Any]) -> Schedule:
    name, kind, line, zone, missed, paused, paused_by, fired, last_job_id, *times = row
    last_at, next_at, seen_at, read_at = times
    return Schedule(
        name=name,
        kind=kind,
        cron=line,
        zone=zone,
        missed=missed,
        paused=bool(paused),
        paused_by=paused_by,
        fired=fired,
        last_job_id=last_job_id,
        last_at=None if last_at is None else instant(last_at),
        next_at=instant(next_at),
        declared=(instant(read_at) - instant(seen_at)).total_seconds() <= VANISHED_SECONDS,
        read_at=instant(read_at),
    )
