"""Commands that look at one thing closely: `milepost explain` and `milepost at`."""

from datetime import UTC, datetime, timedelta

import click

from milepost.cli import complete
from milepost.cli.command import Session, StoreCommand
from milepost.cli.output import document, printable, show_json
from milepost.config import seconds
from milepost.errors import Invalid, NotFound

WORDS = click.argument(
    "words", metavar="ID | SUBJECT NAME", nargs=-1, required=True, shell_complete=complete.subjects
)


@click.command(cls=StoreCommand)
@WORDS
def explain(at: Session, words: tuple[str, ...]) -> None:
    """Say why something stands where it does, and what happens next. No app is needed.

    An ID is that of a job or a run; an unambiguous beginning is enough. Otherwise name one:
    `queue NAME`, `schedule NAME`, `channel NAME` or `pipeline NAME`. The first reason is the
    nearest; then comes what is not the cause of a job that waits, and last what will happen next.
    """
    from milepost.store.blockers import explain_any

    told = at.client.run(explain_any, *_subject(at, words))
    if at.as_json:
        names = ("subject", "id", "kind", "state", "reasons", "details", "ruled_out", "next")
        show_json({name: getattr(told, name) for name in names})
        return
    click.echo(printable(f"{told.heading}:"))
    for detail in told.details:
        click.echo(f"  {printable(detail)}")
    if told.ruled_out:
        click.echo(f"  not the cause: {printable(', '.join(told.ruled_out))}")
    click.echo(f"  next: {printable(told.next)}")


NAMED = ("queue", "schedule", "channel", "pipeline")


def _subject(at: Session, words: tuple[str, ...]) -> tuple[str, str]:
    """Read an id, or a kind of thing and its name."""
    match words:
        case [subject_id] if subject_id not in NAMED:
            return _found(at, subject_id)
        case [subject, subject_id] if subject in ("job", "run"):
            finder = at.jobs if subject == "job" else at.runs
            return subject, finder.find(subject_id).id
        case [subject, name] if subject in NAMED:
            return subject, name
    raise click.UsageError(f"give an id, or one of {', '.join(NAMED)} and its name")


def _found(at: Session, beginning: str) -> tuple[str, str]:
    """Find the job or run that an id begins with."""
    try:
        return "job", at.jobs.find(beginning).id
    except NotFound as error:
        try:
            return "run", at.runs.find(beginning).id
        except NotFound:
            raise error from None


@click.command("at", cls=StoreCommand)
@click.argument("time")
@WORDS
def at(session: Session, time: str, words: tuple[str, ...]) -> None:
    """Show a job, a run or a queue as it stood at a time, folded from the journal.

    TIME is ISO 8601, in UTC unless it says otherwise, or how long ago: 10m, 2h, 1d. Then an ID of a
    job or a run, or `queue NAME`. Of a queue the jobs are counted that are still kept.
    """
    from milepost.store import journal, queues, workers

    now = session.client.run(workers.now)
    moment = _moment(time, now)
    if moment > now:
        said = printable(now)
        raise click.BadParameter(f"{time!r} is still to come; it is {said}", param_hint="TIME")
    subject, name = _subject(session, words)
    if subject == "queue":
        session.client.run(queues.require, name)
        counts = session.client.run(journal.queue_at, name, moment)
        session.show({"subject": subject, "id": name, "at": moment, "counts": counts})
        return
    if subject in NAMED:
        raise Invalid(f"the journal is of jobs and runs: a {subject} has none")
    stood = session.client.run(journal.standing_at, name, moment, machine=subject)
    counters = ("errors", "losses", "polls", "releases") if subject == "job" else ()
    names = ("subject", "id", "at", "state", "move", "attempt", "fence", *counters)
    session.show(document(stood, *names, subject=subject, id=name, at=moment))


def _moment(text: str, now: datetime) -> datetime:
    """Read a time, or how long ago it was."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - timedelta(seconds=seconds(text, "TIME"))
        except (Invalid, OverflowError) as error:
            told = "expected ISO 8601, as 2026-07-01T12:00, or how long ago, as 10m"
            raise click.BadParameter(f"{text!r}: {told}", param_hint="TIME") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
