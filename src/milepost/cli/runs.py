"""`milepost runs`: what batches are doing, how one run stands, and what to do now."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from milepost.cli.bars import Show, lines, stepwise
from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import json_option, looking, store_option
from milepost.cli.output import (
    run_document,
    run_summary,
    say,
    show_json,
    show_pairs,
    show_table,
    told_of_warnings,
)
from milepost.config import StoreUrl
from milepost.errors import IllegalMove, Invalid
from milepost.lifecycle import RunState

if TYPE_CHECKING:
    from milepost.batch.handles import RunHandle

__all__ = ["await_run", "runs"]

COLUMNS = ("id", "batch", "state", "progress", "cause", "created_at")
STATES = click.Choice([state.value for state in RunState], case_sensitive=False)
run_argument = click.argument("run_id", metavar="ID")


@click.group(cls=HelpfulGroup)
def runs() -> None:
    """List runs of batches, show one, watch it, cancel it, resume it.

    No app is needed. An ID may be cut short where no other run's id begins so.
    """


@runs.command("ls")
@store_option
@click.option("--state", type=STATES, help="Only those in this state.")
@click.option("--batch", "kind", help="Only runs of this batch.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    default=50,
    show_default=True,
    help="At most so many.",
)
@click.option("--before", metavar="ID", help="Go on after the last one of the page before.")
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
    if as_json:
        show_json(summaries)
        return
    if not summaries:
        say("no run fits; nothing to show")
        return
    show_table(COLUMNS, [[summary[name] for name in COLUMNS] for summary in summaries])
    if len(found) == limit:
        say(f"older ones: --before {found[-1].id}")


@runs.command()
@store_option
@run_argument
@json_option
def show(store: StoreUrl, run_id: str, *, as_json: bool) -> None:
    """Show one run: where it stands, its steps, its report, and why jobs of it failed."""
    with looking(store) as lookup:
        document = run_document(lookup.runs.find(run_id))
    if as_json:
        show_json(document)
        return
    steps, errors = document.pop("steps"), document.pop("errors")
    show_pairs({name: value for name, value in document.items() if value not in (None, {})})
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
@run_argument
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up then.")
@json_option
def watch(store: StoreUrl, run_id: str, timeout: float | None, *, as_json: bool) -> None:
    """Watch a run to its end, step by step, and print its report.

    On a terminal each step has a bar; elsewhere there is a line now and then, on stderr. Exit code
    3 when it ended FAILED or CANCELLED, 124 when the time was over first.
    """
    with looking(store) as lookup:
        await_run(lookup.runs.find(run_id), timeout, as_json=as_json, told=True)


def await_run(
    handle: "RunHandle", timeout: float | None, *, as_json: bool, told: bool = False
) -> None:
    """Follow a run to its end; print its report, or raise what its end means."""
    with told_of_warnings(), _followed(told=told) as show:
        for now in handle.watch(timeout):
            show(now)
    document = run_document(handle)
    if as_json:
        show_json(document)
    elif handle.state == RunState.SUCCEEDED:
        show_json(document["report"])
    if handle.state != RunState.SUCCEEDED:
        say(f"`milepost runs show {handle.id}` tells why; `milepost runs resume` tries the rest")
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
@run_argument
@click.option("--reason", default="cancelled", show_default=True, help="Kept on the record.")
@json_option
def cancel(store: StoreUrl, run_id: str, reason: str, *, as_json: bool) -> None:
    """Cancel a run: what has not begun is cancelled, what runs is asked to stop."""
    with looking(store) as lookup:
        handle = lookup.runs.find(run_id)
        before = handle.state
        state = handle.cancel(reason)
        if as_json:
            show_json(run_summary(handle))
    if state == RunState.STOPPING:
        say(f"run {handle.id} is stopping; it ends with the jobs that still run")
    elif before == RunState.CANCELLED:
        say(f"run {handle.id} was cancelled before; nothing to do")
    elif state != RunState.CANCELLED:
        raise IllegalMove(f"run {handle.id} is {state} already; only an open run is cancelled")
    else:
        say(f"run {handle.id} is cancelled")


@runs.command()
@store_option
@run_argument
@json_option
def resume(store: StoreUrl, run_id: str, *, as_json: bool) -> None:
    """Go on with a run that failed or was cancelled, as a new one; print the new id.

    Every job that did not succeed is created again; what succeeded stays, and the new run's report
    is about both.
    """
    with looking(store) as lookup:
        handle = lookup.runs.find(run_id)
        try:
            again = handle.resume().refresh()
        except Invalid as error:
            raise IllegalMove(str(error)) from error
        if as_json:
            show_json(run_document(again))
            return
    click.echo(again.id)
    say(f"run {handle.id} goes on as {again.id}; `milepost runs watch {again.id}` follows it")
