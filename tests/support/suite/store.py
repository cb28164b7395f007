"""The store under test: either colour with one face, and short words for what tests do to it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import uuid_utils

from milepost import outcome
from milepost.address import StoreUrl
from milepost.observe.doctor import broken
from milepost.observe.verify import verify
from milepost.outcome import Outcome, Output, Problem
from milepost.records import Claim, NewJob, NewRun, NewStep, Settlement, Template
from milepost.store import creation, fanin, jobs, journal, outputs, runs, timers, workers
from milepost.store.connect import open_async_driver, open_driver
from milepost.store.driver import AsyncDriver, Driver, Steps
from tests.support.databases import Database, Raw

__all__ = ["BAD", "COLOURS", "GOOD", "PROBLEM", "Store", "new_id", "only", "opened", "plan"]

T = TypeVar("T")
P = ParamSpec("P")
COLOURS = ("sync", "async")
PROBLEM = Problem("Boom", "it broke")
GOOD = outcome.succeeded()
BAD = outcome.failed(PROBLEM)
LEASE_SECONDS = 30.0


def new_id() -> str:
    """Make an id that sorts after those made before."""
    return str(uuid_utils.uuid7())


def only(claims: Sequence[Claim]) -> Claim:
    """Take the one."""
    [claim] = claims
    return claim


class AsyncRunner:
    """Runs each operation of an asynchronous driver on an event loop in a thread of its own."""

    def __init__(self, url: StoreUrl) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._driver: AsyncDriver = self._wait(self._open(url))
        self.dialect = self._driver.dialect

    async def _open(self, url: StoreUrl) -> AsyncDriver:
        return open_async_driver(url)

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation; any thread may ask."""
        answer: T = self._wait(self._driver.run(operation, *args, **kwargs))
        return answer

    def close(self) -> None:
        """Close the driver and its loop."""
        self._wait(self._driver.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Store:
    """A fresh store: `run` and `dialect` are all the suite needs of it, the rest is shorthand."""

    def __init__(self, database: Database, colour: str) -> None:
        url = StoreUrl.parse(database.url)
        runner: Any = AsyncRunner(url) if colour == "async" else open_driver(url)
        self.database = database
        self.dialect: str = runner.dialect
        self._runner = runner
        self._kept = ExitStack()

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; any thread may."""
        answer: T = self._runner.run(operation, *args, **kwargs)
        return answer

    @contextmanager
    def raw(self) -> Iterator[Raw]:
        """Open a connection with no engine around it."""
        with self.database.raw() as connection:
            yield connection

    def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """Run one raw statement, by a hand that is kept: a connection takes longer than that."""
        return self._hand.execute(statement, parameters or None)

    def problems(self) -> list[str]:
        """List what should be impossible, by the second opinion."""
        found = (*verify(self._second).problems, *broken(self._second))
        return [str(problem) for problem in found]

    def counted(self) -> dict[str, dict[str, int]]:
        """Count jobs by queue and state, by a look at every row."""
        told: dict[str, dict[str, int]] = {}
        statement = "SELECT queue, state, count(*) FROM job GROUP BY queue, state"
        for queue, state, count in self.rows(statement):
            told.setdefault(queue, {})[state] = count
        return told

    def close(self) -> None:
        """Give everything back."""
        self._runner.close()
        self._kept.close()

    @cached_property
    def _hand(self) -> Raw:
        return self._kept.enter_context(self.database.raw())

    @cached_property
    def _second(self) -> Driver:
        return self._kept.enter_context(self.database.driver())

    # Jobs

    def create(self, count: int = 1, *, kind: str = "k", **options: Any) -> list[str]:
        """Create jobs alike."""
        shared = Template(kind=kind, **options)
        new = [NewJob(new_id(), b"%d" % number, shared) for number in range(count)]
        return self.run(creation.create, new)

    def worker(self, name: str = "w1", *, lease: float = LEASE_SECONDS) -> str:
        """Register a worker."""
        self.run(workers.register, workers.NewWorker(id=name, lease_us=round(lease * 1_000_000)))
        return name

    def claim(
        self,
        most: int = 1,
        *,
        worker: str = "w1",
        queues: Sequence[str] = ("default",),
        kinds: Sequence[str] | None = None,
    ) -> list[Claim]:
        """Claim from the bottom of these queues; a suspect if nothing else is there."""
        line = jobs.lines(queues)
        for alone in (False, True):
            if claims := self.run(
                jobs.claim, worker_id=worker, line=line, most=most, kinds=kinds, alone=alone
            ):
                return claims
        return []

    def settle(self, *settled: tuple[Claim, Outcome], actor: str = "w1") -> set[str]:
        """Settle claims; answer with the ids that were held."""
        pairs = [Settlement(claim, result) for claim, result in settled]
        return self.run(jobs.settle, pairs, actor=actor)

    def running(self, *, worker: str = "w1", **options: Any) -> Claim:
        """Create a job and claim it."""
        [job_id] = self.create(queue=f"only-{new_id()}", **options)
        [claim] = self.claim(worker=worker, queues=[self.run(jobs.get, job_id).queue])
        return claim

    def state(self, job_id: str) -> str:
        """Tell where a job stands."""
        return self.run(jobs.get, job_id).state.value

    def moves(self, subject_id: str, machine: str = "job") -> list[str]:
        """Name every move, in order."""
        return [e.move for e in self.run(journal.history, subject_id, machine=machine)]

    def advance(self, seconds: float) -> None:
        """Move the store's clock."""
        self.run(workers.advance_clock, seconds)

    def lose_all(self) -> list[tuple[str, str]]:
        """Let every lease run out and recover what was held."""
        self.advance(LEASE_SECONDS + 1)
        self.run(workers.bury, most=100)
        return self.run(timers.lose, actor="m", most=100)

    # Runs

    def start(
        self,
        counts: Sequence[int] = (1,),
        *,
        hold: bool = False,
        reduce: bool = False,
        child: Mapping[str, Any] | None = None,
        run: Mapping[str, Any] | None = None,
        **step: Any,
    ) -> str:
        """Create a run with so many jobs in each step; every step but the first is gated."""
        run_id = new_id()
        new = [
            NewJob(new_id(), b"%d" % ordinal, _child(run_id, number, hold, child or {}), ordinal)
            for number, count in enumerate(counts)
            for ordinal in range(count)
        ]
        described = NewRun(id=run_id, kind="batch", **(run or {}))
        return self.run(runs.create, described, plan(len(counts), reduce, **step), new, hold=hold)

    def run_state(self, run_id: str) -> str:
        """Tell where a run stands."""
        return self.run(runs.get, run_id).state.value

    def count(self, run_id: str, number: int = 0) -> tuple[int, int, int, int]:
        """Tell a step's (open, succeeded, failed, cancelled)."""
        step = self.run(fanin.steps, run_id)[number]
        return step.open, step.succeeded, step.failed, step.cancelled

    def jobs_of(self, run_id: str, step: int | None = None) -> list[str]:
        """Name the states of a run's jobs, oldest first."""
        found = self.run(jobs.listing, run_id=run_id, most=1000)
        return [job.state.value for job in reversed(found) if step is None or job.step == step]

    def stage(self, claim: Claim, count: int, *, step: int = 1) -> Outcome:
        """Stage outputs and say how the attempt ends."""
        self.run(outputs.stage, claim, [(seq, Output(step, b"%d" % seq)) for seq in range(count)])
        return outcome.succeeded(staged=count)

    def finish(self, run_id: str, *, worker: str = "w1") -> str:
        """Do all that is left of a run, successfully; answer with its state."""
        while True:
            self.run(outputs.publish, actor="m", most=1000)
            self.run(timers.wake, actor="m", most=1000)
            claims = self.claim(1000, worker=worker)
            if not claims:
                return self.run_state(run_id)
            self.settle(*[(claim, outcome.succeeded()) for claim in claims])


def plan(steps: int, reduce: bool = False, **step: Any) -> list[NewStep]:  # noqa: FBT001, FBT002
    """Describe numbered steps, gated but for the first, and a reducer after them."""
    described = [
        NewStep(number=n, name=f"step {n}", kind=f"k{n}", **{"gated": n > 0, **step})
        for n in range(steps)
    ]
    if reduce:
        described.append(NewStep(number=steps, name="reduce", kind="reduce", role="reduce"))
    return described


def _child(run_id: str, number: int, hold: bool, options: Mapping[str, Any]) -> Template:  # noqa: FBT001
    state = "CREATED" if hold else "GATED" if number else "QUEUED"
    created = {"kind": f"k{number}", "run_id": run_id, "step": number, "state": state}
    return Template(**{**created, **options})


@contextmanager
def opened(database: Database, colour: str) -> Iterator[Store]:
    """Open a store in one colour."""
    store = Store(database, colour)
    try:
        yield store
    finally:
        store.close()
