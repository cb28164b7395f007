"""An app's API over real HTTP, for tests that ask it from outside."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.app import App

__all__ = ["served"]


@contextmanager
def served(app: "App", *, access: str = "local", port: int = 0, under: str = "") -> Iterator[str]:
    """Serve the API in a thread, by default as `milepost dev` does, and give its address.

    It may be mounted under a prefix of another application. No worker runs but when a test says so.
    At the end open streams are cut off.
    """
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from milepost.web.api import create_api
    from milepost.web.serve import link, listen, server

    api = create_api(app, access=access)
    if under:
        api = Starlette(routes=[Mount(under, api)])
    serving = server(api, connections=app.settings.api_connections)
    bound = listen("127.0.0.1", port)

    async def serve() -> None:
        await serving.serve([bound])
        await app.client.close_async()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield link(bound) + under
    finally:
        serving.should_exit = serving.force_exit = True
        thread.join(timeout=30)
