"""A busy worker's next claim takes the highest priority, whether it has met it before or not."""

import asyncio

import pytest


@pytest.mark.parametrize("priority", [1, 9])
async def test_a_priority_that_a_busy_worker_has_not_met_goes_first(app, working, until, priority):
    order: list[str] = []
    turn = asyncio.Semaphore(0)

    @app.job
    async def work(name: str) -> None:
        order.append(name)
        await turn.acquire()

    await work.submit_many_async([(f"low {number}",) for number in range(40)])

    async def next_one() -> None:
        begun = len(order)
        turn.release()
        await until(lambda: len(order) > begun)

    async with working(concurrency=2) as worker:
        floors = worker._claimer._floors
        await until(lambda: len(order) == 2)
        floors._due = float("inf")  # the bottom is not looked at meanwhile, however slow this is
        for _ in range(3):  # from the floor, then, and not because it was the first look
            await next_one()
        await work.options(priority=priority).submit_async("high")
        for _ in range(3):
            await next_one()
            if "high" in order:
                break
        began = list(order)
        for _ in range(100):
            turn.release()
        await until(lambda: len(order) == 41, 60)
    assert "high" in began[-2:], "at most the one job that was claimed before it went first"
