"""Races between real processes: one advance, no deadlock, each job once."""

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import racers

from milepost.records import Claim
from milepost.store import jobs, runs, timers, workers
from tests.support.databases import Backends, Database, backend_names
from tests.support.prove import PROVING, size
from tests.support.suite.store import Store, opened

pytestmark = [pytest.mark.prove, pytest.mark.timeout(1800)]


@pytest.fixture(params=["sqlite", "postgres18"])
def database(request: pytest.FixtureRequest, backends: Backends) -> Database:
    return backends.fresh(request.param)


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    with opened(database, "sync") as made:
        began = time.perf_counter()
        yield made
        print(f"{database.backend}: {time.perf_counter() - began:.1f} s")
        assert made.problems() == []


def last_children(store: Store, rounds: int, racing: int, *, slots: int) -> list[list[Claim]]:
    """Make runs whose first step lacks only its last children; one claim for each racer."""
    for number in range(racing):
        store.worker(f"w{number}", lease=100_000)
    for _ in range(rounds):
        store.start([racing, 1], slots=slots)
    claims = [store.claim(rounds, worker=f"w{number}") for number in range(racing)]
    by_run: dict[str | None, list[Claim]] = defaultdict(list)
    for claim in [claim for taken in claims for claim in taken]:
        by_run[claim.run_id].append(claim)
    assert all(len(children) == racing for children in by_run.values())
    return [[children[n] for children in by_run.values()] for n in range(racing)]


def assert_each_advanced_once(store: Store, count: int, *, racing: int = 4, along: int = 0) -> None:
    found = store.rows("SELECT id FROM run")
    assert len(found) == count
    advances = store.rows(
        "SELECT subject_id, count(*) FROM journal WHERE machine = 'run' AND move = 'advance'"
        " GROUP BY subject_id"
    )
    assert sorted(number for _, number in advances) == [1] * count
    assert store.rows("SELECT 1 FROM job WHERE step = 1 AND state <> 'QUEUED'") == []
    assert store.run(jobs.counts) == {
        "default": {"QUEUED": count * (1 + racing * along), "SUCCEEDED": racing * count}
    }


# Spread over slots, all four settle before any looks; one counter would queue them up by itself.
@pytest.mark.parametrize(
    ("slots", "point", "given"),
    [
        pytest.param(1, "before:job_settle", {}, id="one counter"),
        pytest.param(4, "after:job_settle", {}, id="spread"),
        pytest.param(4, "after:publication_add", {"staged": 2}, id="spread, with outputs"),
        pytest.param(4, "after:job_settle", {"along": 2}, id="outputs come along"),
    ],
)
def test_last_children_that_end_together_advance_their_run_once_h58(
    store: Store, slots: int, point: str, given: dict[str, int]
) -> None:
    rounds = 1_000 if PROVING else 40
    claims = last_children(store, rounds, 4, slots=slots)
    barrier = racers.RACING.Barrier(4)
    point = point if store.dialect == "postgres" else ""
    arguments = (store.database.url, point, barrier)
    # In four slots, too: who shares one waits for the other to commit, and none would come to meet.
    racers.race(
        [
            (racers.settle_together, (*arguments, taken, given, slot))
            for slot, taken in enumerate(claims)
        ]
    )
    assert_each_advanced_once(store, rounds, along=given.get("along", 0))
    assert_no_deadlock(store)


def assert_no_deadlock(store: Store) -> None:
    """A deadlock reaches nobody, because the driver repeats what lost it; but there is none."""
    if store.dialect == "postgres":
        statement = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert store.rows(statement)[0][0] == 0


def test_last_children_of_which_one_is_killed_anywhere_advance_their_run_once(
    store: Store,
) -> None:
    rounds = size(200)
    claims = last_children(store, rounds, 4, slots=4)
    barrier = racers.RACING.Barrier(4)
    settlers = [
        (racers.settle_together, (store.database.url, "", barrier, taken, {}, slot))
        for slot, taken in enumerate(claims[1:])
    ]
    victim = (racers.settle_and_die, (store.database.url, barrier, claims[0], 7))
    [*_, deaths] = racers.race([*settlers, victim])
    assert deaths > rounds / 3
    recover(store)
    assert_each_advanced_once(store, rounds)


def recover(store: Store) -> None:
    """Bury the dead, take what they held, and let another worker end it."""
    racers.wait_for_the_dead(store.rows, store.dialect)
    store.advance(200_000)
    store.worker("heir", lease=100_000)
    store.run(workers.bury, most=100)
    while store.run(timers.lose, actor="m", most=100):
        pass
    while store.run(timers.wake, actor="m", most=1000):
        pass
    heirs = store.claim(1000, worker="heir", queues=["default"], kinds=["k0 1"])
    store.settle(*[(claim, racers.GOOD) for claim in heirs], actor="heir")


def test_settlers_of_the_same_runs_take_turns_without_a_deadlock(store: Store) -> None:
    rounds, width, settlers = size(40), 25, 6
    claims = last_children(store, rounds * width, settlers, slots=1)
    barrier = racers.RACING.Barrier(settlers)
    batches = [[taken[at : at + width] for at in range(0, len(taken), width)] for taken in claims]
    racers.race(
        [
            (racers.settle_batches_together, (store.database.url, barrier, mine, seed))
            for seed, mine in enumerate(batches)
        ]
    )
    assert_each_advanced_once(store, rounds * width, racing=settlers)
    assert_no_deadlock(store)


def test_settlers_in_any_order_do_not_deadlock_and_every_run_ends(store: Store) -> None:
    count = size(200)
    settlers = 6
    for number in range(settlers):
        store.worker(f"w{number}", lease=100_000)
    store.worker(racers.MAINTENANCE, lease=100_000)
    ids = [
        store.start([settlers, 2], slots=(1, 1, 4)[n % 3], fail_fast=n % 2 == 0, tolerance=0.5)
        for n in range(count)
    ]
    claims = [store.claim(count, worker=f"w{number}") for number in range(settlers)]
    settling = [
        (racers.settle_in_any_order, (store.database.url, taken, seed))
        for seed, taken in enumerate(claims)
    ]
    racers.race([*settling, (racers.maintain, (store.database.url, ids, 240))])
    assert {state for (state,) in store.rows("SELECT DISTINCT state FROM run")} <= {
        *("SUCCEEDED", "FAILED"),
    }
    assert all(run.finished_at for run in store.run(runs.listing, most=1000))
    assert_no_deadlock(store)


def test_each_of_many_jobs_is_claimed_once_by_many_processes_i1(store: Store) -> None:
    count = size(10_000)
    for number in range(8):
        store.worker(f"w{number}", lease=100_000)
    ids = [job_id for _ in range(10) for job_id in store.create(count // 10)]
    answers = racers.race(
        [(racers.claim_all, (store.database.url, f"w{number}", number)) for number in range(8)]
    )
    taken = [pair for answer in answers for pair in answer]
    assert sorted(taken) == sorted((job_id, 1) for job_id in ids)
    claims = store.rows(
        "SELECT count(*), count(DISTINCT subject_id) FROM journal WHERE move = 'claim'"
    )
    assert tuple(claims[0]) == (count, count)
    assert store.run(jobs.counts) == {"default": {"SUCCEEDED": count}}


@pytest.mark.parametrize("backend", [name for name in backend_names() if name != "sqlite"])
def test_jobs_that_changed_since_a_claims_snapshot_are_passed_over_and_taken_next(
    backends: Backends, backend: str
) -> None:
    with opened(backends.fresh(backend), "sync") as store, store.raw() as hand:
        store.worker()
        moved, cancelled, still = store.create(3)
        # The claim waits after its snapshot was taken, and before it looks for jobs.
        hand.execute(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NULL; END $$"
        )
        hand.execute("CREATE TRIGGER wait BEFORE UPDATE ON job EXECUTE FUNCTION wait()")
        hand.execute("SELECT pg_advisory_lock(77)")
        with ThreadPoolExecutor() as pool:
            claiming = pool.submit(store.claim, 9)
            until = time.monotonic() + 60
            while not store.rows("SELECT 1 FROM pg_locks WHERE NOT granted"):
                assert time.monotonic() < until
                time.sleep(0.002)
            for job_id, move, state in (
                (moved, "undispatch", "READY"),
                (moved, "dispatch", "QUEUED"),
                (cancelled, "cancel", "CANCELLED"),
            ):
                hand.execute(
                    f"UPDATE job SET state = '{state}', move = '{move}', version = version + 1"
                    f" WHERE id = '{job_id}'"
                )
            hand.execute("SELECT pg_advisory_unlock(77)")
            first = [claim.id for claim in claiming.result(60)]
        assert still in first
        assert cancelled not in first
        assert sorted(first + [claim.id for claim in store.claim(9)]) == sorted((moved, still))
        assert store.problems() == []
