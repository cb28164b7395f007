"""Outcomes of jobs of runs are written by two transactions at a time, where two may write."""

import asyncio
from collections.abc import Iterator

import pytest

import milepost as mp

COUNT = 200
FIRST = 10
WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock'"
)


@pytest.mark.asyncio
async def test_the_next_jobs_of_a_run_end_while_the_transaction_before_waits_for_it(
    app, database, working, until
):
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time")
    psycopg = pytest.importorskip("psycopg")
    started, first, rest = [], asyncio.Event(), asyncio.Event()
    batch = app.batch("wide")

    @batch.step
    def find() -> Iterator[int]:
        yield from range(COUNT)

    @batch.step
    async def load(number: int) -> int:
        started.append(number)
        await (first if number < FIRST else rest).wait()
        return number

    run = await batch.start_async()
    async with working(concurrency=2 * COUNT):
        await until(lambda: len(started) == COUNT)
        with psycopg.connect(database.url) as holder, psycopg.connect(database.url) as looking:
            looking.autocommit = True

            def waiting() -> int:
                return int(looking.execute(WAITING).fetchone()[0])

            holder.execute("SELECT 1 FROM milepost.run WHERE id = %s FOR UPDATE", (run.id,))
            first.set()
            await until(lambda: waiting() == 1)
            rest.set()
            await until(lambda: waiting() == 2)
        ended = await run.wait_async(30)
    assert ended.state == mp.RunState.SUCCEEDED
    jobs = await app.jobs.list_async(kind="wide.load", limit=COUNT)
    moves = {tuple(entry.move for entry in job.history) for job in jobs}
    assert (len(jobs), moves) == (COUNT, {("create", "claim", "succeed")})
