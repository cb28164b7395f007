"""explain(): which limit keeps a job, who holds it, how many are before, and when it may start."""

import re

import pytest

from milepost import outcome
from milepost.client import new_id
from milepost.outcome import Problem
from milepost.records import NewJob, Settlement, Template
from milepost.store import creation, hints, jobs, limits, rules, tally, timers, workers
from milepost.store.blockers import explain_any
from milepost.store.limits import Reach
from milepost.store.rules import Limit
from milepost.store.workers import NewWorker

WIDE = Reach(front=100, visits=50, newest=8, quantum=50)


class Yard:
    """A store with a worker, and short words for jobs under limits."""

    def __init__(self, app):
        self.app = app
        new = NewWorker(id="w1", lease_us=9_999_000_000, kinds='["k 1"]', slots='{"FREE": 9}')
        app.client.run(workers.register, new)

    def declare(self, limit, *, scope="job", name="customer"):
        self.app.client.run(rules.declare, {(scope, name): limit})

    def put(self, *keys, rule="customer", kind="k", **options):
        shared = Template(kind=kind, **options)
        return [
            self.app.client.run(
                creation.create,
                [NewJob(new_id(), b"1", shared, key=key and limits.limit_key(rule, key))],
            )[0]
            for key in keys
        ]

    def take(self, most=100):
        asked = {"worker_id": "w1", "line": jobs.lines(["default"]), "most": most, "reach": WIDE}
        return self.app.client.run(limits.claim, **asked)[0]

    def settle(self, claim, ended):
        self.app.client.run(jobs.settle, [Settlement(claim, ended)], actor="w1")

    def told(self, job_id):
        return self.app.client.run(explain_any, "job", job_id)


@pytest.fixture
def yard(app):
    return Yard(app)


def test_a_limit_names_its_holders_and_the_place_in_line(yard, advance):
    yard.declare(Limit(most=2))
    a = yard.put(*["acme"] * 5)
    yard.take(2)
    a += yard.put("other")
    advance(12)
    told = yard.told(a[4])
    assert told.reasons == ("limit",)
    assert re.fullmatch(
        rf"limit customer \(2\) is reached for acme: held by 2 jobs \({a[0]} on w1 for 12(\.\d)? "
        rf"seconds, {a[1]} on w1 for 12(\.\d)? seconds\); 2 before this one; "
        r"when it starts is not known: no job of its kind has ended lately",
        told.details[0],
    )
    assert told.next == "one of the jobs that hold it ends, and the next in line is claimed"
    assert yard.told(a[5]).reasons == ("in_line",)


def test_a_job_that_its_limit_keeps_from_its_broker_says_so(yard, app):
    """It was only said to wait for its broker, which would never have been given it."""
    yard.declare(Limit(most=1))
    app.client.run(hints.declare, {"b": "redis"})
    first, _, third, other = yard.put("acme", "acme", "acme", "other", queue="b")
    given = {"most": 9, "batch": 9, "lease_seconds": 9, "actor": "m"}
    assert len(app.client.run(hints.dispatch, "b", **given)) == 2
    asked = {"worker_id": "w1", "queue": "b", "kinds": ["k 1"]}
    assert len(app.client.run(limits.claim_named, [first], **asked)[0]) == 1
    told = yard.told(third)
    assert told.reasons == ("broker", "limit")
    assert "limit customer (1) is reached for acme: held by 1 job" in told.details[1]
    assert "; 1 before this one" in told.details[1]
    assert "limit" not in yard.told(other).reasons
    assert app.limits.get("customer").waiting == 3


def test_a_job_that_the_limit_of_its_queue_keeps_from_its_broker_says_so(yard, app):
    app.client.run(hints.declare, {"b": "redis"})
    app.client.run(rules.declare, {("queue", "b"): Limit(most=1)})
    first, _, third = yard.put("acme", "acme", "other", queue="b")
    given = {"most": 9, "batch": 9, "lease_seconds": 9, "actor": "m"}
    assert len(app.client.run(hints.dispatch, "b", **given)) == 1
    asked = {"worker_id": "w1", "queue": "b", "kinds": ["k 1"]}
    assert len(app.client.run(limits.claim_named, [first], **asked)[0]) == 1
    told = yard.told(third)
    assert told.reasons == ("broker", "queue_limit")
    assert "queue b (1) is reached: held by 1 job" in told.details[1]


def test_when_it_starts_is_guessed_by_how_long_its_kind_took_lately(
    yard, app, advance, monkeypatch
):
    yard.declare(Limit(most=1))
    monkeypatch.setattr("milepost.store.limit_explain.lately", _always(60.0))
    a = yard.put("acme", "acme", "acme")
    yard.take()
    advance(20)
    [next_one, last] = [yard.told(job).text for job in a[1:]]
    assert re.search(r"0 before this one; about (40|39\.\d|3\d) seconds until it starts", next_one)
    assert re.search(r"1 before this one; about 1\.[67] minutes until it starts", last)


def test_no_start_is_guessed_where_the_holders_run_longer_than_usual(yard, advance, monkeypatch):
    """It said `about 0 seconds until it starts`, for as long as they ran."""
    yard.declare(Limit(most=2))
    monkeypatch.setattr("milepost.store.limit_explain.lately", _always(60.0))
    a = yard.put("acme", "acme", "acme", "acme")
    yard.take(1)
    advance(90)
    yard.take(1)
    first, second = (yard.told(job).text for job in a[2:])
    assert re.search(r"about (60|59\.\d) seconds until it starts", first)
    assert re.search(r"about 2 minutes until it starts", second)
    advance(90)
    unknown = "not known: jobs that hold it run for longer than the usual 60 seconds"
    assert unknown in yard.told(a[3]).text


def test_no_start_is_guessed_where_a_limit_lets_none_start(yard, app, monkeypatch):
    """Of its rate it said that no job of its kind had ended lately, and some had."""
    yard.declare(Limit(most=0, rate=1, per_us=60_000_000, burst=1))
    monkeypatch.setattr("milepost.store.limit_explain.lately", _always(60.0))
    _, second = yard.put("acme", "acme")
    _, rate = yard.told(second).details
    assert rate.endswith("when it starts is not known: limit customer lets none start")


def _always(seconds):
    def lately(_kind, _now):
        return seconds
        yield

    return lately


def test_recent_durations_are_those_that_workers_counted(yard, app):
    @app.job(name="timed")
    def timed() -> None: ...

    timed.submit()
    app.drain()
    while app.client.run(tally.fold, most=1_000) >= 1_000:
        pass
    yard.declare(Limit(most=0))
    [job] = yard.put("acme", kind="timed")
    assert "lets none start" in yard.told(job).text
    app.limits.set("customer", most=1)
    [_, waits] = [job, *yard.put("acme", kind="timed")]
    yard.take()
    assert re.search(r"about \d+(\.\d)? seconds until it starts", yard.told(waits).text)


def test_a_limit_that_somebody_set_says_who_and_why_l6(yard, app):
    yard.declare(Limit(most=5))
    [job] = yard.put("acme")
    app.limits.set("customer", most=0, reason="the provider is down")
    assert yard.told(job).details[0] == (
        "limit customer lets none start (set by client: the provider is down); 0 before this one"
    )


def test_many_holders_are_counted_and_some_named(yard):
    yard.declare(Limit(most=9))
    jobs_ = yard.put(*["acme"] * 11)
    yard.take()
    told = yard.told(jobs_[-1]).details[0]
    assert "held by 9 jobs (" in told
    assert told.count(" on w1 ") == 5
    assert ", 4 more); 1 before this one" in told


def test_jobs_of_other_tenants_are_counted_and_not_named(yard):
    yard.declare(Limit(most=1))
    [theirs] = yard.put("api", tenant="theirs")
    [ours] = yard.put("api", tenant="ours")
    yard.take()
    told = yard.told(ours).details[0]
    assert theirs not in told
    assert "held by 1 job (1 of other tenants)" in told


def test_an_ordered_key_names_the_job_that_has_the_turn_and_why_l11(yard, advance):
    yard.declare(Limit(ordered=True))
    a = yard.put("acme", "acme", "acme")
    assert yard.told(a[0]).reasons == ("in_line",)
    assert f"job {a[0]} (k) has the turn and is QUEUED" in yard.told(a[1]).details[0]
    [claim] = yard.take()
    told = yard.told(a[1])
    assert told.reasons == ("turn",)
    assert told.details[0].startswith(
        f"jobs of acme run one at a time, in order (limit customer): held by 1 job ({a[0]} on w1"
    )
    yard.settle(claim, outcome.retry(Problem("Boom", "it broke"), after=3_600))
    told = yard.told(a[2])
    assert f"job {a[0]} (k) has the turn and is RETRYING until 20" in told.details[0]
    assert re.search(r"in (60|59\.\d) minutes: ", told.details[0])
    assert f"`milepost jobs cancel {a[0]}` lets the next one go" in told.details[0]
    assert "1 before this one" in told.details[0]
    first = yard.told(a[0])
    assert first.reasons == ("retry", "due", "has_turn")
    assert first.details[-1] == ("it keeps the turn of acme (limit customer): 2 jobs wait for it")
    advance(3_601)
    yard.app.client.run(timers.wake, actor="m", most=9)
    assert yard.told(a[0]).reasons == ("in_line",)


@pytest.mark.parametrize("usual", [None, 60.0])
def test_nobody_guesses_when_a_job_that_waits_for_a_signal_gives_its_turn_away(
    yard, monkeypatch, usual
):
    """It was an IndexError once a job of its kind had ended; else it said that none had."""
    yard.declare(Limit(ordered=True))
    monkeypatch.setattr("milepost.store.limit_explain.lately", _always(usual))
    a = yard.put("acme", "acme", "acme")
    [claim] = yard.take()
    yard.settle(claim, outcome.later(None))
    for place, job in enumerate(a[1:]):
        told = yard.told(job)
        assert told.reasons == ("turn",)
        assert (
            f"job {a[0]} (k) has the turn and is WAITING until something wakes it: "
            f"`milepost jobs cancel {a[0]}` lets the next one go; {place} before this one; "
            "when it starts is not known: the job that has the turn waits for no set time"
        ) in told.details[0]


def test_the_next_of_an_ordered_key_waits_for_the_rate_of_its_queue_alone(yard, monkeypatch):
    """It was an IndexError: nobody holds the key, and there is nobody before it there."""
    yard.declare(Limit(ordered=True))
    yard.declare(Limit(rate=1, per_us=10_000_000, burst=1), scope="queue", name="default")
    monkeypatch.setattr("milepost.store.limit_explain.lately", _always(60.0))
    yard.put("acme")
    yard.take()
    _, last = yard.put("other", "third")
    told = yard.told(last)
    assert told.reasons == ("queue_rate",)
    assert re.search(r"1 before this one; about (20|19\.\d) seconds until it starts", told.text)


def test_a_rate_says_when_the_next_one_is_free(yard, advance):
    yard.declare(Limit(rate=1, per_us=10_000_000, burst=2))
    a = yard.put(*["acme"] * 5)
    assert yard.told(a[0]).reasons == ("in_line",)
    yard.take()
    told = yard.told(a[2])
    assert told.reasons == ("rate",)
    assert re.fullmatch(
        r"limit customer \(1/10s\) has none left for acme: the next one may start in "
        r"(10|9|[89]\.\d) seconds; 0 before this one",
        told.details[0],
    )
    third = yard.told(a[4]).details[0]
    assert re.search(r"2 before this one; about (30|29|2[89]\.\d) seconds until it starts", third)
    advance(10)
    assert yard.told(a[2]).reasons == ("in_line",)


def test_a_rate_says_when_the_first_in_line_has_the_units_that_it_takes(yard):
    """To jobs behind it, it said that the next one may start in 0 seconds."""
    yard.declare(Limit(rate=1, per_us=10_000_000, burst=5, units="tokens"))
    a = yard.put(*["acme"] * 3, units=4.0)
    yard.take()
    for job in a[1:]:
        assert re.search(r"may start in (30|29|2[89]\.\d) seconds", yard.told(job).details[0])


def test_what_takes_more_than_the_bucket_holds_starts_when_it_is_full(yard, advance):
    yard.declare(Limit(rate=1, per_us=10_000_000, burst=2, units="tokens"))
    a = yard.put("acme", "acme", units=5.0)
    yard.take()
    assert re.search(r"may start in (50|49|4[89]\.\d) seconds", yard.told(a[1]).details[0])
    advance(51)
    assert [claim.id for claim in yard.take()] == [a[1]]


def test_a_queues_own_limit_and_rate(yard, app):
    yard.declare(Limit(most=2, rate=2, per_us=60_000_000, burst=2), scope="queue", name="default")
    a = yard.put(None, "acme", None, "acme")
    yard.take()
    told = yard.told(a[3])
    assert told.reasons == ("queue_limit", "queue_rate")
    assert told.details[0].startswith("queue default (2) is reached: held by 2 jobs (")
    assert "1 before this one" in told.details[0]
    assert "queue default (2/m) has none left: the next one may start in" in told.details[1]


def test_a_rate_that_lets_the_next_one_start_does_not_say_that_none_is_left(yard, advance):
    limit = Limit(most=1, rate=1, per_us=10_000_000, burst=2)
    yard.declare(limit, scope="queue", name="default")
    a = yard.put(None, None, None, None)
    yard.take()
    advance(10)
    told = yard.told(a[3])
    assert told.reasons == ("queue_limit", "queue_rate")
    start = "queue default (1/10s) lets the next one start now, and this one in 10"
    assert told.details[1].startswith(start)


def test_a_rule_that_is_gone_keeps_nobody_l6(yard):
    [job] = yard.put("acme")
    assert yard.told(job).reasons == ("in_line",)


def test_what_keeps_everybody_is_told_first(yard, app):
    yard.declare(Limit(most=0))
    [job] = yard.put("acme")
    app.queues.pause("default")
    told = yard.told(job)
    assert told.reasons == ("queue_paused", "limit")
    assert "until its queue is resumed" in told.next


def test_counting_those_before_ends_at_a_bound(yard, monkeypatch):
    monkeypatch.setattr("milepost.store.limit_explain.COUNTED", 3)
    yard.declare(Limit(most=0))
    many = yard.put(*["acme"] * 6)
    yard.put("acme", priority=5)
    assert "3 or more before this one" in yard.told(many[5]).text
    assert "2 before this one" in yard.told(many[1]).text  # one has a higher priority


def test_a_head_that_no_worker_knows_is_named_with_the_way_out_l12(yard):
    yard.declare(Limit(ordered=True))
    [head, waits] = [*yard.put("acme", kind="gone"), *yard.put("acme")]
    told = yard.told(waits).details[0]
    assert f"job {head} (gone) has the turn and is QUEUED, and no live worker knows" in told
    assert f"`milepost jobs cancel {head}` lets the next one go" in told


def test_a_queue_names_the_limit_of_its_first_job(yard, app):
    yard.declare(Limit(most=1))
    a = yard.put("acme", "acme")
    told = app.client.run(explain_any, "queue", "default")
    assert told.reasons == ("in_line",)
    yard.take()
    told = app.client.run(explain_any, "queue", "default")
    assert told.reasons == ("limit", "in_line")
    assert f"its first job under a limit, {a[1]}, waits: limit customer (1)" in told.details[0]
    assert "their limits let start" in told.next
    yard.declare(Limit(most=1), scope="queue", name="default")
    told = app.client.run(explain_any, "queue", "default")
    assert told.reasons == ("limit", "queue_limit", "in_line")
    assert told.details[1].startswith("that job waits, too: queue default (1) is reached")
