"""H-9: half of a resumed run never passes for the whole: it is filled up, or given up."""

import pytest

import milepost as mp
from milepost.batch.handles import resuming
from milepost.store import chains, runs, workers

pytestmark = pytest.mark.both_stores

COUNT = 5


@pytest.fixture
def interrupted(app):
    """A failed run, and one that was to resume it: it has two jobs, and nobody goes on."""
    broken = [True]
    visits = app.batch("visits", policy=mp.Collect())

    @visits.step
    def plan():
        yield from range(COUNT)

    @visits.step(retries=0)
    def visit(number: int) -> int:
        if broken:
            raise mp.Fail("away")
        return number

    @visits.reduce
    def seen(numbers):
        return sorted(numbers)

    old = visits.start()
    app.drain(timeout=20)
    assert old.refresh().error_count == COUNT
    new = resuming(app.client.run(runs.get, old.id))
    app.client.run(chains.resume, old.id, new)
    app.client.run(chains.create_again, old.id, new.id, after=None, most=2, actor="gone")
    broken.clear()
    return old, app.runs.get(new.id)


def test_h_9_whoever_resumes_it_too_fills_it_up(app, interrupted):
    old, half = interrupted
    again = old.resume()
    assert again.id == half.id
    app.drain(timeout=20)
    assert (again.refresh().state, again.report) == (mp.RunState.SUCCEEDED, list(range(COUNT)))


@pytest.mark.parametrize("how", ["time", "cancel"])
def test_h_9_once_it_is_given_up_everything_is_resumed(app, interrupted, how):
    old, half = interrupted
    if how == "time":
        app.client.run(workers.advance_clock, 3_700)
        app.drain(timeout=20)
    else:
        half.cancel("whoever filled it is gone")
    assert half.refresh().state == ("FAILED" if how == "time" else "CANCELLED")
    with pytest.raises(mp.IllegalMove, match=f"resume run {old.id}"):
        half.resume()
    again = old.resume()
    app.drain(timeout=20)
    assert (again.refresh().state, again.report) == (mp.RunState.SUCCEEDED, list(range(COUNT)))
    assert old.resume().id == again.id


def test_h_9_a_run_that_was_never_filled_is_started_anew(app):
    visits = app.batch("visits")

    @visits.step
    def visit() -> int:
        return 1

    run = visits.start(hold=True)
    run.cancel("whoever started it is gone")
    with pytest.raises(mp.IllegalMove, match="start it anew"):
        run.resume()
