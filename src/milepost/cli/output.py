"""What commands print: data on stdout, as a table for people or JSON for programs."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from milepost.handles import JobHandle
    from milepost.records import Entry, Job

__all__ = [
    "entry_document",
    "job_document",
    "job_summary",
    "printable",
    "say",
    "show_json",
    "show_pairs",
    "show_table",
]


def say(text: str) -> None:
    """Tell something that is not data."""
    click.echo(printable(text), err=True)


def show_json(document: object) -> None:
    """Print one JSON document; instants are ISO 8601."""
    click.echo(json.dumps(document, default=_plain))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def printable(value: object) -> str:
    """Write a value on one line; what a terminal would obey is shown as an escape."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
    text = json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows: drawn on a terminal, elsewhere one line each with tabs between."""
    written = [[printable(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        for line in (columns, *written):
            click.echo("\t".join(line))
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for name in columns:
        # An id is there to be copied: whatever else has to give way, it stays whole.
        table.add_column(name, overflow="fold", no_wrap=name == "id")
    for row in written:
        table.add_row(*map(Text, row))
    Console().print(table)


def show_pairs(document: Mapping[str, object]) -> None:
    """Print names and values, one to a line."""
    width = max(map(len, document)) if sys.stdout.isatty() else 0
    for name, value in document.items():
        between = "  " if width else "\t"
        click.echo(f"{name.ljust(width)}{between}{printable(value)}")


def job_summary(handle: "JobHandle[Any]") -> dict[str, object]:
    """Say where a job stands, without what it carries."""
    record = handle.record
    error = handle.error
    return {
        "id": record.id,
        "kind": record.kind,
        "version": record.kind_version,
        "queue": record.queue,
        "priority": record.priority,
        "state": record.state.value,
        "done": handle.done,
        "progress": handle.progress,
        "progress_text": handle.progress_text,
        "attempt": record.attempt,
        "errors": record.errors,
        "losses": record.losses,
        "polls": record.polls,
        "releases": record.releases,
        "retries": record.retries,
        "cause": record.cause,
        "error": None
        if error is None
        else {"type": error.type, "message": error.message, "code": error.code},
        "worker": record.worker_id,
        "phase": record.phase,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "due_at": record.due_at,
        "deadline_at": record.deadline_at,
        "tags": json.loads(record.tags) if record.tags else {},
        "unique": record.unique_key,
        "run": record.run_id,
        "step": record.step,
        "rerun_of": record.rerun_of,
        "cancel_reason": record.cancel_reason,
    }


def job_document(handle: "JobHandle[Any]") -> dict[str, object]:
    """Say everything of a job, with its arguments and its result as they were stored."""
    record = handle.record
    carried = {
        "arguments": _stored(record, record.payload),
        "result": _stored(record, record.result),
    }
    return {**job_summary(handle), **carried}


def _stored(record: "Job", data: bytes | None) -> object:
    if data is None:
        return None
    # Another codec's bytes may be encrypted; only its app can read them.
    return json.loads(data) if record.codec == "json" else f"{len(data)} bytes of {record.codec}"


def entry_document(entry: "Entry") -> dict[str, object]:
    """Say one move of a history."""
    names = ("seq", "move", "from_state", "to_state", "at", "actor", "attempt", "fence", "detail")
    return {name: getattr(entry, name) for name in names}
