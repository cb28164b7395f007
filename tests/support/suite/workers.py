"""Workers, elections and queues."""

import pytest

from milepost.errors import IllegalMove, LeaseLost
from milepost.lifecycle import WorkerState
from milepost.store import workers
from milepost.store.workers import NewWorker
from tests.support.suite.store import Store

__all__ = ["WorkerSuite"]


class WorkerSuite:
    """A worker is on record from its first breath, and dead for good once buried."""

    def test_a_registered_worker_is_listed_with_what_it_said(self, store: Store) -> None:
        store.run(
            workers.register,
            NewWorker(id="w", lease_us=30_000_000, host="h", pid=7, program="p", queues="q"),
        )
        [worker] = store.run(workers.listing)
        assert (worker.id, worker.state, worker.move) == ("w", "STARTUP", "boot")
        assert (worker.host, worker.pid, worker.program, worker.queues) == ("h", 7, "p", "q")
        assert 25 < worker.lease_seconds <= 30
        assert worker.started_at <= worker.lease_until

    def test_registering_again_after_a_lost_reply_is_harmless(self, store: Store) -> None:
        store.worker()
        store.worker()
        assert len(store.run(workers.listing)) == 1
        store.advance(60)
        store.run(workers.bury, most=9)
        with pytest.raises(LeaseLost):
            store.worker()

    def test_a_worker_that_died_is_not_counted_as_one_at_work(self, store: Store) -> None:
        """Maintenance runs in workers: after the last one died nobody moves its row."""
        store.worker("dead")
        store.advance(60)
        store.worker("living")
        assert store.run(workers.counts) == {"STARTUP": 1, "STOPPED": 1}

    def test_its_moves_are_those_of_the_machine(self, store: Store) -> None:
        name, state = store.worker(), WorkerState.STARTUP
        for move in ("connect", "recover", "poll", "back_off", "rest", "connect", "drain", "stop"):
            state = store.run(workers.move, name, move, source=state, slots="{}")
        assert state == WorkerState.STOPPED
        with pytest.raises(IllegalMove):
            store.run(workers.move, name, "poll", source=WorkerState.STARTUP)

    def test_what_the_row_does_not_allow_is_refused_by_the_store(self, store: Store) -> None:
        name = store.worker()
        with pytest.raises(IllegalMove):
            store.run(workers.move, name, "poll", source=WorkerState.RECOVERY)

    def test_a_buried_worker_cannot_move_or_renew(self, store: Store) -> None:
        name = store.worker(lease=1)
        store.advance(2)
        assert store.run(workers.bury, most=9) == [name]
        with pytest.raises(LeaseLost):
            store.run(workers.move, name, "connect", source=WorkerState.STARTUP)
        with pytest.raises(LeaseLost):
            store.run(workers.renew, name, lease_seconds=5)

    def test_burying_is_bounded(self, store: Store) -> None:
        for number in range(3):
            store.worker(f"w{number}", lease=1)
        store.advance(2)
        assert [len(store.run(workers.bury, most=2)) for _ in range(3)] == [2, 1, 0]

    def test_long_stopped_workers_are_forgotten(self, store: Store) -> None:
        store.worker("old", lease=1)
        store.worker("live", lease=9000)
        store.advance(100)
        store.run(workers.bury, most=9)
        store.run(workers.prune, keep_seconds=500)
        assert len(store.run(workers.listing)) == 2
        store.run(workers.prune, keep_seconds=50)
        assert [worker.id for worker in store.run(workers.listing)] == ["live"]

    def test_an_election_has_one_holder_until_its_lease_is_over_h101(self, store: Store) -> None:
        def hold(holder: str) -> bool:
            return store.run(workers.hold_election, "maintain", holder=holder, lease_seconds=10)

        assert (hold("a"), hold("b"), hold("a")) == (True, False, True)
        store.advance(11)
        assert (hold("b"), hold("a")) == (True, False)
        assert store.run(workers.hold_election, "other", holder="a", lease_seconds=10) is True
