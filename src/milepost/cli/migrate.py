"""`milepost migrate`: bring a store's schema to this version, or print what that would run."""

from pathlib import Path

import click

from milepost.cli.options import json_option, store_option
from milepost.cli.output import say, show_json
from milepost.config import StoreUrl
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate as apply
from milepost.store.migrate import migrations, pending, script


@click.command()
@store_option
@click.option("--sql", is_flag=True, help="Print the SQL that is missing, and change nothing.")
@click.option(
    "--dialect",
    type=click.Choice(["postgres", "sqlite"]),
    help="With --sql: print every migration of this database, without connecting.",
)
@json_option
def migrate(store: StoreUrl, *, sql: bool, dialect: str | None, as_json: bool) -> None:
    """Bring a store's schema to this version.

    Numbered migrations are applied in order, all in one transaction; two runners wait for each
    other, and running it again changes nothing. On PostgreSQL a store is in the schema milepost, or
    in the one that its address names (?schema=NAME).
    """
    if dialect and not sql:
        raise click.UsageError("--dialect goes with --sql")
    if sql and as_json:
        raise click.UsageError("--sql prints SQL, and --json JSON: choose one")
    if dialect:
        click.echo(script(dialect, list(migrations(dialect)), schema=store.schema), nl=False)
        return
    if sql and store.can.file and not Path(store.target).exists():
        click.echo(script(store.dialect, list(migrations(store.dialect))), nl=False)
        return
    driver = open_driver(store, look=sql)
    try:
        if sql:
            missing = pending(driver)
            click.echo(script(driver.dialect, missing, schema=store.schema), nl=False)
            if not missing:
                say(f"{store} is up to date: nothing is missing")
            return
        applied = apply(driver)
    finally:
        driver.close()
    for migration in applied:
        click.echo(f"applied {migration.name}", err=True)
    if as_json:
        show_json({"store": str(store), "applied": [migration.name for migration in applied]})
        return
    click.echo(f"{store} is up to date" if not applied else f"{store}: {len(applied)} applied")
