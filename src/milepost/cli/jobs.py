"""Commands on one job or many: `milepost submit`, `jobs`, `explain` and `replay`."""

import shlex
import sys
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, get_args
from uuid import uuid4

import click
import msgspec

from milepost.cli import complete, options, subjects
from milepost.cli.command import AppSession, Session, StartCommand, StoreCommand, StoreGroup
from milepost.cli.output import printable, say, show_json, show_rows
from milepost.cli.values import advice, find_declared, kinds, load_app, pairs, value
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.lifecycle import JOB, JobState
from milepost.options import OnConflict

if TYPE_CHECKING:
    from milepost.bulk import BulkCount, BulkOrder
    from milepost.handles import JobHandle
    from milepost.history import Entry
    from milepost.job import Job
    from milepost.outcome import LogLine

COLUMNS = ("id", "kind", "state", "attempt", "queue", "age", "ran", "error")
LOOKS = 20
"""How many times a search looks on by itself, each at some thousand jobs."""
NARROW = 110
"""On a terminal that is not so wide the error has no room beside all of them."""
FOLLOW_SECONDS = 0.5


@click.command(cls=StartCommand)
@click.argument("kind", shell_complete=complete.kinds)
@click.argument("values", metavar="[ARG]...", nargs=-1)
@options.repeated("--set", "named", metavar="NAME=VALUE", text="An argument by name.")
@click.option("--queue", shell_complete=complete.queues, help="Another queue than the kind's own.")
@options.seconds("--start-in", "Not before then.")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="Instead of the kind's own.")
@click.option("--unique", metavar="KEY", help="At most one such job that is not final.")
@click.option(
    "--on-conflict",
    type=click.Choice(get_args(OnConflict)),
    help="What becomes of one with the key that was never claimed.",
)
@options.seconds("--unique-for", "The key stays taken for so long, also when its job has ended.")
@click.option("--limit-key", metavar="KEY", help="What its limit counts it under.")
@click.option("--units", type=float, metavar="N", help="What it reserves of its limit's rate.")
@options.creation
def submit(
    at: AppSession,
    kind: str,
    values: tuple[str, ...],
    named: tuple[str, ...],
    tags: tuple[str, ...],
    **chosen: Any,
) -> "JobHandle[Any]":
    """Submit a job and print its id.

    APP is MODULE:APP, as in app:app, or a file, as in app.py. Each value is JSON if it parses, else
    a string: 42 is a number, '"42"' a string. Values that begin with a dash go after `--`.
    """
    job = _declared(at, kind).options(tags=pairs("--tag", tags) or None, **chosen)
    given = pairs("--set", named)
    try:
        return job.submit(
            *map(value, values), **{name: value(text) for name, text in given.items()}
        )
    except Invalid as error:
        known = job.definition.arguments.names
        typed_in = {**dict(zip(known, values, strict=False)), **given}
        raise Invalid(f"{error}{advice(str(error), typed_in, known)}") from error


def _declared(at: AppSession, kind: str) -> "Job[..., ..., Any, Any]":
    from milepost.job import Job

    known = kinds(at.app)
    if kind not in known and kind in {batch.name for batch in at.app.batches}:
        start = shlex.join(["milepost", "batches", "start", at.target, kind])
        raise Invalid(f"{kind} is a batch: `{start}` starts it")
    return Job(at.app, find_declared("job", kind, known))


@click.group(cls=StoreGroup)
def jobs() -> None:
    """List jobs, show one, await it, cancel it, run it again.

    No app is needed. An unambiguous id prefix is enough.
    """


@jobs.command("ls")
@options.state(*JobState)
@click.option("--kind", shell_complete=complete.kinds, help="Only this kind.")
@click.option("--queue", shell_complete=complete.queues, help="Only this queue.")
@options.where("Only jobs that fit")
@click.option("--latest", is_flag=True, help="Leave out jobs that were run again.")
@options.limit()
@options.before
def ls(at: Session, *, limit: int, before: str | None, latest: bool, **filters: Any) -> None:
    """List jobs, newest first.

    A filter has KEY:VALUE terms, and all must hold: 'state:failed kind:convert,load age:<1h'. A
    comma is "or", a leading dash "not". Keys: state kind queue tag.NAME run created age duration
    error fingerprint worker tenant key.
    """
    filters["superseded"] = False if latest else None
    found = at.jobs.list(limit=limit, cursor=before, **filters)
    for _ in range(LOOKS):
        if found.looked_to is None:
            break
        room = limit - len(found)
        found = at.jobs.list(limit=room, cursor=found.next, **filters).after(found)
    rows = [subjects.job_line(job, as_json=at.as_json) for job in found]
    is_narrow = sys.stdout.isatty() and get_terminal_size().columns < NARROW
    left_out = ("attempt", "queue") if is_narrow else ()
    columns = [name for name in COLUMNS if name not in left_out]
    if found.looked_to is None:
        subjects.show_page(at, rows, *columns, limit=limit)
        return
    at.table(rows, *columns, empty="none fits so far")
    # Also where a program reads: what it gets is not all that there may be.
    say(f"looked at jobs back to {printable(found.looked_to)}; go on: --before {found.next}")


@jobs.command()
@options.subject_id
def show(at: Session, subject_id: str) -> None:
    """Show one job: its state, its arguments and result, and why attempts of it failed."""
    shown = subjects.job_document(at.jobs.find(subject_id))
    if at.as_json:
        show_json(shown)
        return
    failed = shown.pop("failures")
    at.show(shown)
    subjects.show_failures(failed)


@jobs.command()
@options.subject_id
def history(at: Session, subject_id: str) -> None:
    """Show every move that a job made, in order.

    Moves that are older than keep_history are summed up in one line. With keep_audit those of a job
    that has left are shown too, by its whole id.
    """
    found = _history(at, subject_id)
    entries = [subjects.entry_document(entry) for entry in found]
    if at.as_json:
        show_json(entries)
        return
    for entry, told in zip(found, entries, strict=True):
        told["detail"] = str(entry.summary or entry.detail or "")
    show_rows(entries)


@jobs.command("logs")
@options.subject_id
@click.option("--follow", "-f", is_flag=True, help="Go on until the job is final.")
def show_logs(at: Session, subject_id: str, *, follow: bool) -> None:
    """Show the last lines that a job has logged, at most 200, and 64 KiB.

    They are written while it runs, about once a second. With --json each line is an object.
    """
    from milepost.store import logs

    handle, last = at.jobs.find(subject_id), 0
    while True:
        ended = handle.refresh().state in JOB.terminal  # then no line comes after those read now
        for line in at.client.run(logs.read, handle.id, after=last):
            _show_line(line, last, as_json=at.as_json)
            last = line.n
        if ended or not follow:
            break
        time.sleep(FOLLOW_SECONDS)
    if not last and not at.as_json:
        say(f"job {handle.id} has logged nothing at the level of its worker (--log-level)")


def _show_line(line: "LogLine", last: int, *, as_json: bool) -> None:
    """Show a line, and before it how many were not kept since the last one."""
    if as_json:
        click.echo(msgspec.json.encode(line))
        return
    if missing := line.n - last - 1:
        click.echo(f"… {missing:,} {'line was' if missing == 1 else 'lines were'} not kept")
    text = "\n  ".join(map(printable, line.text.splitlines()))
    click.echo(f"{line.at:%Y-%m-%d %H:%M:%S} {line.level:<8} {line.attempt} {text}")


def _history(at: Session, subject_id: str) -> "list[Entry]":
    """Read every move of a job, or those that are kept of one that has left."""
    from milepost.store import journal
    from milepost.subjects import checked_id

    try:
        return at.jobs.find(subject_id).history
    except NotFound:
        if kept := at.client.run(journal.history, checked_id(subject_id)):
            return kept
        raise


@jobs.command()
@options.subject_id
@options.timeout
def wait(at: Session, subject_id: str, timeout: float | None) -> None:
    """Wait until a job is final, and print its result.

    Exit code 3 when it ended FAILED or CANCELLED, 124 when the time was over first.
    """
    subjects.await_end(at, at.jobs.find(subject_id), timeout)


@jobs.command(access="write")
@options.chosen
@options.reason("cancelled")
def cancel(at: Session, subject_id: str | None, reason: str, **many: Any) -> None:
    """Cancel a job, or ask the worker that runs it to stop; or all jobs that fit a filter."""
    if (job_id := _one(subject_id, **many)) is None:
        _act_on_all(at, "cancel", reason=reason, **many)
    else:
        subjects.cancel(at, at.jobs.find(job_id), reason)


def _one(subject_id: str | None, *, where: str | None, yes: bool, rate: float | None) -> str | None:
    """Return the id of the one job that is meant, None if a filter says which."""
    if (subject_id is None) == (where is None):
        raise click.UsageError("give an ID, or --where with a filter")
    if yes and where is None:
        raise click.UsageError("--yes is for --where")
    if rate is not None and where is None:
        raise click.UsageError("--rate is for --where")
    return subject_id


def _act_on_all(at: Session, action: str, *, where: str, yes: bool, **how: Any) -> None:
    """Count the jobs that fit, ask, and have a job act on them; run it here unless a worker does.

    Whoever cancels that job, or presses Ctrl-C here, stops the rest.
    """
    from milepost import filters
    from milepost.app import App
    from milepost.bulk import QUEUE

    sought = filters.parse(where)
    app = App(at.store.address)
    try:
        order = app.bulk.order(action, sought, **how)
        if order.total == 0 and order.counted:
            at.answer({"matched": 0, "done": 0}, "none fits; nothing to do")
            return
        if not yes:
            click.confirm(_question(order), abort=True, err=True)
        job = app.bulk.submit(order)
        say(f"job {job.id} does it; {at.typed(f'jobs cancel {job.id}')} stops it")
        subjects.follow_here(job, lambda: app.drain(queues=[QUEUE]))
        _tell_done(at, job, action)
    finally:
        app.close()


def _question(order: "BulkOrder") -> str:
    many = "" if order.counted else " or more"
    said = f"{order.total:,}{many} {'job fits' if order.total == 1 else 'jobs fit'}"
    return f"{said}; {order.action} {'it' if order.total == 1 else 'them'}?"


def _tell_done(at: Session, job: "JobHandle[BulkCount]", action: str) -> None:
    """Say on how many jobs a job acted; of one that was stopped, how far it came."""
    if job.refresh().state != "SUCCEEDED":
        far = job.progress_text or "no job"
        say(f"{action}: it came to {far}; what was done stays done")
    done = job.result  # raises unless it succeeded
    left = done.matched - done.done
    passed = f"; {left:,} could not be acted on as they stand" if left else ""
    told = {"job": job.id, "matched": done.matched, "done": done.done}
    at.answer(told, f"{action}: {done.done:,} of {done.matched:,} jobs{passed}")


@jobs.command("run-now", access="write")
@options.subject_id
def run_now(at: Session, subject_id: str) -> None:
    """Run a job that waits for its time before that: a start, a retry, a poll."""
    handle = at.jobs.find(subject_id).run_now()
    at.answer(subjects.job_summary(handle), f"job {handle.id} is {handle.state}")


@jobs.command(access="write")
@options.subject_id
@click.argument("data", required=False)
def signal(at: Session, subject_id: str, data: str | None) -> None:
    """Wake a job that waits, with DATA for its next attempt, which finds it in `ctx.signals()`.

    DATA is JSON, or else a text. A job that does not wait finds it at its next attempt.
    """
    handle = at.jobs.find(subject_id)
    if not handle.signal(None if data is None else value(data)):
        raise IllegalMove(f"job {handle.id} has ended; nothing waits for a signal")
    handle.refresh()
    at.answer(subjects.job_summary(handle), f"job {handle.id} is {handle.state}")


@jobs.command(access="write")
@options.subject_id
def release(at: Session, subject_id: str) -> None:
    """Retry a job that waits because its arguments did not fit.

    `milepost explain ID` names the mismatch. A worker with other parameters does it by itself.
    """
    handle = at.jobs.find(subject_id).release()
    at.answer(subjects.job_summary(handle), f"job {handle.id} is {handle.state} again")


@jobs.command(access="write")
@options.chosen
@click.option("--fresh", is_flag=True, help="Start over, with an idempotency key of its own.")
def rerun(at: Session, subject_id: str | None, *, fresh: bool, **many: Any) -> None:
    """Run a finished job again, as a new job that points at the old one; print the new id.

    It goes on from the steps that are recorded, under the same idempotency key. A job that
    SUCCEEDED needs --fresh. With --where all jobs that fit and may be run again are.
    """
    if (job_id := _one(subject_id, **many)) is None:
        _act_on_all(at, "rerun", fresh=fresh, **many)
        return
    handle = at.jobs.find(job_id)
    again = handle.rerun(fresh=fresh).refresh()
    if at.as_json:
        show_json(subjects.job_document(again))
        return
    click.echo(again.id)
    say(f"job {handle.id} runs again as {again.id}")


@jobs.command(access="write")
@options.chosen
def erase(at: Session, subject_id: str | None, **many: Any) -> None:
    """Empty a finished job of its content: arguments, result, errors. Its history stays."""
    if (job_id := _one(subject_id, **many)) is None:
        _act_on_all(at, "erase", **many)
        return
    from milepost.store import jobs as stored

    handle = at.jobs.find(job_id)
    if not at.client.run(stored.erase, handle.id, actor=at.actor):
        raise IllegalMove(f"job {handle.id} has not ended; cancel it first")
    at.answer(subjects.job_summary(handle.refresh()), f"job {handle.id} is erased")


@click.command(cls=StoreCommand)
@click.option(
    "--app",
    "target",
    metavar="APP",
    help="MODULE:APP or a file: its functions declared with @app.reply read the replies.",
)
@options.subject_id
def replay(at: Session, target: str | None, subject_id: str) -> None:
    """Read a finished request's recorded replies again, offline, as a new job linked to it.

    Nothing is sent. The new job runs here and now; its result, or why it failed, is printed. Exit
    code 3 unless it succeeded.
    """
    from milepost.app import App

    app = load_app(target) if target else App(at.store.address)
    try:
        # A queue of its own: other jobs that are due are left to the workers.
        queue = f"replay-{uuid4().hex[:12]}"
        job = app.replay(app.jobs.find(subject_id).id, queue=queue)
        say(f"job {job.id}")
        app.drain(queues=[queue])
        subjects.await_end(at, job, 10.0)
    finally:
        app.close()
