"""`milepost jobs`: what is there, how one job stands, what happened to it, and what to do now."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import (
    SECONDS,
    acting,
    id_argument,
    json_option,
    looking,
    page_options,
    reason_option,
    store_option,
)
from milepost.cli.output import (
    entry_document,
    job_document,
    job_summary,
    printable,
    say,
    show_filled,
    show_json,
    show_page,
    show_table,
    tell_cancelled,
    told_of_warnings,
)
from milepost.config import StoreUrl
from milepost.lifecycle import JobState

if TYPE_CHECKING:
    from milepost.handles import JobHandle

COLUMNS = ("id", "kind", "state", "attempt", "queue", "created_at")
STATES = click.Choice([state.value for state in JobState], case_sensitive=False)


@click.group(cls=HelpfulGroup)
def jobs() -> None:
    """List jobs, show one, await it, cancel it, run it again.

    No app is needed. An ID may be cut short where no other job's id begins so.
    """


@jobs.command("ls")
@store_option
@click.option("--state", type=STATES, help="Only those in this state.")
@click.option("--kind", help="Only this kind.")
@click.option("--queue", help="Only this queue.")
@click.option("--latest", is_flag=True, help="Leave out jobs that were run again.")
@page_options
@json_option
def ls(  # noqa: PLR0917 - click passes by name
    store: StoreUrl,
    state: str | None,
    kind: str | None,
    queue: str | None,
    limit: int,
    before: str | None,
    *,
    latest: bool,
    as_json: bool,
) -> None:
    """List jobs, newest first."""
    with looking(store) as lookup:
        found = lookup.jobs.list(
            state=state,
            kind=kind,
            queue=queue,
            superseded=False if latest else None,
            limit=limit,
            cursor=before,
        )
    show_page(COLUMNS, [job_summary(handle) for handle in found], limit=limit, as_json=as_json)


@jobs.command()
@store_option
@id_argument
@json_option
def show(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Show one job: where it stands, what it was given and what came out."""
    with looking(store) as lookup:
        document = job_document(lookup.jobs.find(subject_id))
    if as_json:
        show_json(document)
    else:
        show_filled(document)


@jobs.command()
@store_option
@id_argument
@json_option
def history(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Show every move that a job made, in order.

    Of a job that is older than keep_history, what is older than that is summed up in one line.
    """
    with looking(store) as lookup:
        found = lookup.jobs.find(subject_id).history
    entries = [entry_document(entry) for entry in found]
    if as_json:
        show_json(entries)
        return
    for entry, told in zip(found, entries, strict=True):
        told["detail"] = str(entry.summary or entry.detail or "")
    show_table(tuple(entries[0]), [list(entry.values()) for entry in entries])


@jobs.command()
@store_option
@id_argument
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Give up then.")
@json_option
def wait(store: StoreUrl, subject_id: str, timeout: float | None, *, as_json: bool) -> None:
    """Wait until a job is final, and print its result.

    Exit code 3 when it ended FAILED or CANCELLED, 124 when the time was over first.
    """
    with looking(store) as lookup:
        await_end(lookup.jobs.find(subject_id), timeout, as_json=as_json)


def await_end(
    handle: "JobHandle[Any]", timeout: float | None, *, as_json: bool, app: str | None = None
) -> None:
    """Wait for a job; print its result, or raise what its end means."""
    with told_of_warnings(app), _watched(handle):
        handle.wait(timeout)
    document = job_document(handle)
    if as_json:
        show_json(document)
    elif handle.state == JobState.SUCCEEDED:
        show_json(document["result"])
    if handle.state != JobState.SUCCEEDED:
        _ = handle.result  # raises, and says why


@contextmanager
def _watched(handle: "JobHandle[Any]") -> Iterator[None]:
    """Show on a terminal where the job stands while it is awaited."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots")

    def now() -> Spinner:
        share = f" {handle.progress:.0%} {handle.progress_text or ''}" if handle.progress else ""
        spinner.update(text=printable(f"{handle.kind} {handle.id}: {handle.state.value}{share}"))
        return spinner

    with Live(get_renderable=now, console=Console(stderr=True), transient=True):
        yield


@jobs.command()
@store_option
@id_argument
@reason_option
@json_option
def cancel(store: StoreUrl, subject_id: str, reason: str, *, as_json: bool) -> None:
    """Cancel a job, or ask the worker that runs it to stop."""
    with acting(store) as lookup:
        handle = lookup.jobs.find(subject_id)
        before, now = handle.state, handle.cancel(reason)
        if as_json:
            show_json(job_summary(handle.refresh()))
    tell_cancelled(f"job {handle.id}", before=before, now=now)


@jobs.command()
@store_option
@id_argument
@json_option
def release(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Let a job be tried again that waits because its arguments did not fit.

    `milepost explain ID` says what does not fit. A worker with other parameters does it by itself.
    """
    with acting(store) as lookup:
        handle = lookup.jobs.find(subject_id).release()
        if as_json:
            show_json(job_summary(handle))
            return
    say(f"job {handle.id} is {handle.state} again")


@jobs.command()
@store_option
@id_argument
@click.option("--fresh", is_flag=True, help="Start over, with an idempotency key of its own.")
@json_option
def rerun(store: StoreUrl, subject_id: str, *, fresh: bool, as_json: bool) -> None:
    """Run a finished job again, as a new job that points at the old one; print the new id.

    It goes on from the steps that are recorded, under the same idempotency key. A job that
    SUCCEEDED needs --fresh.
    """
    with acting(store) as lookup:
        handle = lookup.jobs.find(subject_id)
        again = handle.rerun(fresh=fresh).refresh()
        if as_json:
            show_json(job_document(again))
            return
    click.echo(again.id)
    say(f"job {handle.id} runs again as {again.id}")
