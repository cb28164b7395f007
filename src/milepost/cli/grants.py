"""`milepost grants`: the SQL that gives a PostgreSQL role its rights."""

import click

from milepost.cli.options import store_option
from milepost.cli.output import say
from milepost.config import StoreUrl
from milepost.store.roles import ROLES, script


@click.command()
@store_option
@click.option(
    "--role",
    "roles",
    type=click.Choice(list(ROLES)),
    multiple=True,
    help="May be repeated: a login that is both.  [default: each of the four]",
)
@click.option(
    "--to",
    metavar="NAME",
    help="The PostgreSQL role that gets the rights; it must exist.  [default: milepost_ROLE]",
)
def grants(store: StoreUrl, *, roles: tuple[str, ...], to: str | None) -> None:
    """Print the SQL that gives PostgreSQL roles their rights on a store. Nothing is executed.

    Run it as the tables' owner, after `milepost migrate`, and again after an upgrade: it takes
    whatever else the role had in the schema. The schema is that of the store's address.
    """
    if to is not None and not roles:
        raise click.UsageError(
            "--to takes one role's rights, or those of several: name them, --role"
        )
    if not store.can.roles:
        say("a SQLite file has no roles: this is for a PostgreSQL store in the schema milepost")
    click.echo(script(roles or tuple(ROLES), schema=store.schema, to=to), nl=False)
