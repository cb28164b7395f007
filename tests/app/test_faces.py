"""An operation is written once: called or awaited, it does the same, and editors see it whole."""

import asyncio
import inspect
import traceback
import warnings
from typing import Any

import pytest

import milepost as mp
from milepost.faces import Flow, Stream, Wait, faces, pause, stack_level, streams

pytestmark = pytest.mark.in_turn


class Shop:
    """One operation of each kind."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def plain(self, amount: int) -> int:
        """Be called."""
        self.seen.append("plain")
        return amount * 2

    async def awaited(self, amount: int) -> int:
        """Be awaited."""
        self.seen.append("awaited")
        await asyncio.sleep(0)
        return amount * 2

    def _buy(self, amount: int, *, rounds: int = 1) -> Flow[int]:
        """Buy so much, so often."""
        for _ in range(rounds):
            amount = yield Wait(self.plain, self.awaited, (amount,))
        return amount

    buy, buy_async = faces(_buy)

    def _refuse(self, *, caught: bool) -> Flow[str]:
        """Fail where it waits."""
        try:
            yield from self._broken()
        except KeyError as error:
            if caught:
                return f"no {error.args[0]}"
            raise
        return "nothing failed"

    refuse, refuse_async = faces(_refuse)

    def _broken(self) -> Flow[Any]:
        return (yield Wait(_fail, _fail_async))

    def _each(self, count: int) -> Stream[int]:
        """Yield what was bought, one after the other."""
        for number in range(count):
            yield (yield from self._buy(number))

    each, each_async = streams(_each)

    def _watch(self) -> Stream[int]:
        """Wait for something."""
        yield from pause(0)
        yield stack_level()

    watch, watch_async = streams(_watch, blocks=True)


def _fail() -> None:
    raise KeyError("milk")


async def _fail_async() -> None:
    raise KeyError("milk")


async def test_one_body_is_called_or_awaited():
    shop = Shop()
    assert shop.buy(1, rounds=2) == await shop.buy_async(1, rounds=2) == 4
    assert shop.seen == ["plain", "plain", "awaited", "awaited"]


async def test_an_error_is_raised_where_the_body_waits():
    shop = Shop()
    assert shop.refuse(caught=True) == await shop.refuse_async(caught=True) == "no milk"
    with pytest.raises(KeyError, match="milk") as raised:
        shop.refuse(caught=False)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)][1:]
    assert names == ["called", "perform", "_refuse", "_broken", "_fail"]
    with pytest.raises(KeyError, match="milk"):
        await shop.refuse_async(caught=False)


async def test_a_stream_is_iterated_in_both_colours():
    shop = Shop()
    assert list(shop.each(3)) == [n async for n in shop.each_async(3)] == [0, 2, 4]
    with pytest.raises(mp.Invalid, match=r"watch\(\) would block .* await watch_async\(\)"):
        next(shop.watch())


def test_faces_show_the_signature_and_the_promise_of_their_operation():
    assert inspect.iscoroutinefunction(Shop.buy_async)
    assert str(inspect.signature(Shop().buy)) == "(amount: int, *, rounds: int = 1) -> int"
    assert Shop.buy_async.__doc__ == "Buy so much, so often."
    assert (Shop.buy_async.__name__, Shop.buy.__qualname__) == ("buy_async", "Shop.buy")
    assert str(inspect.signature(mp.JobHandle.rerun)).endswith("-> 'JobHandle[R]'")


def test_a_warning_names_the_line_that_called(tmp_path):
    app = mp.App(f"sqlite:///{tmp_path}/m.db")

    @app.job
    def convert() -> None: ...

    async def main() -> None:
        convert.submit()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(main())
    app.close()
    assert [one.filename for one in told] == [__file__]
