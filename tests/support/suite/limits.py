"""Jobs under limits: who may start, and who waits."""

from collections import Counter
from typing import Any

import pytest

from milepost import outcome
from milepost.records import Claim, NewJob, Template
from milepost.store import creation, hints, jobs, limits, rules, timers
from milepost.store.limits import Look, Reach
from milepost.store.rules import Limit
from tests.support.suite.store import GOOD, PROBLEM, Store, new_id

__all__ = ["LimitSuite"]

WIDE = Reach(front=100, visits=50, newest=8, quantum=50)
ASKED = {
    "worker_id": "w1",
    "queue": ["default"],
    "priority": [0],
    "floor": [0],
    "bottom": [0],
    "kinds": None,
    "alone": False,
    "ahead": False,
    "timed": True,
    "most": 1,
    "stripe": 0,
    "stripes": 16,
    "front": 1,
    "visits": 0,
    "after": "",
    "newest": 0,
    "quantum": 1,
    "freed": "[]",
    "leases": None,
    "id": None,
}
"""What the statement of a claim for one job is asked."""


def put(store: Store, *keys: str, rule: str = "r", kind: str = "k", **options: Any) -> list[str]:
    """Create a job for each key of the rule, in this order."""
    shared = Template(kind=kind, **options)
    new = [NewJob(new_id(), b"1", shared, key=limits.limit_key(rule, key)) for key in keys]
    return [store.run(creation.create, [job])[0] for job in new]


def take(store: Store, most: int = 100, **given: Any) -> list[Claim]:
    return look(store, most, **given)[0]


def look(
    store: Store, most: int = 100, *, worker: str = "w1", reach: Reach = WIDE, **given: Any
) -> tuple[list[Claim], Look]:
    line = jobs.lines(given.pop("queues", ["default"]))
    return store.run(limits.claim, worker_id=worker, line=line, most=most, reach=reach, **given)


def take_one(store: Store, last: Claim | None, **reach: Any) -> Claim:
    """Claim one job as a worker with one slot does: from the last one on; and end it."""
    line = [jobs.Line("default", 0, last.queued_seq if last else 0)]
    near = Reach(**reach)
    [claim], _ = store.run(limits.claim, worker_id="w1", line=line, most=1, reach=near)
    store.settle((claim, GOOD))
    return claim


def declare(store: Store, **named: Limit) -> None:
    store.run(rules.declare, {("job", name): rule for name, rule in named.items()})


def hand_out(store: Store, queue: str, *, most: int = 99, **given: Any) -> int:
    """Hand the jobs of a queue to its broker, while no more than so many are there."""
    told = {"most": most, "batch": most, "lease_seconds": 9, "actor": "m", **given}
    return len(store.run(hints.dispatch, queue, **told))


def hand_out_all(store: Store, queue: str) -> None:
    """Queue all jobs of a queue, whatever their limits, as if the broker were away for a while."""
    store.run(hints.enqueue, [queue], actor="m", most=99)
    store.run(hints.adopt, queue, most=99, batch=99, lease_seconds=9)


def take_named(store: Store, *ids: str) -> list[Claim]:
    """Claim jobs that a broker's hints name."""
    return store.run(limits.claim_named, ids, worker_id="w1", queue="b", kinds=["k 1"])[0]


class LimitSuite:
    """A live lease is the count: nothing is stored about a job that has to wait."""

    def test_no_more_of_a_key_run_than_its_limit_allows_l4(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=2))
        a = put(store, "a", "a", "a", "b")
        first = take(store)
        assert [c.id for c in first] == [a[0], a[1], a[3]]
        assert take(store) == []
        store.settle((first[0], GOOD))
        assert [c.id for c in take(store)] == [a[2]]

    def test_every_end_of_a_lease_frees_its_place_l1_l8(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        put(store, *["a"] * 5)
        for ended in (GOOD, outcome.failed(PROBLEM), outcome.retry(PROBLEM, after=999)):
            [claim] = take(store)
            assert take(store) == []
            store.settle((claim, ended))
        [claim] = take(store)
        store.rows(
            "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1,"
            f" worker_id = NULL WHERE id = '{claim.id}'"
        )
        assert len(take(store)) == 1

    def test_who_was_only_asleep_frees_no_place_a_second_time_l2(self, store: Store) -> None:
        store.worker(lease=10)
        declare(store, r=Limit(most=1))
        first, second, third = put(store, "a", "a", "a")
        [asleep] = take(store)
        assert store.lose_all() == [(first, "RETRYING")]
        store.worker("w2", lease=9_999)
        assert [c.id for c in take(store, worker="w2")] == [second]
        assert not store.settle((asleep, GOOD))
        assert take(store, worker="w2") == []
        assert [store.state(one) for one in (second, third)] == ["RUNNING", "QUEUED"]

    def test_a_claim_whose_reply_was_lost_counts_until_it_is_released_l3(
        self, store: Store
    ) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        first, second = put(store, "a", "a")
        assert [c.id for c in take(store)] == [first]
        assert take(store) == []
        assert store.run(jobs.reconcile, worker_id="w1", known={}) == [first]
        assert [c.id for c in take(store)] == [second]

    def test_jobs_without_a_limit_pass_those_that_wait_l16(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        put(store, *["a"] * 3)
        [plain] = store.create()
        assert [c.id for c in store.claim(9)] == [plain]

    def test_each_key_comes_before_any_key_comes_twice_l20(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit())
        many = put(store, *["a"] * 6)
        [one] = put(store, "b")
        assert {c.id for c in take(store, 2)} == {many[0], one}

    def test_keys_of_which_fewer_run_come_first_l20(self, store: Store) -> None:
        """Whoever claimed for one or two slots took the oldest: a single job came last."""
        store.worker(lease=9_999)
        declare(store, r=Limit(), s=Limit(most=50))
        for rule in ("r", "s"):
            put(store, *["a"] * 8, rule=rule)
            running = take(store, 2)
            [one, other] = put(store, "b", "c", rule=rule)
            assert {c.id for c in take(store, 1, reach=Reach(front=20))} == {one}
            assert {c.id for c in take(store, 1)} == {other}
            assert {c.limit_key for c in take(store, 3)} == {running[0].limit_key}
            take(store)

    def test_a_single_job_has_its_turn_within_two_claims_of_one_l20(self, store: Store) -> None:
        """With one slot nothing runs when the next is chosen."""
        store.worker(lease=9_999)
        declare(store, r=Limit())
        put(store, *["a"] * 20)
        last = None
        for _ in range(6):
            [late] = put(store, "b")
            two = take_one(store, last, front=1), take_one(store, None, front=1, visits=1, newest=1)
            assert late in {claim.id for claim in two}
            last = two[0]

    def test_keys_of_which_none_runs_take_turns_l20(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit())
        put(store, *["a"] * 60, *["b"] * 60, *["c"] * 60)
        ran = [last := take_one(store, None, visits=16)]
        ran += [last := take_one(store, last, visits=16) for _ in range(59)]
        times = Counter(claim.limit_key for claim in ran)
        assert len(times) == 3
        assert min(times.values()) >= 4, times

    def test_keys_of_one_instant_take_turns_l20(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit())
        shared = Template(kind="k")
        keys = [limits.limit_key("r", key) for key in ["a"] * 60 + ["b"] * 60]
        new = [NewJob(new_id(), b"1", shared, key=key) for key in keys]
        store.run(creation.create, new)
        ran = [last := take_one(store, None, visits=16)]
        ran += [last := take_one(store, last, visits=16) for _ in range(59)]
        times = Counter(claim.limit_key for claim in ran)
        assert len(times) == 2
        assert min(times.values()) >= 8, times

    def test_jobs_without_a_key_do_not_keep_keys_of_which_some_run_waiting(
        self, store: Store
    ) -> None:
        store.worker(lease=9_999)
        store.run(rules.declare, {("queue", "default"): Limit(most=20)})
        declare(store, r=Limit())
        put(store, *["a"] * 20)
        assert len(take(store, 5)) == 5
        store.create(20)
        for _ in range(3):
            both = take(store, 2, reach=Reach(front=10))
            assert sum(claim.limit_key is None for claim in both) == 1
            assert {claim.limit_key for claim in take(store, 2)} == {None}  # the older had its turn

    def test_a_full_queue_takes_no_place_of_a_key_from_another_one(self, store: Store) -> None:
        """The first of the key stood there, and those of other queues waited with them."""
        store.worker(lease=9_999)
        spent = Limit(rate=1, per_us=3_600_000_000, burst=1)
        full = {("queue", "most"): Limit(most=0), ("queue", "rate"): spent}
        store.run(rules.declare, full)
        declare(store, r=Limit(most=2), t=Limit(rate=1, per_us=3_600_000_000, burst=2))
        queues = ["most", "rate", "default"]
        put(store, "spent", queue="rate")
        assert len(take(store, queues=queues)) == 1
        for rule in "rt":
            for queue in queues[:2]:
                put(store, "a", "a", rule=rule, queue=queue, priority=5)
            one, other, _ = put(store, "a", "a", "a", rule=rule)
            assert {claim.id for claim in take(store, queues=queues)} == {one, other}

    def test_a_key_behind_many_that_are_blocked_is_found_l21(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        put(store, *(f"k{n}" for n in range(40)))
        assert len(take(store)) == 40
        put(store, *(f"k{n}" for n in range(40)))
        [late] = put(store, "late")
        narrow = Reach(front=5, visits=5, newest=2)
        assert [c.id for c in take(store, 5, reach=narrow)] == [late]

    def test_a_look_at_the_bottom_tells_where_the_first_stands_and_passes_over_none(
        self, store: Store
    ) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        a = put(store, "a", "a", "b")
        blocked = [claim.id for claim in take(store)]
        assert blocked == [a[0], a[2]]
        claims, told = look(store, reach=Reach(front=10, visits=10, newest=8))
        assert claims == []
        if told.firsts is None:  # it has no entries that are dead and stay
            return
        firsts = {(queue, priority): first for queue, priority, first in told.firsts}
        with store.raw() as raw:
            seq = raw.value(f"SELECT queued_seq FROM job WHERE id = '{a[1]}'")
        assert firsts["default", 0] == seq
        assert {first for (_, priority), first in firsts.items() if priority} == {None}
        above = {place: (first or 0) + 1 for place, first in firsts.items()}
        late = Reach(visits=10, newest=8, bottoms=above)
        store.run(rules.change, ("job", "r"), Limit(most=5), actor="ann", reason="")
        assert take(store, reach=late) == []
        assert [claim.id for claim in take(store, reach=Reach(front=10, bottoms=above))] == [a[1]]

    def test_a_walk_over_keys_goes_on_where_it_was(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        put(store, *(f"k{n}" for n in range(20)))
        found: list[str] = []
        after = ""
        while len(found) < 20:
            claims, told = look(store, 6, reach=Reach(visits=6, after=after))
            found += [c.id for c in claims]
            after = told.after or ""
        assert len(set(found)) == 20

    def test_an_ordered_key_runs_one_at_a_time_retries_included_l11(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(ordered=True))
        a = put(store, "a", "a", "a")
        [first] = take(store)
        assert first.id == a[0]
        store.settle((first, outcome.retry(PROBLEM, after=60)))
        assert take(store) == []
        store.advance(61)
        store.run(timers.wake, actor="m", most=9)
        [again] = take(store)
        assert again.id == a[0]
        store.settle((again, outcome.failed(PROBLEM)))
        assert [c.id for c in take(store)] == [a[1]]

    def test_a_job_of_an_ordered_key_that_polls_keeps_its_turn(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(ordered=True))
        a = put(store, "a", "a")
        [first] = take(store)
        store.settle((first, outcome.later(60)))
        assert take(store) == []
        store.advance(61)
        store.run(timers.wake, actor="m", most=9)
        assert [c.id for c in take(store)] == [a[0]]

    def test_on_a_broker_a_job_of_an_ordered_key_that_is_tried_again_keeps_its_turn(
        self, store: Store
    ) -> None:
        """Until it was handed to the broker again, the next one of the key could start."""
        store.worker(lease=9_999)
        declare(store, r=Limit(ordered=True))
        store.run(hints.declare, {"b": "redis"})
        a = put(store, "a", "a", queue="b")
        hand_out_all(store, "b")
        assert not take_named(store, a[1])
        [first] = take_named(store, *a)
        assert first.id == a[0]
        store.settle((first, outcome.retry(PROBLEM, after=1)))
        assert not take_named(store, *a)
        store.advance(2)
        store.run(timers.wake, actor="m", most=9)
        assert store.state(a[0]) == "READY"
        assert not take_named(store, *a)
        hand_out(store, "b")
        [again] = take_named(store, *a)
        assert again.id == a[0]
        store.settle((again, GOOD))
        assert [claim.id for claim in take_named(store, *a)] == [a[1]]

    def test_jobs_of_a_blocked_key_leave_room_on_the_broker_for_others_l20(
        self, store: Store
    ) -> None:
        """They filled it, and no other key of the queue was handed out as long as they waited."""
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1), off=Limit(most=0))
        store.run(hints.declare, {"b": "redis"})
        many, [other] = put(store, *["a"] * 30, queue="b"), put(store, "b", queue="b")
        closed = put(store, *["c"] * 30, rule="off", queue="b")
        hand_out(store, "b", most=10)
        assert [store.state(one) for one in (many[0], other)] == ["QUEUED", "QUEUED"]
        [first] = take_named(store, *many[:10])
        assert [claim.id for claim in take_named(store, other)] == [other]
        assert {store.state(one) for one in closed} == {"READY"}
        store.settle((first, GOOD))
        for _ in range(29):  # each is handed out in its time
            hand_out(store, "b", most=10)
            [claim] = take_named(store, *many)
            store.settle((claim, GOOD))
        declare(store, off=Limit(most=1))
        hand_out(store, "b", most=10)
        assert take_named(store, *closed)

    def test_who_stands_behind_any_number_of_blocked_jobs_is_handed_out_l20(
        self, store: Store
    ) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=0), s=Limit(most=1))
        store.run(hints.declare, {"b": "redis"})
        for priority in (1, 1, 0, 0):
            shared = Template(kind="k", queue="b", priority=priority)
            new = [
                NewJob(new_id(), b"1", shared, key=limits.limit_key("r", "a")) for _ in range(700)
            ]
            store.run(creation.create, new)
        [last] = put(store, "b", rule="s", queue="b")
        place, looks = None, 0
        found: list[hints.Hint] = []
        while not found and looks < 9:
            found, place = store.run(
                hints.dispatch_behind, "b", place, most=10, batch=10, lease_seconds=9, actor="m"
            )
            looks += 1
        assert [hint.job_id for hint in found] == [last]
        assert (looks, place) == (3, None)

    def test_no_more_jobs_of_a_queue_go_to_its_broker_than_may_start(self, store: Store) -> None:
        """All did; one was claimed at a time, and the hints of the others came again later."""
        store.worker(lease=9_999)
        store.run(hints.declare, {"b": "redis"})
        store.run(rules.declare, {("queue", "b"): Limit(most=2)})
        mine = store.create(6, queue="b")
        assert [hand_out(store, "b") for _ in range(2)] == [2, 0]
        [first] = take_named(store, mine[0])
        assert hand_out(store, "b") == 0
        store.settle((first, GOOD))
        assert hand_out(store, "b") == 1
        for claim in take_named(store, *mine):
            store.settle((claim, GOOD))
        rate = Limit(rate=1, per_us=1_000_000, burst=1)
        store.run(rules.declare, {("queue", "b"): rate})
        assert [hand_out(store, "b") for _ in range(2)] == [1, 0]
        assert len(take_named(store, *mine)) == 1
        assert hand_out(store, "b") == 0
        store.advance(1)
        assert hand_out(store, "b") == 1

    @pytest.mark.parametrize("scope", [("job", "r"), ("queue", "b")])
    def test_a_kind_that_nobody_knows_takes_no_place_on_a_broker_l15(
        self, store: Store, scope: tuple[str, str]
    ) -> None:
        """It was handed out, as the only job that might start; all others waited behind it."""
        store.worker(lease=9_999)
        store.run(hints.declare, {"b": "redis"})
        store.run(rules.declare, {scope: Limit(most=1)})
        [gone], [known] = put(store, "a", kind="gone", queue="b"), put(store, "a", queue="b")
        assert hand_out(store, "b", kinds=["k 1"]) == 1
        assert [store.state(one) for one in (gone, known)] == ["READY", "QUEUED"]
        assert take_named(store, known)

    def test_a_kind_that_nobody_knows_closes_its_ordered_key_on_a_broker_l12(
        self, store: Store
    ) -> None:
        store.run(hints.declare, {"b": "redis"})
        declare(store, r=Limit(ordered=True))
        put(store, "a", kind="gone", queue="b")
        [_, other] = put(store, "a", "b", queue="b")
        assert hand_out(store, "b", kinds=["k 1"]) == 1
        assert store.state(other) == "QUEUED"

    def test_an_ordered_key_on_a_broker_is_handed_out_one_by_one_and_a_retry_first_l11(
        self, store: Store
    ) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(ordered=True))
        store.run(hints.declare, {"b": "redis"})
        a = put(store, *["a"] * 5, queue="b")
        hand_out(store, "b")
        assert [store.state(one) for one in a] == ["QUEUED"] + ["READY"] * 4
        [first] = take_named(store, *a)
        store.settle((first, outcome.retry(PROBLEM, after=1)))
        hand_out(store, "b")
        assert store.state(a[1]) == "READY"
        # All of them are there now; the retry has its turn all the same.
        hand_out_all(store, "b")
        store.advance(2)
        store.run(timers.wake, actor="m", most=9)
        assert store.state(a[0]) == "READY"
        for _ in range(3):
            hand_out(store, "b")
        for one in a:
            [claim] = take_named(store, *a)
            assert claim.id == one
            store.settle((claim, GOOD))
            hand_out(store, "b")

    def test_a_rate_lets_so_many_start_in_a_time_l17(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(rate=2, per_us=10_000_000, burst=2))
        put(store, *["a"] * 9)
        assert len(take(store)) == 2
        claims, told = look(store)
        assert claims == []
        assert 0 < (told.wait_us or 0) <= 5_000_000
        store.advance(5)
        assert len(take(store)) == 1
        assert take(store) == []
        store.advance(60)
        assert len(take(store)) == 2

    def test_units_are_reserved_and_settled_by_what_was_counted_l18(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(rate=100, per_us=1_000_000, burst=100, units="tokens"))
        put(store, "a", units=100.0)
        put(store, "a", units=50.0)
        put(store, "a", units=50.0)
        [first] = take(store)
        assert take(store) == []
        store.settle((first, outcome.succeeded(usage={"tokens": 50})))
        [_] = take(store)
        assert take(store) == []

    def test_small_jobs_do_not_take_what_a_large_one_before_them_waits_for_l22(
        self, store: Store
    ) -> None:
        """While more jobs waited than a look has, those behind left it nothing, for ever."""
        store.worker(lease=9_999)
        declare(store, r=Limit(rate=10, per_us=1_000_000, burst=100, units="tokens"))
        store.run(hints.declare, {"b": "redis"})
        for queue in ("default", "b"):
            first, large = put(store, queue, queue, queue=queue, units=100.0)
            small = put(store, *[queue] * 5, queue=queue, units=1.0)
            hand_out(store, queue)
            assert [claim.id for claim in take_named(store, first) or take(store)] == [first]
            store.advance(1)
            if queue == "b":
                hand_out(store, queue)
                assert {store.state(one) for one in (large, *small)} == {"READY"}
                continue
            [(seq,)] = store.rows(f"SELECT queued_seq FROM job WHERE id = '{small[1]}'")
            behind = [jobs.Line(queue, 0, seq)]
            for reach in (Reach(front=3), Reach(front=3, surplus=True)):
                given: Any = {"worker_id": "w1", "line": behind, "most": 3, "reach": reach}
                assert store.run(limits.claim, **given)[0] == []
            store.advance(60)
            assert [claim.id for claim in store.run(limits.claim, **given)[0]] == [large]

    def test_a_queue_has_limits_of_its_own(self, store: Store) -> None:
        store.worker(lease=9_999)
        store.run(rules.declare, {("queue", "default"): Limit(most=3)})
        declare(store, r=Limit(most=1))
        plain = store.create(4)
        put(store, "a", "b")
        assert store.claim(9) == []
        first = take(store)
        assert len(first) == 3
        assert take(store) == []
        store.settle((first[0], GOOD))
        assert len(take(store)) == 1
        assert set(plain) & {c.id for c in first}

    def test_a_queue_has_a_rate_of_its_own(self, store: Store) -> None:
        store.worker(lease=9_999)
        store.run(rules.declare, {("queue", "default"): Limit(rate=1, per_us=1_000_000, burst=3)})
        store.create(9)
        assert len(take(store)) == 3
        claims, told = look(store)
        assert claims == []
        assert 0 < (told.wait_us or 0) <= 1_000_000
        store.advance(2)
        assert len(take(store)) == 2

    def test_a_full_queue_waits_for_the_end_of_a_job_and_for_no_rate(self, store: Store) -> None:
        """A worker looked again and again, at the pace of the rate."""
        store.worker(lease=9_999)
        slow = Limit(rate=50, per_us=1_000_000, burst=1)
        declare(store, r=slow)
        for limit in (Limit(most=1), Limit(most=1, rate=20, per_us=1_000_000, burst=1)):
            store.run(rules.declare, {("queue", "default"): limit})
            for reach in (WIDE, Reach(front=3), Reach(visits=3)):
                put(store, *["a"] * 5)
                store.create(5)
                store.advance(60)
                [running] = take(store)
                claims, told = look(store, reach=reach)
                assert (claims, told.wait_us) == ([], None)
                assert told.blocked
                store.settle((running, GOOD))
        claims, told = look(store)
        assert claims == []
        assert 0 < (told.wait_us or 0) <= 50_000

    def test_a_rule_that_is_gone_limits_nobody_l6(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        put(store, "a", "a", "a")
        assert len(take(store)) == 1
        store.run(rules.change, ("job", "r"), Limit(most=2), actor="me", reason="more")
        assert len(take(store)) == 1
        store.run(rules.change, ("job", "r"), Limit(), actor="me", reason="no limit")
        assert len(take(store)) == 1

    def test_a_kind_that_the_worker_lacks_is_passed_over_l15(self, store: Store) -> None:
        store.worker(lease=9_999)
        declare(store, r=Limit(most=1))
        shared = Template(kind="other")
        key = limits.limit_key("r", "a")
        store.run(creation.create, [NewJob(new_id(), b"1", shared, key=key)])
        [mine] = put(store, "a")
        assert [c.id for c in take(store, kinds=["k 1"])] == [mine]

    def test_a_rule_counts_whatever_its_name_is(self, store: Store) -> None:
        """In a key `/` and `%` of a rule's name are written otherwise."""
        store.worker(lease=9_999)
        names = ("eu/mail", "100%", "a%2Fb", "a%25", "/")
        for n, name in enumerate(names):
            declare(store, **{name: Limit(most=1)})
            put(store, "x", "x", rule=name)
            assert len(take(store)) == 1, (n, name)
        declare(
            store,
            **{"one/by/one": Limit(ordered=True), "3/s": Limit(rate=3, per_us=10**9, burst=2)},
        )
        first, *_ = put(store, *["x"] * 3, rule="one/by/one")
        put(store, *["x"] * 3, rule="3/s")
        found = take(store)
        assert len(found) == 1 + 2
        store.settle(*((claim, outcome.retry(PROBLEM, after=0)) for claim in found))
        store.run(timers.wake, actor="m", most=9)
        assert [c.id for c in take(store)] == [first]

    def test_a_walk_over_keys_leaves_out_none_where_there_are_several_lines(
        self, store: Store
    ) -> None:
        """Where one line had few keys the walk went on behind them, past those of the other."""
        store.worker(lease=9_999)
        declare(store, r=Limit(most=0), o=Limit())
        put(store, *(f"k{n}" for n in range(8)), priority=5)
        put(store, *(f"k{n}" for n in range(60)))
        kept = put(store, *(f"k{n}" for n in range(20)), rule="o")
        found, after = set[str](), ""
        for _ in range(40):
            claims, met = look(store, reach=Reach(visits=6, after=after))
            found |= {claim.id for claim in claims}
            after = met.after or ""
        assert found == set(kept)

    def test_an_ordered_key_in_two_lines_goes_on(self, store: Store) -> None:
        """A deploy gave its kind another priority: neither of the two jobs had the turn."""
        store.worker(lease=9_999)
        declare(store, r=Limit(ordered=True))
        [older] = put(store, "a")
        [urgent] = put(store, "a", priority=5)
        for expected in (urgent, older):
            [claim] = take(store)
            assert claim.id == expected
            assert take(store) == []
            store.settle((claim, GOOD))
