"""Queues: what stands in each, and whether its jobs may be claimed."""

from collections.abc import Sequence

from milepost.client import Client, caller
from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.records import Queue
from milepost.store import workers


class Queues:
    """Looks queues up, and lets claims from them rest."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> Sequence[Queue]:
        """Return every queue that holds a job or was ever paused, with its jobs counted."""
        return self._client.run(workers.queue_listing)

    async def list_async(self) -> Sequence[Queue]:
        """Return every queue that holds a job or was ever paused, with its jobs counted."""
        return await self._client.run_async(workers.queue_listing)

    def pause(self, name: str) -> bool:
        """Let nobody claim from it; what runs may end. False when it was paused already."""
        return self._client.run(workers.pause, _checked(name), paused=True, actor=caller().actor)

    async def pause_async(self, name: str) -> bool:
        """Let nobody claim from it; what runs may end. False when it was paused already."""
        return await self._client.run_async(
            workers.pause, _checked(name), paused=True, actor=caller().actor
        )

    def resume(self, name: str) -> bool:
        """Let claims go on. False when it was not paused."""
        return self._client.run(workers.pause, _checked(name), paused=False, actor=caller().actor)

    async def resume_async(self, name: str) -> bool:
        """Let claims go on. False when it was not paused."""
        return await self._client.run_async(
            workers.pause, _checked(name), paused=False, actor=caller().actor
        )


def check_queues(names: Sequence[str]) -> None:
    """Refuse a choice of queues that serves nothing, or not what was meant."""
    if isinstance(names, str) or not names:
        raise Invalid(f"queues={names!r} must be a list of names; None serves every queue")
    for name in names:
        _checked(name)


def _checked(name: str) -> str:
    check_text(name, what="queue")
    return name
