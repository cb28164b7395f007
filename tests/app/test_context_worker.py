"""The context in the hands of a real worker."""

import asyncio

import pytest

import milepost as mp

pytestmark = pytest.mark.in_turn


@pytest.fixture
def app(database):
    made = mp.App(database.url, sweep=0.05)
    yield made
    made.close()


async def until(condition, seconds=15):
    end = asyncio.get_running_loop().time() + seconds
    while not (found := await condition()):
        assert asyncio.get_running_loop().time() < end, "it did not happen in time"
        await asyncio.sleep(0.01)
    return found


async def test_what_an_async_handler_says_shows_while_it_runs(app):
    go_on = asyncio.Event()

    @app.job
    async def work(ctx: mp.Context) -> None:
        ctx.progress(0.1, "begun")
        ctx.progress(0.3, "page 3 of 10")
        await go_on.wait()

    job = await work.submit_async()
    draining = asyncio.create_task(app.drain_async(20))

    async def shown():
        await job.refresh_async()
        return (job.progress, job.progress_text) == (0.3, "page 3 of 10")

    await until(shown)
    go_on.set()
    assert await draining == 1
    assert (await job.refresh_async()).progress == 1.0
    await app.close_async()


@pytest.mark.parametrize("raised", [mp.Fail("no"), mp.Later(60), ValueError("no")])
def test_the_last_thing_a_handler_said_outlives_it(app, raised):
    @app.job
    def work(ctx: mp.Context) -> None:
        ctx.progress(0.1)
        ctx.progress(0.7, "page 7 of 10")
        raise raised

    @app.job
    async def awaited(ctx: mp.Context) -> None:
        ctx.progress(0.8)
        raise raised

    plain, other = work.submit(), awaited.submit()
    app.drain()
    plain.refresh()
    assert (plain.progress, plain.progress_text) == (0.7, "page 7 of 10")
    assert other.refresh().progress == 0.8


def test_a_job_that_says_nothing_leaves_no_row(app, raw):
    @app.job
    def work() -> None: ...

    work.submit()
    app.drain()
    for table in ("progress", "durable_step", "usage"):
        assert raw.execute(f"SELECT * FROM {table}") == []


def test_a_retry_goes_on_where_the_last_attempt_stopped(app, raw):
    pages = []

    @app.job(retry_delay=0)
    def copy(ctx: mp.Context) -> int:
        for page in range(ctx.cursor or 0, 6):
            if page == 3 and ctx.attempt == 1:
                raise ConnectionError
            pages.append(page)
            ctx.save(page + 1)
            ctx.count("pages")
        return ctx.cursor

    job = copy.submit()
    app.drain(10)
    assert job.refresh().result == 6
    assert pages == [0, 1, 2, 3, 4, 5]
    used = raw.execute("SELECT fence, name, amount FROM usage ORDER BY fence")
    assert used == [(1, "pages", 3.0), (2, "pages", 3.0)]


def test_a_job_that_polls_asks_once_and_a_fresh_rerun_asks_anew(app):
    asked, polled = [], []

    def order() -> str:
        asked.append(1)
        return f"ticket-{len(asked)}"

    @app.job
    def work(ctx: mp.Context) -> str:
        ticket = ctx.step("order", order)
        polled.append(ticket)
        if len(polled) % 3:
            raise mp.Later(0)
        return ticket

    job = work.submit()
    app.drain(10)
    again = job.rerun(fresh=True)
    app.drain(10)
    assert (job.refresh().result, again.refresh().result) == ("ticket-1", "ticket-2")
    assert polled == ["ticket-1"] * 3 + ["ticket-2"] * 3


def test_steps_deep_in_a_call_find_the_job_that_runs(app):
    def deep() -> int:
        return mp.current().step("deep", lambda: mp.current().attempt)

    @app.job(retry_delay=0)
    def work(ctx: mp.Context) -> int:
        found = deep()
        if ctx.attempt == 1:
            raise ConnectionError
        return found

    job = work.submit()
    app.drain(10)
    assert (job.refresh().result, job.attempt) == (1, 2)


def test_a_name_used_twice_ends_the_job_at_once(app):
    @app.job
    def work(ctx: mp.Context) -> None:
        for _ in range(2):
            ctx.step("same", lambda: 1)

    job = work.submit()
    app.drain()
    assert job.refresh().state == "FAILED"
    assert job.attempt == 1
    assert "step 'same' came twice" in job.error.message


@pytest.fixture
def writers(app, raw):
    """Two kinds of job whose every run writes one row, in a transaction."""
    raw.execute("CREATE TABLE effect (name text NOT NULL)")

    def write(connection, number: int) -> int:
        connection.execute(f"INSERT INTO effect VALUES ('{number}')")
        return number

    async def write_async(connection, number: int) -> int:
        done = connection.execute(f"INSERT INTO effect VALUES ('{number}')")
        if hasattr(done, "__await__"):  # asyncpg; sqlite3 has it done already
            await done
        return await asyncio.to_thread(lambda: number)

    @app.job(retries=0)
    def plain(ctx: mp.Context, number: int) -> int:
        return ctx.step("write", write, number, transaction=True)

    @app.job(retries=0)
    async def awaited(ctx: mp.Context, number: int) -> int:
        await ctx.step_async("plain", write, number, transaction=True)
        return await ctx.step_async("awaited", write_async, number, transaction=True)

    return plain, awaited


def test_many_handlers_use_transactions_at_once(app, raw, writers):
    """Nobody waits for a writer who waits for him."""
    made = [job for kind in writers for job in kind.submit_many([(n,) for n in range(60)])]
    assert app.drain(60) == 120
    assert [job.refresh().result for job in made] == [*range(60), *range(60)]
    assert raw.value("SELECT count(*) FROM effect") == 180


def test_a_handler_asked_to_stop_sees_it_at_its_next_check(app):
    seen = []

    @app.job
    def work(ctx: mp.Context) -> None:
        app.jobs.get(ctx.id).cancel("not needed")
        for _ in range(1_000_000):
            ctx.check()
            ctx.step(f"{len(seen)}", lambda: seen.append(1))

    job = work.submit()
    app.drain(20)
    assert job.refresh().state == "CANCELLED"


def test_the_usage_of_a_job_is_that_of_all_its_attempts(app):
    @app.job(retries=1, retry_delay=0)
    def work(ctx: mp.Context, tokens: int) -> None:
        ctx.count("tokens", tokens)
        if ctx.attempt == 1:
            ctx.count("calls")
            raise ValueError

    job, other = work.submit(120), work.submit(7)
    assert job.usage == {}, "nothing was spent yet"
    app.drain(20)
    assert (job.usage, other.usage) == ({"calls": 1, "tokens": 240}, {"calls": 1, "tokens": 14})
