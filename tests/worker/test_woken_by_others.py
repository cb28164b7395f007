"""A worker that rests hears of jobs that another one woke."""

import asyncio

from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.store import timers, workers
from milepost.store.watch import open_watch

NEVER = 3600
LIMIT = 30
"""Who has heard nothing by then hears nothing any more."""

TO_REST = (
    ("connect", "CONNECTING"),
    ("recover", "RECOVERY"),
    ("poll", "POLLING"),
    ("back_off", "BACKOFF"),
    ("rest", "IDLE"),
)


def test_who_rests_is_told_of_what_another_woke(app, database):
    @app.job()
    def convert() -> None: ...

    convert.options(start_in=60).submit()
    with database.raw() as raw, database.driver() as driver:
        driver.run(workers.register, workers.NewWorker(id="resting", lease_us=NEVER * 1_000_000))
        for move, state in TO_REST:
            raw.execute(f"UPDATE worker SET state = '{state}', move = '{move}'")
        raw.execute("UPDATE clock SET offset_us = 61000000")
        asyncio.run(hear(StoreUrl.parse(database.url), driver))
    assert app.jobs.list()[0].state == "QUEUED"


async def hear(url, driver):
    watch = open_watch(url, Timeouts())
    try:
        await watch.wait(0.01)  # the first look hears of whatever came before it
        await watch.wait(0.01)
        assert await asyncio.to_thread(driver.run, timers.wake, actor="another", most=10) == 1
        async with asyncio.timeout(LIMIT):
            await watch.wait(NEVER)
    finally:
        await watch.close()
