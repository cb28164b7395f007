"""PostgreSQL is restarted under load: every job and run ends as its handlers left it, once."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.lifecycle import RUN
from milepost.observe.verify import verify
from milepost.store.connect import open_driver
from tests.support.prove import PROVING, size
from tests.support.servers import binaries, running

VERSIONS = sorted(binaries(), key=int)
JOBS = size(5_000)
RUNS = size(100)
RESTARTS = size(20)
ROUNDS = 3 if PROVING else 1
CHILDREN = 4
LIMIT = 1_500
PATIENCE = 60
QUICK = {"sweep": 0.1, "poll_max": 0.2, "error_wait": 0.2, "recovery": 0.5, "grace": 20.0}
ENDS = {"good": "SUCCEEDED", "bad": "FAILED", "again": "SUCCEEDED", "later": "SUCCEEDED"}
TIMES = {"good": 1, "bad": 1, "again": 2, "later": 2}
"""How often each handler is called: once, but for the second attempt that it asked for itself."""

pytestmark = [
    pytest.mark.prove,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not VERSIONS, reason="no PostgreSQL server at hand"),
]


class Load:
    """Jobs that end in every way, and runs; it is counted how often each handler was called."""

    def __init__(self, app: mp.App) -> None:
        self.calls: Counter[tuple[str, int]] = Counter()
        self.batch = app.batch("fan", params=int)
        self._declare_jobs(app)
        self._declare_steps()

    async def _effect(self, name: str, number: int) -> int:
        self.calls[name, number] += 1
        await asyncio.sleep(random.uniform(0, 0.02))
        return self.calls[name, number]

    def _declare_jobs(self, app: mp.App) -> None:
        @app.job
        async def good(number: int) -> int:
            await self._effect("good", number)
            return number

        @app.job
        async def bad(number: int) -> None:
            await self._effect("bad", number)
            raise mp.Fail("as it must")

        @app.job(retry_delay=0.1)
        async def again(number: int) -> int:
            if await self._effect("again", number) == 1:
                raise ConnectionError
            return number

        @app.job
        async def later(number: int) -> int:
            if await self._effect("later", number) == 1:
                raise mp.Later(0.1)
            return number

        self.kinds = {"good": good, "bad": bad, "again": again, "later": later}

    def _declare_steps(self) -> None:
        @self.batch.step
        def find(params: int) -> Iterator[int]:
            self.calls["find", params] += 1
            yield from range(params * CHILDREN, (params + 1) * CHILDREN)

        @self.batch.step(gated=True)
        async def load(number: int) -> int:
            await self._effect("load", number)
            return number

        @self.batch.reduce
        def total(numbers: Iterable[int]) -> int:
            found = sorted(numbers)
            self.calls["total", found[0] // CHILDREN] += 1
            return sum(found)

    async def submit(self) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
        """Submit everything; answer with which (kind, number) a job, and which number a run is."""
        jobs = {}
        for place, (name, kind) in enumerate(self.kinds.items()):
            numbers = range(place, JOBS, len(self.kinds))
            made = await kind.submit_many_async([(number,) for number in numbers])
            jobs |= {job.id: (name, n) for job, n in zip(made, numbers, strict=True)}
        runs = {(await self.batch.start_async(number)).id: number for number in range(RUNS)}
        return jobs, runs

    def expected(self, jobs: dict[str, tuple[str, int]]) -> Counter[tuple[str, int]]:
        """Count how often each handler should have been called."""
        calls = Counter({(name, number): TIMES[name] for name, number in jobs.values()})
        calls.update(("find", number) for number in range(RUNS))
        calls.update(("total", number) for number in range(RUNS))
        calls.update(("load", number) for number in range(RUNS * CHILDREN))
        return calls


@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("version", VERSIONS if PROVING else VERSIONS[-1:])
async def test_restarts_of_the_server_change_no_outcome_and_repeat_no_effect_f3(version, turn):
    random.seed(turn)
    with running(version, {"fsync": "off"}) as server:
        app = mp.App(server.url(), migrate=True, **QUICK)
        load = Load(app)
        jobs, runs = await load.submit()
        expected = load.expected(jobs)
        worker = await app.worker()
        working = asyncio.create_task(worker.run())
        async with asyncio.timeout(LIMIT):
            for number in range(1, RESTARTS + 1):
                await called(load, expected.total() * number // (RESTARTS + 1))
                await asyncio.to_thread(server.stop, "fast")
                await asyncio.to_thread(server.start)
            while await unfinished(app):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.2)
        worker.drain()
        await asyncio.wait_for(working, 60)
        await check(app, jobs, runs)
        wrong = (load.calls - expected) + (expected - load.calls)
        assert not wrong, "every effect happened once"
        await app.close_async()
        assert problems(server.url()) == []


async def called(load: Load, count: int) -> None:
    """Wait until so many calls were made; where calls are missing, not for ever."""
    until = asyncio.get_running_loop().time() + PATIENCE
    while load.calls.total() < count and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def unfinished(app: mp.App) -> bool:
    """Tell whether anything is open; a server that was just restarted is asked again."""
    try:
        if any(run.state not in RUN.terminal for run in await app.runs.list_async(limit=RUNS)):
            return True
        states = ("QUEUED", "RUNNING", "RETRYING", "WAITING", "GATED")
        return any([await app.jobs.list_async(state=state, limit=1) for state in states])
    except mp.Unavailable:
        return True


async def check(app: mp.App, jobs: dict[str, tuple[str, int]], runs: dict[str, int]) -> None:
    """Compare every job and run with how its handlers left it."""
    for job_id, (name, number) in jobs.items():
        job = await app.jobs.get_async(job_id)
        said = job.error.type if name == "bad" else job.result
        wanted = "Fail" if name == "bad" else number
        assert (job.state, said) == (ENDS[name], wanted), (job_id, name, job.error)
    for run_id, number in runs.items():
        run = await app.runs.get_async(run_id)
        total = sum(range(number * CHILDREN, (number + 1) * CHILDREN))
        assert (run.state, run.report) == ("SUCCEEDED", total), (run_id, run.error)


def problems(url: str) -> list[str]:
    driver = open_driver(StoreUrl.parse(url))
    try:
        return [str(problem) for problem in verify(driver).problems]
    finally:
        driver.close()
