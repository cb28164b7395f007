"""`milepost batches`: what is declared, what has run, and a run from a prompt."""

from typing import TYPE_CHECKING, Any

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.load import load_app
from milepost.cli.options import creation_options, json_option, looking, store_option, typed
from milepost.cli.output import run_document, say, show_json, show_table
from milepost.cli.values import advice, no_such, pairs, value
from milepost.cli.values import document as whole
from milepost.config import StoreUrl
from milepost.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from milepost.app import App
    from milepost.batch.declaration import FailurePolicy, Step
    from milepost.batch.start import Batch


@click.group(cls=HelpfulGroup)
def batches() -> None:
    """List batches, start a run of one."""


@batches.command("ls")
@store_option
@click.argument("app", metavar="[APP]", required=False)
@json_option
@click.pass_context
def ls(context: click.Context, store: StoreUrl, app: str | None, *, as_json: bool) -> None:
    """List the batches that have runs; with APP also its declared ones, with their steps.

    APP is MODULE:APP, as in app:app, or a file, as in app.py; its own store is looked at.
    """
    loaded = None if app is None else load_app(app)
    if loaded is not None:
        if context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
            raise Invalid("APP has a store of its own; leave out --store, or APP")
        store = loaded.client.url
    counts = _counts(store, is_needed=loaded is None)
    documents = _documents(loaded, counts)
    if as_json:
        show_json(documents)
    elif documents:
        show_table(tuple(documents[0]), [_cells(document) for document in documents])
    else:
        none = "with an APP the declared ones are listed too"
        say(f"no batch has run here; {none if app is None else f'{app} declares none'}")


def _counts(store: StoreUrl, *, is_needed: bool) -> dict[str, dict[str, int]]:
    """Count runs; what an app declares can be told without a store that is set up."""
    try:
        with looking(store) as lookup:
            return lookup.runs.counts()
    except Unavailable as error:
        if is_needed:
            raise
        say(f"milepost: {error}")
        return {}


def _documents(app: "App | None", counts: dict[str, dict[str, int]]) -> list[dict[str, object]]:
    if app is None:
        return [{"batch": name, "runs": states} for name, states in counts.items()]
    declared: list[dict[str, object]] = [
        {
            "batch": batch.name,
            "version": batch.version,
            "policy": _policy(batch.policy),
            "steps": [_step(step) for step in _line(batch)],
            "runs": counts.get(batch.name, {}),
        }
        for batch in app.batches
    ]
    names = {batch.name for batch in app.batches}
    others: list[dict[str, object]] = [
        {"batch": name, "version": None, "policy": None, "steps": [], "runs": states}
        for name, states in counts.items()
        if name not in names
    ]
    return [*declared, *others]


def _line(batch: "Batch") -> "list[Step]":
    return [*batch.steps, *([] if batch.reducer is None else [batch.reducer])]


def _step(step: "Step") -> dict[str, object]:
    return {"name": step.name, "role": step.role, "gated": step.gated, "poll": step.poll}


def _policy(policy: "FailurePolicy") -> str:
    share = getattr(policy, "share", None)
    return type(policy).__name__ + ("" if share is None else f"({share:g})")


def _cells(document: dict[str, object]) -> list[object]:
    return [_cell(value) for value in document.values()]


def _cell(given: Any) -> object:
    if isinstance(given, dict):
        return ", ".join(f"{count} {state}" for state, count in given.items())
    if isinstance(given, list):
        return ", ".join(f"{step['name']}{_trait(step)}" for step in given)
    return given


def _trait(step: dict[str, Any]) -> str:
    traits = [
        *(["gated"] if step["gated"] else []),
        *([f"polls after {step['poll']:g} s"] if step["poll"] is not None else []),
        *(["reducer"] if step["role"] == "reduce" else []),
    ]
    return f" ({', '.join(traits)})" if traits else ""


@batches.command()
@click.argument("app", metavar="APP")
@click.argument("name")
@click.argument("parameters", metavar="[JSON]", required=False)
@click.option("--set", "named", multiple=True, metavar="NAME=VALUE", help="A parameter by name.")
@click.option("--reuse", is_flag=True, help="Take the live run with the same parameters, if any.")
@creation_options
def start(  # noqa: PLR0917 - click passes by name
    app: str,
    name: str,
    parameters: str | None,
    named: tuple[str, ...],
    tags: tuple[str, ...],
    timeout: float | None,
    *,
    wait: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Start a run of the newest version of a batch, and print its id.

    APP is MODULE:APP, as in app:app, or a file, as in app.py. The parameters are one JSON document
    or given by name; each value by name is JSON if it parses, else a string.
    """
    loaded = load_app(app)
    batch = _declared(loaded, name)
    given = _parameters(parameters, named)
    asked = {option: value for option, value in options.items() if value is not None}
    try:
        run = batch.start(given, tags=pairs("--tag", tags) or None, **asked)
    except Invalid as error:
        raise Invalid(f"{error}{_advice(batch, str(error), given, named)}") from error
    store = loaded.client.url
    if wait:
        from milepost.cli.runs import await_run

        say(f"run {run.id}")
        await_run(run, timeout, store, as_json=as_json, app=app)
    elif as_json:
        show_json(run_document(run.refresh()))
    else:
        click.echo(run.id)
        say(f"{name} is {run.state}; {typed(f'runs watch {run.id}', store)} follows it")


def _declared(app: "App", name: str) -> "Batch":
    found = {batch.name: batch for batch in app.batches}  # the newest version comes last
    if name not in found:
        raise no_such("batch", name, found)
    return found[name]


def _advice(batch: "Batch", complaint: str, given: Any, named: tuple[str, ...]) -> str:
    if isinstance(given, str) and batch.params_type is not None:
        return f"; {given!r} is a text: give one JSON document, or each by --set NAME=VALUE"
    return advice(complaint, pairs("--set", named), batch.parameters)


def _parameters(document: str | None, named: tuple[str, ...]) -> Any:
    if document is None:
        return {name: value(text) for name, text in pairs("--set", named).items()} or None
    if named:
        raise Invalid("give the parameters as JSON or by --set, not both")
    return whole(document)
