"""What is counted: jobs by state, moves and durations by time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from milepost import outcome
from milepost.errors import Invalid
from milepost.store import creation, jobs, runs, tally, timers, workers
from milepost.store.tally import MINUTE, OTHERS, TEN_MINUTES, Report, WorkerTally
from tests.support.suite.store import PROBLEM, Store

__all__ = ["TallySuite"]


def fold(store: Store, most: int = 1_000) -> None:
    while store.run(tally.fold, most=most) >= most:
        pass


def counted(store: Store, by: tuple[str, ...] = ("move",), **options: Any) -> dict[Any, int]:
    """Read the moves of the last days, whatever their time."""
    now = store.run(workers.now)
    found = store.run(
        tally.moves, now - timedelta(days=9), now + timedelta(days=1), by=by, **options
    )
    told: dict[Any, int] = {}
    for one in found:
        names = tuple(getattr(one, name) for name in by)
        key = names if len(names) > 1 else names[0]
        told[key] = told.get(key, 0) + one.count
    return told


def assert_exact(store: Store) -> None:
    """Compare the counts of jobs with those that a look at every row gives."""
    told = store.counted()
    assert store.run(jobs.counts) == told
    states: dict[str, int] = {}
    for by_state in told.values():
        for state, count in by_state.items():
            states[state] = states.get(state, 0) + count
    assert store.run(jobs.state_counts) == states


class TallySuite:
    """Counts are exact, folded or not, and old ones are kept by longer spans."""

    def test_jobs_are_counted_by_queue_and_state(self, store: Store) -> None:
        assert store.run(jobs.counts) == {}
        assert store.run(jobs.state_counts) == {}
        store.worker()
        store.create(3, queue="a")
        store.create(2, queue="b", state="WAITING", delay_us=9_000_000)
        [held] = store.create(queue="b", state="CREATED")
        for result in (
            outcome.succeeded(b"1"),
            outcome.failed(PROBLEM),
            outcome.retry(PROBLEM, after=1),
        ):
            store.settle((store.running(), result))
        assert_exact(store)
        fold(store)
        assert_exact(store)
        store.run(jobs.cancel, held, reason="no", actor=None)
        store.create(queue="c")
        store.settle((store.running(), outcome.succeeded(b"1")))
        assert_exact(store)
        fold(store, most=1)
        assert_exact(store)

    def test_jobs_that_leave_are_counted_no_more(self, store: Store) -> None:
        store.worker()
        ended = [store.running() for _ in range(4)]
        store.settle(*((claim, outcome.succeeded(b"1")) for claim in ended))
        for folded, claim in enumerate(reversed(ended)):
            if folded % 2 == 0:
                fold(store)
            store.rows("DELETE FROM job WHERE id = :id", id=claim.id)
            assert_exact(store)
        fold(store)
        assert_exact(store)
        store.create(2)
        assert_exact(store)
        fold(store)
        assert (store.counted(), counted(store)["create"]) == ({"default": {"QUEUED": 2}}, 6)

    def test_every_move_that_no_worker_makes_is_counted(self, store: Store) -> None:
        store.worker()
        [held, late] = store.create(2, state="CREATED")
        store.run(creation.submit, [held], actor=None)
        store.create(state="WAITING", delay_us=1)
        [early] = store.create(state="WAITING", delay_us=900_000_000)
        store.run(timers.run_now, early, actor=None)
        store.create(queue="never", deadline_us=1_000_000)
        claim = store.running()
        store.settle((claim, outcome.retry(PROBLEM, after=1)))
        lost, asked = store.running(), store.running()
        store.run(jobs.cancel, asked.id, reason="no", actor=None)
        store.settle((asked, outcome.retry(PROBLEM, after=1)))
        store.advance(2)
        store.run(timers.wake, actor="m", most=9)
        store.run(timers.expire, actor="m", most=9)
        store.lose_all()
        assert store.state(lost.id) == "RETRYING"
        store.run(jobs.reject, lost.id, reason="no", actor="m")
        store.run(jobs.cancel, late, reason="no", actor=None)
        run_id = store.start((1, 2))
        store.run(runs.cancel, run_id, reason="no", actor=None)
        store.run(runs.cancel_rest, run_id, actor="m", most=9)
        expected = {"create": 11, "submit": 1, "wake": 2, "due": 1, "expire": 1, "lose": 1}
        expected |= {"reject": 1, "cancel": 5}
        for _ in range(2):
            fold(store)
            assert counted(store) == expected

    def test_what_workers_report_is_added(self, store: Store) -> None:
        claims = [(store.worker(), store.running(kind="fast"))[1]]
        two = WorkerTally(), WorkerTally()
        for one in two:
            one.started(claims)
            label = ("succeed", claims[0].queue, "fast")
            one.ended([label], [1.0], now=1.25)
        reports = [one.take() for one in two]
        assert not two[0].take()
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda report: store.run(tally.add, report), reports))
        for _ in range(2):
            assert counted(store, kinds=["fast"])["succeed"] == 2
            assert counted(store, kinds=["fast"])["claim"] == 2
            now = store.run(workers.now)
            [found] = store.run(
                tally.durations,
                now - timedelta(hours=1),
                now + timedelta(hours=1),
                of="run",
                kind="fast",
                step_seconds=24 * 3600,
            )
            assert (sum(found.buckets), found.sum_seconds) == (2, 0.5)
            assert 0.1 < (tally.quantile(found.buckets, 0.5) or 0) <= 0.25
            fold(store)

    def test_two_that_fold_at_once_count_nothing_twice(self, store: Store) -> None:
        for number in range(30):
            store.create(queue=f"q{number % 3}")
        with ThreadPoolExecutor(4) as some:
            list(some.map(lambda _: store.run(tally.fold, most=7), range(24)))
        fold(store)
        assert counted(store, by=("queue",)) == {"q0": 10, "q1": 10, "q2": 10}
        assert_exact(store)

    def test_sums_grow_wider_with_age_and_leave_in_the_end(self, store: Store) -> None:
        store.create(4)
        fold(store)
        store.advance(3 * 3600 + 660)
        store.create(2)
        fold(store)
        while store.run(tally.roll):
            pass
        spans = "SELECT span, sum(count) FROM tally WHERE kind = '' GROUP BY span ORDER BY span"
        assert [tuple(row) for row in store.rows(spans)] == [(MINUTE, 2), (TEN_MINUTES, 4)]
        store.advance(26 * 3600)
        while store.run(tally.roll):
            pass
        assert [span for span, _ in store.rows(spans)] == [3600]
        assert counted(store) == {"create": 6}
        store.run(tally.forget)
        assert counted(store) == {"create": 6}
        store.advance(8 * 24 * 3600)
        store.run(tally.forget)
        assert counted(store) == {}
        assert store.rows("SELECT queue FROM tally_label") == []
        assert_exact(store)

    def test_sums_of_all_of_a_kind_and_of_a_pair_agree(self, store: Store) -> None:
        for queue, kind, number in (("a", "k", 1), ("a", "l", 2), ("b", "k", 4)):
            store.create(number, queue=queue, kind=kind)

        def agree() -> None:
            assert counted(store) == {"create": 7}
            assert counted(store, by=("queue",)) == {"a": 3, "b": 4}
            assert counted(store, by=("kind",)) == {"k": 5, "l": 2}
            pairs = {("a", "k"): 1, ("a", "l"): 2, ("b", "k"): 4}
            assert counted(store, by=("queue", "kind")) == pairs
            assert counted(store, queue="a") == {"create": 3}
            assert counted(store, queue="a", by=("kind",)) == {"k": 1, "l": 2}
            assert counted(store, kinds=["k"]) == {"create": 5}
            assert counted(store, kinds=["k"], by=("queue",)) == {"a": 1, "b": 4}
            assert counted(store, queue="b", kinds=["k"]) == {"create": 4}
            assert counted(store, queue="b", kinds=["l"]) == {}
            assert counted(store, queue="") == {}

        fold(store)
        agree()
        store.advance(4 * 3600)
        while store.run(tally.roll):
            pass
        agree()

    def test_pairs_beyond_the_limit_share_one_label(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tally, "LABELS_MOST", 3)
        for queue in "abcd":
            store.create(2, queue=queue)
        fold(store)
        assert counted(store, by=("queue",)) == {"a": 2, "b": 2, OTHERS: 4}
        store.create(queue="a")
        store.create(queue="e")
        fold(store)
        assert counted(store, by=("queue",)) == {"a": 3, "b": 2, OTHERS: 5}
        assert_exact(store)

    def test_a_step_begins_where_its_minute_does(self, store: Store) -> None:
        store.create()
        fold(store)
        now: datetime = store.run(workers.now)
        [one] = store.run(tally.moves, now, now + timedelta(minutes=2))
        assert (one.move, one.count, one.at.second) == ("create", 1, 0)
        assert one.queue is None
        with pytest.raises(Invalid, match="whole minutes"):
            store.run(tally.moves, now, now, step_seconds=90)
        with pytest.raises(Invalid, match="not state"):
            store.run(tally.moves, now, now, by=("state",))

    def test_nothing_is_reported_of_nothing(self, store: Store) -> None:
        store.run(tally.add, Report([]))
        assert counted(store) == {}
