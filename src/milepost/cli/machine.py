"""`milepost machine`: show a lifecycle as a diagram and a table, or in the words of one spec."""

import click

from milepost.cli.options import json_option
from milepost.cli.output import show_json
from milepost.errors import Invalid
from milepost.lifecycle import MACHINES
from milepost.machine import Machine
from milepost.specs import VIEWS, View

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
@json_option
def machine(name: str, spec: str | None, form: str, *, as_json: bool) -> None:
    """Show a lifecycle: every state, every legal move, and when it is made."""
    if as_json:
        show_json(_document(MACHINES[name], view_of(name, spec) if spec else None))
        return
    shown = view_of(name, spec) if spec else MACHINES[name]
    parts = {"mermaid": shown.mermaid, "table": shown.table}
    wanted = parts if form == "both" else [form]
    click.echo("\n\n".join(parts[part]() for part in wanted))


def _document(machine: Machine, view: View | None) -> dict[str, object]:
    """Say what the diagram draws; a new row has no from-state."""
    if view is None:
        states = [state.value for state in machine.states]
        final = [state for state in states if state in machine.terminal]
        moves = [(move.name, *pair) for move in machine.moves for pair in move.pairs]
    else:
        states = list(dict.fromkeys(word.name for word in view.words))
        ends = {name for state in machine.terminal for name in view.names(state)}
        final = [state for state in states if state in ends]
        moves = [(m, *edge) for edge, names in sorted(view.edges.items()) for m in names]
    return {
        "machine": machine.name,
        "spec": None if view is None else view.spec,
        "states": states,
        "terminal": final,
        "moves": [{"move": m, "from": source or None, "to": target} for m, source, target in moves],
    }


def view_of(name: str, spec: str) -> View:
    """Find a spec's words for a machine, or say which specs have some."""
    views = VIEWS[name]
    if spec not in views:
        raise Invalid(
            f"spec {spec} has no words for the {name} machine; try --spec {' or '.join(views)}"
        )
    return views[spec]
