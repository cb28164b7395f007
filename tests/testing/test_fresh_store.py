"""An app is pointed at a fresh store for a while, and comes back unchanged."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest

import milepost as mp
from milepost.testing.fresh import new_store

pytestmark = pytest.mark.in_turn


def declared(url: str) -> tuple[mp.App, object]:
    app = mp.App(url)

    @app.job
    def double(number: int) -> int:
        return number * 2

    return app, double


@pytest.fixture
def home(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'home.db'}"


def test_jobs_of_a_block_stay_in_it(place, home):
    app, double = declared(home)
    double.submit(1)

    with mp.testing.fresh_store(app, place) as url:
        job = double.submit(21)
        assert app.drain() == 1
        assert job.refresh().result == 42
        assert mp.testing.address(app) == url != home

    with pytest.raises(mp.Invalid, match="inside fresh_store"):
        mp.testing.address(app)
    assert [job.state for job in app.jobs.list()] == ["QUEUED"]
    app.close()


def test_the_clock_decides_when_a_sleeping_job_wakes(place, home):
    app, double = declared(home)
    with mp.testing.fresh_store(app, place):
        clock = mp.testing.StoreClock(app)
        before = clock.now
        job = double.options(start_in=3600).submit(1)
        assert app.drain() == 0

        clock.advance(3601)

        assert app.drain() == 1
        assert job.refresh().result == 2
        assert (clock.now - before).total_seconds() > 3600


async def test_the_same_in_an_event_loop(place, home):
    app, double = declared(home)
    async with mp.testing.fresh_store_async(app, place):
        clock = mp.testing.StoreClock(app)
        job = await double.options(start_in=60).submit_async(2)
        now = await clock.now_async()
        await clock.advance_async(61)
        assert await app.drain_async() == 1
        assert (await job.refresh_async()).result == 4
        assert (await clock.now_async() - now).total_seconds() > 60

    assert await app.jobs.list_async() == []
    await app.close_async()


def test_a_batch_and_its_reducer_follow_the_app(home):
    """They were declared on the app's own store, and must not go on using it."""
    app = mp.App(home)
    batch = app.batch("sums")

    @batch.step
    def numbers() -> Iterator[int]:
        yield from range(4)

    @batch.reduce
    def total(numbers: Iterator[int]) -> int:
        return sum(numbers)

    with mp.testing.fresh_store(app):
        run = batch.start()
        app.drain(timeout=10)
        assert run.refresh().report == 6

    assert app.counts() == {}
    app.close()


def test_blocks_may_nest_and_what_is_made_is_removed(home):
    app, double = declared(home)
    with mp.testing.fresh_store(app) as outer:
        double.submit(1)
        with mp.testing.fresh_store(app) as inner:
            assert inner != outer
            assert app.jobs.list() == []
        assert len(app.jobs.list()) == 1


def test_a_database_made_on_a_server_is_dropped(place):
    import psycopg

    if place == "sqlite":
        return
    with new_store(place) as url:
        psycopg.connect(url).close()
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_a_connection_commits_at_the_end_and_undoes_on_an_error(place, home):
    app, _ = declared(home)
    with mp.testing.fresh_store(app, place):
        with mp.testing.connection(app) as connection:
            connection.execute("CREATE TABLE mine (n INTEGER)")
        with suppress(ZeroDivisionError), mp.testing.connection(app) as connection:
            connection.execute("INSERT INTO mine VALUES (1)")
            _ = 1 / 0
        with mp.testing.connection(app) as connection:
            assert connection.execute("SELECT count(*) FROM mine").fetchone()[0] == 0


async def test_in_a_loop_the_other_call_is_named(home):
    app, _ = declared(home)
    with pytest.raises(mp.Invalid, match="fresh_store_async"), mp.testing.fresh_store(app):
        pass


def test_what_a_loop_left_open_is_closed_with_the_block(home):
    app, double = declared(home)
    with asyncio.Runner() as runner, mp.testing.fresh_store(app):
        job = runner.run(double.submit_async(3))
        assert runner.run(app.drain_async()) == 1
        assert job.refresh().result == 6
        assert app.client.loops
    assert not app.client.loops


def test_a_store_of_another_kind_is_refused(home):
    app, _ = declared(home)
    with pytest.raises(mp.Invalid, match="on 'sqlite' or on a PostgreSQL server"):
        mp.testing.fresh_store(app, "sqlite:///mine.db").__enter__()


def test_a_server_that_is_away_is_named_without_its_password(home):
    app, _ = declared(home)
    with pytest.raises(mp.Unavailable) as caught:
        mp.testing.fresh_store(app, "postgresql://me:secret@127.0.0.1:1/x").__enter__()
    assert "me@127.0.0.1:1" in str(caught.value)
    assert "secret" not in str(caught.value)
    app.counts()  # the app still works where it was
    app.close()


def test_names_of_the_package_are_sorted_and_there():
    assert list(mp.testing.__all__) == sorted(mp.testing.__all__)
    assert all(hasattr(mp.testing, name) for name in mp.testing.__all__)
    with pytest.raises(AttributeError, match="eager"):
        _ = mp.testing.eager


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e15, -1e15, "60", None])
async def test_a_clock_is_moved_by_seconds_alone(seconds):
    app = mp.App()
    clock = mp.testing.StoreClock(app)
    with pytest.raises(mp.Invalid, match="takes a number of seconds, at most a century"):
        clock.advance(seconds)
    with pytest.raises(mp.Invalid, match="takes a number of seconds, at most a century"):
        await clock.advance_async(seconds)
