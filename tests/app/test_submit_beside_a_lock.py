"""Submits that share a commit do not share another's wait for a lock."""

import asyncio

import pytest

import milepost as mp


async def test_only_the_submit_that_waits_for_a_locked_row_is_refused(app, database):
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time: there are no row locks")
    psycopg = pytest.importorskip("psycopg")
    with database.raw() as raw:
        [(name,)] = raw.execute("SELECT current_database()")
        raw.execute(f"ALTER DATABASE {name} SET lock_timeout = '200ms'")

    @app.job
    async def mail(to: str) -> None: ...

    async with await psycopg.AsyncConnection.connect(database.url) as rival:
        await mail.options(unique="7").within(rival).submit_async("first")
        answers = await asyncio.gather(
            mail.submit_async("a"),
            mail.options(unique="7").submit_async("second"),
            mail.submit_async("b"),
            return_exceptions=True,
        )
    refused = [isinstance(answer, mp.Unavailable) for answer in answers]
    assert refused == [False, True, False]
    assert "lock timeout" in str(answers[1])
    await app.client.close_async()
