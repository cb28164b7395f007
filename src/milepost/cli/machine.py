"""`milepost machine`: show a lifecycle as a diagram and a table, or in the words of one spec."""

import click

from milepost.errors import Invalid
from milepost.lifecycle import MACHINES
from milepost.specs import VIEWS, View

__all__ = ["machine"]

SPECS = sorted({spec for views in VIEWS.values() for spec in views})


@click.command()
@click.argument("name", metavar="|".join(MACHINES), type=click.Choice(list(MACHINES)))
@click.option(
    "--spec",
    type=click.Choice(SPECS, case_sensitive=False),
    help="Speak the words of this spec: its vocabulary, and the diagram its reader sees.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "table", "both"]),
    default="both",
    show_default=True,
    help="The diagram, the table, or one after the other.",
)
def machine(name: str, spec: str | None, form: str) -> None:
    """Show a lifecycle: every state, every legal move, and when it is made."""
    shown = view_of(name, spec) if spec else MACHINES[name]
    parts = {"mermaid": shown.mermaid, "table": shown.table}
    wanted = parts if form == "both" else [form]
    click.echo("\n\n".join(parts[part]() for part in wanted))


def view_of(name: str, spec: str) -> View:
    """Find a spec's words for a machine, or say which specs have some."""
    views = VIEWS[name]
    if spec not in views:
        raise Invalid(
            f"spec {spec} has no words for the {name} machine; try --spec {' or '.join(views)}"
        )
    return views[spec]
