"""What sleeps goes on no sooner than its delay after the journal says that it fell asleep."""

import asyncio
from itertools import pairwise

import pytest

import milepost as mp

DELAY = 0.3
SLEEPS = {"retry": "due", "later": "wake", "create": "wake"}


async def naps(job) -> list[float]:
    """Tell, by the journal's own stamps, how long it slept each time."""
    entries = await job.history_async()
    return [
        (after.at - before.at).total_seconds()
        for before, after in pairwise(entries)
        if SLEEPS.get(before.move) == after.move
    ]


async def test_retries_later_and_a_start_in_time_are_never_early(app, working):
    @app.job(retries=2, retry_delay=DELAY)
    async def failing(ctx: mp.Context, number: int) -> int:
        if ctx.attempt < 2:
            raise ConnectionError
        return number

    @app.job
    async def polling(ctx: mp.Context, number: int) -> int:
        if ctx.fence < 2:
            raise mp.Later(DELAY)
        return number

    numbers = [(number,) for number in range(100)]
    made = [
        *await failing.submit_many_async(numbers),
        *await polling.submit_many_async(numbers),
        *await polling.options(start_in=DELAY).submit_many_async(numbers),
    ]
    async with working():
        for job in made:
            await job.wait_async(60)
    slept = [nap for job in made for nap in await naps(job)]
    assert len(slept) == 400
    assert min(slept) >= DELAY


@pytest.mark.parametrize("move", ["retry", "later"])
async def test_the_delay_counts_from_the_entry_though_the_row_was_waited_for(
    app, database, working, until, move
):
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time: there are no row locks")
    psycopg = pytest.importorskip("psycopg")
    begun, let_go = [], asyncio.Event()

    @app.job(retry_delay=DELAY)
    async def fickle(ctx: mp.Context) -> int:
        begun.append(ctx.fence)
        await let_go.wait()
        if ctx.fence > 1:
            return ctx.fence
        raise ConnectionError if move == "retry" else mp.Later(DELAY)

    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    job = await fickle.submit_async()
    async with working():
        await until(lambda: begun)
        with database.raw() as looking, psycopg.connect(database.url) as holder:
            holder.execute("SELECT 1 FROM milepost.job WHERE id = %s FOR UPDATE", (job.id,))
            let_go.set()
            await until(lambda: looking.value(waiting))
            await asyncio.sleep(DELAY * 1.5)
        await job.wait_async(20)
    [nap] = await naps(job)
    assert nap >= DELAY
