"""`milepost pipelines tables` and `release`: which pipeline a table is one of."""

import click

from milepost.cli.options import acting, decision_reason, json_option, looking, store_option
from milepost.cli.output import say, show_json, show_table
from milepost.codec import PROSE_BYTES, check_text
from milepost.config import StoreUrl


@click.command()
@store_option
@json_option
def tables(store: StoreUrl, *, as_json: bool) -> None:
    """List which tables pipelines hold and held, who released them and why."""
    from msgspec.structs import asdict

    from milepost.store.tables import holdings

    with looking(store) as lookup:
        rows = [asdict(holding) for holding in lookup.client.run(holdings)]
    if as_json:
        show_json(rows)
    elif rows:
        show_table(tuple(rows[0]), [list(row.values()) for row in rows])
    else:
        say("no pipeline holds a table")


@click.command()
@store_option
@click.argument("table")
@decision_reason
@json_option
def release(store: StoreUrl, table: str, reason: str, *, as_json: bool) -> None:
    """Let another pipeline have a TABLE; who said so and why stays on the record.

    The next pipeline that takes it begins with none of its rows: they count as removed until that
    pipeline reads them. Refused while a run of the pipeline that has it is under way.
    """
    from milepost.client import caller
    from milepost.store.tables import release as releasing

    check_text(reason, what="reason", most=PROSE_BYTES)
    with acting(store) as lookup:
        whose = lookup.client.run(releasing, table, actor=caller().actor, reason=reason)
    if as_json:
        show_json({"table": table, "pipeline": whose})
    else:
        say(f"table {table} is free" + (f"; it was one of pipeline {whose}" if whose else ""))
