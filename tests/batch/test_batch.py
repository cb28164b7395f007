"""Spec A, as its users meet it: what steps give becomes jobs, gates hold, reducers report."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import pytest

import milepost as mp
from milepost.observe.verify import verify

pytestmark = pytest.mark.both_stores


class Params(msgspec.Struct):
    count: int
    name: str = "x"


@pytest.fixture(autouse=True)
def clean(database):
    """Whatever a test did, the journal is the whole truth afterwards."""
    yield
    with database.driver() as driver:
        assert verify(driver).clean


def moves(subject):
    return [entry.move for entry in subject.history]


def counts(run):
    return {step.name: step.counts for step in run.refresh().steps}


def numbers(app, **options):
    """Declare find -> load (gated) -> total."""
    batch = app.batch("numbers", params=Params, **options)

    @batch.step
    def find(params: Params) -> Iterator[int]:
        yield from range(params.count)

    @batch.step(gated=True, retries=0)
    def load(number: int) -> int:
        return number * 2

    @batch.reduce
    def total(found: Iterable[int]) -> int:
        return sum(found)

    return batch


# Walking through


def test_what_a_step_yields_becomes_the_next_steps_jobs(app):
    run = numbers(app).start(Params(count=4))
    app.drain()
    assert run.refresh().state == mp.RunState.SUCCEEDED
    assert run.report == 2 * (0 + 1 + 2 + 3)
    assert moves(run) == ["create", "begin", "advance", "finalize", "finish"]
    assert counts(run) == {
        "find": {"SUCCEEDED": 1},
        "load": {"SUCCEEDED": 4},
        "total": {"SUCCEEDED": 1},
    }
    assert (run.progress, run.eta, run.current_step, run.error_count) == (1.0, None, None, 0)


@pytest.mark.parametrize("count", [0, 1])
def test_zero_and_one_child_end_like_any_other_number_h61(app, count):
    run = numbers(app).start(Params(count=count))
    app.drain()
    assert (run.refresh().state, run.report) == (mp.RunState.SUCCEEDED, 0)
    assert counts(run)["total"] == {"SUCCEEDED": 1}


def test_a_gate_opens_when_everything_before_it_has_ended_h63(app):
    batch = app.batch("gated")
    seen = []

    @batch.step
    def find() -> Iterator[int]:
        yield from (1, 2)

    @batch.step(retries=1, retry_delay=0)
    def load(number: int) -> int:
        seen.append("load")
        if seen.count("load") == 1:
            raise ConnectionError("once")
        return number

    @batch.step(gated=True)
    def index(number: int) -> None:
        seen.append("index")

    run = batch.start()
    app.drain(timeout=10)
    assert run.refresh().state == mp.RunState.SUCCEEDED
    assert seen == ["load", "load", "load", "index", "index"]
    # The last one's output comes in the transaction that opens the gate, and passes it as well.
    assert [moves(job) for job in app.jobs.list(kind="gated.index")] == [
        ["create", "open", "claim", "succeed"]
    ] * 2


def test_any_other_value_is_one_job_and_none_is_none(app):
    batch = app.batch("values")

    @batch.step
    def find() -> Iterator[int | None]:
        yield from (1, None, 2)

    @batch.step
    def pair(number: int) -> list[int] | None:
        return [number, number] if number == 1 else None

    @batch.step
    def take(numbers: list[int]) -> list[int]:
        return numbers

    @batch.reduce
    def gather(found: Iterable[list[int]]) -> list[list[int]]:
        return list(found)

    run = batch.start()
    app.drain()
    assert run.refresh().report == [[1, 1]]


def test_the_last_step_may_give_several_inputs_to_the_reducer(app):
    batch = app.batch("many")

    @batch.step
    def find() -> Iterator[int]:
        yield from (1, 2, 3)

    @batch.reduce
    def gather(found: Iterable[int]) -> list[int]:
        return list(found)

    run = batch.start()
    app.drain()
    assert run.refresh().report == [1, 2, 3]


def test_an_item_may_go_to_a_named_later_step(app):
    batch = app.batch("skipping")

    @batch.step
    def find() -> Iterator[object]:
        yield 1
        yield mp.to("finish", 10)

    @batch.step
    def middle(number: int) -> int:
        return number + 1

    @batch.step
    def finish(number: int) -> int:
        return number

    @batch.reduce
    def gather(found: Iterable[int]) -> list[int]:
        return sorted(found)

    run = batch.start()
    app.drain()
    assert run.refresh().report == [2, 10]
    assert counts(run)["middle"] == {"SUCCEEDED": 1}


def test_asynchronous_steps_and_reducers(app):
    batch = app.batch("colours")

    @batch.step
    async def find() -> AsyncIterator[int]:
        for number in range(1200):
            yield number

    @batch.step
    async def double(number: int) -> int:
        return number * 2

    @batch.reduce
    async def total(found: AsyncIterable[int]) -> int:
        return sum([number async for number in found])

    run = batch.start()
    app.drain()
    assert run.refresh().report == sum(range(1200)) * 2


async def test_every_call_has_an_asynchronous_twin(app):
    run = await numbers(app).start_async(Params(count=2))
    await app.drain_async()
    assert (await run.wait_async(10)).report == 2
    assert [entry.move for entry in await run.history_async()][-1] == "finish"
    assert await run.errors_async() == []
    assert (await app.runs.get_async(run.id)).report == 2
    assert [found.id for found in await app.runs.list_async(kind="numbers")] == [run.id]
    with pytest.raises(mp.IllegalMove):
        await run.resume_async()
    await app.client.close_async()


def test_a_polling_step_is_born_waiting_and_may_ask_again_h5(app, advance):
    batch = app.batch("polling")
    asked = []

    @batch.step
    def find() -> int:
        return 1

    @batch.step(poll=60, poll_limit=5)
    def ready(number: int) -> int:
        asked.append(number)
        if len(asked) < 3:
            raise mp.Later(60)
        return number

    run = batch.start()
    app.drain()
    [job] = app.jobs.list(kind="polling.ready")
    assert (job.state, asked) == (mp.JobState.WAITING, [])
    assert job.as_spec("A") == "POLL_WAITING"
    assert abs(job.record.due_at - job.created_at - timedelta(seconds=60)) < timedelta(seconds=1)
    for _ in range(3):
        advance(61)
        app.drain()
    assert run.refresh().state == mp.RunState.SUCCEEDED
    assert moves(job) == [
        *("create", "wake", "claim", "later"),
        *("wake", "claim", "later"),
        *("wake", "claim", "succeed"),
    ]


# Failing


def failing(app, policy=None, at=(1,)):
    batch = app.batch("failing", params=Params, policy=policy)

    @batch.step
    def find(params: Params) -> Iterator[int]:
        yield from range(params.count)

    @batch.step(retries=0)
    def load(number: int) -> int:
        if number in at:
            raise mp.Fail(f"number {number}")
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> int:
        return sum(found)

    return batch


def test_fail_fast_stops_at_the_first_failure_h60(app):
    run = failing(app).start(Params(count=4))
    app.drain()
    assert run.refresh().state == mp.RunState.FAILED
    assert run.error_count == 1
    [error] = run.errors
    assert (error.step, error.type, error.message) == ("load", "Fail", "number 1")
    assert "total" not in {name for name, found in counts(run).items() if found}
    with pytest.raises(mp.JobFailed, match="policy"):
        _ = run.report


def test_collect_tries_everything_and_then_fails_h59(app):
    run = failing(app, mp.Collect(), at=(0, 2)).start(Params(count=4))
    app.drain()
    assert run.refresh().state == mp.RunState.FAILED
    assert counts(run)["load"] == {"SUCCEEDED": 2, "FAILED": 2}
    assert [error.message for error in run.errors] == ["number 0", "number 2"]


@pytest.mark.parametrize(("failed", "state"), [((0,), "SUCCEEDED"), ((0, 1), "FAILED")])
def test_tolerate_bears_its_share_and_no_more(app, failed, state):
    run = failing(app, mp.Tolerate(0.25), at=failed).start(Params(count=4))
    app.drain()
    assert run.refresh().state == state
    if state == "SUCCEEDED":
        assert run.report == 1 + 2 + 3
        return
    told = "50.0 % of 4 jobs of load failed, 25 % allowed"
    assert run.history[-1].detail == told
    with pytest.raises(mp.JobFailed, match=f"policy; {told}, jobs that failed: 2"):
        _ = run.report


def test_a_failed_attempts_outputs_are_never_seen_h56(app):
    batch = app.batch("again")
    tried = []

    @batch.step(retry_delay=0)
    def find() -> Iterator[int]:
        tried.append(1)
        yield from range(700)
        if len(tried) == 1:
            raise ConnectionError("in the middle")

    @batch.step
    def load(number: int) -> int:
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> int:
        return sum(1 for _ in found)

    run = batch.start()
    app.drain(timeout=10)
    assert (run.refresh().report, len(tried)) == (700, 2)


def test_no_transaction_that_ends_jobs_creates_more_than_it_should(app, raw):
    batch = app.batch("wide")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(5)

    @batch.step
    async def spread(number: int) -> AsyncIterator[int]:
        for one in range(400):
            yield number * 400 + one

    @batch.step
    async def load(number: int) -> int:
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> bool:
        return sorted(found) == list(range(2000))

    run = batch.start()
    app.drain(timeout=10)
    assert run.refresh().report is True
    # They end together; had one transaction ended them all, it would have put the rest aside.
    assert raw.value("SELECT count(*) FROM publication") == 0


def test_a_reducer_that_fails_fails_the_run_and_one_that_recovers_does_not_h34(app):
    batch = app.batch("reducing")
    tried = []

    @batch.step
    def find() -> int:
        return 7

    @batch.reduce(retries=1, retry_delay=0)
    def total(found: Iterable[int]) -> int:
        tried.append(list(found))
        if len(tried) in (1, 3, 4):
            raise ConnectionError("away")
        return 1

    well, sick = batch.start(), batch.start()
    app.drain(timeout=10)
    states = {well.refresh().state, sick.refresh().state}
    assert states == {mp.RunState.SUCCEEDED, mp.RunState.FAILED}
    assert all(inputs == [7] for inputs in tried)


def test_a_report_may_be_none_h66(app):
    batch = app.batch("silent")

    @batch.step
    def find() -> None: ...

    @batch.reduce
    def total(found: Iterable[int]) -> None:
        assert list(found) == []

    run = batch.start()
    app.drain()
    assert (run.refresh().state, run.report) == (mp.RunState.SUCCEEDED, None)


# Cancelling and resuming


def test_a_run_is_cancelled_in_every_state_h4(app):
    batch = numbers(app)
    queued = batch.start(Params(count=2))
    held = batch.start(Params(count=2), hold=True)
    assert queued.cancel("wrong folder") == mp.RunState.CANCELLED
    assert held.cancel() == mp.RunState.CANCELLED
    assert moves(held) == ["create", "cancel"]
    with pytest.raises(mp.JobFailed, match="CANCELLED"):
        _ = queued.report
    app.drain()
    assert queued.cancel() == mp.RunState.CANCELLED  # answers what really is
    assert "wrong folder" in [entry.detail for entry in queued.history]


def test_resume_runs_what_did_not_succeed_and_reads_the_rest_through_the_chain(app):
    batch = app.batch("resumed", policy=mp.Collect())
    broken = {1, 2}
    ran = []

    @batch.step
    def find() -> Iterator[int]:
        yield from range(4)

    @batch.step(retries=0)
    def load(number: int) -> int:
        ran.append(number)
        if number in broken:
            raise mp.Fail("broken")
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> list[int]:
        return sorted(found)

    first = batch.start()
    app.drain()
    assert first.refresh().state == mp.RunState.FAILED
    broken.remove(1)
    second = first.resume()
    app.drain()
    assert second.refresh().state == mp.RunState.FAILED
    with pytest.raises(mp.IllegalMove, match=second.id):
        first.resume()
    broken.clear()
    third = second.resume()
    app.drain()
    assert third.refresh().report == [0, 1, 2, 3]
    assert sorted(ran) == [0, 1, 1, 2, 2, 2, 3]
    [again] = [job for job in app.jobs.list(kind="resumed.load") if job.record.run_id == third.id]
    assert again.record.rerun_of is not None
    with pytest.raises(mp.IllegalMove, match="SUCCEEDED"):
        third.resume()


def test_resume_publishes_what_the_stopped_run_had_not(app):
    batch = app.batch("stopped")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(600)  # too many to come along with the end

    @batch.step
    def load(number: int) -> int:
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> list[int]:
        return sorted(found)

    run = batch.start()
    from milepost.store import failpoint

    def stop() -> None:
        raise RuntimeError("nobody can publish")

    with failpoint.armed("before:publication_take", stop):
        app.drain()
    assert counts(run)["load"] == {}
    assert run.cancel() == mp.RunState.CANCELLED
    app.maintain_once()
    again = run.resume()
    app.drain(timeout=5)
    assert again.refresh().report == list(range(600))


def test_a_run_with_the_same_parameters_is_used_again_unless_it_is_being_cancelled_h106(app):
    batch = numbers(app)
    first = batch.start(Params(count=2), reuse=True)
    assert batch.start(Params(count=2), reuse=True).id == first.id
    assert batch.start(Params(count=3), reuse=True).id != first.id
    assert batch.start(Params(count=2)).id != first.id
    first.cancel()
    assert batch.start(Params(count=2), reuse=True).id != first.id


# Filling in pieces


def test_a_run_is_filled_in_pieces_and_begins_when_it_is_submitted(app):
    batch = app.batch("pieces")

    @batch.step
    def load(number: int) -> int:
        return number

    @batch.reduce
    def total(found: Iterable[int]) -> int:
        return sum(found)

    run = batch.start(hold=True)
    assert run.add([1, 2]) == 2
    assert run.add(range(3, 5)) == 2
    app.drain()
    assert run.refresh().state == mp.RunState.CREATED
    with pytest.raises(mp.Invalid, match="load"):
        run.add([5, "six"])
    run.submit()
    app.drain()
    assert run.refresh().report == 10
    with pytest.raises(mp.Invalid, match="SUCCEEDED"):
        run.add([6])


def test_a_run_that_nobody_submits_expires_an_hour_after_the_last_add_h107(app, advance):
    batch = numbers(app)
    run = batch.start(Params(count=1), hold=True)
    run.add([Params(count=1)])
    for _ in range(3):
        advance(3000)
        app.maintain_once()
        assert run.refresh().state == "CREATED"
        run.add([Params(count=1)])
    advance(3601)
    app.maintain_once()
    app.maintain_once()
    assert (run.refresh().state, run.record.cause) == ("FAILED", "deadline")
    with pytest.raises(mp.IllegalMove, match=f"{run.id} is FAILED"):
        run.submit()
    with pytest.raises(mp.Invalid, match=f"{run.id} is FAILED"):
        run.add([Params(count=1)])


def test_a_hold_lasts_as_long_as_the_setting_says_h107(database, advance):
    app = mp.App(database.url, hold_limit=60)
    run = numbers(app).start(Params(count=1), hold=True)
    advance(61)
    app.maintain_once()
    assert run.refresh().record.cause == "deadline"
    app.close()


def test_a_held_run_that_was_looked_up_is_filled_and_submitted(app, database):
    batch = numbers(app)
    run_id = batch.start(Params(count=1), hold=True).id
    found = app.runs.get(run_id)
    assert found.add([Params(count=2)]) == 1
    assert app.runs.list()[0].add([Params(count=2)]) == 1
    with pytest.raises(mp.Invalid, match="find"):
        found.add(["not a parameter"])
    stranger = mp.App(database.url)
    with pytest.raises(mp.Invalid, match="not declared as a batch here"):
        stranger.runs.get(run_id).add([Params(count=2)])
    stranger.close()
    found.submit()
    app.drain()
    assert found.refresh().state == "SUCCEEDED"
    assert found.steps[0].counts == {"SUCCEEDED": 2}


# Hooks


def test_hooks_are_jobs_of_their_own_and_change_no_run_h55(app):
    batch = app.batch("hooked", params=Params)
    told = []

    @batch.step(retries=0)
    def find(params: Params) -> None:
        if params.count:
            raise mp.Fail("no")

    @batch.on_success(retries=0)
    def celebrate(run: mp.RunHandle) -> None:
        told.append(("good", run.state))
        raise RuntimeError("the hook itself fails")

    @batch.on_failure
    async def mourn(run: mp.RunHandle) -> None:
        await run.refresh_async()
        told.append(("bad", run.state))

    good, bad = batch.start(Params(count=0)), batch.start(Params(count=1))
    app.drain()
    assert sorted(told) == [("bad", mp.RunState.FAILED), ("good", mp.RunState.SUCCEEDED)]
    assert (good.refresh().state, bad.refresh().state) == ("SUCCEEDED", "FAILED")
    [hook] = app.jobs.list(kind="hooked.celebrate")
    assert (hook.state, hook.record.run_id) == (mp.JobState.FAILED, None)


# Bad input


@dataclass
class Wide:
    folder: str
    depth: int
    deep: bool = False


def test_all_problems_with_parameters_are_named_together_and_nothing_is_stored(app, raw):
    batch = app.batch("wide", params=Wide)

    @batch.step
    def find(params: Wide) -> None: ...

    with pytest.raises(mp.Invalid) as caught:
        batch.start(Wide(folder=1, depth="deep"))
    assert "folder" in str(caught.value)
    assert "depth" in str(caught.value)
    with pytest.raises(mp.Invalid, match="depth: it is missing"):
        batch.start({"folder": "x"})
    with pytest.raises(mp.Invalid, match="speed: there is no such parameter"):
        batch.start({"folder": "x", "depth": 1, "speed": 3})
    assert raw.value("SELECT count(*) FROM run") == 0
    assert raw.value("SELECT count(*) FROM job") == 0


def test_an_item_that_does_not_fit_the_next_step_fails_its_producer(app, raw):
    batch = app.batch("misfit")

    @batch.step
    def find() -> Iterator[object]:
        yield 1
        yield "two"

    @batch.step
    def load(number: int) -> None: ...

    run = batch.start()
    app.drain()
    [error] = run.refresh().errors
    assert run.state == mp.RunState.FAILED
    assert "misfit.load" in error.message
    assert counts(run)["load"] == {}


@pytest.mark.parametrize("target", ["find", "nowhere"])
def test_to_names_a_later_step(app, target):
    batch = app.batch("astray")

    @batch.step
    def find() -> Iterator[object]:
        yield mp.to(target, 1)

    @batch.step
    def load(number: int) -> None: ...

    run = batch.start()
    app.drain()
    [error] = run.refresh().errors
    assert "later step: load" in error.message


def test_declarations_that_cannot_be_meant_are_refused_at_once(app):
    batch = app.batch("careful", params=Params)
    with pytest.raises(mp.Invalid, match="no step"):
        batch.start(Params(count=1))
    with pytest.raises(mp.Invalid, match="only argument"):

        @batch.step
        def two(a: int, b: int) -> None: ...

    with pytest.raises(mp.Invalid, match="params="):

        @batch.step
        def wrong(params: int) -> None: ...

    with pytest.raises(mp.Invalid, match="takes no colour"):

        @batch.step(colour="red")
        def odd(params: Params) -> None: ...

    @batch.step
    def find(params: Params) -> None: ...

    with pytest.raises(mp.Invalid, match="declared twice"):

        @batch.step(name="find")
        def again(number: int) -> None: ...

    @batch.reduce
    def total(found: Iterable[int]) -> None: ...

    with pytest.raises(mp.Invalid, match="reducer"):

        @batch.step
        def late(number: int) -> None: ...

    with pytest.raises(mp.Invalid, match="declared twice"):
        app.batch("careful")
    with pytest.raises(mp.Invalid, match="policy"):
        app.batch("other", policy="fail")
    with pytest.raises(mp.Invalid, match="share"):
        mp.Tolerate(5)


def versioned(url, version, seen):
    app = mp.App(url)
    batch = app.batch("versioned", version=version)

    @batch.step
    def find() -> int:
        return 1

    @batch.step
    def load(number: int) -> None:
        seen.append(version)

    return app, batch


def test_versions_stand_side_by_side_and_running_ones_keep_theirs_h104(database):
    seen = []
    old, first = versioned(database.url, 1, seen)
    new, second = versioned(database.url, 2, seen)
    run, other = first.start(), second.start()
    assert new.drain() == 2
    assert (run.refresh().state, other.refresh().state) == ("QUEUED", "SUCCEEDED")
    assert old.drain() == 2
    assert (run.refresh().state, seen) == ("SUCCEEDED", [2, 1])
    old.close()
    new.close()


def test_progress_only_grows_and_stays_below_one_until_the_end_h102(app):
    batch = app.batch("growing")
    said = []
    run = None

    @batch.step
    def find() -> Iterator[int]:
        yield from range(5)

    @batch.step
    def load(number: int) -> None:
        said.append(run.refresh().progress)

    run = batch.start()
    assert run.progress == 0.0
    assert run.eta is None
    app.drain()
    assert said == sorted(said)
    assert all(0 < share < 1 for share in said)
    assert run.refresh().progress == 1.0


def test_collect_lets_what_already_moves_on_end_before_it_fails_h59(app):
    batch = app.batch("onward", policy=mp.Collect())
    stored = []

    @batch.step
    def find() -> Iterator[int]:
        yield from range(3)

    @batch.step(retries=0)
    def load(number: int) -> int:
        if number == 0:
            raise mp.Fail("broken")
        return number

    @batch.step
    def store(number: int) -> int:
        stored.append(number)
        return number

    @batch.step(gated=True)
    def publish(number: int) -> None:
        stored.append("published")

    run = batch.start()
    app.drain()
    assert run.refresh().state == mp.RunState.FAILED
    assert sorted(stored) == [1, 2]
    assert set(counts(run)["publish"]) <= {"CANCELLED"}
