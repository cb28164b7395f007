"""Commands that operators use day by day: `milepost queues`, `schedules` and `workers`."""

import json
from typing import TYPE_CHECKING, Any

import click

from milepost.cli import options
from milepost.cli.command import Session, StoreCommand, StoreGroup
from milepost.cli.output import document, printable, say, show_json, show_table
from milepost.lifecycle import JOB, JobState
from milepost.records import Queue, Worker

if TYPE_CHECKING:
    from milepost.store.schedules import Schedule

STATES = sorted(JobState, key=lambda state: state in JOB.terminal)
"""The open ones first."""
SCHEDULE_COLUMNS = ("name", "kind", "cron", "zone", "missed", "state", "next", "last", "fired")
WORKER_COLUMNS = ("id", "state", "live", "queues", "busy", "host", "pid", "heartbeat_at")


@click.group(cls=StoreGroup)
def queues() -> None:
    """List queues, pause and resume them. No app is needed."""


@queues.command("ls")
def list_queues(at: Session) -> None:
    """List queues, with their jobs counted by state."""
    from milepost.queues import Queues

    found = Queues(at.client).list()
    if at.as_json:
        show_json([_queue(queue) for queue in found])
        return
    if not found:
        say("no job was ever submitted here; nothing to show")
        return
    states = [state for state in STATES if any(state in queue.counts for queue in found)]
    rows = [[q.name, _paused(q), *(q.counts.get(state, 0) for state in states)] for q in found]
    show_table(("queue", "paused", *states), rows)


def _queue(queue: Queue) -> dict[str, Any]:
    paused = ("paused", "paused_at", "paused_by", "reason")
    return document(queue, "name", *paused, "max_waiting", "counts")


def _paused(queue: Queue) -> str:
    why = f": {printable(queue.reason)}" if queue.reason else ""
    return f"by {queue.paused_by or 'somebody'}{why}" if queue.paused else "no"


@queues.command("pause", access="write")
@options.name
@click.option("--reason", metavar="TEXT", help="Why; shown with the queue.")
def pause_queue(at: Session, name: str, reason: str | None) -> None:
    """Stop claims from a queue. Running jobs go on; submitted ones wait."""
    _rest_queue(at, name, paused=True, reason=reason)


@queues.command("resume", access="write")
@options.name
def resume_queue(at: Session, name: str) -> None:
    """Resume claims from a queue."""
    _rest_queue(at, name, paused=False)


def _rest_queue(at: Session, name: str, *, paused: bool, reason: str | None = None) -> None:
    from milepost.queues import Queues

    listed = Queues(at.client)
    known = {queue.name for queue in listed.list()}
    changed = listed.pause(name, reason) if paused else listed.resume(name)
    after = {queue.name: queue for queue in listed.list()}.get(name, Queue(name, {}))
    at.report(_queue(after), _rested(f"queue {name}", paused=paused, changed=changed))
    if name not in known:
        say(f"no job is in a queue of that name; there are: {', '.join(sorted(known)) or 'none'}")


def _rested(name: str, *, paused: bool, changed: bool) -> str:
    word = "paused" if paused else "not paused"
    return f"{name} is {word}" if changed else f"{name} was {word} before; nothing to do"


@click.group(cls=StoreGroup)
def schedules() -> None:
    """List schedules, pause and resume them, say when they fire. No app is needed."""


@schedules.command("ls")
def list_schedules(at: Session) -> None:
    """List the schedules.

    One that no running worker declares is `vanished`: it is kept, and does not fire.
    """
    from milepost.schedules import Schedules

    rows = [_schedule(schedule) for schedule in Schedules(at.client, {}).list()]
    none = "there is no schedule; declare one with app.schedule(...) and start a worker"
    at.table(rows, *SCHEDULE_COLUMNS, empty=none)


def _schedule(schedule: "Schedule") -> dict[str, Any]:
    local, last = schedule.line.local, schedule.last_at
    return document(
        schedule,
        *("name", "kind", "cron", "zone", "missed", "state", "paused_by"),
        *("next", "last", "last_job", "fired"),
        next=local(schedule.next_at) if schedule.state == "active" else None,
        last=None if last is None else local(last),
    )


@schedules.command("pause", access="write")
@options.name
def pause_schedule(at: Session, name: str) -> None:
    """Pause a schedule. Times that pass meanwhile are skipped."""
    _rest_schedule(at, name, paused=True)


@schedules.command("resume", access="write")
@options.name
def resume_schedule(at: Session, name: str) -> None:
    """Resume a schedule at its next time."""
    _rest_schedule(at, name, paused=False)


def _rest_schedule(at: Session, name: str, *, paused: bool) -> None:
    from milepost.schedules import Schedules

    listed = Schedules(at.client, {})
    changed = listed.pause(name) if paused else listed.resume(name)
    [after] = [found for found in listed.list() if found.name == name]
    at.report(_schedule(after), _rested(f"schedule {name}", paused=paused, changed=changed))


@schedules.command("run", access="write")
@options.name
def run_schedule(at: Session, name: str) -> None:
    """Create a schedule's job now, beside its times; print the job's id."""
    from milepost.schedules import Schedules

    job_id = Schedules(at.client, {}).run(name)
    if at.as_json:
        show_json({"schedule": name, "job": job_id})
        return
    click.echo(job_id)
    say(f"{at.typed(f'jobs wait {job_id}')} waits for it")


@schedules.command("next")
@options.name
@click.option(
    "--count",
    type=click.IntRange(1, 1_000),
    metavar="N",
    default=5,
    show_default=True,
    help="How many times to show.",
)
def next_times(at: Session, name: str, count: int) -> None:
    """Say when a schedule fires next, in its own time zone."""
    from milepost.schedules import Schedules

    slots = Schedules(at.client, {}).next(name, count)
    if at.as_json:
        show_json(slots)
        return
    for slot in slots:
        click.echo(slot.isoformat(sep=" ", timespec="minutes"))


@click.command(cls=StoreCommand)
@click.argument("ls", required=False, expose_value=False, type=click.Choice(["ls"]))
@click.option("--all", "everyone", is_flag=True, help="Also those that have stopped.")
@options.limit(100)
def workers(at: Session, limit: int, *, everyone: bool) -> None:
    """List the workers, newest first, those that have stopped last. No app is needed."""
    from milepost.workers import Workers

    found = Workers(at.client).list(limit=limit)
    rows = [_worker(worker) for worker in found if everyone or worker.state != "STOPPED"]
    none = "no worker is here; start one with `milepost worker APP`"
    at.table(rows, *WORKER_COLUMNS, empty=none, queues=_words, live=_yes)


def _worker(worker: Worker) -> dict[str, Any]:
    slots = json.loads(worker.slots) if worker.slots else {}
    return document(
        worker,
        *("id", "state", "live", "host", "pid", "queues", "kinds", "slots", "busy"),
        *("started_at", "heartbeat_at", "lease_until"),
        # Its row says its last report; its lease says whether it still lives.
        live=worker.state != "STOPPED" and worker.lease_seconds > 0,
        queues=json.loads(worker.queues) if worker.queues else None,
        kinds=json.loads(worker.kinds) if worker.kinds else None,
        slots=slots,
        busy=busy_slots(worker),
    )


def busy_slots(worker: Worker) -> int:
    """Count the slots of a worker that are at work."""
    slots = json.loads(worker.slots) if worker.slots else {}
    return sum(count for name, count in slots.items() if name != "FREE")


def _words(names: list[str] | None) -> str:
    return "all" if names is None else ", ".join(names)


def _yes(value: bool) -> str:  # noqa: FBT001 - a cell
    return "yes" if value else "no"
