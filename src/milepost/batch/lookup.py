"""Looks runs up: one by its id or a beginning of it, a page of them, how many there are."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from milepost.batch.handles import Filler, RunHandle
from milepost.client import Client
from milepost.faces import Flow, Wait, faces
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

    def _list(
        self,
        *,
        state: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Flow[Sequence[RunHandle]]:
        """Return a page, newest first; the next one starts at the last id as `cursor`."""
        where = page(RunState, state=state, kind=kind, cursor=cursor, limit=limit)
        plain, awaited = self._client.run, self._client.run_async
        # Awaited, they come with their steps: a handle that reads them later blocks the event loop.
        found = yield Wait(
            partial(plain, runs.listing), partial(awaited, _with_steps), kwargs=where
        )
        return [self._handle(run) for run in found]

    list, list_async = faces(_list)

    def _counts(self) -> Flow[dict[str, dict[str, int]]]:
        """Count the runs of each batch by state."""
        return self._client.flow(chains.kinds)

    counts, counts_async = faces(_counts)

    def _read(self, subject_id: str) -> Steps[RunHandle]:
        return self._handle((yield from chains.picture(subject_id)))

    def _within(self, low: str, high: str, *, most: int) -> Steps[Sequence[str]]:
        return (yield from chains.within(low, high, most=most))

    def _handle(self, read: Run | chains.Picture) -> RunHandle:
        run_id = read.run.id if isinstance(read, chains.Picture) else read.id
        return RunHandle(self._client, run_id, read, type_of=self._type_of, fill=self._fill)


def _with_steps(**where: Any) -> Steps[list[chains.Picture]]:
    """Read a page of runs with their steps, in as many statements as one run takes."""
    return (yield from chains.pictures((yield from runs.listing(**where))))
