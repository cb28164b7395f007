"""Looks runs up: one by its id or a beginning of it, a page of them, how many there are."""

from collections.abc import Callable, Sequence
from typing import Any

from milepost.batch.handles import RunHandle
from milepost.client import Client
from milepost.errors import Invalid, NotFound
from milepost.handles import LIKE_NAMED, between, check_page, checked_id, only
from milepost.lifecycle import RunState
from milepost.records import Run
from milepost.store import chains, runs

__all__ = ["Runs"]


class Runs:
    """Looks runs up."""

    def __init__(self, client: Client, type_of: Callable[[str, int], Any]) -> None:
        self._client = client
        self._type_of = type_of

    def get(self, run_id: str) -> RunHandle:
        """Return a handle, or raise `NotFound`."""
        return self._handle(checked_id(run_id, what="run")).refresh()

    async def get_async(self, run_id: str) -> RunHandle:
        """Return a handle, or raise `NotFound`."""
        return await self._handle(checked_id(run_id, what="run")).refresh_async()

    def find(self, beginning: str) -> RunHandle:
        """Return the one run whose id begins so, or raise `NotFound` or `Invalid`."""
        low, high = between(beginning, what="run")
        found = self._client.run(chains.within, low, high, most=LIKE_NAMED)
        return self.get(only(beginning, found, what="run"))

    async def find_async(self, beginning: str) -> RunHandle:
        """Return the one run whose id begins so, or raise `NotFound` or `Invalid`."""
        low, high = between(beginning, what="run")
        found = await self._client.run_async(chains.within, low, high, most=LIKE_NAMED)
        return await self.get_async(only(beginning, found, what="run"))

    def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Sequence[RunHandle]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = _filter(state=state, kind=kind, cursor=cursor, limit=limit)
        return [self._handle(run.id, run) for run in self._client.run(runs.listing, **where)]

    async def list_async(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Sequence[RunHandle]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = _filter(state=state, kind=kind, cursor=cursor, limit=limit)
        found = await self._client.run_async(runs.listing, **where)
        # Read whole: what a handle reads when it is first asked would block the event loop.
        return [await self._handle(run.id).refresh_async() for run in found]

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the runs of each batch by state."""
        return self._client.run(chains.kinds)

    async def counts_async(self) -> dict[str, dict[str, int]]:
        """Count the runs of each batch by state."""
        return await self._client.run_async(chains.kinds)

    def _handle(self, run_id: str, record: Run | None = None) -> RunHandle:
        return RunHandle(self._client, run_id, record, type_of=self._type_of)


def _filter(
    *, state: str | None, kind: str | None, cursor: str | None, limit: int
) -> dict[str, Any]:
    if state is not None and state not in RunState.__members__:
        raise Invalid(f"state={state!r}: expected one of {', '.join(RunState.__members__)}")
    check_page(limit)
    try:
        before = None if cursor is None else checked_id(cursor)
    except NotFound as error:
        raise Invalid(f"cursor={cursor!r} is not the id of a run") from error
    word = None if state is None else str(state)
    return {"state": word, "kind": kind, "before": before, "most": limit}
