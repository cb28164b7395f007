"""A worker: claims jobs, runs them, settles their outcomes, and keeps its lease (spec E).

Each part calls only parts that stand before it here:

- `ahead.py`: how many more jobs than slots it may claim
- `slots.py`: the jobs that it holds, each in its slot or waiting for one
- `heartbeat.py`: its row in the store, with its id, state and lease
- `settler.py`: writes outcomes, then frees the slots
- `execute.py`: calls a handler; its value or error becomes an outcome
- `lanes.py`: tasks in which handlers run, and which report to the settler
- `threads.py`: threads that do the same
- `isolate.py`: processes in which handlers run that can be killed; over a `pipe.py` they talk to
  `child.py`, and `warden.py` kills them
- `suspects.py`: when it takes a job that must run alone
- `claimer.py`: claims as many jobs as fit, and starts them in their lanes
- `hints.py`: claims the jobs that a broker's hints name, and answers the broker
- `loop.py`: the worker, which polls, rests, maintains and drains
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from milepost.client import Client
from milepost.clock import Clock, SystemClock
from milepost.config import Settings
from milepost.declare import Registry
from milepost.observe.metrics import WorkerMetrics
from milepost.store.driver import AsyncDriver
from milepost.store.tally import WorkerTally
from milepost.worker.pipe import Begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The things that all parts of one worker share."""

    client: Client
    """The handlers' way to the store."""
    driver: AsyncDriver
    """The worker's own way to it, on its event loop."""
    registry: Registry
    settings: Settings
    queues: Sequence[str] | None = None
    """The queues that it serves; None for all of them."""
    clock: Clock = field(default_factory=SystemClock)
    metrics: WorkerMetrics | None = None
    """Where its work is counted, if it is."""
    begin: Begin | None = None
    """How processes of isolated jobs begin; None: every job runs in this process."""
    tally: WorkerTally = field(default_factory=WorkerTally)
    """Where it is counted for the store's charts."""
