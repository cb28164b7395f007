"""Commands that serve the HTTP API: `milepost server`, and `milepost dev` with a worker."""

import inspect
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, get_origin

import click

from milepost.cli import options
from milepost.cli.logs import logging_as
from milepost.cli.output import format_counts, say
from milepost.cli.values import kinds, load_app
from milepost.codec import hints
from milepost.config import PORT_MOST, command_for
from milepost.errors import Invalid, MilepostError
from milepost.telemetry import Log

if TYPE_CHECKING:
    from uvicorn import Server

    from milepost.app import App
    from milepost.declare import Definition

REFUSED = 5
log = Log("milepost.server")

LOOK_SECONDS = 1.0
EXAMPLES: dict[Any, str] = {int: "1", float: "1.5", bool: "true", list: "'[]'", dict: "'{}'"}
"""Examples of values that are no text; a text is shown as its parameter's name."""
LOOPBACK = "127.0.0.1"
PORT = click.IntRange(0, PORT_MOST)


@click.command()
@click.argument("app", metavar="APP")
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=PORT,
    metavar="N",
    help="0 takes any that is free.  [default: MILEPOST_PORT, then 8000]",
)
@click.option(
    "--hosts",
    metavar="NAMES",
    help="Names it answers to, comma-separated, in addition to addresses and names without a dot.",
)
@click.option(
    "--root-path", default="", metavar="PREFIX", help="The prefix that a proxy takes away."
)
@options.logging
def server(
    app: str,
    host: str | None,
    port: int | None,
    hosts: str | None,
    root_path: str,
    **logged: str | None,
) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT.

    APP is MODULE:APP, as in app:app, or a file, as in app.py. Every request needs a token
    (`milepost tokens create`), also where a proxy on this machine passes it on. It listens on this
    machine alone unless told otherwise; where others could reach it, there must be a token first.
    """
    import asyncio

    loaded = load_app(app)
    settings = loaded.settings = loaded.settings.chosen(**logged)
    chosen = settings.host if host is None else host
    try:
        from milepost.web.serve import is_public, link, listen
        from milepost.web.serve import server as made

        public = is_public(chosen)
        api = loaded.asgi(hosts=[] if hosts is None else hosts.split(","))
    except ImportError as error:
        raise Invalid("the API needs an extra: pip install 'milepost[web]'") from error
    _check_credentials(loaded, chosen, public=public)
    bound = listen(chosen, settings.port if port is None else port)
    serving = made(api, root_path=root_path, connections=settings.api_connections)
    # Once it has stopped it raises the signal again, which would end us as if something had failed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, serving.handle_exit)
    click.echo(f"pages   {link(bound)}")
    with logging_as(settings):
        log.info("server starts; Ctrl-C stops", store=str(loaded.client.url))
        asyncio.run(_serve(loaded, serving, bound))


def _check_credentials(app: "App", host: str, *, public: bool) -> None:
    """Say that no token is live; where other machines reach it, that is an error."""
    from milepost.store import tokens

    _, live = app.client.run(tokens.presence)
    if live:
        return
    create = "`milepost tokens create NAME --scope submit --scope read`"
    if public:
        say(
            f"milepost: {host} can be reached from other machines and no token is live; create "
            f"one first: {create}"
        )
        sys.exit(REFUSED)
    say(f"no token is live, and every request needs one: {create}")


async def _serve(app: "App", serving: "Server", bound: "socket.socket") -> None:
    try:
        await serving.serve([bound])
    finally:
        await app.close_async()


@click.command()
@click.argument("app", metavar="FILE")
@options.concurrency
@click.option(
    "--port",
    type=PORT,
    metavar="N",
    help="Where the API listens, on this machine.  [default: MILEPOST_PORT, then 8000 or any]",
)
@click.option("--reload", is_flag=True, help="Start again when a Python file next to it changes.")
@options.logging
def dev(
    app: str, concurrency: int | None, port: int | None, *, reload: bool, **logged: str | None
) -> None:
    """Run a file's app: store, worker, maintenance and HTTP API in one process, until Ctrl-C.

    FILE is the file that declares the jobs, as in app.py; MODULE:APP is understood too.
    """
    run = partial(_develop, app, concurrency, port, **logged)
    if reload:
        from milepost.cli.reload import run_reloading

        run_reloading(app, run)
    else:
        run()


def _develop(app: str, concurrency: int | None, port: int | None, **logged: str | None) -> None:
    loaded = load_app(app)
    loaded.settings = loaded.settings.chosen(**logged)
    loaded.logs_as_command = True
    loaded.counts()  # opens the store, and sets an empty one up
    _describe(loaded, shlex.quote(app))
    from milepost.observe.metrics import WorkerMetrics

    loaded.metrics = WorkerMetrics()  # the API of this process shows them
    with logging_as(loaded.settings), serve_api(loaded, port), _print_counts(loaded):
        loaded.run_worker(None, concurrency)
    loaded.close()


def _describe(app: "App", target: str) -> None:
    """Show commands to type in another terminal; they work as they are written here."""
    definitions = list(kinds(app).values())
    click.echo(f"store   {app.client.url}")
    for definition in definitions:
        click.echo(f"job     {definition.name}{_signature(definition)}")
    if definitions:
        click.echo(f"submit  milepost submit {target} {_call(definitions[0])}")
    for batch in {batch.name: batch for batch in app.batches}.values():
        asks = "".join(f" --set {name}={name.upper()}" for name in batch.parameters)
        asks = asks or ("" if batch.params_type is None else " JSON")
        click.echo(f"batch   {batch.name}: milepost batches start {target} {batch.name}{asks}")
    click.echo(f"look    {command_for('milepost jobs ls', app.client.url, os.environ)}")
    if not any(app.registry):
        say("this app declares no job yet: nothing to do; add one with @app.job")
    say("a worker is running; Ctrl-C drains")


def _signature(definition: "Definition") -> inspect.Signature:
    """Show the arguments that are submitted; the context is the worker's."""
    whole = inspect.signature(definition.function)
    own = list(whole.parameters.values())[definition.arguments.wants_context :]
    return whole.replace(parameters=own)


def _call(definition: "Definition") -> str:
    """Show how the job is submitted: its required arguments."""
    needed = [
        parameter
        for parameter in _signature(definition).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    told = hints(definition.function)
    words = []
    for parameter in needed:
        hint = told.get(parameter.name)
        example = EXAMPLES.get(get_origin(hint) or hint, parameter.name.upper())
        is_named = parameter.kind is parameter.KEYWORD_ONLY
        words.append(f"--set {parameter.name}={example}" if is_named else example)
    return " ".join([shlex.quote(definition.name), *words])


@contextmanager
def serve_api(app: "App", port: int | None) -> Iterator[str]:
    """Serve pages and API next to a worker, in a thread: a handler that blocks must not block it.

    Gives the link.
    """
    try:
        from milepost.web.api import create_api
        from milepost.web.serve import link, run_in_thread, server

        serving = server(create_api(app, access="local"), connections=app.settings.api_connections)
    except ImportError:
        say("no API: it needs an extra, pip install 'milepost[web]'")
        yield ""
        return
    bound = _bound(app, port)
    click.echo(f"pages   {link(bound)}")
    thread = threading.Thread(target=run_in_thread, args=(serving, bound, app.client), daemon=True)
    thread.start()
    try:
        yield link(bound)
    finally:
        serving.should_exit = True
        thread.join()


def _bound(app: "App", port: int | None) -> socket.socket:
    from milepost.web.serve import listen

    asked = app.settings.port if port is None else port
    try:
        return listen(LOOPBACK, asked)
    except Invalid:
        if port is not None or "MILEPOST_PORT" in os.environ:
            raise
        return listen(LOOPBACK, 0)  # somebody else runs one; the link says where this one is


@contextmanager
def _print_counts(app: "App") -> Iterator[None]:
    """Print the number of jobs by state, whenever it has changed."""
    stopped = threading.Event()
    teller = threading.Thread(target=_tell, args=(app, stopped), daemon=True)
    teller.start()
    try:
        yield
    finally:
        stopped.set()
        teller.join()


def _tell(app: "App", stopped: threading.Event) -> None:
    told = app.counts()
    while not stopped.wait(LOOK_SECONDS):
        try:
            seen = app.counts()
        except MilepostError:
            continue  # the worker says so itself
        if seen != told:
            say("; ".join(f"{queue}: {format_counts(states)}" for queue, states in seen.items()))
            told = seen
