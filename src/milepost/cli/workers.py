"""`milepost workers`: who is there, and what each is doing."""

import json

import click

from milepost.cli.options import json_option, limit_option, looking, store_option
from milepost.cli.output import say, show_json, show_table
from milepost.config import StoreUrl
from milepost.records import Worker

COLUMNS = ("id", "state", "live", "queues", "busy", "host", "pid", "heartbeat_at")


@click.command()
@store_option
@click.option("--all", "everyone", is_flag=True, help="Also those that have stopped.")
@limit_option(100)
@json_option
def workers(store: StoreUrl, limit: int, *, everyone: bool, as_json: bool) -> None:
    """List the workers, newest first. No app is needed."""
    with looking(store) as lookup:
        found = lookup.workers.list(limit=limit)
    shown = [_document(w) for w in found if everyone or w.state != "STOPPED"]
    if as_json:
        show_json(shown)
        return
    if not shown:
        say("no worker is here; start one with `milepost worker APP`")
        return
    show_table(COLUMNS, [[_cell(document, name) for name in COLUMNS] for document in shown])


def _document(worker: Worker) -> dict[str, object]:
    slots = json.loads(worker.slots) if worker.slots else {}
    return {
        "id": worker.id,
        "state": worker.state,
        # Its row says what it last told; its lease says whether it still lives.
        "live": worker.state != "STOPPED" and worker.lease_seconds > 0,
        "host": worker.host,
        "pid": worker.pid,
        "queues": json.loads(worker.queues) if worker.queues else None,
        "kinds": json.loads(worker.kinds) if worker.kinds else None,
        "slots": slots,
        "busy": sum(count for name, count in slots.items() if name != "FREE"),
        "started_at": worker.started_at,
        "heartbeat_at": worker.heartbeat_at,
        "lease_until": worker.lease_until,
    }


def _cell(document: dict[str, object], name: str) -> object:
    value = document[name]
    if name == "queues":
        return (
            "all"
            if value is None
            else ", ".join(map(str, value))
            if isinstance(value, list)
            else value
        )
    return ("yes" if value else "no") if name == "live" else value
