"""Durable steps: done once, typed, fenced, recorded with what they wrote."""

import asyncio
import functools
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from numbers import Number
from typing import Any, TypeVar

import pytest
from attempts import claimed, lose, overtaken

import milepost as mp
from milepost.client import new_id
from milepost.observe.verify import verify
from milepost.store import durable, failpoint, jobs
from milepost.store.failpoint import cut

pytestmark = pytest.mark.in_turn


@dataclass
class Invoice:
    number: int
    lines: list[str]


@pytest.fixture
def job(app):
    @app.job(name="work")
    def work() -> None: ...

    return work.submit()


@pytest.fixture
def called():
    return []


def once(called, value):
    def effect():
        called.append(value)
        return value

    return effect


def names(raw):
    return [name for (name,) in raw.execute("SELECT name FROM durable_step ORDER BY name")]


def test_a_step_runs_once_and_a_later_attempt_is_given_its_result(app, job, advance, called):
    first = claimed(app)
    assert first.step("a", once(called, {"pages": 3})) == {"pages": 3}
    lose(app, advance)
    second = claimed(app)
    assert second.fence == 2
    assert second.step("a", once(called, "never")) == {"pages": 3}
    assert called == [{"pages": 3}]


def test_arguments_reach_the_function(app, job):
    def joined(*parts: str, end: str = "") -> str:
        return "-".join(parts) + end

    assert claimed(app).step("a", joined, "x", "y", end="!") == "x-y!"


def test_a_result_is_what_the_annotation_says_in_the_first_attempt_and_in_every_later_one(
    app, job, advance
):
    def bill() -> Invoice:
        return Invoice(7, ["pen"])

    def pair() -> tuple[int, str]:
        return 1, "one"

    def unsaid():
        return (1, 2)

    for _ in range(2):
        context = claimed(app)
        assert context.step("bill", bill) == Invoice(7, ["pen"])
        assert context.step("pair", pair) == (1, "one")
        # Without an annotation it is plain JSON, and so it is from the first time on.
        assert context.step("unsaid", unsaid) == [1, 2]
        assert context.step("bound", functools.partial(pair)) == [1, "one"]
        lose(app, advance)


def test_a_step_that_returns_nothing_is_done_all_the_same(app, job, advance, called):
    assert claimed(app).step("a", lambda: called.append(1)) is None
    lose(app, advance)
    assert claimed(app).step("a", lambda: called.append(2)) is None
    assert called == [1]


def test_the_same_name_twice_in_one_attempt_is_refused(app, job, called):
    context = claimed(app)
    context.step("a", once(called, 1))
    with pytest.raises(mp.Invalid, match=r"step 'a' came twice in this attempt.*f'page-"):
        context.step("a", once(called, 2))
    assert called == [1]


def test_an_error_is_no_result_and_the_step_may_be_tried_again(app, job, raw, called):
    context = claimed(app)
    with pytest.raises(ZeroDivisionError):
        context.step("a", lambda: 1 / 0)
    assert names(raw) == []
    assert context.step("a", once(called, 5)) == 5


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (object, "the result of step 'a': the value cannot be stored"),
        (lambda: "x" * 2_000_000, "the result of step 'a': 2,000,002 bytes, and the limit"),
        (lambda: asyncio.sleep(0), "step 'a' returned an awaitable"),
    ],
)
def test_a_result_that_cannot_be_kept_is_refused(app, job, raw, function, message):
    with pytest.raises(mp.Invalid, match=message):
        claimed(app).step("a", function)
    assert names(raw) == []


def test_a_result_that_does_not_fit_its_annotation_is_refused_the_first_time(app, job, raw):
    def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    with pytest.raises(mp.Invalid, match="step 'a' does not fit what its function says"):
        claimed(app).step("a", wrong)
    assert names(raw) == []


def _returning(hint, value):
    def work():
        return value

    work.__annotations__["return"] = hint
    return work


Any_ = TypeVar("Any_")
Either = TypeVar("Either", int, str)


class Plain:
    """A class that JSON says nothing of."""


LOOSE = (
    (object, {"n": [1]}),
    (object | None, 7),
    (int | object, "x"),
    (list[object], [1, "x", None]),
    (dict[str, object], {"n": [1]}),
    (Any, {"n": 1}),
    (list, [1]),
    (dict, {"n": 1}),
    (Any_, 7),
    (Either, 7),
    (Iterable[int], [1, 2]),
    (OrderedDict[str, int], {"n": 1}),
    (Plain, {"n": 1}),
    (list[Plain], [{"n": 1}]),
    (list[int] | set[int], [1]),
    (Number, 7),
    (Hashable, "x"),
    ("Undefined", 7),
)


def test_an_annotation_that_no_value_can_be_built_by_means_anything(app, job, advance, subtests):
    """The effect is done by then: a job must not fail for it."""
    first = claimed(app)
    for hint, value in LOOSE:
        with subtests.test(hint=str(hint), attempt=1):
            assert first.step(str(hint), _returning(hint, value)) == value
    lose(app, advance)
    second = claimed(app)
    for hint, value in LOOSE:
        with subtests.test(hint=str(hint), attempt=2):
            assert second.step(str(hint), _returning(hint, "not again")) == value


@pytest.mark.parametrize("name", ["", "nul\0", 7, "\ud800", "x" * 201])
def test_a_name_that_no_database_stores_is_refused(app, job, name):
    with pytest.raises(mp.Invalid, match="the name of a step"):
        claimed(app).step(name, lambda: 1)


def test_a_long_name_in_any_script_is_kept(app, job, raw):
    claimed(app).step("\U0001f4c4" * 200, lambda: 1)
    assert names(raw) == ["\U0001f4c4" * 200]


def test_an_attempt_that_lost_its_lease_begins_no_step(app, job, advance, called):
    """I2, H-30."""
    late, holder = overtaken(app, advance)
    with pytest.raises(mp.LeaseLost, match="fence 1: another attempt has it"):
        late.step("a", once(called, 1))
    assert called == []
    assert holder.step("a", once(called, 2)) == 2


def test_an_attempt_that_loses_its_lease_within_a_step_records_nothing(app, job, advance, raw):
    """I2, H-30."""
    late = claimed(app)

    def slow() -> int:
        lose(app, advance)
        return 1

    with pytest.raises(mp.LeaseLost):
        late.step("a", slow)
    assert names(raw) == []


def test_a_record_whose_answer_was_lost_is_not_lost(app, job, called):
    """F3, H-39: what was done already is recorded again, not done again."""
    context = claimed(app)

    def fail_once():
        failpoint.active.pop("after:commit")
        cut()

    def effect():
        called.append(1)
        failpoint.active["after:commit"] = fail_once
        return 1

    try:
        assert context.step("a", effect) == 1
    finally:
        failpoint.active.pop("after:commit", None)
    assert called == [1]


def test_steps_of_several_threads_do_not_disturb_each_other(app, job, raw):
    context = claimed(app)
    threads = [
        threading.Thread(target=context.step, args=(f"part-{n}", lambda n=n: n)) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(raw) == [f"part-{n}" for n in range(8)]


# In an event loop


async def test_async_steps_run_once(app, job, advance, called):
    async def fetch(url: str) -> Invoice:
        called.append(url)
        return Invoice(1, [url])

    def plain(number: int) -> int:
        called.append(threading.current_thread() is threading.main_thread())
        return number

    async def handle(context):
        assert await context.step_async("fetch", fetch, "a") == Invoice(1, ["a"])
        assert await context.step_async("plain", plain, 4) == 4

    await handle(await asyncio.to_thread(claimed, app))
    await asyncio.to_thread(lose, app, advance)
    await handle(await asyncio.to_thread(claimed, app))
    # A plain function has a thread of its own: it may wait without stopping the others.
    assert called == ["a", False]
    await app.close_async()


async def test_async_steps_run_side_by_side(app, job, raw):
    context = await asyncio.to_thread(claimed, app)

    async def half(n: int) -> int:
        await asyncio.sleep(0)
        return n

    done = await asyncio.gather(*(context.step_async(f"{n}", half, n) for n in range(5)))
    assert done == [0, 1, 2, 3, 4]
    with pytest.raises(mp.Invalid, match="came twice"):
        await context.step_async("1", half, 1)
    await app.close_async()


async def test_what_would_block_the_loop_is_refused_and_named(app, job):
    context = await asyncio.to_thread(claimed, app)

    async def fetch() -> None: ...

    for call in (
        lambda: context.step("a", lambda: 1),
        lambda: context.save(1),
        lambda: context.cursor,
        lambda: context.transaction().__enter__(),
    ):
        with pytest.raises(mp.Invalid, match=r"would block the event loop; await \w+_async\(\)"):
            call()
    await app.close_async()


def test_an_async_function_is_not_a_plain_step(app, job):
    async def fetch() -> None: ...

    with pytest.raises(mp.Invalid, match=r"async function: await ctx\.step_async"):
        claimed(app).step("a", fetch)


# Deleting and erasing


def end(app, context):
    from milepost import outcome
    from milepost.records import Settlement

    done = Settlement(context.claim, outcome.succeeded(b"1"))
    assert app.client.run(jobs.settle, [done], actor="test") == {context.id}


def test_steps_and_cursor_go_with_their_job(app, job, raw):
    context = claimed(app)
    context.step("a", lambda: "private")
    context.save({"at": 5})
    context.progress(0.5, "private")
    end(app, context)
    raw.execute(f"DELETE FROM job WHERE id = '{context.id}'")
    assert raw.execute("SELECT * FROM durable_step") == []
    assert raw.execute("SELECT * FROM progress") == []


def test_erase_empties_steps_cursor_and_texts(app, job, raw):
    context = claimed(app)
    context.step("charge-private@example.org", lambda: "private")
    context.save("private")
    context.progress(0.5, "private")
    end(app, context)
    assert app.client.run(jobs.erase, context.id, actor="operator")
    assert raw.execute("SELECT * FROM durable_step") == []
    kept = raw.execute("SELECT fraction, message, position FROM progress")
    assert kept == [(0.5, None, None)]
    # What the attempt says too late must not bring a text back.
    app.client.run(durable.write_progress, [durable.AttemptProgress(context.claim, 0.9, "private")])
    assert raw.execute("SELECT message FROM progress") == [(None,)]


@pytest.mark.parametrize("table", ["durable_step", "progress"])
@pytest.mark.parametrize("change", ["fence = 2", f"job_id = '{new_id()}'"], ids=["fence", "job"])
def test_verify_finds_what_no_attempt_can_have_kept(app, job, database, table, change):
    """I2, I15."""
    context = claimed(app)
    context.step("a", lambda: 1)
    context.save(1)
    with database.driver() as driver:
        assert verify(driver).clean
        with database.raw() as raw:
            raw.disarm()
            raw.execute(f"UPDATE {table} SET {change}")
        [problem] = [found for found in verify(driver).problems if found.machine != "guard"]
    assert "of an attempt that it never had" in problem.text
