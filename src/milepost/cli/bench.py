"""`milepost bench`: what a store can do here, beside SQL written by hand."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

from milepost.cli.options import json_option, store_option
from milepost.cli.output import say, show_json, show_pairs, show_table
from milepost.config import StoreUrl

MEASURED = {
    "submit": "submit, one to a call",
    "bulk": "submit_many, 1,000 to a call",
    "drain": "drain, one worker",
    "drain_2": "drain, two workers",
    "drain_sync": "drain, one worker, plain functions",
}


@click.command()
@store_option
@click.option(
    "--jobs",
    type=click.IntRange(1),
    metavar="N",
    default=10_000,
    show_default=True,
    help="How many are drained in each round.",
)
@json_option
def bench(store: StoreUrl, jobs: int, *, as_json: bool) -> None:
    """Measure submitting, draining and pickup, beside SQL written by hand on the same schema.

    Works in stores that it makes and removes: a file beside the SQLite file named, a database of
    its own on the PostgreSQL server named. What is in the store itself is never touched.
    """
    from milepost.bench.measure import bench as measure

    with _bar() as progress:
        report = measure(store, jobs, progress)
    if as_json:
        show_json(report)
    else:
        _show(report)


def _show(report: dict[str, Any]) -> None:
    rows = [(said, *report[name].values()) for name, said in MEASURED.items()]
    show_table(("what", "jobs/s", "limit jobs/s", "ratio"), rows)
    pickup = report["pickup_ms"]
    show_pairs(
        {
            "pickup": f"p50 {pickup['p50']} ms, p95 {pickup['p95']} ms, p99 {pickup['p99']} ms"
            f" (by hand p50 {pickup['floor_p50']} ms)",
            "memory": f"{report['rss_mib']} MiB for a worker that has drained {report['jobs']:,}",
            "import": f"{report['import_ms']} ms",
        }
    )
    say("the limit is a loop of plain SQL on the same tables and triggers, measured in turn")


@contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being measured; stay silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from milepost.bench.measure import STAGES

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=STAGES)

        def told(name: str) -> None:
            bar.update(task, description=name, advance=1)

        yield told
