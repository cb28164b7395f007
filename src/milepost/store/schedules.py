"""Operations on schedules. A slot is fired by the transaction that moves its schedule past it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec
from uuid_utils import uuid7

from milepost import cron
from milepost.cron import CronLine, MissedPolicy
from milepost.errors import LeaseLost, NotFound
from milepost.outcome import micros
from milepost.records import NewJob, Template
from milepost.store import creation
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

SEEN_SECONDS = 10.0
"""How often a running program says that it declares its schedules, at least."""

VANISHED_SECONDS = 60.0
"""A schedule that no program declared for so long has vanished."""


class NewSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as a program declares it."""

    name: str
    line: CronLine
    missed: MissedPolicy
    template: Template
    payload: bytes | None


class Schedule(msgspec.Struct, frozen=True):
    """A schedule as it stood when it was read."""

    name: str
    kind: str
    cron: str
    zone: str
    missed: str
    paused: bool
    paused_by: str | None
    fired: int
    last_job_id: str | None
    last_at: datetime | None
    next_at: datetime
    declared: bool
    read_at: datetime

    @property
    def line(self) -> CronLine:
        """Its cron line in its time zone."""
        return CronLine(self.cron, self.zone)

    @property
    def state(self) -> str:
        """Whether it fires: `active`, `paused`, or `vanished` (no running program declares it)."""
        if not self.declared:
            return "vanished"
        return "paused" if self.paused else "active"


def unique_key(name: str, slot: datetime) -> str:
    """Give the unique key of a slot's job: its schedule and its slot (I17)."""
    return f"schedule {name} {slot.astimezone(UTC):%Y-%m-%dT%H:%MZ}"


def declare(schedules: Sequence[NewSchedule]) -> Steps[None]:
    """Enter the schedules of a program; a changed line begins with its next slot."""
    [(now,)] = yield Call("clock_now")
    # In the order of their names, so that two programs cannot wait for each other.
    for new in sorted(schedules, key=lambda schedule: schedule.name):
        columns = {
            "name": new.name,
            "kind": new.template.kind,
            "cron": new.line.cron,
            "zone": new.line.zone,
            "missed": new.missed.value,
            "template": msgspec.json.encode(new.template).decode(),
            "payload": new.payload,
            "next_at": next(new.line.after(instant(now))),
        }
        yield Call("schedule_declare", columns)


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
    slots, following = cron.due(
        CronLine(line, zone), MissedPolicy(missed), first=first, now=instant(now)
    )
    made = msgspec.json.decode(template, type=Template)
    fired = yield from creation.create(
        [NewJob(str(uuid7()), payload, made, unique_key=unique_key(name, slot)) for slot in slots]
    )
    last_at, last_job_id = (slots[-1], fired[-1]) if slots else (None, None)
    last = {"count": len(slots), "last_at": last_at, "last_job_id": last_job_id}
    moved = yield Call("schedule_fired", {"name": name, "was": first, "next_at": following, **last})
    if not moved:
        raise LeaseLost(f"schedule {name} was fired by another scheduler")
    return fired


def template(name: str) -> Steps[tuple[Template, bytes | None]]:
    """Read what its jobs are made from, and their arguments."""
    found = yield Call("schedule_template", {"name": name})
    if not found:
        raise missing(name, [schedule.name for schedule in (yield from listing())])
    return msgspec.json.decode(found[0][0], type=Template), found[0][1]


def run(name: str, *, actor: str | None) -> Steps[str]:
    """Create its job now, beside its slots, paused or not; answer with the id."""
    made, payload = yield from template(name)
    made = msgspec.structs.replace(made, actor=actor)
    [job_id] = yield from creation.create([NewJob(str(uuid7()), payload, made)])
    return job_id


def missing(name: str, known: Iterable[str]) -> NotFound:
    """Say that there is no such schedule, and which there are."""
    there = ", ".join(known)
    hint = f"there are: {there}" if there else "a worker enters its program's when it starts"
    return NotFound(f"there is no schedule {name!r}; {hint}")


def pause(name: str, *, paused: bool, actor: str | None) -> Steps[bool]:
    """Pause it, or resume it with its next slot; False when it was so already."""
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
    rows = yield Call("schedule_list", {"vanished_us": micros(VANISHED_SECONDS)})
    return [_schedule(row) for row in rows]


_schedule = reader(Schedule)
