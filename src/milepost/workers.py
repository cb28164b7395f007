"""Workers: who is alive, and what each of them runs."""

from collections.abc import Sequence

from milepost.client import Client
from milepost.records import Worker
from milepost.store import workers


class Workers:
    """Looks workers up."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self, *, limit: int = 100) -> Sequence[Worker]:
        """Return the workers, newest first."""
        return self._client.run(workers.listing, most=limit)

    async def list_async(self, *, limit: int = 100) -> Sequence[Worker]:
        """Return the workers, newest first."""
        return await self._client.run_async(workers.listing, most=limit)
