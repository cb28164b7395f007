"""`milepost explain ID`: why a job is, or is not, running."""

import click

from milepost.cli.options import id_argument, json_option, looking, store_option
from milepost.cli.output import printable, show_json
from milepost.config import StoreUrl


@click.command()
@store_option
@id_argument
@json_option
def explain(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Say why a job is, or is not, running now. No app is needed."""
    with looking(store) as lookup:
        told = lookup.jobs.find(subject_id).explain()
    if as_json:
        show_json(
            {
                "id": told.job_id,
                "kind": told.kind,
                "state": told.state.value,
                "reasons": told.reasons,
                "details": told.details,
            }
        )
        return
    click.echo(printable(f"job {told.job_id} ({told.kind}) is {told.state}:"))
    for detail in told.details:
        click.echo(f"  {printable(detail)}")
