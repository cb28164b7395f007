"""`milepost batches` and `milepost runs`: declared batches, and their runs."""

from typing import TYPE_CHECKING, Any

import click

from milepost.cli import options, subjects
from milepost.cli.command import AppSession, Session, StartCommand, StoreGroup
from milepost.cli.output import document, format_counts, say, show_filled, show_json, show_rows
from milepost.cli.values import advice, find_declared, load_app, pairs, value
from milepost.cli.values import document as parsed
from milepost.errors import Invalid, Unavailable
from milepost.lifecycle import RunState

if TYPE_CHECKING:
    from milepost.app import App
    from milepost.batch.declaration import Batch, FailurePolicy
    from milepost.batch.handles import RunHandle

RUN_COLUMNS = ("id", "batch", "state", "progress", "cause", "created_at")


@click.group(cls=StoreGroup)
def batches() -> None:
    """List batches, start a run of one."""


@batches.command("ls")
@click.argument("app", metavar="[APP]", required=False)
@click.pass_context
def ls(context: click.Context, at: Session, app: str | None) -> None:
    """List the batches that have runs; with APP also its declared ones, with their steps.

    APP is MODULE:APP, as in app:app, or a file, as in app.py; its own store is looked at.
    """
    loaded = None if app is None else load_app(app)
    if loaded is not None:
        if context.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
            raise Invalid("APP has a store of its own; leave out --store, or APP")
        at.store = loaded.client.url
    rows = _documents(loaded, _counts(at, is_needed=loaded is None))
    none = "with an APP the declared ones are listed too" if app is None else f"{app} declares none"
    at.table(rows, empty=f"no batch has run here; {none}", steps=_steps, runs=format_counts)


def _counts(at: Session, *, is_needed: bool) -> dict[str, dict[str, int]]:
    """Count runs; an app's declarations are listed also without a store."""
    try:
        return at.runs.counts()
    except Unavailable as error:
        if is_needed:
            raise
        say(f"milepost: {error}")
        return {}


def _documents(app: "App | None", counts: dict[str, dict[str, int]]) -> list[dict[str, object]]:
    if app is None:
        return [{"batch": name, "runs": states} for name, states in counts.items()]
    found: list[dict[str, object]] = [
        {
            "batch": batch.name,
            "version": batch.version,
            "policy": _policy(batch.policy),
            "steps": [
                document(step, "name", "role", "gated", "poll")
                for step in (*batch.steps, batch.reducer)
                if step is not None
            ],
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
    return [*found, *others]


def _policy(policy: "FailurePolicy") -> str:
    share = getattr(policy, "share", None)
    return type(policy).__name__ + ("" if share is None else f"({share:g})")


def _steps(steps: list[dict[str, Any]]) -> str:
    return ", ".join(f"{step['name']}{_traits(step)}" for step in steps)


def _traits(step: dict[str, Any]) -> str:
    traits = [
        *(["gated"] if step["gated"] else []),
        *([f"polls after {step['poll']:g} s"] if step["poll"] is not None else []),
        *(["reducer"] if step["role"] == "reduce" else []),
    ]
    return f" ({', '.join(traits)})" if traits else ""


@batches.command(cls=StartCommand)
@click.argument("name")
@click.argument("parameters", metavar="[JSON]", required=False)
@options.repeated("--set", "named", metavar="NAME=VALUE", text="A parameter by name.")
@click.option("--reuse", is_flag=True, help="Take the live run with the same parameters, if any.")
@options.creation
def start(
    at: AppSession,
    name: str,
    parameters: str | None,
    named: tuple[str, ...],
    tags: tuple[str, ...],
    **chosen: Any,
) -> "RunHandle":
    """Start a run of the newest version of a batch, and print its id.

    APP is MODULE:APP, as in app:app, or a file, as in app.py. The parameters are one JSON document
    or given by name; each value by name is JSON if it parses, else a string.
    """
    # The newest version comes last.
    batch = find_declared("batch", name, {batch.name: batch for batch in at.app.batches})
    given = _parameters(parameters, named)
    asked = {option: value for option, value in chosen.items() if value is not None}
    try:
        return batch.start(given, tags=pairs("--tag", tags) or None, **asked)
    except Invalid as error:
        raise Invalid(f"{error}{_advice(batch, str(error), given, named)}") from error


def _advice(batch: "Batch", complaint: str, given: Any, named: tuple[str, ...]) -> str:
    if isinstance(given, str) and batch.params_type is not None:
        return f"; {given!r} is a text: give one JSON document, or each by --set NAME=VALUE"
    return advice(complaint, pairs("--set", named), batch.parameters)


def _parameters(text: str | None, named: tuple[str, ...]) -> Any:
    if text is None:
        return {name: value(each) for name, each in pairs("--set", named).items()} or None
    if named:
        raise Invalid("give the parameters as JSON or by --set, not both")
    return parsed(text)


@click.group(cls=StoreGroup)
def runs() -> None:
    """List runs of batches, show one, watch it, cancel it, resume it.

    No app is needed. An unambiguous id prefix is enough.
    """


@runs.command("ls")
@options.state(*RunState)
@click.option("--batch", "kind", help="Only runs of this batch.")
@options.limit()
@options.before
def list_runs(at: Session, limit: int, before: str | None, **filters: Any) -> None:
    """List runs, newest first."""
    found = at.runs.list(limit=limit, cursor=before, **filters)
    subjects.show_page(at, list(map(subjects.run_summary, found)), *RUN_COLUMNS, limit=limit)


@runs.command()
@options.subject_id
def show(at: Session, subject_id: str) -> None:
    """Show one run: where it stands, its steps, its report, and why jobs of it failed."""
    told = subjects.run_document(at.runs.find(subject_id))
    if at.as_json:
        show_json(told)
        return
    tables = told.pop("steps"), told.pop("errors")
    show_filled(told)
    for rows in filter(None, tables):
        click.echo()
        show_rows(rows)


@runs.command()
@options.subject_id
@options.timeout
def watch(at: Session, subject_id: str, timeout: float | None) -> None:
    """Watch a run to its end, step by step, and print its report.

    On a terminal each step has a bar; elsewhere there is a line now and then, on stderr. Exit code
    3 when it ended FAILED or CANCELLED, 124 when the time was over first.
    """
    subjects.await_end(at, at.runs.find(subject_id), timeout)


@runs.command(access="write")
@options.subject_id
@options.reason("cancelled")
def cancel(at: Session, subject_id: str, reason: str) -> None:
    """Cancel a run: its waiting jobs are cancelled, its running ones are asked to stop."""
    subjects.cancel(at, at.runs.find(subject_id), reason)


@runs.command(access="write")
@options.subject_id
def resume(at: Session, subject_id: str) -> None:
    """Go on with a run of which something failed or was cancelled, as a new one; print its id.

    Every job that did not succeed is created again; the new run's report includes those that did.
    """
    handle = at.runs.find(subject_id)
    again = handle.resume().refresh()
    if at.as_json:
        show_json(subjects.run_document(again))
        return
    click.echo(again.id)
    say(f"run {handle.id} goes on as {again.id}; {at.typed(f'runs watch {again.id}')} follows it")
