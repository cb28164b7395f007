"""Attempts that are about to send at the same time share a transaction for their notes."""

import asyncio
from collections import deque

from milepost.client import Client
from milepost.errors import LeaseLost
from milepost.store import requests
from milepost.store.requests import Begin, Begun

BATCH = 200

Waiting = tuple[Begin, "asyncio.Future[list[bytes | None] | None]"]


class Beginner:
    """Notes what is about to be sent, many at a time; of one event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[Waiting] = deque()
        self._flushing: asyncio.Task[None] | None = None

    async def begin(self, begin: Begin) -> list[bytes | None] | None:
        """Note one attempt, or raise `LeaseLost`; answer with signals to be read before it sends.

        None means that it is noted, and is to send now.
        """
        noted: asyncio.Future[list[bytes | None] | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._waiting.append((begin, noted))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush_all())
        return await noted

    async def _flush_all(self) -> None:
        try:
            # Those who come in this same turn of the loop come along.
            await asyncio.sleep(0)
            while self._waiting:
                count = min(BATCH, len(self._waiting))
                await self._flush([self._waiting.popleft() for _ in range(count)])
        finally:
            self._flushing = None

    async def _flush(self, group: list[Waiting]) -> None:
        begins = [begin for begin, noted in group if not noted.done()]
        try:
            begun = await self._client.run_async(requests.begin, begins, actor=None)
        except BaseException as error:
            for _, noted in group:
                if not noted.done():
                    noted.set_exception(_told(error))
            if not isinstance(error, Exception):
                raise
        else:
            for begin, noted in group:
                if not noted.done():
                    _answer(begin, noted, begun)


def _told(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else LeaseLost(f"interrupted: {error!r}")


def _answer(begin: Begin, noted: "asyncio.Future[list[bytes | None] | None]", begun: Begun) -> None:
    job_id = begin.claim.id
    if job_id in begun.signals:
        noted.set_result(list(begun.signals[job_id]))
    elif job_id in begun.held:
        noted.set_result(None)
    else:
        noted.set_exception(
            LeaseLost(f"job {job_id} is no longer held with fence {begin.claim.fence}")
        )
