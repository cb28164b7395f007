"""An app's API over real HTTP, for tests that ask it from outside."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.app import App

__all__ = ["served", "served_under"]


@contextmanager
def served(app: "App", *, access: str = "local", port: int = 0, under: str = "") -> Iterator[str]:
    """Serve the API in a thread, by default as `milepost dev` does, and give its address.

    It may be mounted under a prefix of another application. No worker runs but when a test says so.
    At the end open streams are cut off.
    """
    from milepost.web.api import create_api

    if under:
        with served_under({under: app}, access=access, port=port) as address:
            yield address + under
        return
    with _served(create_api(app, access=access), [app], port=port) as address:
        yield address


@contextmanager
def served_under(
    apps: "Mapping[str, App]", *, access: str = "local", port: int = 0
) -> Iterator[str]:
    """Serve the APIs of several apps, each mounted under its prefix of one application."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from milepost.web.api import create_api

    mounts = [Mount(under, create_api(app, access=access)) for under, app in apps.items()]
    with _served(Starlette(routes=mounts), list(apps.values()), port=port) as address:
        yield address


@contextmanager
def _served(api: Any, apps: "list[App]", *, port: int) -> Iterator[str]:
    from milepost.web.serve import link, listen, server

    serving = server(api, connections=apps[0].settings.api_connections)
    bound = listen("127.0.0.1", port)

    async def serve() -> None:
        await serving.serve([bound])
        for app in apps:
            await app.client.close_async()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield link(bound)
    finally:
        serving.should_exit = serving.force_exit = True
        thread.join(timeout=30)
