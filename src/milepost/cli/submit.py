"""`milepost submit app:app KIND ARG…`: a job from a prompt."""

from typing import TYPE_CHECKING, Any

import click

from milepost.cli.groups import did_you_mean
from milepost.cli.load import kinds, load_app
from milepost.cli.options import json_option
from milepost.cli.output import job_document, say, show_json
from milepost.cli.values import pairs, quoting, value
from milepost.errors import Invalid

if TYPE_CHECKING:
    from milepost.app import App
    from milepost.job import Job

__all__ = ["submit"]


@click.command()
@click.argument("app", metavar="APP")
@click.argument("kind")
@click.argument("values", metavar="[ARG]...", nargs=-1)
@click.option("--set", "named", multiple=True, metavar="NAME=VALUE", help="An argument by name.")
@click.option("--queue", help="Another queue than the kind's own.")
@click.option("--priority", type=click.IntRange(0, 9), metavar="0-9", help="Larger is sooner.")
@click.option("--start-in", type=click.FloatRange(0), metavar="SECONDS", help="Not before then.")
@click.option("--deadline", type=click.FloatRange(0), metavar="SECONDS", help="Failed after then.")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="Instead of the kind's own.")
@click.option("--unique", metavar="KEY", help="At most one such job that is not final.")
@click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="May be repeated.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit code 3 unless it succeeded.")
@click.option(
    "--timeout", type=click.FloatRange(0), metavar="SECONDS", help="With --wait: give up then."
)
@json_option
def submit(  # noqa: PLR0917 - click passes by name
    app: str,
    kind: str,
    values: tuple[str, ...],
    named: tuple[str, ...],
    tags: tuple[str, ...],
    timeout: float | None,
    *,
    wait: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Submit a job and print its id.

    APP is MODULE:APP, as in app:app, or a file, as in app.py. Each value is JSON if it parses, else
    a string: 42 is a number, '"42"' a string. What begins with a dash goes after `--`.
    """
    job = _declared(load_app(app), kind).options(tags=pairs("--tag", tags) or None, **options)
    arguments = {name: value(text) for name, text in pairs("--set", named).items()}
    try:
        handle = job.submit(*map(value, values), **arguments)
    except Invalid as error:
        raise Invalid(f"{error}{quoting((*values, *named))}") from error
    if wait:
        from milepost.cli.jobs import await_end

        say(f"job {handle.id}")
        await_end(handle, timeout, as_json=as_json)
    elif as_json:
        show_json(job_document(handle.refresh()))
    else:
        click.echo(handle.id)
        say(f"{kind} is {handle.state}; `milepost jobs wait {handle.id}` waits for it")


def _declared(app: "App", kind: str) -> "Job[..., ..., Any, Any]":
    from milepost.job import Job

    declared = kinds(app)
    if kind not in declared:
        if kind in {batch.name for batch in app.batches}:
            raise Invalid(f"{kind} is a batch: `milepost batches start` starts it")
        guess = did_you_mean(kind, declared) or f" Declared: {', '.join(declared) or 'none'}."
        raise Invalid(f"no job is called {kind!r}.{guess}")
    return Job(app, declared[kind])
