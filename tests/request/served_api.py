"""The API over real HTTP, for tests that ask it from outside."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import milepost as mp
from milepost.web.serve import link, listen, server


@contextmanager
def served(app: mp.App) -> Iterator[str]:
    """Serve the API over real HTTP in a thread; no worker runs but when a test says so."""
    serving, bound = server(app.asgi()), listen("127.0.0.1", 0)

    async def serve() -> None:
        await serving.serve([bound])
        await app.client.close_async()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        yield link(bound)
    finally:
        serving.should_exit = True
        thread.join(timeout=30)
