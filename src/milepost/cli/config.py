"""`milepost config`: every setting, its value, and where that comes from."""

import os
from collections.abc import Iterator, Mapping, Sequence

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import json_option, store_option
from milepost.cli.output import say, show_json, show_table
from milepost.config import Settings, StoreUrl, origins, variable


@click.group(cls=HelpfulGroup)
def config() -> None:
    """Show the settings, and where each comes from."""


@config.command()
@store_option
@json_option
@click.pass_context
def show(context: click.Context, store: StoreUrl, *, as_json: bool) -> None:
    """Show every setting, its value and where it comes from. Passwords are left out."""
    given = context.get_parameter_source("store") == click.core.ParameterSource.COMMANDLINE
    settings = Settings.load(os.environ)
    source = {**origins(os.environ), **({"database_url": "--store"} if given else {})}
    values = {"database_url": str(store)} | {
        name: getattr(settings, name) for name in settings.__slots__
    }
    for wrong, meant in _mistyped(os.environ, list(values)):
        say(f"{wrong} is no setting; did you mean {meant}?")
    if as_json:
        show_json({name: {"value": v, "from": source[name]} for name, v in values.items()})
    else:
        show_table(("setting", "value", "from"), [(n, v, source[n]) for n, v in values.items()])


def _mistyped(environment: Mapping[str, str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Find variables that are nearly called like a setting: nobody reads them."""
    from difflib import get_close_matches

    known = list(map(variable, names))
    for found in sorted(environment):
        if found.startswith("MILEPOST_") and found not in known:
            yield from ((found, near) for near in get_close_matches(found, known, 1, 0.85))
