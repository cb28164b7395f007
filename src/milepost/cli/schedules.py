"""`milepost schedules`: what fires when, and schedules that rest for a while."""

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import acting, json_option, looking, store_option
from milepost.cli.output import say, show_json, show_table, tell_paused
from milepost.config import StoreUrl
from milepost.store.schedules import Schedule

COLUMNS = ("name", "kind", "cron", "zone", "missed", "state", "next", "last", "fired")


@click.group(cls=HelpfulGroup)
def schedules() -> None:
    """List schedules, pause and resume them, say when they fire. No app is needed."""


@schedules.command("ls")
@store_option
@json_option
def ls(store: StoreUrl, *, as_json: bool) -> None:
    """List the schedules.

    One that no running worker declares is `vanished`: it is kept, and does not fire.
    """
    with looking(store) as lookup:
        found = [_document(schedule) for schedule in lookup.schedules.list()]
    if as_json:
        show_json(found)
    elif found:
        show_table(COLUMNS, [[document[name] for name in COLUMNS] for document in found])
    else:
        say("there is no schedule; declare one with app.schedule(...) and start a worker")


def _document(schedule: Schedule) -> dict[str, object]:
    local = schedule.line.local
    fires = schedule.state == "active"
    return {
        "name": schedule.name,
        "kind": schedule.kind,
        "cron": schedule.cron,
        "zone": schedule.zone,
        "missed": schedule.missed,
        "state": schedule.state,
        "paused_by": schedule.paused_by,
        "next": local(schedule.next_at) if fires else None,
        "last": None if schedule.last_at is None else local(schedule.last_at),
        "last_job": schedule.last_job_id,
        "fired": schedule.fired,
    }


@schedules.command()
@store_option
@click.argument("name")
@json_option
def pause(store: StoreUrl, name: str, *, as_json: bool) -> None:
    """Let a schedule rest. Times that pass meanwhile are skipped."""
    _set(store, name, paused=True, as_json=as_json)


@schedules.command()
@store_option
@click.argument("name")
@json_option
def resume(store: StoreUrl, name: str, *, as_json: bool) -> None:
    """Let a schedule go on with its next time."""
    _set(store, name, paused=False, as_json=as_json)


def _set(store: StoreUrl, name: str, *, paused: bool, as_json: bool) -> None:
    with acting(store) as lookup:
        changed = lookup.schedules.pause(name) if paused else lookup.schedules.resume(name)
        [after] = [found for found in lookup.schedules.list() if found.name == name]
    if as_json:
        show_json(_document(after))
    tell_paused(f"schedule {name}", paused=paused, changed=changed)


@schedules.command("next")
@store_option
@click.argument("name")
@click.option(
    "--count",
    type=click.IntRange(1, 1_000),
    metavar="N",
    default=5,
    show_default=True,
    help="So many of them.",
)
@json_option
def next_(store: StoreUrl, name: str, count: int, *, as_json: bool) -> None:
    """Say when a schedule fires next, in its own time zone."""
    with looking(store) as lookup:
        slots = lookup.schedules.next(name, count)
    if as_json:
        show_json(slots)
    else:
        for slot in slots:
            click.echo(slot.isoformat(sep=" ", timespec="minutes"))
