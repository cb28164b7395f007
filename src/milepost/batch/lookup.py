"""Looks runs up: one by its id or a beginning of it, a page of them, how many there are."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from milepost.batch.handles import Filler, RunHandle
from milepost.client import Client
from milepost.lifecycle import RunState
from milepost.records import Run
from milepost.store import chains, runs
from milepost.store.driver import Steps
from milepost.subjects import Finder, page


class Runs(Finder[RunHandle]):
    """Looks runs up."""

    what = "run"

    def __init__(
        self, client: Client, type_of: Callable[[str, int], Any], fill: Filler | None = None
    ) -> None:
        super().__init__(client, type_of)
        self._fill = fill

    def list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Sequence[RunHandle]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = page(RunState, state=state, kind=kind, cursor=cursor, limit=limit)
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
        where = page(RunState, state=state, kind=kind, cursor=cursor, limit=limit)
        # With their steps: what a handle reads when it is first asked would block the event loop.
        seen = await self._client.run_async(_seen, where)
        return [self._handle(one.run.id, one.run, one) for one in seen]

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the runs of each batch by state."""
        return self._client.run(chains.kinds)

    async def counts_async(self) -> dict[str, dict[str, int]]:
        """Count the runs of each batch by state."""
        return await self._client.run_async(chains.kinds)

    def _get(self, subject_id: str) -> Steps[RunHandle]:
        handle = self._handle(subject_id)
        yield from handle.read()
        return handle

    def _within(self, low: str, high: str, *, most: int) -> Steps[Sequence[str]]:
        return (yield from chains.within(low, high, most=most))

    def _handle(
        self, run_id: str, record: Run | None = None, picture: chains.Picture | None = None
    ) -> RunHandle:
        return RunHandle(
            self._client,
            run_id,
            record,
            picture=picture,
            type_of=self._type_of,
            fill=self._fill,
        )


def _seen(where: Mapping[str, Any]) -> Steps[list[chains.Picture]]:
    """Read a page of runs with their steps, in as many statements as one run takes."""
    return (yield from chains.pictures((yield from runs.listing(**where))))
