"""What the API needs of an app. `App` is one; the layers below it must not know that."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol, cast

from fastapi import Depends, Request

from milepost.batch.lookup import Runs
from milepost.batch.start import Batch
from milepost.client import Client
from milepost.config import Settings
from milepost.declare import Registry
from milepost.handles import Jobs
from milepost.ingest.pipeline import Pipeline
from milepost.queues import Queues
from milepost.records import NewJob
from milepost.request.batch import Batches
from milepost.request.kind import Requests
from milepost.schedules import Schedules


class Engine(Protocol):
    """An app: declarations, and the way to its store."""

    client: Client
    settings: Settings
    registry: Registry
    jobs: Jobs
    runs: Runs
    queues: Queues
    schedules: Schedules
    requests: Requests
    request_batches: Batches

    @property
    def batches(self) -> Sequence[Batch]:
        """The declared batches."""
        ...

    @property
    def pipelines(self) -> Mapping[str, Pipeline[Any]]:
        """The declared pipelines by their names."""
        ...

    def new_job(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> NewJob:
        """Make a job that is to be stored, or raise `Invalid` saying what does not fit."""
        ...


async def held(request: Request) -> Engine:
    """Return the engine that this API is for."""
    return cast("Engine", request.app.state.engine)


Held = Annotated[Engine, Depends(held)]
"""What a handler annotates a parameter with that is to be the engine."""
