"""Places at hosts that requests go to: a live lease is the count."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic
from typing import Any

import pytest

from milepost import outcome
from milepost.records import Claim
from milepost.store import hosts, rules
from milepost.store.driver import Steps
from milepost.store.hosts import Asking, Place
from milepost.store.rules import Limit
from tests.support.suite.store import GOOD, LEASE_SECONDS, Store

__all__ = ["HostSuite"]

HOST = "a.example"
TICK = 0.002
"""SQLite's clock tells milliseconds."""


def limit(store: Store, **given: Any) -> None:
    name = given.pop("host", HOST)
    store.run(rules.change, ("host", name), Limit(**given), actor="me", reason=None)


def ask(store: Store, *claims: Claim, host: str = HOST, **given: Any) -> list[Place]:
    stays, ended = given.pop("stays", True), given.pop("ended", ())
    asked = [Asking(claim, host, stays) for claim in claims]
    places = store.run(hosts.enter, asked, ended=ended)
    return [places[claim.id] for claim in claims]


def sent(store: Store, *claims: Claim, **given: Any) -> list[bool]:
    return [place.is_free for place in ask(store, *claims, **given)]


def held(store: Store, count: int, *, worker: str = "w1") -> list[Claim]:
    store.create(count)
    return store.claim(count, worker=worker)


class HostSuite:
    """Limits of hosts hold over all processes, and cannot leak."""

    def test_a_host_without_a_rule_is_asked_for_nothing(self, store: Store) -> None:
        store.worker()
        [claim] = held(store, 1)
        assert ask(store, claim) == [Place()]
        assert store.rows("SELECT count(*) FROM host_place") == [(0,)]

    def test_no_more_are_sent_at_once_than_the_rule_allows(self, store: Store) -> None:
        store.worker()
        limit(store, most=2)
        a, b, c = held(store, 3)
        assert sent(store, a, b, c) == [True, True, False]
        assert sent(store, c) == [False]
        store.settle((a, GOOD))
        assert sent(store, c) == [True]

    def test_two_that_ask_at_once_for_the_last_place_take_turns(self, store: Store) -> None:
        store.worker()
        limit(store, most=1)
        a, b = held(store, 2)
        counted, other = Event(), Event()

        def paused(asked: list[Asking]) -> Steps[dict[str, Place]]:
            """Give the other all the time it needs, between the count and the place."""
            steps = hosts.enter(asked)
            call = next(steps)
            while True:
                if call.name == "host_put":
                    counted.set()
                    other.wait(0.3)
                try:
                    call = steps.send((yield call))
                except StopIteration as end:
                    places: dict[str, Place] = end.value
                    return places

        def ask_meanwhile() -> bool:
            assert counted.wait(10)
            with store.database.driver() as driver:
                free = driver.run(hosts.enter, [Asking(b, HOST)])[b.id].is_free
            other.set()
            return free

        with ThreadPoolExecutor() as pool:
            meanwhile = pool.submit(ask_meanwhile)
            assert store.run(paused, [Asking(a, HOST)])[a.id].is_free
            assert not meanwhile.result(10)

    @pytest.mark.parametrize("end", ["retry", "later", "release", "fail"])
    def test_every_end_of_a_lease_frees_its_place(self, store: Store, end: str) -> None:
        store.worker()
        limit(store, most=1)
        a, b = held(store, 2)
        assert sent(store, a, b) == [True, False]
        problem = outcome.Problem(type="E", message="m")
        ends = {
            "retry": outcome.retry(problem, after=9),
            "later": outcome.later(9),
            "release": outcome.released("r", after=9),
            "fail": outcome.failed(problem),
        }
        store.settle((a, ends[end]))
        assert sent(store, b) == [True]

    def test_a_killed_worker_holds_its_place_until_its_lease_is_over(self, store: Store) -> None:
        store.worker()
        limit(store, most=1)
        [a] = held(store, 1)
        assert sent(store, a) == [True]
        store.worker("w2", lease=9_999)
        [b] = held(store, 1, worker="w2")
        store.advance(LEASE_SECONDS - 1)
        assert sent(store, b) == [False]
        store.lose_all()
        assert sent(store, b) == [True]

    def test_a_late_attempt_takes_no_place_from_the_next_one(self, store: Store) -> None:
        store.worker()
        limit(store, most=1)
        [late] = held(store, 1)
        store.lose_all()
        store.worker("w2", lease=9_999)
        store.advance(60)
        store.run(hosts.prune, most=9)
        store.rows("UPDATE job SET state = 'QUEUED', move = 'due', version = version + 1")
        [again] = store.claim(worker="w2")
        [other] = held(store, 1, worker="w2")
        assert sent(store, again) == [True]
        ask(store, late)
        assert sent(store, other) == [False]

    def test_one_that_has_ended_gives_its_place_to_the_next(self, store: Store) -> None:
        store.worker()
        limit(store, most=1)
        a, b = held(store, 2)
        assert sent(store, a, b) == [True, False]
        assert sent(store, b, ended=[(a.id, a.fence + 1)]) == [False]
        assert sent(store, b, ended=[(a.id, a.fence)]) == [True]

    def test_a_rule_that_is_changed_acts_on_the_next_request(self, store: Store) -> None:
        store.worker()
        limit(store, most=1)
        a, b, c = held(store, 3)
        assert sent(store, a, b) == [True, False]
        limit(store, most=3)
        assert sent(store, b) == [True]
        limit(store, most=1)
        assert sent(store, c) == [False]
        limit(store)
        assert sent(store, c) == [True]

    def test_a_rate_spaces_requests_evenly(self, store: Store) -> None:
        store.worker(lease=9_999)
        limit(store, rate=2, per_us=1_000_000, burst=1)
        a, b, c, d = held(store, 4)
        began = monotonic()
        places = ask(store, a, b, c, d)
        assert [place.is_free for place in places] == [True, True, True, False]
        assert [round(place.seconds, 1) for place in places[:3]] == [0, 0.5, 1]
        assert 1 < places[3].back <= 2
        store.advance(1)
        [place] = ask(store, d)
        assert place.is_free
        passed = monotonic() - began
        assert 0.5 - passed - TICK <= place.seconds <= 0.5 + TICK

    def test_one_rule_serves_all_hosts_that_have_none(self, store: Store) -> None:
        store.worker()
        limit(store, host="*", most=1)
        limit(store, most=2)
        a, b, c, d = held(store, 4)
        assert sent(store, a, b) == [True, True]
        assert sent(store, c, d, host="b.example") == [True, False]
        assert sent(store, d, host="c.example") == [True]

    def test_who_has_waited_longer_goes_first(self, store: Store) -> None:
        store.worker(lease=9_999)
        limit(store, most=1)
        a, old, new = held(store, 3)
        assert sent(store, a, old) == [True, False]
        store.advance(3)
        assert sent(store, old) == [False]
        store.settle((a, GOOD))
        assert sent(store, new) == [False], "another waits, and asks again in a moment"
        assert sent(store, old) == [True]

    def test_who_does_not_come_is_not_waited_for(self, store: Store) -> None:
        store.worker(lease=9_999)
        limit(store, most=1)
        a, old, new = held(store, 3)
        assert sent(store, a, old) == [True, False]
        store.settle((a, GOOD))
        store.advance(3)
        assert sent(store, new) == [True]

    def test_those_that_wait_for_a_closed_host_come_back_seldom(self, store: Store) -> None:
        """None has a turn there: they must not be claimed again and again."""
        store.worker()
        for closed in (Limit(most=0), Limit(most=0, rate=10, per_us=1_000_000, burst=1)):
            store.run(rules.change, ("host", HOST), closed, actor="me", reason=None)
            places = ask(store, *held(store, 3), stays=False)
            assert [place.back for place in places] == [30.0] * 3

    def test_those_without_a_place_come_back_one_after_the_other(self, store: Store) -> None:
        store.worker(lease=9_999)
        limit(store, most=2)
        first = held(store, 2)
        began = monotonic()
        assert sent(store, *first) == [True, True]
        store.advance(2)
        for turns in ([1, 2, 3, 4, 5], [6, 7]):
            places = ask(store, *held(store, len(turns)), stays=False)
            # Two are under way since two seconds, and are at half of their time.
            gap = places[0].back / turns[0]
            assert 2 - TICK <= gap <= 2 + monotonic() - began + TICK
            assert [place.back for place in places] == pytest.approx([n * gap for n in turns])

    def test_what_nobody_asks_for_again_is_pruned(self, store: Store) -> None:
        store.worker(lease=9_999)
        limit(store, most=1)
        a, b, c = held(store, 3)
        assert sent(store, a, b, c) == [True, False, False]
        store.advance(120)
        assert store.run(hosts.prune, most=9) == 0
        assert store.run(hosts.counts, [HOST]) == {HOST: (1, 2)}
        store.settle((a, GOOD), (b, GOOD))
        assert store.run(hosts.counts, [HOST]) == {HOST: (0, 1)}
        assert store.run(hosts.prune, most=9) == 2
