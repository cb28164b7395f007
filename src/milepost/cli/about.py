"""Commands on the program itself: `milepost completion`, `config` and `machine`."""

import os
from collections.abc import Iterator, Mapping, Sequence

import click

from milepost.cli.command import JSON, Session, StoreGroup
from milepost.cli.output import say, show_json, show_table
from milepost.config import Settings, origins, variable
from milepost.errors import Invalid
from milepost.lifecycle import MACHINES
from milepost.machine import Machine
from milepost.specs import VIEWS, View

HIDDEN = "(set)"
SECRET = ("broker_url", "oidc_client_secret", "secret_key")
SPECS = sorted({spec for views in VIEWS.values() for spec in views})


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: of commands, ids, queues, kinds and other names.

    Put `eval "$(milepost completion bash)"`, or the same with zsh, where your shell starts; for
    fish it is `milepost completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    from milepost.cli import COMPLETE, bash, cli

    bash.register()
    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(script(cli, {}, "milepost", COMPLETE).source())


@click.group(cls=StoreGroup)
def config() -> None:
    """Show the settings, and where each comes from."""


@config.command()
@click.pass_context
def show(context: click.Context, at: Session) -> None:
    """Show every setting, its value and where it comes from. Passwords are left out."""
    given = context.get_parameter_source("store") == click.core.ParameterSource.COMMANDLINE
    settings = Settings.load(os.environ)
    source = {**origins(os.environ), **({"database_url": "--store"} if given else {})}
    values = {"database_url": str(at.store)} | {
        name: _told(name, getattr(settings, name)) for name in settings.__slots__
    }
    for wrong, meant in _mistyped(os.environ, list(values)):
        say(f"{wrong} is no setting; did you mean {meant}?")
    if at.as_json:
        show_json({name: {"value": v, "from": source[name]} for name, v in values.items()})
    else:
        show_table(("setting", "value", "from"), [(n, v, source[n]) for n, v in values.items()])


def _told(name: str, value: object) -> object:
    return HIDDEN if name in SECRET and value else value


def _mistyped(environment: Mapping[str, str], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Find variables that are nearly called like a setting: nobody reads them."""
    from difflib import get_close_matches

    known = list(map(variable, names))
    for found in sorted(environment):
        if found.startswith("MILEPOST_") and found not in known:
            yield from ((found, near) for near in get_close_matches(found, known, 1, 0.85))


@click.command()
@click.argument("name", metavar="|".join(MACHINES), type=click.Choice(list(MACHINES)))
@click.option(
    "--spec",
    type=click.Choice(SPECS, case_sensitive=False),
    help="Use the words of this spec: its vocabulary, and the diagram its reader sees.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["mermaid", "table", "both"]),
    default="both",
    show_default=True,
    help="The diagram, the table, or one after the other.",
)
@click.option("--json", "as_json", is_flag=True, help=JSON.help)
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
    """Say the diagram as data; a new row has no from-state."""
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
