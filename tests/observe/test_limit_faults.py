"""doctor on limits: declared in two ways, by nobody, exceeded, blocked for good; full buckets."""

import asyncio

import pytest

from milepost.maintain.chores import maintain
from milepost.records import NewJob, Template
from milepost.store import creation, jobs, limits, rules, workers
from milepost.store.job_facts import is_live
from milepost.store.limit_faults import faults
from milepost.store.limits import Reach, limit_key
from milepost.store.rules import Limit
from tests.support.suite import opened
from tests.support.suite.store import Store, new_id

WIDE = Reach(front=100, visits=50, newest=8, quantum=50)


@pytest.fixture
def store(database):
    with opened(database, "sync") as made:
        yield made


def found(store: Store) -> list[tuple[str, str]]:
    live = [worker for worker in store.run(workers.listing) if is_live(worker)]
    return [(one.id, one.text) for one in store.run(faults, live)]


def declare(store: Store, scope: str = "job", name: str = "r", **limit: object) -> None:
    store.run(rules.declare, {(scope, name): Limit(**limit)})
    store.run(rules.see, [(scope, name)])


def put(store: Store, *keys: str, kind: str = "k") -> list[str]:
    shared = Template(kind=kind)
    new = [NewJob(new_id(), b"1", shared, key=limit_key("r", key)) for key in keys]
    return store.run(creation.create, new)


def take(store: Store) -> int:
    line = jobs.lines(["default"])
    return len(store.run(limits.claim, worker_id="w1", line=line, most=9, reach=WIDE)[0])


def test_a_store_whose_limits_are_in_order_has_no_faults(store):
    store.worker(lease=9_999)
    declare(store, most=2)
    put(store, "a", "a", "a")
    take(store)
    assert found(store) == []


def test_two_versions_that_declare_different_numbers_l7(store):
    store.worker(lease=99_999)
    declare(store, most=2)
    store.advance(90)
    declare(store, most=3)
    [(name, text)] = found(store)
    assert name == "r"
    assert "changed 1 time within the hour, last from 2 at once to 3 at once" in text
    assert "1 worker lives that started before" in text
    declare(store, most=2)
    assert "changed 2 times within the hour" in found(store)[0][1]
    store.advance(3_700)
    assert found(store) == []


def test_the_changes_of_a_queues_declaration_are_told_by_its_scope(store):
    """The command listed those of a limit of jobs of that name, too."""
    declare(store, "queue", "r", most=2)
    declare(store, "queue", "r", most=3)
    declare(store, "queue", "r", most=2)
    [fault] = store.run(faults, store.run(workers.listing))
    assert "`milepost limits changes r --scope queue` lists the changes" in fault.advice


def test_a_declaration_that_changed_before_every_worker_started_is_none(store):
    declare(store, most=2)
    declare(store, most=3)
    store.worker(lease=99_999)
    assert found(store) == []


def test_what_somebody_set_is_no_declaration_whatever_the_reason_says(store):
    declare(store, most=2)
    declare(store, most=3)
    store.worker(lease=99_999)
    store.run(rules.change, ("job", "r"), Limit(most=1), actor="me", reason="declared")
    assert found(store) == []


def test_more_that_run_than_may_after_lowering_l6(store):
    store.worker(lease=9_999)
    declare(store, most=3)
    declare(store, "queue", "default", most=9)
    put(store, "a", "a", "a", "b")
    take(store)
    store.run(rules.change, ("job", "r"), Limit(most=1), actor="me", reason=None)
    assert found(store) == [("r", "3 jobs run for a, and 1 may at once")]
    store.run(rules.change, ("queue", "default"), Limit(most=2), actor="me", reason=None)
    assert ("default", "4 jobs run of queue default, and 2 may at once") in found(store)


def test_an_ordered_key_whose_head_nobody_knows_l12(store):
    new = workers.NewWorker(id="w1", lease_us=9_999_000_000, kinds='["k 1"]')
    store.run(workers.register, new)
    declare(store, ordered=True)
    [head] = put(store, "acme", kind="gone")
    assert found(store) == []  # nothing waits behind it
    put(store, "acme", "acme", "other")
    [(job_id, text)] = found(store)
    assert job_id == head
    assert text == (
        "it has the turn of acme, in order (limit r), and no live worker knows gone version 1: "
        "2 jobs wait behind it"
    )


def test_a_rule_that_no_live_workers_program_declares(store):
    declare(store, most=3)
    store.run(rules.change, ("queue", "hand"), Limit(most=1), actor="me", reason=None)
    store.advance(120)
    store.worker(lease=9_999)
    assert found(store) == [("r", "no live worker's program declares it, and it is in force")]
    [fault] = store.run(faults, store.run(workers.listing))
    assert "`milepost limits set r --scope job --most none --rate none`" in fault.advice
    declare(store, most=3)
    assert found(store) == []


def test_buckets_that_are_full_are_removed_by_maintenance(database, store):
    store.worker(lease=9_999)
    declare(store, rate=1, per_us=1_000_000, burst=1)
    put(store, *(f"k{n}" for n in range(5)))
    assert take(store) == 5

    async def pass_by() -> None:
        from milepost.address import StoreUrl
        from milepost.store.connect import open_async_driver

        driver = open_async_driver(StoreUrl.parse(database.url))
        await maintain(driver)
        await driver.close()

    asyncio.run(pass_by())
    assert store.rows("SELECT count(*) FROM bucket")[0][0] == 5
    store.advance(90)
    asyncio.run(pass_by())
    assert store.rows("SELECT count(*) FROM bucket")[0][0] == 0


def test_buckets_are_removed_in_batches(store):
    store.worker(lease=9_999)
    declare(store, rate=1, per_us=1_000_000, burst=1)
    put(store, *"abcde")
    take(store)
    assert store.run(rules.prune, most=3) == 0
    store.advance(90)
    assert [store.run(rules.prune, most=3) for _ in range(3)] == [3, 2, 0]
