"""app.limits: what is in force, what was declared, who set it and why; and how limits stand."""

from collections.abc import Callable

import pytest

import milepost as mp
from milepost.ingest.calls import Calls
from milepost.records import NewJob, Template
from milepost.store import creation, jobs, limits, rules, workers
from milepost.store.limits import Reach
from milepost.store.rules import Limit, RuleEdit
from milepost.store.workers import NewWorker

WIDE = Reach(front=100, visits=50, newest=8, quantum=50)


@pytest.fixture
def put(app: mp.App) -> Callable[..., list[str]]:
    """Create a job for each key of a rule."""

    def put(*keys: str, rule: str = "r", **options: object) -> list[str]:
        shared = Template(kind="k", **options)
        new = [
            NewJob(mp.client.new_id(), b"1", shared, key=limits.limit_key(rule, key))
            for key in keys
        ]
        return app.client.run(creation.create, new)

    return put


@pytest.fixture
def take(app: mp.App) -> Callable[..., list[str]]:
    """Claim whatever limits allow."""
    app.client.run(workers.register, NewWorker(id="w", lease_us=999_000_000))

    def take(most: int = 100) -> list[str]:
        line = jobs.lines(["default"])
        asked = {"worker_id": "w", "line": line, "most": most, "reach": WIDE}
        return [claim.id for claim in app.client.run(limits.claim, **asked)[0]]

    return take


def declare(app: mp.App, scope: str = "job", **named: Limit) -> None:
    app.client.run(rules.declare, {(scope, name): limit for name, limit in named.items()})


def test_a_limit_is_listed_with_what_runs_and_what_waits(app, put, take):
    declare(app, r=Limit(most=2), other=Limit(rate=25, per_us=1_000_000, burst=50))
    declare(app, "queue", default=Limit(most=50))
    put("a", "a", "a", "b", "c")
    take()
    found = {(one.scope, one.name): one for one in app.limits.list()}
    assert list(found) == [("job", "other"), ("job", "r"), ("queue", "default")]
    one = found["job", "r"]
    assert (one.most, one.running, one.waiting, one.counted_to) == (2, 4, 1, 1_000)
    assert (one.declared.most, one.set_by, one.words) == (2, None, "2 at once")
    assert (found["job", "other"].rate, found["job", "other"].running) == ("25/s", 0)
    assert found["job", "other"].words == "25/s, burst 50"
    assert (found["queue", "default"].running, found["queue", "default"].waiting) == (4, 1)


def test_jobs_of_a_rule_without_keys_are_counted_too(app, put, take):
    declare(app, whole=Limit(most=1), r=Limit(most=1))
    put("", "", "", rule="whole")
    take()
    assert [(one.running, one.waiting) for one in app.limits.list()] == [(0, 0), (1, 2)]


def test_counting_ends_at_a_bound(app, put, monkeypatch):
    monkeypatch.setattr("milepost.store.limit_looks.COUNTED", 3)
    declare(app, r=Limit(most=2), r2=Limit(most=2))
    put(*"abcdef")
    put("a", "b", rule="r2", priority=3, queue="slow")
    assert [(one.name, one.waiting) for one in app.limits.list()] == [("r", 3), ("r2", 2)]


def test_a_limit_that_is_set_acts_at_the_next_claim_and_is_on_record_l6(app, put, take):
    declare(app, r=Limit(most=1))
    put(*["a"] * 5)
    assert len(take()) == 1
    raised = app.limits.set("r", most=3, reason="the provider agreed")
    assert (raised.most, raised.declared.most, raised.set_by) == (3, 1, "client")
    assert (raised.reason, raised.running) == ("the provider agreed", 1)
    assert len(take()) == 2
    # Lowered below what runs: none is stopped, none starts.
    assert app.limits.set("r", most=0).running == 3
    assert take() == []
    newest, before, first = app.limits.changes("r")
    assert (newest.before.most, newest.after.most, newest.actor) == (3, 0, "client")
    assert (before.after.most, before.reason) == (3, "the provider agreed")
    assert (first.before, first.reason) == (None, "declared")


def test_a_reset_lets_the_declaration_be_in_force_again(app):
    declare(app, r=Limit(most=5))
    app.limits.set("r", most=1, rate="2/m")
    assert app.limits.get("r").words == "1 at once; 2/m, burst 1"
    back = app.limits.reset("r", reason="over")
    assert (back.most, back.rate, back.set_by, back.set_at) == (5, None, None, None)
    assert [change.reason for change in app.limits.changes("r")] == ["over", None, "declared"]
    app.limits.reset("r")
    assert len(app.limits.changes("r")) == 3  # nothing was to do


def test_what_is_left_out_stays_and_none_takes_it_away(app):
    declare(app, r=Limit(most=5, rate=2, per_us=60_000_000, burst=4))
    assert app.limits.set("r", rate="9/h").burst == 4
    assert app.limits.set("r", burst=None).burst == 1
    assert app.limits.set("r", rate=9).burst == 9
    assert app.limits.set("r", rate="9/h").burst == 1
    assert app.limits.set("r", burst=9).words == "5 at once; 9/h, burst 9"
    assert app.limits.set("r", most=None).words == "9/h, burst 9"
    assert app.limits.set("r", rate=None).words == "no limit, each key in turn"


def test_a_rate_is_told_as_it_can_be_set_again(app):
    declare(app, r=Limit(most=1))
    for rate, burst in (("1000000/d", 1234567), ("0.00003/d", 1), ("2.5/s", 2.5), ("9/h", 9)):
        told = app.limits.set("r", rate=rate, burst=burst)
        assert (told.rate, told.burst, told.words) == (
            rate,
            burst,
            f"1 at once; {rate}, burst {burst}",
        )
        assert app.limits.set("r", rate=told.rate, burst=told.burst).words == told.words


def test_a_burst_that_nobody_gave_is_told_in_short(app):
    declare(app, r=Limit(most=1))
    told = app.limits.set("r", rate="100/m")
    assert told.burst == pytest.approx(100 / 60)
    assert told.words == "1 at once; 100/m, burst 1.67"


def declared_by(program: mp.App) -> dict[tuple[str, str], Limit]:
    """What a program stores that gives each scope a rate of 25/s."""
    program.job(name="r", limit=mp.Limit(rate="25/s"))(lambda: None)
    program.queue("slow", rate="25/s")
    program.request_limit("partner.example", concurrency=9, rate="25/s")
    Calls(program.client, "shop", mp.Source(), "25/s")
    return {**program.client.declared_rules, **program.requests.rules}


def test_a_rate_that_is_set_lets_as_many_go_at_once_as_one_that_is_declared(app):
    declared = declared_by(app)
    assert {scope for scope, _ in declared} == set(rules.SCOPES)
    for (scope, name), limit in declared.items():
        bare = Limit(most=limit.most)
        app.client.run(rules.declare, {(scope, name): bare, (scope, "slower"): bare})
        first = app.limits.set(name, scope=scope, rate="25/s")
        assert (scope, first.burst) == (scope, limit.burst)
        app.limits.set("slower", scope=scope, rate="60/m")
        assert (scope, app.limits.set("slower", scope=scope, rate="25/s").burst) == (
            scope,
            limit.burst,
        )
        if scope != "job":
            made = app.limits.set("new", scope=scope, rate="25/s")
            assert (scope, made.burst) == (scope, limit.burst)


def test_a_queue_gets_its_first_limit_by_hand_and_loses_it_by_a_reset(app):
    made = app.limits.set("slow", scope="queue", most=3)
    assert (made.scope, made.most, made.declared) == ("queue", 3, None)
    assert app.limits.reset("slow").words == "no limit"
    assert app.limits.list() == []
    assert [(one.before, one.after) for one in app.limits.changes("slow")] == [
        (Limit(most=3), None),
        (None, Limit(most=3)),
    ]


@pytest.mark.parametrize("scope", [None, "queue"])
def test_a_limit_that_somebody_removes_meanwhile_is_not_found_or_made_anew(scope):
    """It was a KeyError: the rule was held in vain, and then looked up."""
    row = ("queue", "slow", 5, *[None] * 3, False, *[None] * 6)
    edit = rules.edit("slow", RuleEdit(most=1), scope=scope, actor="me", reason=None)
    assert next(edit).name == "limit_rules"
    assert edit.send([row]).name == "limit_rule_hold"
    assert edit.send([]).name == "limit_rules"
    if scope is None:
        with pytest.raises(mp.NotFound, match="there is no limit 'slow'"):
            edit.send([])
    else:
        assert edit.send([]).name == "limit_rule_hold"


@pytest.mark.parametrize("scope", ["queue", "host", "source"])
def test_what_has_no_keys_is_not_said_to_take_them_in_turn(app, scope):
    """A source whose rate was taken away said `no limit, each key in turn`."""
    app.limits.set("one", scope=scope, rate="5/s")
    assert app.limits.set("one", scope=scope, rate=None).words == "no limit"
    assert app.limits.list()[0].words == "no limit"
    assert app.limits.changes()[0].words == "no limit"


def test_a_new_declaration_has_the_last_word_an_old_one_has_not_l7(app):
    declare(app, r=Limit(most=5))
    app.limits.set("r", most=1)
    declare(app, r=Limit(most=5))
    assert app.limits.get("r").most == 1
    declare(app, r=Limit(most=7))
    assert (app.limits.get("r").most, app.limits.get("r").set_by) == (7, None)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "give most, rate or burst"),
        ({"most": -1}, "from 0 on"),
        ({"most": 2**31}, "from 0 on"),
        ({"most": True}, "from 0 on"),
        ({"rate": "fast"}, "per s, m, h or d"),
        ({"rate": True}, "must be a number per s"),
        ({"rate": "0/s"}, "per s, m, h or d"),
        ({"most": 2.5}, "from 0 on"),
        ({"most": "5"}, "from 0 on"),
        ({"burst": 5}, "belongs to a rate"),
        ({"rate": None, "burst": 5}, "belongs to a rate"),
        ({"rate": "1/s", "burst": 0}, "from 1 to"),
        ({"rate": "1/s", "burst": "5"}, "from 1 to"),
        ({"rate": "1/s", "burst": float("nan")}, "from 1 to"),
        ({"rate": "0.00001/d"}, "less than one in a hundred years"),
        ({"rate": "1/d", "burst": 40_000}, "more than a hundred years to earn"),
        ({"rate": 10**400}, "is more than 1,000,000,000,000,000"),
        ({"rate": "1/s", "burst": 10**400}, "from 1 to 1,000,000,000,000,000"),
        ({"most": 10**5_000}, "from 0 on"),
        ({"most": 1, "reason": "x" * 5_000}, "reason"),
        ({"most": 1, "scope": "galaxy"}, "expected one of job, queue, host, source"),
    ],
)
def test_what_no_limit_can_be_is_refused(app, given, told):
    declare(app, r=Limit(most=5))
    with pytest.raises(mp.Invalid, match=told):
        app.limits.set("r", **given)
    assert len(app.limits.changes()) == 1


def test_an_ordered_rule_stays_one_at_a_time(app):
    declare(app, r=Limit(ordered=True))
    for most in (0, 2):
        with pytest.raises(
            mp.Invalid, match=r"one at a time, .*; to start none, pause their queue"
        ):
            app.limits.set("r", most=most)
    assert app.limits.set("r", rate="1/s").words == "one at a time, in order; 1/s, burst 1"


def test_an_unknown_limit_is_told_which_there_are(app):
    declare(app, r=Limit(most=5), both=Limit(most=1))
    declare(app, "queue", both=Limit(most=1))
    with pytest.raises(mp.NotFound, match="there are: both, r"):
        app.limits.set("s", most=1)
    with pytest.raises(mp.NotFound):
        app.limits.set("s", most=1, scope="job")
    with pytest.raises(mp.Invalid, match=r"by its scope \(job, queue\)"):
        app.limits.reset("both")
    assert app.limits.set("both", most=9, scope="queue").most == 9
    assert app.limits.get("both", scope="job").most == 1


def test_a_name_in_another_scope_is_told_where_it_is(app):
    """It said `there is no limit 'r'; there are: r`."""
    declare(app, r=Limit(most=5))
    declare(app, "queue", slow=Limit(most=1))
    with pytest.raises(
        mp.NotFound, match=r"'r' of scope queue; there are: slow; 'r' is of scope job$"
    ):
        app.limits.get("r", scope="queue")
    with pytest.raises(
        mp.NotFound, match=r"'r' of scope host; there are: none; 'r' is of scope job$"
    ):
        app.limits.reset("r", scope="host")
    with pytest.raises(mp.NotFound, match=r"no limit 'x'; there are: r, slow$"):
        app.limits.get("x")


def test_an_unknown_limit_is_told_some_of_those_that_there_are(app):
    declare(app, **{f"rule-{number:03}": Limit(most=5) for number in range(100)})
    with pytest.raises(mp.NotFound, match=r"rule-019 and 80 more$"):
        app.limits.get("x")


@pytest.mark.parametrize("name", [5, None, "", " ", "a\0", "x" * 100_000])
def test_what_no_name_can_be_is_refused_alike_and_in_short(app, name):
    """A number was an AttributeError, and in `changes` nothing or an error of the server's."""
    for act in (
        app.limits.get,
        app.limits.reset,
        app.limits.clear,
        lambda name: app.limits.set(name, most=1),
        lambda name: app.limits.set(name, most=1, scope="host"),
        *([] if name is None else [app.limits.changes]),
    ):
        with pytest.raises(mp.Invalid, match=r"(limit|host)=") as caught:
            act(name)
        assert len(str(caught.value)) < 200
    assert app.limits.changes() == []


def test_changes_of_a_scope_that_there_is_not_are_refused(app):
    with pytest.raises(mp.Invalid, match="expected one of job, queue, host, source"):
        app.limits.changes("r", scope="galaxy")


def test_a_key_that_has_nothing_to_clear_is_told_in_short(app):
    declare(app, r=Limit(rate=1, per_us=10**6, burst=1))
    with pytest.raises(mp.NotFound) as caught:
        app.limits.clear("r", "x" * 100_000)
    assert len(str(caught.value)) < 200


async def test_the_async_twins_do_the_same(app):
    await app.limits.set_async("q", scope="queue", most=3)
    [one] = await app.limits.list_async()
    assert one == await app.limits.get_async("q")
    assert len(await app.limits.changes_async()) == 1
    assert (await app.limits.reset_async("q")).declared is None
    await app.close_async()


@pytest.mark.parametrize("most", [0, 2])
def test_a_source_has_a_rate_and_no_number_at_once(app, most):
    """It said "none may start", and was called as before."""
    app.limits.set("shop", scope="source", rate="5/s")
    with pytest.raises(mp.Invalid, match=r"a source has a rate, .* pause the queue"):
        app.limits.set("shop", scope="source", most=most)
    assert app.limits.set("shop", scope="source", most=None).words == "5/s, burst 1"
    assert len(app.limits.changes("shop")) == 2
