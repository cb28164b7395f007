"""Attempts held in a test's own hand, and what takes a job away from one."""

from collections.abc import Callable

import uuid_utils

import milepost as mp
from milepost.context import Context
from milepost.store import jobs, workers
from milepost.store.workers import NewWorker

LEASE_SECONDS = 30


def claimed(app: mp.App, *, alone: bool = False) -> Context:
    """Claim the job that is due, as a worker of its own, and hold it as its handler would."""
    name = f"worker-{uuid_utils.uuid4()}"
    app.client.run(workers.register, NewWorker(id=name, lease_us=LEASE_SECONDS * 1_000_000))
    line = jobs.lines(["default"])
    [claim] = app.client.run(jobs.claim, worker_id=name, line=line, most=1, alone=alone)
    return Context(claim, app.client)


def lose(app: mp.App, advance: Callable[[float], None]) -> None:
    """Let every lease end, and what they held become due again."""
    advance(LEASE_SECONDS + 1)
    app.maintain_once()
    app.maintain_once()


def overtaken(app: mp.App, advance: Callable[[float], None]) -> tuple[Context, Context]:
    """Hold an attempt that lost its lease without knowing, and the one that has the job now."""
    late = claimed(app)
    lose(app, advance)
    return late, claimed(app)
