"""`limit=`: what it takes, the key that each job is counted under, and what the store is told."""

import enum
import re
import sqlite3
from contextlib import closing
from uuid import UUID

import msgspec
import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.client import acting
from milepost.limit import read_rate
from milepost.store import rules
from milepost.store.rules import Limit as Stored

WRONG = [
    ({}, "it limits nothing"),
    ({"most": 0}, "most=0 must be a whole number from 1 to 2,147,483,647; to start none, pause"),
    ({"most": True}, "most=True must be a whole number"),
    ({"most": 2, "ordered": True}, "one at a time: leave most=2 out"),
    ({"most": 1, "ordered": 1}, "ordered=1 must be True or False"),
    ({"key": ""}, "key='' must be a text that is not blank"),
    ({"key": 7}, 'key=7 must be the name of a parameter, "tenant" or a function'),
    ({"rate": "often"}, "rate='often' must be a number per s, m, h or d"),
    ({"rate": 0}, "rate=0 must be a number"),
    ({"rate": "1/s", "burst": 0.5}, "burst=0.5 must be a number from 1"),
    ({"rate": "0.00001/d"}, "rate='0.00001/d' is less than one in a hundred years"),
    ({"rate": 1e16}, "rate=1e+16 is more than 1,000,000,000,000,000"),
    ({"rate": 10**400}, "is more than 1,000,000,000,000,000"),
    ({"rate": 10**5_000}, "is more than 1,000,000,000,000,000"),
    ({"rate": "9" * 5_000}, "is more than 1,000,000,000,000,000"),
    ({"rate": "x" * 5_000}, "must be a number per s, m, h or d"),
    ({"rate": float("nan")}, "rate=nan must be a number per s, m, h or d"),
    ({"rate": "1/s", "burst": 10**400}, "from 1 to 1,000,000,000,000,000"),
    ({"rate": "1/s", "burst": 1e300}, "from 1 to 1,000,000,000,000,000"),
    ({"most": 2**31}, "most=2147483648 must be a whole number from 1 to 2,147,483,647"),
    ({"most": 10**5_000}, "must be a whole number from 1 to 2,147,483,647"),
    ({"rate": "1/d", "burst": 40_000}, "takes the rate more than a hundred years to earn"),
    ({"most": 1, "burst": 5}, "burst without rate="),
    ({"most": 1, "units": "tokens"}, "units without rate="),
    ({"most": 1, "name": " "}, "name=' ' must be a text"),
]


@pytest.mark.parametrize(("given", "said"), WRONG)
def test_a_limit_that_contradicts_itself_or_limits_nothing_is_refused(given, said):
    with pytest.raises(mp.Invalid, match=re.escape(said)) as caught:
        mp.Limit(**given)
    assert len(str(caught.value)) < 200


async def a_key() -> str:
    return "a"


class AwaitedKey:
    """It was taken, and no submit could make a key of it."""

    async def __call__(self, customer: str) -> str:
        return customer


def test_a_limit_is_a_value_and_its_key_no_coroutine():
    assert mp.Limit(5, key="a") == mp.Limit(most=5, key="a")
    with pytest.raises(AttributeError):
        mp.Limit(5).most = 6
    for key in (a_key, AwaitedKey()):
        with pytest.raises(mp.Invalid, match="must be a plain function"):
            mp.Limit(key=key)


@pytest.mark.parametrize(
    ("rate", "amount", "seconds", "burst"),
    [
        ("25/s", 25, 1, 25),
        (" 100 / m", 100, 60, 100 / 60),
        ("5/h", 5, 3600, 1),
        ("1000/d", 1000, 86_400, 1),
        (0.5, 0.5, 1, 1),
        (30, 30, 1, 30),
        ("30", 30, 1, 30),
    ],
)
def test_a_rate_is_a_number_in_a_time_and_a_seconds_worth_may_start_at_once(
    rate, amount, seconds, burst
):
    assert read_rate(rate) == (amount, seconds * 1_000_000)
    assert mp.Limit(rate=rate).room == pytest.approx(burst)
    assert mp.Limit(rate=rate, burst=7).room == 7


class Colour(enum.Enum):
    RED = "red"


class Order(msgspec.Struct):
    customer: str


UUID_TEXT = "5f0c7d4e-3b6a-4a5e-9d57-0a3b6f0f3b1a"


@pytest.fixture
def idle() -> mp.App:
    """An app whose store is never opened."""
    return mp.App("sqlite:///never-opened.db")


def key_of(job, *args, **kwargs):
    """Tell the rule and the key of a job that a submit would store."""
    made = job.new(args, kwargs)
    key = made.key or made.template.limit_key
    return None if key is None else key.split("/", 1)[1]


def test_the_key_is_what_the_handler_will_have(idle):
    @idle.job(limit=mp.Limit(1, key="who"))
    def named(who: UUID, what: str = "") -> None: ...

    @idle.job(limit=mp.Limit(1, key=lambda order, dpi: f"{order.customer} {dpi}"))
    def made(ctx: mp.Context, order: Order, *, dpi: int = 300) -> None: ...

    @idle.job(limit=mp.Limit(1, key="n"))
    def counted(n: int = 7) -> None: ...

    @idle.job(limit=mp.Limit(1, key="colour"))
    def painted(colour: Colour) -> None: ...

    @idle.job(limit=mp.Limit(1))
    def alone() -> None: ...

    # As text, as a message or the API has it, and as a value.
    assert key_of(named, UUID_TEXT) == key_of(named, UUID(UUID_TEXT)) == f"named/{UUID_TEXT}"
    assert key_of(made, {"customer": "acme"}) == key_of(made, Order("acme")) == "made/acme 300"
    assert key_of(made, Order("acme"), dpi=72) == "made/acme 72"
    assert (key_of(counted), key_of(counted, 8)) == ("counted/7", "counted/8")
    assert key_of(painted, Colour.RED) == "painted/red"
    assert key_of(alone) == "alone/"
    assert key_of(counted.options(limit_key="acme")) == "counted/acme"
    assert key_of(alone.options(limit_key="acme")) == "alone/acme"


def test_the_tenant_is_the_callers_unless_a_parameter_is_called_so(idle):
    @idle.job(limit=mp.Limit(key="tenant"))
    def fair() -> None: ...

    @idle.job(limit=mp.Limit(key="tenant"))
    def own(tenant: str) -> None: ...

    with acting("api", tenant="acme"):
        assert (key_of(fair), key_of(own, "mine")) == ("fair/acme", "own/mine")
    assert key_of(fair) == "fair/"


def test_a_key_that_is_missing_is_refused_by_the_parameters_name_l9(idle):
    @idle.job(limit=mp.Limit(1, key="customer"))
    def charge(customer: str | None = None) -> None: ...

    @idle.job(limit=mp.Limit(1, key=lambda order: order.customer if order else None))
    def bill(order: Order | None) -> None: ...

    @idle.job(limit=mp.Limit(1, key="items"))
    def pack(items: list[str]) -> None: ...

    for refused, said in [
        (lambda: charge.new((), {}), "charge: customer, its limit key, is None"),
        (lambda: charge.new(("",), {}), "charge: customer, its limit key='' must be a text"),
        (lambda: bill.new((None,), {}), "the limit key of bill is None"),
        (lambda: pack.new((["a"],), {}), "is of type list: a key is a text, a whole number"),
    ]:
        with pytest.raises(mp.Invalid, match=said):
            refused()
    # Nobody has to give an argument that a submit gives a key for.
    assert key_of(charge.options(limit_key="acme")) == "charge/acme"


def test_a_key_that_no_store_keeps_is_refused_in_whole_words_l9(idle):
    @idle.job(limit=mp.Limit(1, key="customer"))
    def bill(customer: str) -> None: ...

    for wrong in ("", " ", "a\0b"):
        with pytest.raises(mp.Invalid, match="bill: customer, its limit key='"):
            bill.submit(wrong)


def test_a_key_function_that_fails_says_so(idle):
    @idle.job(limit=mp.Limit(1, key=lambda order: order["customer"]))
    def bill(order: dict[str, str]) -> None: ...

    with pytest.raises(mp.Invalid, match=r"its limit's key function, .* KeyError: 'customer'"):
        bill.new(({},), {})


def test_a_long_key_is_stored_by_its_hash_l9(idle):
    @idle.job(limit=mp.Limit(1, key="text"))
    def read(text: str) -> None: ...

    assert key_of(read, "ü" * 100) == f"read/{'ü' * 100}"
    long, longer = key_of(read, "ü" * 101), key_of(read, "ü" * 102)
    assert long.startswith("read/sha256:")
    assert len({long, longer, key_of(read, "ü" * 101)}) == 2


def test_a_declaration_that_does_not_fit_is_refused(idle):
    with pytest.raises(mp.Invalid, match=r"limit key='custmer' is no parameter .*: customer, n\)"):

        @idle.job(limit=mp.Limit(1, key="custmer"))
        def wrong(customer: str, n: int) -> None: ...

    with pytest.raises(mp.Invalid, match=r"limit=5 must be an mp.Limit"):
        idle.job(limit=5)(a_key)


def test_kinds_share_a_rule_by_its_name_if_they_mean_the_same(idle):
    @idle.job(limit=mp.Limit(5, key="a", name="erp"))
    def one(a: str) -> None: ...

    @idle.job(limit=mp.Limit(5, key="b", name="erp"))
    def two(b: str) -> None: ...

    assert key_of(one, "x") == key_of(two, "x") == "erp/x"
    with pytest.raises(mp.Invalid, match="is declared as 6 at once by three 1 and as 5 at once by"):

        @idle.job(limit=mp.Limit(6, key="c", name="erp"))
        def three(c: str) -> None: ...

    @idle.job(limit=mp.Limit(ordered=True, name="row"))
    def first() -> None: ...

    with pytest.raises(mp.Invalid, match="order holds within one queue and one priority"):

        @idle.job(limit=mp.Limit(ordered=True, name="row"), queue="other")
        def second() -> None: ...


def test_options_that_no_limit_asks_for_are_refused_l19(idle):
    @idle.job
    def plain() -> None: ...

    @idle.job(limit=mp.Limit(5))
    def few() -> None: ...

    @idle.job(limit=mp.Limit(rate="600/m", units="tokens"))
    def ask() -> None: ...

    @idle.job(limit=mp.Limit(ordered=True))
    def row() -> None: ...

    for job, said in [
        (plain.options(limit_key="a"), "limit_key= is for kinds with a limit=, and plain has none"),
        (plain.options(units=2), "units= is for limits with a rate=, and plain has none"),
        (few.options(units=2), "units= is for limits with a rate=, and few has none"),
        (ask.options(units=1e15), "units=1000000000000000 is more than ask may ever take"),
        (ask.options(units=11), "units=11 is more than ask may ever take at once, 10: raise"),
        (row.options(queue="other"), "queue= would break the order of row"),
        (row.options(priority=1), "priority= would break the order of row"),
    ]:
        with pytest.raises(mp.Invalid, match=said):
            job.new((), {})
    assert ask.options(units=10).new((), {}).template.units == 10
    assert row.options(queue="default", priority=0).new((), {}).key


# What is stored


def stored(app):
    return {named: rule.limit for named, rule in app.client.run(rules.rules).items()}


def limited(app, limit=None):
    @app.job(limit=limit or mp.Limit(1, key="who"))
    def work(who: str) -> str:
        return who

    return work


def test_rules_are_told_before_the_first_job_under_them_and_when_a_worker_starts(database, app):
    work = limited(app, mp.Limit(2, key="who", rate="60/m"))
    job = work.submit("acme").refresh()
    rule = Stored(most=2, rate=60.0, per_us=60_000_000, burst=1.0)
    assert stored(app) == {("job", "work"): rule}
    assert (job.limit, job.limit_key, job.record.units) == ("work", "acme", None)

    # A program that has the store open already declares another one.
    @app.job(limit=mp.Limit(ordered=True, name="a/b%"))
    def row() -> None: ...

    assert (row.submit().refresh().limit, row.submit().refresh().limit_key) == ("a/b%", "")
    assert stored(app)["job", "a/b%"] == Stored(ordered=True)
    with closing(mp.App(database.url)) as other:
        limited(other, mp.Limit(7, key="who"))
        other.drain()
        assert stored(other)["job", "work"] == Stored(most=7)


def test_what_somebody_set_stays_until_a_declaration_changes_l6_l7(database, app):
    limited(app).submit("a")
    changed = ("job", "work"), Stored(most=9)
    app.client.run(rules.change, *changed, actor="jo", reason="month's end")
    for most, found in [(1, 9), (3, 3), (1, 1)]:
        with closing(mp.App(database.url)) as later:
            limited(later, mp.Limit(most, key="who")).submit("b")
            assert stored(later)["job", "work"].most == found
    rule = app.client.run(rules.rules)["job", "work"]
    assert (rule.declared, rule.declared_before) == (Stored(most=1), Stored(most=3))


def test_a_queue_may_let_many_start_at_once_after_a_rest(app):
    """Only an operator could say so, by a command."""
    app.queue("slow", rate="100/m", burst=10)
    app.maintain_once()
    rule = Stored(rate=100.0, per_us=60_000_000, burst=10.0)
    assert stored(app) == {("queue", "slow"): rule}
    with pytest.raises(mp.Invalid, match="burst without rate="):
        app.queue("slow", most=5, burst=10)


def test_a_queues_limit_comes_and_goes_with_its_declaration(database, app, raw):
    app.queue("slow", most=50, rate="100/m", max_waiting=9)
    app.maintain_once()
    rule = Stored(most=50, rate=100.0, per_us=60_000_000, burst=100 / 60)
    assert stored(app) == {("queue", "slow"): rule}
    with pytest.raises(mp.Invalid, match="most=0 must be a whole number from 1"):
        app.queue("slow", most=0)
    with closing(mp.App(database.url)) as later:
        later.queue("slow")
        later.queue("fast")
        later.client.run(rules.change, ("queue", "fast"), Stored(most=1), actor="jo", reason=None)
        later.maintain_once()
        # Nobody declared that one: a person did.
        assert stored(later) == {("queue", "fast"): Stored(most=1)}
    told = raw.execute("SELECT reason, actor FROM limit_change ORDER BY n")
    assert [tuple(row) for row in told] == [
        ("declared", None),
        (None, "jo"),
        ("no longer declared", None),
    ]


def connected(database):
    target = StoreUrl.parse(database.url).target
    return sqlite3.connect(target) if "sqlite" in database.url else psycopg.connect(database.url)


def test_a_submit_within_a_transaction_has_its_key_and_holds_up_nobody_l14(database, app):
    work = limited(app)
    with closing(connected(database)) as connection:
        undone = work.within(connection).submit("acme")
        connection.rollback()
        kept = work.within(connection).submit("acme")
        if "sqlite" not in database.url:
            # Not committed yet: another program declares the same rule, and claims under its key.
            with closing(mp.App(database.url)) as other:
                limited(other, mp.Limit(3, key="who")).submit("acme")
                assert other.drain() == 1
        connection.commit()
    assert kept.refresh().limit_key == "acme"
    assert ("job", "work") in stored(app)
    with pytest.raises(mp.NotFound):
        undone.refresh()


def test_every_way_to_make_a_job_gives_it_its_key(app, advance):
    @app.job(limit=mp.Limit(key="tenant", name="care"))
    def tidy(failed: str) -> None: ...

    @app.job(limit=mp.Limit(key="failed"))
    def report(failed: str) -> None: ...

    @app.job(limit=mp.Limit(1, key="who"), retries=0, on_failure=tidy)
    def work(who: str) -> None:
        raise ValueError(who)

    @app.job(retries=0, on_failure=report)
    def other() -> None:
        raise ValueError

    app.schedule(work, "* * * * *", args=("clock",))
    app.schedule(work.options(limit_key="chosen"), "* * * * *", args=("b",), name="second")
    with acting("api", tenant="acme"):
        failed = work.submit("one")
        second = other.submit()
    work.submit_many([("two",), {"who": "three"}])
    app.drain()
    advance(61)
    app.drain()
    assert failed.refresh().rerun().refresh().limit_key == "one"
    keys = {(job.record.kind, job.limit_key) for job in app.jobs.list(limit=99)}
    assert keys >= {("work", who) for who in ("one", "two", "three", "clock", "chosen")}
    assert {key for kind, key in keys if kind == "tidy"} == {"acme", ""}
    assert {key for kind, key in keys if kind == "report"} == {second.id}


def test_a_key_stays_readable_where_arguments_are_encrypted_l10(database, raw):
    keys = {"k1": bytes(range(32))}
    with closing(mp.App(database.url, codec=mp.EncryptingCodec(keys))) as app:
        work = limited(app)
        job = work.submit("acme")
        sealed, key = raw.execute("SELECT payload, limit_key FROM job")[0]
        assert b"acme" not in bytes(sealed)
        assert key.split("/")[1:] == ["work", "acme"]
        assert app.drain() == 1
        assert job.refresh().result == "acme"
