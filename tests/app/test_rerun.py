"""Running a finished job again: where it goes on, under which key, and which job speaks for it."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import milepost as mp
from milepost.store import jobs

pytestmark = pytest.mark.in_turn


@pytest.fixture
def charges():
    return []


@pytest.fixture
def pay(app, charges):
    """Charge in a step, save a cursor, then fail as long as `pay.broken` says so."""

    @app.job(retries=0)
    def pay(ctx: mp.Context, amount: int) -> int:
        pay_attempt = (ctx.idempotency_key, ctx.cursor)
        ctx.step("charge", lambda: charges.append(pay_attempt))
        if ctx.cursor is None:
            ctx.save({"page": 7})
        if broken:
            raise mp.Fail("the bank is closed")
        return amount

    broken = [True]
    pay.broken = broken  # type: ignore[attr-defined]
    return pay


def failed(app, pay, amount=5):
    job = pay.submit(amount)
    app.drain()
    assert job.refresh().state == "FAILED"
    return job


def test_a_rerun_charges_nobody_twice(app, pay, charges):
    job = failed(app, pay)
    second = job.rerun()
    app.drain()
    assert second.refresh().state == "FAILED"
    pay.broken.clear()
    third = second.rerun()
    app.drain()
    assert third.refresh().result == 5
    assert charges == [(job.id, None)]


def test_a_rerun_goes_on_at_the_cursor_and_under_the_key_of_the_first_job(app):
    seen = []

    @app.job(retries=0)
    def pages(ctx: mp.Context) -> None:
        seen.append((ctx.idempotency_key, ctx.cursor))
        ctx.progress(0.5)
        if len(seen) != 2:  # the second job says how far it is, and saves nothing of its own
            ctx.save((ctx.cursor or 0) + 1)
        raise mp.Fail("not yet")

    first = job = pages.submit()
    for _ in range(3):
        app.drain()
        job = job.rerun()
    app.drain()
    assert {key for key, _ in seen} == {first.id}
    assert [cursor for _, cursor in seen] == [None, 1, 1, 2]


async def test_a_rerun_goes_on_in_an_async_handler_too(app):
    seen = []

    @app.job(retries=0)
    async def work(ctx: mp.Context) -> str:
        async def effect() -> str:
            seen.append(ctx.idempotency_key)
            return "done"

        told = await ctx.step_async("effect", effect)
        if len(seen) == 1 and await ctx.cursor_async() is None:
            await ctx.save_async("half")
            raise mp.Fail("later")
        return told

    job = await work.submit_async()
    await app.drain_async()
    again = await job.rerun_async()
    await app.drain_async()
    assert (await again.refresh_async()).result == "done"
    assert seen == [job.id]
    await app.close_async()


def test_a_fresh_rerun_starts_over_with_a_key_of_its_own_and_its_reruns_keep_that(
    app, pay, charges
):
    job = failed(app, pay)
    fresh = job.rerun(fresh=True)
    app.drain()
    assert charges == [(job.id, None), (fresh.id, None)]
    pay.broken.clear()
    last = fresh.refresh().rerun()
    app.drain()
    assert last.refresh().result == 5
    assert len(charges) == 2, "it goes on with what the fresh one did"


def test_a_cancelled_job_goes_on_too(app, charges):
    @app.job
    def work(ctx: mp.Context) -> None:
        ctx.step("charge", lambda: charges.append(ctx.idempotency_key))
        if not done:
            done.append(1)
            raise mp.Later(60)

    done = []
    job = work.submit()
    app.drain()
    job.cancel("wrong day")
    again = job.rerun()
    app.drain()
    assert again.refresh().state == "SUCCEEDED"
    assert charges == [job.id]


def test_what_succeeded_is_run_again_only_afresh(app, pay):
    pay.broken.clear()
    job = pay.submit(1)
    app.drain()
    with pytest.raises(mp.IllegalMove, match=r"SUCCEEDED.*fresh=True"):
        job.rerun()
    again = job.rerun(fresh=True)
    app.drain()
    assert again.refresh().state == "SUCCEEDED"


def test_what_has_not_ended_is_not_run_again(app, pay):
    job = pay.submit(1)
    with pytest.raises(mp.IllegalMove, match="only a finished one"):
        job.rerun()


@pytest.mark.parametrize("fresh", [False, True])
def test_what_was_erased_is_not_run_again(app, pay, fresh):
    job = failed(app, pay)
    app.client.run(jobs.erase, job.id, actor="me")
    with pytest.raises(mp.IllegalMove, match=r"erased.*submit"):
        job.rerun(fresh=fresh)


def test_where_steps_were_erased_only_a_fresh_rerun_is_possible(app, pay):
    """Its own argument is there; what the chain did is not known any more."""
    job = failed(app, pay)
    again = job.rerun()
    app.drain()
    app.client.run(jobs.erase, job.id, actor="me")
    with pytest.raises(mp.IllegalMove, match=rf"job {job.id}.*erased.*fresh=True"):
        again.rerun()
    pay.broken.clear()
    last = again.rerun(fresh=True)
    app.drain()
    assert last.refresh().state == "SUCCEEDED"


def test_steps_that_an_open_rerun_needs_are_not_erased(app, pay):
    job = failed(app, pay)
    middle = job.rerun()
    app.drain()
    last = middle.rerun()
    with pytest.raises(mp.IllegalMove, match=rf"job {last.id}"):
        app.client.run(jobs.erase, job.id, actor="me")
    last.cancel()
    assert app.client.run(jobs.erase, job.id, actor="me")


# Which job speaks for a chain


def test_a_chain_tells_of_its_jobs(app, pay):
    job = failed(app, pay)
    assert (job.rerun_of, job.rerun_by, job.chain) == (None, None, [job.id])
    second = job.rerun()
    app.drain()
    third = second.rerun(fresh=True)
    line = [job.id, second.id, third.id]
    for handle in (job, second, third):
        assert handle.refresh().chain == line
    assert [handle.rerun_of for handle in (job, second, third)] == [None, job.id, second.id]
    assert [handle.rerun_by for handle in (job, second, third)] == [second.id, third.id, None]


async def test_a_chain_is_read_without_blocking(app, pay):
    job = await pay.submit_async(1)
    assert await job.chain_async() == [job.id]
    await app.close_async()


def test_a_job_that_was_run_again_is_not_run_again_and_the_newest_is_named(app, pay):
    job = failed(app, pay)
    second = job.rerun()
    app.drain()
    third = second.rerun()
    for fresh in (False, True):
        with pytest.raises(mp.IllegalMove, match=rf"was run again.*{third.id}"):
            job.rerun(fresh=fresh)


def test_of_many_reruns_at_once_one_is_made(app, pay):
    job = failed(app, pay)

    def again(_):
        try:
            return app.jobs.get(job.id).rerun().id
        except mp.IllegalMove as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(again, range(8)))
    [made] = [handle.id for handle in app.jobs.list(state="QUEUED")]
    assert told.count(made) == 1
    assert all(made in one for one in told)


def test_the_database_refuses_a_second_rerun_by_hand(app, pay, raw):
    job = failed(app, pay)
    job.rerun()
    with pytest.raises(Exception, match=r"run again|job_rerun"):
        raw.execute(
            "INSERT INTO job (id, kind, state, move, rerun_of)"
            " VALUES ('018f0000-0000-7000-8000-000000000000', 'k', 'QUEUED', 'create',"
            f" '{job.id}')"
        )


def test_a_list_can_leave_out_what_was_run_again(app, pay):
    first, other = failed(app, pay), failed(app, pay)
    again = first.rerun()
    app.drain()
    assert {job.id for job in app.jobs.list(superseded=False)} == {other.id, again.id}
    assert [job.id for job in app.jobs.list(superseded=True)] == [first.id]
    assert len(app.jobs.list()) == 3
    assert len(app.jobs.list(state="FAILED", superseded=False)) == 2


async def test_a_list_without_blocking_can_too(app, pay):
    job = await pay.submit_async(1)
    assert [found.id for found in await app.jobs.list_async(superseded=False)] == [job.id]
    assert await app.jobs.list_async(superseded=True) == []
    await app.close_async()
