"""`milepost bench`: the speed of a store here, next to hand-written SQL."""

from typing import Any

import click

from milepost.cli import options
from milepost.cli.bars import bar
from milepost.cli.command import Session, StoreCommand
from milepost.cli.output import say, show_json, show_pairs, show_table

MEASURED = {
    "submit": "submit, one to a call",
    "bulk": "submit_many, 1,000 to a call",
    "drain": "drain, one worker",
    "drain_2": "drain, two workers",
    "drain_sync": "drain, one worker, plain functions",
}


@click.command(cls=StoreCommand)
@options.number("--jobs", 10_000, "How many are drained in each round.")
def bench(at: Session, jobs: int) -> None:
    """Measure submitting, draining and pickup, next to hand-written SQL on the same schema.

    Works in stores that it creates and removes: a file next to the SQLite file named, a database of
    its own on the PostgreSQL server named. The store itself is never touched.
    """
    from milepost.bench.measure import STAGES
    from milepost.bench.measure import bench as measure

    with bar("starting") as update:
        report = measure(
            at.store, jobs, lambda name: update(description=name, total=STAGES, advance=1)
        )
    if at.as_json:
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
