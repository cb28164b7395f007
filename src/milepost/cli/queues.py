"""`milepost queues`: what stands in each, and claims that rest for a while."""

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import acting, json_option, looking, store_option
from milepost.cli.output import say, show_json, show_table, tell_paused
from milepost.config import StoreUrl
from milepost.lifecycle import JOB, JobState
from milepost.records import Queue

OPEN = tuple(state.value for state in JobState if state.value not in JOB.terminal)
FINAL = tuple(state.value for state in JobState if state.value in JOB.terminal)


@click.group(cls=HelpfulGroup)
def queues() -> None:
    """List queues, pause and resume them. No app is needed."""


@queues.command("ls")
@store_option
@json_option
def ls(store: StoreUrl, *, as_json: bool) -> None:
    """List queues, with their jobs counted by state."""
    with looking(store) as lookup:
        found = lookup.queues.list()
    if as_json:
        show_json([_document(queue) for queue in found])
        return
    if not found:
        say("no job was ever submitted here; nothing to show")
        return
    states = [state for state in (*OPEN, *FINAL) if any(state in q.counts for q in found)]
    rows = [[q.name, _paused(q), *(q.counts.get(state, 0) for state in states)] for q in found]
    show_table(("queue", "paused", *states), rows)


def _document(queue: Queue) -> dict[str, object]:
    return {
        "name": queue.name,
        "paused": queue.paused,
        "paused_at": queue.paused_at,
        "paused_by": queue.paused_by,
        "counts": dict(queue.counts),
    }


def _paused(queue: Queue) -> str:
    return f"by {queue.paused_by or 'somebody'}" if queue.paused else "no"


@queues.command()
@store_option
@click.argument("name")
@json_option
def pause(store: StoreUrl, name: str, *, as_json: bool) -> None:
    """Let nobody claim from a queue. What runs may end; what is submitted waits."""
    _set(store, name, paused=True, as_json=as_json)


@queues.command()
@store_option
@click.argument("name")
@json_option
def resume(store: StoreUrl, name: str, *, as_json: bool) -> None:
    """Let claims from a queue go on."""
    _set(store, name, paused=False, as_json=as_json)


def _set(store: StoreUrl, name: str, *, paused: bool, as_json: bool) -> None:
    with acting(store) as lookup:
        known = {queue.name for queue in lookup.queues.list()}
        changed = lookup.queues.pause(name) if paused else lookup.queues.resume(name)
        after = {queue.name: queue for queue in lookup.queues.list()}
    if as_json:
        show_json(_document(after.get(name, Queue(name, {}))))
    tell_paused(f"queue {name}", paused=paused, changed=changed)
    if name not in known:
        say(f"no job is in a queue of that name; there are: {', '.join(sorted(known)) or 'none'}")
