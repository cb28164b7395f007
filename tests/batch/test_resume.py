"""A resumed run stands for the whole chain: its policy looks at what succeeded before, too."""

from collections.abc import Iterable, Iterator

import pytest

import milepost as mp
from milepost.observe.verify import verify


@pytest.fixture
def broken():
    """The files that cannot be read at the time."""
    return set()


@pytest.fixture
def batch(app, broken):
    declared = app.batch("tolerant", policy=mp.Tolerate(0.1))

    @declared.step
    def find() -> Iterator[int]:
        yield from range(20)

    @declared.step(retries=0)
    def parse(number: int) -> int:
        if number in broken:
            raise mp.Fail(f"{number} is broken")
        return number

    @declared.step(gated=True)
    def index(number: int) -> int:
        return number

    @declared.reduce
    def count(found: Iterable[int]) -> int:
        return len(list(found))

    return declared


def test_the_share_that_may_fail_is_one_of_the_whole_chain(app, database, batch, broken):
    """H-59: 2 of 20 are tolerated, whichever run of the chain the other 18 succeeded in."""
    broken |= {1, 2, 3, 4}
    first = batch.start()
    app.drain()
    assert (first.refresh().state, first.record.cause) == (mp.RunState.FAILED, "policy")
    broken -= {1}
    second = first.resume()
    app.drain()
    assert second.refresh().state == mp.RunState.FAILED  # three of twenty
    broken -= {2}
    third = second.resume()
    app.drain()
    assert (third.refresh().state, third.report) == (mp.RunState.SUCCEEDED, 18)
    assert third.error_count == 2
    with database.driver() as driver:
        assert verify(driver).clean
