"""A limit is kept whatever its name is: jobs store it with some characters escaped."""

import pytest

import milepost as mp
from milepost import outcome
from milepost.outcome import Problem
from milepost.records import Settlement
from milepost.store import buckets, jobs, limits, timers, workers
from milepost.store.limits import Reach
from milepost.store.rules import Limit
from milepost.store.workers import NewWorker

NAMES = ["mail/send", "50%", "a/b%2Fc"]
WIDE = Reach(front=9, visits=9, quantum=9)


def declared(app, name, **limit):
    """Declare a job whose limit is called as itself, and enter a worker."""

    @app.job(name=name, limit=mp.Limit(key="customer", **limit))
    def send(customer: str) -> None: ...

    app.client.run(workers.register, NewWorker(id="w", lease_us=9_999_000_000))
    return send


def claim(app):
    line = jobs.lines(["default"])
    return app.client.run(limits.claim, worker_id="w", line=line, most=3, reach=WIDE)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_is_tried_again_keeps_its_turn(app, name):
    """It went to the end of the line."""
    send = declared(app, name, ordered=True)
    first, *_ = [send.submit("acme").id for _ in range(3)]
    [held] = claim(app)
    again = outcome.retry(Problem("Boom", "it broke"), after=0)
    app.client.run(jobs.settle, [Settlement(held, again)], actor="w")
    app.client.run(timers.wake, actor="w", most=9)
    assert [one.id for one in claim(app)] == [first]


@pytest.mark.parametrize("name", NAMES)
def test_units_that_were_counted_are_put_right(app, name, advance):
    """What a job used beyond its reservation was forgotten."""
    send = declared(app, name, rate="1/s", burst=2, units="tokens")
    for _ in range(2):
        send.submit("acme")
    [held, _] = claim(app)
    used = outcome.succeeded(usage={"tokens": 61.0})
    app.client.run(jobs.settle, [Settlement(held, used)], actor="w")
    send.submit("acme")
    advance(10)
    assert claim(app) == []
    advance(55)
    assert len(claim(app)) == 1


@pytest.mark.parametrize("spelled", ["API.Example", "api.example.", "API.EXAMPLE."])
def test_a_host_is_the_same_one_however_it_is_spelled(app, spelled):
    """A limit that was set for another spelling was in force for nobody."""
    app.limits.set("api.example", scope="host", most=2, rate="5/s")
    assert app.limits.set(spelled, scope="host", most=1).rate == "5/s"
    assert app.limits.get(spelled, scope="host").name == "api.example"
    assert len(app.limits.changes(spelled, scope="host")) == 2
    app.client.run(buckets.take, "host", "api.example", limit=Limit(rate=1, per_us=10**9, burst=1))
    app.limits.clear(spelled, scope="host")
    assert app.limits.reset(spelled, scope="host").words == "no limit"
    assert app.limits.list() == []
    app.limits.set(spelled, scope="host", most=1)
    assert [one.name for one in app.limits.list()] == ["api.example"]


@pytest.mark.parametrize("scope", ["queue", "source"])
def test_other_names_are_as_they_are_written(app, scope):
    app.limits.set("Slow.", scope=scope, rate="5/s")
    assert [one.name for one in app.limits.list()] == ["Slow."]
