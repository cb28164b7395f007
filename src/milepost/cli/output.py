"""Printing: data on stdout, as a table for people or JSON for programs; messages on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

ATTRIBUTES = {
    "batch": "kind",
    "last_job": "last_job_id",
    "parent": "parent_id",
    "run": "run_id",
    "subject": "subject_id",
    "unique": "unique_key",
    "version": "kind_version",
    "worker": "worker_id",
}
"""Where a document's name is not the record's own: references go without `_id`."""


def document(record: object, *names: str, **given: object) -> dict[str, Any]:
    """Say a record by these names, in their order; a value that is given stands in its place."""
    return {
        name: given[name] if name in given else getattr(record, ATTRIBUTES.get(name, name))
        for name in names
    }


def format_counts(counts: Mapping[str, int]) -> str:
    """Write numbers by state: 3 QUEUED, 1 RUNNING."""
    return ", ".join(f"{count} {state}" for state, count in counts.items())


def say(text: str) -> None:
    """Print a message, which is not data."""
    click.echo(printable(text), err=True)


def show_json(document: object) -> None:
    """Print one JSON document; instants are ISO 8601."""
    click.echo(json.dumps(document, default=_plain))


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def printable(value: object) -> str:
    """Write a value on one line; control characters, which a terminal obeys, as escapes."""
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


def show_rows(
    rows: Sequence[Mapping[str, Any]], *columns: str, **cells: Callable[[Any], object]
) -> None:
    """Print documents of one kind as a table: these columns, or all; `cells` writes a column's."""
    names = columns or tuple(rows[0])
    show_table(names, [[cells.get(n, _same)(row[n]) for n in names] for row in rows])


def _same(value: object) -> object:
    return value


def show_pairs(document: Mapping[str, object]) -> None:
    """Print names and values, one to a line."""
    width = max(map(len, document)) if sys.stdout.isatty() else 0
    for name, value in document.items():
        between = "  " if width else "\t"
        click.echo(f"{name.ljust(width)}{between}{printable(value)}")


def show_filled(document: Mapping[str, object]) -> None:
    """Print the names that have a value, one to a line."""
    show_pairs({name: value for name, value in document.items() if value not in (None, {})})
