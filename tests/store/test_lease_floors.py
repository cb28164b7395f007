"""Live leases are counted from where they stand, whatever an old snapshot keeps of former ones."""

import json

import psycopg
import pytest
from msgspec.structs import replace

from milepost.limit import limit_key
from milepost.store import jobs, limits, rules
from milepost.store.catalog import query
from milepost.store.limits import LeaseFloor, Reach
from milepost.store.rules import Limit
from tests.support.databases import Backends, Database, backend_names
from tests.support.suite import Store, opened
from tests.support.suite.limits import ASKED, put
from tests.support.suite.store import GOOD

POSTGRES = [name for name in backend_names() if name.startswith("postgres")]
pytestmark = pytest.mark.skipif(not POSTGRES, reason="SQLite keeps no former rows in its indexes")
FORMER = 600
KEY = limit_key("r", "a")
TOLD = Reach(front=50, leases=[])
HAND = (
    "UPDATE job SET state = 'RUNNING', move = 'claim', version = version + 1, fence = fence + 1,"
    " worker_id = 'w1' WHERE id = '{}'"
)


@pytest.fixture
def database(backends: Backends):
    return backends.fresh(POSTGRES[-1])


@pytest.fixture
def store(database: Database):
    with opened(database, "sync") as store:
        store.worker(lease=9_999)
        yield store


def take(store: Store, most: int, leases: list[LeaseFloor] | None, drawn: int = 0):
    """Claim, and tell the floors that the next claim is to be given, which drew a number before."""
    claims, look = store.run(
        limits.claim,
        worker_id="w1",
        line=jobs.lines(["default"]),
        most=most,
        reach=replace(TOLD, leases=leases),
    )
    told = look.leases or ()
    return claims, [(*place, floor or drawn) for *place, floor in told if floor is not None]


def leases_read(database: Database, leases: list[LeaseFloor]) -> int:
    """Count the entries of leases, dead ones too, that a claim of the next job reads."""
    statement = query("job_claim_limited", "postgres")
    with database.raw() as raw:
        raw.execute("SET enable_seqscan = off")  # as the engine's sessions do
        before = _entries_read(raw)
        raw.execute("BEGIN")
        raw.execute(
            statement.text,
            {name: {**ASKED, "leases": json.dumps(leases)}[name] for name in statement.parameters},
        )
        raw.execute("ROLLBACK")
        return _entries_read(raw) - before


def _entries_read(raw) -> int:
    raw.execute("SELECT pg_stat_force_next_flush()")
    [[read]] = raw.execute(
        "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes"
        " WHERE indexrelname IN ('job_busy', 'job_served', 'job_held')"
    )
    return int(read)


@pytest.mark.parametrize("of_queue", [False, True], ids=["key", "queue"])
def test_leases_that_have_ended_cost_a_claim_nothing(database: Database, store: Store, of_queue):
    """Behind an old snapshot each claim read every lease that its key or its queue had ever had."""
    rule = ("queue", "default") if of_queue else ("job", "r")
    store.run(rules.declare, {rule: Limit(most=FORMER + 9)})
    with psycopg.connect(database.url) as old:
        old.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1 FROM milepost.job")
        put(store, *["a"] * FORMER)
        while claims := take(store, 200, [])[0]:
            store.settle(*((claim, GOOD) for claim in claims))
        put(store, "a", "a", "a")
        take(store, 1, [])
        [_], leases = take(store, 1, [])
        assert leases_read(database, []) >= FORMER
        assert leases_read(database, leases) <= 10


@pytest.mark.parametrize("rule", [("job", "r"), ("queue", "default")], ids=["key", "queue"])
def test_from_the_floor_on_the_limit_holds(store: Store, rule):
    store.run(rules.declare, {rule: Limit(most=2)})
    put(store, *["a"] * 9)
    leases: list[LeaseFloor] = []
    for _ in range(3):
        claims, leases = take(store, 9, leases)
        assert len(claims) == 2
        more, leases = take(store, 9, leases)
        assert more == []
        assert [place for *place, _ in leases if tuple(place) == rule or place[1] == KEY]
        store.settle((claims[0], GOOD))
        [other], leases = take(store, 9, leases)
        store.settle((claims[1], GOOD), (other, GOOD))


@pytest.mark.parametrize("rule", [("job", "r"), ("queue", "default")], ids=["key", "queue"])
def test_what_somebody_claimed_by_hand_is_counted_without_a_number_l8(store: Store, rule):
    store.run(rules.declare, {rule: Limit(most=2)})
    put(store, "a", "a", "a")
    [_], leases = take(store, 1, [])
    store.rows(HAND.format(put(store, "b" if rule[0] == "queue" else "a")[0]))
    # Of a queue, none of its leases may be without one: it is counted from the bottom.
    assert take(store, 9, [one for one in leases if one[0] == "job"])[0] == []


def test_leases_that_have_no_number_are_counted_next_to_those_that_have(store: Store):
    store.run(rules.declare, {("job", "r"): Limit(most=2)})
    put(store, *["a"] * 4)
    assert len(take(store, 1, None)[0]) == 1
    [_], leases = take(store, 9, [])
    assert leases
    assert take(store, 9, leases)[0] == []


def test_a_queue_whose_limit_was_away_is_counted_from_its_bottom(store: Store):
    """What was claimed meanwhile had no number, and was not counted from the floor of before."""
    rule = ("queue", "default")
    store.run(rules.declare, {rule: Limit(most=2)})
    put(store, "a", "a", "a")
    [claim], leases = take(store, 1, [])
    store.settle((claim, GOOD))
    store.create(2)
    store.rows("DELETE FROM limit_rule WHERE scope = 'queue'")
    assert len(store.claim(2)) == 2
    store.run(rules.declare, {rule: Limit(most=2)})
    assert leases
    assert take(store, 9, leases)[0] == []
