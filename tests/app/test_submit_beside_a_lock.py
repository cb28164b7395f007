"""Submits that share a commit do not share another's wait for a lock."""

import asyncio

import pytest

import milepost as mp

WAITING = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


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


async def test_no_submit_without_that_key_waits_for_a_transaction_that_has_it(app, database, raw):
    """Those of the whole process waited, or were refused when the time of a statement was over."""
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time: there are no row locks")
    psycopg = pytest.importorskip("psycopg")

    @app.job
    async def mail(to: str) -> None: ...

    def submit(text: str, key: str | None) -> str:
        return mail.options(unique=key).submit(text).id

    async with await psycopg.AsyncConnection.connect(database.url) as rival:
        first = await mail.options(unique="7").within(rival).submit_async("first")
        second = asyncio.create_task(mail.options(unique="7").submit_async("second"))
        third = asyncio.create_task(asyncio.to_thread(submit, "third", "7"))
        async with asyncio.timeout(10):
            while raw.value(WAITING) < 2:  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.01)
            for key in (None, "8"):
                await mail.options(unique=key).submit_async("a")
                await asyncio.to_thread(submit, "b", key)
        assert not second.done()
        assert not third.done()
        await rival.commit()
        assert ((await second).id, await third) == (first.id, first.id)
    await app.close_async()
