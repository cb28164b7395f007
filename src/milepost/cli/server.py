"""`milepost server app:app`: the HTTP API of an app."""

import signal
import sys
from typing import TYPE_CHECKING

import click

from milepost.cli.load import load_app
from milepost.cli.output import say
from milepost.errors import Unavailable

if TYPE_CHECKING:
    import socket

    from uvicorn import Server

    from milepost.app import App

REFUSED = 5


@click.command()
@click.argument("app", metavar="APP")
@click.option("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="0 takes any that is free.  [default: MILEPOST_PORT, then 8000]",
)
@click.option(
    "--hosts",
    metavar="NAMES",
    help="Names it answers to beside addresses and names without a dot, with commas between.",
)
@click.option(
    "--root-path", default="", metavar="PREFIX", help="The prefix that a proxy takes away."
)
def server(app: str, host: str | None, port: int | None, hosts: str | None, root_path: str) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT.

    APP is MODULE:APP, as in app:app, or a file, as in app.py. Every request needs a token
    (`milepost tokens create`), also where a proxy on this machine passes it on. It listens on this
    machine alone unless told otherwise; where others could reach it, there must be a token first.
    """
    import asyncio

    loaded = load_app(app)
    settings = loaded.settings
    chosen = settings.host if host is None else host
    try:
        from milepost.web.serve import is_public, link, listen
        from milepost.web.serve import server as made

        public = is_public(chosen)
        api = loaded.asgi(hosts=[] if hosts is None else hosts.split(","))
    except ImportError as error:
        raise Unavailable("the API needs an extra: pip install 'milepost[web]'") from error
    _check_credentials(loaded, chosen, public=public)
    bound = listen(chosen, settings.port if port is None else port)
    serving = made(api, root_path=root_path, connections=settings.api_connections)
    # Once it has stopped it raises the signal again, which would end us as if something had failed.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, serving.handle_exit)
    click.echo(f"api     {link(bound)}")
    say(f"serving {loaded.client.url}; Ctrl-C stops")
    asyncio.run(_serve(loaded, serving, bound))


def _check_credentials(app: "App", host: str, *, public: bool) -> None:
    """Say that nobody could be let in; where others reach it, that is a mistake."""
    from milepost.store import tokens

    _, live = app.client.run(tokens.door)
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
