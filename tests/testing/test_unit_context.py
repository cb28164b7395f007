"""A handler is called as the function it is: the context it gets needs no store, and tells all."""

import asyncio

import pytest

import milepost as mp
from milepost.testing import Context, context

app = mp.App("sqlite:///never-opened.db")


@app.job
def bill(ctx: mp.Context, order: str) -> str:
    ctx.progress(0.5, "half")
    ctx.count("calls", 2)
    number = ctx.step("number", lambda: 7)
    ctx.save({"page": (ctx.cursor or {"page": 0})["page"] + 1})
    ctx.log.info("billed")
    return f"{order}-{number}-{ctx.attempt}"


def test_a_handler_runs_without_a_store_and_what_it_did_can_be_read():
    ctx = context()
    assert isinstance(ctx, Context)
    assert bill(ctx, "order") == "order-7-1"
    assert ctx.reports == [(0.5, "half")]
    assert ctx.usage == {"calls": 2}
    assert ctx.steps == {"number": 7}
    assert ctx.cursor == {"page": 1}


def test_a_later_attempt_has_what_the_ones_before_it_left():
    first = Context(signals=[{"paid": True}])
    bill(first, "order")
    second = first.next_attempt()
    assert (second.id, second.attempt, second.fence) == (first.id, 2, 2)
    assert second.idempotency_key == first.idempotency_key
    assert second.signals() == [{"paid": True}]
    assert bill(second, "order") == "order-7-2"
    assert second.cursor == {"page": 2}
    assert second.step("other", lambda: None) is None
    assert second.next_attempt().steps == {"number": 7, "other": None}


def test_a_step_that_is_done_is_not_done_again():
    ctx = mp.testing.context(attempt=2, steps={"charge": "receipt-1"})

    def charge() -> str:
        raise AssertionError

    assert ctx.step("charge", charge) == "receipt-1"


def test_a_step_that_fails_leaves_nothing():
    ctx = Context()
    with pytest.raises(ZeroDivisionError):
        ctx.step("divide", lambda: 1 // 0)
    assert ctx.steps == {}


def test_the_rules_of_steps_hold_as_they_do_at_work():
    ctx = Context()
    assert ctx.step("pair", lambda: (1, 2)) == [1, 2]  # a result is read back as JSON keeps it
    with pytest.raises(mp.Invalid, match="came twice"):
        ctx.step("pair", lambda: (1, 2))
    with pytest.raises(mp.Invalid, match="result of step 'object'"):
        ctx.step("object", object)
    with pytest.raises(mp.Invalid, match="a share from 0 to 1"):
        ctx.progress(50)
    with pytest.raises(mp.Invalid, match="counted from 1"):
        Context(attempt=0)


def test_a_transaction_is_refused_with_what_to_do():
    ctx = Context()
    with pytest.raises(mp.Invalid, match="milepost_app"), ctx.transaction():
        pass
    with pytest.raises(mp.Invalid, match="milepost_app"):
        ctx.step("book", lambda connection: connection, transaction=True)
    assert ctx.steps == {}


def test_a_handler_that_is_asked_to_stop_stops():
    ctx = Context()
    ctx.check()
    ctx.cancel("the customer left")
    assert ctx.cancelled
    with pytest.raises(mp.Cancelled, match="the customer left"):
        ctx.check()


def test_current_is_the_context_of_the_block():
    with Context(id="0190-a") as ctx:
        assert mp.current() is ctx
        assert mp.current().id == "0190-a"
    with pytest.raises(mp.Invalid, match="no job is running here"):
        mp.current()


def test_an_asynchronous_handler_has_the_same():
    async def fetch() -> int:
        return 3

    @app.job
    async def collect(ctx: mp.Context) -> int:
        await ctx.progress_async(1.0)
        await ctx.save_async(await ctx.step_async("fetch", fetch))
        [amount] = await ctx.signals_async()
        return await ctx.cursor_async() + amount + await ctx.step_async("plain", lambda: 1)

    ctx = Context(signals=[40])
    assert asyncio.run(collect(ctx)) == 44
    assert (ctx.reports, ctx.steps) == ([(1.0, None)], {"fetch": 3, "plain": 1})

    async def open_one() -> None:
        async with ctx.transaction_async():
            pass

    with pytest.raises(mp.Invalid, match="milepost_app"):
        asyncio.run(open_one())


def test_the_context_does_what_the_real_one_does(milepost_app):
    """The same handler, at work on a store, comes to the same."""

    def work_alike(ctx: mp.Context) -> list[object]:
        ctx.save([1, ctx.attempt])
        return [ctx.step("pair", lambda: (1, 2)), ctx.cursor, ctx.signals()]

    job = milepost_app.job(name="alike")(work_alike).submit()
    milepost_app.drain()
    assert job.refresh().result == work_alike(Context())
