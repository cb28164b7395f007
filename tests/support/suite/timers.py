"""What time does to jobs: waking, falling due, missing a deadline."""

from datetime import timedelta

import pytest

from milepost import outcome
from milepost.store import failures, jobs, journal, runs, timers, workers
from tests.support.suite.store import PROBLEM, Store

__all__ = ["ClockSuite", "TimerSuite"]


class TimerSuite:
    """Sleepers wake at their time, late ones end, and the store's clock decides."""

    def test_a_retry_falls_due_at_its_time_h51(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.retry(PROBLEM, after=10)))
        store.advance(9)
        assert store.run(timers.wake, actor="m", most=9) == 0
        store.advance(2)
        assert store.run(timers.wake, actor="m", most=9) == 1
        assert store.moves(claim.id)[-2:] == ["retry", "due"]

    def test_a_sleeper_wakes_at_its_time_h8(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.later(10)))
        store.advance(11)
        assert store.run(timers.wake, actor="m", most=9) == 1
        assert (store.state(claim.id), store.moves(claim.id)[-1]) == ("QUEUED", "wake")

    def test_one_that_waits_for_a_signal_alone_is_not_woken_by_time(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.later(None)))
        store.advance(1_000_000)
        assert store.run(timers.wake, actor="m", most=9) == 0
        assert store.run(timers.next_due) is None

    def test_waking_is_bounded_and_takes_the_longest_due_first_h99(self, store: Store) -> None:
        [late] = store.create(state="WAITING", delay_us=9_000_000)
        [early] = store.create(state="WAITING", delay_us=1_000_000)
        store.advance(10)
        assert store.run(timers.wake, actor="m", most=1) == 1
        assert (store.state(early), store.state(late)) == ("QUEUED", "WAITING")
        assert [store.run(timers.wake, actor="m", most=1) for _ in range(2)] == [1, 0]

    def test_the_next_due_time_is_known(self, store: Store) -> None:
        assert store.run(timers.next_due) is None
        store.create(state="WAITING", delay_us=50_000_000)
        assert 45 < (store.run(timers.next_due) or 0) <= 50
        store.advance(60)
        assert -20 < (store.run(timers.next_due) or 0) < 0

    def test_a_broker_queues_sleeper_becomes_ready(self, store: Store) -> None:
        with store.raw() as hand:
            hand.execute("INSERT INTO queue (name, transport) VALUES ('far', 'nats')")
        [job_id] = store.create(queue="far", state="WAITING", delay_us=1)
        store.advance(1)
        store.run(timers.wake, actor="m", most=9)
        assert store.state(job_id) == "READY"

    @pytest.mark.parametrize("state", ["CREATED", "WAITING", "READY", "QUEUED"])
    def test_a_missed_deadline_ends_what_is_not_running_h10(self, store: Store, state: str) -> None:
        [job_id] = store.create(state=state, deadline_us=5_000_000)
        assert store.run(timers.expire, actor="m", most=9) == 0
        store.advance(6)
        assert store.run(timers.expire, actor="m", most=9) == 1
        job = store.run(jobs.get, job_id)
        assert (job.state, job.cause, job.move) == ("FAILED", "deadline", "expire")
        assert store.run(timers.expire, actor="m", most=9) == 0

    def test_a_missed_deadline_ends_a_retry_wait_h10(self, store: Store) -> None:
        store.worker()
        claim = store.running(deadline_us=5_000_000)
        store.settle((claim, outcome.retry(PROBLEM, after=60)))
        store.advance(6)
        assert store.run(timers.expire, actor="m", most=9) == 1
        assert store.state(claim.id) == "FAILED"

    def test_a_running_job_is_left_to_its_worker_past_the_deadline(self, store: Store) -> None:
        store.worker(lease=900)
        claim = store.running(deadline_us=5_000_000)
        store.advance(6)
        assert store.run(timers.expire, actor="m", most=9) == 0
        assert store.settle((claim, outcome.expired(PROBLEM))) == {claim.id}
        assert store.run(jobs.get, claim.id).cause == "deadline"

    def test_a_missed_start_ends_only_what_never_started_h109(self, store: Store) -> None:
        store.worker(lease=900)
        [missed] = store.create(start_within_us=5_000_000)
        started = store.running(start_within_us=5_000_000)
        store.settle((started, outcome.later(0)))
        store.advance(6)
        assert store.run(timers.expire, actor="m", most=9) == 1
        assert store.run(journal.history, missed)[-1].detail == "start_within"
        assert store.state(started.id) == "WAITING"

    def test_an_expired_or_rejected_child_is_seen_by_its_run_h64(self, store: Store) -> None:
        late = store.start([1], child={"deadline_us": 5_000_000})
        rejected = store.start([2])
        store.advance(6)
        assert store.run(timers.expire, actor="m", most=9) == 1
        assert store.run_state(late) == "FAILED"
        child = store.run(jobs.listing, run_id=rejected)[0].id
        assert store.run(jobs.reject, child, reason="no definition", actor="m") is True
        assert store.run_state(rejected) == "STOPPING"

    def test_what_no_definition_will_run_is_rejected_once_h104(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create()
        running = store.running()
        assert store.run(jobs.reject, job_id, reason="gone", actor="m") is True
        assert store.run(jobs.reject, job_id, reason="gone", actor="m") is False
        assert store.run(jobs.reject, running.id, reason="gone", actor="m") is False
        job = store.run(jobs.get, job_id)
        assert (job.state, job.cause, job.move) == ("FAILED", "rejected", "reject")

    def test_a_run_that_missed_its_deadline_stops_then_fails_h109(self, store: Store) -> None:
        store.worker(lease=900)
        late = store.start([2], run={"deadline_us": 5_000_000})
        fine = store.start([1], run={"deadline_us": 500_000_000})
        store.claim()
        store.advance(6)
        assert store.run(runs.expire, actor="m", most=9) == 1
        assert (store.run_state(late), store.run_state(fine)) == ("STOPPING", "QUEUED")
        store.run(runs.cancel_rest, late, actor="m", most=9)
        store.run(jobs.reconcile, worker_id="w1", known={})
        run = store.run(runs.get, late)
        assert (run.state, run.cause) == ("FAILED", "deadline")
        assert store.run(runs.expire, actor="m", most=9) == 0


class ClockSuite:
    """One clock decides, and tests can move it (H-98)."""

    def test_the_clock_is_the_databases_and_can_be_moved(self, store: Store) -> None:
        before = store.run(workers.now)
        store.advance(3600)
        moved = store.run(workers.now)
        assert timedelta(seconds=3600) <= moved - before < timedelta(seconds=3660)
        store.advance(-3600)
        assert abs(store.run(workers.now) - before) < timedelta(seconds=60)

    def test_every_stamp_comes_from_that_clock_h31(self, store: Store) -> None:
        store.advance(86_400 * 365)
        low = store.run(workers.now) - timedelta(milliseconds=5)
        store.worker()
        claim = store.running(deadline_us=9_000_000)
        store.settle((claim, outcome.retry(PROBLEM, after=1)))
        run_id = store.start([0])
        high = store.run(workers.now) + timedelta(seconds=9)
        job, run = store.run(jobs.get, claim.id), store.run(runs.get, run_id)
        [worker] = store.run(workers.listing)
        stamps = [job.created_at, job.started_at, job.due_at, job.deadline_at, run.created_at]
        stamps += [run.finished_at, worker.started_at, worker.heartbeat_at]
        stamps += [entry.at for entry in store.run(journal.history, claim.id)]
        stamps += [one.at for one in store.run(failures.attempts, claim.id)]
        assert all(at is not None and low <= at <= high for at in stamps)

    def test_a_clock_that_goes_backwards_loses_nothing_f6(self, store: Store) -> None:
        store.worker(lease=9000)
        first = store.create()[0]
        store.advance(-3600)
        second = store.create()[0]
        assert {claim.id for claim in store.claim(9)} == {first, second}
