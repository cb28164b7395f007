"""What commands print: data on stdout, as a table for people or JSON for programs."""

import json
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from milepost.errors import IllegalMove

if TYPE_CHECKING:
    from milepost.batch.handles import RunHandle
    from milepost.handles import JobHandle
    from milepost.records import Entry, Job, Run


def say(text: str) -> None:
    """Tell something that is not data."""
    click.echo(printable(text), err=True)


@contextmanager
def told_of_warnings(app: str | None) -> Iterator[None]:
    """Say on stderr that no worker could take what is awaited, without a line of our code.

    What it takes to start one is told with the app, where the command knows it.
    """

    def tell(message: Warning | str, *_args: object, **_more: object) -> None:
        text = str(message)
        say(f"milepost: {text if app is None else text.replace(' APP`', f' {shlex.quote(app)}`')}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = tell
        yield


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
    from milepost.cli.table import draw

    draw(columns, written)


def show_pairs(document: Mapping[str, object]) -> None:
    """Print names and values, one to a line."""
    width = max(map(len, document)) if sys.stdout.isatty() else 0
    for name, value in document.items():
        between = "  " if width else "\t"
        click.echo(f"{name.ljust(width)}{between}{printable(value)}")


def show_page(
    columns: Sequence[str], summaries: Sequence[Mapping[str, Any]], *, limit: int, as_json: bool
) -> None:
    """Print a page of jobs or runs, and how to go on."""
    if as_json:
        show_json(summaries)
        return
    if not summaries:
        say("none fits; nothing to show")
        return
    show_table(columns, [[summary[name] for name in columns] for summary in summaries])
    if len(summaries) == limit:
        say(f"older ones: --before {summaries[-1]['id']}")


def show_filled(document: Mapping[str, object]) -> None:
    """Print the names that have a value, one to a line."""
    show_pairs({name: value for name, value in document.items() if value not in (None, {})})


def tell_cancelled(what: str, *, before: str, now: str) -> None:
    """Say what became of a job or a run that was to be cancelled."""
    if now == "RUNNING":
        say(f"{what} is running; its worker was asked to stop")
    elif now == "STOPPING":
        say(f"{what} is stopping; it ends with the jobs that still run")
    elif before == "CANCELLED":
        say(f"{what} was cancelled before; nothing to do")
    elif now != "CANCELLED":
        raise IllegalMove(f"{what} is {now} already; only an open one is cancelled")
    else:
        say(f"{what} is cancelled")


def tell_paused(what: str, *, paused: bool, changed: bool) -> None:
    """Say what became of a queue or a schedule that was to be paused, or not any more."""
    word = "paused" if paused else "not paused"
    say(f"{what} is {word}" if changed else f"{what} was {word} before; nothing to do")


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
        "parent": record.parent_id,
        "rerun_of": record.rerun_of,
        "rerun_by": record.rerun_by,
        "cancel_reason": record.cancel_reason,
    }


def job_document(handle: "JobHandle[Any]") -> dict[str, object]:
    """Say everything of a job, with its arguments and its result as they were stored."""
    record = handle.record
    carried = {
        "arguments": _shown(handle),
        "result": _stored(record, record.result),
    }
    return {**job_summary(handle), **carried}


def run_summary(handle: "RunHandle") -> dict[str, object]:
    """Say where a run stands, without what it carries."""
    record = handle.record
    # One that broke off is not on its way any more.
    ended = 1.0 if record.state == "SUCCEEDED" else None
    return {
        "id": record.id,
        "batch": record.kind,
        "version": record.kind_version,
        "priority": record.priority,
        "state": record.state.value,
        "done": handle.done,
        "progress": ended if handle.done else round(handle.progress, 3),
        "cause": record.cause,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "deadline_at": record.deadline_at,
        "tags": json.loads(record.tags) if record.tags else {},
        "resumes": record.resumes,
    }


def run_document(handle: "RunHandle") -> dict[str, object]:
    """Say everything of a run: its steps, its parameters and report, why jobs of it failed."""
    record = handle.record
    names = ("name", "role", "gated", "opened", "counts")
    causes = ("job_id", "step", "type", "message", "cause")
    return {
        **run_summary(handle),
        "current_step": handle.current_step,
        "eta_seconds": None if handle.eta is None else round(handle.eta.total_seconds(), 1),
        "jobs_per_second": handle.throughput and round(handle.throughput, 1),
        "error_count": handle.error_count,
        "parameters": _shown(handle),
        "report": _stored(record, record.report),
        "steps": [{name: getattr(step, name) for name in names} for step in handle.steps],
        "errors": [{name: getattr(error, name) for name in causes} for error in handle.errors],
    }


def _shown(handle: "JobHandle[Any] | RunHandle") -> object:
    from milepost.request.redact import shown

    record = handle.record
    names = handle._client.settings.redacted  # noqa: SLF001 - the settings it was found with
    return shown(record.kind, _stored(record, record.payload), names)


def _stored(record: "Job | Run", data: bytes | None) -> object:
    if data is None:
        return None
    from milepost.encrypt import EncryptingCodec, is_sealed

    # Another codec's bytes may be encrypted; only its app can read them.
    readable = record.codec in ("json", EncryptingCodec.name) and not is_sealed(data)
    return json.loads(data) if readable else f"{len(data)} bytes of {record.codec}"


def entry_document(entry: "Entry") -> dict[str, object]:
    """Say one move of a history."""
    who = ("actor", "db_user")
    names = ("seq", "move", "from_state", "to_state", "at", *who, "attempt", "fence", "detail")
    return {name: getattr(entry, name) for name in names}
