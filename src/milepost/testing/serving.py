"""An app's API over real HTTP, for tests that ask it from outside."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost.app import App

__all__ = ["served"]


@contextmanager
def served(app: "App", **how: Any) -> Iterator[str]:
    """Serve the API in a thread, as `app.asgi(**how)` makes it, and give its address.

    No worker runs but when a test says so.
    """
    from milepost.web.serve import link, listen, server  # noqa: PLC0415 - an extra

    serving, bound = server(app.asgi(**how)), listen("127.0.0.1", 0)

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
