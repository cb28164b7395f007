"""`milepost runs`: what batches are doing, how one run stands, and what to do now."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from milepost.cli.bars import Show, lines, stepwise
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
    typed,
)
from milepost.cli.output import (
    run_document,
    run_summary,
    say,
    show_filled,
    show_json,
    show_page,
    show_table,
    tell_cancelled,
    told_of_warnings,
)
from milepost.config import StoreUrl
from milepost.lifecycle import RunState

if TYPE_CHECKING:
    from milepost.batch.handles import RunHandle

COLUMNS = ("id", "batch", "state", "progress", "cause", "created_at")
STATES = click.Choice([state.value for state in RunState], case_sensitive=False)


@click.group(cls=HelpfulGroup)
def runs() -> None:
    """List runs of batches, show one, watch it, cancel it, resume it.

    No app is needed. An ID may be cut short where no other run's id begins so.
    """


@runs.command("ls")
@store_option
@click.option("--state", type=STATES, help="Only those in this state.")
@click.option("--batch", "kind", help="Only runs of this batch.")
@page_options
@json_option
def ls(
    store: StoreUrl,
    state: str | None,
    kind: str | None,
    limit: int,
    before: str | None,
    *,
    as_json: bool,
) -> None:
    """List runs, newest first."""
    with looking(store) as lookup:
        found = lookup.runs.list(state=state, kind=kind, limit=limit, cursor=before)
        summaries = [run_summary(handle) for handle in found]
    show_page(COLUMNS, summaries, limit=limit, as_json=as_json)


@runs.command()
@store_option
@id_argument
@json_option
def show(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Show one run: where it stands, its steps, its report, and why jobs of it failed."""
    with looking(store) as lookup:
        document = run_document(lookup.runs.find(subject_id))
    if as_json:
        show_json(document)
        return
    steps, errors = document.pop("steps"), document.pop("errors")
    show_filled(document)
    click.echo()
    _show_rows(steps)
    if errors:
        click.echo()
        _show_rows(errors)


def _show_rows(rows: object) -> None:
    if isinstance(rows, list) and rows:
        show_table(tuple(rows[0]), [list(row.values()) for row in rows])


@runs.command()
@store_option
@id_argument
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Give up then.")
@json_option
def watch(store: StoreUrl, subject_id: str, timeout: float | None, *, as_json: bool) -> None:
    """Watch a run to its end, step by step, and print its report.

    On a terminal each step has a bar; elsewhere there is a line now and then, on stderr. Exit code
    3 when it ended FAILED or CANCELLED, 124 when the time was over first.
    """
    with looking(store) as lookup:
        await_run(lookup.runs.find(subject_id), timeout, store, as_json=as_json)


def await_run(
    handle: "RunHandle",
    timeout: float | None,
    store: StoreUrl,
    *,
    as_json: bool,
    app: str | None = None,
) -> None:
    """Follow a run to its end; print its report, or raise what its end means.

    With an app it is one that was just started, and there are no lines of its progress.
    """
    with told_of_warnings(app), _followed(told=app is None) as show:
        for now in handle.watch(timeout):
            show(now)
    document = run_document(handle)
    if as_json:
        show_json(document)
    elif handle.state == RunState.SUCCEEDED:
        show_json(document["report"])
    if handle.state != RunState.SUCCEEDED:
        why, rest = typed(f"runs show {handle.id}", store), typed(f"runs resume {handle.id}", store)
        say(f"{why} tells why; {rest} tries the rest")
        _ = handle.report  # raises, and says how it ended


@contextmanager
def _followed(*, told: bool) -> Iterator[Show]:
    """Show bars on a terminal; elsewhere lines, if they are wanted."""
    if not sys.stderr.isatty():
        yield lines(say) if told else lambda _run: None
        return
    from rich.console import Console

    with stepwise(Console(stderr=True), say) as show:
        yield show


@runs.command()
@store_option
@id_argument
@reason_option
@json_option
def cancel(store: StoreUrl, subject_id: str, reason: str, *, as_json: bool) -> None:
    """Cancel a run: what has not begun is cancelled, what runs is asked to stop."""
    with acting(store) as lookup:
        handle = lookup.runs.find(subject_id)
        before, now = handle.state, handle.cancel(reason)
        if as_json:
            show_json(run_summary(handle))
    tell_cancelled(f"run {handle.id}", before=before, now=now)


@runs.command()
@store_option
@id_argument
@json_option
def resume(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Go on with a run of which something failed or was cancelled, as a new one; print its id.

    Every job that did not succeed is created again; what succeeded stays, and the new run's report
    is about both.
    """
    with acting(store) as lookup:
        handle = lookup.runs.find(subject_id)
        again = handle.resume().refresh()
        if as_json:
            show_json(run_document(again))
            return
    click.echo(again.id)
    follows = typed(f"runs watch {again.id}", store)
    say(f"run {handle.id} goes on as {again.id}; {follows} follows it")
