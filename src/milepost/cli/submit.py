"""`milepost submit app:app KIND ARG…`: a job from a prompt."""

import shlex
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.load import kinds, load_app
from milepost.cli.options import SECONDS, creation_options, typed
from milepost.cli.output import job_document, say, show_json
from milepost.cli.values import advice, no_such, pairs, value
from milepost.errors import Invalid

if TYPE_CHECKING:
    from milepost.app import App
    from milepost.job import Job


@click.command()
@click.argument("app", metavar="APP")
@click.argument("kind")
@click.argument("values", metavar="[ARG]...", nargs=-1)
@click.option("--set", "named", multiple=True, metavar="NAME=VALUE", help="An argument by name.")
@click.option("--queue", help="Another queue than the kind's own.")
@click.option("--start-in", type=SECONDS, metavar="SECONDS", help="Not before then.")
@click.option("--retries", type=click.IntRange(0), metavar="N", help="Instead of the kind's own.")
@click.option("--unique", metavar="KEY", help="At most one such job that is not final.")
@creation_options
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
    loaded = load_app(app)
    job = _declared(loaded, kind, app).options(tags=pairs("--tag", tags) or None, **options)
    given = pairs("--set", named)
    try:
        handle = job.submit(
            *map(value, values), **{name: value(text) for name, text in given.items()}
        )
    except Invalid as error:
        known = _parameters(job)
        typed_in = {**dict(zip(known, values, strict=False)), **given}
        raise Invalid(f"{error}{advice(str(error), typed_in, known)}") from error
    if wait:
        from milepost.cli.jobs import await_end

        say(f"job {handle.id}")
        await_end(handle, timeout, as_json=as_json, app=app)
    elif as_json:
        show_json(job_document(handle.refresh()))
    else:
        click.echo(handle.id)
        waits = typed(f"jobs wait {handle.id}", loaded.client.url)
        say(f"{kind} is {handle.state}; {waits} waits for it")


def _declared(app: "App", kind: str, path: str) -> "Job[..., ..., Any, Any]":
    from milepost.job import Job

    declared = kinds(app)
    if kind in declared:
        return Job(app, declared[kind])
    if kind in {batch.name for batch in app.batches}:
        start = shlex.join(["milepost", "batches", "start", path, kind])
        raise Invalid(f"{kind} is a batch: `{start}` starts it")
    raise no_such("job", kind, declared)


def _parameters(job: "Job[..., ..., Any, Any]") -> list[str]:
    """Name what the job takes."""
    return job.definition.arguments.names
