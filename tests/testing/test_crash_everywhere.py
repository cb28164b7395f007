"""A crash at every commit: a careful handler survives each, a careless one is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import milepost as mp
from milepost.testing import everywhere


@pytest.fixture
def app(place: str) -> Iterator[mp.App]:
    made = mp.App("sqlite:///never-used.db")
    with mp.testing.fresh_store(made, place):
        yield made


@pytest.fixture
def small() -> mp.App:
    """An app that needs no server: what is tested is not the store."""
    return mp.App("sqlite:///never-used.db")


def rows(app: mp.App, table: str) -> int:
    with mp.testing.connection(app) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_three_steps_leave_each_effect_once_wherever_the_worker_dies(app, place, tmp_path):
    """What issue 5 asks for: every step's effect once, results kept (H-39)."""
    tried, seen = tmp_path / "tried", set()
    jobs = []

    def write(connection, table: str) -> str:
        connection.execute(f"INSERT INTO {table} VALUES (1)")
        return table

    def reserve() -> int:
        with tried.open("a") as file:
            file.write("x")
        return 7

    @app.job(retry_delay=60)
    def order(ctx: mp.Context) -> list[object]:
        number = ctx.step("reserve", reserve)
        booked = ctx.step("book", write, "booking", transaction=True)
        billed = ctx.step("bill", write, "bill", transaction=True)
        return [number, booked, billed]

    def start():
        with mp.testing.connection(app) as connection:
            connection.execute("CREATE TABLE booking (n INTEGER)")
            connection.execute("CREATE TABLE bill (n INTEGER)")
        tried.write_text("")
        jobs[:] = [order.submit()]

    def check():
        assert app.client.url.dialect == place[: len(app.client.url.dialect)], "where it was asked"
        assert jobs[0].refresh().result == [7, "booking", "bill"]
        assert rows(app, "booking") == rows(app, "bill") == 1
        seen.add(tried.read_text())

    # Both sides of the claim, of three steps, and of the outcome.
    assert mp.testing.crash_everywhere(app, start, check) == 10
    # Not transactional: a crash between effect and record is the one that repeats it.
    assert seen == {"x", "xx"}


def test_a_batch_reports_the_same_wherever_the_worker_dies_h34_h65(small):
    numbers = small.batch("numbers")
    runs = []

    @numbers.step
    def find() -> Iterator[int]:
        yield from (1, 2)

    @numbers.step(gated=True)
    def double(number: int) -> int:
        return number * 2

    @numbers.reduce
    def total(doubled: Iterator[int]) -> int:
        return sum(doubled)

    def start():
        runs[:] = [numbers.start()]

    def check():
        assert runs[0].refresh().report == 6
        assert [step.counts for step in runs[0].steps] == [
            {"SUCCEEDED": 1},
            {"SUCCEEDED": 2},
            {"SUCCEEDED": 1},
        ]

    assert mp.testing.crash_everywhere(small, start, check) >= 12


def test_an_effect_that_a_crash_repeats_is_found_and_the_place_is_named(small, tmp_path):
    sent = tmp_path / "sent"

    @small.job
    def careless(ctx: mp.Context) -> None:
        with sent.open("a") as file:
            file.write("mail ")

    def start():
        sent.write_text("")
        careless.submit()

    def check():
        assert sent.read_text() == "mail "

    with pytest.raises(AssertionError) as caught:
        mp.testing.crash_everywhere(small, start, check)

    [note] = caught.value.__notes__
    assert "a crash before commit 2 (" in note


def test_a_check_that_fails_without_any_crash_says_so(small):
    @small.job
    def fine() -> None: ...

    def check():
        raise AssertionError("never right")

    with pytest.raises(AssertionError) as caught:
        mp.testing.crash_everywhere(small, fine.submit, check)

    assert "after no crash at all" in caught.value.__notes__[0]


async def test_an_asynchronous_test_starts_and_checks_in_its_own_loop(small):
    jobs = []

    @small.job
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def start():
        jobs[:] = [await greet.submit_async("you")]

    async def check():
        assert (await jobs[0].refresh_async()).result == "hello you"

    assert await mp.testing.crash_everywhere_async(small, start, check) == 4


def test_inside_a_loop_the_other_call_is_named(small):
    async def start(): ...

    with pytest.raises(mp.Invalid, match="crash_everywhere_async"):
        mp.testing.crash_everywhere(small, start, lambda: None)


async def test_a_loop_is_not_blocked(small):
    with pytest.raises(mp.Invalid, match="await crash_everywhere_async"):
        mp.testing.crash_everywhere(small, lambda: None, lambda: None)


def test_sleeping_and_failing_work_is_brought_to_its_end_without_waiting(small):
    @small.job(retries=2, retry_delay=3600)
    def slow(ctx: mp.Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("away")
        return ctx.attempt

    with mp.testing.fresh_store(small):
        job = slow.options(start_in=86_400).submit()
        everywhere.finish(small)
        assert job.refresh().result == 3


def test_work_without_an_end_is_given_up(small, monkeypatch):
    monkeypatch.setattr(everywhere, "ROUNDS", 3)

    @small.job
    def never() -> None:
        raise mp.Later(60)

    with mp.testing.fresh_store(small):
        never.submit()
        with pytest.raises(AssertionError, match="still work to do"):
            everywhere.finish(small)


def test_a_worker_that_breaks_by_itself_is_told_with_its_traceback(small, monkeypatch):
    monkeypatch.setattr(everywhere, "ROUNDS", 0)

    with pytest.raises(RuntimeError, match=r"(?s)ended with 1 before its crash.*still work to do"):
        mp.testing.crash_everywhere(small, lambda: None, lambda: None)


def test_the_apps_own_store_is_never_opened(small):
    @small.job
    def fine() -> None: ...

    mp.testing.crash_everywhere(small, fine.submit, lambda: None)

    assert not Path("never-used.db").exists()
