"""What a last step gives: one result or many, streamed, read by the reducer in bounded memory."""

import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest

import milepost as mp
from milepost.errors import LeaseLost
from milepost.observe.verify import verify
from milepost.outcome import Output
from milepost.store import jobs, outputs, workers
from milepost.store.workers import NewWorker

COUNT = 40
SIZE = 100_000


@pytest.fixture(autouse=True)
def verified(database):
    """Whatever a test does, the store's books are right in the end."""
    yield
    with database.driver() as driver:
        assert verify(driver).problems == []


def kept(raw) -> list[tuple[int, int]]:
    """Count the results that are kept beside their jobs, by fence."""
    found = raw.execute("SELECT fence, count(*) FROM job_output GROUP BY fence ORDER BY fence")
    return [(int(fence), int(count)) for fence, count in found]


def batch_of(app, step, *, name="given", **declared):
    """Declare a batch of that one step whose reducer tells what it was given."""
    batch = app.batch(name)
    batch.step(name="give", **declared)(step)

    @batch.reduce
    def told(found: Iterable[object]) -> list[object]:
        return list(found)

    return batch


@pytest.mark.parametrize("colour", ["plain", "async"])
def test_yields_of_the_last_step_need_not_fit_together(database, colour):
    app = mp.App(database.url, max_payload=SIZE * 2)
    batch = app.batch("large")

    if colour == "plain":

        @batch.step
        def give() -> Iterator[str]:
            for number in range(COUNT):
                yield f"{number} " + "x" * SIZE

        @batch.reduce
        def told(found: Iterable[str]) -> list[int]:
            return [int(text.partition(" ")[0]) for text in found]

    else:

        @batch.step(name="give")
        async def give_async() -> AsyncIterator[str]:
            for number in range(COUNT):
                yield f"{number} " + "x" * SIZE

        @batch.reduce(name="told")
        async def told_async(found: AsyncIterator[str]) -> list[int]:
            return [int(text.partition(" ")[0]) async for text in found]

    run = batch.start()
    app.drain(timeout=30)
    assert run.refresh().report == list(range(COUNT))
    app.close()


def test_one_item_that_is_too_large_is_refused(database):
    app = mp.App(database.url, max_payload=1_000)

    def give() -> Iterator[str]:
        yield "small"
        yield "x" * 2_000

    run = batch_of(app, give, retries=0).start()
    app.drain()
    assert run.refresh().state == "FAILED"
    assert "the output of give: 2,002 bytes, and the limit is 1,000" in run.errors[0].message
    app.close()


GIVEN = {
    "none": ([], []),
    "one": ([7], [7]),
    "gaps": ([None, 7, None], [7]),
    "two": ([7, 8], [7, 8]),
    "a value": ([{"$yield": [1, 2]}], [{"$yield": [1, 2]}]),
    "values": ([{"$yield": [1, 2]}, 3], [{"$yield": [1, 2]}, 3]),
    "lists": ([[1, 2], [3]], [[1, 2], [3]]),
    "one large": (["x" * 1_000_000], ["x" * 1_000_000]),
    "many": (list(range(1_700)), list(range(1_700))),
}


def test_what_is_yielded_is_what_is_read(app, subtests):
    def giving(given):
        def give() -> Iterator[object]:
            yield from given

        return give

    runs = {
        name: batch_of(app, giving(given), name=name).start() for name, (given, _) in GIVEN.items()
    }
    app.drain()
    for name, (_, read) in GIVEN.items():
        with subtests.test(name=name):
            assert runs[name].refresh().report == read


def test_a_value_that_looks_like_yields_is_a_value(app):
    def give() -> dict[str, list[int]]:
        return {"$yield": [1, 2]}

    run = batch_of(app, give).start()
    app.drain()
    assert run.refresh().report == [{"$yield": [1, 2]}]
    [job] = app.jobs.list(kind="given.give")
    assert job.result == {"$yield": [1, 2]}


def test_what_a_failed_attempt_gave_is_not_read_h55(app, advance, raw):
    attempts = []

    def give(ctx: mp.Context) -> Iterator[int]:
        attempts.append(1)
        yield from range(len(attempts) * 1_000)
        if len(attempts) == 1:
            raise ConnectionError

    run = batch_of(app, give, retries=1, retry_delay=0).start()
    app.drain(timeout=30)
    assert run.refresh().report == list(range(2_000))
    assert kept(raw) == [(2, 2_000)], "what the first attempt left is gone"


def test_an_attempt_that_lost_its_lease_gives_nothing(app, advance):
    def give() -> Iterator[int]:
        yield from (1, 2)

    run = batch_of(app, give).start()
    app.client.run(workers.register, NewWorker(id="late", lease_us=30_000_000))
    line = jobs.lines(["default"])
    [late] = app.client.run(jobs.claim, worker_id="late", line=line, most=1)
    app.client.run(outputs.keep, late, [(0, Output(0, b"7")), (1, Output(0, b"8"))])
    advance(31)
    app.maintain_once()
    app.maintain_once()
    with pytest.raises(LeaseLost):
        app.client.run(outputs.keep, late, [(2, Output(0, b"9"))])
    app.drain()
    assert run.refresh().report == [1, 2]


def test_a_run_that_resumes_reads_what_was_given_before(app):
    sick = [True]

    batch = app.batch("chain", policy=mp.Collect())

    @batch.step
    def find() -> Iterator[int]:
        yield from range(3)

    @batch.step(retries=0)
    def give(number: int) -> Iterator[str]:
        if number == 1 and sick:
            raise mp.Fail("away")
        yield f"{number}a"
        yield f"{number}b"

    @batch.reduce
    def told(found: Iterable[str]) -> list[str]:
        return sorted(found)

    run = batch.start()
    app.drain()
    assert run.refresh().state == "FAILED"
    sick.clear()
    again = run.resume()
    app.drain()
    assert again.refresh().report == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_what_was_given_leaves_with_its_job_and_is_erased_with_it(app, raw, advance):
    def give() -> Iterator[int]:
        yield from (1, 2)

    batch = batch_of(app, give)
    batch.start()
    app.drain()
    [job] = app.jobs.list(kind="given.give")
    assert list(job.outputs()) == [1, 2]
    assert app.client.run(jobs.erase, job.id, actor="me")
    assert kept(raw) == []
    assert list(job.refresh().outputs()) == []
    batch.start()
    app.drain()
    assert kept(raw) == [(1, 2)]
    advance(8 * 86_400)
    for _ in range(3):
        app.maintain_once()
    assert kept(raw) == []


async def test_a_handle_gives_what_its_job_gave(app):
    def give() -> Iterator[int]:
        yield from range(1_000)

    run = await batch_of(app, give).start_async()
    await app.drain_async()
    assert (await run.refresh_async()).state == "SUCCEEDED"
    [job] = await app.jobs.list_async(kind="given.give")
    assert [item async for item in job.outputs_async()] == list(range(1_000))
    [reduced] = await app.jobs.list_async(kind="given.told")
    assert [item async for item in reduced.outputs_async()] == [list(range(1_000))]
    await app.close_async()


def test_a_reducer_reads_many_large_results_in_little_memory(tmp_path):
    """Few rows are asked for before it is known how large they are."""
    app = mp.App(f"sqlite:///{tmp_path}/large.db")
    size, count = 500_000, 100
    batch = app.batch("memory")

    @batch.step
    def give() -> Iterator[str]:
        for _ in range(count):
            yield "x" * size

    @batch.reduce
    def told(found: Iterable[str]) -> int:
        tracemalloc.start()
        total = sum(len(text) for text in found)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < size * count // 2, f"{peak:,} bytes"
        return total

    run = batch.start()
    app.drain(timeout=60)
    assert run.refresh().report == size * count
    app.close()


def test_results_that_do_not_fit_the_reducer_wait_for_one_that_they_fit(database):
    def declared(element):
        app = mp.App(database.url)
        batch = app.batch("reduced")

        @batch.step
        def give() -> str:
            return "seven"

        def told(found) -> list[object]:
            return list(found)

        told.__annotations__["found"] = Iterable[element]
        batch.reduce(told)
        return app, batch

    app, batch = declared(int)
    run = batch.start()
    app.drain()
    assert run.refresh().state == "FINALIZING"
    [waiting] = app.jobs.list(state="WAITING")
    assert (waiting.kind, waiting.record.phase) == ("reduced.told", "unfit")
    app.close()
    app, _ = declared(str)
    app.drain()
    assert app.runs.get(run.id).report == ["seven"]
    app.close()
