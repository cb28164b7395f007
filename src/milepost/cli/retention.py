"""`milepost retention`: how old anything is at least that retention removes."""

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import acting, json_option, looking, store_option
from milepost.cli.output import say, show_filled, show_json
from milepost.config import StoreUrl, seconds


@click.group(cls=HelpfulGroup)
def retention() -> None:
    """Show and set the minimum age of what retention removes. No app is needed."""


@retention.command()
@store_option
@json_option
def show(store: StoreUrl, *, as_json: bool) -> None:
    """Show the minimum, in seconds, and who set it."""
    from milepost.store.retention import minimum

    with looking(store) as lookup:
        found = lookup.client.run(minimum)
    document = {"min": found.seconds, "set_at": found.set_at, "set_by": found.set_by}
    (show_json if as_json else show_filled)(document)


@retention.command("set")
@store_option
@click.option(
    "--min",
    "least",
    required=True,
    metavar="DURATION",
    help="Nothing that moved within this time is removed or summed up: 1h, 7d; 0s for no minimum.",
)
@json_option
def set_(store: StoreUrl, least: str, *, as_json: bool) -> None:
    """Set the minimum. The database holds every worker to it, whatever its settings say.

    On PostgreSQL that takes the rights of the role admin (see `milepost grants`).
    """
    from milepost.client import caller
    from milepost.store.retention import set_minimum

    asked = seconds(least, "--min")
    with acting(store) as lookup:
        lookup.client.run(set_minimum, asked, actor=caller().actor)
    if as_json:
        show_json({"min": asked})
    say(f"retention removes nothing that moved within the last {least}")
