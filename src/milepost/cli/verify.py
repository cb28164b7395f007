"""`milepost verify`: the journal, folded from empty, against the live rows; and their guards."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from milepost.cli.options import store_option
from milepost.config import StoreUrl
from milepost.observe.verify import Verdict
from milepost.observe.verify import verify as compare
from milepost.store.connect import open_driver
from milepost.store.migrate import check

SHOWN = 20
EVERY = 2_000


@click.command()
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as one JSON object.")
def verify(store: StoreUrl, *, as_json: bool) -> None:
    """Fold the journal from empty and compare it with the live rows; then compare the guards.

    The triggers, functions, constraints and unique indexes that stand in the database are compared
    with those that this program renders, so one that was disabled, dropped or altered is named. On
    PostgreSQL that takes the right to create a schema, which is rolled back; a role without it is
    told, and only finds the disabled ones.

    Exit code 0: they agree. 1: they do not, and each difference is named. What it cannot know:
    times are not compared (a clock may have been set), and of a history that was summed up neither
    since when it was nor who claimed the job last can be checked, for those entries are gone.
    """
    driver = open_driver(store, look=True)
    try:
        check(driver, store)
        with _bar() as advance:
            verdict = compare(driver, progress=advance)
    finally:
        driver.close()
    report(verdict, as_json=as_json)
    sys.exit(0 if verdict.clean else 1)


def report(verdict: Verdict, *, as_json: bool) -> None:
    """Print the verdict: for people, or for programs."""
    if as_json:
        click.echo(json.dumps(_document(verdict)))
        return
    for problem in verdict.problems[:SHOWN]:
        click.echo(str(problem))
    if verdict.found > SHOWN:
        click.echo(f"… and {verdict.found - SHOWN} more (--json lists up to 1,000)")
    word = "clean" if verdict.clean else f"{verdict.found} problems"
    click.echo(
        f"{word}: {verdict.entries:,} entries folded, {verdict.rows:,} live rows compared, "
        f"{verdict.pruned:,} pruned, {_guarded(verdict)}"
    )


def _guarded(verdict: Verdict) -> str:
    if verdict.guards is None:
        return "guards not compared: run it as the tables' owner, who may create a schema"
    return f"{verdict.guards} guards compared"


def _document(verdict: Verdict) -> dict[str, object]:
    return {
        "clean": verdict.clean,
        "entries": verdict.entries,
        "rows": verdict.rows,
        "pruned": verdict.pruned,
        "guards": verdict.guards,
        "found": verdict.found,
        "problems": [
            {"machine": p.machine, "id": p.subject_id, "problem": p.text} for p in verdict.problems
        ],
    }


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal; stay silent elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("verifying", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("entries", total=None)

        def advance(done: int, total: int) -> None:
            if done % EVERY == 0 or done == total:
                bar.update(task, completed=done, total=total)

        yield advance
