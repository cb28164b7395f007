"""Stored arguments that no longer fit their function (H-104, H-114): the job waits, unspent."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

import milepost as mp
from milepost import outcome
from milepost.codec import JsonCodec
from milepost.declare import Arguments
from milepost.observe.verify import verify
from milepost.records import Settlement
from milepost.store import jobs, unfit, workers
from milepost.store.workers import NewWorker
from tests.support.databases import Database

pytestmark = pytest.mark.in_turn


class Program:
    """One deployment of a program after the other, on one store."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.apps: list[mp.App] = []

    def deploy(self, handler, **declared) -> tuple[mp.App, Any]:
        """Start with this function as `load`."""
        app = mp.App(self.database.url)
        self.apps.append(app)
        return app, app.job(name="load", **declared)(handler)


@pytest.fixture
def program(database: Database) -> Iterator[Program]:
    made = Program(database)
    yield made
    with database.driver() as driver:
        assert verify(driver).problems == []
    for app in made.apps:
        app.close()


def by_text(number: str) -> str:
    return f"text {number}"


def by_number(number: int) -> str:
    return f"number {number}"


def by_other_name(count: int) -> str:
    return f"count {count}"


def with_more(number: str, unit: str) -> str:
    return f"{number} {unit}"


def with_none() -> str:
    return "none"


def unfit_job(program: Program, handler=by_number, **options):
    """Submit a job by text, and let a worker try it whose function takes something else."""
    _, load = program.deploy(by_text)
    job = load.options(**options).submit("seven")
    app, _ = program.deploy(handler)
    app.drain()
    return app.jobs.get(job.id)


@pytest.mark.parametrize("handler", [by_number, by_other_name, with_more, with_none])
def test_a_job_whose_arguments_do_not_fit_waits_and_nothing_is_spent(program, handler):
    job = unfit_job(program, handler, retries=0, poll_limit=0)
    assert (job.state, job.record.phase, job.record.due_at) == ("WAITING", "unfit", None)
    record = job.record
    assert (record.errors, record.losses, record.polls, job.attempt) == (0, 0, 0, 0)
    assert [(e.move, e.to_state) for e in job.history][1:] == [
        ("claim", "RUNNING"),
        ("release", "WAITING"),
    ]


def test_explain_says_what_does_not_fit(program):
    told = unfit_job(program).explain()
    assert told.reasons[0] == "unfit"
    assert "do not fit load(number: int)" in told.text
    assert "Expected `int`, got `str`" in told.text
    assert "jobs release" in told.text
    assert "seven" not in told.text


def test_it_waits_while_workers_start_that_have_the_same_parameters(program):
    job = unfit_job(program)
    for _ in range(3):
        app, _ = program.deploy(by_number)
        app.drain()
    assert (job.refresh().state, job.record.releases) == ("WAITING", 1)


def test_a_worker_that_starts_with_other_parameters_runs_it(program):
    job = unfit_job(program, retries=0)
    app, _ = program.deploy(by_text)
    app.drain()
    assert app.jobs.get(job.id).result == "text seven"
    assert [e.move for e in job.history][2:] == ["release", "wake", "claim", "succeed"]


def test_each_signature_tries_it_once(program):
    job = unfit_job(program)
    for handler in (with_more, by_number, with_none, with_more):
        app, _ = program.deploy(handler)
        app.drain()
    assert (job.refresh().state, job.record.releases) == ("WAITING", 3)
    app, _ = program.deploy(by_text)
    app.drain()
    assert job.refresh().state == "SUCCEEDED"


async def test_a_worker_that_lives_runs_what_an_older_one_tried_since(database):
    """A new worker starts before the old one stops, as in any rolling deployment."""
    app = mp.App(database.url, recovery=0.05)
    load = app.job(name="load")(by_text)
    job = await load.submit_async("seven")
    older = NewWorker(id="older", lease_us=60_000_000)
    await app.client.run_async(workers.register, older)
    [claim] = await app.client.run_async(
        jobs.claim, worker_id="older", line=jobs.lines(["default"]), most=1
    )
    working = asyncio.create_task(app.run_worker_async())
    while not any(worker.id != "older" for worker in await app.workers.list_async()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    tried = Settlement(claim, outcome.unfit("it does not fit", signature="the older one"))
    await app.client.run_async(jobs.settle, [tried], actor="older")
    assert (await job.wait_async(timeout=30)).result == "text seven"
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await app.close_async()


def test_a_worker_of_other_queues_leaves_it_alone(program):
    job = unfit_job(program)
    app, load = program.deploy(by_text)
    known = {("load", 1): load.definition.arguments.fingerprint}
    assert app.client.run(unfit.wake, known, queues=["other"], actor="w", most=9) == 0
    assert app.client.run(unfit.wake, known, queues=["default"], actor="w", most=9) == 1
    assert job.refresh().state == "QUEUED"


def test_a_person_releases_it(program):
    job = unfit_job(program)
    assert job.release().state == "QUEUED"
    assert job.record.phase is None
    with pytest.raises(mp.IllegalMove, match=f"{job.id} is QUEUED"):
        job.release()
    app, _ = program.deploy(by_number)
    app.drain()
    assert (job.refresh().state, job.record.releases) == ("WAITING", 2)


async def test_a_person_releases_it_by_the_asynchronous_twin(program):
    job = await asyncio.to_thread(unfit_job, program)
    assert (await job.release_async()).state == "QUEUED"
    with pytest.raises(mp.IllegalMove, match=f"{job.id} is QUEUED"):
        await job.release_async()
    app = program.apps[-1]
    with pytest.raises(mp.NotFound):
        await mp.JobHandle(app.client, "01890a5d-ac96-774b-bcce-b302099a8057").release_async()
    await app.client.close_async()


def test_its_deadline_ends_it(program):
    job = unfit_job(program, deadline=60)
    app = program.apps[-1]
    app.client.run(workers.advance_clock, 61)
    app.maintain_once()
    assert (job.refresh().state, job.error.cause) == ("FAILED", "deadline")


def test_a_person_cancels_it(program):
    job = unfit_job(program)
    assert job.cancel("never mind") == "CANCELLED"


def test_a_signal_waits_with_it(program):
    job = unfit_job(program)
    assert job.signal("hello") is True
    assert job.refresh().state == "WAITING"

    def listening(ctx: mp.Context, number: str) -> list[object]:
        return [number, *ctx.signals()]

    app, _ = program.deploy(listening)
    app.drain()
    assert job.refresh().result == ["seven", "hello"]


def test_a_job_that_is_asked_to_stop_meanwhile_is_cancelled(program):
    job = unfit_job(program)
    app, load = program.deploy(by_text)
    other = load.submit("eight")

    class Stopping(JsonCodec):
        def decode(self, data, type_=object):
            if b"eight" in data:
                app.jobs.get(other.id).cancel("enough")
            return super().decode(data, type_)

    last, _ = program.deploy(by_number)
    last.client.codec = Stopping()
    last.drain()
    assert other.refresh().state == "CANCELLED"
    assert job.refresh().state == "WAITING"


def batch_of(program: Program, load) -> tuple[mp.App, Any]:
    app = mp.App(program.database.url)
    program.apps.append(app)
    batch = app.batch("import")

    @batch.step
    def find() -> Iterator[object]:
        yield from ("1", "2") if load is by_text else (1, 2)

    batch.step(name="load", queue="loads")(load)

    @batch.reduce
    def told(found: Iterable[str]) -> list[str]:
        return sorted(found)

    return app, batch


def test_a_step_of_a_batch_waits_and_its_run_with_it(program):
    app, batch = batch_of(program, by_text)
    app.queues.pause("loads")
    run = batch.start()
    app.drain()
    app.queues.resume("loads")
    other, _ = batch_of(program, by_number)
    other.drain()
    phases = [job.record.phase for job in app.jobs.list(kind="import.load")]
    assert (run.refresh().state, phases) == ("RUNNING", ["unfit", "unfit"])
    last, _ = batch_of(program, by_text)
    last.drain(timeout=30)
    assert last.runs.get(run.id).report == ["text 1", "text 2"]


def test_a_scheduled_job_waits_as_any_other(program, database):
    app, load = program.deploy(by_text)
    # Once an hour: of two minutes both may begin during the test.
    app.schedule(load, "0 * * * *", args=("seven",))
    app.drain()
    app.client.run(workers.advance_clock, 3_601)
    app.queues.pause("default")
    app.drain()
    app.queues.resume("default")
    [job] = app.jobs.list()
    other, _ = program.deploy(by_number)
    other.drain()
    assert (job.refresh().state, job.record.phase) == ("WAITING", "unfit")


# Signatures


@dataclass
class Order:
    number: int


@dataclass
class Longer:
    number: int
    unit: str


class Model(pydantic.BaseModel):
    number: int


class LongerModel(pydantic.BaseModel):
    number: int
    unit: str


Longer.__name__ = Longer.__qualname__ = "Order"
LongerModel.__name__ = LongerModel.__qualname__ = "Model"


def signature(hint, default=None) -> str:
    def handler(given, other=default) -> None: ...

    handler.__annotations__ = {"given": hint, "other": object}
    return Arguments(handler, "handler").fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (int, str),
        (int, int | None),
        (Order, Longer),
        (list[Order], list[Longer]),
        (Model, LongerModel),
        (Iterable[Order], Iterable[Longer]),
        (Iterable[int], Iterator[int]),
        (object, int),
    ],
)
def test_signatures_that_take_other_values_are_told_apart(one, other):
    assert signature(one) == signature(one)
    assert signature(one) != signature(other)


def test_what_is_no_parameter_changes_no_signature():
    def handler(given: int) -> int:
        return given

    def later(ctx: mp.Context, given: int) -> str:
        return str(given)

    assert Arguments(handler, "h").fingerprint == Arguments(later, "h").fingerprint
    assert signature(int, default=object()) == signature(int, default=object())
