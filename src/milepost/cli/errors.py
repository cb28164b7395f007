"""`milepost errors`: errors that are the same one, counted."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from milepost.cli import options
from milepost.cli.command import Session, StoreGroup
from milepost.cli.output import document, printable, say, show_filled, show_json
from milepost.cli.subjects import FAILURE, LINE, age, first_line, show_failures

if TYPE_CHECKING:
    from milepost.handles import Errors
    from milepost.records import ErrorGroup

COLUMNS = ("fingerprint", "error", "place", "count", "failed", "open", "first", "last")
_GROUP = ("fingerprint", "type", "message", "code", "place", "kind", "count", "more", "failed")
_TIMES = ("open", "first_at", "last_at", "job", "hours")


@click.group(cls=StoreGroup)
def errors() -> None:
    """List errors that are the same one, show one. No app is needed.

    Errors are the same when their type, their code and the innermost function of your own code are.
    """


def _of(at: Session) -> "Errors":
    from milepost.handles import Errors

    return Errors(at.client)


def _document(group: "ErrorGroup") -> dict[str, Any]:
    return document(group, *_GROUP, *_TIMES, job=group.job_id)


@errors.command("ls")
@options.limit()
def ls(at: Session, limit: int) -> None:
    """List errors, the one that was seen last first.

    `count` is of failed attempts, `failed` of jobs that it ended, `open` of jobs that go on.
    """
    found = [_document(group) for group in _of(at).list(limit=limit)]
    if at.as_json:
        show_json(found)
        return
    now = datetime.now(UTC)
    for one in found:
        one["error"] = first_line(one, most=LINE)
        for name in ("failed", "open"):
            one[name] = f"{one[name]}+" if one["more"] and one[name] else one[name]
        one["first"], one["last"] = age(now, one["first_at"]), age(now, one["last_at"])
    at.table(found, *COLUMNS, empty="no attempt failed; nothing to show")
    if found and sys.stdout.isatty():
        say(f"{at.typed('errors show FINGERPRINT')} shows its traceback and its jobs")


@errors.command()
@click.argument("fingerprint")
def show(at: Session, fingerprint: str) -> None:
    """Show one error: what its jobs share, its last examples and its traceback.

    An unambiguous prefix of its fingerprint is enough.
    """
    found = _of(at).find(fingerprint)
    told = _document(found.group)
    examples = [
        {"job": job_id, **document(attempt, *FAILURE)} for job_id, attempt in found.examples
    ]
    if at.as_json:
        show_json({**told, "shared": found.shared, "examples": examples})
        return
    told["hours"] = " ".join(map(str, told["hours"]))
    show_filled({**told, **{f"by {name}": counts for name, counts in found.shared.items()}})
    for one in examples[1:]:
        click.echo(f"job {one['job']} attempt {one['attempt']} {printable(one['at'])}")
    click.echo(f"job {examples[0]['job']}")
    show_failures(examples[:1])
