"""A worker that runs in somebody's event loop ends when its task is cancelled, at any moment."""

import asyncio
from pathlib import Path

import pytest

import milepost as mp
from milepost.lifecycle import WorkerState

pytestmark = pytest.mark.in_turn


def rests(worker):
    hint = getattr(worker._watch, "_hint", None)  # a file's watch has none, and looks
    return hint is None or bool(hint._waiters)


@pytest.mark.parametrize("turns", range(4))
async def test_a_cancelled_worker_ends_though_it_is_woken_at_that_very_moment(
    database, until, turns
):
    """`asyncio.wait_for` forgets, before Python 3.12, that it was cancelled while it woke up."""
    app = mp.App(database.url, poll_min=60, poll_max=60, sweep=60)
    worker = await app.worker()
    running = asyncio.create_task(worker.run())
    await until(lambda: worker.state == WorkerState.IDLE and rests(worker))
    worker._watch.wake()
    for _ in range(turns):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=10)
    assert done
    assert running.cancelled()
    await app.client.close_async()


def test_nothing_of_ours_waits_in_a_way_that_forgets_a_request_to_end():
    source = Path(mp.__file__).parent
    assert [
        path.name for path in source.rglob("*.py") if "asyncio.wait_for(" in path.read_text()
    ] == []
