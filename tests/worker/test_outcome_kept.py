"""An outcome is refused by the store's judgement of its row alone; other errors delay it."""

import asyncio

import pytest

import milepost as mp
from milepost.errors import Invalid, Unavailable
from milepost.records import Settlement
from milepost.store import jobs

LOCK_TIMEOUT = "ALTER DATABASE {} SET lock_timeout = '300ms'"
STATEMENT_TIMEOUT = "ALTER DATABASE {} SET statement_timeout = '300ms'"


@pytest.mark.parametrize(
    "limit",
    [(LOCK_TIMEOUT, 0.45), (LOCK_TIMEOUT, 0.9), (STATEMENT_TIMEOUT, 0.9)],
    ids=["lock", "long-lock", "statement"],
)
async def test_a_row_that_is_locked_too_long_delays_its_outcome_and_nothing_else_h39(
    app, database, working, until, limit
):
    setting, held_seconds = limit
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time: there are no row locks")
    psycopg = pytest.importorskip("psycopg")
    with database.raw() as raw:
        [(name,)] = raw.execute("SELECT current_database()")
        raw.execute(setting.format(name))
    begun, let_go = [], asyncio.Event()

    @app.job(retries=3)
    async def slow(number: int) -> int:
        begun.append(number)
        await let_go.wait()
        return number

    held, *others = await slow.submit_many_async([(number,) for number in range(8)])
    async with working():
        await until(lambda: len(begun) == 8)
        with psycopg.connect(database.url) as holder:
            holder.execute("SET lock_timeout = 0; SET statement_timeout = 0")
            holder.execute("SELECT 1 FROM milepost.job WHERE id = %s FOR UPDATE", (held.id,))
            let_go.set()
            if held_seconds > 0.5:
                for other in others:  # the others do not wait for the one that is locked
                    assert (await other.wait_async(20)).state == mp.JobState.SUCCEEDED
            await asyncio.sleep(held_seconds)
        ended = await held.wait_async(20)
    assert (ended.state, ended.result) == (mp.JobState.SUCCEEDED, 0)
    assert [entry.move for entry in await held.history_async()] == ["create", "claim", "succeed"]
    assert sorted(begun) == list(range(8)), "every handler ran once"


class OddError(Exception):
    """An error that no store is known to raise: a driver's mistake."""


@pytest.mark.parametrize("error", [OddError("protocol"), Unavailable("away"), ValueError("a bug")])
async def test_an_error_that_is_no_judgement_of_the_row_never_fails_a_job(
    app, working, monkeypatch, error
):
    failures = 3

    @app.job(retries=3)
    async def quick(number: int) -> int:
        return number

    original = jobs.settle_some

    def broken(settlements, *, actor):
        nonlocal failures
        if failures and any(s.outcome.result == b"3" for s in settlements):
            failures -= 1
            raise error
        return (yield from original(settlements, actor=actor))

    monkeypatch.setattr(jobs, "settle_some", broken)
    made = await quick.submit_many_async([(number,) for number in range(8)])
    async with working():
        ended = [await job.wait_async(20) for job in made]
    assert [job.result for job in ended] == list(range(8))
    assert {tuple(e.move for e in await job.history_async()) for job in made} == {
        ("create", "claim", "succeed")
    }


async def test_what_the_store_itself_refuses_of_one_row_ends_that_job_alone(
    app, working, monkeypatch
):
    @app.job(retries=3)
    async def quick(number: int) -> int:
        return number

    original = jobs.settle_some

    def refusing(settlements: list[Settlement], *, actor):
        if any(s.outcome.result == b"3" for s in settlements):
            raise Invalid("a value that cannot be stored")
        return (yield from original(settlements, actor=actor))

    monkeypatch.setattr(jobs, "settle_some", refusing)
    made = await quick.submit_many_async([(number,) for number in range(8)])
    async with working():
        ended = [await job.wait_async(20) for job in made]
    states = [job.state for job in ended]
    assert states.count(mp.JobState.FAILED) == 1
    assert (ended[3].state, ended[3].error.type) == (mp.JobState.FAILED, "Unstorable")
