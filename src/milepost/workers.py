"""Workers: the live ones, and the jobs that each of them runs."""

from collections.abc import Sequence

from milepost.client import Client
from milepost.faces import Flow, faces
from milepost.records import Worker
from milepost.store import workers
from milepost.subjects import check_page


class Workers:
    """Looks workers up."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _list(self, *, limit: int = 100) -> Flow[Sequence[Worker]]:
        """Return the workers, newest first, those that have stopped behind the others."""
        return self._client.flow(workers.listing, most=check_page(limit))

    list, list_async = faces(_list)
