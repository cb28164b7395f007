"""Calls from outside of an event loop share one, and its connections; closing leaves none."""

import asyncio
import gc
import os
import threading
import time
import weakref

import pytest

import milepost as mp
from tests.support.databases import Database

pytestmark = pytest.mark.in_turn


def opened(app: mp.App) -> int:
    """Count the event loops in which the app has something open."""
    return len(app.client.loops)


def test_drains_share_their_connections_until_the_app_is_closed(app):
    drivers = []

    @app.job
    async def look() -> None:
        drivers.append(await app.client.async_driver())

    for _ in range(3):
        look.submit()
        assert app.drain() == 1
    assert app.maintain_once() == 0
    assert len(drivers) == 3
    assert len({id(driver) for driver in drivers}) == 1
    assert opened(app) == 1
    app.close()
    assert opened(app) == 0
    look.submit()
    assert app.drain() == 1  # it opens again


def test_threads_drain_at_the_same_time(app):
    both, ran = threading.Barrier(2, timeout=60), []

    @app.job
    def meet() -> None:
        both.wait()

    for queue in ("one", "two"):
        meet.options(queue=queue).submit()
    threads = [
        threading.Thread(target=lambda name=name: ran.append(app.drain(queues=[name])))
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [1, 1]
    assert opened(app) == 1


def test_a_task_that_a_handler_left_behind_ends_with_the_drain(app):
    left = []

    @app.job
    async def leave() -> None:
        left.append(asyncio.create_task(asyncio.sleep(3600)))

    leave.submit()
    assert app.drain() == 1
    assert left[0].cancelled()


def test_an_app_that_nobody_closed_takes_its_connections_along(database: Database):
    app = mp.App(database.url)
    app.job(name="none")(lambda: None).submit()
    assert app.drain() == 1
    [loop], client = app.client.loops, weakref.ref(app.client)
    del app
    until = time.monotonic() + 60
    while client() is not None and time.monotonic() < until:  # a thread of the drain may be ending
        gc.collect()
        time.sleep(0.01)
    assert client() is None
    assert loop.is_closed()


async def test_an_app_is_closed_inside_of_an_event_loop(app):
    await asyncio.to_thread(app.drain)
    assert opened(app) == 1
    app.close()
    assert opened(app) == 0


def test_a_child_drains_on_connections_of_its_own(app):
    job = app.job(name="none")(lambda: None)
    job.submit()
    assert app.drain() == 1
    job.submit()
    if (child := os.fork()) == 0:
        os._exit(0 if app.drain() == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    job.submit()
    assert app.drain() == 1
