"""Schedules, as the store has them and as this program declares them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice

import msgspec

from milepost.client import Client, caller
from milepost.errors import Invalid
from milepost.faces import Flow, faces
from milepost.records import Template
from milepost.store import schedules, workers
from milepost.store.driver import Steps
from milepost.store.schedules import NewSchedule, Schedule

NEXT_MOST = 1_000


class Schedules:
    """Looks schedules up, lets them rest, and says when they fire."""

    def __init__(self, client: Client, declared: Mapping[str, NewSchedule]) -> None:
        self._client = client
        self._declared = declared

    def _list(self) -> Flow[Sequence[Schedule]]:
        """Return every schedule: those in the store, and those that only this program declares."""
        return self._client.flow(self.listing)

    list, list_async = faces(_list)

    def _pause(self, name: str) -> Flow[bool]:
        """Let it rest: slots that pass are skipped. False when it was paused already."""
        return self._client.flow(self.resting, name, caller().actor, paused=True)

    pause, pause_async = faces(_pause)

    def _resume(self, name: str) -> Flow[bool]:
        """Let it go on with its next slot. False when it was not paused."""
        return self._client.flow(self.resting, name, caller().actor, paused=False)

    resume, resume_async = faces(_resume)

    def _run(self, name: str) -> Flow[str]:
        """Create its job now, beside its slots; answer with the job's id."""
        return self._client.flow(self.running, name, caller().actor)

    run, run_async = faces(_run)

    def _next(self, name: str, count: int = 5) -> Flow[Sequence[datetime]]:
        """Say when it fires next, in its own time zone, paused or not."""
        if not 1 <= count <= NEXT_MOST:
            raise Invalid(f"count={count} must be between 1 and {NEXT_MOST}")
        found = {schedule.name: schedule for schedule in (yield from self._list())}
        if name not in found:
            raise schedules.missing(name, found)
        line = found[name].line
        return [line.local(slot) for slot in islice(line.after(found[name].read_at), count)]

    next, next_async = faces(_next)

    # Store operations

    def listing(self) -> Steps[Sequence[Schedule]]:
        """Give the store operation behind `list`: what the API runs."""
        stored = yield from schedules.listing()
        now = yield from workers.now()
        found = {name: _unstored(new, now) for name, new in self._declared.items()}
        for schedule in stored:
            here = schedule.declared or schedule.name in self._declared
            found[schedule.name] = msgspec.structs.replace(schedule, declared=here)
        return [found[name] for name in sorted(found)]

    def template(self, name: str) -> Steps[Template]:
        """Read what its jobs are made from; raise `NotFound` if there is no such schedule."""
        yield from self._stored(name)
        return (yield from schedules.template(name))[0]

    def running(self, name: str, actor: str) -> Steps[str]:
        """Give the store operation behind `run`: what the API runs."""
        yield from self._stored(name)
        return (yield from schedules.run(name, actor=actor))

    def _stored(self, name: str) -> Steps[None]:
        known = {schedule.name for schedule in (yield from schedules.listing())}
        if name in self._declared and name not in known:
            yield from schedules.declare([self._declared[name]])

    def resting(self, name: str, actor: str, *, paused: bool) -> Steps[bool]:
        """Give the store operation behind `pause` and `resume`: what the API runs."""
        yield from self._stored(name)
        return (yield from schedules.pause(name, paused=paused, actor=actor))


def _unstored(new: NewSchedule, now: datetime) -> Schedule:
    return Schedule(
        name=new.name,
        kind=new.template.kind,
        cron=new.line.cron,
        zone=new.line.zone,
        missed=new.missed.value,
        paused=False,
        paused_by=None,
        fired=0,
        last_job_id=None,
        last_at=None,
        declared=True,
        next_at=next(new.line.after(now)),
        read_at=now,
    )
